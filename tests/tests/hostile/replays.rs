//! What a pipe hands out, said again: by another process, by another user, over another transport, a second time, and to a listener that was
//! started again. One table a side; each row says what is replayed, by whom, where, and what it gets.
//!
//! The connector that is handed things is made by hand and has the secret, so that what a thief says is right in every byte. The thief is a
//! process that has nothing but those bytes, and asks nobody whose they are.
//!
//! Elsewhere: invitations and passes with a key of another pipe, and of another exchange (`channels/exchange/broker/tests.rs`); tokens of other
//! kinds and over other transports (`negotiate/ticket.rs`); claims of loans (`tests/leases/claims.rs`); references that were claimed
//! (`tests/rpc/references.rs`); keys of rendezvous of a producer that was started again (`tests/rendezvous/gone.rs`).

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, send, setsockopt, socket,
    sockopt::ReceiveTimeout,
};
use nix::sys::time::TimeVal;
use tensorpipe::channels::{BasicChannel, Channel, CmaChannel, LeaseChannel};
use tensorpipe::transports::{ShmTransport, TcpTransport, Transport};
use tensorpipe::{
    ConnectPolicy, Context, Error, Message, PeerFault, Pipe, Tensor,
    channels::{Pays, Threshold},
};
use tensorpipe_rpc::{Connection, Remote, Server, remote::Shared, tensor_service};
use tensorpipe_tests::{Child, NOBODY, can_start_by, runtime, say, soon};

use super::borrowed_names::upgrade;
use super::memory::story;
use super::proofs::{Handshake, Proof};
use super::raw::{
    ANSWER, Frame, HELLO, JOINED, MESSAGE, PING, PONG, REJECT, Raw, SOON, STAY, frame, limits,
    message, noise, preface, text,
};
use super::stream::{Acceptor, Stream};

const KEY: u8 = 6;
const CHALLENGE: u8 = 7;
const PROOF: u8 = 8;

const SECRET: [u8; 16] = *b"nobody knows it.";
const NAME: &str = "trainers";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(digits: &str) -> Vec<u8> {
    let pairs = digits.as_bytes().chunks(2);
    let byte = |pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
    pairs.map(byte).collect()
}

#[tensor_service]
pub(crate) trait Keeper {
    async fn keep(&self, number: u64) -> Remote<u64>;
    async fn open(&self, shared: Shared<u64>) -> Result<u64, String>;
}

struct Keeps(Context);

impl Keeper for Keeps {
    async fn keep(&self, number: u64) -> Remote<u64> {
        Remote::new(number)
    }

    async fn open(&self, shared: Shared<u64>) -> Result<u64, String> {
        let opened = shared.open(&self.0).await;
        let number = opened.map_err(|error| error.to_string())?;
        number.fetch().await.map_err(|error| error.to_string())
    }
}

fn context(asks: bool) -> Context {
    let channels: [Arc<dyn Channel>; 3] = [
        Arc::new(CmaChannel::new()),
        Arc::new(LeaseChannel::new()),
        Arc::new(BasicChannel::new()),
    ];
    let pays = Threshold::new(Pays::From(1 << 20));
    let builder = Context::builder().channels(channels).threshold("cma", pays);
    let builder = builder.connect_policy(ConnectPolicy::once());
    let builder = match asks {
        true => builder.token(NAME, SECRET),
        false => builder,
    };
    builder.build().unwrap()
}

/// The victim: echoes what its pipes bring, and keeps what calls ask it to.
pub(crate) fn play_victim() {
    runtime().block_on(async {
        let at = |what: &str| {
            let before = std::env::var(format!("TEST_{what}")).ok();
            before.unwrap_or_else(|| "tcp://127.0.0.1:0".to_owned())
        };
        let context = context(std::env::var("TEST_ASKS").is_ok());
        let listener = context.listen([at("PIPES")]).await.unwrap();
        let server = Server::builder()
            .context(&context)
            .service(KeeperService::new(Keeps(context.clone())))
            .listen(at("CALLS"))
            .await
            .unwrap();
        say("pipes", listener.url());
        say("calls", server.url());
        let place = LeaseChannel::new().devices().remove(0).1;
        let exchange = place.windows(11).position(|word| word == b"tensorpipe-");
        let exchange = &place[exchange.expect("it can lend")..];
        say("exchange", str::from_utf8(exchange).unwrap());
        say("process", hex(&place[37..53]));
        while let Ok(pipe) = listener.accept().await {
            tokio::spawn(async move {
                while let Ok(message) = pipe.read().await {
                    let _ = pipe.send(message);
                }
            });
        }
    });
}

