//! What every file keeps to.

use std::fs;

use crate::source::{read, root, shipped};

/// Where `unsafe` may stand in what is shipped: an example's kernel is launched. Clippy asks for its `SAFETY:`, and the compiler denies it
/// where nothing allows it.
const UNSAFE: &str = "tensorpipe/src/sys/ tensorpipe/src/ring/ tensorpipe/src/device/cuda/ tensorpipe/src/tensor/interop/ \
     examples/src/bin/gpu_function/kernel.rs";

/// What the protocol must not see: sockets, files, threads, clocks, raw memory.
const NOT_IN_PROTO: &str = "tokio libc nix std::net std::fs std::io std::thread std::process std::sync Instant::now SystemTime unsafe";

/// Only the lists of defaults know transports and channels by their names. Here they are, from what their modules export.
fn backends() -> String {
    let modules =
        ["transports", "channels"].map(|module| read(&format!("tensorpipe/src/{module}/mod.rs")));
    let exports = modules
        .iter()
        .flat_map(|text| text.lines().filter(|line| line.starts_with("pub use ")));
    let names = exports.flat_map(|line| line.split(|c: char| !c.is_alphanumeric()));
    let is_backend = |name: &&str| {
        ["Transport", "Channel"]
            .iter()
            .any(|kind| name.len() > kind.len() && name.ends_with(kind))
    };
    let names: Vec<_> = names.filter(is_backend).collect();
    assert!(
        names.contains(&"TlsTransport") && names.contains(&"BasicChannel"),
        "{names:?}"
    );
    names.join(" ")
}

const KNOW_BACKENDS: &str = "tensorpipe/src/transports tensorpipe/src/channels tensorpipe/src/conformance tensorpipe/src/testing tensorpipe/src/lib.rs";

#[test]
fn every_file_keeps_to_its_place() {
    let (mut wrong, backends) = (Vec::new(), backends());
    let crates =
        "tensorpipe tensorpipe-macros tensorpipe-rpc examples examples/inference loom benches";
    let sources = crates
        .split(' ')
        .map(|name| shipped(&format!("{name}/src")));
    for source in sources.flatten() {
        let file = &source.path;
        let is_in = |places: &str| places.split(' ').any(|place| file.starts_with(place));
        for path in source.paths {
            let names = |words: &str| {
                let mut words = words.split(' ').map(|word| format!("::{word}::"));
                words.any(|word| format!("::{path}::").contains(&word))
            };
            if names("unsafe") && !is_in(UNSAFE) {
                wrong.push(format!("{file} is no place for `unsafe`"));
            }
            if is_in("tensorpipe/src/proto") && names(NOT_IN_PROTO) {
                wrong.push(format!(
                    "{file} names {path}: the driver does that, `proto` decides"
                ));
            }
            if is_in("tensorpipe/src") && !is_in(KNOW_BACKENDS) && names(&backends) {
                wrong.push(format!("{file} names {path}; go through the trait"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_panic_unwinds_in_every_profile() {
    // A handler's panic becomes its call's error.
    for line in read("Cargo.toml").lines() {
        let line: String = line.split_whitespace().collect();
        assert!(!line.starts_with("panic="), "Cargo.toml: {line}");
    }
}

/// `cargo test --workspace` turns no feature on by itself: a member that builds with it does. `fuzzing` a test turns on.
#[test]
fn every_feature_of_the_pipe_is_on_when_the_workspace_is_tested() {
    let manifest = read("tensorpipe/Cargo.toml");
    let features = manifest.split("[features]").nth(1).unwrap();
    let features = features.split("\n[").next().unwrap().lines();
    let members = ["tests", "examples", "tensorpipe-rpc"];
    let members = members.map(|member| read(&format!("{member}/Cargo.toml")));
    for (name, _) in features.filter_map(|line| line.split_once(" = ")) {
        let is_on =
            |line: &str| line.starts_with("tensorpipe = ") && line.contains(&format!("\"{name}\""));
        let mut lines = members.iter().flat_map(|manifest| manifest.lines());
        let is_tested = ["default", "fuzzing"].contains(&name) || lines.any(is_on);
        assert!(is_tested, "no test runs with the feature `{name}`");
    }
}

#[test]
fn links_between_the_documents_lead_somewhere() {
    let mut links = 0;
    for folder in ["", "benches", "docs", "docs/decisions"].map(|folder| root().join(folder)) {
        for entry in fs::read_dir(&folder).unwrap() {
            let file = entry.unwrap().path();
            if file.extension().is_none_or(|extension| extension != "md") {
                continue;
            }
            for rest in fs::read_to_string(&file).unwrap().split("](").skip(1) {
                let target = rest.split([')', '#']).next().unwrap();
                if !target.is_empty() && !target.contains("://") {
                    links += 1;
                    let exists = folder.join(target).exists();
                    assert!(exists, "{}: nothing is at {target}", file.display());
                }
            }
        }
    }
    assert!(links > 10, "only {links} were found");
}
