//! What a seed draws: limits, servers and hosts, and what happens to them and to the links between them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use tensorpipe::channels::{
    BasicChannel, Channel, CmaChannel, LeaseChannel, MptChannel, Pays, Threshold,
};
use tensorpipe::conformance::device::Fixture;
use tensorpipe::transports::Transport;
use tensorpipe::{ConnectPolicy, Context, ContextBuilder, Limits, Pool, PoolOptions, Timeouts};
use tensorpipe_rpc::{Server, ServerLimits};
use tensorpipe_test_cuda::Driver;
use tensorpipe_tests::{Child, say};
use tokio::runtime::Builder;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::bounds::{all_end, holds_nothing, in_time, listens};
use crate::errands::{Errand, ErrandsService};
use crate::memories::Memories;
use crate::places::{Gpus, Ground, Life, Real, Site, Wire};
use crate::proxy::{Passes, Proxy};
use crate::{millis, one_of};

/// Where processes of servers say what goes wrong on their devices.
pub(super) static CHILDREN: Mutex<Option<Driver>> = Mutex::new(None);

/// What happens while clients act. Each has what those before it have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Weather {
    Calm,
    /// Limits are small.
    Narrow,
    /// Links stall.
    Stalls,
    /// Connections are cut or closed.
    Cuts,
    /// Servers shut down or die, and come back.
    Deaths,
}

impl Weather {
    pub(super) const ALL: [Self; 5] = [
        Self::Calm,
        Self::Narrow,
        Self::Stalls,
        Self::Cuts,
        Self::Deaths,
    ];

    /// Mostly leaves it as it is.
    fn vary<T: Copy>(self, rng: &mut Rng, field: &mut T, of: &[T]) {
        if self > Self::Calm && rng.u8(..4) == 0 {
            *field = one_of(rng, of);
        }
    }

    fn limits(self, rng: &mut Rng) -> Limits {
        let mut limits = Limits::default();
        self.vary(rng, &mut limits.queued_writes, &[2, 4, 16]);
        self.vary(rng, &mut limits.window_messages, &[1, 2, 8]);
        self.vary(rng, &mut limits.chunk, &[1024, 8 << 10]);
        self.vary(rng, &mut limits.metadata, &[1 << 10, 16 << 10, 2 << 20]);
        self.vary(rng, &mut limits.eager_part, &[0, 100, 4 << 10]);
        self.vary(rng, &mut limits.eager_message, &[0, 1 << 10, 16 << 10]);
        self.vary(rng, &mut limits.window_ahead, &[0, 16 << 10, 1 << 20]);
        self.vary(rng, &mut limits.receive_budget, &[2 << 20, 8 << 20]);
        limits
    }

    fn server_limits(self, rng: &mut Rng) -> ServerLimits {
        let mut limits = ServerLimits::default();
        self.vary(rng, &mut limits.calls, &[2, 8]);
        self.vary(rng, &mut limits.calls_per_connection, &[1, 4]);
        self.vary(rng, &mut limits.references, &[1, 8]);
        self.vary(rng, &mut limits.unread_items, &[0, 16 << 20]);
        self.vary(rng, &mut limits.longest_call, &[millis(200)]);
        limits.drain = one_of(rng, &[millis(10), millis(1000), millis(30_000)]);
        limits
    }
}

pub(super) struct World {
    seed: u64,
    ground: Ground,
    pub(super) weather: Weather,
    pub(super) timeouts: Timeouts,
    pub(super) limits: ServerLimits,
    pub(super) sites: Vec<Site>,
    pub(super) clients: Vec<String>,
    gpus: Option<Gpus>,
    /// Servers that shut down.
    ending: Mutex<Vec<JoinHandle<()>>>,
    mpt: Option<u8>,
    /// Both ends are in one process, and use channels as if they were not.
    as_processes: bool,
}

