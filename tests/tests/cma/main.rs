//! Channel `cma` between two processes: the reader copies ordinary memory directly out of the writer's process, whole or not at all. If the
//! system does not allow that, tensors arrive another way and the route says why.
#![allow(missing_docs, reason = "a test")]

mod denied;
mod halfway;
mod liars;
mod moving;
mod scene;

tensorpipe_tests::child! {
    "peer" => scene::play(),
    "reader" => halfway::play(),
    "asker" => denied::play_asker(),
}
