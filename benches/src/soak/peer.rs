//! The process that is killed. To it the survivor never fails, so whatever is not right ends it at once, and the survivor
//! notices.

use anyhow::{Context as _, Result, bail};
use tokio::sync::watch;

use super::PeerOrders;
use super::book::Book;
use super::dice::Dice;
use super::parcel::Ledger;
use super::talk::Talk;
use super::ways;
use crate::peer::{Greeting, greet, orders};

/// Talks until it is killed. This is what `tp-bench soak-peer` does.
///
/// # Errors
/// When it cannot talk, or something is not right.
pub(crate) fn play() -> Result<()> {
    let orders: PeerOrders = orders()?;
    let runtime = orders.runtime.build()?;
    let played = runtime.block_on(talk(orders));
    if let Err(error) = &played {
        // After the greeting nobody listens any more.
        let _ = greet(&Greeting::Failed(format!("{error:#}")));
    }
    played
}

async fn talk(orders: PeerOrders) -> Result<()> {
    let mut dice = Dice::new(orders.seed);
    let book = Book::new();
    let (_never, stop) = watch::channel(false);
    let mut addresses = Vec::new();
    let mut stages = Vec::new();
    for way in ways::all().into_iter().filter(|way| !way.is_within()) {
        let context = way.context()?;
        let listener = way.listen(&context).await?;
        addresses.push((way.name(), listener.url().to_string()));
        let talk = Talk {
            way: way.name(),
            channel: way.channel,
            context,
            book: book.clone(),
            ledger: Ledger::default(),
            largest: orders.largest,
            stop: stop.clone(),
        };
        stages.push((talk, listener));
    }
    greet(&Greeting::Ready(serde_json::to_string(&addresses)?))?;
    for (talk, listener) in stages {
        let theirs = orders.survivor.iter().find(|(name, _)| *name == talk.way);
        let (_, url) = theirs.context("the survivor has not this way")?.clone();
        let connecting = talk.clone();
        let (mut answering, asking) = (dice.fork(), dice.fork());
        tokio::spawn(async move {
            match connecting.context.connect(&url).await {
                Ok(pipe) => connecting.over(pipe, asking).await,
                Err(error) => connecting
                    .book
                    .fault(format!("{}: {error}", connecting.way)),
            }
        });
        tokio::spawn(async move {
            while let Ok(pipe) = listener.accept().await {
                tokio::spawn(talk.clone().over(pipe, answering.fork()));
            }
        });
    }
    watch_over(&book).await
}

/// Ends with the first fault.
async fn watch_over(book: &Book) -> Result<()> {
    loop {
        tokio::time::sleep(LOOK).await;
        if let Some(fault) = book.faults().first() {
            bail!("at the peer: {fault}");
        }
        if let Some(lost) = book.endings().get(LOST) {
            bail!("at the peer: {lost} times the survivor was lost, which lives");
        }
    }
}

const LOOK: std::time::Duration = std::time::Duration::from_millis(20);
/// What a connection that broke is called in the book.
const LOST: &str = "lost";

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tensorpipe::Error;

    use super::*;

    #[tokio::test]
    async fn a_survivor_that_is_lost_is_a_fault() {
        let book = Book::new();
        let (pipe, reason): (Arc<str>, Arc<str>) = (Arc::from("pipe"), Arc::from("gone"));
        book.ended("shm", "read", &Error::Lost { pipe, reason });
        let error = watch_over(&book).await.expect_err("it lives");
        assert!(error.to_string().contains("1 times"), "{error}");
    }
}
