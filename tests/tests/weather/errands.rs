//! The service of these runs, with a method for each feature of calls, and what clients do with it.

use std::time::Duration;

use fastrand::Rng;
use futures_util::{Stream, StreamExt, stream};
use serde::{Deserialize, Serialize};
use tensorpipe::{Context, DType, Tensor};
use tensorpipe_rpc::{CallContext, CallError, Remote, Streaming, tensor_service};
use tokio::time::sleep;

use super::memories::Memories;
use crate::millis;

/// Bytes in the body and in a tensor, which all follow from the number.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Parcel {
    number: u64,
    words: Vec<u8>,
    tensor: Tensor,
}

/// What a parcel is, without its memory.
#[derive(Clone, Copy, Debug)]
struct Form {
    number: u64,
    words: usize,
    bytes: usize,
}

impl Parcel {
    fn form(&self) -> Form {
        Form {
            number: self.number,
            words: self.words.len(),
            bytes: self.tensor.byte_len(),
        }
    }

    /// In memory of each kind.
    fn new(number: u64, words: usize, bytes: usize, memories: &Memories) -> Self {
        let (byte, kind) = (number as u8, number / 256);
        let bytes = vec![byte; bytes];
        let tensor = match kind % 3 {
            0 => memories.pooled(&bytes),
            1 => memories.on_device(kind as usize / 3, &bytes),
            _ => Tensor::from(bytes),
        };
        let words = vec![byte; words];
        Self {
            number,
            words,
            tensor,
        }
    }

    pub(super) fn of(bytes: usize, memories: &Memories) -> Self {
        Self::new(7, 0, bytes, memories)
    }

    /// Mostly small.
    pub(super) fn draw(rng: &mut Rng, memories: &Memories) -> Self {
        let length = |rng: &mut Rng, kinds: usize| {
            let up_to = [0, 100, 4 << 10, 100 << 10, 1 << 20][rng.usize(..kinds)];
            rng.usize(..=up_to)
        };
        // Some bodies are large enough to be decoded on another thread.
        let words = match rng.u8(..200) {
            0 => rng.usize(1 << 20..2 << 20),
            _ => length(rng, 3),
        };
        Self::new(rng.u64(..), words, length(rng, 5), memories)
    }

    /// Those of a stream.
    fn drawn(seed: u64, many: u64, memories: &Memories) -> impl Iterator<Item = Self> + use<> {
        let memories = memories.clone();
        let mut rng = Rng::with_seed(seed);
        (0..many).map(move |_| Self::draw(&mut rng, &memories))
    }

    fn next(&self, memories: &Memories) -> Self {
        let number = self.number.wrapping_add(1);
        Self::new(number, self.words.len(), self.tensor.byte_len(), memories)
    }
}

#[tensor_service]
pub(super) trait Errands {
    async fn echo(&self, parcel: Parcel) -> Parcel;
    /// Fails on purpose.
    async fn fail(&self, parcel: Parcel) -> Result<(), Parcel>;
    /// Keeps its argument for so many milliseconds.
    async fn nap(&self, millis: u64, parcel: Parcel) -> Parcel;
    /// Keeps its place for so many milliseconds, whatever happens to the call.
    async fn insist(&self, millis: u64) -> ();
    #[rpc(batch(max_size = 4, max_wait = "2ms"))]
    async fn joined(&self, rows: Tensor) -> Tensor;
    fn pour(&self, seed: u64, many: u64, millis: u64) -> impl Stream<Item = Parcel>;
    /// Takes at most so many of a stream.
    async fn sip(&self, parcels: Streaming<Parcel>, most: u64) -> Result<u64, String>;
    fn through(&self, parcels: Streaming<Parcel>) -> impl Stream<Item = Parcel>;
    async fn keep(&self, parcel: Parcel) -> Remote<Parcel>;
    async fn next(&self, kept: Remote<Parcel>, millis: u64) -> Remote<Parcel>;
    /// Calls its caller, which calls back.
    async fn back(&self, depth: u32, parcel: Parcel, cx: &CallContext) -> Result<u32, String>;
}

#[derive(Clone)]
pub(super) struct Errand(pub(super) Memories);

async fn paused(parcel: Parcel, pause: u64) -> Parcel {
    if pause > 0 {
        sleep(millis(pause)).await;
    }
    parcel
}

fn words(error: impl ToString) -> String {
    error.to_string()
}

impl Errands for Errand {
    async fn echo(&self, parcel: Parcel) -> Parcel {
        parcel
    }

    async fn fail(&self, parcel: Parcel) -> Result<(), Parcel> {
        Err(parcel)
    }

