//! Hostile peers of one user or one address occupy every slot for handshakes, again and again. The tests count the effect on an honest
//! client: one of another user or address, and one of the same.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tensorpipe::channels::BasicChannel;
use tensorpipe::transports::{ShmTransport, TcpTransport};
use tensorpipe::{ConnectPolicy, ContextBuilder, Limits, Misuse, Timeouts};
use tensorpipe_rpc::Server;
use tensorpipe_tests::{Child, Double, NOBODY, can_start_by, over, runtime, say, soon};

use super::memory::Account;
use super::raw::{ANSWER, HELLO, Raw, frame, limits, preface, text};
use super::server::{AdderClient, AdderService, Sums};
use super::stream::{Stream, Way};

const PLACES: usize = 8;

/// Connections that one flood keeps.
const KEPT: usize = 4 * PLACES;

/// Longer than any wait here.
const LONG: Duration = Duration::from_secs(300);

/// And those that an honest client makes meanwhile.
const VISITS: usize = 20;

fn builder(way: Way) -> ContextBuilder {
    over(vec![match way {
        Way::Tcp => Arc::new(TcpTransport::new()),
        Way::Shm => Arc::new(ShmTransport::new().any_user()),
    }])
}

/// A channel with a connection of its own, for which its listener waits.
fn waits() -> Double {
    let waits = Double::of(Arc::new(BasicChannel::new())).named(WAITS);
    let waits = waits.at(Vec::new()).with_connections(1);
    let waits = waits.reaching(|_, _| Ok(()));
    waits.opening(|_| Err(Misuse::Other("nobody makes its connection".to_owned()).into()))
}

const WAITS: &str = "waits";

fn way() -> Way {
    let name = std::env::var("TEST_WAY").unwrap();
    let known = Way::ALL.into_iter().find(|way| way.name() == name);
    known.unwrap()
}

/// The victim, which lets every user in.
pub(crate) fn play_host() {
    runtime().block_on(async {
        let mut limits = Limits::default();
        limits.handshakes = PLACES;
        // What frees a place here is no bound on time.
        let mut timeouts = Timeouts::default();
        (timeouts.handshake, timeouts.greeting) = (LONG, LONG);
        let waits = builder(way()).prefer_channel(waits());
        let context = waits.limits(limits).timeouts(timeouts).build().unwrap();
        let server = Server::builder()
            .context(&context)
            .service(AdderService::new(Sums))
            .listen(way().url("origins"))
            .await
            .unwrap();
        say("url", server.url());
        server.wait().await;
    });
}

/// A HELLO of one who offers a channel with connections of its own, and does not make them. It has said all that is asked for, so
/// its handshake goes on.
fn holds(way: Way) -> Vec<u8> {
    let mut body = vec![0];
    body.extend(text(b"stranger"));
    body.extend([0x11; 16]);
    body.extend(limits());
    body.push(1);
    body.extend(text(way.name().as_bytes()));
    body.extend(text(&way.transport().domain()));
    body.push(1);
    body.extend(text(WAITS.as_bytes()));
    // One connection, one device: main memory, of which nothing is said.
    body.extend([1, 1, 0, 0, 0]);
    [preface(), frame(HELLO, &body)].concat()
}

/// The flood: until it is killed.
pub(crate) fn play_flood() {
    let url = std::env::var("TEST_URL").unwrap();
    let from = std::env::var("TEST_FROM").ok();
    let hello = holds(way());
    let mut kept = VecDeque::new();
    let mut answered = 0;
    for number in 0u64.. {
        let stream = match &from {
            Some(from) => Stream::connect_from(&url, from),
            None => Stream::try_connect(&url),
        };
        if let Some(stream) = stream {
            let mut raw = Raw(stream);
            // Every second one says nothing.
            if number.is_multiple_of(2) {
                raw.send(&hello);
                raw.0.set_read_timeout(Duration::from_millis(50));
                let mut found = [0; 17];
                let read = std::io::Read::read_exact(&mut raw.0, &mut found);
                answered += u64::from(read.is_ok() && found[16] == ANSWER);
            }
            kept.push_back(raw);
        }
        if kept.len() > KEPT {
            kept.pop_front();
        }
        if number == 2 * KEPT as u64 {
            say("floods", answered);
        }
    }
}

/// What an honest client counts: calls on a pipe that was there before, and visits, each with a call.
#[derive(Debug)]
struct Counted {
    calls: usize,
    visits: usize,
}

/// During a flood by this program, from that address.
fn during(way: Way, by: &[&str], from: Option<&str>) -> Counted {
    let variables = [("TEST_WAY", way.name())];
    let host = Child::start("host", &variables);
    let url = host.hear("url");
    let account = Account::open(host.id(), &[]);
    account.allow((KEPT as u64) << 16);
    let counted = runtime().block_on(async {
        let context = builder(way).connect_policy(ConnectPolicy::once());
        let context = context.build().unwrap();
        let before = AdderClient::connect_with(&context, &*url).await.unwrap();
        let from = from.map(|from| ("TEST_FROM", from));
        let variables = [("TEST_WAY", way.name()), ("TEST_URL", &*url)];
        let variables: Vec<_> = variables.into_iter().chain(from).collect();
        let flood = Child::start_by(by, "flood", &variables);
        let answered: usize = tokio::task::block_in_place(|| flood.hear("floods"))
            .parse()
            .unwrap();
        assert!(
            answered >= PLACES / 2,
            "{answered}: they have said what they want"
        );
        let mut counted = Counted {
            calls: 0,
            visits: 0,
        };
        for visit in 0..VISITS as u64 {
            let sum = soon("a call", before.add(visit, 1)).await;
            counted.calls += usize::from(sum.unwrap() == visit + 1);
            // Connections of its own are made beside it.
            let context = builder(way).connect_policy(ConnectPolicy::once());
            let context = context.build().unwrap();
            let visitor = soon("a visit", AdderClient::connect_with(&context, &*url)).await;
            match visitor {
                Ok(visitor) => {
                    let sum = soon("a call", visitor.add(visit, 2)).await;
                    counted.visits += usize::from(sum.unwrap() == visit + 2);
                }
                Err(error) => println!("{error}"),
            }
        }
        drop(flood);
        // With those who took them the places are free.
        let context = builder(way).build().unwrap();
        let patient = AdderClient::connect_with(&context, &*url);
        let patient = soon("a visit after it", patient).await.unwrap();
        assert_eq!(soon("a call", patient.add(2, 3)).await.unwrap(), 5);
        counted
    });
    account.check();
    println!("{}: {counted:?} of {VISITS}", way.name());
    assert_eq!(counted.calls, VISITS, "a pipe that is there goes on");
    counted
}

#[test]
fn a_flood_from_one_address_keeps_no_other_out() {
    let counted = during(Way::Tcp, &[], Some("127.0.0.2"));
    assert_eq!(counted.visits, VISITS);
}

#[test]
fn a_flood_of_one_user_keeps_no_other_out() {
    if !nix::unistd::geteuid().is_root() || !can_start_by(&NOBODY) {
        println!("skipped: only root can run a program as another user");
        return;
    }
    let counted = during(Way::Shm, &NOBODY, None);
    assert_eq!(counted.visits, VISITS);
}

/// It takes the places that they would have, and nothing of the pipes that are there.
#[test]
fn a_flood_from_the_same_address_or_user_leaves_open_pipes_alone() {
    std::thread::scope(|scope| {
        for way in Way::ALL {
            scope.spawn(move || {
                // SECURITY.md: visits can be kept out, and need not be.
                during(way, &[], None);
            });
        }
    });
}
