//! The examples of docs/WIRE.md, for the tests that hold the code to them. `tensorpipe-rpc` includes this file by its path.

use std::collections::BTreeMap;

/// The whole document.
pub(crate) const WIRE_MD: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/WIRE.md"));

/// The examples of one kind, by name: blocks that begin with ```` ```KIND NAME ````, of bytes in hexadecimal; `#` begins a
/// comment.
pub(crate) fn examples(kind: &str) -> BTreeMap<String, Vec<u8>> {
    let start = format!("```{kind} ");
    let mut all = BTreeMap::new();
    let mut lines = WIRE_MD.lines();
    while let Some(line) = lines.next() {
        let Some(name) = line.strip_prefix(&start) else {
            continue;
        };
        let mut bytes = Vec::new();
        for line in lines.by_ref().take_while(|line| !line.starts_with("```")) {
            let code = line.split('#').next().unwrap_or_default();
            let words = code.split_whitespace();
            bytes.extend(words.map(|word| u8::from_str_radix(word, 16).expect(word)));
        }
        assert!(all.insert(name.to_owned(), bytes).is_none(), "{name} twice");
    }
    assert!(!all.is_empty(), "no example of {kind}");
    all
}
