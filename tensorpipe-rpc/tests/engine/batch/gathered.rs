//! Which calls share a batch, and that each caller gets its own rows.

use tensorpipe::{DType, Tensor};
use tensorpipe_rpc::CallError;

use super::model::{Hidden, are, over_each, rows};

#[tokio::test]
async fn calls_of_several_clients_are_one_run_and_each_gets_its_rows() {
    over_each(4, async |models| {
        let [a, b, c, d] = [0, 1, 2, 3].map(|i| &models.clients[i]);
        // Of any number of rows, none too. The last one fills the batch.
        let mut calls = vec![(a.scale(rows(1, 1.0), 10.0), 1, 10.0)];
        models.waiting("scale", 1).await;
        calls.push((b.scale(rows(3, 2.0), 10.0), 3, 20.0));
        calls.push((c.scale(rows(0, 0.0), 10.0), 0, 0.0));
        models.waiting("scale", 3).await;
        assert_eq!(models.server.calls_in_flight(), 3);
        calls.push((d.scale(rows(3, 4.0), 10.0), 3, 40.0));
        for (call, count, value) in calls {
            assert!(are(&call.await.unwrap(), count, value), "{value}");
        }
        let run = (vec![7, 2], "near 0".to_owned());
        assert_eq!(*models.machine.runs.lock().unwrap(), [run]);
        let stats = models.stats("scale");
        assert_eq!((stats.runs, stats.calls, stats.rows), (1, 4, 7));
        models.is_clean().await;
    })
    .await;
}

#[tokio::test]
async fn large_tensors_are_gathered_too() {
    over_each(2, async |models| {
        let large = |seed: u32| {
            let row = |i: u32| (i.wrapping_mul(seed) % 1009) as f32;
            Tensor::from_vec((0..1 << 20).map(row).collect(), [4, 1 << 18]).unwrap()
        };
        let [a, b] = [&models.clients[0], &models.clients[1]];
        let (x, y) = (large(7), large(13));
        let (twice_x, twice_y) = tokio::try_join!(a.scale(&x, 2.0), b.scale(&y, 2.0)).unwrap();
        for (once, twice) in [(x, twice_x), (y, twice_y)] {
            let (once, twice) = (once.as_slice::<f32>(), twice.as_slice::<f32>());
            let pairs = once.unwrap().iter().zip(twice.unwrap());
            assert!(pairs.into_iter().all(|(once, twice)| 2.0 * once == *twice));
        }
        assert_eq!(models.shapes(), [[8, 1 << 18]]);
        models.is_clean().await;
    })
    .await;
}

#[tokio::test]
async fn other_values_types_and_shapes_are_other_batches() {
    over_each(2, async |models| {
        let [a, b] = [&models.clients[0], &models.clients[1]];
        let other_type = Tensor::zeros(DType::F64, [7, 2]).unwrap();
        let other_shape = Tensor::zeros(DType::F32, [7, 3]).unwrap();
        let apart = [
            a.scale(rows(7, 1.0), 2.0),
            b.scale(rows(7, 1.0), 3.0),
            a.scale(&other_type, 2.0),
            b.scale(&other_shape, 2.0),
        ];
        models.waiting("scale", 4).await;
        assert_eq!(models.stats("scale").runs, 0);
        let rest = [
            b.scale(other_shape.rows(0..1).unwrap(), 2.0),
            b.scale(other_type.rows(0..1).unwrap(), 2.0),
            a.scale(rows(1, 5.0), 3.0),
            b.scale(rows(1, 5.0), 2.0),
        ];
        let mut answers = Vec::new();
        for call in apart.into_iter().chain(rest) {
            answers.push(call.await.unwrap());
        }
        assert!(are(&answers[0], 7, 2.0) && are(&answers[1], 7, 3.0));
        assert!(are(&answers[6], 1, 15.0) && are(&answers[7], 1, 10.0));
        let mut shapes = models.shapes();
        shapes.sort();
        assert_eq!(shapes, [[8, 2], [8, 2], [8, 2], [8, 3]]);
        models.is_clean().await;
    })
    .await;
}

