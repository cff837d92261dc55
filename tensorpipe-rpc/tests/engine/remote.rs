//! Values that stay where they were computed: referred to, fetched, used before they are there, and let go of.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tensorpipe::{Context, Tensor};
use tensorpipe_rpc::{
    CallContext, CallError, Connection, Remote, Server, ServerLimits, tensor_service,
};
use tokio::sync::Semaphore;

use crate::lab::{AtIt, shm, tcp, tensor, until};

/// What does not travel, and is counted.
pub(crate) struct Cache {
    steps: u64,
    _held: AtIt,
}

#[derive(Debug, Serialize, Deserialize)]
struct Pair {
    left: Remote<u64>,
    right: Vec<Remote<u64>>,
}

#[tensor_service]
trait Attic {
    async fn keep(&self, tensor: Tensor) -> Remote<Tensor>;
    async fn length(&self, tensor: Remote<Tensor>) -> u64;
    async fn number(&self, number: u64) -> Remote<u64>;
    /// Waits until it may.
    async fn slow(&self, number: u64) -> Remote<u64>;
    async fn add(&self, left: Remote<u64>, right: Remote<u64>) -> Result<Remote<u64>, String>;
    async fn fails(&self) -> Result<Remote<u64>, String>;
    async fn begin(&self) -> Remote<Cache>;
    async fn step(&self, cache: Remote<Cache>) -> Result<Remote<Cache>, String>;
    async fn steps(&self, cache: Remote<Cache>) -> u64;
    async fn several(&self, many: u64) -> Vec<Remote<Cache>>;
    /// Its type says nothing of the reference.
    async fn pair(&self, number: u64) -> Pair;
    async fn read(&self, pair: Pair) -> u64;
    async fn wrong(&self, number: Remote<String>) -> String;
    async fn back(&self, cx: &CallContext) -> Result<u64, String>;
}

#[derive(Clone)]
struct Keeper {
    held: Arc<AtomicUsize>,
    begun: Arc<AtomicUsize>,
    gate: Arc<Semaphore>,
}

impl Default for Keeper {
    fn default() -> Self {
        Self {
            held: Arc::default(),
            begun: Arc::default(),
            gate: Arc::new(Semaphore::new(0)),
        }
    }
}

impl Keeper {
    fn cache(&self, steps: u64) -> Remote<Cache> {
        Remote::fixed(Cache {
            steps,
            _held: AtIt::new(&self.held),
        })
    }
}

impl Attic for Keeper {
    async fn keep(&self, tensor: Tensor) -> Remote<Tensor> {
        Remote::new(tensor)
    }

    async fn length(&self, tensor: Remote<Tensor>) -> u64 {
        tensor.here().unwrap().byte_len() as u64
    }

    async fn number(&self, number: u64) -> Remote<u64> {
        Remote::new(number)
    }

    async fn slow(&self, number: u64) -> Remote<u64> {
        let _at_it = AtIt::new(&self.begun);
        self.gate.acquire().await.unwrap().forget();
        Remote::new(number)
    }

    async fn add(&self, left: Remote<u64>, right: Remote<u64>) -> Result<Remote<u64>, String> {
        let sum = *left.here().unwrap() + *right.here().unwrap();
        Ok(Remote::new(sum))
    }

    async fn fails(&self) -> Result<Remote<u64>, String> {
        Err("on purpose".to_owned())
    }

    async fn begin(&self) -> Remote<Cache> {
        self.cache(0)
    }

    async fn step(&self, cache: Remote<Cache>) -> Result<Remote<Cache>, String> {
        let cache = cache.here().map_err(|error| error.to_string())?;
        Ok(self.cache(cache.steps + 1))
    }

    async fn steps(&self, cache: Remote<Cache>) -> u64 {
        cache.here().unwrap().steps
    }

    async fn several(&self, many: u64) -> Vec<Remote<Cache>> {
        (0..many).map(|steps| self.cache(steps)).collect()
    }

    async fn pair(&self, number: u64) -> Pair {
        Pair {
            left: Remote::new(number),
            right: (0..3).map(|i| Remote::new(number + i)).collect(),
        }
    }

    async fn read(&self, pair: Pair) -> u64 {
        let right = pair.right.iter().map(|number| *number.here().unwrap());
        *pair.left.here().unwrap() + right.sum::<u64>()
    }

    async fn wrong(&self, number: Remote<String>) -> String {
        number.here().unwrap().to_string()
    }

    async fn back(&self, cx: &CallContext) -> Result<u64, String> {
        let caller = cx.connection().ok_or("gone")?;
        let attic = AtticClient::on(&caller)
            .await
            .map_err(|error| error.to_string())?;
        let number = attic.number(7).await.map_err(|error| error.to_string())?;
        let sum = attic
            .add(&number, &number)
            .await
            .map_err(|error| error.to_string())?;
        sum.fetch().await.map_err(|error| error.to_string())
    }
}

struct House {
    client: AtticClient,
    server: Server,
    keeper: Keeper,
}

impl House {
    async fn new(near: Context, far: Context, limits: ServerLimits) -> Self {
        let keeper = Keeper::default();
        let server = Server::builder()
            .context(&far)
            .limits(limits)
            .service(AtticService::new(keeper.clone()))
            .listen("tcp://127.0.0.1:0")
            .await
            .unwrap();
        let client = AtticClient::connect_with(&near, server.url().to_string()).await;
        Self {
            client: client.unwrap(),
            server,
            keeper,
        }
    }

    fn held(&self) -> usize {
        self.keeper.held.load(Ordering::SeqCst)
    }

