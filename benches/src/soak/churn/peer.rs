//! The process that is called.

use std::future::pending;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use tensorpipe::Context;
use tensorpipe_rpc::Server;
use tensorpipe_rpc::rendezvous::Rendezvous;

use super::road::{self, Road};
use super::service::{Control, ControlService, EverythingService, Hand, words};
use super::{Addresses, Busy, CALLER, PeerOrders, REPLICAS, RoadAddresses, SERVER, State};
use crate::peer::{Greeting, greet, orders};
use crate::soak::dice::Dice;
use crate::soak::residue::Holdings;

/// Serves until stdin ends. This is what `tp-bench churn-peer` does.
///
/// # Errors
/// When it cannot serve; the parent was told so.
pub(crate) fn play() -> Result<()> {
    let orders: PeerOrders = orders()?;
    let served = orders.runtime.build()?.block_on(serve(&orders));
    if let Err(error) = &served {
        greet(&Greeting::Failed(format!("{error:#}")))?;
    }
    served
}

async fn serve(orders: &PeerOrders) -> Result<()> {
    let mut stands = Vec::new();
    for (road, caller) in road::ALL.into_iter().zip(&orders.callers) {
        stands.push(Stand::open(road, caller, orders.largest).await?);
    }
    let roads = stands.iter().map(Stand::addresses).collect();
    let control = Server::builder()
        .context(&Road::Tcp.context()?)
        .service(ControlService::new(House(Arc::new(stands))))
        .listen(Road::Tcp.url("control"))
        .await?;
    let addresses = Addresses {
        control: control.url().to_string(),
        roads,
    };
    greet(&Greeting::Ready(serde_json::to_string(&addresses)?))?;
    pending().await
}

/// What is served over one road.
struct Stand {
    context: Context,
    rendezvous: Rendezvous,
    main: Server,
    replicas: Vec<Server>,
}

impl Stand {
    async fn open(road: Road, caller: &str, largest: u64) -> Result<Self> {
        let context = road.context()?;
        let rendezvous = Rendezvous::builder(SERVER)
            .context(&context)
            .peer(CALLER, caller)
            .build()?;
        let hand = Hand {
            context: context.clone(),
            rendezvous: rendezvous.clone(),
            largest,
        };
        let builder = || {
            Server::builder()
                .context(&context)
                .service(EverythingService::new(hand.clone()))
        };
        let main = builder()
            .service(rendezvous.service())
            .listen(road.url("main"))
            .await?;
        let mut replicas = Vec::new();
        for number in 0..REPLICAS {
            let listening = builder().listen(road.url(&format!("replica-{number}")));
            replicas.push(listening.await.context("a replica")?);
        }
        Ok(Self {
            context,
            rendezvous,
            main,
            replicas,
        })
    }

    fn addresses(&self) -> RoadAddresses {
        let replicas = self.replicas.iter();
        RoadAddresses {
            main: self.main.url().to_string(),
            replicas: replicas.map(|one| one.url().to_string()).collect(),
        }
    }

    fn busy(&self) -> Busy {
        let servers = || self.replicas.iter().chain([&self.main]);
        Busy {
            pooled: super::watch::pooled(&self.context),
            references: servers().map(|one| one.references() as u64).sum(),
            calls: servers().map(|one| one.calls_under_way() as u64).sum(),
            rendezvous: super::watch::waiting(&self.rendezvous),
        }
    }
}

/// All roads.
#[derive(Clone)]
struct House(Arc<Vec<Stand>>);

impl Control for House {
    async fn state(&self, trim: bool) -> Result<State, String> {
        let (mut busy, mut kept) = (Busy::default(), 0);
        for stand in &*self.0 {
            if trim {
                stand.context.pool().trim(0);
            }
            busy += stand.busy();
            kept += super::watch::kept(&stand.context);
        }
        let held = Holdings::now().map_err(words)?;
        let descriptors = held.descriptors();
        Ok(State {
            busy,
            held,
            descriptors,
            kept,
            heap: crate::memory::in_use(),
        })
    }

    async fn cut(&self, road: u64, chance: u64) -> bool {
        let mut dice = Dice::new(chance);
        let Some(stand) = self.0.get(road as usize) else {
            return false;
        };
        let pipes: Vec<_> = stand.replicas.iter().flat_map(Server::pipes).collect();
        if pipes.is_empty() {
            return false;
        }
        let cut = &pipes[dice.below(pipes.len() as u64) as usize];
        // Whether it ends in good order or not is the same to whoever calls over it.
        let _ = cut.close().await;
        true
    }
}
