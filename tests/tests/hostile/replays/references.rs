//! Replays of data from calls: references to values, and rendezvous keys of values that somebody is to receive.

use tensorpipe::{Context, Message, Pipe};
use tensorpipe_rpc::{Connection, Remote};
use tensorpipe_tests::{runtime, soon};

use super::calls::{call, method};
use super::memory::story;
use super::thief::Who::{self, Again, Itself, Later, Process, User};
use super::thief::{replayed, unhex};
use super::victim::{Keeper, KeeperClient, KeeperService, Victim, context};

const FETCH: u8 = 15;
const SHARE: u8 = 17;
const CLAIM: u8 = 18;

/// What is said again to an owner of values.
#[derive(Clone, Copy, Debug)]
enum What {
    /// The number of a value, as its holder says it on its own connection.
    Number,
    /// What was shared with a third.
    Shared,
    /// The key of a value that a consumer is to receive, and the receipt for a loan.
    Key,
    Receipt,
}

use What::{Key, Number, Receipt, Shared};

/// Over this transport, and what it gets.
const AT_OWNERS: [(What, Who, &str, &str); 20] = [
    (Number, Itself, "tcp", NO_REFERENCE),
    (Number, Process, "tcp", NO_REFERENCE),
    (Number, User, "tcp", NO_REFERENCE),
    (Number, Process, "shm", NO_REFERENCE),
    (Number, User, "shm", CUT),
    (Number, Later, "tcp", NO_REFERENCE),
    // Whoever has the name has the value, wherever it comes from, and once.
    (Shared, Itself, "tcp", A_REFERENCE),
    (Shared, Process, "tcp", A_REFERENCE),
    (Shared, User, "tcp", A_REFERENCE),
    (Shared, Process, "shm", A_REFERENCE),
    (Shared, User, "shm", CUT),
    (Shared, Again, "tcp", CLAIMED),
    (Shared, Later, "tcp", CLAIMED),
    // Any consumer asks for any key, under any name.
    (Key, Process, "tcp", LENT),
    (Key, User, "tcp", LENT),
    (Key, User, "shm", CUT),
    // It is received once the receipt is there: not by who has no number of a loan, and not another time.
    (Receipt, Process, "tcp", "1 held"),
    (Receipt, User, "tcp", "1 held"),
    (Key, Later, "tcp", RESTARTED),
    (Receipt, Later, "tcp", "1 held"),
];

/// Before it has begun, or at once.
const CUT: &str = "no connection|not a byte";
const NO_REFERENCE: &str = "failure 10: ";
const A_REFERENCE: &str = "a reply of kind 2: 00";
const CLAIMED: &str = "it was claimed";
/// As `Pulled` travels.
const LENT: &str = "a reply of kind 2: 00";
const RESTARTED: &str = "a reply of kind 2: 0104";

/// The header of one that asks about references, and what it says.
fn asks(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind, 12, 0, 0][..], &77u64.to_le_bytes(), body].concat()
}

/// A connection by hand that was given a value, and has shared it.
struct Holder {
    pipe: Pipe,
    number: Vec<u8>,
}

impl Holder {
    async fn of(context: &Context, victim: &Victim) -> Self {
        let pipe = context.connect(&victim.calls).await.unwrap();
        let number = [&77u64.to_le_bytes()[..], &[0; 4]].concat();
        let holder = Self { pipe, number };
        // 7, as a number of one byte.
        let kept = holder.said(call(0, 0, method("keep"), &[7])).await;
        assert_eq!(kept[0], 2, "{kept:?}");
        holder
    }

    async fn said(&self, message: Vec<u8>) -> Vec<u8> {
        self.pipe.send(Message::new(message)).unwrap();
        let reply = soon("a reply", self.pipe.read()).await.unwrap();
        reply.metadata.to_vec()
    }

    /// A name for a third.
    async fn shares(&self) -> Vec<u8> {
        let granted = self.said(asks(SHARE, &self.number)).await;
        assert_eq!(granted[0], 2, "{granted:?}");
        granted[granted.len() - 16..].to_vec()
    }
}

