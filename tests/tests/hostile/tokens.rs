//! Strangers at a listener that asks for a token.

use std::time::Duration;

use tensorpipe::{ConnectPolicy, Context, Limits, Timeouts};
use tensorpipe_tests::runtime;

use super::raw::{Frame, HELLO, REJECT, Raw, SOON, frame, hello, noise, preface, text};

const KEY: u8 = 6;
const CHALLENGE: u8 = 7;
const PROOF: u8 = 8;

/// What a stranger does to such a listener; nobody gets a pipe.
fn meets(stranger: impl FnOnce(&str) + Send + 'static) {
    runtime().block_on(async {
        let context = Context::builder().token("trainers", [7; 16]);
        let context = context.build().unwrap();
        let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
        let url = listener.url().to_string();
        let stranger = tokio::task::spawn_blocking(move || stranger(&url));
        tokio::select! {
            done = stranger => done.unwrap(),
            pipe = listener.accept() => panic!("{pipe:?}"),
        }
    });
}

fn key(name: &str) -> Vec<u8> {
    let body = [text(name.as_bytes()), noise(3, 32)].concat();
    [preface(), frame(KEY, &body)].concat()
}

/// What it hears that goes on without a proof: frames, but for what is random in them.
fn guesses(url: &str, name: &str, then: &[u8]) -> Vec<Frame> {
    let mut raw = Raw::connect(url);
    raw.send(&key(name));
    raw.expect_preface();
    let mut heard = vec![raw.frame().expect("a challenge")];
    assert_eq!((heard[0].kind, heard[0].body.len()), (CHALLENGE, 64));
    heard[0].body.clear();
    raw.send(then);
    heard.extend(raw.frame());
    raw.is_cut(name, SOON);
    heard
}

#[test]
fn a_name_that_there_is_looks_like_one_that_there_is_not() {
    meets(|url| {
        let hello = &hello()[12..];
        let proof = frame(PROOF, &noise(4, 32));
        for then in [[&proof, hello].concat(), proof.clone(), hello.to_vec()] {
            let known = guesses(url, "trainers", &[&then[..], &frame(9, &[])].concat());
            let unknown = guesses(url, "strangers", &[&then[..], &frame(9, &[])].concat());
            assert_eq!(format!("{known:?}"), format!("{unknown:?}"));
        }
        let known = guesses(url, "trainers", &[&proof, hello].concat());
        assert_eq!(known[1].kind, REJECT);
        assert_eq!(known[1].body[0], 0, "trying again does not help");
        let words = String::from_utf8_lossy(&known[1].body[3..]);
        assert!(words.contains("did not prove"), "{words}");
    });
}

#[test]
fn a_brochure_without_a_proof_is_not_looked_at() {
    meets(|url| {
        // One that could not be read, too.
        for hello in [hello(), [preface(), frame(HELLO, &[0, 0xff])].concat()] {
            let mut raw = Raw::connect(url);
            raw.send(&hello);
            raw.expect_preface();
            let reject = raw.frame().expect("a rejection");
            let words = String::from_utf8_lossy(&reject.body).into_owned();
            assert_eq!(reject.kind, REJECT, "{words}");
            assert!(words.contains("asks for a token"), "{words}");
            raw.is_cut("a brochure", SOON);
        }
    });
}

/// Strangers who were challenged hold places no longer than those who say nothing: others get in, and they are cut off in time.
#[test]
fn those_who_prove_nothing_keep_nobody_out() {
    runtime().block_on(async {
        let mut limits = Limits::default();
        limits.handshakes = 4;
        let mut timeouts = Timeouts::default();
        timeouts.handshake = Duration::from_secs(3);
        let builder = || Context::builder().token("trainers", [7; 16]);
        let here = builder().limits(limits).timeouts(timeouts).build().unwrap();
        let listener = here.listen(["tcp://127.0.0.1:0"]).await.unwrap();
        let url = listener.url().to_string();
        let strangers = tokio::task::spawn_blocking(move || {
            let challenged = (0..4).map(|_| {
                let mut raw = Raw::connect(&url);
                raw.send(&key("trainers"));
                raw.expect_preface();
                assert_eq!(raw.frame().expect("a challenge").kind, CHALLENGE);
                raw
            });
            challenged.collect::<Vec<_>>()
        });
        let strangers = strangers.await.unwrap();
        let there = builder().connect_policy(ConnectPolicy::once());
        let there = there.build().unwrap();
        let pipes = async { tokio::join!(there.connect(listener.url()), listener.accept()) };
        let pipes = tokio::time::timeout(SOON, pipes).await.expect("a pipe");
        pipes.0.unwrap();
        pipes.1.unwrap();
        let cut = tokio::task::spawn_blocking(move || {
            for mut raw in strangers {
                raw.is_cut("a stranger", SOON);
            }
        });
        cut.await.unwrap();
    });
}

/// Whoever finds the address that pipes move to gets no pipe there: not even where nothing is asked for.
#[test]
fn no_pipe_begins_at_the_side() {
    runtime().block_on(async {
        let before = names();
        let listener = Context::new().listen(["tcp://127.0.0.1:0"]).await.unwrap();
        let stranger = tokio::task::spawn_blocking(move || {
            let mut met = 0;
            for name in names().into_iter().filter(|name| !before.contains(name)) {
                let mut raw = Raw::connect(&format!("shm://{name}"));
                raw.send(&hello());
                raw.expect_preface();
                let reject = raw.frame().expect("a rejection");
                let words = String::from_utf8_lossy(&reject.body).into_owned();
                // Others of this process may listen, too.
                met += u32::from(reject.kind == REJECT && words.contains("no pipe begins"));
            }
            assert!(met > 0);
        });
        tokio::select! {
            done = stranger => done.unwrap(),
            pipe = listener.accept() => panic!("{pipe:?}"),
        }
    });
}

/// Where somebody listens by shm, in this network namespace.
fn names() -> Vec<String> {
    let all = std::fs::read_to_string("/proc/net/unix").unwrap();
    let names = all
        .lines()
        .filter_map(|line| line.split("@tensorpipe/shm/").nth(1));
    let names = names.map(str::to_owned);
    // Those at the side are random.
    names
        .filter(|name| name.len() == 32 && !name.contains(' '))
        .collect()
}