#[tokio::test]
async fn a_call_that_is_a_batch_by_itself_waits_for_nobody() {
    over_each(2, async |models| {
        let [a, b] = [&models.clients[0], &models.clients[1]];
        let waits = a.scale(rows(2, 1.0), 2.0);
        models.waiting("scale", 1).await;
        // Full, and more than full: the one that waits goes on waiting.
        for count in [8, 20] {
            let x = b.scale(rows(count, 1.0), 2.0).await.unwrap();
            assert!(are(&x, count, 2.0));
        }
        models.waiting("scale", 1).await;
        let fills = b.scale(rows(6, 3.0), 2.0).await.unwrap();
        assert!(are(&fills, 6, 6.0) && are(&waits.await.unwrap(), 2, 2.0));
        assert_eq!(models.shapes(), [[8, 2], [20, 2], [8, 2]]);
        models.is_clean().await;
    })
    .await;
}

#[tokio::test]
async fn several_tensors_go_in_and_whatever_is_made_of_rows_comes_out() {
    over_each(2, async |models| {
        let [a, b] = [&models.clients[0], &models.clients[1]];
        let x = |values: &[f32]| Tensor::from(values.to_vec());
        let mask = |values: &[u8]| Tensor::from(values.to_vec());
        let (a, b) = tokio::try_join!(
            a.label("n", x(&[1.0, 2.0, 3.0]), mask(&[1, 0, 1])),
            b.label("n", x(&[4.0; 5]), mask(&[1, 1, 1, 1, 2])),
        )
        .unwrap();
        assert_eq!(a.sums.as_slice::<f32>().unwrap(), [1.0, 0.0, 3.0]);
        assert_eq!(a.labels, ["n 1", "n 0", "n 3"]);
        assert_eq!(b.sums.as_slice::<f32>().unwrap()[3..], [4.0, 8.0]);
        assert_eq!((b.labels.len(), b.name.as_str()), (5, "n"));
        assert_eq!(models.stats("label").runs, 1);
        models.is_clean().await;
    })
    .await;
}

#[tokio::test]
async fn tensors_and_references_that_hide_where_values_tell_calls_apart_are_refused() {
    over_each(2, async |models| {
        let [a, b] = [&models.clients[0], &models.clients[1]];
        let plain = a.hidden(rows(1, 1.0), Hidden::default());
        assert!(are(&plain.await.unwrap(), 1, 1.0));
        // The same bytes at both callers, and another value for each.
        let (x, y) = tokio::try_join!(a.keep(), b.keep()).unwrap();
        let hide = |tensor, number| Hidden { tensor, number };
        for call in [
            a.hidden(rows(1, 1.0), hide(Some(rows(1, 2.0)), None)),
            a.hidden(rows(1, 1.0), hide(None, Some(x))),
            b.hidden(rows(1, 1.0), hide(None, Some(y))),
        ] {
            let error = call.await.unwrap_err();
            assert!(matches!(error, CallError::BadArguments(_)), "{error}");
            let text = error.to_string();
            assert!(
                text.contains("`hidden`") && text.contains("an argument of its own"),
                "{text}"
            );
        }
        assert_eq!(models.stats("hidden").runs, 1);
        models.is_clean().await;
    })
    .await;
}

#[tokio::test]
async fn a_reference_cannot_be_that_of_all_callers() {
    over_each(2, async |models| {
        let [a, b] = [&models.clients[0], &models.clients[1]];
        let (x, y) = tokio::join!(a.reveal(rows(1, 1.0)), b.reveal(rows(1, 1.0)));
        for answer in [x, y] {
            let error = answer.unwrap_err();
            assert!(matches!(error, CallError::BadReply(_)), "{error}");
        }
        models.is_clean().await;
    })
    .await;
}

/// By count of runs, not by time: a handler with a cost of its own for each run, whatever is in it.
#[tokio::test]
async fn sixteen_clients_at_once_make_batches_of_at_least_eight() {
    over_each(16, async |models| {
        let clients = models.clients.iter().enumerate().map(async |(i, client)| {
            for round in 0..20 {
                let value = (100 * i + round) as f32;
                let (x, same) = client.slow(rows(1, value)).await.unwrap();
                assert!(are(&x, 1, value) && are(&same.unwrap(), 1, value));
            }
        });
        futures_util::future::join_all(clients).await;
        let stats = models.stats("slow");
        assert_eq!((stats.calls, stats.rows), (320, 320));
        assert!(stats.mean_calls() >= 8.0, "{stats:?}");
        models.is_clean().await;
    })
    .await;
}
