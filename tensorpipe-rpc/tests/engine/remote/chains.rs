//! A call takes the result of another call as its argument before that result exists.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tensorpipe_rpc::CallError;

use super::house::*;
use crate::lab::{tensor, until};

/// Calls of a chain, of which each would take more than a KiB of stack.
const LONG_CHAIN: usize = 1000;

const SMALL_STACK: usize = 512 << 10;

#[tokio::test]
async fn a_chain_of_calls_leaves_at_once_and_its_middle_never_comes_here() {
    over_each(async |house| {
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

/// Each of its calls keeps the reference that the one before promised: they go one after another, not one within another.
#[test]
fn a_long_chain_that_is_given_up_or_answered_needs_no_deep_stack() {
    let story = || async {
        over_each(async |house| {
            for answered in [false, true] {
                let first = house.client.slow(0);
                let mut last = house.client.add(&first, &first);
                drop(first);
                for _ in 1..LONG_CHAIN {
                    last = house.client.add(&last, &last);
                }
                until(|| house.keeper.begun.load(Ordering::SeqCst) == 1).await;
                match answered {
                    false => drop(last),
                    true => {
                        house.keeper.gate.add_permits(1);
                        assert_eq!(last.await.unwrap().fetch().await.unwrap(), 0);
                    }
                }
                house.is_empty().await;
            }
        })
        .await;
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let thread = std::thread::Builder::new().stack_size(SMALL_STACK);
    let thread = thread.spawn(move || runtime.block_on(story())).unwrap();
    thread.join().unwrap();
}

#[tokio::test]
async fn a_call_waits_for_those_that_it_was_given_however_long_they_take() {
    over_each(async |house| {
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

/// Its tensor comes after the call that was given its result.
#[tokio::test]
async fn a_call_waits_for_one_of_which_not_all_has_come() {
    over_each(async |house| {
        let kept = house.client.keep(tensor(64 << 20, 1));
        assert_eq!(house.client.length(&kept).await.unwrap(), 64 << 20);
        drop(kept);
        house.is_empty().await;
    })
    .await;
}

#[tokio::test]
async fn a_call_that_fails_fails_those_that_were_given_its_result() {
    over_each(async |house| {
        let failed = house.client.fails();
        let sum = house.client.add(&house.client.number(1), &failed);
        let next = house.client.add(&sum, &sum);
        for call in [sum, next] {
            let error = call.await.unwrap_err();
            assert!(matches!(error, CallError::Unresolved(_)), "{error}");
            assert!(
                error.to_string().contains("its own error says why"),
                "{error}"
            );
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
async fn an_error_with_references_is_no_result_for_a_call_that_waits() {
    over_each(async |house| {
        let refused = house.client.refuses_ref(7);
        let sum = house.client.add(&house.client.number(1), &refused);
        let error = sum.await.unwrap_err();
        assert!(matches!(error, CallError::Unresolved(_)), "{error}");
        match refused.await {
            Err(CallError::Service(pair)) => {
                assert_eq!(pair.left.fetch().await.unwrap(), 7);
                assert_eq!(pair.right[2].fetch().await.unwrap(), 9);
            }
            other => panic!("{other:?}"),
        }
        house.is_empty().await;
    })
    .await;
}

#[tokio::test]
async fn an_error_with_references_that_nobody_takes_leaves_nothing_behind() {
    over_each(async |house| {
        for is_answered in [false, true] {
            let refused = house.client.refuses_ref(7);
            let sum = house.client.add(&house.client.number(1), &refused);
            if is_answered {
                sum.await.unwrap_err();
                drop(refused);
            } else {
                drop(refused);
                sum.await.unwrap_err();
            }
            house.is_empty().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_call_nobody_wants_the_result_of_any_more_is_cancelled() {
    over_each(async |house| {
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
    over_each(async |house| {
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
