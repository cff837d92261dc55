//! A whole connection, which serves and calls, with a hostile peer that sends, reads and refuses messages in any order. The fuzz target
//! `conversation` in `fuzz/` runs this code, and this package's tests run it with random inputs.
//!
//! Invariant: when both ends are gone, no call still waits and nothing is held, whatever the peer sent.

mod hostile_peer;
mod script;
mod talk;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::{FutureExt, StreamExt, stream};
use tensorpipe::channels::BasicChannel;
use tensorpipe::transports::MemoryTransport;
use tensorpipe::{Context, Pipe, Tensor};
use tensorpipe_rpc::{Connection, Remote, Server, ServerLimits};
use tokio::runtime::Builder;

use self::hostile_peer::HostilePeer;
use self::script::Script;
use self::talk::{TalkClient, TalkService, Talker};

/// Longer than any operation takes unless it hangs.
const STUCK: Duration = Duration::from_secs(20);

/// What is said and done in one conversation, at most.
const TURNS: usize = 200;

/// A call of ours, with what it brought.
type Ours = Pin<Box<dyn Future<Output = Vec<Remote<Tensor>>>>>;

/// Lets a hostile peer talk with a connection of ours, on a runtime of this kind.
///
/// # Panics
/// Where something is left behind, or waits for ever.
pub(crate) fn conversation(runtime: &mut Builder, data: &[u8]) {
    let runtime = runtime.enable_all().build().unwrap();
    runtime.block_on(converse(&mut Script(data)));
}

