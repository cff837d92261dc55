//! Deadlines: who sets them, how long they are, and that they hold at every stage of a call.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use tensorpipe::{Context, DType, Tensor};
use tensorpipe_rpc::{CallContext, CallError, ServerLimits, TraceContext, tensor_service};

use super::lab::{Both, LabClient, over_each, over_each_with, serve, tcp, until};

/// And no tensor was under way.
fn is_deadline<T: std::fmt::Debug>(result: Result<T, CallError>, bound: Duration) {
    match result {
        Err(CallError::Deadline { after, moving, .. }) => {
            assert_eq!((after, moving), (bound, false))
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_call_has_a_minute_or_what_its_client_says_or_what_the_server_allows() {
    let mut limits = ServerLimits::default();
    over_each_with(limits.clone(), async |Both { client, .. }| {
        let left = client.left().await.unwrap();
        assert!(left <= Duration::from_secs(60) && left > Duration::from_secs(50));
        let left = client
            .with_deadline(Duration::from_secs(7))
            .left()
            .await
            .unwrap();
        assert!(left <= Duration::from_secs(7) && left > Duration::from_secs(3));
        // Beyond any clock: the server's bound holds.
        let left = client.with_deadline(Duration::MAX).left().await.unwrap();
        assert!(left <= Duration::from_secs(3600) && left > Duration::from_secs(3500));
    })
    .await;
    limits.longest_call = Duration::from_secs(20);
    over_each_with(limits.clone(), async |Both { client, .. }| {
        let left = client.left().await.unwrap();
        assert!(left <= Duration::from_secs(20));
    })
    .await;
    limits.longest_call = Duration::from_millis(100);
    over_each_with(limits, async |both| {
        let begun = Instant::now();
        let answers = [
            both.client.sleep(60_000).await.map(drop),
            // What stops at its deadline has no result.
            both.client.block().await,
            both.client.panic_when_dropped(true).await,
        ];
        for answer in answers {
            assert!(
                matches!(answer, Err(CallError::Deadline { .. })),
                "{answer:?}"
            );
        }
        assert!(begun.elapsed() < Duration::from_secs(30));
        both.is_clean().await;
    })
    .await;
}

#[tokio::test]
async fn a_call_that_the_server_gives_up_first_says_how_long_it_took() {
    let mut limits = ServerLimits::default();
    limits.longest_call = Duration::from_millis(100);
    over_each_with(limits, async |Both { client, .. }| {
        for allowed in [Duration::MAX, Duration::from_secs(3600)] {
            match client.with_deadline(allowed).sleep(60_000).await {
                Err(CallError::Deadline { after, .. }) => {
                    assert!(after >= Duration::from_millis(100), "{after:?}");
                    assert!(after < Duration::from_secs(3600), "{after:?}");
                }
                other => panic!("{other:?}"),
            }
        }
    })
    .await;
}

#[tokio::test]
async fn without_time_nothing_is_sent() {
    over_each(async |both| {
        let hurried = both.client.with_deadline(Duration::ZERO);
        let error = hurried.echo("too late").await.unwrap_err();
        assert!(!error.may_have_run(), "{error}");
        assert!(
            error.to_string().starts_with("`Lab::echo` did not run"),
            "{error}"
        );
        is_deadline::<()>(Err(error), Duration::ZERO);
        let hurried = both.client.with_deadline(Duration::from_nanos(1));
        let error = hurried.sleep(60_000).await.unwrap_err();
        assert!(matches!(error, CallError::Deadline { .. }), "{error}");
        assert_eq!(both.begun(), 0);
        both.is_clean().await;
    })
    .await;
}

#[tokio::test]
async fn time_is_up_while_a_handler_runs_and_it_is_dropped() {
    over_each(async |both| {
        let bound = Duration::from_millis(50);
        let hurried = both.client.with_deadline(bound);
        is_deadline(hurried.sleep(60_000).await, bound);
        is_deadline(hurried.work().await, bound);
        is_deadline(hurried.delegate().await, bound);
        both.is_clean().await;
    })
    .await;
}

#[tokio::test]
async fn time_is_up_for_a_call_that_nobody_polls() {
    over_each(async |both| {
        let hurried = both.client.with_deadline(Duration::from_millis(50));
        let never = hurried.sleep(60_000);
        let mut once = Box::pin(hurried.sleep(60_000));
        let waker = std::task::Waker::noop();
        let polled = once
            .as_mut()
            .poll(&mut std::task::Context::from_waker(waker));
        assert!(polled.is_pending());
        both.is_clean().await;
        drop((never, once));
    })
    .await;
}

#[tokio::test]
async fn many_deadlines_pass_each_in_its_time() {
    over_each(async |both| {
        let begun = Instant::now();
        let calls: Vec<_> = (0..200u64)
            .map(|i| Duration::from_millis(20 + i * 37 % 200))
            .map(|bound| (bound, both.client.with_deadline(bound).sleep(60_000)))
            .collect();
        for (bound, call) in calls {
            is_deadline(call.await, bound);
            assert!(begun.elapsed() >= bound);
        }
        assert!(begun.elapsed() < Duration::from_secs(30));
        both.is_clean().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn time_is_up_while_tensors_are_under_way() {
    over_each(async |both| {
        // The peer reads as fast as it can: the tensor is too large for the time. A busy machine may not have begun after 100 ms.
        let bound = Duration::from_millis(400);
        let hurried = both.client.with_deadline(bound);
        let large = Tensor::zeros(DType::U8, [4u64 << 30]).unwrap();
        if both.client.connection().route().transport == "tcp" {
            let begun = Instant::now();
            let error = hurried.length(&large).await.unwrap_err();
            assert!(
                matches!(error, CallError::Deadline { after, moving: true, .. } if after == bound),
                "{error:?}"
            );
            assert!(begun.elapsed() < Duration::from_secs(4));
            let begun = Instant::now();
            let error = hurried.zeros(4 << 30).await.unwrap_err();
            // Whether the answer had begun by then nobody knows.
            assert!(
                matches!(error, CallError::Deadline { after, .. } if after == bound),
                "{error:?}"
            );
            assert!(begun.elapsed() < Duration::from_secs(4));
        }
        drop(large);
        assert_eq!(both.begun(), 0);
        both.is_clean().await;
    })
    .await;
}

#[tensor_service]
trait Front {
    async fn left(&self) -> (Duration, Duration);
    async fn sleep(&self) -> Result<(), String>;
}

#[tensor_service]
trait Back {
    async fn left(&self, cx: &CallContext) -> Duration;
    async fn sleep(&self) -> ();
    async fn trace(&self, cx: &CallContext) -> (u128, u64);
}

struct FrontDesk {
    back: BackClient,
    seen: Mutex<Vec<CallError>>,
}

impl Front for FrontDesk {
    async fn left(&self) -> (Duration, Duration) {
        let mine = CallContext::current().unwrap();
        let theirs = self.back.left().await.unwrap();
        // On a task of its own the call has to be taken along.
        let spawned = tokio::spawn(mine.clone().scope({
            let back = self.back.clone();
            async move { back.trace().await.unwrap() }
        }));
        assert_eq!(
            spawned.await.unwrap(),
            (mine.trace().trace_id, mine.trace().span_id)
        );
        (mine.time_left().unwrap(), theirs)
    }

    async fn sleep(&self) -> Result<(), String> {
        let result = self.back.sleep().await;
        if let Err(error) = &result {
            self.seen.lock().unwrap().push(error.clone());
        }
        result.map_err(|error| error.to_string())
    }
}

struct BackOffice(std::sync::Arc<std::sync::atomic::AtomicUsize>);

impl Back for BackOffice {
    async fn left(&self, cx: &CallContext) -> Duration {
        cx.time_left().unwrap()
    }

    async fn sleep(&self) {
        let _at_it = super::lab::AtIt::new(&self.0);
        tokio::time::sleep(Duration::from_secs(60)).await;
    }

    async fn trace(&self, cx: &CallContext) -> (u128, u64) {
        (cx.trace().trace_id, cx.trace().span_id)
    }
}

#[tokio::test]
async fn a_nested_call_has_what_its_caller_has_left_and_its_trace_and_ends_with_it() {
    for context in [tcp, Context::builder] {
        let context = context().build().unwrap();
        let at_it = std::sync::Arc::default();
        let back = serve(
            &context,
            BackService::new(BackOffice(std::sync::Arc::clone(&at_it))),
        )
        .await;
        let service = FrontDesk {
            back: BackClient::connect_with(&context, back.url())
                .await
                .unwrap(),
            seen: Mutex::default(),
        };
        let front = serve(&context, FrontService::new(service)).await;
        let client = FrontClient::connect_with(&context, front.url())
            .await
            .unwrap();
        let trace = TraceContext {
            trace_id: 1 << 100 | 5,
            span_id: 9,
        };
        for _ in 0..3 {
            let (mine, theirs) = client
                .with_trace(trace)
                .with_deadline(Duration::from_secs(5))
                .left()
                .await
                .unwrap();
            assert!(theirs <= Duration::from_secs(5) && theirs > Duration::from_secs(2));
            assert!(mine <= Duration::from_secs(5));
        }
        let busy = || at_it.load(std::sync::atomic::Ordering::SeqCst);
        let call = client.sleep();
        until(|| busy() == 1).await;
        drop(call);
        until(|| busy() == 0).await;
        let bound = Duration::from_millis(60);
        let error = client.with_deadline(bound).sleep().await.unwrap_err();
        assert!(matches!(
            error,
            CallError::Deadline { .. } | CallError::Service(_)
        ));
        until(|| busy() == 0).await;
        assert_eq!(back.calls_in_flight() + front.calls_in_flight(), 0);
    }
}

#[tokio::test]
async fn a_client_of_another_runtime_keeps_its_deadlines() {
    over_each(async |Both { client, .. }| {
        let other = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            let hurried: LabClient = client.with_deadline(Duration::from_millis(50));
            runtime.block_on(async {
                is_deadline(hurried.sleep(60_000).await, Duration::from_millis(50))
            });
            runtime.block_on(async { assert_eq!(client.sleep(1).await.unwrap(), 1) });
        });
        tokio::task::spawn_blocking(move || other.join().unwrap())
            .await
            .unwrap();
    })
    .await;
}
