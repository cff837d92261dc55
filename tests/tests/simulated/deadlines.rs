//! Links stall in the middle of a call, and servers vanish silently. A call ends at most [`LATE`] after its deadline, and acknowledged
//! writes are present. The clock is virtual, so the bound is exact.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{Stream, StreamExt, stream};
use tensorpipe::channels::{MptChannel, Pays, Threshold};
use tensorpipe::testing::{self, Network};
use tensorpipe::{ConnectPolicy, Context, Error, Message, Tensor, Timeouts};
use tensorpipe_rpc::{
    CallError, ConnectError, Connection, Replicas, Server, Streaming, tensor_service,
};
use tensorpipe_tests::{Over, over, pair};
use tokio::time::{Instant, sleep};

use crate::scene::{millis, tensor};

/// A call ends at most so long after its deadline.
const LATE: Duration = Duration::from_millis(10);

const DEADLINE: Duration = Duration::from_millis(2_000);

/// A server has so long to say whether it has a service.
const BIND: Duration = Duration::from_secs(10);

/// Each link's: 256 KiB take so long.
const DELAY: Duration = Duration::from_millis(3);

/// Floats of a tensor that takes some 30 ms each way.
const LARGE: usize = 512 << 10;

#[tensor_service]
trait Book {
    /// Writes a number down.
    async fn append(&self, number: u64);
    #[rpc(idempotent)]
    async fn echo(&self, tensor: Tensor) -> Tensor;
    /// Both ways.
    fn double(&self, numbers: Streaming<u64>) -> impl Stream<Item = u64>;
}

/// What was written, and how many tensors have come whole. A machine that loses its power keeps it.
#[derive(Clone, Default)]
struct Pages(Arc<Mutex<(Vec<u64>, u32)>>);

impl Pages {
    fn numbers(&self) -> Vec<u64> {
        self.0.lock().unwrap().0.clone()
    }

    fn tensors(&self) -> u32 {
        self.0.lock().unwrap().1
    }
}

impl Book for Pages {
    async fn append(&self, number: u64) {
        self.0.lock().unwrap().0.push(number);
    }

    async fn echo(&self, tensor: Tensor) -> Tensor {
        self.0.lock().unwrap().1 += 1;
        tensor
    }

    fn double(&self, numbers: Streaming<u64>) -> impl Stream<Item = u64> {
        numbers.values().map(|number| 2 * number)
    }
}

/// With `mpt` large tensors go over a connection of their own.
fn context(network: &Network, name: &str, way: Way) -> Context {
    let mut context = network.host(name).context();
    if way == Way::Mpt {
        let mpt = MptChannel::new().connections(1).unwrap();
        let threshold = Threshold::new(Pays::From(1 << 20));
        context = context.prefer_channel(mpt).threshold("mpt", threshold);
    }
    context.build().unwrap()
}

async fn serve(network: &Network, name: &str, pages: &Pages, way: Way) -> Server {
    let host = network.host(name);
    let context = context(network, name, way);
    let server = Server::builder().context(&context);
    let server = server.service(BookService::new(pages.clone()));
    server.listen(host.url(1)).await.unwrap()
}

/// What becomes of the links between the client and a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Partition,
    /// Only what the client sends is held up.
    Upward,
    Downward,
    /// The server is gone, and its client's connection half open.
    PowerOff,
}

impl Fault {
    const ALL: [Self; 4] = [
        Self::Partition,
        Self::Upward,
        Self::Downward,
        Self::PowerOff,
    ];

    fn strikes(self, network: &Network, servers: &[&str]) {
        for server in servers {
            if self != Self::Downward {
                network.link("client", server).stall();
            }
            if self != Self::Upward {
                network.link(server, "client").stall();
            }
            if self == Self::PowerOff {
                network.crash(server);
            }
        }
    }
}

fn heal(network: &Network, servers: &[&str]) {
    for server in servers {
        network.heal("client", server);
    }
}

fn delay(network: &Network, servers: &[&str], delay: Duration) {
    for server in servers {
        network.link("client", server).delay(delay);
        network.link(server, "client").delay(delay);
    }
}

/// What calls are made on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Connection,
    Mpt,
    Replicas(&'static [&'static str]),
}

