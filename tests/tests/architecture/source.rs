//! The source files of the workspace, as the paths that their code names.

use std::fs;

use proc_macro2::{TokenStream, TokenTree};

/// The root of the workspace.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../");

/// A text file of the workspace.
pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(ROOT.to_owned() + path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Of every file in `folder`, which is `module`, its module and each path in its code, from the root of the crate: not those in
/// comments, strings and tests. Each file opens by saying its idea.
pub(crate) fn shipped(folder: &str, module: &str) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(ROOT.to_owned() + folder).unwrap().flatten() {
        let file = entry.file_name().into_string().unwrap();
        let path = format!("{folder}/{file}");
        let name = file.trim_end_matches(".rs");
        let module = match name {
            "mod" | "lib" => module.to_owned(),
            _ => format!("{module}{name}::"),
        };
        // The simulated link of the protocol's stories is a test, too.
        if ["tests", "sim"].contains(&name) {
            continue;
        } else if entry.file_type().unwrap().is_dir() {
            found.extend(shipped(&path, &module));
        } else if file != name {
            let text = read(&path);
            assert!(text.starts_with("//!"), "{path} does not begin with `//!`");
            let code = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap();
            let mut paths = Vec::new();
            collect(code.parse().unwrap(), "", &mut paths);
            paths.iter_mut().for_each(|path| lead_back(path, &module));
            found.push((module, paths));
        }
    }
    found
}

/// Follows `a::b`, and behind `start`, which is in front of braces, each of `{b, c::{d}}`.
fn collect(code: TokenStream, start: &str, paths: &mut Vec<String>) {
    let mut path = start.to_owned();
    let mut colons = 0;
    for token in code {
        match token {
            TokenTree::Punct(colon) if colon.as_char() == ':' => {
                colons += 1;
                continue;
            }
            TokenTree::Ident(name) if colons == 2 => path += &format!("::{name}"),
            TokenTree::Ident(name) if path == start => path += &name.to_string(),
            // What comes behind `as`.
            TokenTree::Ident(_) if !start.is_empty() => {}
            TokenTree::Ident(name) => paths.push(std::mem::replace(&mut path, name.to_string())),
            TokenTree::Group(group) if colons == 2 => {
                collect(group.stream(), &format!("{path}::"), paths);
                path = start.to_owned();
            }
            TokenTree::Group(group) => collect(group.stream(), "", paths),
            _ => paths.push(std::mem::replace(&mut path, start.to_owned())),
        }
        colons = 0;
    }
    paths.push(path);
}

fn lead_back(path: &mut String, mut module: &str) {
    let mut rest = path.strip_prefix("self::").unwrap_or(path);
    while let Some(inner) = rest.strip_prefix("super::") {
        rest = inner;
        let end = module.trim_end_matches("::").rfind("::");
        module = &module[..end.map_or(0, |end| end + 2)];
    }
    if rest.len() < path.len() {
        *path = format!("{module}{rest}");
    }
}
