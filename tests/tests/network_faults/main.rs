//! Calls over a bad network: a link of this process between two network namespaces loses, delays, repeats and swallows packets.
//! Needs root and `/dev/net/tun`, and says so if they are missing. `tests/FAULTS.md` has the table.
#![allow(missing_docs, reason = "a test")]

mod calls;
mod link;
mod rows;

tensorpipe_tests::child! {
    "server" => calls::play_server(),
    "client" => calls::play_client(),
    "replicas" => calls::play_replicas(),
}
