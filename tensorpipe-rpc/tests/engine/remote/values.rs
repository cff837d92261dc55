//! A value stays at the server as long as a reference to it exists, and is then released.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::{FutureExt, Stream, stream};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tensorpipe::Limits;
use tensorpipe_rpc::{CallError, Connection, Remote, Server, ServerLimits, tensor_service};

use super::house::*;
use crate::common::soon;
use crate::lab::{in_each, serve, tcp, tensor, until};
use crate::raw::{VALUE, call_id, message, raw_call_of};

#[tokio::test]
async fn a_value_stays_until_the_last_reference_is_dropped() {
    over_each(async |house| {
        let sent = tensor(3 << 20, 1);
        let kept = house.client.keep(&sent).await.unwrap();
        assert!(kept.local_value().is_err());
        assert_eq!(house.server.references(), 1);
        let other = kept.clone();
        drop(kept);
        assert_eq!(house.client.length(&other).await.unwrap(), 3 << 20);
        assert_eq!(house.client.length(other.clone()).await.unwrap(), 3 << 20);
        let fetched = other.fetch().await.unwrap();
        assert!(fetched.as_slice::<u8>().unwrap() == sent.as_slice::<u8>().unwrap());
        assert_eq!(house.server.references(), 1);
        drop(other);
        house.is_empty().await;
    })
    .await;
}

/// Whether somebody copies a value, and whether it may go on.
static COPIES: AtomicBool = AtomicBool::new(false);
static GOES_ON: AtomicBool = AtomicBool::new(false);

/// A value whose copy waits, as for a lock.
#[derive(Deserialize)]
struct Locked;

impl Serialize for Locked {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        COPIES.store(true, Ordering::SeqCst);
        let until = Instant::now() + Duration::from_secs(30);
        while !GOES_ON.load(Ordering::SeqCst) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        serializer.serialize_unit()
    }
}

#[tensor_service]
trait Locks {
    async fn locked(&self) -> Remote<Locked>;
    async fn quick(&self) -> Remote<u64>;
    async fn hear(&self) -> ();
}

struct Locker;

impl Locks for Locker {
    async fn locked(&self) -> Remote<Locked> {
        Remote::new(Locked)
    }

    async fn quick(&self) -> Remote<u64> {
        Remote::new(1)
    }

