//! Clients that visit servers: a bit of everything, several at a time, and what is left of it.

use std::sync::Arc;

use fastrand::Rng;
use futures_util::future::join_all;
use tensorpipe::Context;
use tensorpipe_rpc::{CallError, ConnectError, Connection, Replicas};
use tokio::runtime::Builder;
use tokio::time::{sleep, timeout};

use crate::bounds::{LATE, all_end, holds_nothing, in_time, struck, until};
use crate::errands::{ACTS, Errand, ErrandsClient, ErrandsService, Parcel, act, longest};
use crate::memories::Memories;
use crate::places::{Ground, Life};
use crate::world::{Weather, World};
use crate::{Log, Seen, millis, one_of};

/// A client, on one connection or on replicas.
struct Visitor {
    client: ErrandsClient,
    on: On,
    context: Context,
    memories: Memories,
    /// How many of the [`ACTS`] it performs.
    acts: usize,
}

enum On {
    Connection(Connection),
    /// Where they are.
    Replicas(Replicas, Vec<String>),
}

impl On {
    fn calls_in_flight(&self) -> usize {
        match self {
            Self::Connection(connection) => connection.calls_in_flight(),
            Self::Replicas(replicas, _) => {
                let status = replicas.status();
                status.iter().map(|one| one.calls_in_flight).sum()
            }
        }
    }

    async fn close(&self) -> Result<(), tensorpipe::Error> {
        match self {
            Self::Connection(connection) => connection.close().await,
            Self::Replicas(replicas, _) => replicas.close().await,
        }
    }

    /// Replicas come and go, while others do something else.
    async fn varies(&self, mut rng: Rng) {
        if let Self::Replicas(replicas, all) = self {
            let mut named = all.clone();
            for _ in 0..rng.usize(..4) {
                sleep(millis(rng.u64(..100))).await;
                rng.shuffle(&mut named);
                let many = rng.usize(1..=named.len());
                replicas.set_urls(&named[..many]).unwrap();
            }
            replicas.set_urls(all).unwrap();
        }
    }
}

impl Visitor {
    async fn connect(
        world: &World,
        context: &Context,
        rng: &mut Rng,
    ) -> Result<Self, ConnectError> {
        let within = millis(60_000);
        let memories = Memories::of(context, world.fixture());
        // What is shared and not opened stays for a minute, and some seconds: too long for real time.
        let acts = ACTS.len() - usize::from(world.is_real());
        if rng.u8(..4) == 0 {
            let urls: Vec<_> = world.sites.iter().map(|site| site.front()).collect();
            let replicas = Replicas::builder().context(context).urls(&urls).connect();
            let replicas = in_time("connecting", within, replicas).await?;
            let client = in_time("asking", within, ErrandsClient::on(&replicas)).await?;
            let on = On::Replicas(replicas, urls);
            return Ok(Self {
                client,
                on,
                context: context.clone(),
                memories,
                acts,
            });
        }
        let site = rng.usize(..world.sites.len());
        let connection = Connection::builder()
            .context(context)
            .service(ErrandsService::new(Errand(memories.clone())))
            .connect(world.sites[site].front());
        let connection = in_time("connecting", within, connection).await?;
        let client = in_time("asking", within, ErrandsClient::on(&connection)).await?;
        let on = On::Connection(connection);
        Ok(Self {
            client,
            on,
            context: context.clone(),
            memories,
            acts,
        })
    }

    /// Some acts, several at a time.
    async fn acts(&self, weather: Weather, log: &Log, rng: &mut Rng) {
        let mut tasks = Vec::new();
        for _ in 0..rng.usize(1..8) {
            let (client, memories) = (self.client.clone(), self.memories.clone());
            let (context, acts) = (self.context.clone(), self.acts);
            let (log, mut rng) = (log.clone(), rng.fork());
            tasks.push(tokio::spawn(async move {
                for _ in 0..rng.usize(1..6) {
                    let number = rng.usize(..acts);
                    one_act(
                        number, &client, &context, &memories, weather, &log, &mut rng,
                    )
                    .await;
                }
            }));
        }
        self.on.varies(rng.fork()).await;
        // Nobody waits for what it began.
        if weather >= Weather::Cuts && rng.u8(..8) == 0 {
            sleep(millis(rng.u64(..500))).await;
            let _ = self.on.close().await;
        }
        all_end(tasks).await;
    }

