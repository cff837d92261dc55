//! A server that keeps what it is told in order, and a client that tells it numbers, and then a large tensor.

use std::time::{Duration, Instant};

use tensorpipe::channels::{BasicChannel, Channel, MptChannel};
use tensorpipe::conformance::pattern;
use tensorpipe::transports::{TcpTransport, Transport};
use tensorpipe::{ConnectPolicy, Context, Tensor};
use tensorpipe_rpc::{CallError, Connection, Server, tensor_service};
use tensorpipe_tests::{runtime, say};

use std::sync::Arc;

use super::link::SERVER;

#[tensor_service]
trait Book {
    /// Writes a number down.
    async fn append(&self, number: u64);
    /// The sum of a tensor's bytes.
    async fn sum(&self, tensor: Tensor) -> u64;
}

struct Writes;

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
}

/// A small call is over by then, and a large one.
pub(crate) const SMALL: Duration = Duration::from_secs(2);
pub(crate) const LARGE: Duration = Duration::from_secs(8);

const BULK: usize = 16 << 20;

/// Large tensors go over two further connections.
fn context() -> Context {
    let tcp: Arc<dyn Transport> = Arc::new(TcpTransport::new());
    let channels: [Arc<dyn Channel>; 2] = [
        Arc::new(MptChannel::new().connections(2).unwrap()),
        Arc::new(BasicChannel::new()),
    ];
    let context = Context::builder().transports([tcp]).channels(channels);
    let policy = ConnectPolicy::patient(Duration::from_secs(10));
    context.connect_policy(policy).build().unwrap()
}

fn url() -> String {
    format!("tcp://{SERVER}:5000")
}

pub(crate) fn play_server() {
    runtime().block_on(async {
        let server = Server::builder().context(&context());
        let server = server
            .service(BookService::new(Writes))
            .listen(url())
            .await
            .unwrap();
        say("serves", server.url());
        std::future::pending::<()>().await;
    });
}

pub(crate) fn play_client() {
    let seconds = std::env::var("TEST_SECONDS").unwrap().parse().unwrap();
    runtime().block_on(async {
        let connection = Connection::builder()
            .context(&context())
            .connect(url())
            .await;
        let connection = match connection {
            Ok(connection) => connection,
            Err(error) => {
                say("connected", "no");
                return say("ended", error);
            }
        };
        let client = BookClient::on(&connection)
            .await
            .unwrap()
            .with_deadline(SMALL);
        // The further connections are opened by the first large tensor.
        if std::env::var("TEST_WARM").unwrap() == "true" {
            let tensor = Tensor::from_vec(pattern(BULK, 3), [BULK as u64]).unwrap();
            client.with_deadline(LARGE).sum(tensor).await.unwrap();
        }
        say("connected", "yes");
        let begun = Instant::now();
        let mut number = 0;
        let mut excess = Duration::ZERO;
        while begun.elapsed() < Duration::from_secs(seconds) {
            number += 1;
            let called = Instant::now();
            match client.append(number).await {
                Ok(()) => say("acknowledged", number),
                Err(CallError::Deadline { .. }) => say("late", number),
                Err(error) => return say("ended", error),
            }
            excess = excess.max(called.elapsed().saturating_sub(SMALL));
            say("excess", excess.as_millis());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let tensor = Tensor::from_vec(pattern(BULK, 3), [BULK as u64]).unwrap();
        let expected: u64 = pattern(BULK, 3).into_iter().map(u64::from).sum();
        let called = Instant::now();
        match client.with_deadline(LARGE).sum(tensor).await {
            Ok(sum) => {
                assert_eq!(sum, expected);
                say("bulk", "works");
            }
            Err(error) => say("bulk", error),
        }
        let late = called.elapsed().saturating_sub(LARGE);
        say("excess", excess.max(late).as_millis());
        say("alive", "");
    });
}
