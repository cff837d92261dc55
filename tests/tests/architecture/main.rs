//! Design rules that neither the compiler nor clippy checks: which module may name which other one. The tests read the
//! source's tokens, so each failure shows a module and the path that it names.
#![allow(missing_docs, reason = "a test")]

mod source;

use std::collections::BTreeSet;

use source::{read, shipped};

/// Each module of `tensorpipe`, from the leaves up, and the modules that its code may name. ARCHITECTURE.md explains the table.
const PIPE: &str = "
    ambient stop log_limit: sync
    address keys: error
    error descriptor message: device tensor
    message: descriptor
    route: address device sync
    config: error proto sys
    process: ambient error keys proto sys::fork
    sys: ambient error sync
    ring: error sync sys::copy sys::memfd sys::processors
    device: error sync sys
    tensor: device error message sys::drop_thread
    proto: descriptor device::Device device::DeviceKind device::DeviceOffer error keys tensor::DType tensor::MAX_DIMS tensor::Shape tensor::byte_len
    fuzzing: device error keys proto wire_md
    transports: address error process ring sync sys
    channels: address::SettledPeer device error keys pipe::LaneHandle pipe::LaneIo pipe::Outcome pipe::Room pipe::Work process proto::OpId
    channels: route::Pays route::Degraded route::Threshold stop sync sys transports::BoxFuture transports::Connection
    pipe negotiate context: ambient address channels config device error sync
    pipe: descriptor log_limit message proto route stop sys::copy sys::fork sys::workers tensor transports::Connection
    negotiate: context keys log_limit pipe process proto route stop sys::fork transports
    listener: address context error log_limit negotiate pipe sync sys::fork sys::workers transports
    context: keys listener negotiate pipe process sys::fork tensor::Tensor transports route::Refusal route::Requirement route::Threshold
";

/// Pairs of a module right below `root` and a path that it names, e.g. `("pipe", "proto::Head")`. The root's name is empty; its macros do
/// not count.
fn edges(folder: &str, root: &str) -> BTreeSet<(String, String)> {
    let mut edges = BTreeSet::new();
    for (module, paths) in shipped(folder, "crate::") {
        if let Some(module) = module.strip_prefix(root) {
            let named = paths.iter().filter_map(|path| path.strip_prefix(root));
            let others = named.filter(|to| first(to) != first(module) && !to.starts_with("__"));
            edges.extend(others.map(|to| (first(module).to_owned(), to.to_owned())));
        }
    }
    edges
}

fn first(path: &str) -> &str {
    path.split("::").next().unwrap()
}

#[test]
fn every_edge_of_the_pipe_is_in_the_table_and_none_is_only_there() {
    let mut allowed = BTreeSet::new();
    for (from, to) in PIPE.lines().filter_map(|line| line.trim().split_once(": ")) {
        for from in from.split(' ') {
            allowed.extend(to.split(' ').map(|to| (from, to)));
        }
    }
    let mut edges = edges("tensorpipe/src", "crate::");
    // Not of the root, nor of what stands on the public API.
    edges.retain(|(from, _)| !["", "blocking", "conformance", "testing"].contains(&&**from));
    let fits = |(from, to): &(String, String), (module, named): &(&str, &str)| {
        from == module && format!("{to}::").starts_with(&format!("{named}::"))
    };
    let is_new = |edge: &&_| !allowed.iter().any(|allowed| fits(edge, allowed));
    let new: Vec<_> = edges.iter().filter(is_new).collect();
    assert!(new.is_empty(), "edges that are not in the table: {new:#?}");
    allowed.retain(|allowed| !edges.iter().any(|edge| fits(edge, allowed)));
    assert!(allowed.is_empty(), "edges that nothing has: {allowed:#?}");
}

/// Parts of calls, and what stands on them.
const CALLS: [(&str, &str); 3] = [
    ("engine codec schema header value", "call client callbacks"),
    ("batch codec schema header value", "engine"),
    ("engine", "batch"),
];