    async fn hear(&self) {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_copy_that_takes_long_holds_up_no_other_call() {
    let context = tcp().build().unwrap();
    let server = serve(&context, LocksService::new(Locker)).await;
    let client = LocksClient::connect_with(&context, server.url()).await;
    let client = client.unwrap();
    // Values of another type, which are copied where they are asked for.
    let quick = client.quick().await.unwrap();
    for _ in 0..100 {
        quick.fetch().await.unwrap();
    }
    let fetched = tokio::spawn(client.locked().await.unwrap().fetch());
    until(|| COPIES.load(Ordering::SeqCst)).await;
    let heard = tokio::time::timeout(Duration::from_secs(10), client.hear()).await;
    GOES_ON.store(true, Ordering::SeqCst);
    heard.expect("it waits for the copy").unwrap();
    fetched.await.unwrap().unwrap();
}

#[tokio::test]
async fn replies_that_nobody_looks_at_leave_nothing_behind() {
    over_each(async |house| {
        for round in 0..200u64 {
            match round % 4 {
                // Dropped before, while and after it is answered.
                0 => drop(house.client.several(3)),
                1 => {
                    let call = house.client.several(3);
                    let _ = tokio::time::timeout(Duration::from_micros(round), call).await;
                }
                2 => {
                    let call = house.client.several(3);
                    house.client.number(1).await.unwrap();
                    drop(call);
                }
                _ => drop(house.client.several(3).await.unwrap()),
            }
        }
        house.is_empty().await;
    })
    .await;
}

#[tokio::test]
async fn a_reply_given_up_while_its_tensors_come_leaves_no_references_behind() {
    over_each(async |house| {
        for round in 0..60u64 {
            let bound = Duration::from_micros(100 * round);
            let client = match round % 2 {
                0 => house.client.clone(),
                _ => house
                    .client
                    .with_deadline(bound.max(Duration::from_micros(1))),
            };
            let call = client.laden(16 << 20);
            let _ = tokio::time::timeout(bound, call).await;
        }
        house.is_empty().await;
    })
    .await;
}

#[tokio::test]
async fn more_references_than_a_pipe_queues_are_let_go_of_at_once() {
    in_each(async |context| {
        let mut few = Limits::default();
        few.queued_writes = 1000;
        let (near, far) = (context().limits(few), context());
        let (near, far) = (near.build().unwrap(), far.build().unwrap());
        let house = House::new(near, far, ServerLimits::default()).await;
        let kept = house.client.several(20_000).await.unwrap();
        assert_eq!(house.server.references(), 20_000);
        drop(kept);
        let next = house.client.number(1).await;
        next.expect("there is room for a call");
        house.is_empty().await;
    })
    .await;
}

/// An item that its reader lets lie has been sent before, and is not read.
#[tokio::test]
async fn so_are_they_behind_an_item_that_waits_to_be_read() {
    let mut limits = ServerLimits::default();
    limits.unread_items = 1 << 20;
    let (near, far) = (tcp().build().unwrap(), tcp().build().unwrap());
    let house = House::new(near, far, limits).await;
    let kept = house.client.several(70_000).await.unwrap();
    let large = tensor(2 << 20, 1);
    let items = || stream::iter([large.clone()]);
    let stalled = [house.client.ignores(items()), house.client.ignores(items())];
    // One has come, and there is no room for the other.
    let pipe = house.client.connection().pipe().clone();
    until(|| pipe.stats().bytes_out > 2 << 20 && pipe.unwritten() == 1).await;
    drop(kept);
    until(|| house.server.references() == 0).await;
    drop(stalled);
    house.is_empty().await;
}

#[tokio::test]
async fn references_deep_in_a_value_are_references() {
    over_each(async |house| {
        let pair = house.client.pair(10).await.unwrap();
        assert_eq!(house.server.references(), 4);
        assert_eq!(pair.right[2].fetch().await.unwrap(), 12);
        assert_eq!(house.client.read(&pair).await.unwrap(), 43);
        drop(pair);
        house.is_empty().await;
    })
    .await;
}

#[tokio::test]
async fn references_in_what_is_fetched_and_in_a_streams_error_are_references() {
    over_each(async |house| {
        let kept = house.client.keep_pair(10).await.unwrap();
        let pair = kept.fetch().await.unwrap();
        assert_eq!(pair.right[2].fetch().await.unwrap(), 12);
        assert_eq!(house.client.read(&pair).await.unwrap(), 43);
        drop((kept, pair));
        house.is_empty().await;
        for read in 0..3 {
            let mut items = house.client.fails_with(20);
            if read > 0 {
                assert_eq!(items.next().await.unwrap().unwrap(), 20);
            }
            if read > 1 {
                match items.next().await {
                    Some(Err(CallError::Service(pair))) => {
                        assert_eq!(pair.right[1].fetch().await.unwrap(), 21);
                    }
                    other => panic!("{other:?}"),
                }
            }
            drop(items);
            house.is_empty().await;
        }
    })
    .await;
}

#[tokio::test]
async fn references_in_a_copy_of_what_is_here_are_references() {
    over_each(async |house| {
        // The owner's handler takes the copy.
        let kept = house.client.keep_pair(10).await.unwrap();
        assert_eq!(house.client.read_copy(&kept).await.unwrap(), 22);
        drop(kept);
        // And where no handler runs. One of its references is to another process's value.
        let mut pair = Pair::new(20);
        pair.right.push(house.client.number(30).await.unwrap());
        let copy = Remote::new(pair).fetch().await.unwrap();
        assert_eq!(*copy.left.local_value().unwrap(), 20);
        assert_eq!(copy.right[2].fetch().await.unwrap(), 22);
        assert_eq!(copy.right[3].fetch().await.unwrap(), 30);
        drop(copy);
        house.is_empty().await;
    })
    .await;
}

/// Reading it panics while that is asked for.
#[derive(Debug, Serialize)]
struct Touchy(u8);

static PANICS: AtomicBool = AtomicBool::new(false);

impl<'de> Deserialize<'de> for Touchy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let touchy = Self(u8::deserialize(deserializer)?);
        assert!(!PANICS.load(Ordering::SeqCst), "on purpose");
        Ok(touchy)
    }
}