#[test]
fn what_calls_give_away_is_of_one_owner_and_good_once() {
    let mut victim = Victim::start(false);
    let (later, before): (Vec<_>, Vec<_>) = AT_OWNERS
        .into_iter()
        .partition(|(_, who, ..)| *who == Later);
    let mut wrong = Vec::new();
    let mut says = |victim: &Victim, row: (What, Who, &str, &str), message: &[u8]| {
        let (what, who, over, expected) = row;
        let url = match over {
            "shm" => &victim.calls_here,
            _ => &victim.calls,
        };
        let got = replayed(who, &format!("calls+{url}"), &[message]);
        let got = match what {
            Receipt => got.map(|_| format!("{} held", held(victim))),
            _ => got,
        };
        let Some(got) = got else { return };
        println!("{row:?}: {got}");
        if !expected.split('|').any(|expected| got.contains(expected)) {
            wrong.push(format!("{row:?}: {got}"));
        }
    };
    let mut kept = Vec::new();
    runtime().block_on(async {
        let context = context(false);
        let holder = Holder::of(&context, &victim).await;
        let message = async |what| match what {
            Number => asks(FETCH, &holder.number),
            Shared => asks(CLAIM, &holder.shares().await),
            Key => pulls(&victim.key),
            Receipt => receives(&victim.key, 7),
        };
        for row in before {
            let message = message(row.0).await;
            tokio::task::block_in_place(|| says(&victim, row, &message));
        }
        // Its holder has it as ever.
        let fetched = holder.said(asks(FETCH, &holder.number)).await;
        assert_eq!((fetched[0], &fetched[12..]), (2, &[7][..]));
        for row in later {
            let message = match row.0 {
                // The loan's own number, which it was lent under before.
                Receipt => {
                    let lent = replayed(
                        Itself,
                        &format!("calls+{}", victim.calls),
                        &[&pulls(&victim.key)],
                    );
                    receives(&victim.key, loan(&lent.unwrap()))
                }
                what => message(what).await,
            };
            kept.push((row, message));
        }
    });
    victim.starts_again();
    for (row, message) in kept {
        says(&victim, row, &message);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    victim.stays_small();
}

/// Asks for the value of a key.
fn pulls(key: &str) -> Vec<u8> {
    let key = [&[key.len() as u8], key.as_bytes()].concat();
    call(0, 1, method("pull"), &key)
}

/// A receipt for this loan.
fn receives(key: &str, mut loan: u64) -> Vec<u8> {
    let mut body = [&[1, key.len() as u8], key.as_bytes()].concat();
    while loan >= 0x80 {
        body.push(loan as u8 | 0x80);
        loan >>= 7;
    }
    body.push(loan as u8);
    call(0, 1, method("received"), &body)
}

/// The number at the end of what was lent.
fn loan(lent: &str) -> u64 {
    let bytes = unhex(lent.strip_prefix("a reply of kind 2: ").unwrap());
    // Behind that it is lent, the index of its tensor, and that it is dead.
    let bits = bytes.get(3..).unwrap_or_default().iter().rev();
    bits.fold(0, |loan, byte| loan << 7 | u64::from(byte & 0x7f))
}

/// Values that a victim's consumer has not received.
fn held(victim: &Victim) -> u64 {
    runtime().block_on(async {
        let context = context(false);
        let client = KeeperClient::connect_with(&context, &*victim.calls);
        let client = soon("a client", client).await.unwrap();
        soon("a number", client.held()).await.unwrap()
    })
}

#[test]
fn a_reference_for_a_third_is_one_of_this_owner() {
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
        victim.stays_small();
        third.stays_small();
    });
}

/// Numbers are counted: the values of a client that serves its server are those of that connection.
#[test]
fn what_a_client_gives_its_server_is_worth_nothing_to_another() {
    struct Here;

    impl Keeper for Here {
        async fn keep(&self, number: u64) -> Remote<u64> {
            Remote::new(number)
        }

        async fn open(&self, _: tensorpipe_rpc::remote::Shared<u64>) -> Result<u64, String> {
            Err("it opens none".to_owned())
        }

        async fn held(&self) -> u64 {
            0
        }
    }

    // Both ends are here.
    let story = story!();
    story.allow(16 << 20);
    runtime().block_on(async {
        let context = context(false);
        let mut ends = Vec::new();
        for _ in 0..2 {
            let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
            let serves = Connection::builder().context(&context);
            let serves = serves.service(KeeperService::new(Here));
            let (client, server) = tokio::join!(serves.connect(listener.url()), listener.accept());
            ends.push((client.unwrap(), server.unwrap()));
        }
        let number = [&77u64.to_le_bytes()[..], &[0; 4]].concat();
        let [server, another] = [&ends[0].1, &ends[1].1].map(|pipe| Holder {
            pipe: pipe.clone(),
            number: number.clone(),
        });
        let kept = server.said(call(0, 0, method("keep"), &[7])).await;
        assert_eq!(kept[0], 2, "{kept:?}");
        for (holder, expected) in [(&another, 10), (&server, 0)] {
            let fetched = holder.said(asks(FETCH, &number)).await;
            assert_eq!(fetched[3], expected, "{fetched:?}");
        }
    });
}
