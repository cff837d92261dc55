//! The other end: gives back what it receives, and sends streams when it is told.

use std::future::pending;

use anyhow::{Context as _, Result};
use tensorpipe::{Context, Tensor};
use tensorpipe_rpc::Server;
use tensorpipe_rpc::rendezvous::{RecvError, Rendezvous};

use super::{GO, HERE, Orders, PING, PONG, THERE, streamed};
use crate::cores;
use crate::peer::{Greeting, greet, orders};
use crate::plan::Plan;
use crate::system::ours;

/// Serves until stdin ends. This is what `tp-bench rendezvous-peer` does.
///
/// # Errors
/// When it cannot serve; the parent was told so.
pub(crate) fn play() -> Result<()> {
    let orders: Orders = orders()?;
    if let Some((_, core)) = orders.plan.cores {
        cores::pin(core)?;
    }
    let served = orders.plan.runtime.build()?.block_on(serve(orders));
    if let Err(error) = &served {
        greet(&Greeting::Failed(format!("{error:#}")))?;
    }
    served
}

async fn serve(orders: Orders) -> Result<()> {
    let context = ours::context(&orders.plan)?;
    let rendezvous = Rendezvous::builder(THERE)
        .context(&context)
        .peer(HERE, &orders.here)
        .build()?;
    let server = Server::builder()
        .context(&context)
        .service(rendezvous.service())
        .listen(ours::url(&orders.plan))
        .await?;
    greet(&Greeting::Ready(server.url().to_string()))?;
    let tensor = tensor(&orders.plan, &context)?;
    // A task, so that it is polled where its connections are, on either kind of runtime.
    let answered = tokio::spawn(answer(rendezvous, HERE, tensor)).await?;
    match answered.as_ref().map_err(|error| error.downcast_ref()) {
        // The parent has measured enough, and is about to end this process.
        Err(Some(RecvError::Call { .. } | RecvError::Unreachable { .. })) => pending().await,
        _ => answered,
    }
}

/// The tensor of a stream: the pattern of round 0.
pub(super) fn tensor(plan: &Plan, context: &Context) -> Result<Tensor> {
    let mut tensor = ours::tensor(plan, plan.len()?, context)?;
    ours::fill(&mut tensor, 0)?;
    Ok(tensor)
}

/// Answers whoever has this name, for ever.
pub(super) async fn answer(rendezvous: Rendezvous, peer: &str, tensor: Tensor) -> Result<()> {
    let echo = async {
        for step in 0.. {
            let ping = rendezvous.key_from(peer, PING, step).await?;
            let value = rendezvous.recv_within(&ping, LONG).await?;
            rendezvous.send(&rendezvous.key_to(peer, PONG, step)?, value)?;
        }
        anyhow::Ok(())
    };
    let stream = async {
        for step in 0.. {
            let go = rendezvous.key_from(peer, GO, step).await?;
            let go = rendezvous.recv_within(&go, LONG).await?;
            let count: u64 = go.tensor.item().context("how many")?;
            for number in 0..count {
                let key = rendezvous.key_to(peer, &streamed(number), step)?;
                rendezvous.send_or_wait(&key, &tensor).await?;
            }
        }
        anyhow::Ok(())
    };
    tokio::try_join!(echo, stream)?;
    Ok(())
}

/// Longer than any measurement waits for its next round.
const LONG: std::time::Duration = std::time::Duration::from_secs(3000);