    /// The server keeps nothing for anybody.
    async fn is_empty(&self) {
        until(|| self.held() == 0 && self.server.references() == 0).await;
        until(|| self.server.calls_under_way() == 0).await;
        until(|| self.client.connection().calls_under_way() == 0).await;
    }
}

async fn in_each(test: impl AsyncFn(House)) {
    for context in [tcp, shm, Context::builder] {
        let build = || context().build().unwrap();
        let house = House::new(build(), build(), ServerLimits::default()).await;
        let told = tokio::time::timeout(Duration::from_secs(60), test(house));
        told.await.expect("within a minute, on the slowest machine");
    }
}

#[tokio::test]
async fn a_value_stays_until_the_last_reference_is_dropped() {
    in_each(async |house| {
        let sent = tensor(3 << 20, 1);
        let kept = house.client.keep(&sent).await.unwrap();
        assert!(kept.here().is_err());
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

#[tokio::test]
async fn a_chain_of_calls_leaves_at_once_and_its_middle_never_comes_here() {
    in_each(async |house| {
        let mut cache = house.client.step(&house.client.begin());
        for _ in 1..16 {
            // The one before is dropped: not cancelled.
            cache = {
                let next = house.client.step(&cache);
                drop(cache);
                next
            };
        }
        assert_eq!(house.client.steps(&cache).await.unwrap(), 16);
        drop(cache);
        house.is_empty().await;
    })
    .await;
}

#[tokio::test]
async fn a_call_waits_for_those_that_it_was_given_however_long_they_take() {
    in_each(async |house| {
        let (one, two) = (house.client.slow(1), house.client.slow(2));
        let three = house.client.add(&one, &two);
        let six = house.client.add(&three, &three);
        until(|| house.keeper.begun.load(Ordering::SeqCst) == 2).await;
        // Others go on.
        assert_eq!(
            house.client.number(5).await.unwrap().fetch().await.unwrap(),
            5
        );
        house.keeper.gate.add_permits(2);
        assert_eq!(six.await.unwrap().fetch().await.unwrap(), 6);
        // Each is still there to be awaited.
        let (one, three) = (one.await.unwrap(), three.await.unwrap());
        assert_eq!(one.fetch().await.unwrap() + 2, three.fetch().await.unwrap());
        drop((one, two, three));
        house.is_empty().await;
    })
    .await;
}

#[tokio::test]
async fn a_call_that_fails_fails_those_that_were_given_its_result() {
    in_each(async |house| {
        let failed = house.client.fails();
        let sum = house.client.add(&house.client.number(1), &failed);
        let next = house.client.add(&sum, &sum);
        for call in [sum, next] {
            let error = call.await.unwrap_err();
            assert!(matches!(error, CallError::Unresolved(_)), "{error}");
            assert!(!error.may_have_run());
        }
        match failed.await.unwrap_err() {
            CallError::Service(words) => assert_eq!(words, "on purpose"),
            other => panic!("{other}"),
        }
        house.is_empty().await;
    })
    .await;
}

#[tokio::test]
async fn a_call_nobody_wants_the_result_of_any_more_is_cancelled() {
    in_each(async |house| {
        let one = house.client.slow(1);
        let sum = house.client.add(&one, &one);
        until(|| house.keeper.begun.load(Ordering::SeqCst) == 1).await;
        drop(one);
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(
            house.keeper.begun.load(Ordering::SeqCst),
            1,
            "held by the sum"
        );
        drop(sum);
        until(|| house.keeper.begun.load(Ordering::SeqCst) == 0).await;
        house.is_empty().await;
    })
    .await;
}

#[tokio::test]
async fn a_deadline_ends_a_call_that_waits() {
    in_each(async |house| {
        let one = house.client.slow(1);
        let hurried = house.client.with_deadline(Duration::from_millis(100));
        let error = hurried.add(&one, &one).await.unwrap_err();
        assert!(matches!(error, CallError::Deadline { .. }), "{error}");
        house.keeper.gate.add_permits(1);
        assert_eq!(one.await.unwrap().fetch().await.unwrap(), 1);
        house.is_empty().await;
    })
    .await;
}

#[tokio::test]
async fn replies_that_nobody_looks_at_leave_nothing_behind() {
    in_each(async |house| {
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
async fn references_deep_in_a_value_are_references() {
    in_each(async |house| {
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
async fn what_makes_no_sense_is_said() {
    in_each(async |house| {
        let words = |error: CallError| error.to_string();
        // Another type.
        let number = house.client.number(1).await.unwrap();
        let text: Remote<String> = of_another_type(&number);
        let error = words(house.client.wrong(&text).await.unwrap_err());
        assert!(error.contains("String"), "{error}");
        // A value of this process as an argument.
        let own = Remote::new(1u64);
        assert_eq!(*own.here().unwrap(), 1);
        assert_eq!(own.fetch().await.unwrap(), 1);
        let error = house
            .client
            .add(&own, &number)
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains("send the value itself"), "{error}");
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
    in_each(async |house| {
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
    in_each(async |house| {
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
    assert!(matches!(error, CallError::Overloaded(_)), "{error}");
    until(|| house.held() == 7).await;
    drop(kept);
    house.is_empty().await;
    drop(house.client.several(10).await.unwrap());
    house.is_empty().await;
}

#[tokio::test]
async fn a_server_refers_to_what_its_client_keeps() {
    let context = tcp().build().unwrap();
    let (here, there) = (Keeper::default(), Keeper::default());
    let server = Server::builder()
        .context(&context)
        .service(AtticService::new(there))
        .listen("tcp://127.0.0.1:0")
        .await
        .unwrap();
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
