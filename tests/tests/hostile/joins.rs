//! A server tells its client to upgrade at an address where somebody else listens.

use std::sync::atomic::{AtomicU64, Ordering};

use tensorpipe::{Context, Error, Message, PeerAddr, Pipe};

use super::answers::{Choice, against_one_with, answer};
use super::memory::story;
use super::raw::{
    FIN, FIN_ACK, JOINED, MESSAGE, REJECT, Raw, SOON, STAY, frame, message, preface, text,
};
use super::stream::{Acceptor, Way};

/// An address to upgrade to, where somebody answers a HELLO to join with `bytes`.
fn elsewhere(bytes: Vec<u8>) -> (Choice, std::thread::JoinHandle<Vec<u8>>) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let address = format!("elsewhere {} {number}", std::process::id());
    let mut other = Acceptor::over_shm(&address);
    let choice = Choice {
        upgrade: Some(("shm", address)),
        ..Choice::default()
    };
    let hostile = std::thread::spawn(move || {
        let mut raw = Raw(other.accept());
        raw.expect_preface();
        assert_eq!(raw.frame().unwrap().body[0], 1, "a hello to join");
        raw.send(&bytes);
        raw.finish_sending();
        raw.is_cut("the client", SOON)
    });
    (choice, hostile)
}

/// A client that knows shm, too.
fn against(
    script: impl FnOnce(Raw) + Send + 'static,
    then: impl AsyncFnOnce(Context, Result<Pipe, Error>),
) {
    let transports = [Way::Shm.transport(), Way::Tcp.transport()];
    against_one_with(&transports, &[], script, then);
}

fn rejection() -> Vec<u8> {
    let reason = [&[0][..], &text(b"this token is unknown")].concat();
    [preface(), frame(REJECT, &reason)].concat()
}

/// Somebody else, who never heard of that token; who is no listener; who goes away without a word.
#[test]
fn a_token_that_is_worth_nothing_keeps_the_first_connection() {
    let _story = story!();
    let words = [
        (rejection(), "this token is unknown"),
        (b"SSH-2.0-OpenSSH_9.6\r\n".to_vec(), "SSH"),
        (preface(), "closed before"),
    ];
    for (word, reason) in words {
        let (choice, hostile) = elsewhere(word);
        let bytes = answer(&choice);
        against(
            move |mut raw| {
                raw.expect_preface();
                raw.frame().unwrap();
                raw.send(&bytes);
                let stay = raw.frame().unwrap();
                assert_eq!(stay.kind, STAY);
                let said = String::from_utf8_lossy(&stay.body).into_owned();
                assert!(said.contains(reason), "{said}");
                // What was said on the other connection is said again.
                let early = raw.frame_of(MESSAGE);
                assert!(early.body.ends_with(b"early"), "{early:?}");
                raw.send(&message(b"welcome", &[], b""));
                raw.frame_of(FIN);
                raw.send(&[frame(FIN_ACK, b""), frame(FIN, b"")].concat());
                raw.is_cut("the client", SOON);
            },
            async move |_, connected| {
                let pipe = connected.unwrap();
                // Somebody else's process is never taken for the peer.
                let is_known = |addr| matches!(addr, PeerAddr::Unknown | PeerAddr::Socket(_));
                assert!(is_known(pipe.peer().addr), "{}", pipe.peer());
                pipe.send(Message::new("early")).unwrap();
                let answer = pipe.read().await.unwrap();
                assert_eq!(&answer.metadata[..], b"welcome");
                assert!(matches!(pipe.peer().addr, PeerAddr::Socket(_)));
                let route = pipe.route();
                println!("{route}");
                assert!(route.upgraded_from.is_none(), "{route}");
                assert!(route.refused[0].reason.contains(reason), "{route}");
                pipe.close().await.unwrap();
            },
        );
        hostile.join().unwrap();
    }
}

#[test]
fn a_rejected_token_whose_pipe_is_gone_says_so() {
    let _story = story!();
    let (choice, hostile) = elsewhere(rejection());
    let bytes = answer(&choice);
    against(
        move |mut raw| {
            raw.expect_preface();
            raw.frame().unwrap();
            raw.send(&bytes);
        },
        async |_, connected| {
            let pipe = connected.unwrap();
            let error = pipe.read().await.unwrap_err();
            println!("{error}");
            let Error::Rejected { reason, .. } = &error else {
                panic!("{error:?}");
            };
            assert!(reason.contains("this token is unknown"), "{error}");
            assert!(error.ends_pipe());
            let later = pipe.write(Message::new("late")).await.unwrap_err();
            assert!(matches!(later, Error::Rejected { .. }), "{later:?}");
        },
    );
    hostile.join().unwrap();
}

#[test]
fn a_connection_that_may_join_is_used() {
    let _story = story!();
    let word = [preface(), frame(JOINED, b""), message(b"hi", &[], b"")].concat();
    let (choice, hostile) = elsewhere(word);
    let bytes = answer(&choice);
    against(
        move |mut raw| {
            raw.expect_preface();
            raw.frame().unwrap();
            raw.send(&bytes);
            assert!(raw.is_cut("the client", SOON).is_empty(), "no STAY");
        },
        async |_, connected| {
            let pipe = connected.unwrap();
            pipe.send(Message::new("early")).unwrap();
            assert_eq!(&pipe.read().await.unwrap().metadata[..], b"hi");
            assert_eq!(pipe.route().upgraded_from.as_deref(), Some("tcp"));
        },
    );
    let said = hostile.join().unwrap();
    assert!(said.windows(5).any(|window| window == b"early"));
}
