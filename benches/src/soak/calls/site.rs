//! Both ends of churn's calls: the services of each process over a transport, their connections, and their state.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;
use serde::{Deserialize, Serialize};
use tensorpipe::transports::{ShmTransport, TcpTransport, Transport};
use tensorpipe::{
    Context, Pool, PoolOptions,
    channels::{Pays, Threshold},
    device::MemoryKind,
};
use tensorpipe_rpc::rendezvous::Rendezvous;
use tensorpipe_rpc::{
    Connection, Replicas, Server,
    replicas::{Backoff, ReplicaState},
    tensor_service,
};

use crate::host::{Resident, heap_in_use, resident};
use crate::peer::{self, announce};
use crate::plan::Flavor;
use crate::soak::acts::{Actor, CALLER, EverythingClient, EverythingService, Hand, SERVER, words};
use crate::soak::{Holdings, descriptors, holdings, pooled, settled};

/// Transports between processes.
pub(super) const TRANSPORTS: [&str; 2] = ["shm", "tcp"];

/// Instructions for the server process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Orders {
    pub(super) largest: u64,
    pub(super) runtime: Flavor,
    /// Where the caller serves its rendezvous, by transport.
    pub(super) callers: Vec<String>,
}

/// The addresses of the server process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Served {
    pub(super) control: String,
    pub(super) sites: Vec<Urls>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Urls {
    pub(super) main: String,
    replicas: Vec<String>,
}

/// A service with which the caller controls the server process.
#[tensor_service]
pub(super) trait Control {
    /// Returns the process's state and holdings. Pools first give back warm memory, so that memory and mappings can be compared.
    async fn state(&self) -> Result<(Look, Holdings), String>;
    /// Closes a pipe of some replica.
    async fn cut(&self, chance: u64) -> bool;
}

/// The state of one process at one moment.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Look {
    pub(super) memory: Resident,
    pub(super) descriptors: u64,
    /// Bytes that pools keep warm.
    kept: u64,
    /// Bytes of the heap in use, where they are counted.
    pub(super) heap: Option<u64>,
    /// Bytes of pools in use, including loans that another process has not given back. This and the fields below are zero
    /// at rest.
    pub(super) pooled: u64,
    pub(super) references: u64,
    pub(super) calls: u64,
    /// Values that a rendezvous keeps, and tasks that wait at it.
    rendezvous: u64,
}

impl Look {
    /// The state of this process and its connections.
    pub(super) fn here(sites: &[Site], visits: &[Visit]) -> Result<Self> {
        let mut look = Self {
            memory: resident(std::process::id())?,
            descriptors: descriptors(&holdings([])?),
            kept: 0,
            heap: heap_in_use(),
            pooled: 0,
            references: 0,
            calls: 0,
            rendezvous: 0,
        };
        for site in sites {
            let pool = site.hand.context.pool();
            pool.trim(0);
            let stats = pool.stats();
            let used = stats.lendable.outstanding_bytes + stats.lendable.lent_bytes;
            look.kept += stats.retained_bytes + stats.lendable.mapped_bytes.saturating_sub(used);
            look.pooled += pooled(&site.hand.context);
            for server in site.replicas.iter().chain([&site.main]) {
                look.references += server.references() as u64;
                look.calls += server.calls_in_flight() as u64;
            }
            let stats = site.hand.rendezvous.stats();
            look.rendezvous += (stats.values + stats.blocked + stats.waiting) as u64;
        }
        for visit in visits {
            let replicas = visit.replicas.status();
            let surviving: usize = replicas.iter().map(|one| one.calls_in_flight).sum();
            look.references += visit.connection.references() as u64;
            look.calls += (visit.connection.calls_in_flight() + surviving) as u64;
        }
        Ok(look)
    }

    /// Lists everything in flight or held.
    pub(super) fn busy(&self, whose: &str) -> Vec<String> {
        let counts = [
            (self.pooled, "bytes of pools"),
            (self.references, "references"),
            (self.calls, "calls under way"),
            (self.rendezvous, "values and waits at a rendezvous"),
        ];
        let left = counts.into_iter().filter(|(count, _)| *count > 0);
        left.map(|(count, what)| format!("{count} {what} of the {whose}"))
            .collect()
    }

    /// Lowers each memory figure to that of `other`, if it is less.
    pub(super) fn at_most(&mut self, other: &Self) {
        self.memory.anon = self.memory.anon.min(other.memory.anon);
        self.memory.shmem = self.memory.shmem.min(other.memory.shmem);
        self.heap = self.heap.min(other.heap);
    }
}

/// The servers of a process over one transport: the service, a rendezvous, and replicas of the service.
pub(super) struct Site {
    pub(super) transport: &'static str,
    pub(super) hand: Hand,
    main: Server,
    replicas: Vec<Server>,
}

impl Site {
    /// Opens a site. `me` is its name at the rendezvous. Only the server process, which is told the caller's address, has replicas.
    pub(super) async fn open(
        transport: &'static str,
        me: &str,
        caller: Option<&str>,
        largest: u64,
    ) -> Result<Self> {
        let context = context(transport)?;
        let mut rendezvous = Rendezvous::builder(me).context(&context);
        if let Some(url) = caller {
            rendezvous = rendezvous.peer(CALLER, url);
        }
        let hand = Hand {
            rendezvous: rendezvous.build()?,
            context,
            largest,
        };
        let url = |place: &str| match transport {
            "shm" => format!("shm://churn-{}-{place}", std::process::id()),
            _ => "tcp://127.0.0.1:0".to_owned(),
        };
        let builder = || {
            let builder = Server::builder().context(&hand.context);
            builder.service(EverythingService::new(hand.clone()))
        };
        let main = builder().service(hand.rendezvous.service());
        let main = main.listen(url("main")).await?;
        let mut replicas = Vec::new();
        for number in (0..2).filter(|_| caller.is_some()) {
            let replica = builder().listen(url(&format!("replica-{number}")));
            replicas.push(replica.await.context("a replica")?);
        }
        Ok(Self {
            transport,
            hand,
            main,
            replicas,
        })
    }

