//! What is called: one method for each thing that a call can do. Served at both ends.

use std::time::Duration;

use futures_util::{Stream, stream};
use tensorpipe::{Context, Tensor};
use tensorpipe_rpc::rendezvous::Rendezvous;
use tensorpipe_rpc::{CallContext, Remote, Streaming, tensor_service};

use super::parcel::Parcel;
use super::{CALLER, State};
use crate::soak::dice::Dice;

/// Whoever handles a parcel looks at every byte.
#[tensor_service]
pub(super) trait Everything {
    async fn echo(&self, parcel: Parcel) -> Result<Parcel, String>;
    /// The same, and may be done twice.
    #[rpc(idempotent)]
    async fn again(&self, parcel: Parcel) -> Result<Parcel, String>;
    async fn make(&self, number: u64, bytes: u64, pooled: bool) -> Result<Parcel, String>;
    /// Fails on purpose.
    async fn fail(&self, parcel: Parcel) -> Result<(), String>;
    async fn nap(&self, ms: u64) -> u64;
    /// Twice each row, together with the rows of others.
    #[rpc(batch(max_size = 32, max_wait = "2ms"))]
    async fn double(&self, rows: Tensor) -> Result<Tensor, String>;
    /// So many parcels, of chance.
    fn pour(&self, seed: u64, many: u64) -> impl Stream<Item = Result<Parcel, String>>;
    /// Takes so many parcels at most; how many it has taken.
    async fn sip(&self, parcels: Streaming<Parcel>, most: u64) -> Result<u64, String>;
    fn through(&self, parcels: Streaming<Parcel>) -> impl Stream<Item = Parcel>;
    async fn keep(&self, parcel: Parcel) -> Result<Remote<Parcel>, String>;
    /// The parcel with the next number.
    async fn next(&self, kept: Remote<Parcel>) -> Result<Remote<Parcel>, String>;
    /// Calls its caller, which calls back, so many times deep; how many times.
    async fn back(&self, depth: u32, cx: &CallContext) -> Result<u32, String>;
    /// Receives the caller's value of this step, and sends it back.
    async fn relay(&self, step: u64) -> Result<(), String>;
    /// The step is over.
    async fn finish(&self, step: u64) -> ();
}

/// Of the server's process.
#[tensor_service]
pub(super) trait Control {
    /// `trim`: pools give back what they keep warm, so that memory and mappings can be compared.
    async fn state(&self, trim: bool) -> Result<State, String>;
    /// Closes a pipe of the replicas of a road.
    async fn cut(&self, road: u64, chance: u64) -> bool;
}

/// Who does it.
#[derive(Clone, Debug)]
pub(super) struct Hand {
    pub(super) context: Context,
    pub(super) rendezvous: Rendezvous,
    pub(super) largest: u64,
}

pub(super) fn words(error: impl ToString) -> String {
    error.to_string()
}

impl Everything for Hand {
    async fn echo(&self, parcel: Parcel) -> Result<Parcel, String> {
        parcel.check()?;
        Ok(parcel)
    }

    async fn again(&self, parcel: Parcel) -> Result<Parcel, String> {
        self.echo(parcel).await
    }

    async fn make(&self, number: u64, bytes: u64, pooled: bool) -> Result<Parcel, String> {
        Parcel::make(&self.context, number, bytes, pooled)
    }

    async fn fail(&self, parcel: Parcel) -> Result<(), String> {
        parcel.check()?;
        Err(ON_PURPOSE.to_owned())
    }

    async fn nap(&self, ms: u64) -> u64 {
        tokio::time::sleep(Duration::from_millis(ms)).await;
        ms
    }

    async fn double(&self, mut rows: Tensor) -> Result<Tensor, String> {
        let values = rows.make_mut::<f32>().map_err(words)?;
        values.iter_mut().for_each(|value| *value *= 2.0);
        Ok(rows)
    }

    fn pour(&self, seed: u64, many: u64) -> impl Stream<Item = Result<Parcel, String>> {
        let (hand, mut dice) = (self.clone(), Dice::new(seed));
        let draw = move |_| Parcel::draw(&hand.context, &mut dice, hand.largest);
        stream::iter((0..many).map(draw))
    }

    async fn sip(&self, mut parcels: Streaming<Parcel>, most: u64) -> Result<u64, String> {
        for taken in 0..most {
            match parcels.next().await {
                Some(parcel) => parcel.map_err(|error| error.to_string())?.check()?,
                None => return Ok(taken),
            };
        }
        Ok(most)
    }

    fn through(&self, parcels: Streaming<Parcel>) -> impl Stream<Item = Parcel> {
        parcels.values()
    }

    async fn keep(&self, parcel: Parcel) -> Result<Remote<Parcel>, String> {
        parcel.check()?;
        Ok(Remote::new(parcel))
    }

    async fn next(&self, kept: Remote<Parcel>) -> Result<Remote<Parcel>, String> {
        let kept = kept.here().map_err(words)?;
        let bytes = kept.check()?;
        let number = kept.number.wrapping_add(1);
        let next = Parcel::make(&self.context, number, bytes, number.is_multiple_of(2))?;
        Ok(Remote::new(next))
    }

    async fn back(&self, depth: u32, cx: &CallContext) -> Result<u32, String> {
        if depth == 0 {
            return Ok(0);
        }
        let caller = cx.connection().ok_or("the caller is gone")?;
        let caller = EverythingClient::on(&caller).await.map_err(words)?;
        Ok(1 + caller.back(depth - 1).await.map_err(words)?)
    }

    async fn relay(&self, step: u64) -> Result<(), String> {
        let meet = &self.rendezvous;
        let ping = meet.key_from(CALLER, PING, step).await.map_err(words)?;
        let value = meet.recv(&ping).await.map_err(words)?;
        let pong = meet.key_to(CALLER, PONG, step).map_err(words)?;
        meet.send(&pong, value).map_err(words)
    }

    async fn finish(&self, step: u64) {
        self.rendezvous.finish(step);
    }
}

/// The value that a method of the server's receives, by its producer's name.
pub(super) const PING: &str = "ping";
pub(super) const PONG: &str = "pong";
pub(super) const ON_PURPOSE: &str = "on purpose";
