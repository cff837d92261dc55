//! What every file keeps to.

use std::path::PathBuf;

use crate::source::{Source, read, root, sources};

/// Where `unsafe` may stand in what is shipped.
const UNSAFE: [&str; 5] = [
    // It launches a kernel.
    "examples/src/bin/gpu_function/kernel.rs",
    "tensorpipe/src/sys/",
    "tensorpipe/src/ring/",
    "tensorpipe/src/device/cuda/",
    "tensorpipe/src/tensor/interop/",
];

/// What the protocol must not see: sockets, files, threads, clocks, raw memory.
const NOT_IN_PROTO: [&str; 12] = [
    "tokio",
    "std::net",
    "std::fs",
    "std::io",
    "std::thread",
    "std::process",
    "std::sync",
    "Instant::now",
    "SystemTime",
    "unsafe",
    "libc::",
    "nix::",
];

#[test]
fn proto_has_no_io_no_clock_and_no_unsafe() {
    let mut files = 0;
    for source in sources() {
        if !source.path.starts_with("tensorpipe/src/proto/") || source.is_test() {
            continue;
        }
        files += 1;
        for word in NOT_IN_PROTO {
            assert!(
                !source.shipped().contains(word),
                "{} names {word}: the driver does that, `proto` decides",
                source.path
            );
        }
    }
    assert!(files > 10, "only {files} files of proto were found");
}

#[test]
fn unsafe_stands_in_its_places_and_argues_its_case() {
    let mut wrong = Vec::new();
    let mut seen = 0;
    for source in sources() {
        // Tests may call the system, and clippy asks for their reasons; what is shipped has its places.
        let allowed = source.is_test() || UNSAFE.iter().any(|place| source.path.starts_with(place));
        for (number, line) in source.lines() {
            let mut words = line.split(|c: char| !(c.is_alphanumeric() || c == '_'));
            if !words.any(|word| word == "unsafe") {
                continue;
            }
            seen += 1;
            if !allowed {
                wrong.push(format!("{}:{number} is no place for it", source.path));
            } else if !source.is_test() && !is_argued(&source, number) {
                wrong.push(format!(
                    "{}:{number} has no `SAFETY:` (`# Safety` for a function) above it",
                    source.path
                ));
            }
        }
    }
    assert!(seen > 5, "only {seen} were found: is it still looked for?");
    assert!(wrong.is_empty(), "unsafe code:\n{}", wrong.join("\n"));
}

/// Whether the comment above the statement of this line has the word.
fn is_argued(source: &Source, number: usize) -> bool {
    let lines: Vec<_> = source.text.lines().collect();
    let mut above = lines[..number].iter().rev();
    // The line itself, the first lines of its statement, attributes and comments.
    for line in above.by_ref().take(30) {
        let line = line.trim();
        if line.contains("SAFETY:") || line.contains("# Safety") {
            return true;
        }
        let ends = line.is_empty() || line == "}" || line.ends_with(';') && !line.starts_with("//");
        if ends && !line.contains("unsafe") {
            return false;
        }
    }
    false
}

#[test]
fn every_file_opens_by_saying_its_idea() {
    for source in sources() {
        assert!(
            source.text.starts_with("//!"),
            "{} does not begin with `//!`",
            source.path
        );
    }
}

#[test]
fn nothing_is_left_to_do() {
    for source in sources() {
        for left in ["todo!", "unimplemented!", "dbg!"] {
            // A mock does not implement what no test calls.
            if left == "unimplemented!" && source.is_test() {
                continue;
            }
            for (number, line) in source.lines() {
                assert!(!line.contains(left), "{}:{number} has {left}", source.path);
            }
        }
    }
}

#[test]
fn a_panic_unwinds_in_every_profile() {
    // A handler's panic becomes its call's error.
    for line in read("Cargo.toml").lines() {
        let line: String = line.split_whitespace().collect();
        assert!(!line.starts_with("panic="), "Cargo.toml: {line}");
    }
}

#[test]
fn the_readme_names_the_two_commands() {
    let readme = read("README.md");
    for command in [
        "cargo run --release -p tensorpipe-examples --bin parameter_server",
        "cargo test --workspace",
    ] {
        assert!(
            readme.lines().any(|line| line.trim() == command),
            "README.md has no line `{command}`"
        );
    }
}

/// The second command turns no feature on by itself: a member that builds with it does.
#[test]
fn every_feature_of_the_pipe_is_on_when_the_workspace_is_tested() {
    // A test turns itself on.
    const ALWAYS: [&str; 2] = ["default", "fuzzing"];
    let manifest = read("tensorpipe/Cargo.toml");
    let features = manifest.split("[features]").nth(1).unwrap();
    let features = features.split("\n[").next().unwrap().lines();
    let names: Vec<_> = features
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| Some(line.split_once(" = ")?.0))
        .filter(|name| !ALWAYS.contains(name))
        .collect();
    assert!(names.len() > 4, "{names:?}");
    let wanted: String = ["tests", "examples", "tensorpipe-rpc"]
        .map(|member| read(&format!("{member}/Cargo.toml")))
        .concat()
        .lines()
        .filter(|line| line.starts_with("tensorpipe = "))
        .collect();
    for name in names {
        assert!(
            wanted.contains(&format!("\"{name}\"")),
            "the tests behind the feature `{name}` are run by nobody: {wanted}"
        );
    }
}

#[test]
fn links_between_the_documents_lead_somewhere() {
    let mut links = 0;
    for file in documents() {
        let text = std::fs::read_to_string(&file).unwrap();
        for (at, _) in text.match_indices("](") {
            let target = text[at + 2..].split([')', '#']).next().unwrap();
            if !target.is_empty() && !target.contains("://") {
                links += 1;
                assert!(
                    file.parent().unwrap().join(target).exists(),
                    "{}: nothing is at {target}",
                    file.display()
                );
            }
        }
    }
    assert!(links > 10, "only {links} were found");
}

fn documents() -> Vec<PathBuf> {
    ["", "benches", "docs", "docs/decisions"]
        .into_iter()
        .flat_map(|folder| std::fs::read_dir(root().join(folder)).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect()
}
