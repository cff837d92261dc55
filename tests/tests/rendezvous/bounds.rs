//! Values that come too late, or that nobody wants any more.

use std::time::Duration;

use tensorpipe_rpc::rendezvous::RecvError;
use tensorpipe_tests::{alone, soon};

use super::scene::{Near, check, near_and_far};

const MIB: u64 = 1 << 20;

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