impl World {
    pub(super) fn new(ground: Ground, weather: Weather, seed: u64, rng: &mut Rng) -> Self {
        let mut timeouts = Timeouts::default();
        weather.vary(rng, &mut timeouts.silence, &[Some(millis(1000))]);
        weather.vary(rng, &mut timeouts.linger, &[millis(500)]);
        let site = |number| {
            let name = format!("server{number}");
            let url = match ground.real().map(|real| real.wire) {
                None => format!("sim://{name}:1"),
                Some(Wire::Shm) => {
                    // Other stories of this process have the same seed.
                    static STORIES: AtomicU64 = AtomicU64::new(0);
                    let story = STORIES.fetch_add(1, Ordering::Relaxed);
                    format!("shm://weather-{}-{story}-{name}", std::process::id())
                }
                Some(Wire::ProxiedTls) => "tls://127.0.0.1:0".to_owned(),
                Some(Wire::Tcp | Wire::Proxied) => "tcp://127.0.0.1:0".to_owned(),
            };
            Site {
                name,
                url: Mutex::new(url),
                life: Mutex::default(),
                proxies: Mutex::default(),
            }
        };
        let world = Self {
            seed,
            weather,
            timeouts,
            limits: weather.server_limits(rng),
            sites: (0..rng.usize(1..3)).map(site).collect(),
            clients: (0..rng.usize(1..4)).map(|n| format!("client{n}")).collect(),
            mpt: (rng.u8(..4) == 0).then(|| rng.u8(1..4)),
            as_processes: rng.u8(..4) > 0,
            gpus: ground
                .real()
                .is_some_and(|real| real.have_gpus)
                .then(Gpus::new),
            ground,
            ending: Mutex::default(),
        };
        if let Ground::Simulated(network) = &world.ground {
            for (from, to) in world.pairs() {
                network.host(&from);
                network.host(&to);
                for link in [network.link(&from, &to), network.link(&to, &from)] {
                    link.delay(millis(one_of(rng, &[0, 1, 5, 40])));
                    link.jitter(millis(one_of(rng, &[0, 0, 3, 20])));
                }
            }
        }
        world
    }

    /// Whether time is real.
    pub(super) fn is_real(&self) -> bool {
        self.ground.real().is_some()
    }

    fn pairs(&self) -> Vec<(String, String)> {
        let of = |client: &String| {
            self.sites
                .iter()
                .map(|site| (client.clone(), site.name.clone()))
                .collect::<Vec<_>>()
        };
        self.clients.iter().flat_map(of).collect()
    }

    /// A context of this host.
    pub(super) fn context(&self, name: &str, rng: &mut Rng) -> Context {
        let real = |transport: Arc<dyn Transport>, rng: &mut Rng| -> ContextBuilder {
            let context = Context::builder().name(name).transports([transport]);
            let basic: Arc<dyn Channel> = Arc::new(BasicChannel::new());
            let cma: Arc<dyn Channel> = Arc::new(CmaChannel::also_within_process());
            let mut pool = PoolOptions::default();
            self.weather.vary(rng, &mut pool.retain, &[0, 1 << 20]);
            self.weather.vary(rng, &mut pool.lendable, &[0, 4 << 20]);
            let context = context.pool(Pool::new(pool));
            let lease = || Arc::new(LeaseChannel::also_within_process()) as _;
            match (self.as_processes, rng.u8(..4)) {
                (_, 0) => context.channels([basic]),
                (false, _) => context,
                // Devices lend where main memory is lent.
                (true, 1) if self.gpus.is_none() => context.channels([cma, basic]),
                (true, 2) => context.channels([lease(), basic]),
                (true, _) => context.channels([lease(), cma, basic]),
            }
        };
        let context = match &self.ground {
            Ground::Simulated(network) => network.host(name).context(),
            Ground::Real(place) => real(place.wire.transport(), rng),
        };
        let mut context = context
            .limits(self.weather.limits(rng))
            .timeouts(self.timeouts.clone())
            .connect_policy(ConnectPolicy::retrying_for(millis(2000)));
        if let Some(connections) = self.mpt {
            let mpt = MptChannel::new().connections(connections).unwrap();
            let threshold = Threshold::new(Pays::From(100 << 10));
            context = context.prefer_channel(mpt).threshold("mpt", threshold);
        }
        if let Some(gpus) = &self.gpus {
            context = context.cuda(&gpus.cuda);
        }
        context.build().unwrap()
    }

