//! The victim: a process that echoes messages, keeps values for its callers, and has a value for a rendezvous consumer.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tensorpipe::channels::{BasicChannel, Channel, CmaChannel, LeaseChannel};
use tensorpipe::{
    ConnectPolicy, Context,
    channels::{Pays, Threshold},
};
use tensorpipe_rpc::rendezvous::{Rendezvous, Value};
use tensorpipe_rpc::{Remote, Server, remote::Shared, tensor_service};
use tensorpipe_tests::{Child, runtime, say};

use super::memory::{Account, with_huge_pages};
use super::thief::{hex, unhex};
use super::{NAME, SECRET};

/// What the honest peers of a story cost a victim: pools and pipes for tensors of 3 MiB.
const HONEST: u64 = 16 << 20;

#[tensor_service]
pub(crate) trait Keeper {
    async fn keep(&self, number: u64) -> Remote<u64>;
    async fn open(&self, shared: Shared<u64>) -> Result<u64, String>;
    /// Values that its consumer has not received.
    async fn held(&self) -> u64;
}

struct Keeps(Context, Rendezvous);

impl Keeper for Keeps {
    async fn keep(&self, number: u64) -> Remote<u64> {
        Remote::new(number)
    }

    async fn open(&self, shared: Shared<u64>) -> Result<u64, String> {
        let opened = shared.open(&self.0).await;
        let number = opened.map_err(|error| error.to_string())?;
        number.fetch().await.map_err(|error| error.to_string())
    }

    async fn held(&self) -> u64 {
        self.1.stats().values as u64
    }
}

pub(super) fn context(asks: bool) -> Context {
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

/// The victim, over both transports.
pub(crate) fn play_victim() {
    runtime().block_on(async {
        let at = |what: &str| std::env::var(format!("TEST_{what}")).unwrap();
        let context = context(std::env::var("TEST_ASKS").is_ok());
        let (pipes, calls) = (at("PIPES"), at("CALLS"));
        let listener = context.listen(pipes.split(',')).await.unwrap();
        let rendezvous = Rendezvous::new("victim").unwrap();
        let key = rendezvous.key_to("consumer", "x", 1).unwrap();
        rendezvous.send(&key, Value::dead()).unwrap();
        let keeps = Keeps(context.clone(), rendezvous.clone());
        let server = Server::builder()
            .context(&context)
            .service(KeeperService::new(keeps))
            .service(rendezvous.service())
            .listen_at(calls.split(','))
            .await
            .unwrap();
        say("pipes", listener.url());
        say("calls", server.url());
        say("key", key);
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

pub(super) struct Victim {
    child: Child,
    account: Arc<Account>,
    pub(super) asks: bool,
    /// Over tcp, and over shm.
    pub(super) pipes: String,
    pub(super) pipes_here: String,
    pub(super) calls: String,
    pub(super) calls_here: String,
    /// Of the value that it has.
    pub(super) key: String,
    pub(super) exchange: String,
    pub(super) process: Vec<u8>,
}

impl Victim {
    pub(super) fn start(asks: bool) -> Self {
        let host = host_of_its_own();
        let tcp = format!("tcp://{host}:0");
        let here = |what| format!("shm://{what} of {host}");
        Self::start_at(asks, [(&tcp, &here("pipes")), (&tcp, &here("calls"))])
    }

    fn start_at(asks: bool, at: [(&str, &str); 2]) -> Self {
        let [pipes, calls] = at.map(|(tcp, here)| format!("{tcp},{here}"));
        let variables = [("TEST_PIPES", &*pipes), ("TEST_CALLS", &calls)];
        let asks_for = [("TEST_ASKS", "yes")];
        let asks_for = &asks_for[..usize::from(asks)];
        let variables = [asks_for, &variables, &with_huge_pages(asks)].concat();
        let child = Child::start("victim", &variables);
        let [pipes_here, calls_here] = at.map(|(_, here)| here.to_owned());
        let (pipes, calls) = (child.hear("pipes"), child.hear("calls"));
        let account = Account::open(child.id(), &[&pipes, &calls]);
        account.allow(HONEST);
        Self {
            account,
            asks,
            pipes,
            pipes_here,
            calls,
            calls_here,
            key: child.hear("key"),
            exchange: child.hear("exchange"),
            process: unhex(&child.hear("process")),
            child,
        }
    }

    /// Its memory has grown by no more than it may.
    pub(super) fn stays_small(&self) {
        self.account.check();
    }

    /// Killed, and started again where it was.
    pub(super) fn starts_again(&mut self) {
        self.stays_small();
        self.child.kill();
        let pipes = (&*self.pipes, &*self.pipes_here);
        let calls = (&*self.calls, &*self.calls_here);
        let again = Self::start_at(self.asks, [pipes, calls]);
        assert_eq!(again.pipes, self.pipes);
        // What was handed out before.
        *self = Self {
            exchange: std::mem::take(&mut self.exchange),
            process: std::mem::take(&mut self.process),
            key: std::mem::take(&mut self.key),
            ..again
        };
    }
}

/// An address of the loopback that nobody else listens at: while a victim is not there, no other test gets its ports.
fn host_of_its_own() -> Ipv4Addr {
    static VICTIMS: AtomicU8 = AtomicU8::new(1);
    let [_, _, a, b] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, a, b, VICTIMS.fetch_add(1, Ordering::Relaxed))
}
