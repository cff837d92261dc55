//! The service of `churn`, with one method for each feature of calls, and the workers' acts that use it one after another. Each act ends
//! by itself and checks every result.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use fastrand::Rng;
use futures_util::future::try_join_all;
use futures_util::{Stream, stream};
use tensorpipe::{Context, Tensor};
use tensorpipe_rpc::rendezvous::{Rendezvous, Value};
use tensorpipe_rpc::{CallContext, CallError, Remote, Streaming, tensor_service};

use super::parcel::{Parcel, length, one_in};

/// Every handler checks every byte of the parcels that it gets.
#[tensor_service]
pub(super) trait Everything {
    async fn echo(&self, parcel: Parcel) -> Result<Parcel, String>;
    /// Like `echo`, but idempotent.
    #[rpc(idempotent)]
    async fn again(&self, parcel: Parcel) -> Result<Parcel, String>;
    async fn make(&self, number: u64, bytes: u64, pooled: bool) -> Result<Parcel, String>;
    /// Fails on purpose.
    async fn fail(&self, parcel: Parcel) -> Result<(), String>;
    async fn nap(&self, ms: u64) -> u64;
    /// Returns each row doubled; batched with the rows of other calls.
    #[rpc(batch(max_size = 32, max_wait = "2ms"))]
    async fn double(&self, rows: Tensor) -> Result<Tensor, String>;
    /// Streams `many` random parcels.
    fn pour(&self, seed: u64, many: u64) -> impl Stream<Item = Result<Parcel, String>>;
    /// Takes at most `most` parcels, and returns how many it took.
    async fn sip(&self, parcels: Streaming<Parcel>, most: u64) -> Result<u64, String>;
    fn through(&self, parcels: Streaming<Parcel>) -> impl Stream<Item = Parcel>;
    async fn keep(&self, parcel: Parcel) -> Result<Remote<Parcel>, String>;
    /// The parcel with the next number.
    async fn next(&self, kept: Remote<Parcel>) -> Result<Remote<Parcel>, String>;
    /// Calls its caller, which calls back, to a depth of `depth`. Returns the number of calls.
    async fn back(&self, depth: u32, cx: &CallContext) -> Result<u32, String>;
    /// Receives the caller's value of this step, and sends it back.
    async fn relay(&self, step: u64) -> Result<(), String>;
    /// Finishes the step at the rendezvous.
    async fn finish(&self, step: u64) -> ();
}