#[test]
fn calls_know_nothing_of_what_stands_on_them() {
    for (from, to) in edges("tensorpipe-rpc/src", "crate::") {
        let has = |words: &str, name: &str| words.split(' ').any(|word| word == name);
        let mut below = CALLS.iter().filter(|(lower, _)| has(lower, &from));
        let is_upwards = below.any(|(_, upper)| has(upper, first(&to)));
        let is_layer = has("rendezvous tarpc", first(&to)) && !from.is_empty();
        assert!(!is_upwards && !is_layer, "{from} -> {to}");
    }
}

/// Each file or folder of `pipe/` can be read on its own, from the driver up to the handle. Types stand in `pipe/mod.rs`.
#[test]
fn the_pipe_has_no_circle_of_imports() {
    let mut left = BTreeSet::new();
    for (from, to) in edges("tensorpipe/src", "crate::pipe::") {
        let is_type = to.starts_with(char::is_uppercase);
        left.insert((from, if is_type { "" } else { first(&to) }.to_owned()));
    }
    left.retain(|(from, to)| from != to);
    assert!(left.len() > 20, "{left:#?}");
    // What names nothing that is left is no part of a circle.
    for _ in 0..left.len() {
        let froms: BTreeSet<String> = left.iter().map(|(from, _)| from.clone()).collect();
        left.retain(|(_, to)| froms.contains(to));
    }
    assert!(left.is_empty(), "these name each other: {left:#?}");
}

/// What the protocol must not see, where backends stand and how their names end, and who may know those.
const NOT_IN_PROTO: &str = "tokio libc nix std::net std::fs std::io std::thread std::process std::sync Instant::now SystemTime";
const BACKENDS: [(&str, &str); 2] = [("transports::", "Transport"), ("channels::", "Channel")];
const KNOW: [&str; 5] = ["", "transports", "channels", "conformance", "testing"];

#[test]
fn every_module_sees_what_is_its_own() {
    for (module, paths) in shipped("tensorpipe/src", "crate::") {
        let module = module.trim_start_matches("crate::");
        for path in paths {
            let mut words = NOT_IN_PROTO.split(' ').map(|word| format!("::{word}::"));
            let works =
                first(module) == "proto" && words.any(|word| format!("::{path}::").contains(&word));
            assert!(!works, "{module} names {path}: the driver does that");
            let is_backend = |(module, kind): (&str, &str)| {
                let name = path.split_once(module).map_or("", |(_, name)| name);
                name.contains(kind) && !name.starts_with(kind)
            };
            let knows = BACKENDS.into_iter().any(is_backend) && !KNOW.contains(&first(module));
            assert!(!knows, "{module} names {path}: go through the trait");
        }
    }
}

/// A forked child would wait for ever for the thread that fills it: `sys::fork` has what serves. The stop points are of tests.
#[test]
fn no_static_is_filled_by_one_thread_while_others_wait() {
    for folder in ["tensorpipe/src", "tensorpipe-rpc/src"] {
        for (module, paths) in shipped(folder, "crate::") {
            let waits = |names: &&[String]| names[0] == "static" && names[2].ends_with("Lock");
            let found = paths.windows(3).find(waits);
            assert!(found.is_none() || module == "crate::stop::", "{found:?}");
        }
    }
}

#[test]
fn every_file_says_its_idea_first() {
    let names = "tensorpipe-macros examples examples/inference loom benches".split(' ');
    names.for_each(|name| drop(shipped(&format!("{name}/src"), "crate::")));
}

/// `cargo test --workspace` turns no feature on by itself: a member that builds with it does. `fuzzing` a test turns on.
#[test]
fn every_feature_of_the_pipe_is_on_when_the_workspace_is_tested() {
    let manifest = read("tensorpipe/Cargo.toml");
    let features = manifest.split("[features]").nth(1).unwrap();
    let features = features.split("\n[").next().unwrap().lines();
    let members = ["tests", "examples", "tensorpipe-rpc"];
    let members = members
        .map(|member| read(&format!("{member}/Cargo.toml")))
        .concat();
    for (name, _) in features.filter_map(|line| line.split_once(" = ")) {
        let is_on =
            |line: &str| line.starts_with("tensorpipe = ") && line.contains(&format!("\"{name}\""));
        let is_tested = ["default", "fuzzing"].contains(&name) || members.lines().any(is_on);
        assert!(is_tested, "no test runs with the feature `{name}`");
    }
}
