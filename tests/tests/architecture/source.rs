//! The source files of the workspace, as text without comments and strings.

use std::fs;
use std::path::{Path, PathBuf};

/// One file.
pub(crate) struct Source {
    /// Its path from the root of the workspace, with `/`.
    pub(crate) path: String,
    /// As it is.
    pub(crate) text: String,
    /// The same without comments and without what strings hold; lines stay where they are.
    pub(crate) code: String,
}

impl Source {
    fn new(path: String, text: String) -> Self {
        let code = strip(&text);
        Self { path, text, code }
    }

    /// Its code without the tests at its end.
    pub(crate) fn shipped(&self) -> &str {
        let tests = self.code.find("\n#[cfg(test)]\nmod tests {");
        &self.code[..tests.unwrap_or(self.code.len())]
    }

    /// Whether it is only compiled for tests.
    pub(crate) fn is_test(&self) -> bool {
        let parts: Vec<_> = self.path.split('/').collect();
        let in_tests = parts.contains(&"tests") || parts.contains(&"tests.rs");
        // The simulated link of the protocol's stories.
        in_tests || self.path.contains("/proto/sim")
    }

    /// Numbered lines of code.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code.lines().enumerate().map(|(i, line)| (i + 1, line))
    }
}

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A text file of the workspace.
pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every Rust file of the members, without the deliberately wrong ones of `ui` and expansions.
pub(crate) fn sources() -> Vec<Source> {
    let mut found = Vec::new();
    for member in [
        "tensorpipe",
        "tensorpipe-macros",
        "tensorpipe-rpc",
        "examples",
        "tests",
        "loom",
        "benches",
    ] {
        walk(member, &mut found);
    }
    assert!(found.len() > 150, "only {} files were found", found.len());
    found
}

fn walk(dir: &str, found: &mut Vec<Source>) {
    let entries = fs::read_dir(root().join(dir)).unwrap_or_else(|error| panic!("{dir}: {error}"));
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    for name in names {
        let path = format!("{dir}/{name}");
        if root().join(&path).is_dir() {
            if !["target", "ui", "expansion"].contains(&&*name) {
                walk(&path, found);
            }
        } else if name.ends_with(".rs") {
            let text = read(&path);
            found.push(Source::new(path, text));
        }
    }
}

/// Puts spaces in the place of comments and of what strings hold.
fn strip(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let len = match rest {
            [b'/', b'/', ..] => until(rest, b"\n", 2),
            [b'/', b'*', ..] => until(rest, b"*/", 2) + 2,
            [b'r', b'"' | b'#', ..] if !ends_in_word(&out) => raw_string(rest).unwrap_or(0),
            [b'"', ..] => string(rest),
            // A character, not a lifetime.
            [b'\'', b'\\', _, ..] => until(rest, b"'", 3) + 1,
            [b'\'', _, b'\'', ..] => 3,
            _ => 0,
        };
        let len = len.min(rest.len());
        if len == 0 {
            out.push(rest[0]);
            at += 1;
        } else {
            out.extend(
                rest[..len]
                    .iter()
                    .map(|b| if *b == b'\n' { b'\n' } else { b' ' }),
            );
            at += len;
        }
    }
    String::from_utf8(out).unwrap_or_else(|error| panic!("cut inside a character: {error}"))
}

fn ends_in_word(out: &[u8]) -> bool {
    out.last()
        .is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_')
}

fn until(text: &[u8], end: &[u8], from: usize) -> usize {
    (from..text.len())
        .find(|at| text[*at..].starts_with(end))
        .unwrap_or(text.len())
}

fn string(text: &[u8]) -> usize {
    let mut at = 1;
    while at < text.len() && text[at] != b'"' {
        at += if text[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

/// `r"…"`, `r#"…"#`; `None` for a raw identifier.
fn raw_string(text: &[u8]) -> Option<usize> {
    let hashes = text[1..].iter().take_while(|b| **b == b'#').count();
    if text.get(1 + hashes) != Some(&b'"') {
        return None;
    }
    let mut end = vec![b'"'];
    end.resize(1 + hashes, b'#');
    Some(until(text, &end, 2 + hashes) + end.len())
}

#[test]
fn comments_and_strings_are_stripped() {
    let text = "a // x\nb /* y\n */ c \"q\\\" r\" 'z' '\\'' &'d r#\"s\" t\"# r#type f\"\"";
    let stripped = strip(text);
    let words: Vec<_> = stripped.split_whitespace().collect();
    assert_eq!(words, ["a", "b", "c", "&'d", "r#type", "f"]);
    assert_eq!(stripped.len(), text.len());
    assert_eq!(stripped.matches('\n').count(), 2);
}
