//! The caller's end of a road: what stays, and the connections that come and go.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tensorpipe_rpc::rendezvous::Rendezvous;
use tensorpipe_rpc::{Backoff, Connection, ReplicaState, Replicas, Server};

use super::road::Road;
use super::service::{EverythingClient, EverythingService, Hand};
use super::{Busy, CALLER, RoadAddresses, SERVER, watch};

/// What stays.
pub(super) struct Site {
    pub(super) road: Road,
    pub(super) hand: Hand,
    /// Where the caller's values are received from.
    server: Server,
    /// The next step at the rendezvous.
    steps: AtomicU64,
}

impl Site {
    pub(super) async fn open(road: Road, largest: u64) -> Result<Self> {
        let context = road.context()?;
        let rendezvous = Rendezvous::builder(CALLER).context(&context).build()?;
        let server = Server::builder()
            .context(&context)
            .service(rendezvous.service())
            .listen(road.url("caller"))
            .await?;
        Ok(Self {
            road,
            hand: Hand {
                context,
                rendezvous,
                largest,
            },
            server,
            steps: AtomicU64::new(0),
        })
    }

    pub(super) fn url(&self) -> String {
        self.server.url().to_string()
    }

    pub(super) fn step(&self) -> u64 {
        self.steps.fetch_add(1, Ordering::Relaxed)
    }

    /// From now on values come from there. Said again it would close the connection that they come over, which stays.
    pub(super) fn meet(&self, there: &RoadAddresses) -> Result<()> {
        Ok(self.hand.rendezvous.add_peer(SERVER, &there.main)?)
    }

    /// Connects.
    pub(super) async fn visit(self: &Arc<Self>, there: &RoadAddresses) -> Result<Visit> {
        let connection = Connection::builder()
            .context(&self.hand.context)
            .service(EverythingService::new(self.hand.clone()))
            .connect(&there.main)
            .await?;
        let replicas = Replicas::builder()
            .context(&self.hand.context)
            .urls(&there.replicas)
            .backoff(Backoff {
                first: Duration::from_millis(5),
                longest: Duration::from_millis(50),
                ..Backoff::default()
            })
            .connect()
            .await?;
        Ok(Visit {
            site: self.clone(),
            client: EverythingClient::on(&connection).await?,
            surviving: EverythingClient::on(&replicas).await?,
            connection,
            replicas,
        })
    }
}

/// The connections of a road.
#[derive(Clone)]
pub(super) struct Visit {
    pub(super) site: Arc<Site>,
    connection: Connection,
    /// Calls over the one connection, which lives.
    pub(super) client: EverythingClient,
    replicas: Replicas,
    /// Calls over replicas, whose pipes are cut.
    pub(super) surviving: EverythingClient,
}

impl Visit {
    pub(super) fn busy(&self) -> Busy {
        let replicas = self.replicas.status();
        let surviving: usize = replicas.iter().map(|one| one.calls_under_way).sum();
        let calls = self.connection.calls_under_way() + surviving;
        Busy {
            pooled: watch::pooled(&self.site.hand.context),
            references: (self.connection.references() + self.site.server.references()) as u64,
            calls: (calls + self.site.server.calls_under_way()) as u64,
            rendezvous: watch::waiting(&self.site.hand.rendezvous),
        }
    }

    /// Waits until the replicas whose pipes were cut are there again.
    pub(super) async fn everybody_is_there(&self) -> Result<()> {
        let end = Instant::now() + watch::PATIENCE;
        loop {
            let status = self.replicas.status();
            if status.iter().all(|one| one.state == ReplicaState::Live) {
                return Ok(());
            }
            ensure!(
                Instant::now() < end,
                "a replica that lives is not connected to again: {status:?}"
            );
            tokio::time::sleep(watch::LOOK).await;
        }
    }

    /// What each channel was given on this side: `shm + lease`.
    pub(super) fn given(&self) -> impl Iterator<Item = (String, u64)> {
        let road = self.site.road.name();
        let channels = self.connection.route().channels.iter();
        channels.map(move |channel| {
            let name = format!("{road} + {}", channel.name);
            (name, channel.carried.parts())
        })
    }

    pub(super) async fn close(self) -> Result<()> {
        self.replicas.close().await?;
        self.connection.close().await?;
        Ok(())
    }
}