/// What acts need in either process.
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
        parcel.check().map_err(words)?;
        Ok(parcel)
    }

    async fn again(&self, parcel: Parcel) -> Result<Parcel, String> {
        self.echo(parcel).await
    }

    async fn make(&self, number: u64, bytes: u64, pooled: bool) -> Result<Parcel, String> {
        Parcel::make(&self.context, number, bytes, pooled).map_err(words)
    }

    async fn fail(&self, parcel: Parcel) -> Result<(), String> {
        self.echo(parcel).await?;
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
        let (hand, mut rng) = (self.clone(), Rng::with_seed(seed));
        let draw = move |_| hand.draw(&mut rng).map_err(words);
        stream::iter((0..many).map(draw))
    }

    async fn sip(&self, mut parcels: Streaming<Parcel>, most: u64) -> Result<u64, String> {
        for taken in 0..most {
            match parcels.next().await {
                Some(parcel) => parcel.map_err(words)?.check().map_err(words)?,
                None => return Ok(taken),
            }
        }
        Ok(most)
    }

    fn through(&self, parcels: Streaming<Parcel>) -> impl Stream<Item = Parcel> {
        parcels.values()
    }

    async fn keep(&self, parcel: Parcel) -> Result<Remote<Parcel>, String> {
        Ok(Remote::new(self.echo(parcel).await?))
    }

    async fn next(&self, kept: Remote<Parcel>) -> Result<Remote<Parcel>, String> {
        let kept = kept.local_value().map_err(words)?;
        kept.check().map_err(words)?;
        let number = kept.number.wrapping_add(1);
        let next = self
            .make(number, kept.len(), number.is_multiple_of(2))
            .await?;
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

impl Hand {
    fn draw(&self, rng: &mut Rng) -> Result<Parcel> {
        Parcel::draw(&self.context, rng, self.largest)
    }
}

/// The names at a rendezvous.
pub(super) const CALLER: &str = "caller";
pub(super) const SERVER: &str = "server";
const PING: &str = "ping";
const PONG: &str = "pong";
const ON_PURPOSE: &str = "on purpose";

/// Performs acts over one transport.
#[derive(Clone)]
pub(super) struct Actor {
    pub(super) hand: Hand,
    /// Calls over one connection, which is never cut.
    pub(super) client: EverythingClient,
    /// Calls over replicas, whose pipes are cut.
    pub(super) surviving: EverythingClient,
}

/// The acts' names, in the order of [`Actor::act`].
pub(super) const ACTS: [&str; 13] = [
    "calls",
    "calls given up",
    "deadlines",
    "errors",
    "batched calls",
    "streams down",
    "streams up",
    "streams both ways",
    "references",
    "promises",
    "calls back",
    "rendezvous",
    "replicas",
];

impl Actor {
    /// Performs act `number`. `step` is the act's own step at the rendezvous.
    pub(super) async fn act(&self, number: usize, step: u64, rng: &mut Rng) -> Result<()> {
        match number {
            0 => self.calls(rng).await,
            1 => self.given_up(rng).await,
            2 => self.deadlines(rng).await,
            3 => self.errors(rng).await,
            4 => self.batched(rng).await,
            5 => self.down(rng).await,
            6 => self.up(rng).await,
            7 => self.both_ways(rng).await,
            8 => self.references(rng).await,
            9 => self.promises(rng).await,
            10 => self.back(rng).await,
            11 => {
                // One time in four the other end does not receive the value.
                let is_met = !one_in(rng, 4);
                self.meet(step, rng, is_met).await
            }
            _ => self.replicas(rng).await,
        }
    }

    async fn calls(&self, rng: &mut Rng) -> Result<()> {
        let mut echoes = Vec::new();
        for _ in 0..=rng.u64(..6) {
            let parcel = self.hand.draw(rng)?;
            echoes.push(async move {
                let echo = self.client.echo(&parcel).await?;
                echo.check_is(parcel.number, parcel.len())
            });
        }
        try_join_all(echoes).await?;
        let (number, bytes) = (rng.u64(..), length(rng, self.hand.largest));
        let made = self.client.make(number, bytes, rng.bool()).await?;
        made.check_is(number, bytes)
    }

    async fn given_up(&self, rng: &mut Rng) -> Result<()> {
        let parcel = self.hand.draw(rng)?;
        let (echo, nap) = (self.client.echo(&parcel), self.client.nap(60_000));
        // Cancels the call at once, or while it is in flight.
        pause(rng, 4).await;
        drop(echo);
        pause(rng, 4).await;
        drop(nap);
        Ok(())
    }

    async fn deadlines(&self, rng: &mut Rng) -> Result<()> {
        let hurried = |ms| self.client.with_deadline(Duration::from_millis(ms));
        match hurried(rng.u64(1..9)).nap(60_000).await {
            Err(CallError::Deadline { .. }) => {}
            other => bail!("a nap of a minute ended within milliseconds: {other:?}"),
        }
        let parcel = self.hand.draw(rng)?;
        match hurried(rng.u64(..4)).echo(&parcel).await {
            Ok(echo) => echo.check(),
            Err(CallError::Deadline { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn errors(&self, rng: &mut Rng) -> Result<()> {
        match self.client.fail(self.hand.draw(rng)?).await {
            Err(CallError::Service(reason)) if reason == ON_PURPOSE => Ok(()),
            other => bail!("a call that fails on purpose: {other:?}"),
        }
    }

    async fn batched(&self, rng: &mut Rng) -> Result<()> {
        let mut doubled = Vec::new();
        for _ in 0..=rng.u64(..6) {
            let (rows, columns) = (rng.u64(1..13), rng.u64(..3) * 100 + 1);
            let first = rng.u64(..1000) as f32;
            let values: Vec<_> = (0..rows * columns).map(|at| first + at as f32).collect();
            let expected: Vec<_> = values.iter().map(|value| 2.0 * value).collect();
            let asked = Tensor::from_vec(values, [rows, columns])?;
            // Cancels a call of a batch. The other calls of the batch must not notice.
            if one_in(rng, 8) {
                drop(self.client.double(&asked));
                continue;
            }
            doubled.push(async move {
                let doubled = self.client.double(&asked).await?;
                ensure!(doubled.shape() == [rows, columns], "{:?}", doubled.shape());
                ensure!(
                    doubled.as_slice::<f32>()? == expected,
                    "other rows than from {first}"
                );
                Ok(())
            });
        }
        try_join_all(doubled).await?;
        Ok(())
    }

    async fn down(&self, rng: &mut Rng) -> Result<()> {
        let (many, seed) = (rng.u64(1..25), rng.u64(..));
        let mut parcels = self.client.pour(seed, many);
        // Draws the same parcels as the other end.
        let mut expected = Rng::with_seed(seed);
        let until = all_or_some(rng, many);
        for _ in 0..until {
            let Some(parcel) = parcels.next().await else {
                bail!("a stream of {many} ended early");
            };
            let (number, bytes) = (expected.u64(..), length(&mut expected, self.hand.largest));
            parcel?.check_is(number, bytes)?;
            if one_in(rng, 12) {
                pause(rng, 30).await;
            }
        }
        if until == many {
            ensure!(parcels.next().await.is_none(), "a stream of {many} goes on");
        }
        Ok(())
    }

    async fn up(&self, rng: &mut Rng) -> Result<()> {
        let (many, hand, mut chance) = (rng.u64(1..25), self.hand.clone(), rng.fork());
        // If an allocation fails, the stream ends early, which the check notices.
        let parcels = stream::iter((0..many).map_while(move |_| hand.draw(&mut chance).ok()));
        let most = all_or_some(rng, many);
        let sip = self.client.sip(parcels, most);
        if one_in(rng, 6) {
            pause(rng, 6).await;
            drop(sip);
            return Ok(());
        }
        let taken = sip.await?;
        ensure!(taken == most, "{taken} of {most} were taken");
        Ok(())
    }

    async fn both_ways(&self, rng: &mut Rng) -> Result<()> {
        let many = rng.u64(1..17);
        let sent = (0..many).map(|_| self.hand.draw(rng));
        let sent = sent.collect::<Result<Vec<_>>>()?;
        let mut came = self.client.through(stream::iter(sent.clone()));
        for parcel in sent.iter().take(all_or_some(rng, many) as usize) {
            let Some(echo) = came.next().await else {
                bail!("a stream there and back ended early");
            };
            echo?.check_is(parcel.number, parcel.len())?;
        }
        Ok(())
    }

    async fn references(&self, rng: &mut Rng) -> Result<()> {
        let parcel = self.hand.draw(rng)?;
        let kept = self.client.keep(&parcel).await?;
        let other = kept.clone();
        drop(kept);
        if one_in(rng, 3) {
            return Ok(());
        }
        let fetched = other.fetch().await?;
        fetched.check_is(parcel.number, parcel.len())?;
        let next = self.client.next(&other).await?;
        drop(other);
        // Starts a fetch and cancels it.
        drop(next.fetch());
        Ok(())
    }

    async fn promises(&self, rng: &mut Rng) -> Result<()> {
        let parcel = self.hand.draw(rng)?;
        let mut last = self.client.keep(&parcel);
        let many = rng.u64(1..13);
        for _ in 0..many {
            last = self.client.next(&last);
        }
        if one_in(rng, 3) {
            pause(rng, 3).await;
            return Ok(());
        }
        let fetched = last.await?.fetch().await?;
        fetched.check_is(parcel.number.wrapping_add(many), parcel.len())
    }

    async fn back(&self, rng: &mut Rng) -> Result<()> {
        let depth = rng.u32(1..9);
        let call = self.client.back(depth);
        if one_in(rng, 6) {
            pause(rng, 2).await;
            return Ok(());
        }
        let deep = call.await?;
        ensure!(deep == depth, "called back {deep} times of {depth}");
        Ok(())
    }

    /// Sends a value to the other process, which sends it back if it `is_met`.
    pub(super) async fn meet(&self, step: u64, rng: &mut Rng, is_met: bool) -> Result<()> {
        let meet = &self.hand.rendezvous;
        let parcel = self.hand.draw(rng)?;
        let forgotten = meet.key_to(SERVER, "forgotten", step)?;
        meet.send(&forgotten, Value::dead())?;
        let ping = meet.key_to(SERVER, PING, step)?;
        if is_met {
            let pong = meet.key_from(SERVER, PONG, step).await?;
            let came = meet.recv(&pong);
            let relay = self.client.relay(step);
            meet.send(&ping, &parcel.tensor)?;
            relay.await?;
            let number = parcel.number;
            let tensor = came.await?.tensor;
            Parcel { number, tensor }.check_is(number, parcel.len())?;
        } else {
            meet.send(&ping, &parcel.tensor)?;
        }
        meet.finish(step);
        self.client.finish(step).await?;
        Ok(())
    }

    /// Calls over replicas, whose pipes are cut now and then. Idempotent calls mostly succeed; other calls may report a lost
    /// connection.
    async fn replicas(&self, rng: &mut Rng) -> Result<()> {
        for _ in 0..=rng.u64(..8) {
            let parcel = self.hand.draw(rng)?;
            let echo = match rng.bool() {
                true => self.surviving.again(&parcel).await,
                false => self.surviving.echo(&parcel).await,
            };
            match echo {
                Ok(echo) => echo.check_is(parcel.number, parcel.len())?,
                Err(CallError::Connection { .. } | CallError::Unavailable { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Returns `many`, or one time in three a smaller number.
fn all_or_some(rng: &mut Rng, many: u64) -> u64 {
    match one_in(rng, 3) {
        true => rng.u64(..many),
        false => many,
    }
}

/// Some milliseconds, or none.
async fn pause(rng: &mut Rng, most: u64) {
    match rng.u64(..=most) {
        0 => {}
        ms => tokio::time::sleep(Duration::from_millis(ms)).await,
    }
}