impl Way {
    fn servers(self) -> &'static [&'static str] {
        match self {
            Self::Connection | Self::Mpt => &["server"],
            Self::Replicas(servers) => servers,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Small,
    /// A large tensor, which comes back.
    Large,
    Streams,
}

/// How a call ended: whether with an answer, and else with what.
type Ended = Result<(), CallError>;

/// Makes a call of `client`; number 4, if it is small.
async fn call(client: &BookClient, what: What) -> Ended {
    match what {
        What::Small => client.append(4).await,
        What::Large => client.echo(tensor(LARGE)).await.map(drop),
        What::Streams => {
            let numbers = stream::iter(0u64..).then(async |number| {
                sleep(millis(1)).await;
                number
            });
            let mut doubled = client.double(numbers);
            for number in 0.. {
                match doubled.next().await {
                    Some(Ok(found)) => assert_eq!(found, 2 * number, "acknowledged"),
                    Some(Err(error)) => return Err(error),
                    None => break,
                }
            }
            Ok(())
        }
    }
}

/// A call, and the moment of the fault since it was made.
#[derive(Debug)]
struct Row {
    what: What,
    at: u64,
    /// With these its tensor is on its way at the deadline, to the server or back.
    moving: &'static [Fault],
    /// Tensors that have come whole to the server by then.
    arrived: u32,
    /// All that is missing comes the other way, so that it is answered in spite of this fault.
    but: Option<Fault>,
}

const ROWS: [Row; 5] = [
    Row {
        what: What::Small,
        at: 1,
        moving: &[],
        arrived: 0,
        but: None,
    },
    Row {
        what: What::Small,
        at: 4,
        moving: &[],
        arrived: 0,
        but: Some(Fault::Upward),
    },
    Row {
        what: What::Large,
        at: 15,
        // What is sent to a machine without power is held up by nobody here.
        moving: &[Fault::Partition, Fault::Upward],
        arrived: 0,
        but: None,
    },
    Row {
        what: What::Large,
        at: 45,
        moving: &[Fault::Partition, Fault::Downward, Fault::PowerOff],
        arrived: 1,
        but: Some(Fault::Upward),
    },
    Row {
        what: What::Streams,
        at: 50,
        moving: &[],
        arrived: 0,
        but: None,
    },
];

/// The call of a row meets a fault, which all servers meet.
fn meets(row: &Row, fault: Fault, way: Way) {
    let servers = way.servers();
    testing::run(1, async |network| {
        let pages = Pages::default();
        let mut serving = Vec::new();
        for name in servers {
            serving.push(serve(&network, name, &pages, way).await);
        }
        let context = context(&network, "client", way);
        delay(&network, servers, DELAY);
        let over_replicas = matches!(way, Way::Replicas(_));
        let client = if over_replicas {
            let urls = serving.iter().map(|server| server.url().to_string());
            let replicas = Replicas::builder().urls(urls).context(&context);
            BookClient::on(&replicas.connect().await.unwrap()).await
        } else {
            BookClient::connect_with(&context, serving[0].url()).await
        };
        let client = client.unwrap().with_deadline(DEADLINE);
        for number in 1..=3 {
            client.append(number).await.unwrap();
        }
        if way == Way::Mpt {
            call(&client, What::Large).await.unwrap();
        }
        let before = pages.tensors();
        let begun = Instant::now();
        let strike = async {
            sleep(millis(row.at)).await;
            assert_eq!(pages.tensors() - before, row.arrived);
            fault.strikes(&network, servers);
        };
        let (ended, ()) = tokio::join!(call(&client, row.what), strike);
        let took = begun.elapsed();
        if row.but == Some(fault) {
            return assert!(ended.is_ok() && took < DEADLINE, "{ended:?}");
        }
        let error = ended.unwrap_err();
        // A tensor of `mpt` is on its way until its reader has said that it is there.
        let is_held = way == Way::Mpt && !row.moving.is_empty();
        let moves = is_held || row.moving.contains(&fault);
        let is_typed = matches!(&error, CallError::Deadline { after, moving, .. }
            if *after == DEADLINE && *moving == moves);
        assert!(is_typed, "{error:?}");
        assert!((DEADLINE..=DEADLINE + LATE).contains(&took), "{took:?}");
        heal(&network, servers);
        if fault != Fault::PowerOff {
            // The connection goes on, behind what was held up.
            client.append(5).await.unwrap();
        } else if !over_replicas {
            let gone = client.append(5).await.unwrap_err();
            assert!(matches!(gone, CallError::Connection { .. }), "{gone:?}");
        }
        let written = pages.numbers();
        let mut expected = vec![1, 2, 3];
        // Nobody was told of this one: it may be there.
        expected.extend(written.contains(&4).then_some(4));
        expected.extend((fault != Fault::PowerOff).then_some(5));
        assert_eq!(written, expected);
    });
}

#[test]
fn a_call_that_meets_a_fault_ends_at_its_deadline() {
    for (row, fault) in ROWS
        .iter()
        .flat_map(|row| Fault::ALL.map(|fault| (row, fault)))
    {
        for way in [
            Way::Connection,
            Way::Mpt,
            Way::Replicas(&["server"]),
            Way::Replicas(&["a", "b", "c"]),
        ] {
            // The last one is that which fails.
            println!("{row:?} {fault:?} {way:?}");
            meets(row, fault, way);
        }
    }
}

/// What moves from one server to the next has one deadline for all of that.
#[test]
fn a_call_over_replicas_that_die_one_after_the_other_ends_at_its_deadline() {
    let mut moves = 0;
    for (dies, is_alone) in [(&["a"][..], false), (&["b"], false), (&["a", "b"], true)] {
        moves += testing::run(1, async |network| {
            let way = Way::Replicas(&["a", "b"]);
            let pages = Pages::default();
            let mut urls = Vec::new();
            let mut serving = Vec::new();
            for name in ["a", "b"] {
                serving.push(serve(&network, name, &pages, way).await);
                urls.push(network.host(name).url(1));
            }
            let context = network.host("client").context().build().unwrap();
            let replicas = Replicas::builder().urls(&urls).context(&context);
            let replicas = replicas.connect().await.unwrap();
            let client = BookClient::on(&replicas).await.unwrap();
            let client = client.with_deadline(DEADLINE);
            client.append(1).await.unwrap();
            let (begun, at) = (Instant::now(), network.elapsed());
            // No call arrives, and the client hears of deaths.
            Fault::Upward.strikes(&network, &["a", "b"]);
            let dying = async {
                for name in dies {
                    sleep(millis(600)).await;
                    network.crash(name);
                }
            };
            let (ended, ()) = tokio::join!(client.echo(tensor(3)), dying);
            let took = begun.elapsed();
            let error = ended.unwrap_err();
            let is_typed = match &error {
                CallError::Deadline { .. } => !is_alone,
                CallError::Unavailable { replicas, .. } => is_alone && replicas.len() == 2,
                _ => false,
            };
            assert!(is_typed && error.may_have_run(), "{dies:?}: {error:?}");
            assert!((DEADLINE..=DEADLINE + LATE).contains(&took), "{took:?}");
            if is_alone {
                // Nobody is there: a stream does not wait.
                let begun = Instant::now();
                let ended = call(&client, What::Streams).await;
                assert!(matches!(ended, Err(CallError::Unavailable { .. })));
                assert!(begun.elapsed() <= LATE);
            }
            // What it sends later is the call to another server.
            let trace = network.trace();
            let later = trace.iter().filter(|event| event.at > at + LATE);
            let moves = later.filter(|event| event.what.contains(" client -> "));
            moves.filter(|event| event.what.ends_with("bytes")).count()
        });
    }
    assert!(moves > 0, "nothing has moved");
}

/// A context with a second transport, to which pipes are upgraded.
fn upgrading(network: &Network, name: &str) -> Context {
    let transport = || network.host(name).transport();
    let fast = Over::new("fast", transport()).at_side("server:7");
    let mut timeouts = Timeouts::default();
    timeouts.handshake = DEADLINE;
    // Nobody else ends what the connector bounds.
    timeouts.silence = None;
    if name == "server" {
        (timeouts.handshake, timeouts.greeting) = (6 * BIND, 6 * BIND);
    }
    let context = over(vec![Arc::new(fast), Arc::new(transport())])
        .name(name)
        .timeouts(timeouts);
    context
        .connect_policy(ConnectPolicy::once())
        .build()
        .unwrap()
}

/// Connects, and asks for the service: what the fault has ended, and how long that took.
async fn connect(context: &Context) -> (Result<BookClient, ConnectError>, Duration) {
    let begun = Instant::now();
    let connection = match Connection::connect_with(context, "sim://server:1").await {
        Ok(connection) => connection,
        Err(error) => return (Err(error.into()), begun.elapsed()),
    };
    assert_eq!(connection.route().upgraded_from.as_deref(), Some("sim"));
    let begun = Instant::now();
    let client = BookClient::on(&connection).await;
    (client, begun.elapsed())
}

/// Of an end that connects: those that the fault has held up in the handshake, in the first question, and nowhere.
#[derive(Debug, Default)]
struct HeldUp {
    handshakes: u32,
    questions: u32,
    none: u32,
}

/// A pipe that is upgraded takes three round trips and the first question one more; the fault comes at each millisecond of them.
#[test]
fn a_connection_that_meets_a_fault_ends_at_its_bound_or_heals() {
    for fault in Fault::ALL {
        let mut held_up = HeldUp::default();
        for at in 0..30 {
            // A machine without power does not heal.
            let heals = (fault != Fault::PowerOff).then_some(Some(DEADLINE / 2));
            for heals in [None].into_iter().chain(heals) {
                testing::run(1, async |network| {
                    let pages = Pages::default();
                    let server = Server::builder().context(&upgrading(&network, "server"));
                    let server = server.service(BookService::new(pages.clone()));
                    let server = server.listen("sim://server:1").await.unwrap();
                    let context = upgrading(&network, "client");
                    delay(&network, &["server"], DELAY);
                    let strike = async {
                        sleep(millis(at)).await;
                        fault.strikes(&network, &["server"]);
                        if let Some(heals) = heals {
                            sleep(heals).await;
                            heal(&network, &["server"]);
                        }
                    };
                    let ((connected, took), ()) = tokio::join!(connect(&context), strike);
                    if heals.is_some() {
                        connected.unwrap().append(1).await.unwrap();
                        assert_eq!(pages.numbers(), [1]);
                        return;
                    }
                    let bound = match &connected {
                        Ok(_) => {
                            held_up.none += 1;
                            return;
                        }
                        Err(ConnectError::Pipe(Error::Connect { source, .. }))
                            if matches!(**source, Error::Timeout { .. }) =>
                        {
                            held_up.handshakes += 1;
                            DEADLINE
                        }
                        Err(ConnectError::Call(CallError::Deadline { .. })) => {
                            held_up.questions += 1;
                            BIND
                        }
                        Err(other) => panic!("{fault:?} at {at} ms: {other}"),
                    };
                    assert!((bound..=bound + LATE).contains(&took), "{took:?}");
                    // Half a pipe is no pipe: neither end keeps any of it.
                    drop(connected);
                    heal(&network, &["server"]);
                    sleep(2 * BIND).await;
                    assert_eq!(server.pipes().len(), 0, "{fault:?} at {at} ms");
                });
            }
        }
        println!("{fault:?}: {held_up:?}");
        let HeldUp {
            handshakes,
            questions,
            none,
        } = held_up;
        assert!(
            handshakes > 12 && questions > 2 && none > 2,
            "{fault:?}: {held_up:?}"
        );
    }
}

/// Where `close` says that everything was taken, it is there; where it does not say so in time, that is an error.
#[test]
fn closing_through_a_partition_delivers_everything_or_says_that_it_has_not() {
    for heals in [Some(DEADLINE / 2), None] {
        testing::run(1, async |network| {
            let context = |name| network.host(name).context().build().unwrap();
            let (server, client) = (context("server"), context("client"));
            let (pipe, accepted) = pair(&client, &server, "sim://server:1").await;
            delay(&network, &["server"], DELAY);
            for number in 0..100 {
                let message = Message::new(format!("{number}"));
                let written = pipe.write(message.tensor(tensor(1 << 10)));
                drop(written);
            }
            sleep(millis(1)).await;
            network.partition("client", "server");
            let begun = Instant::now();
            let healing = async {
                if let Some(heals) = heals {
                    sleep(heals).await;
                    heal(&network, &["server"]);
                }
            };
            let reading = async {
                let mut read = 0;
                while let Ok(message) = accepted.read().await {
                    assert_eq!(message.metadata, format!("{read}"));
                    read += 1;
                }
                read
            };
            let closing = async {
                let closed = pipe.close_within(DEADLINE).await;
                let took = begun.elapsed();
                heal(&network, &["server"]);
                (closed, took)
            };
            let ((closed, took), read, ()) = tokio::join!(closing, reading, healing);
            match heals {
                Some(_) => {
                    closed.unwrap();
                    assert_eq!(read, 100);
                    assert!(took < DEADLINE);
                }
                None => {
                    let error = closed.unwrap_err();
                    assert!(matches!(error, Error::Undelivered { .. }), "{error}");
                    assert!((DEADLINE..=DEADLINE + LATE).contains(&took), "{took:?}");
                    assert!(read < 100, "it was delivered");
                }
            }
        });
    }
}
