//! A talk: one end of one pipe, which writes and reads at the same time until the pipe has ended, or it is asked to stop.

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tensorpipe::{Context, Pipe};
use tokio::sync::watch;

use super::book::Book;
use super::dice::Dice;
use super::parcel::{self, Ledger};

/// What every talk over one way has.
#[derive(Clone, Debug)]
pub(super) struct Talk {
    pub(super) way: String,
    /// What should carry its tensors.
    pub(super) channel: Option<&'static str>,
    pub(super) context: Context,
    pub(super) book: Book,
    pub(super) ledger: Ledger,
    pub(super) largest: u64,
    /// True: write no more, and close in good order.
    pub(super) stop: watch::Receiver<bool>,
}

impl Talk {
    /// Talks over `pipe` to its end.
    pub(super) async fn over(self, pipe: Pipe, mut dice: Dice) {
        let _talking = self.book.begin(&self.way);
        self.book.opened(&self.way);
        let (speaking, hearing) = (dice.fork(), dice.fork());
        tokio::join!(self.speak(&pipe, speaking), self.hear(&pipe, hearing));
        if let Some(channel) = self.channel {
            self.book.went(&self.way, channel, pipe.route());
        }
    }

    async fn speak(&self, pipe: &Pipe, mut dice: Dice) {
        let mut under_way = FuturesUnordered::new();
        match parcel::first(&mut dice, &self.context, &self.ledger) {
            Ok(message) => under_way.push(pipe.write(message)),
            Err(misuse) => self.book.fault(format!("{}: {misuse}", self.way)),
        }
        while !*self.stop.borrow() && !pipe.has_ended() {
            match parcel::make(&mut dice, &self.context, &self.ledger, self.largest) {
                // Taken back at once, or awaited with a few others.
                Ok(message) if dice.one_in(24) => pipe.write(message).cancel(),
                Ok(message) => under_way.push(pipe.write(message)),
                Err(misuse) => self.book.fault(format!("{}: {misuse}", self.way)),
            }
            if under_way.len() >= UNDER_WAY
                && let Some(Err(error)) = under_way.next().await
            {
                self.book.ended(&self.way, "write", &error);
            }
            tokio::task::yield_now().await;
        }
        while let Some(written) = under_way.next().await {
            if let Err(error) = written {
                self.book.ended(&self.way, "write", &error);
            }
        }
        if *self.stop.borrow()
            && let Err(error) = pipe.close().await
        {
            self.book.ended(&self.way, "close", &error);
        }
    }

    async fn hear(&self, pipe: &Pipe, mut dice: Dice) {
        // The first message is read, so that every way has carried something.
        let mut chance = u64::MAX;
        loop {
            let incoming = match pipe.read_descriptor().await {
                Ok(incoming) => incoming,
                Err(error) => {
                    self.book.ended(&self.way, "read_descriptor", &error);
                    return;
                }
            };
            match chance {
                0 => incoming.skip(),
                1 => incoming.refuse("not today"),
                // Given up while it is under way.
                2 => drop(incoming.read()),
                _ => match incoming.read().await {
                    Ok(message) => match parcel::check(&message) {
                        Ok(bytes) => self.book.read(&self.way, bytes),
                        Err(wrong) => self.book.fault(format!("{}: {wrong}", self.way)),
                    },
                    Err(error) => self.book.ended(&self.way, "read", &error),
                },
            }
            chance = dice.below(32);
        }
    }
}

/// Writes of one end that are under way at once.
const UNDER_WAY: usize = 4;
