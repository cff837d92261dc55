//! Values that come too late, are no longer wanted, exceed a limit, or are given up.

use std::time::Duration;

use tensorpipe_rpc::rendezvous::RecvError;
use tensorpipe_tests::{alone, eventually, soon};

use super::scene::{Far, Near, check, made, near_and_far, ran};

const MIB: u64 = 1 << 20;

#[test]
fn a_deadline_ends_a_receive_at_both_ends_and_the_value_is_not_lost() {
    alone(async || {
        let (near, far) = near_and_far().await;
        let key = near.key("far", "slow", 1).await;
        let bound = Duration::from_millis(50);
        let error = soon("a deadline", near.rendezvous.recv_within(&key, bound)).await;
        let error = error.unwrap_err();
        println!("{error}");
        assert!(matches!(error, RecvError::Deadline { .. }), "{error}");
        far.is("nobody waits there", |stats| stats == (0, 0, 0, 0))
            .await;
        far.send("near", "slow", 1, 5).await.unwrap();
        let value = soon("a value", near.rendezvous.recv(&key)).await.unwrap();
        assert_eq!(check(&value, 1), 5);
    });
}

#[test]
fn nobody_there_in_time_is_a_deadline_too() {
    alone(async || {
        let near = Near::start("near").await;
        // Nobody listens at port 1; connecting tries for longer than this.
        near.rendezvous
            .add_peer("far", "tcp://127.0.0.1:1")
            .unwrap();
        let key = tensorpipe_rpc::rendezvous::Key::new("far", 1, "near", "x", 1).unwrap();
        let bound = Duration::from_millis(50);
        let error = soon("a deadline", near.rendezvous.recv_within(&key, bound)).await;
        let error = error.unwrap_err();
        println!("{error}");
        assert!(matches!(error, RecvError::Deadline { .. }), "{error}");
    });
}

#[test]
fn a_receive_that_is_given_up_leaves_the_value_with_its_producer() {
    alone(async || {
        let (near, far) = near_and_far().await;
        let key = near.key("far", "x", 1).await;
        let dropped = near.rendezvous.recv(&key);
        far.is("it waits there", |(.., waiting)| waiting == 1).await;
        drop(dropped);
        far.is("its place is free", |(.., waiting)| waiting == 0)
            .await;
        // A large one, dropped while it comes.
        far.send("near", "x", 1, 8 * MIB).await.unwrap();
        drop(near.rendezvous.recv(&key));
        let value = soon("a value", near.rendezvous.recv(&key)).await.unwrap();
        assert_eq!(check(&value, 1), 8 * MIB);
        far.is("nothing is held", |stats| stats == (0, 0, 0, 0))
            .await;
    });
}

#[test]
fn beyond_the_bound_a_producer_is_told_or_held_back_as_it_chose() {
    alone(async || {
        let near = Near::start("near").await;
        let far = Far::start("far", Some(2 * MIB)).await;
        near.knows("far", &far).await;
        far.send("near", "a", 1, MIB).await.unwrap();
        far.send("near", "b", 1, MIB).await.unwrap();
        let error = far.send("near", "c", 1, 1).await.unwrap_err();
        println!("{error}");
        assert!(error.contains("2097152 bytes in 2 values"), "{error}");
        // Held back: in their order, when there is room.
        let calls: Vec<_> = ["c", "d", "e"]
            .map(|tensor| far.stage.wait("near", tensor, 1, MIB))
            .into_iter()
            .collect();
        far.is("three wait", |(_, _, blocked, _)| blocked == 3)
            .await;
        for tensor in ["a", "b", "c", "d", "e"] {
            let key = near.key("far", tensor, 1).await;
            let value = soon("a value", near.rendezvous.recv(&key)).await;
            assert_eq!(check(&value.unwrap(), 1), MIB);
            // What is asked for comes beside the bound, until its producer knows that it is here.
            far.is("within its bound", |(bytes, ..)| bytes <= 2 * MIB)
                .await;
        }
        for call in calls {
            ran(soon("a send", call).await).unwrap();
        }
        far.is("nothing is held", |stats| stats == (0, 0, 0, 0))
            .await;
    });
}