    async fn nap(&self, millis_: u64, parcel: Parcel) -> Parcel {
        sleep(millis(millis_)).await;
        parcel
    }

    async fn insist(&self, millis_: u64) {
        let _ = tokio::spawn(sleep(millis(millis_))).await;
    }

    async fn joined(&self, rows: Tensor) -> Tensor {
        sleep(millis(1)).await;
        rows
    }

    fn pour(&self, seed: u64, many: u64, pause: u64) -> impl Stream<Item = Parcel> {
        stream::iter(Parcel::drawn(seed, many, &self.0)).then(move |parcel| paused(parcel, pause))
    }

    async fn sip(&self, mut parcels: Streaming<Parcel>, most: u64) -> Result<u64, String> {
        let mut taken = 0;
        while taken < most
            && let Some(parcel) = parcels.next().await
        {
            parcel.map_err(words)?;
            taken += 1;
        }
        Ok(taken)
    }

    fn through(&self, parcels: Streaming<Parcel>) -> impl Stream<Item = Parcel> {
        parcels.values()
    }

    async fn keep(&self, parcel: Parcel) -> Remote<Parcel> {
        Remote::new(parcel)
    }

    async fn next(&self, kept: Remote<Parcel>, pause: u64) -> Remote<Parcel> {
        sleep(millis(pause)).await;
        Remote::new(kept.local_value().unwrap().next(&self.0))
    }

    async fn back(&self, depth: u32, parcel: Parcel, cx: &CallContext) -> Result<u32, String> {
        if depth == 0 {
            return Ok(0);
        }
        let caller = cx.connection().ok_or("the caller is gone")?;
        let caller = ErrandsClient::on(&caller).await.map_err(words)?;
        Ok(1 + caller.back(depth - 1, &parcel).await.map_err(words)?)
    }
}

/// What went wrong with an act, in words whose beginning is its kind.
pub(super) type Ended = Result<(), String>;

fn told<E: std::fmt::Debug>(error: CallError<E>) -> String {
    format!("{error:?}")
}

/// Checks the parcel itself: the memory of the one that was sent may have been used for others since.
async fn is(found: &Parcel, expected: Form, memories: &Memories) {
    let (byte, form) = (expected.number as u8, found.form());
    let right = form.number == expected.number
        && found.words == vec![byte; expected.words]
        && memories.bytes(&found.tensor).await == vec![byte; expected.bytes];
    assert!(right, "{form:?} came for {expected:?}");
}

/// The acts' names, in the order of [`act`].
pub(super) const ACTS: [&str; 13] = [
    "burst", "echo", "fail", "nap", "insist", "joined", "pour", "sip", "through", "keep", "chain",
    "back", "share",
];

/// To open a shared reference.
const OPEN: Duration = Duration::from_secs(30);

/// A fetch has a minute.
const FETCH: Duration = Duration::from_secs(60);

/// The longest pause of a reader.
const REST: Duration = Duration::from_millis(100);

/// How long an act may take, with calls that have so long each.
pub(super) fn longest(act: usize, deadline: Duration) -> Duration {
    match ACTS[act] {
        "keep" | "chain" => 2 * deadline + FETCH + REST,
        "share" => 2 * deadline + OPEN + FETCH + REST,
        "pour" | "through" => deadline + REST,
        _ => deadline,
    }
}

