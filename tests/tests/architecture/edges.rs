//! Who may name whom: the layers of `tensorpipe` and `tensorpipe-rpc`, from `crate::` and `super::` paths.
//!
//! The tables are the truth that ARCHITECTURE.md explains. A new edge belongs here only with a reason there.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::{Source, sources};

/// Every module of `tensorpipe` and the modules that its code (not its tests) may name.
const PIPE: &[(&str, &[&str])] = &[
    // Leaves: plain types; `stop` is where tests stop a process.
    ("sync", &[]),
    ("stop", &["sync"]),
    ("address", &["error"]),
    ("error", &["device", "tensor"]),
    ("route", &["device", "sync"]),
    ("descriptor", &["device", "tensor"]),
    ("message", &["descriptor", "device", "tensor"]),
    ("config", &["error", "proto", "sys"]),
    ("process", &["proto", "sync"]),
    // Memory.
    ("sys", &["error", "sync"]),
    // An algorithm, and where it lives.
    ("ring", &["error", "sync", "sys::memfd"]),
    ("device", &["error", "sync", "sys"]),
    ("tensor", &["device", "error", "message"]),
    // The protocol sees what describes a message, and never the message.
    (
        "proto",
        &[
            "descriptor",
            "device::Device",
            "device::DeviceKind",
            "error",
            "tensor::DType",
            "tensor::MAX_DIMS",
            "tensor::Shape",
            "tensor::byte_len",
        ],
    ),
    // Not shipped: what the fuzz targets run plays the driver of the protocol.
    (
        "fuzzing",
        &["descriptor", "device", "error", "proto", "tensor::DType"],
    ),
    // Backends: they see memory and their side of the seam, not the pipe.
    ("transports", &["error", "process", "ring", "sync", "sys"]),
    (
        "channels",
        &[
            "device",
            "error",
            "pipe::LaneHandle",
            "pipe::LaneIo",
            "process",
            "proto::OpId",
            "route::Pays",
            "route::Setback",
            "route::Threshold",
            "stop",
            "sync",
            // Shared memory and sockets between processes.
            "sys",
            "transports::BoxFuture",
            "transports::Connection",
        ],
    ),
    // The driver sees backends as traits.
    (
        "pipe",
        &[
            "channels",
            "config",
            "descriptor",
            "device",
            "error",
            "message",
            "proto",
            "route",
            "stop",
            "sync",
            "tensor",
            "transports::Connection",
        ],
    ),
    (
        "negotiate",
        &[
            "address",
            "channels",
            "config",
            "context",
            "device",
            "error",
            "pipe",
            "process",
            "proto",
            "route",
            "stop",
            "sync",
            "transports",
        ],
    ),
    (
        "listener",
        &[
            "address",
            "context",
            "error",
            "negotiate",
            "pipe",
            "sync",
            "transports",
        ],
    ),
    (
        "context",
        &[
            "address",
            "channels",
            "config",
            "device",
            "error",
            "listener",
            "negotiate",
            "pipe",
            "route::Threshold",
            "sync",
            "transports",
        ],
    ),
];

/// The same for `tensorpipe-rpc`.
const RPC: &[(&str, &[&str])] = &[
    ("value", &[]),
    ("caught", &[]),
    // Values and definitions: nothing of calls.
    ("codec", &["observe::Figures"]),
    ("schema", &["caught"]),
    ("error", &["codec"]),
    ("header", &["codec::REPLY_HEADER"]),
    (
        "context",
        &[
            "codec::Reply",
            "header::TraceContext",
            "observe",
            "service::HandlerFuture",
        ],
    ),
    ("service", &["codec", "context::CallContext", "schema"]),
    // Notes of calls, for whoever wants to know what becomes of them.
    (
        "observe",
        &[
            "codec",
            "context",
            "engine::Outcome",
            "error::CallError",
            "header",
            "lock",
            "schema::Method",
        ],
    ),
    // In front of a handler, behind the engine: neither knows of the other.
    (
        "batch",
        &["caught", "codec", "context::CallContext", "lock", "service"],
    ),
    // The engine knows the server that it serves for, and no client.
    (
        "engine",
        &[
            "caught",
            "codec",
            "context",
            "error",
            "header",
            "observe",
            "schema",
            "server::ServerShared",
        ],
    ),
    ("server", &["engine", "header::FailureCode", "service"]),
    ("call", &["codec", "engine", "error", "observe", "schema"]),
    (
        "client",
        &[
            "call", "codec", "context", "engine", "error", "header", "observe", "schema",
        ],
    ),
    // On top of calls: a service of the library's own, and its clients.
    (
        "rendezvous",
        &[
            "call::Call",
            "client",
            "context::CallContext",
            "error",
            "service::Service",
        ],
    ),
    // Not shipped: what a fuzz target runs.
    (
        "fuzzing",
        &[
            "codec",
            "context::TraceContext",
            "engine::to_body",
            "header",
            "schema",
        ],
    ),
    // A layer on top: of the engine it shares only how a body becomes a message.
    (
        "tarpc",
        &[
            "caught",
            "client",
            "codec",
            "context::TraceContext",
            "engine::Body",
            "engine::to_body",
            "engine::to_message",
            "error",
            "header",
        ],
    ),
];

/// What stands on the public API: it may name all of that, and nobody names it.
const ON_TOP: [&str; 2] = ["blocking", "conformance"];

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
    let code = source.shipped();
    let mut targets = Vec::new();
    let root = "super::".repeat(depth);
    for start in ["crate::", &root] {
        for (at, _) in code.match_indices(start) {
            let before = code[..at].bytes().last().unwrap_or(b' ');
            if before.is_ascii_alphanumeric() || [b'_', b'$', b':'].contains(&before) {
                continue;
            }
            expand(&code[at + start.len()..], &[], &mut targets);
        }
    }
    targets
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