    pub(super) fn urls(&self) -> Urls {
        let replicas = self.replicas.iter();
        Urls {
            main: self.main.url().to_string(),
            replicas: replicas.map(|one| one.url().to_string()).collect(),
        }
    }

    /// Values come from `there` from now on. Call this once: a second call would close the connection, which must stay.
    pub(super) fn meet(&self, there: &Urls) -> Result<()> {
        Ok(self.hand.rendezvous.add_peer(SERVER, &there.main)?)
    }

    /// Connects.
    pub(super) async fn visit(&self, there: &Urls) -> Result<Visit> {
        let connection = Connection::builder()
            .context(&self.hand.context)
            .service(EverythingService::new(self.hand.clone()))
            .connect(&there.main)
            .await?;
        let backoff = Backoff {
            first: Duration::from_millis(5),
            longest: Duration::from_millis(50),
            ..Backoff::default()
        };
        let replicas = Replicas::builder()
            .context(&self.hand.context)
            .urls(&there.replicas)
            .backoff(backoff)
            .connect()
            .await?;
        let actor = Actor {
            hand: self.hand.clone(),
            client: EverythingClient::on(&connection).await?,
            surviving: EverythingClient::on(&replicas).await?,
        };
        Ok(Visit {
            transport: self.transport,
            actor,
            connection,
            replicas,
        })
    }
}

/// The caller's connections over one transport.
#[derive(Clone)]
pub(super) struct Visit {
    pub(super) transport: &'static str,
    pub(super) actor: Actor,
    connection: Connection,
    replicas: Replicas,
}

impl Visit {
    /// Waits until all replicas whose pipes were cut are connected again.
    pub(super) async fn everybody_is_there(&self) -> Result<()> {
        let missing = settled(async || {
            let mut status = self.replicas.status();
            status.retain(|one| one.state != ReplicaState::Live);
            Ok(status.iter().map(|one| format!("{one:?}")).collect())
        });
        let missing = missing.await?.join(", ");
        ensure!(
            missing.is_empty(),
            "a replica that lives is not connected to again: {missing}"
        );
        Ok(())
    }

    /// What each channel was given on this side: `shm + lease`.
    pub(super) fn given(&self) -> impl Iterator<Item = (String, u64)> {
        let channels = self.connection.route().channels.iter();
        channels.map(|channel| {
            let name = format!("{} + {}", self.transport, channel.name);
            (name, channel.carried.parts())
        })
    }

    pub(super) async fn close(self) -> Result<()> {
        self.replicas.close().await?;
        self.connection.close().await?;
        Ok(())
    }
}

/// A context with one transport, and every channel.
pub(super) fn context(transport: &str) -> Result<Context> {
    let transport: Arc<dyn Transport> = match transport {
        "shm" => Arc::new(ShmTransport::new()),
        _ => Arc::new(TcpTransport::new()),
    };
    let pool = PoolOptions {
        retain: KEPT,
        ..PoolOptions::default()
    };
    let copied = Threshold::new(Pays::From(COPIED)).of(MemoryKind::Heap);
    let builder = Context::builder().transports([transport]);
    let builder = builder.threshold("cma", Threshold::new(Pays::From(READ)));
    let builder = builder.threshold("lease", copied);
    Ok(builder.pool(Pool::new(pool)).build()?)
}

/// From this size the other process reads ordinary memory directly. Smaller tensors are streamed, so both ways are used.
const READ: u64 = 256 << 10;
/// From this size ordinary memory is copied for the other process.
const COPIED: u64 = 512 << 10;
/// Memory that a pool keeps warm between two rests, for ordinary and for lendable memory each. It is little, so that pools also
/// give blocks back under load.
const KEPT: u64 = 16 << 20;

/// The server's process.
#[derive(Clone)]
struct House(Arc<Vec<Site>>);

impl Control for House {
    async fn state(&self) -> Result<(Look, Holdings), String> {
        let look = Look::here(&self.0, &[]).map_err(words)?;
        let held = holdings(self.0.iter().map(|site| &site.hand.context)).map_err(words)?;
        Ok((look, held))
    }

    async fn cut(&self, chance: u64) -> bool {
        let replicas = self.0.iter().flat_map(|site| &site.replicas);
        let pipes: Vec<_> = replicas.flat_map(Server::pipes).collect();
        let Some(cut) = Rng::with_seed(chance).choice(&pipes) else {
            return false;
        };
        // Callers see no difference between an orderly and an abrupt end.
        let _ = cut.close().await;
        true
    }
}

/// Serves until stdin ends. This is what `tp-bench churn-peer` does.
pub(crate) fn play() -> Result<()> {
    peer::play(
        |orders: &Orders| orders.runtime.build(),
        async |orders| {
            let mut sites = Vec::new();
            for (transport, caller) in TRANSPORTS.into_iter().zip(&orders.callers) {
                sites.push(Site::open(transport, SERVER, Some(caller), orders.largest).await?);
            }
            let urls = sites.iter().map(Site::urls).collect();
            let control = Server::builder().context(&context("tcp")?);
            let control = control.service(ControlService::new(House(Arc::new(sites))));
            let control = control.listen("tcp://127.0.0.1:0").await?;
            let served = Served {
                control: control.url().to_string(),
                sites: urls,
            };
            announce(serde_json::to_string(&served)?)?;
            std::future::pending().await
        },
    )
}