#[test]
fn a_bound_does_not_stop_what_is_asked_for_out_of_order() {
    alone(async || {
        let near = Near::start("near").await;
        let far = Far::start("far", Some(MIB)).await;
        near.knows("far", &far).await;
        far.send("near", "later", 1, MIB).await.unwrap();
        let blocked = far.stage.wait("near", "first", 1, MIB);
        far.is("one waits", |(_, _, blocked, _)| blocked == 1).await;
        for tensor in ["first", "later"] {
            let key = near.key("far", tensor, 1).await;
            let value = soon("a value", near.rendezvous.recv(&key)).await;
            assert_eq!(check(&value.unwrap(), 1), MIB);
        }
        ran(soon("a send", blocked).await).unwrap();
    });
}

#[test]
fn an_abort_reaches_those_who_wait_in_two_other_processes() {
    alone(async || {
        let near = Near::start("near").await;
        let (far, other) = (
            Far::start("far", None).await,
            Far::start("other", None).await,
        );
        near.knows("far", &far).await;
        other.knows("far", &far.url).await;
        let key = near.key("far", "x", 1).await;
        let here = near.rendezvous.recv(&key);
        let there = other.stage.recv("far", "x", 1);
        far.is("both wait", |(.., waiting)| waiting == 2).await;
        soon("a call", far.stage.abort("the loss is not a number"))
            .await
            .unwrap();
        let words = "the rendezvous of `far` was aborted: the loss is not a number";
        let error = soon("the abort", here).await.unwrap_err();
        assert!(matches!(error, RecvError::Aborted(_)), "{error}");
        assert_eq!(error.to_string(), words);
        let error = ran(soon("the abort", there).await).unwrap_err();
        assert_eq!(error, words);
        // Whoever waits for nothing of it goes on.
        assert_eq!(near.rendezvous.stats(), Default::default());
        let own = near.rendezvous.key_to("near", "y", 1).unwrap();
        near.rendezvous
            .send(&own, made(&near.context, 4, 1))
            .unwrap();
    });
}

#[test]
fn an_abort_everywhere_frees_a_producer_that_waits_for_room() {
    alone(async || {
        let near = Near::start("near").await;
        let far = Far::start("far", Some(MIB)).await;
        near.knows("far", &far).await;
        far.send("near", "a", 1, MIB).await.unwrap();
        let blocked = far.stage.wait("near", "b", 1, MIB);
        far.is("one waits", |(_, _, blocked, _)| blocked == 1).await;
        let known = soon("a key", near.rendezvous.incarnation_of("far")).await;
        known.unwrap();
        soon("an abort", near.rendezvous.abort_everywhere("enough")).await;
        let error = ran(soon("the abort", blocked).await).unwrap_err();
        assert_eq!(error, "the rendezvous of `near` was aborted: enough");
        far.is("nothing is held", |stats| stats == (0, 0, 0, 0))
            .await;
    });
}

#[test]
fn a_finished_step_is_swept_and_ends_what_waits_for_it_elsewhere() {
    alone(async || {
        let (near, far) = near_and_far().await;
        far.send("near", "unclaimed", 7, MIB).await.unwrap();
        let key = near.key("far", "never", 7).await;
        let waits = near.rendezvous.recv(&key);
        far.is("it waits there", |stats| stats == (MIB, 1, 0, 1))
            .await;
        soon("a call", far.stage.finish(7)).await.unwrap();
        let error = soon("the end", waits).await.unwrap_err();
        assert!(matches!(error, RecvError::Finished { step: 7 }), "{error}");
        eventually("nobody waits", || near.rendezvous.stats().waiting == 0).await;
        far.is("nothing is held", |stats| stats == (0, 0, 0, 0))
            .await;
        let late = far.send("near", "late", 7, 1).await.unwrap_err();
        assert!(late.contains("step 7 is finished"), "{late}");
    });
}
