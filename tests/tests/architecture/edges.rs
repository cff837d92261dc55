//! Who may name whom: the layers of `tensorpipe` and `tensorpipe-rpc`, from `crate::` and `super::` paths.
//!
//! The tables are the truth that ARCHITECTURE.md explains. A new edge belongs here only with a reason there.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::{Source, sources};
use crate::tables::{PIPE, RPC};

/// What stands on the public API: it may name all of that, and nobody names it.
const ON_TOP: [&str; 2] = ["blocking", "conformance"];

/// What stands in `pipe/mod.rs` itself.
const TOP: &str = "Pipe";

/// Backends by name: only their own folders and the lists of defaults know them.
const BACKENDS: [&str; 6] = [
    "MemoryTransport",
    "TcpTransport",
    "XthChannel",
    "MptChannel",
    "LeaseChannel",
    "BasicChannel",
];

#[test]
fn every_edge_of_the_pipe_is_in_the_table() {
    check("tensorpipe/src/", PIPE);
}

#[test]
fn every_edge_of_calls_is_in_the_table() {
    check("tensorpipe-rpc/src/", RPC);
}

/// So that the models can put the smallest pipe around it.
#[test]
fn the_driver_names_nothing_else_of_the_pipe() {
    for source in sources() {
        let Some(file) = source.path.strip_prefix("tensorpipe/src/pipe/driver/") else {
            continue;
        };
        let out = if file == "mod.rs" {
            "super::"
        } else {
            "super::super::"
        };
        assert!(!source.shipped().contains(out), "{file} names its parent");
        for target in targets(&source, 3) {
            // Alone it is a visibility.
            let fits = target[0] == "sync" || target == ["pipe"];
            assert!(fits, "{file} names {}", target.join("::"));
        }
    }
}

/// Each file or folder of `pipe/` can be read on its own, from the driver up to the handle.
#[test]
fn the_pipe_has_no_circle_of_imports() {
    let mut edges: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for source in sources() {
        let Some(path) = source.path.strip_prefix("tensorpipe/src/pipe/") else {
            continue;
        };
        if source.is_test() {
            continue;
        }
        let module = modules(path);
        let (from, named) = match module[0] {
            // The top: the handle, and types that it hands on.
            "mod" => (TOP, paths(&source, "self::")),
            name => {
                let up = "super::".repeat(module.len());
                let named = [paths(&source, "crate::pipe::"), paths(&source, &up)];
                (name, named.concat())
            }
        };
        let to = edges.entry(from.to_owned()).or_default();
        for path in named {
            let is_type = path[0].starts_with(char::is_uppercase);
            let name = if is_type { TOP } else { &*path[0] };
            if ![from, "super"].contains(&name) {
                to.insert(name.to_owned());
            }
        }
    }
    assert!(edges[TOP].len() > 8, "{edges:#?}");
    assert!(edges["io"].contains("shared"), "{edges:#?}");
    // Whatever needs nothing that is left goes.
    while let Some(free) = edges.keys().find(|name| edges[*name].is_empty()).cloned() {
        edges.remove(&free);
        edges.values_mut().for_each(|to| _ = to.remove(&free));
    }
    assert!(edges.is_empty(), "these name each other: {edges:#?}");
}

#[test]
fn only_the_lists_of_defaults_know_a_backend_by_name() {
    for source in sources() {
        let Some(path) = source.path.strip_prefix("tensorpipe/src/") else {
            continue;
        };
        let own = ["transports/", "channels/", "conformance/", "lib.rs"];
        if own.iter().any(|own| path.starts_with(own)) || source.is_test() {
            continue;
        }
        for name in BACKENDS {
            assert!(
                !source.shipped().contains(name),
                "{} names {name}; go through the trait",
                source.path
            );
        }
    }
}

fn check(prefix: &str, table: &[(&str, &[&str])]) {
    let allowed: BTreeMap<_, _> = table.iter().copied().collect();
    let mut found: BTreeMap<String, BTreeSet<(String, String)>> = BTreeMap::new();
    for source in sources() {
        let Some(path) = source.path.strip_prefix(prefix) else {
            continue;
        };
        if path == "lib.rs" || source.is_test() {
            continue;
        }
        let module = modules(path);
        if ON_TOP.contains(&module[0]) {
            continue;
        }
        for target in targets(&source, module.len()) {
            // Macros live at the root.
            if target[0] != module[0] && !target[0].starts_with("__") {
                let from = found.entry(module[0].to_owned()).or_default();
                from.insert((target.join("::"), source.path.clone()));
            }
        }
    }
    let mut wrong = Vec::new();
    for (module, targets) in &found {
        for (target, path) in targets {
            let fits = |edge: &&str| {
                target == *edge
                    || target
                        .strip_prefix(edge)
                        .is_some_and(|t| t.starts_with("::"))
            };
            if !allowed
                .get(&**module)
                .is_some_and(|edges| edges.iter().any(fits))
            {
                wrong.push(format!("{module} -> {target} ({path})"));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "edges that are not in the table:\n{}",
        wrong.join("\n")
    );
}

/// `proto/wire/hello.rs` is `proto::wire::hello`.
fn modules(path: &str) -> Vec<&str> {
    let path = path.strip_suffix(".rs").unwrap_or(path);
    path.strip_suffix("/mod")
        .unwrap_or(path)
        .split('/')
        .collect()
}

/// Paths that lead to the root of the crate, each with at most two names.
fn targets(source: &Source, depth: usize) -> Vec<Vec<String>> {
    [
        paths(source, "crate::"),
        paths(source, &"super::".repeat(depth)),
    ]
    .concat()
}

/// Paths that begin with `start`, from there on, each with at most two names.
fn paths(source: &Source, start: &str) -> Vec<Vec<String>> {
    let code = source.shipped();
    let mut found = Vec::new();
    for (at, _) in code.match_indices(start) {
        let before = code[..at].bytes().last().unwrap_or(b' ');
        if !before.is_ascii_alphanumeric() && ![b'_', b'$', b':'].contains(&before) {
            expand(&code[at + start.len()..], &[], &mut found);
        }
    }
    found
}

/// Follows `a::b`, `{a, b::{c}}` from the root on.
fn expand(rest: &str, path: &[String], targets: &mut Vec<Vec<String>>) {
    if path.len() == 2 {
        return targets.push(path.to_vec());
    }
    if let Some(group) = rest.strip_prefix('{') {
        let mut depth = 0;
        let mut begin = 0;
        for (at, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth > 0 => depth -= 1,
                '}' | ',' if depth == 0 => {
                    let item = group[begin..at].trim();
                    if !item.is_empty() {
                        expand(item, path, targets);
                    }
                    begin = at + 1;
                    if c == '}' {
                        return;
                    }
                }
                _ => {}
            }
        }
        return;
    }
    let word = |c: char| !(c.is_alphanumeric() || c == '_');
    let end = rest.find(word).unwrap_or(rest.len());
    if end == 0 || &rest[..end] == "self" {
        if !path.is_empty() {
            targets.push(path.to_vec());
        }
        return;
    }
    let mut path = path.to_vec();
    path.push(rest[..end].to_owned());
    match rest[end..].strip_prefix("::") {
        Some(rest) => expand(rest, &path, targets),
        None => targets.push(path),
    }
}

#[test]
fn paths_are_followed_through_groups() {
    let mut targets = Vec::new();
    expand("{a::b::c, d::{self, e, f::g}, h};", &[], &mut targets);
    let targets: Vec<_> = targets.iter().map(|path| path.join("::")).collect();
    assert_eq!(targets, ["a::b", "d", "d::e", "d::f", "h"]);
}