    /// Nothing is under way, and as much fits through as through a new connection.
    async fn is_well(&self, world: &World) {
        let calls = || self.on.calls_in_flight() > 0;
        until("calls are under way", millis(1000), || !calls()).await;
        if let On::Connection(connection) = &self.on {
            let pipe = connection.pipe();
            until("messages are queued", millis(30_000), || {
                pipe.unwritten() == 0
            })
            .await;
            until("a client is referred to", millis(1000), || {
                connection.references() == 0
            })
            .await;
        }
        let weather = world.weather;
        let client = self.client.with_deadline(millis(20_000));
        for bytes in [0, 1 << 10, 100 << 10, 1 << 20] {
            // Until the server has the last word of the answer before, that one takes room.
            if weather > Weather::Calm {
                sleep(millis(200)).await;
            }
            match client.echo(Parcel::of(bytes, &self.memories)).await {
                Ok(_) => {}
                Err(CallError::Deadline { after, .. }) if after < millis(1000) => {
                    assert_eq!(world.limits.longest_call, millis(200));
                }
                // Calls that it had before may still be under way.
                Err(CallError::ShuttingDown) => {
                    assert_eq!(weather, Weather::Deaths);
                    return;
                }
                Err(error) => {
                    let has_ended = match &self.on {
                        On::Connection(connection) => connection.pipe().has_ended(),
                        On::Replicas(replicas, _) => {
                            replicas.status().iter().all(|one| one.route.is_none())
                        }
                    };
                    assert!(
                        weather >= Weather::Stalls && has_ended,
                        "{bytes} bytes: {error}"
                    );
                    return;
                }
            }
        }
    }
}

/// A visit on a runtime of its own, which ends in the middle of it.
async fn visit_for_a_while(world: Arc<World>, context: Context, log: Log, mut rng: Rng) {
    let visit = move || {
        let mut builder = match rng.bool() {
            true => Builder::new_current_thread(),
            false => Builder::new_multi_thread(),
        };
        let runtime = builder.worker_threads(2).enable_all().build().unwrap();
        let ends = millis(rng.u64(..1000));
        let is_abrupt = rng.bool();
        let visit = async {
            if let Ok(visitor) = Visitor::connect(&world, &context, &mut rng).await {
                // To its tasks it is the end of the world.
                visitor.acts(Weather::Deaths, &log, &mut rng).await;
            }
        };
        let _ = runtime.block_on(async { timeout(ends, visit).await });
        match is_abrupt {
            true => runtime.shutdown_background(),
            false => drop(runtime),
        }
        log.count("runtimes ended");
    };
    tokio::task::spawn_blocking(visit).await.unwrap();
}

async fn one_act(
    number: usize,
    client: &ErrandsClient,
    context: &Context,
    memories: &Memories,
    weather: Weather,
    log: &Log,
    rng: &mut Rng,
) {
    let deadline = match weather {
        Weather::Calm => millis(1_000_000),
        _ => millis(one_of(rng, &[3, 100, 2000, 20_000])),
    };
    let (name, id) = (ACTS[number], rng.u16(..));
    log.note(format!("act {id}: {name} within {deadline:?}"));
    let mut client = client.with_deadline(deadline);
    if let Some(map) = memories.map(rng) {
        client = client.with_device_map(map);
    }
    let act = act(number, client, context, memories, rng.fork());
    if rng.u8(..5) == 0 {
        let up_to = one_of(rng, &[2, 50, 500]);
        let _ = timeout(millis(rng.u64(..up_to)), act).await;
        log.note(format!("act {id} is dropped"));
        return log.count("dropped");
    }
    let ended = in_time(name, longest(number, deadline) + LATE, act).await;
    log.note(format!("act {id} ends: {ended:?}"));
    let Err(error) = ended else {
        return log.count("done");
    };
    let kind = error.split([' ', '(', '{']).next().unwrap();
    // Streams and references do not wait for a replica that is new.
    let has_no_replica = kind == "Unavailable" || error.contains("that makes it was not made");
    let may_fail = weather > Weather::Calm || has_no_replica;
    assert!(may_fail, "{name} in calm weather: {error}");
    let never = ["Decode", "Panicked", "Unimplemented", "Denied", "NoPlace"];
    assert!(!never.contains(&kind), "{name}: {error}");
    let is_full = ["Misuse", "OutOfMemory"];
    let is_full = is_full.iter().any(|why| error.contains(why));
    let has_ended = kind == "Connection" && !is_full;
    assert!(weather >= Weather::Stalls || !has_ended, "{name}: {error}");
    log.count(kind);
}