async fn converse(script: &mut Script<'_>) {
    let (near, far) = (context("ours"), context("theirs"));
    let (ours, theirs) = pipes(&near, &far).await;
    let held = Arc::new(AtomicUsize::new(0));
    let mut limits = ServerLimits::default();
    (limits.calls_per_connection, limits.references) = (8, 12);
    let service = TalkService::new(Talker { held: held.clone() });
    // One that calls too, or a server, which knows how many calls it has.
    let (mut connection, mut server) = (None, None);
    if script.below(2) == 1 {
        let serving = Server::builder().limits(limits).service(service);
        let serving = serving.context(&near).listen(url()).await.unwrap();
        serving.serve(ours.clone()).unwrap();
        server = Some(serving);
    } else {
        let serving = Connection::builder().limits(limits).service(service);
        connection = Some(serving.over(ours.clone()).unwrap());
    }
    let mut hostile = HostilePeer::new(&theirs, script);
    let client = async {
        let bind = TalkClient::on(connection.as_ref()?);
        let said = async {
            // It may talk before it has answered.
            for _ in 0..script.below(3) {
                hostile.speaks(script);
                tokio::task::yield_now().await;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        tokio::select! {
            client = bind => client.ok(),
            () = said => None,
        }
    };
    let client = client.await;
    let (mut calls, mut kept) = (Vec::<Ours>::new(), Vec::new());
    for _ in 0..TURNS {
        if script.has_ended() {
            break;
        }
        match script.below(16) {
            0..=8 => hostile.speaks(script),
            9 | 10 => tokio::task::yield_now().await,
            11 => {
                if let Some(client) = client.as_ref().filter(|_| calls.len() < 16) {
                    calls.push(ask(script, client, &kept));
                }
            }
            12 => {
                calls.retain_mut(|call| match call.now_or_never() {
                    Some(references) => {
                        kept.extend(references);
                        false
                    }
                    None => true,
                });
            }
            13 if !calls.is_empty() => drop(calls.swap_remove(script.below(calls.len()))),
            14 if !kept.is_empty() => drop(kept.swap_remove(script.below(kept.len()))),
            15 => {
                for _ in 0..8 {
                    tokio::task::yield_now().await;
                }
            }
            _ => {}
        }
    }
    match script.below(5) {
        0 => drop(theirs.go_away("enough")),
        1 => drop(theirs.close_within(Duration::ZERO).await),
        2 => drop(ours.close().now_or_never()),
        3 => calls.clear(),
        _ => drop((hostile, theirs.close_within(Duration::ZERO).await)),
    }
    if script.below(2) == 0 {
        kept.clear();
    }
    let _ = theirs.close_within(Duration::ZERO).await;
    let ends = futures_util::future::join_all(calls);
    soon("a call's end", ends).await;
    drop((kept, client));
    let ended = soon("the pipe's end", ours.ended()).await.to_string();
    assert!(!ended.contains("panicked"), "{ended}");
    if let Some(server) = server {
        let idle = async {
            while server.calls_in_flight() > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        soon("the end of what the server does", idle).await;
        // With it goes what was shared and not claimed.
        drop(server);
    }
    let are_left = || {
        let pools = [&near, &far].map(|context| context.pool().stats().outstanding_bytes);
        let counts = connection.as_ref().map_or((0, 0), |connection| {
            (connection.calls_in_flight(), connection.references())
        });
        (counts, held.load(Ordering::SeqCst), pools)
    };
    let nothing = ((0, 0), 0, [0, 0]);
    let gone = async {
        while are_left() != nothing {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let gone = tokio::time::timeout(STUCK, gone).await;
    assert!(
        gone.is_ok(),
        "(calls, references), handlers, bytes: {:?}",
        are_left()
    );
}

fn context(name: &str) -> Context {
    let context = Context::builder()
        .name(name)
        .transports([Arc::new(MemoryTransport::new()) as _])
        .channels([Arc::new(BasicChannel::new()) as _]);
    context.build().unwrap()
}

fn url() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("memory://conversation-{next}")
}

async fn pipes(near: &Context, far: &Context) -> (Pipe, Pipe) {
    let listener = near.listen([url()]).await.unwrap();
    let (theirs, ours) = tokio::join!(far.connect(listener.url()), listener.accept());
    (ours.unwrap(), theirs.unwrap())
}

async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(STUCK, work).await;
    done.unwrap_or_else(|_| panic!("{what} does not come"))
}

/// A call of ours.
fn ask(script: &mut Script<'_>, client: &TalkClient, kept: &[Remote<Tensor>]) -> Ours {
    async fn nothing(call: impl Future) -> Vec<Remote<Tensor>> {
        drop(call.await);
        vec![]
    }
    async fn some(items: impl futures_util::Stream) -> Vec<Remote<Tensor>> {
        nothing(std::pin::pin!(items).take(20).count()).await
    }
    let client = &match script.below(4) {
        0 => client.with_deadline(Duration::from_millis(2)),
        _ => client.clone(),
    };
    let tensor = || Tensor::from(vec![9u8; 3000]);
    match script.below(9) {
        0 => Box::pin(nothing(client.echo("hello"))),
        1 => Box::pin(nothing(client.bounce(tensor()))),
        2 => {
            let call = client.keep(tensor());
            Box::pin(async { call.await.into_iter().collect() })
        }
        3 => Box::pin(nothing(client.sum(stream::iter(0..200)))),
        4 => Box::pin(some(client.count(9))),
        5 => {
            let tensors = stream::iter((0..20).map(|i| Tensor::from(vec![0u8; i * 400])));
            Box::pin(some(client.pass(tensors)))
        }
        6 => {
            // The result of another call, before it is there.
            let left = client.keep(tensor());
            let sum = client.add(&left, &left);
            Box::pin(async { sum.await.into_iter().collect() })
        }
        7 => match script.pick(&(0..kept.len()).collect::<Vec<_>>()) {
            Some(at) => Box::pin(nothing(kept[at].fetch())),
            None => Box::pin(nothing(client.several(3))),
        },
        _ => match kept.first() {
            Some(kept) => Box::pin(nothing(client.add(kept, kept))),
            None => Box::pin(nothing(client.back("there"))),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::panic;
    use std::sync::Once;

    use proptest::prelude::*;

    use super::{Builder, conversation};

    thread_local! {
        static PANICKED: Cell<bool> = const { Cell::new(false) };
    }

    /// Also those that somebody catches.
    fn count_panics() {
        static ONCE: Once = Once::new();
        PANICKED.set(false);
        ONCE.call_once(|| {
            let before = panic::take_hook();
            panic::set_hook(Box::new(move |info| {
                PANICKED.set(true);
                before(info);
            }));
        });
    }

    /// With the feature, which the workspace's tests have.
    #[cfg(feature = "fuzzing")]
    #[test]
    fn what_the_target_begins_with_leaves_nothing() {
        count_panics();
        let seeds = tensorpipe_rpc::fuzzing::seeds();
        let mut count = 0;
        for (_, seed) in seeds.iter().filter(|(target, _)| *target == "conversation") {
            conversation(&mut Builder::new_current_thread(), seed);
            count += 1;
        }
        assert!(!PANICKED.get(), "a panic was caught");
        assert_eq!(count, 8);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn whatever_a_peer_says_nothing_is_left(
            threads: bool,
            script in prop::collection::vec(any::<u8>(), 0..600),
        ) {
            count_panics();
            let mut runtime = match threads {
                true => Builder::new_multi_thread(),
                false => Builder::new_current_thread(),
            };
            conversation(runtime.worker_threads(2), &script);
            prop_assert!(!PANICKED.get(), "a panic was caught");
        }
    }
}
