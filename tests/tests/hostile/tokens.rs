//! Hostile peers at a listener that asks for a token.

use std::time::{Duration, Instant};

use tensorpipe::transports::{Pem, TcpTransport, TlsConfig, TlsTransport, Transport};
use tensorpipe::{ConnectPolicy, Context, Limits, Timeouts};
use tensorpipe_tests::{Child, is_sanitized, resident, runtime, say};

use super::memory::story;
use super::raw::{Frame, HELLO, REJECT, Raw, SOON, frame, header, hello, noise, preface, text};
use super::replays::gets;
use super::stream::Stream;

const KEY: u8 = 6;
const CHALLENGE: u8 = 7;
const PROOF: u8 = 8;

/// What a hostile peer does to such a listener; nobody gets a pipe.
fn meets(hostile: impl FnOnce(&str) + Send + 'static) {
    runtime().block_on(async {
        let context = Context::builder().token("trainers", [7; 16]);
        let context = context.build().unwrap();
        let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
        let url = listener.url().to_string();
        let hostile = tokio::task::spawn_blocking(move || hostile(&url));
        tokio::select! {
            done = hostile => done.unwrap(),
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
    let _story = story!();
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
    let _story = story!();
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

/// Hostile peers who were challenged hold places no longer than those who say nothing: others get in, and they are cut off in time.
#[test]
fn those_who_prove_nothing_keep_nobody_out() {
    let _story = story!();
    runtime().block_on(async {
        let mut limits = Limits::default();
        limits.handshakes = 4;
        let mut timeouts = Timeouts::default();
        timeouts.handshake = Duration::from_secs(3);
        let builder = || Context::builder().token("trainers", [7; 16]);
        let here = builder().limits(limits).timeouts(timeouts).build().unwrap();
        let listener = here.listen(["tcp://127.0.0.1:0"]).await.unwrap();
        let url = listener.url().to_string();
        let hostile = tokio::task::spawn_blocking(move || {
            let challenged = (0..4).map(|_| {
                let mut raw = Raw::connect(&url);
                raw.send(&key("trainers"));
                raw.expect_preface();
                assert_eq!(raw.frame().expect("a challenge").kind, CHALLENGE);
                raw
            });
            challenged.collect::<Vec<_>>()
        });
        let hostile = hostile.await.unwrap();
        let there = builder().connect_policy(ConnectPolicy::once());
        let there = there.build().unwrap();
        let pipes = async { tokio::join!(there.connect(listener.url()), listener.accept()) };
        let pipes = tokio::time::timeout(SOON, pipes).await.expect("a pipe");
        pipes.0.unwrap();
        pipes.1.unwrap();
        let cut = tokio::task::spawn_blocking(move || {
            for mut raw in hostile {
                raw.is_cut("a hostile peer", SOON);
            }
        });
        cut.await.unwrap();
    });
}

/// Connections that ask to join with tokens that nobody gave out are turned away, and count for nothing meanwhile.
#[test]
fn bogus_joins_do_not_drive_out_who_is_about_to_prove_itself() {
    let _story = story!();
    runtime().block_on(async {
        let mut limits = Limits::default();
        limits.handshakes = 4;
        let here = Context::builder().token("trainers", [7; 16]).limits(limits);
        let here = here.build().unwrap();
        let listener = here.listen(["tcp://127.0.0.1:0"]).await.unwrap();
        let url = listener.url().to_string();
        let story = tokio::task::spawn_blocking(move || {
            let join = [preface(), frame(HELLO, &[&[1][..], &[9; 16]].concat())].concat();
            let bogus = || {
                let mut raw = Raw::connect(&url);
                raw.send(&join);
                raw.expect_preface();
                assert_eq!(raw.frame().expect("a rejection").kind, REJECT);
                raw
            };
            // They stay open, as long as they may.
            let _before = [bogus(), bogus(), bogus()];
            let mut slow = Raw::connect(&url);
            slow.send(&key("trainers"));
            slow.expect_preface();
            assert_eq!(slow.frame().expect("a challenge").kind, CHALLENGE);
            let _after = bogus();
            slow.send(&[&frame(PROOF, &[0; 32]), &hello()[12..]].concat());
            let answer = slow.frame().expect("it still has its place");
            assert_eq!(answer.kind, REJECT);
        });
        story.await.unwrap();
    });
}

/// Not that of a greeting, and then that of a handshake.
#[test]
fn a_hostile_peer_has_the_time_of_a_handshake_in_all() {
    let _story = story!();
    runtime().block_on(async {
        let mut timeouts = Timeouts::default();
        timeouts.handshake = Duration::from_secs(3);
        let here = Context::builder().timeouts(timeouts).build().unwrap();
        let listener = here.listen(["tcp://127.0.0.1:0"]).await.unwrap();
        let url = listener.url().to_string();
        let story = tokio::task::spawn_blocking(move || {
            let begun = Instant::now();
            let mut raw = Raw::connect(&url);
            std::thread::sleep(Duration::from_millis(2500));
            raw.send(&preface()[..1]);
            raw.is_cut("a slow peer", SOON);
            assert!(begun.elapsed() < Duration::from_millis(4500));
        });
        story.await.unwrap();
    });
}

/// What asks for a token, and what asks for TLS, in a process of its own.
pub(crate) fn play() {
    runtime().block_on(async {
        let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let (certificate, key) = (own.cert.pem(), own.signing_key.serialize_pem());
        say("process", std::process::id());
        say("certificate", certificate.escape_default());
        let tls = TlsConfig::new().certificate(Pem::bytes(certificate), Pem::bytes(key));
        let context = Context::builder().token("trainers", [7; 16]);
        let tls = TlsTransport::new(tls).unwrap();
        let context = context.prefer_transport(tls).build().unwrap();
        let listener = context
            .listen(["tcp://127.0.0.1:0", "tls://127.0.0.1:0"])
            .await
            .unwrap();
        let [tcp, tls] = listener.urls() else {
            panic!("two URLs")
        };
        say("tcp", tcp);
        say("tls", tls);
        let _ = listener.accept().await;
    });
}

const KIB: u64 = 1 << 10;

/// Two hundred who say as much as can be said without a proof, but for the last byte, take at most 64 KiB each.
fn two_hundred_cost_little(what: &str, process: u32, unfinished: impl Fn() -> Raw) {
    // What is there once is there.
    drop([unfinished(), unfinished()]);
    std::thread::sleep(Duration::from_millis(100));
    let before = resident(process);
    let kept: Vec<Raw> = std::iter::repeat_with(unfinished).take(200).collect();
    std::thread::sleep(Duration::from_millis(500));
    let grown = resident(process).saturating_sub(before);
    println!("200, {what}: {} KiB", grown / KIB);
    // A sanitizer keeps what is freed, and a second stack for each thread.
    let is_bounded = grown <= 200 * 64 * KIB || is_sanitized();
    assert!(is_bounded, "{what}: {} KiB", grown / KIB);
    // They are still there.
    assert!(grown >= 200 * 20 * KIB, "{what}: {} KiB", grown / KIB);
    drop(kept);
}

#[test]
fn two_hundred_unfinished_proofs_cost_little() {
    let longest = header(HELLO, 32 << 10, &vec![7; (32 << 10) - 1]);
    let said = [&frame(PROOF, &[0; 32])[..], &longest].concat();
    for is_tls in [false, true] {
        // What one of them has freed would hide what the next one takes.
        let child = Child::start("tokens", &[]);
        let process = child.hear("process").parse().unwrap();
        let certificate = child.hear("certificate").replace("\\n", "\n");
        let config = TlsConfig::new().trust(Pem::bytes(certificate));
        let tls = TlsTransport::new(config.server_name("localhost")).unwrap();
        let transport: &dyn Transport = if is_tls { &tls } else { &TcpTransport::new() };
        let url = child.hear(transport.name());
        let challenged = || {
            let mut raw = Raw(Stream::over(transport, &url));
            raw.send(&key("trainers"));
            raw.expect_preface();
            assert_eq!(raw.frame().expect("a challenge").kind, CHALLENGE);
            raw
        };
        two_hundred_cost_little(transport.name(), process, || {
            let mut raw = challenged();
            raw.send(&said);
            raw
        });
        // Longer ones are none.
        let mut raw = challenged();
        raw.send(&header(PROOF, 33, &[]));
        raw.is_cut("a long proof", SOON);
        let mut raw = Raw(Stream::over(transport, &url));
        raw.send(&[preface(), header(KEY, 99, &[])].concat());
        raw.is_cut("a long key", SOON);
    }
}

/// RFC 8446, 4.1.2 and 5.1: a ClientHello of 60 KiB, in records of 16 KiB.
#[test]
fn two_hundred_unfinished_client_hellos_cost_little() {
    const LEN: u16 = 60 << 10;
    let child = Child::start("tokens", &[]);
    let process = child.hear("process").parse().unwrap();
    let url = child.hear("tls").replace("tls://", "tcp://");
    let [high, low] = LEN.to_be_bytes();
    let hello = [&[1, 0, high, low], &noise(5, LEN.into())[..]].concat();
    let said = |len| {
        let mut raw = Raw::connect(&url);
        for part in hello[..len].chunks(16 << 10) {
            let len = (part.len() as u16).to_be_bytes();
            raw.send(&[&[22, 3, 1], &len[..], part].concat());
        }
        raw
    };
    two_hundred_cost_little("client hellos", process, || said(31 << 10));
    // Nobody is heard to its end.
    said(usize::from(LEN) - 1).is_cut("a long hello", SOON);
}

/// Whoever finds the address that pipes upgrade to gets no pipe there: not even where nothing is asked for.
#[test]
fn no_pipe_begins_at_the_side() {
    let _story = story!();
    runtime().block_on(async {
        let before = names();
        let listener = Context::new().listen(["tcp://127.0.0.1:0"]).await.unwrap();
        let hostile = tokio::task::spawn_blocking(move || {
            let mut met = 0;
            for name in names().into_iter().filter(|name| !before.contains(name)) {
                // Others of this machine may listen, too, or have just gone.
                let words = gets(&format!("shm://{name}"), &hello());
                met += u32::from(words.contains("no pipe begins"));
            }
            assert!(met > 0);
        });
        tokio::select! {
            done = hostile => done.unwrap(),
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
