//! Servers that record what they receive; a client that sends numbers and then a large tensor; and a client of two servers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorpipe::channels::{BasicChannel, Channel, MptChannel};
use tensorpipe::conformance::pattern;
use tensorpipe::transports::{TcpTransport, Transport};
use tensorpipe::{ConnectPolicy, Context, Tensor, Timeouts};
use tensorpipe_rpc::{
    CallError, Connection, Replicas, Server,
    replicas::{Backoff, ReplicaState},
    tensor_service,
};
use tensorpipe_tests::{Over, runtime, say};

use super::link::SERVER;

#[tensor_service]
trait Book {
    /// Writes a number down.
    async fn append(&self, number: u64);
    /// The sum of a tensor's bytes.
    async fn sum(&self, tensor: Tensor) -> u64;
    /// The server's port.
    #[rpc(idempotent)]
    async fn port(&self) -> u16;
}

struct Writes(u16);

impl Book for Writes {
    async fn append(&self, number: u64) {
        say("wrote", number);
    }

    async fn sum(&self, tensor: Tensor) -> u64 {
        tensor
            .as_bytes()
            .unwrap()
            .iter()
            .map(|byte| u64::from(*byte))
            .sum()
    }

    async fn port(&self) -> u16 {
        self.0
    }
}

/// The servers' ports.
pub(crate) const PORTS: [u16; 2] = [5000, 5001];

/// Where the server's pipes are upgraded.
const SIDE: &str = "10.77.0.2:6000";

/// Far more than a call takes.
pub(crate) const PATIENT: Duration = Duration::from_secs(30);

/// Of the large tensor, and what `mpt` has it in.
const BULK: usize = 16 << 20;
pub(crate) const CHUNKS: u64 = 32;

/// How a variable tells a child of a time, in milliseconds.
fn millis(name: &str) -> Option<Duration> {
    let value = std::env::var(name).ok()?;
    Some(Duration::from_millis(value.parse().unwrap()))
}

/// Whether the variable says so.
fn is_set(name: &str) -> bool {
    std::env::var(name).is_ok_and(|value| value == "true")
}

/// Large tensors go over two further connections; `TEST_ONE`: over the pipe's. `TEST_UPGRADES`: pipes are upgraded to another port.
fn context() -> (Context, Arc<MptChannel>) {
    let mut transports: Vec<Arc<dyn Transport>> = vec![Arc::new(TcpTransport::new())];
    if is_set("TEST_UPGRADES") {
        let other = Over::new("other", TcpTransport::new()).at_side(SIDE);
        transports.insert(0, Arc::new(other));
    }
    let mpt = Arc::new(MptChannel::new().connections(2).unwrap());
    let mut channels: Vec<Arc<dyn Channel>> = vec![mpt.clone(), Arc::new(BasicChannel::new())];
    if is_set("TEST_ONE") {
        channels.remove(0);
    }
    let mut timeouts = Timeouts::default();
    timeouts.silence = millis("TEST_SILENCE").or(timeouts.silence);
    timeouts.handshake = millis("TEST_HANDSHAKE").unwrap_or(timeouts.handshake);
    if millis("TEST_IDLE").is_some() {
        // What keeps the connection alive is that each end asks, and is answered.
        timeouts.blocked = Duration::ZERO;
    }
    let context = Context::builder()
        .transports(transports)
        .channels(channels)
        .connect_policy(ConnectPolicy::retrying_for(timeouts.handshake))
        .timeouts(timeouts);
    (context.build().unwrap(), mpt)
}

fn url(port: u16) -> String {
    format!("tcp://{SERVER}:{port}")
}

pub(crate) fn play_server() {
    runtime().block_on(async {
        let port = std::env::var("TEST_PORT").unwrap().parse().unwrap();
        let server = Server::builder().context(&context().0);
        let server = server
            .service(BookService::new(Writes(port)))
            .listen(url(port))
            .await
            .unwrap();
        say("serves", server.url());
        std::future::pending::<()>().await;
    });
}

/// How much later than its deadline a call has ended, at most.
#[derive(Default)]
struct Excess(Duration);

impl Excess {
    /// Waits for a call's end.
    async fn of<T>(&mut self, deadline: Duration, call: impl IntoFuture<Output = T>) -> T {
        let begun = Instant::now();
        let ended = call.await;
        self.0 = self.0.max(begun.elapsed().saturating_sub(deadline));
        say("excess", self.0.as_millis());
        ended
    }
}

