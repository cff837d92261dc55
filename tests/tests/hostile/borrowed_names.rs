//! A hostile peer claims to be this very process. It gets nothing that only this process may have.

use std::sync::Arc;

use tensorpipe::channels::{BasicChannel, Channel, XthChannel};
use tensorpipe::transports::TcpTransport;
use tensorpipe::{Context, Pipe};
use tensorpipe_tests::runtime;

use super::memory::story;
use super::raw::{ANSWER, Frame, HELLO, REJECT, Raw, SOON, STAY, frame, limits, preface, text};

/// A HELLO of one who says that its transport `memory` and its channel `xth` are `process`.
fn claiming(process: &[u8]) -> Vec<u8> {
    let mut body = vec![0];
    body.extend(text(b"attacker"));
    body.extend(process);
    body.extend(limits());
    body.push(2);
    for (name, domain) in [("memory", process), ("tcp", b"ip")] {
        body.extend(text(name.as_bytes()));
        body.extend(text(domain));
    }
    body.push(2);
    for (name, descriptor) in [("xth", process), ("basic", b"any")] {
        body.extend(text(name.as_bytes()));
        body.extend([0, 1, 0]);
        body.extend(text(descriptor));
    }
    [preface(), frame(HELLO, &body)].concat()
}

/// What a listener answers.
fn answered(raw: &mut Raw, hello: &[u8]) -> Frame {
    raw.send(hello);
    raw.expect_preface();
    let answer = raw.frame().expect("an answer");
    assert_eq!(answer.kind, ANSWER, "{answer:?}");
    answer
}

/// The id that its listener tells everybody, and what stands behind it and the limits.
fn parts(answer: &Frame) -> (&[u8], &[u8]) {
    let (len, rest) = answer.body.split_at(2);
    let name = usize::from(u16::from_le_bytes([len[0], len[1]]));
    let (process, rest) = rest[name..].split_at(16);
    (process, &rest[limits().len()..])
}

/// The transport, the address, and the token to upgrade to it.
pub(super) fn upgrade(answer: &Frame) -> (String, String, Vec<u8>) {
    let (_, rest) = parts(answer);
    assert_eq!(rest[0], 1, "it is to upgrade");
    let mut rest = &rest[1..];
    let mut take = |len: Option<usize>| {
        let len = len.unwrap_or_else(|| {
            let (len, behind) = rest.split_at(2);
            rest = behind;
            usize::from(u16::from_le_bytes([len[0], len[1]]))
        });
        let (taken, behind) = rest.split_at(len);
        rest = behind;
        taken.to_vec()
    };
    let [name, address] = [take(None), take(None)].map(|text| String::from_utf8(text).unwrap());
    (name, address, take(Some(16)))
}

/// A listener of this context, what a hostile peer does to it, and the pipe that comes of it.
fn meets(context: Context, hostile: impl FnOnce(String) -> Raw + Send + 'static) -> Pipe {
    runtime().block_on(async {
        let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
        let url = listener.url().to_string();
        let hostile = tokio::task::spawn_blocking(move || hostile(url));
        let pipe = tokio::time::timeout(2 * SOON, listener.accept()).await;
        let pipe = pipe.expect("a pipe").unwrap();
        drop(hostile.await.unwrap());
        pipe
    })
}

fn learned(url: &str) -> Vec<u8> {
    let mut raw = Raw::connect(url);
    parts(&answered(&mut raw, &super::raw::hello())).0.to_vec()
}

#[test]
fn a_token_is_good_over_the_transport_alone_that_it_was_given_out_for() {
    let _story = story!();
    // Its first pipe is the one that told it who is here.
    let (tell, told) = std::sync::mpsc::channel();
    let begun = std::thread::spawn(move || {
        meets(Context::new(), move |url| {
            let mut raw = Raw::connect(&url);
            let process = parts(&answered(&mut raw, &super::raw::hello())).0.to_vec();
            tell.send(process).unwrap();
            raw
        })
    });
    let process = told.recv_timeout(2 * SOON).unwrap();
    begun.join().unwrap();
    let pipe = meets(Context::new(), move |url| {
        let mut first = Raw::connect(&url);
        let answer = answered(&mut first, &claiming(&process));
        let (transport, _, token) = upgrade(&answer);
        assert_eq!(transport, "memory");
        let mut second = Raw::connect(&url);
        second.send(&[preface(), frame(HELLO, &[&[1][..], &token].concat())].concat());
        second.expect_preface();
        let reject = second.frame().expect("a rejection");
        let words = String::from_utf8_lossy(&reject.body).into_owned();
        assert_eq!(reject.kind, REJECT, "{words}");
        assert!(words.contains("memory") && words.contains("tcp"), "{words}");
        // It is still good where it should be; this one gives up.
        first.send(&frame(STAY, &text(b"nobody is there")));
        first
    });
    let route = pipe.route();
    println!("{route}");
    assert_eq!(
        (route.transport.as_str(), &route.upgraded_from),
        ("tcp", &None)
    );
    let channels: Vec<_> = route
        .channels
        .iter()
        .map(|channel| &*channel.name)
        .collect();
    assert_eq!(channels, ["basic"], "{route}");
    assert!(route.to_string().contains("not channel xth"), "{route}");
}

#[test]
fn a_hostile_peer_over_tcp_is_handed_no_memory_of_this_process() {
    let _story = story!();
    let context = || {
        let channels: [Arc<dyn Channel>; 2] =
            [Arc::new(XthChannel::new()), Arc::new(BasicChannel::new())];
        let tcp = Arc::new(TcpTransport::new());
        let builder = Context::builder().name("house").transports([tcp as _]);
        builder.channels(channels).build().unwrap()
    };
    let (tell, told) = std::sync::mpsc::channel();
    drop(meets(context(), move |url| {
        tell.send(learned(&url)).unwrap();
        Raw::connect(&url)
    }));
    let process = told.recv_timeout(2 * SOON).unwrap();
    let pipe = meets(context(), move |url| {
        let mut raw = Raw::connect(&url);
        answered(&mut raw, &claiming(&process));
        raw
    });
    let route = pipe.route().to_string();
    println!("{route}");
    let words = "not channel xth: cpu:0 to cpu:0: it is for two ends in one process";
    assert!(route.contains(words), "{route}");
}