struct Victim {
    child: Child,
    asks: bool,
    pipes: String,
    calls: String,
    exchange: String,
    process: Vec<u8>,
}

impl Victim {
    fn start(asks: bool) -> Self {
        Self::start_at(asks, &[])
    }

    fn start_at(asks: bool, at: &[(&str, &str)]) -> Self {
        let asks_for = [("TEST_ASKS", "yes")];
        let variables = [&asks_for[..usize::from(asks)], at].concat();
        let child = Child::start("victim", &variables);
        Self {
            asks,
            pipes: child.hear("pipes"),
            calls: child.hear("calls"),
            exchange: child.hear("exchange"),
            process: unhex(&child.hear("process")),
            child,
        }
    }

    /// Killed, and started again where it was.
    fn starts_again(&mut self) {
        self.child.kill();
        let at = [("TEST_PIPES", &*self.pipes), ("TEST_CALLS", &*self.calls)];
        let again = Self::start_at(self.asks, &at);
        assert_eq!(again.pipes, self.pipes);
        *self = Self {
            exchange: std::mem::take(&mut self.exchange),
            process: std::mem::take(&mut self.process),
            ..again
        };
    }
}

/// A connector by hand, which the victim has told to upgrade.
struct Member {
    raw: Raw,
    handshake: Option<Handshake>,
    /// All that it said until its answer came.
    said: Vec<u8>,
    /// The listener's challenge, as it came.
    challenge: Vec<u8>,
    /// What it is to upgrade to, and as who.
    address: String,
    token: Vec<u8>,
}

/// A HELLO of one that offers `shm` and `tcp`.
fn brochure() -> Vec<u8> {
    let mut body = vec![0];
    body.extend(text(b"member"));
    body.extend([0x11; 16]);
    body.extend(limits());
    body.push(2);
    for (name, domain) in [
        ("shm", ShmTransport::new().domain()),
        ("tcp", b"ip".to_vec()),
    ] {
        body.extend(text(name.as_bytes()));
        body.extend(text(&domain));
    }
    body.push(1);
    body.extend(text(b"basic"));
    body.extend([0, 1, 0]);
    body.extend(text(b"any"));
    frame(HELLO, &body)
}

impl Member {
    fn of(victim: &Victim) -> Self {
        let mut raw = Raw::connect(&victim.pipes);
        let hello = brochure();
        let mut said = preface();
        if victim.asks {
            let nonce = noise(u64::from(std::process::id()), 32);
            said.extend(frame(KEY, &[text(NAME.as_bytes()), nonce].concat()));
            raw.send(&said);
            raw.expect_preface();
            let body = raw.frame_of(CHALLENGE).body;
            let mut made = Handshake::new(&SECRET, &said, &preface(), &body[..32]);
            assert_eq!(body[32..], made.prove("challenge"), "WIRE.md");
            let challenge = [preface(), frame(CHALLENGE, &body)].concat();
            let proof = frame(PROOF, &made.next("hello", &hello));
            raw.send(&[&proof[..], &hello].concat());
            said.extend([proof, hello].concat());
            let proof = raw.frame_of(PROOF).body;
            let answer = raw.frame_of(ANSWER);
            let wanted = made.next("answer", &frame(ANSWER, &answer.body));
            assert_eq!(proof, wanted, "WIRE.md");
            return Self::told(raw, Some(made), said, challenge, &answer);
        }
        said.extend(hello);
        raw.send(&said);
        raw.expect_preface();
        let answer = raw.frame_of(ANSWER);
        Self::told(raw, None, said, Vec::new(), &answer)
    }

    fn told(
        raw: Raw,
        handshake: Option<Handshake>,
        said: Vec<u8>,
        challenge: Vec<u8>,
        answer: &Frame,
    ) -> Self {
        let (transport, address, token) = upgrade(answer);
        assert_eq!(transport, "shm");
        Self {
            raw,
            handshake,
            said,
            challenge,
            address,
            token,
        }
    }

    /// What lets a connection join over shm.
    fn joins(&self) -> Vec<u8> {
        let made = self.handshake.as_ref();
        self.joins_by(made.map(|made| made.about_move("join", "shm", &self.token)))
    }

    fn joins_by(&self, proof: Option<Proof>) -> Vec<u8> {
        let body = match proof {
            None => [&[1][..], &self.token].concat(),
            Some(proof) => [&[2][..], &self.token, &proof].concat(),
        };
        [preface(), frame(HELLO, &body)].concat()
    }