pub(crate) fn play_client() {
    let seconds = std::env::var("TEST_SECONDS").unwrap().parse().unwrap();
    let (small, large) = (millis("TEST_SMALL").unwrap(), millis("TEST_LARGE").unwrap());
    let is_warm = is_set("TEST_WARM");
    runtime().block_on(async {
        let (context, mpt) = context();
        let connect = Connection::builder()
            .context(&context)
            .connect(url(PORTS[0]));
        let mut excess = Excess::default();
        // Both are bounded: one attempt may begin just before the policy's end.
        let connected = match millis("TEST_HANDSHAKE") {
            Some(bound) => excess.of(2 * bound, connect).await,
            None => connect.await,
        };
        let connection = match connected {
            Ok(connection) => connection,
            Err(error) => {
                say("connected", "no");
                return say("ended", error);
            }
        };
        say("upgraded", connection.route().upgraded_from.is_some());
        let mut excess = Excess::default();
        let client = BookClient::on(&connection).await.unwrap();
        let (client, patient) = (client.with_deadline(small), client.with_deadline(large));
        let tensor = || Tensor::from_vec(pattern(BULK, 3), [BULK as u64]).unwrap();
        let expected: u64 = pattern(BULK, 3).into_iter().map(u64::from).sum();
        // The further connections are opened by the first large tensor; both have carried then.
        let (mut usual, mut rounds) = (None, 0);
        while is_warm && (rounds < 2 || mpt.chunks_sent().contains(&0)) {
            rounds += 1;
            let warm = client.with_deadline(PATIENT);
            let begun = Instant::now();
            assert_eq!(warm.sum(tensor()).await.unwrap(), expected);
            usual = Some(begun.elapsed());
        }
        say("connected", "yes");
        tokio::time::sleep(millis("TEST_IDLE").unwrap_or_default()).await;
        let begun = Instant::now();
        let mut number = 0;
        while begun.elapsed() < Duration::from_secs(seconds) {
            number += 1;
            match excess.of(small, client.append(number)).await {
                Ok(()) => say("acknowledged", number),
                Err(CallError::Deadline { .. }) => say("late", number),
                Err(error) => return say("ended", error),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let carried = || mpt.chunks_sent().iter().sum::<u64>();
        let before = carried();
        let begun = Instant::now();
        match excess.of(large, patient.sum(tensor())).await {
            Ok(sum) => {
                assert_eq!(sum, expected);
                say("bulk", "works");
                if let Some(usual) = usual {
                    say("took", begun.elapsed().as_millis());
                    say("usual", usual.as_millis());
                }
            }
            Err(error) => say("bulk", error),
        }
        say("carried", carried() - before);
        // Whatever became of that, the connection goes on.
        number += 1;
        let last = client.with_deadline(PATIENT).append(number);
        match excess.of(PATIENT, last).await {
            Ok(()) => say("acknowledged", number),
            Err(error) => say("ended", error),
        }
    });
}

/// Calls that are made of two servers in bad weather.
const CALLS: u32 = 200;

/// Calls in a row that one answers once the other is out.
const IN_A_ROW: u32 = 20;

/// A client of both servers; `TEST_MEETS` is what they meet.
pub(crate) fn play_replicas() {
    let small = millis("TEST_SMALL").unwrap();
    let meets = std::env::var("TEST_MEETS").unwrap();
    runtime().block_on(async {
        let quick = Backoff {
            first: Duration::from_millis(50),
            longest: Duration::from_millis(500),
            ..Backoff::default()
        };
        let replicas = Replicas::builder()
            .context(&context().0)
            .urls(PORTS.map(url))
            .unanswered(UNANSWERED)
            .backoff(quick)
            .connect()
            .await
            .unwrap();
        let client = BookClient::on(&replicas).await.unwrap();
        let mut calls = Calls {
            client: client.with_deadline(small),
            deadline: small,
            excess: Excess::default(),
        };
        calls.until_both_answer().await;
        say("connected", "yes");
        if meets == ONE_IS_OUT {
            let is_out = || {
                let [_, other] = &replicas.status()[..] else {
                    panic!("two were named");
                };
                other.state != ReplicaState::Live
            };
            let mut in_a_row = 0;
            while in_a_row < IN_A_ROW {
                match calls.one().await {
                    Some(port) if port == PORTS[0] && is_out() => in_a_row += 1,
                    _ => in_a_row = 0,
                }
            }
            say("one", "answers alone");
        } else if meets == ALL_ARE_OUT {
            while calls.one().await.is_some() {}
        } else if meets == ALL_ARE_OUT_OF_LARGE {
            while calls.large().await {}
        } else {
            for _ in 0..CALLS {
                calls.one().await;
            }
        }
        calls.until_both_answer().await;
        say("both", "answer");
    });
}

/// What two servers meet: one or both are out of reach for a while, amid small calls or a large one.
pub(crate) const ONE_IS_OUT: &str = "one is out";
pub(crate) const ALL_ARE_OUT: &str = "all are out";
pub(crate) const ALL_ARE_OUT_OF_LARGE: &str = "all are out, with a large tensor";

/// After so many calls in a row that it does not answer, a server gets no more.
pub(crate) const UNANSWERED: u32 = 3;

struct Calls {
    client: BookClient,
    deadline: Duration,
    excess: Excess,
}

impl Calls {
    /// Who answers one, if somebody does in time.
    async fn one(&mut self) -> Option<u16> {
        let port = self.excess.of(self.deadline, self.client.port()).await;
        let port = self.answer(port)?;
        say("answered", port);
        Some(port)
    }

    /// Whether a large one is answered in time.
    async fn large(&mut self) -> bool {
        let tensor = Tensor::from_vec(pattern(BULK, 3), [BULK as u64]).unwrap();
        let call = self.client.sum(tensor);
        let sum = self.excess.of(self.deadline, call).await;
        self.answer(sum).is_some()
    }

    fn answer<T>(&self, ended: Result<T, CallError>) -> Option<T> {
        match ended {
            Ok(answer) => return Some(answer),
            Err(CallError::Deadline { .. }) => say("late", 1),
            Err(error) => say("ended", error),
        }
        None
    }

    async fn until_both_answer(&mut self) {
        let mut left = PORTS.to_vec();
        while !left.is_empty() {
            let port = self.one().await;
            left.retain(|one| Some(*one) != port);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
