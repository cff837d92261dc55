//! Values that cross as they should.

use futures_util::future::join_all;
use tensorpipe_tests::{alone, eventually, soon};

use super::scene::{Far, Near, check, made, near_and_far, ran};

#[test]
fn a_tensor_of_a_pool_reaches_another_process_without_a_copy() {
    alone(async || {
        let (near, far) = near_and_far().await;
        const LEN: u64 = 3 << 20;
        for step in 0..4 {
            let key = near.key("far", "weights", step).await;
            // Before it is sent, and after.
            let early = (step % 2 == 0).then(|| near.rendezvous.recv(&key));
            far.send("near", "weights", step, LEN).await.unwrap();
            let recv = early.unwrap_or_else(|| near.rendezvous.recv(&key));
            let value = soon("a value", recv).await.unwrap();
            assert_eq!(check(&value, step), LEN);
        }
        let stats = near.rendezvous.connection("far").unwrap();
        let stats = stats.pipe().stats();
        assert_eq!((stats.bytes_borrowed, stats.bytes_copied), (4 * LEN, 0));
        far.is("nothing is held", |(bytes, values, ..)| {
            (bytes, values) == (0, 0)
        })
        .await;
    });
}

#[test]
fn values_go_round_three_processes_many_at_once() {
    alone(async || {
        let near = Near::start("near").await;
        let (first, second) = (Far::start("first").await, Far::start("second").await);
        first.knows("near", &near.url()).await;
        second.knows("first", &first.url).await;
        near.knows("second", &second).await;
        const STEPS: u64 = 60;
        let len = |step: u64| 1 + step * 997;
        let relays: Vec<_> = (0..STEPS)
            .flat_map(|step| {
                let one = first.stage.relay("near", "second", "x", step);
                let two = second.stage.relay("first", "near", "x", step);
                [one, two]
            })
            .collect();
        let mut asked = Vec::new();
        for step in (0..STEPS).rev() {
            let key = near.key("second", "x", step).await;
            asked.push((step, near.rendezvous.recv(&key)));
        }
        for step in 0..STEPS {
            let key = near.rendezvous.key_to("first", "x", step).unwrap();
            let value = made(&near.context, len(step), step);
            near.rendezvous.send(&key, value).unwrap();
        }
        for (step, recv) in asked {
            let mut value = soon("a value", recv).await.unwrap();
            let bytes = value.tensor.make_mut::<u8>().unwrap();
            bytes
                .iter_mut()
                .for_each(|byte| *byte = byte.wrapping_sub(2));
            assert_eq!(check(&value, step), len(step));
        }
        for relayed in soon("relays", join_all(relays)).await {
            ran(relayed).unwrap();
        }
        eventually("nothing is held", || {
            near.rendezvous.stats() == Default::default()
        })
        .await;
        for far in [&first, &second] {
            far.is("nothing is held", |stats| stats == (0, 0, 0, 0))
                .await;
        }
    });
}

#[test]
fn a_dead_value_reaches_another_process() {
    alone(async || {
        let (near, far) = near_and_far().await;
        far.send("near", "branch", 1, 0).await.unwrap();
        let key = near.key("far", "branch", 1).await;
        let value = soon("a value", near.rendezvous.recv(&key)).await;
        assert!(value.unwrap().is_dead);
    });
}
