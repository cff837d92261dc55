//! The server under attack: pipes that are echoed, and calls, in a process of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorpipe::{Context, Limits, Message, Tensor, Timeouts};
use tensorpipe_rpc::{Server, tensor_service};
use tensorpipe_tests::{Child, is_sanitized, over, resident, runtime, say, soon};

use super::memory::{self, Account, Purse};
use super::raw::SOON;
use super::stream::Way;

/// The server's bound on handshakes, where a test does not set another.
pub(crate) const HANDSHAKE: Duration = Duration::from_millis(1000);

#[tensor_service]
pub(crate) trait Adder {
    async fn add(&self, a: u64, b: u64) -> u64;
    async fn sum(&self, tensor: Tensor) -> f64;
    async fn echo(&self, tensor: Tensor) -> Tensor;
    /// On a device of which this server has none.
    async fn take(&self, #[tensor(device = "test:9")] tensor: Tensor);
}

pub(crate) struct Sums;

impl Adder for Sums {
    async fn add(&self, a: u64, b: u64) -> u64 {
        a.wrapping_add(b)
    }

    async fn sum(&self, tensor: Tensor) -> f64 {
        tensor.as_slice::<f32>().map_or(f64::NAN, |values| {
            values.iter().map(|v| f64::from(*v)).sum()
        })
    }

    async fn echo(&self, tensor: Tensor) -> Tensor {
        tensor
    }

    async fn take(&self, tensor: Tensor) {
        panic!("it was given a tensor on {}", tensor.device());
    }
}

pub(crate) fn context(timeouts: Timeouts, limits: Limits) -> Context {
    context_over(Way::Tcp, timeouts, limits)
}

pub(crate) fn context_over(way: Way, timeouts: Timeouts, limits: Limits) -> Context {
    let builder = over(vec![way.transport()]).timeouts(timeouts);
    builder.limits(limits).build().unwrap()
}

pub(crate) fn play() {
    let bound = |name| {
        let millis = std::env::var(name).ok();
        millis.map(|millis| Duration::from_millis(millis.parse().unwrap()))
    };
    runtime().block_on(async {
        let mut timeouts = Timeouts::default();
        timeouts.handshake = bound("TEST_HANDSHAKE").unwrap_or(HANDSHAKE);
        timeouts.greeting = bound("TEST_GREETING").unwrap_or(timeouts.greeting);
        let way = std::env::var("TEST_WAY").unwrap_or_default();
        let way = Way::ALL.into_iter().find(|known| known.name() == way);
        let way = way.expect("a way");
        let mut limits = Limits::default();
        let budget = std::env::var("TEST_BUDGET").ok();
        if let Some(budget) = budget.and_then(|bytes| bytes.parse().ok()) {
            limits.receive_budget = budget;
        }
        let context = context_over(way, timeouts, limits);
        let listener = context.listen([way.url("pipes")]).await.unwrap();
        let server = Server::builder()
            .context(&context)
            .service(AdderService::new(Sums))
            .listen(way.url("calls"))
            .await
            .unwrap();
        say("pipes", listener.url());
        say("calls", server.url());
        while let Ok(pipe) = listener.accept().await {
            tokio::spawn(async move {
                loop {
                    match pipe.read().await {
                        Ok(message) => drop(pipe.write(message).await),
                        Err(error) if error.ends_pipe() => break,
                        // A message that was taken back.
                        Err(_) => {}
                    }
                }
            });
        }
    });
}

/// The server, seen from the test.
pub(crate) struct Target {
    account: Arc<Account>,
    child: Child,
    way: Way,
    /// Where pipes are echoed: a URL.
    pub(crate) pipes: String,
    /// Where calls are served.
    pub(crate) calls: String,
}

/// How long [`Target::serves`] waits for an answer before it asks again.
const AGAIN: Duration = Duration::from_secs(2);

/// A server for each way, which is unharmed by this in the end.
pub(crate) fn unharmed(attack: impl Fn(&Target)) {
    for way in Way::ALL {
        let target = Target::start(way);
        attack(&target);
        target.stays_unharmed();
    }
}

impl Target {
    pub(crate) fn start(way: Way) -> Self {
        Self::start_with(way, &[])
    }

    pub(crate) fn start_with(way: Way, variables: &[(&str, &str)]) -> Self {
        let way_and_pages = [&[("TEST_WAY", way.name())], &memory::variables(way)[..]];
        let variables = [&way_and_pages.concat(), variables].concat();
        let child = Child::start("server", &variables);
        let pipes = child.hear("pipes");
        let calls = child.hear("calls");
        let account = Account::open(child.id(), &[&pipes, &calls]);
        Self {
            account,
            child,
            way,
            pipes,
            calls,
        }
    }

    /// What it may grow by.
    pub(crate) fn account(&self) -> &Account {
        &self.account
    }

    /// A context that reaches it.
    pub(crate) fn context(&self) -> Context {
        context_over(self.way, Timeouts::default(), Limits::default())
    }

    /// Always 0 under a sanitizer, which keeps what is freed, and memory of its own.
    pub(crate) fn resident(&self) -> u64 {
        if is_sanitized() {
            return 0;
        }
        resident(self.child.id())
    }

    pub(crate) fn descriptors(&self) -> usize {
        let open = std::fs::read_dir(format!("/proc/{}/fd", self.child.id()));
        open.expect("a running process").count()
    }

    /// Serves a pipe and a call as if nothing had happened.
    pub(crate) fn serves(&self) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let serve = async {
                let context = self.context();
                let pipe = context.connect(&self.pipes).await.unwrap();
                let tensor = Tensor::from_vec(vec![5u8; 300_000], [300_000]).unwrap();
                // The budget may still be others', who have just gone: then a message is not read, and none answers it.
                let answer = loop {
                    let message = Message::new("still there?").tensor(tensor.clone());
                    pipe.send(message).unwrap();
                    let answer = tokio::time::timeout(AGAIN, pipe.read()).await;
                    if let Ok(answer) = answer {
                        break answer.unwrap();
                    }
                };
                assert_eq!(&answer.metadata[..], b"still there?");
                assert_eq!(answer.tensors[0].tensor.as_bytes(), tensor.as_bytes());
                let client = AdderClient::connect_with(&context, &self.calls)
                    .await
                    .unwrap();
                assert_eq!(client.add(2, 3).await.unwrap(), 5);
            };
            soon("the server serves others", serve).await;
        });
    }

    /// The end of every test: it serves, has not complained, and has grown by no more than was paid for.
    pub(crate) fn stays_unharmed(mut self) {
        self.serves();
        assert!(self.child.is_alive());
        let complaints = self.child.complaints();
        assert!(!complaints.contains("panicked"), "{complaints}");
    }

    /// Its peers have sent so many bytes more, in other ways than by [`Raw`](super::raw::Raw).
    pub(crate) fn was_sent(&self, bytes: u64) {
        Purse::at(&self.pipes).pays(bytes as usize);
    }

    /// Waits until it takes at most `limit` bytes more than `before`.
    pub(crate) fn shrinks_to(&self, before: u64, limit: u64, what: &str) {
        let begun = Instant::now();
        loop {
            let grown = self.resident().saturating_sub(before);
            if grown <= limit {
                println!("{what}: {} KiB more", grown >> 10);
                return;
            }
            assert!(
                begun.elapsed() < SOON,
                "{what}: {} KiB more, allowed are {}",
                grown >> 10,
                limit >> 10
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.account.check();
        }
    }
}