    fn stay(&self, proof: Option<Proof>) -> Vec<u8> {
        let proof = proof.map_or(Vec::new(), |proof| proof.to_vec());
        frame(STAY, &[text(b"nobody is there"), proof].concat())
    }

    /// Whether its pipe stands.
    fn is_open(&mut self) -> bool {
        self.raw.send(&frame(PING, &[1; 8]));
        std::iter::from_fn(|| self.raw.frame()).any(|frame| frame.kind == PONG)
    }
}

/// What a connection that says these bytes to this URL gets.
pub(super) fn gets(url: &str, says: &[u8]) -> String {
    let Some(stream) = Stream::try_connect(url) else {
        return "no connection".to_owned();
    };
    let mut raw = Raw(stream);
    raw.send(says);
    raw.0.set_read_timeout(SOON);
    let mut found = [0; 12];
    if std::io::Read::read_exact(&mut raw.0, &mut found).is_err() {
        return "not a byte".to_owned();
    }
    // A challenge is nothing that one gets by a proof.
    let answer = std::iter::from_fn(|| raw.frame()).find(|frame| frame.kind != CHALLENGE);
    match answer {
        None => "the end".to_owned(),
        Some(Frame { kind: JOINED, .. }) => "JOINED".to_owned(),
        Some(Frame { kind: REJECT, body }) => String::from_utf8_lossy(&body[3..]).into_owned(),
        Some(frame) => format!("a frame of kind {}", frame.kind),
    }
}

/// What an exchange answers to a packet: its kind.
fn exchange_says(name: &str, packet: &[u8]) -> String {
    let flags = SockFlag::SOCK_CLOEXEC;
    let made: OwnedFd = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
    let address = UnixAddr::new_abstract(name.as_bytes()).unwrap();
    if connect(made.as_raw_fd(), &address).is_err() {
        return "no connection".to_owned();
    }
    let bound = TimeVal::new(SOON.as_secs() as i64, 0);
    setsockopt(&made, ReceiveTimeout, &bound).unwrap();
    let _ = send(made.as_raw_fd(), packet, MsgFlags::MSG_NOSIGNAL);
    let mut bytes = [0; 256];
    match recv(made.as_raw_fd(), &mut bytes, MsgFlags::empty()) {
        Ok(0) | Err(Errno::ECONNRESET) => "not a byte".to_owned(),
        Ok(_) => format!("a packet of kind {}", bytes[0]),
        Err(errno) => errno.to_string(),
    }
}

/// Says what it is given, and tells what it gets.
pub(crate) fn play_thief() {
    let says = unhex(&std::env::var("TEST_SAYS").unwrap());
    let at = std::env::var("TEST_AT").unwrap();
    let got = match at.strip_prefix("exchange://") {
        Some(name) => exchange_says(name, &says),
        None => gets(&at, &says),
    };
    say("got", got);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    /// The process that it was meant for.
    Itself,
    /// Another one of this user.
    Process,
    User,
    /// The one that it was meant for, a second time.
    Again,
    /// That one; the victim was started again.
    Later,
}

use Who::{Again, Itself, Later, Process, User};

/// What somebody gets for these bytes there.
fn replayed(who: Who, at: &str, says: &[u8]) -> Option<String> {
    let got = || match at.strip_prefix("exchange://") {
        Some(name) => exchange_says(name, says),
        None => gets(at, says),
    };
    let by: &[&str] = match who {
        Itself | Later => return Some(got()),
        Again => {
            got();
            return Some(got());
        }
        Process => &[],
        User => &NOBODY,
    };
    if who == User && !(nix::unistd::geteuid().is_root() && can_start_by(by)) {
        println!("skipped: only root can run a program as another user");
        return None;
    }
    let variables = [("TEST_AT", at), ("TEST_SAYS", &hex(says))];
    Some(Child::start_by(by, "thief", &variables).hear("got"))
}