    /// How tensors on its devices are written and read.
    pub(super) fn fixture(&self) -> Option<Arc<dyn Fixture>> {
        Some(self.gpus.as_ref()?.streams.clone())
    }

    pub(super) async fn serve(&self, site: &Site, rng: &mut Rng) {
        let is_first = site.proxies.lock().unwrap().is_empty();
        let life = match self.ground {
            Ground::Real(real) if real.are_processes => {
                let number = self.sites.iter().position(|one| one.name == site.name);
                let report = real.have_gpus.then(|| {
                    let mut children = CHILDREN.lock().unwrap();
                    children.get_or_insert_with(Driver::load).report()
                });
                let variables = [
                    ("SEED", self.seed.to_string()),
                    ("LIFE", rng.u64(..).to_string()),
                    ("SITE", number.unwrap().to_string()),
                    ("WIRE", (real.wire as u64).to_string()),
                    ("GPUS", u64::from(real.have_gpus).to_string()),
                    (
                        "TEST_CUDA_REPORT",
                        report.unwrap_or_default().display().to_string(),
                    ),
                    ("URL", site.url()),
                ];
                let start = move || {
                    let variables = variables.each_ref().map(|(name, value)| (*name, &**value));
                    let child = Child::start("server", &variables);
                    let url = child.hear("url");
                    (child, url)
                };
                let (child, url) = tokio::task::spawn_blocking(start).await.unwrap();
                *site.url.lock().unwrap() = url;
                Life::Process(child)
            }
            _ => self.serve_here(site, rng).await,
        };
        *site.life.lock().unwrap() = Some(life);
        if is_first {
            self.before(site, &site.url(), rng).await;
        }
    }

    /// Where clients find who listens at this URL.
    pub(super) async fn before(&self, site: &Site, url: &str, rng: &mut Rng) -> String {
        let wire = self.ground.real().map(|real| real.wire);
        if !wire.is_some_and(Wire::is_proxied) {
            return url.to_owned();
        }
        let proxy = Proxy::before(url, rng.fork()).await;
        let url = proxy.url().to_owned();
        site.proxies.lock().unwrap().push(proxy);
        url
    }

    async fn serve_here(&self, site: &Site, rng: &mut Rng) -> Life {
        let context = self.context(&site.name, rng);
        let memories = Memories::of(&context, self.fixture());
        let listen = async || {
            let server = Server::builder().context(&context);
            let server = server.limits(self.limits.clone());
            let server = server.service(ErrandsService::new(Errand(memories.clone())));
            server.listen(site.url()).await
        };
        let server = listens(listen).await.unwrap();
        *site.url.lock().unwrap() = server.url().to_string();
        Life::Here(server, context)
    }

    /// Waits for the servers that shut down.
    pub(super) async fn has_shut_down(&self) {
        let ending = std::mem::take(&mut *self.ending.lock().unwrap());
        all_end(ending).await;
    }

    /// How long a server may take to shut down.
    pub(super) fn shutdown(&self) -> Duration {
        self.limits.drain + self.timeouts.linger + millis(1000)
    }

    /// Does something every now and then.
    pub(super) async fn strikes(&self, rng: Rng) {
        let most = match self.weather {
            Weather::Calm | Weather::Narrow => 0,
            Weather::Stalls => 2,
            Weather::Cuts => 4,
            Weather::Deaths => 6,
        };
        self.strikes_up_to(most, rng).await;
    }

    /// The same, with links alone.
    pub(super) async fn strikes_links(&self, rng: Rng) {
        let most = match self.weather {
            Weather::Calm | Weather::Narrow => 0,
            Weather::Stalls => 2,
            Weather::Cuts | Weather::Deaths => 3,
        };
        self.strikes_up_to(most, rng).await;
    }

