//! A program may not ignore SIGPIPE: one that has put the default back, or whose `main` is another language's. A peer that goes is an
//! error to it, no signal that ends it.
#![allow(unsafe_code, reason = "a signal is not ignored any more")]

use nix::sys::signal::{SigHandler, Signal, signal};
use tensorpipe::{Message, Payload};
use tensorpipe_tests::{Child, runtime, say};

use super::scene::{Way, context};

/// Peers that go while they are written to. A write finds that out before a read does in some of these rounds.
const ROUNDS: usize = 100;

#[test]
fn a_peer_that_goes_ends_no_process_that_heeds_sigpipe() {
    let mut child = Child::start("sigpipe", &[]);
    let errors = child.hears("errors");
    assert_eq!(child.signal(), None, "it writes with signals");
    assert_eq!(errors, Some(ROUNDS.to_string()));
}

/// The child: writes to peers of its own, each on a runtime that shuts down.
pub(crate) fn play() {
    // SAFETY: the default has no handler.
    unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) }.unwrap();
    let ours = runtime();
    let errors = (0..ROUNDS).filter(|_| {
        let theirs = runtime();
        let listener = theirs.block_on(context(Way::Tcp).listen([Way::Tcp.url()]));
        let listener = listener.unwrap();
        let url = listener.url().clone();
        let (reads, read) = std::sync::mpsc::channel();
        theirs.spawn(async move {
            let pipe = listener.accept().await.unwrap();
            while pipe.read().await.is_ok() {
                let _ = reads.send(());
            }
        });
        let pipe = ours.block_on(context(Way::Tcp).connect(&url)).unwrap();
        let goes = std::thread::spawn(move || {
            read.recv().unwrap();
            theirs.shutdown_background();
        });
        let message = || Message::new("").payload(Payload::new(vec![7; 64 << 10]));
        ours.block_on(async { while pipe.write(message()).await.is_ok() {} });
        goes.join().is_ok()
    });
    say("errors", errors.count());
}