/// What is replayed.
#[derive(Clone, Copy, Debug)]
enum What {
    /// The whole handshake of another connection, with its proof.
    Handshake,
    /// HELLO to join, which was said to nobody: over shm, for which it is, or over tcp.
    Join(&'static str),
    /// The same with a token alone, as it can be read on the network.
    Token,
    /// To the exchange: an invitation that nobody has given, and the question of a process that reads memory.
    Invitation,
    Where,
}

use What::{Handshake as Whole, Invitation, Join, Token, Where};

const UNKNOWN: &str = "this token is unknown, or was used, or came too late";
const UNPROVEN: &str = "it did not prove";
const NOBODY_THERE: &str = "no connection";
/// Before it has begun, or at once.
const CUT: &str = "no connection|not a byte";

/// Of a listener that asks for a token, and of one that does not.
const AT_LISTENERS: [(bool, What, Who, &str); 30] = [
    (true, Whole, Itself, UNPROVEN),
    (true, Whole, Process, UNPROVEN),
    (true, Whole, Later, UNPROVEN),
    (true, Join("shm"), Itself, "JOINED"),
    // Its maker can hand it on, as it can the secret. Nobody else can read it.
    (true, Join("shm"), Process, "JOINED"),
    (true, Token, Itself, UNKNOWN),
    (true, Token, Process, UNKNOWN),
    (true, Join("shm"), User, CUT),
    (true, Join("shm"), Again, UNKNOWN),
    (true, Join("shm"), Later, NOBODY_THERE),
    (true, Join("tcp"), Itself, UNKNOWN),
    (true, Join("tcp"), Process, UNKNOWN),
    (true, Join("tcp"), User, UNKNOWN),
    (true, Join("tcp"), Later, UNKNOWN),
    (true, Invitation, Process, "a packet of kind 5"),
    (true, Invitation, User, CUT),
    (true, Invitation, Later, NOBODY_THERE),
    (true, Where, User, CUT),
    (true, Where, Later, NOBODY_THERE),
    (false, Join("shm"), Itself, "JOINED"),
    // The kernel says that it is the same user: that is all that is asked for.
    (false, Join("shm"), Process, "JOINED"),
    (false, Join("shm"), User, CUT),
    (false, Join("shm"), Again, UNKNOWN),
    (false, Join("shm"), Later, NOBODY_THERE),
    (
        false,
        Join("tcp"),
        Process,
        "this token is good over shm, and came over tcp",
    ),
    (
        false,
        Join("tcp"),
        User,
        "this token is good over shm, and came over tcp",
    ),
    (false, Join("tcp"), Later, UNKNOWN),
    (false, Invitation, User, CUT),
    // Another process of this user may read it, as the system says.
    (false, Where, Process, "a packet of kind 8"),
    (false, Where, User, CUT),
];

#[test]
fn what_a_listener_hands_out_is_worth_nothing_to_others() {
    let mut victims = [Victim::start(true), Victim::start(false)];
    let mut wrong = Vec::new();
    // Those that start it again are last.
    let (later, before): (Vec<_>, Vec<_>) = AT_LISTENERS
        .into_iter()
        .partition(|(_, _, who, _)| *who == Later);
    runtime().block_on(async {
        // Pipes to each, which lends and is read: it has an exchange.
        let mut honest = Vec::new();
        let mut is_read = true;
        for victim in &victims {
            let context = context(victim.asks);
            let pipe = soon("a pipe", context.connect(&victim.pipes))
                .await
                .unwrap();
            echoes(&pipe).await;
            let read = pipe.route().channels.iter();
            is_read &= read
                .filter(|channel| channel.name == "cma")
                .all(|cma| cma.carried.bytes() > 0);
            honest.push((context, pipe));
        }
        for (asks, what, who, expected) in before {
            if matches!((what, who), (Where, Process)) && !is_read {
                println!("skipped: no process reads another's memory here");
                continue;
            }
            let victim = &victims[usize::from(!asks)];
            let got = tokio::task::block_in_place(|| attempt(victim, what, who, None));
            judge(&mut wrong, (asks, what, who), got, expected);
        }
        // Nobody who was there has noticed anything.
        for (_, pipe) in &honest {
            echoes(pipe).await;
        }
    });
    let held: Vec<_> = later
        .iter()
        .map(|(asks, ..)| Member::of(&victims[usize::from(!asks)]))
        .collect();
    victims.iter_mut().for_each(Victim::starts_again);
    for ((asks, what, who, expected), member) in later.into_iter().zip(held) {
        let victim = &victims[usize::from(!asks)];
        let got = attempt(victim, what, who, Some(member));
        judge(&mut wrong, (asks, what, who), got, expected);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

async fn echoes(pipe: &Pipe) {
    let tensor = Tensor::from(vec![7u8; 3 << 20]);
    pipe.send(Message::new("m").tensor(tensor)).unwrap();
    let echo = soon("an echo", pipe.read()).await.unwrap();
    assert_eq!(echo.tensors[0].tensor.byte_len(), 3 << 20);
}

fn judge(wrong: &mut Vec<String>, row: (bool, What, Who), got: Option<String>, expected: &str) {
    let Some(got) = got else { return };
    println!("{row:?}: {got}");
    if !expected.split('|').any(|expected| got.contains(expected)) {
        wrong.push(format!("{row:?}: {got}, not {expected}"));
    }
}

/// What somebody gets who replays this of a member's: a new one's, or one's of before.
fn attempt(victim: &Victim, what: What, who: Who, member: Option<Member>) -> Option<String> {
    let exchange = format!("exchange://{}", victim.exchange);
    let packet = |kind: u8, to: &[u8]| [&[kind], &b"tple\x02"[..], to].concat();
    match what {
        Invitation => return replayed(who, &exchange, &packet(1, &[9; 16])),
        Where => return replayed(who, &exchange, &packet(7, &victim.process)),
        Whole | Join(_) | Token => {}
    }
    let member = member.unwrap_or_else(|| Member::of(victim));
    let side = format!("shm://{}", member.address);
    match what {
        Join("shm") => replayed(who, &side, &member.joins()),
        Token => replayed(who, &side, &member.joins_by(None)),
        Join(_) => replayed(who, &victim.pipes, &member.joins()),
        _ => replayed(who, &victim.pipes, &member.said),
    }
}

/// STAY of one pipe on another, and on its own.
#[test]
fn that_a_pipe_stays_is_said_by_its_own_connector() {
    let victim = Victim::start(true);
    let (mut one, mut other) = (Member::of(&victim), Member::of(&victim));
    let proof = |member: &Member| {
        let made = member.handshake.as_ref().unwrap();
        Some(made.stay(&member.token))
    };
    let own = one.stay(proof(&one));
    for stay in [own.clone(), other.stay(None)] {
        let mut third = Member::of(&victim);
        third.raw.send(&stay);
        assert!(!third.is_open(), "it is another pipe's, or nobody's");
    }
    one.raw.send(&own);
    assert!(one.is_open());
    other.raw.send(&other.stay(proof(&other)));
    assert!(other.is_open());
}

/// What calls give away.
#[test]
fn a_reference_is_worth_nothing_to_other_connections_and_to_an_owner_that_was_started_again() {
    const FETCH: u8 = 15;
    const FAILURE: u8 = 4;
    const NO_REFERENCE: u8 = 10;
    let mut victim = Victim::start(false);
    let third = Victim::start(false);
    runtime().block_on(async {
        let context = context(false);
        let connection = Connection::connect_with(&context, &*victim.calls)
            .await
            .unwrap();
        let client = KeeperClient::on(&connection).await.unwrap();
        let at_third = KeeperClient::connect_with(&context, &*third.calls)
            .await
            .unwrap();
        let kept = soon("a reference", client.keep(7)).await.unwrap();
        // By the numbers of calls, of which there are few.
        let url = victim.calls.clone();
        let thief = tokio::task::spawn_blocking(move || {
            let mut raw = Raw::open(&url);
            for call in 0..20u64 {
                let mut fetch = vec![FETCH, 12, 0, 0];
                fetch.extend(call.to_le_bytes());
                fetch.extend([&call.to_le_bytes()[..], &[0; 4]].concat());
                raw.send(&message(&fetch, &[], b""));
                let reply = raw.frame_of(MESSAGE).body;
                let at = 4 + u32::from_le_bytes([reply[0], reply[1], reply[2], reply[3]]) as usize;
                let (kind, code) = (reply[at], reply[at + 3]);
                assert_eq!((kind, code), (FAILURE, NO_REFERENCE), "call {call}");
            }
        });
        thief.await.unwrap();
        assert_eq!(soon("a copy", kept.fetch()).await.unwrap(), 7);
        // What is meant for a third is good once, and of this owner.
        let shared = [(); 2].map(|()| kept.share());
        let [one, other] = shared.map(|shared| async { soon("shared", shared).await.unwrap() });
        let (one, other) = (one.await, other.await);
        assert_eq!(soon("7", at_third.open(one.clone())).await.unwrap(), 7);
        let error = soon("an error", at_third.open(one)).await.unwrap_err();
        assert!(error.to_string().contains("was claimed"), "{error}");
        tokio::task::block_in_place(|| victim.starts_again());
        let error = soon("an error", at_third.open(other)).await.unwrap_err();
        assert!(error.to_string().contains("was claimed"), "{error}");
    });
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