#[tensor_service]
trait Surprises {
    async fn gives(&self) -> (Touchy, Remote<u64>);
    /// References in the error of a stream.
    fn fails(&self) -> impl Stream<Item = Result<u64, (Touchy, Remote<u64>)>>;
}

struct Surprise;

impl Surprises for Surprise {
    async fn gives(&self) -> (Touchy, Remote<u64>) {
        (Touchy(1), Remote::new(1))
    }

    fn fails(&self) -> impl Stream<Item = Result<u64, (Touchy, Remote<u64>)>> {
        stream::iter([Err((Touchy(1), Remote::new(1)))])
    }
}

#[tokio::test]
async fn a_reply_whose_reading_panics_leaves_no_references_behind() {
    let context = tcp().build().unwrap();
    let server = serve(&context, SurprisesService::new(Surprise)).await;
    let client = SurprisesClient::connect_with(&context, server.url())
        .await
        .unwrap();
    let (call, mut items) = (client.gives(), client.fails());
    until(|| server.references() == 2).await;
    PANICS.store(true, Ordering::SeqCst);
    AssertUnwindSafe(call).catch_unwind().await.unwrap_err();
    let item = AssertUnwindSafe(items.next());
    soon(item.catch_unwind()).await.unwrap_err();
    PANICS.store(false, Ordering::SeqCst);
    drop(items);
    until(|| server.references() == 0).await;
}

#[tokio::test]
async fn references_in_an_error_are_references() {
    over_each(async |house| {
        match house.client.refuses_with(30).await {
            Err(CallError::Service(pair)) => {
                assert_eq!(pair.left.fetch().await.unwrap(), 30);
                assert_eq!(pair.right[1].fetch().await.unwrap(), 31);
            }
            other => panic!("{other:?}"),
        }
        house.is_empty().await;
    })
    .await;
}

/// Outside of a method, its server shares it.
#[tokio::test]
async fn a_server_shares_a_value_of_its_process() {
    let context = tcp().build().unwrap();
    let server = serve(&context, AtticService::new(Keeper::default())).await;
    let value = Remote::new("here".to_owned());
    let error = value.share().await.unwrap_err().to_string();
    assert!(error.contains("`Server::share`"), "{error}");
    let shared = server.share(&value).unwrap();
    drop(value);
    assert_eq!(server.references(), 1);
    let opened = shared.open(&context).await.unwrap();
    assert_eq!(opened.fetch().await.unwrap(), "here");
    let elsewhere = server.share(&opened).unwrap_err().to_string();
    assert!(elsewhere.contains("in another process"), "{elsewhere}");
    drop(opened);
    until(|| server.references() == 0).await;
    // A host that opens this would reach itself.
    let everywhere = Server::builder()
        .context(&context)
        .service(AtticService::new(Keeper::default()));
    let everywhere = everywhere.listen("tcp://0.0.0.0:0").await.unwrap();
    let error = everywhere.share(&Remote::new(1)).unwrap_err().to_string();
    assert!(error.contains("let it listen at one"), "{error}");
    assert_eq!(everywhere.references(), 0);
}

