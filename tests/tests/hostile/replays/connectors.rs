//! What a connector hears in a listener's place.

use std::sync::Arc;
use std::time::Duration;

use tensorpipe::transports::{ShmTransport, TcpTransport, Transport};
use tensorpipe::{ConnectPolicy, Context, Error, PeerFault};
use tensorpipe_tests::{runtime, soon};

use super::member::Member;
use super::memory::story;
use super::proofs::Handshake;
use super::raw::{ANSWER, HELLO, JOINED, Raw, SOON, frame, limits, noise, preface, text};
use super::stream::{Acceptor, Stream};
use super::victim::Victim;
use super::{CHALLENGE, KEY, NAME, PROOF, SECRET};

/// What somebody says to a connector in the listener's place.
#[derive(Clone, Copy, Debug)]
enum Lie {
    /// The challenge that a listener gave another connection.
    Challenge,
    /// The same, and then its answer.
    Joined(Says),
}

#[derive(Clone, Copy, Debug)]
enum Says {
    Right,
    Nothing,
    /// The connector's own proof.
    Reflected,
    OfAnotherPipe,
}

/// And what becomes of the connector's pipe.
const AT_CONNECTORS: [(Lie, &str); 5] = [
    (Lie::Challenge, UNPROVEN_LISTENER),
    (Lie::Joined(Says::Right), "upgraded"),
    (Lie::Joined(Says::Nothing), "did not prove"),
    (Lie::Joined(Says::Reflected), "did not prove"),
    (Lie::Joined(Says::OfAnotherPipe), "did not prove"),
];

const UNPROVEN_LISTENER: &str = "unproven";

#[test]
fn what_a_connector_hears_again_is_no_listeners() {
    let _story = story!();
    let victim = Victim::start(true);
    let recorded = Member::of(&victim).challenge;
    let mut wrong = Vec::new();
    for (number, (lie, expected)) in AT_CONNECTORS.into_iter().enumerate() {
        let got = connector_meets(number, lie, &recorded);
        println!("{lie:?}: {got}");
        if !got.contains(expected) {
            wrong.push(format!("{lie:?}: {got}, not {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn connector_meets(number: usize, lie: Lie, recorded: &[u8]) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("tcp://{}", listener.local_addr().unwrap());
    let recorded = recorded.to_vec();
    let script = std::thread::spawn(move || {
        let mut raw = Raw(Stream::accepted(listener.accept().unwrap().0));
        let says = match lie {
            Lie::Challenge => {
                raw.expect_preface();
                raw.frame_of(KEY);
                raw.send(&recorded);
                raw.is_cut("the connector", SOON);
                return;
            }
            Lie::Joined(says) => says,
        };
        let mut host = Host::greets(raw);
        let address = format!("replays {} {number}", std::process::id());
        let mut there = Acceptor::over_shm(&address);
        let token = [number as u8 + 1; 16];
        host.upgrades(&address, token);
        let mut side = Raw(there.accept());
        side.expect_preface();
        let asks = side.frame_of(HELLO).body;
        let wanted = host.handshake.about_move("join", "shm", &token);
        assert_eq!(asks, [&[2][..], &token, &wanted].concat(), "WIRE.md");
        let proof = match says {
            Says::Right => host.handshake.about_move("joined", "shm", &token).to_vec(),
            Says::Nothing => Vec::new(),
            Says::Reflected => wanted.to_vec(),
            // A member of the same group has made it.
            Says::OfAnotherPipe => Handshake::new(&SECRET, &host.said, &preface(), &[1; 32])
                .about_move("joined", "shm", &token)
                .to_vec(),
        };
        side.send(&[preface(), frame(JOINED, &proof)].concat());
        // Until the victim has looked.
        host.raw.is_cut("the connector", 2 * SOON);
    });
    let met = runtime().block_on(async {
        let context = Context::builder().token(NAME, SECRET);
        let transports: [Arc<dyn Transport>; 2] =
            [Arc::new(ShmTransport::new()), Arc::new(TcpTransport::new())];
        let context = context
            .transports(transports)
            .connect_policy(ConnectPolicy::once());
        let context = context.build().unwrap();
        match soon("a pipe or an error", context.connect(url)).await {
            Err(Error::Connect { source, .. }) => match *source {
                Error::Peer {
                    fault: PeerFault::Unproven { .. },
                    ..
                } => UNPROVEN_LISTENER.to_owned(),
                error => error.to_string(),
            },
            Err(error) => error.to_string(),
            Ok(pipe) => {
                let route = pipe.route();
                let upgrade = route.upgraded_from.is_some();
                let word = if upgrade { "upgraded" } else { "stayed" };
                let _ = pipe.close_within(Duration::ZERO).await;
                format!("{word}: {route}")
            }
        }
    });
    script.join().unwrap();
    met
}

/// A listener by hand, which has the secret.
struct Host {
    raw: Raw,
    handshake: Handshake,
    /// PROOF and HELLO of its connector.
    said: Vec<u8>,
}

impl Host {
    fn greets(mut raw: Raw) -> Self {
        raw.expect_preface();
        let opening = [preface(), frame(KEY, &raw.frame_of(KEY).body)].concat();
        let nonce = noise(5, 32);
        let mut handshake = Handshake::new(&SECRET, &opening, &preface(), &nonce);
        let challenge = [&nonce[..], &handshake.prove("challenge")].concat();
        raw.send(&[preface(), frame(CHALLENGE, &challenge)].concat());
        let proof = raw.frame_of(PROOF).body;
        let hello = raw.frame_of(HELLO).body;
        assert_eq!(
            proof,
            handshake.next("hello", &frame(HELLO, &hello)),
            "WIRE.md"
        );
        Self {
            raw,
            handshake,
            said: [proof, hello].concat(),
        }
    }

    /// Sends the pipe to this address of shm.
    fn upgrades(&mut self, address: &str, token: [u8; 16]) {
        let mut body = text(b"host");
        body.extend([0x22; 16]);
        body.extend(limits());
        body.push(1);
        body.extend(text(b"shm"));
        body.extend(text(address.as_bytes()));
        body.extend(token);
        // No channels, no refusals.
        body.extend([0, 0]);
        let answer = frame(ANSWER, &body);
        let proof = frame(PROOF, &self.handshake.next("answer", &answer));
        self.raw.send(&[proof, answer].concat());
    }
}