    async fn strikes_up_to(&self, most: u8, mut rng: Rng) {
        let rng = &mut rng;
        loop {
            sleep(millis(rng.u64(1..300))).await;
            let site = &self.sites[rng.usize(..self.sites.len())];
            let (mut from, mut to) = (&*self.clients[rng.usize(..self.clients.len())], &*site.name);
            if rng.bool() {
                (from, to) = (to, from);
            }
            match (rng.u8(..=most), &self.ground) {
                (1, Ground::Simulated(network)) => {
                    network.link(from, to).stall();
                    sleep(millis(rng.u64(1..3000))).await;
                    network.link(from, to).heal();
                }
                (2, Ground::Simulated(network)) => {
                    network.partition(from, to);
                    let up_to = one_of(rng, &[100, 3000, 15_000]);
                    sleep(millis(rng.u64(1..up_to))).await;
                    network.heal(from, to);
                }
                (3, Ground::Simulated(network)) => {
                    let up_to = one_of(rng, &[100, 10_000, 1_000_000]);
                    network.link(from, to).cut_after(rng.u64(..up_to));
                }
                (1 | 2, Ground::Real(real)) if !real.are_processes => {
                    let passes = [Passes::Upward, Passes::Downward, Passes::Nothing];
                    site.lets_pass(one_of(rng, &passes));
                    sleep(millis(rng.u64(1..1500))).await;
                    site.lets_pass(Passes::All);
                }
                (3, Ground::Real(real)) if !real.are_processes => {
                    for proxy in &*site.proxies.lock().unwrap() {
                        proxy.cuts();
                    }
                }
                (1 | 2, Ground::Real(_)) => {
                    let _suspended = site.suspend();
                    sleep(millis(rng.u64(1..1500))).await;
                }
                (4, _) => {
                    let pipes = site.with(|server, _| server.pipes());
                    if let Some(pipe) = rng.choice(pipes.unwrap_or_default()) {
                        tokio::spawn(async move { pipe.close().await });
                    }
                }
                (5 | 6, Ground::Real(real)) if real.are_processes => {
                    drop(site.take());
                    sleep(millis(rng.u64(1..1000))).await;
                    self.serve(site, rng).await;
                }
                (5, _) => {
                    let Some(Life::Here(server, context)) = site.take() else {
                        continue;
                    };
                    let ends = self.shutdown();
                    let ends = tokio::spawn(async move {
                        in_time("a shutdown", ends, server.shutdown()).await;
                        holds_nothing(&context, millis(1000)).await;
                    });
                    self.ending.lock().unwrap().push(ends);
                    sleep(millis(rng.u64(1..1000))).await;
                    self.serve(site, rng).await;
                }
                (6, Ground::Simulated(network)) => {
                    network.crash(&site.name);
                    let dead = site.take();
                    sleep(millis(rng.u64(1..1000))).await;
                    self.serve(site, rng).await;
                    drop(dead);
                }
                _ => {}
            }
        }
    }

    /// The sky clears up.
    pub(super) async fn clears(&self, rng: &mut Rng) {
        self.clears_links();
        for site in &self.sites {
            if site.life.lock().unwrap().is_none() {
                self.serve(site, rng).await;
            }
        }
    }

    pub(super) fn clears_links(&self) {
        for site in &self.sites {
            site.lets_pass(Passes::All);
        }
        if let Ground::Simulated(network) = &self.ground {
            for (from, to) in self.pairs() {
                network.heal(&from, &to);
                network.link(&from, &to).cut_after(u64::MAX);
                network.link(&to, &from).cut_after(u64::MAX);
            }
        }
    }
}

/// The process of a server: draws the same world, and a life of its own.
pub(super) fn serves() {
    let number = |name| std::env::var(name).unwrap().parse::<u64>().unwrap();
    let (seed, rng) = (number("SEED"), &mut Rng::with_seed(number("SEED")));
    let weather = one_of(rng, &Weather::ALL);
    let mut real = Real::processes(number("WIRE"));
    real.have_gpus = number("GPUS") > 0;
    let world = World::new(Ground::Real(real), weather, seed, rng);
    let site = &world.sites[number("SITE") as usize];
    *site.url.lock().unwrap() = std::env::var("URL").unwrap();
    let rng = &mut Rng::with_seed(number("LIFE"));
    let mut builder = match rng.bool() {
        true => Builder::new_current_thread(),
        false => Builder::new_multi_thread(),
    };
    let runtime = builder.worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let _life = world.serve_here(site, rng).await;
        say("url", site.url());
        std::future::pending::<()>().await;
    });
}
