//! What listeners hand out.

use tensorpipe::{Message, Pipe, Tensor};
use tensorpipe_tests::{runtime, soon};

use super::member::Member;
use super::thief::Who::{self, Again, Itself, Later, Process, User};
use super::thief::replayed;
use super::victim::{Victim, context};

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
