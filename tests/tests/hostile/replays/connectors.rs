//! Replays to a connector by somebody in the listener's place.

use std::sync::Arc;
use std::time::Duration;

use tensorpipe::channels::{Channel, ChannelFault, CmaChannel, LaneIo, LeaseChannel, OpId};
use tensorpipe::transports::{ShmTransport, TcpTransport, Transport};
use tensorpipe::{Buffer, ConnectPolicy, Context, Error, Message, PeerFault, Tensor};
use tensorpipe_tests::{Double, pair, runtime, soon};

use super::member::Member;
use super::memory::story;
use super::proofs::Handshake;
use super::raw::{ANSWER, HELLO, JOINED, Raw, SOON, frame, limits, noise, preface, text};
use super::stream::{Acceptor, Stream};
use super::thief::waits_in_its_place;
use super::victim::Victim;
use super::{CHALLENGE, KEY, NAME, PROOF, SECRET};

/// What somebody says to a connector in the listener's place.
#[derive(Clone, Copy, Debug)]
enum Lie {
    /// The challenge that a listener gave another connection.
    Challenge,
    /// The same, and then its answer.
    Joined(Says),
    /// An address to upgrade to, where another user waits.
    User,
}

#[derive(Clone, Copy, Debug)]
enum Says {
    Right,
    Nothing,
    /// The connector's own proof.
    Reflected,
    OfAnotherPipe,
    /// Its listener's, about another transport.
    OverAnother,
}

/// And what becomes of the connector's pipe.
const AT_CONNECTORS: [(Lie, &str); 7] = [
    (Lie::Challenge, UNPROVEN_LISTENER),
    (Lie::Joined(Says::Right), "upgraded"),
    (Lie::Joined(Says::Nothing), "did not prove"),
    (Lie::Joined(Says::Reflected), "did not prove"),
    (Lie::Joined(Says::OfAnotherPipe), "did not prove"),
    (Lie::Joined(Says::OverAnother), "did not prove"),
    (Lie::User, "which hears not a byte"),
];

const UNPROVEN_LISTENER: &str = "unproven";

#[test]
fn what_a_connector_hears_again_is_no_listeners() {
    let _story = story!();
    let victim = Victim::start(true);
    let recorded = Member::of(&victim).challenge;
    let mut wrong = Vec::new();
    for (number, (lie, expected)) in AT_CONNECTORS.into_iter().enumerate() {
        let Some(got) = connector_meets(number, lie, &recorded) else {
            continue;
        };
        println!("{lie:?}: {got}");
        if !got.contains(expected) {
            wrong.push(format!("{lie:?}: {got}, not {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// `None` where nobody can be another user.
fn connector_meets(number: usize, lie: Lie, recorded: &[u8]) -> Option<String> {
    let address = format!("replays {} {number}", std::process::id());
    let thief = match lie {
        Lie::User => Some(waits_in_its_place(
            false,
            &format!("tensorpipe/shm/{address}"),
        )?),
        _ => None,
    };
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
            Lie::User => {
                let mut host = Host::greets(raw);
                host.upgrades(&address, [9; 16]);
                host.raw.is_cut("the connector", 2 * SOON);
                return;
            }
        };
        let mut host = Host::greets(raw);
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
            Says::OverAnother => host.handshake.about_move("joined", "tcp", &token).to_vec(),
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
    Some(match thief {
        Some(thief) => format!("{met}; another user, which hears {}", thief.hear("got")),
        None => met,
    })
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

type Makes = fn() -> Arc<dyn Channel>;

/// A peer that leads this process to an exchange whose name another user has: an invitation is not brought there, nor is anything asked.
#[test]
fn another_user_at_the_name_of_an_exchange_hears_nothing() {
    const LEN: usize = 3 << 20;
    let export = [&[1][..], &[0; 4], &[1; 8], &(LEN as u64).to_le_bytes()].concat();
    let rows: [(Makes, Vec<u8>); 2] = [
        (
            || Arc::new(LeaseChannel::new()),
            [&[4][..], &[9; 16]].concat(),
        ),
        (|| Arc::new(CmaChannel::new()), export),
    ];
    for (number, (channel, says)) in rows.into_iter().enumerate() {
        let (device, mut place) = channel().devices().remove(0);
        assert!(device.is_cpu());
        let name = format!(
            "tensorpipe-{:032x}",
            u64::from(std::process::id()) << 8 | number as u64
        );
        let Some(at) = place
            .len()
            .checked_sub(name.len())
            .filter(|_| place[0] == 1)
        else {
            println!("skipped: {} reaches nobody here", channel().name());
            continue;
        };
        // Another process, and where its exchange is.
        place[at - 16..at].copy_from_slice(&[5; 16]);
        place[at..].copy_from_slice(name.as_bytes());
        let Some(thief) = waits_in_its_place(true, &name) else {
            return;
        };
        let lane = move |_| Leads {
            says: says.clone(),
            source: None,
        };
        let leads = match number {
            0 => Double::liar(LeaseChannel::new(), lane),
            _ => Double::liar(CmaChannel::new(), lane),
        };
        runtime().block_on(async {
            let hostile = Context::builder().channels([leads.at(place).channel()]);
            let hostile = hostile.build().unwrap();
            let honest = Context::builder().channels([channel()]).build().unwrap();
            let (theirs, ours) = pair(&hostile, &honest, "tcp://127.0.0.1:0").await;
            let tensor = Tensor::from(vec![7u8; LEN]);
            theirs.send(Message::new("m").tensor(tensor)).unwrap();
            let came = soon("a message", ours.read()).await.unwrap();
            assert_eq!(came.tensors[0].tensor.as_bytes().unwrap(), [7; LEN]);
            let route = ours.route().to_string();
            assert!(route.contains("exchange is one of user 65534"), "{route}");
        });
        assert_eq!(thief.hear("got"), "not a byte", "{}", channel().name());
    }
}

/// The lane of one that leads its reader elsewhere, and sends bytes when it is asked for them.
struct Leads {
    says: Vec<u8>,
    source: Option<Buffer>,
}

impl tensorpipe_tests::Says for Leads {
    fn send(&mut self, op: OpId, source: Buffer, io: &mut LaneIo<'_>) {
        self.source = Some(source);
        io.control(op, self.says.clone());
    }

    fn control(&mut self, op: OpId, _: &[u8], io: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        if let (true, Some(source)) = (op.outgoing, self.source.take()) {
            io.stream(op, source);
        }
        Ok(())
    }
}
