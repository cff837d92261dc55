//! Replays of data that a listener has handed out.

use tensorpipe::{Message, Pipe, Tensor};
use tensorpipe_tests::{runtime, soon};

use super::lent::{Lent, Told};
use super::member::Member;
use super::thief::Who::{self, Again, Itself, Later, Process, User};
use super::thief::replayed;
use super::victim::{Victim, context};

/// What is replayed.
#[derive(Clone, Copy, Debug)]
enum What {
    /// The whole handshake of another connection, with its proof, over this transport.
    Handshake(&'static str),
    /// HELLO to join, which was said to nobody: over shm, for which it is, or over tcp.
    Join(&'static str),
    /// The same with a token alone, as it can be read on the network.
    Token,
    /// To the exchange: an invitation that nobody has given; one of another pipe; a question for a segment that another process was told of,
    /// behind an invitation of its own; and the question of a process that reads memory.
    Invitation,
    Invited,
    Segment,
    Where,
}

use What::{Handshake as Whole, Invitation, Invited, Join, Segment, Token, Where};

const UNKNOWN: &str = "this token is unknown, or was used, or came too late";
const UNPROVEN: &str = "it did not prove";
const NOT_OVER_TCP: &str = "this token is good over shm, and came over tcp";
const NOBODY_THERE: &str = "no connection";
/// Before it has begun, or at once.
const CUT: &str = "no connection|not a byte";
const WELCOME: &str = "a packet of kind 3";
const NONE: &str = "a packet of kind 5";
const HERE: &str = "a packet of kind 8";

/// Of a listener that asks for a token.
const WITH_A_TOKEN: [(What, Who, &str); 29] = [
    (Whole("tcp"), Itself, UNPROVEN),
    (Whole("tcp"), Process, UNPROVEN),
    (Whole("tcp"), User, UNPROVEN),
    (Whole("tcp"), Later, UNPROVEN),
    (Whole("shm"), Itself, UNPROVEN),
    (Whole("shm"), Process, UNPROVEN),
    (Whole("shm"), User, CUT),
    (Whole("shm"), Later, UNPROVEN),
    (Join("shm"), Itself, "JOINED"),
    // Its maker can hand it on, as it can the secret. Nobody else can read it.
    (Join("shm"), Process, "JOINED"),
    (Token, Itself, UNKNOWN),
    (Token, Process, UNKNOWN),
    (Token, User, CUT),
    (Token, Later, NOBODY_THERE),
    (Join("shm"), User, CUT),
    (Join("shm"), Again, UNKNOWN),
    (Join("shm"), Later, NOBODY_THERE),
    (Join("tcp"), Itself, UNKNOWN),
    (Join("tcp"), Process, UNKNOWN),
    (Join("tcp"), User, UNKNOWN),
    (Join("tcp"), Later, UNKNOWN),
    (Invitation, Process, NONE),
    (Invitation, User, CUT),
    // Whoever has read it on the network has not the key of its pipe.
    (Invited, Process, NONE),
    (Invited, User, CUT),
    (Invited, Later, NOBODY_THERE),
    // It says where, and no more: whether it may be read is the system's to say.
    (Where, Process, HERE),
    (Where, User, CUT),
    (Where, Later, NOBODY_THERE),
];

/// And of one that does not.
const WITHOUT: [(What, Who, &str); 21] = [
    (Join("shm"), Itself, "JOINED"),
    // The kernel says that it is the same user: that is all that is asked for.
    (Join("shm"), Process, "JOINED"),
    (Join("shm"), User, CUT),
    (Join("shm"), Again, UNKNOWN),
    (Join("shm"), Later, NOBODY_THERE),
    (Join("tcp"), Itself, NOT_OVER_TCP),
    (Join("tcp"), Process, NOT_OVER_TCP),
    (Join("tcp"), User, NOT_OVER_TCP),
    (Join("tcp"), Later, UNKNOWN),
    (Invitation, Process, NONE),
    (Invitation, User, CUT),
    // As far as anybody can tell, it is the process at the other end of that pipe.
    (Invited, Process, WELCOME),
    // By now that is another one.
    (Invited, Again, NONE),
    (Invited, User, CUT),
    (Invited, Later, NOBODY_THERE),
    (Segment, Process, NONE),
    (Segment, User, CUT),
    (Segment, Later, NOBODY_THERE),
    // Another process of this user may read it, as the system says.
    (Where, Process, HERE),
    (Where, User, CUT),
    (Where, Later, NOBODY_THERE),
];

#[test]
fn what_a_listener_hands_out_is_worth_nothing_to_others() {
    let mut victims = [Victim::start(true), Victim::start(false)];
    let rows = |asks, rows: &'static [_]| rows.iter().map(move |row| (asks, *row));
    let rows = rows(true, &WITH_A_TOKEN).chain(rows(false, &WITHOUT));
    let mut wrong = Vec::new();
    // Those that start it again are last.
    let (later, before): (Vec<_>, Vec<_>) = rows.partition(|(_, (_, who, _))| *who == Later);
    let mut held = Vec::new();
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
        let lent = Lent::by(&victims[1]).await;
        for (asks, (what, who, expected)) in before {
            if matches!((what, who), (Where, Process)) && !is_read {
                println!("skipped: no process reads another's memory here");
                continue;
            }
            let victim = &victims[usize::from(!asks)];
            let handed = Handed::out_by(victim, what, &lent.segment).await;
            let got = tokio::task::block_in_place(|| handed.attempt(victim, what, who));
            judge(&mut wrong, (asks, what, who), got, expected);
        }
        // Nobody who was there has noticed anything.
        for (_, pipe) in &honest {
            echoes(pipe).await;
        }
        for (asks, (what, ..)) in &later {
            let victim = &victims[usize::from(!asks)];
            held.push(Handed::out_by(victim, *what, &lent.segment).await);
        }
    });
    victims.iter_mut().for_each(Victim::starts_again);
    for ((asks, (what, who, expected)), handed) in later.into_iter().zip(held) {
        let victim = &victims[usize::from(!asks)];
        let got = handed.attempt(victim, what, who);
        judge(&mut wrong, (asks, what, who), got, expected);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    victims.iter().for_each(Victim::stays_small);
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

/// What was handed to somebody, to be replayed.
enum Handed {
    /// To a member.
    Member(Box<Member>),
    /// Packets for the exchange.
    Packets(Vec<Vec<u8>>),
}

impl Handed {
    async fn out_by(victim: &Victim, what: What, segment: &[u8]) -> Self {
        let packet = |kind: u8, to: &[u8]| [&[kind], &b"tple\x02"[..], to].concat();
        let hello = |invitation: &[u8]| packet(1, invitation);
        Self::Packets(match what {
            Invitation => vec![hello(&[9; 16])],
            Invited => vec![hello(&Told::by(victim).await)],
            Segment => vec![hello(&Told::by(victim).await), [&[2][..], segment].concat()],
            Where => vec![packet(7, &victim.process)],
            Whole(_) | Join(_) | Token => {
                let member = tokio::task::block_in_place(|| Member::of(victim));
                return Self::Member(Box::new(member));
            }
        })
    }

    /// What somebody gets who replays it.
    fn attempt(&self, victim: &Victim, what: What, who: Who) -> Option<String> {
        let member = match self {
            Self::Packets(packets) => {
                let packets: Vec<_> = packets.iter().map(|packet| &packet[..]).collect();
                let exchange = format!("exchange://{}", victim.exchange);
                if who == Again {
                    replayed(Process, &exchange, &packets);
                    return replayed(Itself, &exchange, &packets);
                }
                return replayed(who, &exchange, &packets);
            }
            Self::Member(member) => member,
        };
        let side = format!("shm://{}", member.address);
        match what {
            Join("shm") => replayed(who, &side, &[&member.joins()]),
            Token => replayed(who, &side, &[&member.joins_by(None)]),
            Join(_) => replayed(who, &victim.pipes, &[&member.joins()]),
            Whole("shm") => replayed(who, &victim.pipes_here, &[&member.said]),
            _ => replayed(who, &victim.pipes, &[&member.said]),
        }
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
    victim.stays_small();
}