/// Performs an act. A result that comes must be right, or this panics.
pub(super) async fn act(
    number: usize,
    client: ErrandsClient,
    context: &Context,
    memories: &Memories,
    mut rng: Rng,
) -> Ended {
    let rng = &mut rng;
    let parcel = Parcel::draw(rng, memories);
    let form = parcel.form();
    let mut rests = true;
    match ACTS[number] {
        "echo" => {
            let calls = (0..rng.usize(1..5)).map(|_| client.echo(&parcel));
            for call in calls.collect::<Vec<_>>() {
                is(&call.await.map_err(told)?, form, memories).await;
            }
        }
        "burst" => {
            let many = match parcel.words.len() {
                // To decode these takes long.
                100_000.. => 2,
                _ => [rng.usize(..20), rng.usize(..100)][rng.usize(..2)],
            };
            let calls: Vec<_> = (0..many).map(|_| client.echo(&parcel)).collect();
            for call in calls {
                is(&call.await.map_err(told)?, form, memories).await;
            }
        }
        "fail" => match client.fail(&parcel).await {
            Ok(()) => panic!("it fails on purpose"),
            Err(CallError::Service(back)) => is(&back, form, memories).await,
            Err(error) => return Err(told(error)),
        },
        "nap" => {
            let slept = client.nap(rng.u64(..300), &parcel);
            is(&slept.await.map_err(told)?, form, memories).await;
        }
        "insist" => client.insist(rng.u64(..300)).await.map_err(told)?,
        "joined" => {
            let rows = [rng.u64(1..4), rng.u64(1..5000)];
            let rows = Tensor::zeros(DType::U8, rows).unwrap();
            let calls = (0..rng.usize(1..5)).map(|_| client.joined(&rows));
            for call in calls.collect::<Vec<_>>() {
                assert_eq!(call.await.map_err(told)?.shape(), rows.shape());
            }
        }
        "pour" => {
            let (seed, many) = (rng.u64(..), rng.u64(..20));
            let pause = [0, rng.u64(..10)][rng.usize(..2)];
            let mut came = client.pour(seed, many, pause);
            let until = all_or_some(rng, many);
            for expected in Parcel::drawn(seed, many, memories).take(until) {
                let parcel = came.next().await.expect("a stream ended early");
                is(&parcel.map_err(told)?, expected.form(), memories).await;
                rest(rng, &mut rests).await;
            }
            if until as u64 == many {
                match came.next().await {
                    None => {}
                    Some(Ok(_)) => panic!("a stream goes on"),
                    Some(Err(error)) => return Err(told(error)),
                }
            }
        }
        "sip" => {
            let (seed, many) = (rng.u64(..), rng.u64(..20));
            let pause = [0, rng.u64(..10)][rng.usize(..2)];
            let parcels = stream::iter(Parcel::drawn(seed, many, memories))
                .then(move |parcel| paused(parcel, pause));
            let most = all_or_some(rng, many) as u64;
            let taken = client.sip(parcels, most).await.map_err(told)?;
            assert_eq!(taken, most);
        }
        "through" => {
            let (seed, many) = (rng.u64(..), rng.u64(..12));
            let mut came = client.through(stream::iter(Parcel::drawn(seed, many, memories)));
            let until = all_or_some(rng, many);
            for expected in Parcel::drawn(seed, many, memories).take(until) {
                let parcel = came.next().await.expect("a stream ended early");
                is(&parcel.map_err(told)?, expected.form(), memories).await;
                rest(rng, &mut rests).await;
            }
        }
        "keep" => {
            let kept = client.keep(&parcel).await.map_err(told)?;
            let other = kept.clone();
            drop((kept, parcel));
            // In the same memory, if that is free.
            drop(Parcel::new(form.number ^ 1, 0, form.bytes, memories));
            rest(rng, &mut rests).await;
            is(&other.fetch().await.map_err(told)?, form, memories).await;
            drop(other.fetch());
        }
        "chain" => {
            let (mut last, mut expected) = (client.keep(&parcel), parcel);
            let mut others = Vec::new();
            for _ in 0..rng.u64(..8) {
                let pause = [0, rng.u64(..20)][rng.usize(..2)];
                let next = client.next(&last, pause);
                expected = expected.next(memories);
                let before = std::mem::replace(&mut last, next);
                if rng.bool() {
                    others.push(before);
                }
            }
            let last = last.await.map_err(told)?;
            if rng.bool() {
                others.clear();
            }
            let expected = expected.form();
            is(&last.fetch().await.map_err(told)?, expected, memories).await;
            for other in others {
                other.await.map_err(told)?;
            }
        }
        "back" => {
            let depth = rng.u32(..6);
            match client.back(depth, &parcel).await {
                Ok(found) => assert_eq!(found, depth),
                // Over replicas nobody is called back.
                Err(CallError::Service(why)) if why.contains("serves nothing") => {}
                Err(error) => return Err(told(error)),
            }
        }
        _ => {
            let kept = client.keep(&parcel).await.map_err(told)?;
            drop(parcel);
            let shared = kept.share().await.map_err(told)?;
            if rng.bool() {
                drop(kept);
            }
            rest(rng, &mut rests).await;
            let opened = shared.open(context).await.map_err(told)?;
            is(&opened.fetch().await.map_err(told)?, form, memories).await;
        }
    }
    Ok(())
}

/// All, or one time in four some.
fn all_or_some(rng: &mut Rng, many: u64) -> usize {
    match rng.u8(..4) {
        0 => rng.u64(..=many) as usize,
        _ => many as usize,
    }
}

/// Once an act, a reader does something else for a while.
async fn rest(rng: &mut Rng, rests: &mut bool) {
    if rng.u8(..8) == 0 && std::mem::take(rests) {
        sleep(REST.mul_f64(rng.f64())).await;
    }
}