#[tokio::test]
async fn what_makes_no_sense_is_said() {
    over_each(async |house| {
        let words = |error: CallError| error.to_string();
        // Another type.
        let number = house.client.number(1).await.unwrap();
        let text: Remote<String> = of_another_type(&number);
        let error = words(house.client.wrong(&text).await.unwrap_err());
        assert!(error.contains("String"), "{error}");
        // A value of this process as an argument.
        let own = Remote::new(1u64);
        assert_eq!(*own.local_value().unwrap(), 1);
        assert_eq!(own.fetch().await.unwrap(), 1);
        let error = house
            .client
            .add(&own, &number)
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains("`Remote::share`"), "{error}");
        // A reference over another connection.
        let url = house.server.url().to_string();
        let other = AtticClient::connect(url).await.unwrap();
        let error = other.add(&number, &number).await.unwrap_err().to_string();
        assert!(error.contains("another connection"), "{error}");
        // A call that was awaited.
        let mut call = house.client.number(1);
        let awaited = (&mut call).await.unwrap();
        let error = house
            .client
            .add(&call, &awaited)
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains("was awaited"), "{error}");
        // What does not travel.
        let cache = house.client.begin().await.unwrap();
        let as_number: Remote<u64> = of_another_type(&cache);
        let error = words(as_number.fetch().await.unwrap_err());
        assert!(error.contains("does not travel"), "{error}");
        // Read outside of a call.
        let error = serde_json::to_string(&number).unwrap_err().to_string();
        assert!(error.contains("in calls alone"), "{error}");
        let nowhere: Remote<u64> = serde_json::from_str("[0, 1, 2]").unwrap();
        let error = words(nowhere.fetch().await.unwrap_err());
        assert!(error.contains("outside of a call"), "{error}");
        drop((number, text, awaited, cache, as_number));
        house.is_empty().await;
    })
    .await;
}

/// The same reference to a value of another type: what a client of another version might take it for.
fn of_another_type<T, U>(reference: &Remote<T>) -> Remote<U> {
    reference.clone().cast()
}

#[tokio::test]
async fn references_go_when_their_holder_does() {
    over_each(async |house| {
        let kept = house.client.several(100).await.unwrap();
        let waits = house.client.slow(1);
        let sum = house.client.add(&waits, &waits);
        assert_eq!((house.held(), house.server.references()), (100, 100));
        house.client.connection().close().await.unwrap();
        until(|| house.held() == 0).await;
        assert_eq!(house.server.references(), 0);
        sum.await.unwrap_err();
        // What is left of them says why.
        let error = house.client.steps(&kept[0]).await.unwrap_err();
        assert!(matches!(error, CallError::Connection { .. }), "{error}");
    })
    .await;
}

#[tokio::test]
async fn references_end_with_an_error_when_their_owner_does() {
    over_each(async |house| {
        let number = house.client.number(1).await.unwrap();
        drop(house.server);
        let error = number.fetch().await.unwrap_err();
        assert!(
            matches!(
                error,
                CallError::Connection { .. } | CallError::ShuttingDown
            ),
            "{error}"
        );
    })
    .await;
}

#[tokio::test]
async fn a_connection_refers_to_so_much_and_no_more() {
    let build = || tcp().build().unwrap();
    let mut limits = ServerLimits::default();
    limits.references = 10;
    let house = House::new(build(), build(), limits).await;
    let kept = house.client.several(7).await.unwrap();
    let error = house.client.several(4).await.unwrap_err();
    assert!(matches!(error, CallError::BadReply(_)), "{error}");
    until(|| house.held() == 7).await;
    // A chain that would be one too many fails at its end, and says so.
    let more = house.client.several(3).await.unwrap();
    let next = house.client.step(&more[0]);
    let error = house.client.steps(&next).await.unwrap_err();
    assert!(matches!(error, CallError::Unresolved(_)), "{error}");
    drop((kept, more, next));
    house.is_empty().await;
    drop(house.client.several(10).await.unwrap());
    house.is_empty().await;
}

