//! A rendezvous of two and three processes: values cross by name. A process that dies, is late, gives up, or sends too much costs
//! the others nothing but time.
#![allow(missing_docs, reason = "a test")]

mod bounds;
mod gone;
mod passing;
mod scene;

tensorpipe_tests::child! {
    "stage" => scene::play(),
}