pub(super) async fn story(ground: Ground, seed: u64, seen: Seen) {
    let rng = &mut Rng::with_seed(seed);
    let weather = one_of(rng, &Weather::ALL);
    let log = Log::new(&ground, seen);
    let world = Arc::new(World::new(ground, weather, seed, rng));
    println!(
        "seed {seed}: {weather:?}, {} servers, {} clients",
        world.sites.len(),
        world.clients.len()
    );
    for site in &world.sites {
        world.serve(site, rng).await;
    }
    let contexts = world.clients.iter().map(|name| world.context(name, rng));
    let contexts: Vec<_> = contexts.collect();
    for _ in 0..rng.usize(1..4) {
        let visits = contexts.iter().map(|context| {
            let (world, log, mut rng) = (&world, &log, rng.fork());
            async move {
                if world.is_real() && rng.u8(..4) == 0 {
                    visit_for_a_while(world.clone(), context.clone(), log.clone(), rng).await;
                    return None;
                }
                match Visitor::connect(world, context, &mut rng).await {
                    Ok(visitor) => {
                        visitor.acts(weather, log, &mut rng).await;
                        Some(visitor)
                    }
                    Err(error) => {
                        assert!(weather > Weather::Calm, "{error}");
                        log.count("not connected");
                        None
                    }
                }
            }
        });
        let visits = join_all(visits);
        let visitors = struck(world.strikes(rng.fork()), visits).await;
        world.clears(rng).await;
        let visitors: Vec<_> = visitors.into_iter().flatten().collect();
        for site in &world.sites {
            let at_rest = || {
                site.with(|server, _| {
                    let queued = server.pipes().iter().any(|pipe| pipe.unwritten() > 0);
                    server.calls_in_flight() == 0 && !queued
                })
            };
            until("a server is at work", millis(30_000), || {
                at_rest().unwrap_or(true)
            })
            .await;
        }
        for visitor in &visitors {
            visitor.is_well(&world).await;
        }
        for site in &world.sites {
            let Some(context) = site.with(|_, context| context.clone()) else {
                continue;
            };
            let free = || site.with(|server, _| server.references() == 0);
            until("a server is referred to", millis(71_000), || {
                free() == Some(true)
            })
            .await;
            holds_nothing(&context, millis(1000)).await;
        }
        for context in &contexts {
            holds_nothing(context, millis(1000)).await;
        }
        // Some say goodbye, others are dropped.
        for Visitor { client, on, .. } in visitors {
            drop(client);
            if rng.bool() {
                let bound = world.timeouts.linger + millis(1000);
                let closed = in_time("closing", bound, on.close()).await;
                assert!(closed.is_ok() || weather >= Weather::Stalls, "{closed:?}");
            }
        }
        for site in &world.sites {
            let empty = || site.with(|server, _| server.pipes().is_empty());
            until("a server keeps pipes", millis(60_000), || {
                empty().unwrap_or(true)
            })
            .await;
        }
    }
    world.has_shut_down().await;
    for site in &world.sites {
        if let Some(Life::Here(server, context)) = site.take() {
            in_time("a shutdown", world.shutdown(), server.shutdown()).await;
            holds_nothing(&context, millis(1000)).await;
        }
    }
    for context in &contexts {
        holds_nothing(context, millis(1000)).await;
        let bound = world.timeouts.linger + millis(1000);
        let _ = in_time("closing a context", bound, context.close()).await;
    }
}