#[tokio::test]
async fn a_server_refers_to_what_its_client_keeps() {
    let context = tcp().build().unwrap();
    let (here, there) = (Keeper::default(), Keeper::default());
    let server = serve(&context, AtticService::new(there)).await;
    let connection = Connection::builder()
        .context(&context)
        .service(AtticService::new(here))
        .connect(server.url().to_string())
        .await
        .unwrap();
    let client = AtticClient::on(&connection).await.unwrap();
    assert_eq!(client.back().await.unwrap(), 14);
    until(|| connection.references() == 0).await;
}

const FETCH: u8 = 15;
const WAITS: u8 = 8;

/// What no client of ours asks for: to run when it has run itself, and what another call has not returned yet.
#[tokio::test]
async fn a_call_does_not_wait_for_itself_and_what_is_not_there_yet_is_waited_for() {
    let build = || tcp().build().unwrap();
    let house = House::new(build(), build(), ServerLimits::default()).await;
    let context = build();
    let pipe = context.connect(house.server.url().to_string()).await;
    let pipe = pipe.unwrap();
    let answer = async || {
        let answer = soon(pipe.read()).await.unwrap();
        assert_eq!(answer.metadata[0], VALUE);
        (call_id(&answer.metadata), answer)
    };
    let attic = AtticService::new(Keeper::default());
    let body = [&[7][..], &1u64.to_le_bytes(), &[1]].concat();
    let mut own = raw_call_of(&attic, "number", 1, &body);
    let mut metadata = own.metadata.to_vec();
    metadata[2] |= WAITS;
    own.metadata = metadata.into();
    pipe.send(own).unwrap();
    assert_eq!(answer().await.0, 1);
    pipe.send(raw_call_of(&attic, "slow", 2, &[9])).unwrap();
    let reference = [&2u64.to_le_bytes()[..], &0u32.to_le_bytes()].concat();
    pipe.send(message(FETCH, 0, 3, &reference)).unwrap();
    until(|| house.server.calls_in_flight() == 2).await;
    house.keeper.gate.add_permits(1);
    assert_eq!(answer().await.0, 2);
    let (call, fetched) = answer().await;
    assert_eq!((call, &fetched.metadata[12..]), (3, &[9][..]));
    drop(pipe);
    house.is_empty().await;
}

/// A list of releases is taken as a whole, or not at all.
#[tokio::test]
async fn a_message_releases_what_it_lists_and_one_that_is_cut_short_nothing() {
    const RELEASE: u8 = 16;
    const ALL: u32 = u32::MAX;
    let build = || tcp().build().unwrap();
    let house = House::new(build(), build(), ServerLimits::default()).await;
    let pipe = build().connect(house.server.url().to_string()).await;
    let pipe = pipe.unwrap();
    let attic = AtticService::new(Keeper::default());
    for call in 1..4 {
        // Each gives away 3.
        pipe.send(raw_call_of(&attic, "several", call, &[3]))
            .unwrap();
        soon(pipe.read()).await.unwrap();
    }
    assert_eq!(house.server.references(), 9);
    let release = |call: u64, index: u32| [&call.to_le_bytes()[..], &index.to_le_bytes()].concat();
    let some = [release(1, 2), release(2, ALL), release(9, 0), release(1, 2)].concat();
    let send = async |body: &[u8]| {
        pipe.write(message(RELEASE, 0, 1, body)).await.unwrap();
        // The answer to a later message shows that this one was looked at.
        pipe.send(raw_call_of(&attic, "none", 5, &[])).unwrap();
        soon(pipe.read()).await.unwrap();
    };
    for cut in [0, 1, 11, 13, some.len() - 1] {
        send(&some[..cut]).await;
        assert_eq!(house.server.references(), 9, "{cut} bytes");
    }
    send(&some).await;
    assert_eq!(house.server.references(), 5);
    send(&[release(3, ALL), release(1, 0), release(1, 1)].concat()).await;
    house.is_empty().await;
}
