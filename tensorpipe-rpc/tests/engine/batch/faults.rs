//! Faults of a batch, and which callers see them.

use tensorpipe::Tensor;
use tensorpipe_rpc::CallError;

use super::model::{Bomb, ERROR, Models, PANIC, SCALAR, SHORT, are, over_each, rows};

/// Three callers share a batch, of which one row has this value. What each of them gets.
async fn shared(models: &Models, value: f32) -> Vec<CallError<String>> {
    let [a, b, c] = [0, 1, 2].map(|i| &models.clients[i]);
    let (a, b, c) = tokio::join!(
        a.scale(rows(3, 1.0), 2.0),
        b.scale(rows(1, value), 2.0),
        c.scale(rows(4, 1.0), 2.0),
    );
    let errors = [a, b, c].map(Result::unwrap_err).into();
    // The next batch is as good as any.
    let x = models.clients[0].scale(rows(8, 1.0), 2.0).await.unwrap();
    assert!(are(&x, 8, 2.0));
    models.is_clean().await;
    errors
}

#[tokio::test]
async fn an_error_or_a_panic_of_the_method_is_that_of_every_caller_and_the_server_goes_on() {
    over_each(3, async |models| {
        for error in shared(&models, ERROR).await {
            let is_its = matches!(&error, CallError::Service(text) if text == "no such row");
            assert!(is_its, "{error}");
        }
        for error in shared(&models, PANIC).await {
            let is_its = matches!(&error, CallError::Panicked { message, .. } if &**message == "over 8 rows");
            assert!(is_its, "{error}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_result_of_other_rows_is_refused_and_both_shapes_are_named() {
    over_each(3, async |models| {
        for (value, shape) in [(SHORT, "[7, 2]"), (SCALAR, "[]")] {
            for error in shared(&models, value).await {
                assert!(matches!(error, CallError::BadReply(_)), "{error}");
                let wanted = format!(
                    "`scale` was given a batch of 8 rows and returned a tensor of shape {shape}"
                );
                assert!(error.to_string().contains(&wanted), "{error}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_call_that_cannot_be_gathered_fails_alone() {
    over_each(2, async |models| {
        let [a, b] = [&models.clients[0], &models.clients[1]];
        let waits = a.scale(rows(4, 1.0), 2.0);
        models.waiting("scale", 1).await;
        let error = b.scale(Tensor::scalar(1f32), 2.0).await.unwrap_err();
        assert!(matches!(error, CallError::BadArguments(_)), "{error}");
        assert!(
            error
                .to_string()
                .contains("`x` of `scale` has no dimensions")
        );
        assert!(!error.may_have_run());

        let mask = Tensor::from(vec![1u8, 1]);
        let error = b.label("n", rows(3, 1.0), mask).await.unwrap_err();
        assert!(matches!(error, CallError::BadArguments(_)), "{error}");
        let text = error.to_string();
        assert!(
            text.contains("`mask` of `label` has 2 rows and `x` has 3"),
            "{text}"
        );

        assert_eq!(models.stats("scale").waiting, 1);
        let fills = b.scale(rows(4, 3.0), 2.0).await.unwrap();
        assert!(are(&fills, 4, 6.0) && are(&waits.await.unwrap(), 4, 2.0));
        assert_eq!(models.stats("scale").calls, 2);
        models.is_clean().await;
    })
    .await;
}

#[tokio::test]
async fn rows_that_take_no_memory_are_counted_all_the_same() {
    over_each(1, async |models| {
        // As many as a peer likes to claim.
        let claims = Tensor::from_vec(Vec::<f32>::new(), [u64::MAX, 0]).unwrap();
        let calls = [(); 2].map(|()| models.clients[0].scale(&claims, 2.0));
        for call in calls {
            assert_eq!(call.await.unwrap().shape(), [u64::MAX, 0]);
        }
        assert_eq!(models.shapes(), [[u64::MAX, 0], [u64::MAX, 0]]);
        models.is_clean().await;
    })
    .await;
}

#[tokio::test]
async fn of_an_idempotent_method_only_the_caller_at_fault_fails() {
    over_each(3, async |models| {
        for value in [ERROR, PANIC, SHORT] {
            let [a, b, c] = [0, 1, 2].map(|i| &models.clients[i]);
            let before = models.shapes().len();
            let (a, b, c) = tokio::join!(
                a.careful(rows(3, 1.0), 2.0),
                b.careful(rows(1, value), 2.0),
                c.careful(rows(4, 1.0), 2.0),
            );
            assert!(are(&a.unwrap(), 3, 2.0) && are(&c.unwrap(), 4, 2.0));
            let error = b.unwrap_err();
            assert!(
                matches!(
                    error,
                    CallError::Service(_) | CallError::Panicked { .. } | CallError::BadReply(_)
                ),
                "{error}"
            );
            // Once together, and once each.
            assert_eq!(models.shapes().len() - before, 4);
        }
        let stats = models.stats("careful");
        assert_eq!((stats.runs, stats.calls, stats.reruns), (3, 9, 9));
        models.is_clean().await;
    })
    .await;
}

#[tokio::test]
async fn an_argument_that_panics_when_it_is_dropped_takes_nobodys_reply() {
    over_each(3, async |models| {
        let [a, b, c] = [0, 1, 2].map(|i| &models.clients[i]);
        let (a, b, c) = tokio::join!(
            a.armed(rows(3, 1.0), Bomb),
            b.armed(rows(1, 2.0), Bomb),
            c.armed(rows(4, 3.0), Bomb),
        );
        assert!(are(&a.unwrap(), 3, 1.0));
        assert!(are(&b.unwrap(), 1, 2.0));
        assert!(are(&c.unwrap(), 4, 3.0));
        Bomb::disarm();
        models.is_clean().await;
    })
    .await;
}
