//! Who may name whom. The table is the truth that ARCHITECTURE.md explains: a new edge belongs here only with a reason there.

use std::collections::BTreeSet;

use crate::source::shipped;

/// Each module of `tensorpipe`, from the leaves up, and what its code may name: modules, or some names of them.
const PIPE: &str = "
    sync:
    ambient: sync
    stop: sync
    log_limit: sync
    address: error
    error: device tensor
    route: address device sync
    descriptor: device tensor
    message: descriptor device tensor
    config: error proto sys
    keys: error
    process: ambient error keys proto sys::fork
    sys: ambient error sync
    ring: error sync sys::copy sys::memfd sys::processors
    device: error sync sys
    tensor: device error message
    proto: descriptor device::Device device::DeviceKind device::DeviceOffer error keys tensor::DType tensor::MAX_DIMS tensor::Shape tensor::byte_len
    fuzzing: device error keys proto wire_md
    transports: address error process ring sync sys
    channels: address::SettledPeer device error keys pipe::LaneHandle pipe::LaneIo pipe::Outcome pipe::Work process proto::OpId
    channels: route::Pays route::Degraded route::Threshold stop sync sys transports::BoxFuture transports::Connection
    pipe: ambient address channels config descriptor device error message proto route stop sync sys::copy sys::fork sys::workers tensor
    pipe: transports::Connection
    negotiate: ambient address channels config context device error keys log_limit pipe process proto route stop sync transports
    listener: address context error log_limit negotiate pipe sync sys::fork transports
    context: ambient address channels config device error keys listener negotiate pipe process sync sys::fork tensor::Tensor transports
    context: route::Refusal route::Requirement route::Threshold
";

/// What stands on the public API, and the root itself.
const ON_TOP: [&str; 4] = ["", "blocking", "conformance", "testing"];

/// What the modules right below `root` name of each other: `("pipe", "proto::Head")`. The root's own name is empty.
fn edges(folder: &str, root: &str) -> BTreeSet<(String, String)> {
    let mut edges = BTreeSet::new();
    for source in shipped(folder) {
        if let Some(module) = source.module.strip_prefix(root) {
            let named = source
                .paths
                .iter()
                .filter_map(|path| path.strip_prefix(root));
            // Macros live at the root.
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
        allowed.extend(to.split(' ').map(|to| (from, to)));
    }
    let mut edges = edges("tensorpipe/src", "crate::");
    edges.retain(|(from, _)| !ON_TOP.contains(&&**from));
    let fits = |(from, to): &(String, String), (module, named): &(&str, &str)| {
        from == module && format!("{to}::").starts_with(&format!("{named}::"))
    };
    let mut new = edges.clone();
    new.retain(|edge| !allowed.iter().any(|allowed| fits(edge, allowed)));
    assert!(new.is_empty(), "edges that are not in the table: {new:#?}");
    allowed.retain(|allowed| !edges.iter().any(|edge| fits(edge, allowed)));
    assert!(allowed.is_empty(), "edges that nothing has: {allowed:#?}");
}

/// What calls are made of.
const BELOW_CALLS: [&str; 5] = ["engine", "codec", "schema", "header", "value"];

#[test]
fn calls_know_nothing_of_what_stands_on_them() {
    for (from, to) in edges("tensorpipe-rpc/src", "crate::") {
        let is_below = match first(&to) {
            "rendezvous" | "tarpc" => from.is_empty(),
            "call" | "client" | "callbacks" => !BELOW_CALLS.contains(&from.as_str()),
            "engine" => {
                from != "batch" && (from == "engine" || !BELOW_CALLS.contains(&from.as_str()))
            }
            "batch" => from != "engine",
            _ => true,
        };
        assert!(is_below, "{from} -> {to}");
    }
}

/// Each file or folder of `pipe/` can be read on its own, from the driver up to the handle.
#[test]
fn the_pipe_has_no_circle_of_imports() {
    let mut left = BTreeSet::new();
    for (from, to) in edges("tensorpipe/src", "crate::pipe::") {
        // Types stand in `pipe/mod.rs`.
        let is_type = to.starts_with(char::is_uppercase);
        let to = if is_type { "" } else { first(&to) };
        if from != to {
            // So that the models can put the smallest pipe around it.
            assert_ne!(from, "driver", "it names {to}");
            left.insert((from, to.to_owned()));
        }
    }
    assert!(left.len() > 20, "{left:#?}");
    // What names nothing that is left is no part of a circle.
    loop {
        let froms: BTreeSet<String> = left.iter().map(|(from, _)| from.clone()).collect();
        let before = left.len();
        left.retain(|(_, to)| froms.contains(to));
        if left.len() == before {
            break;
        }
    }
    assert!(left.is_empty(), "these name each other: {left:#?}");
}
