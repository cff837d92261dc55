//! A consumer or a producer dies, and either is started again.

use tensorpipe::Error;
use tensorpipe_rpc::CallError;
use tensorpipe_rpc::rendezvous::RecvError;
use tensorpipe_tests::{alone, eventually, soon};

use super::scene::{Far, Near, check, made, near_and_far, ran};

#[test]
fn a_consumer_that_dies_while_it_waits_gives_its_place_up() {
    alone(async || {
        let near = Near::start("near").await;
        let mut far = Far::start("far").await;
        far.knows("near", &near.url()).await;
        let waits = far.stage.recv("near", "x", 1);
        eventually("it waits here", || near.rendezvous.stats().waiting == 1).await;
        far.child.kill();
        eventually("its place is free", || near.rendezvous.stats().waiting == 0).await;
        drop(waits);
        let key = near.rendezvous.key_to("far", "x", 1).unwrap();
        near.rendezvous
            .send(&key, made(&near.context, 9, 1))
            .unwrap();
        // Started again, under its name.
        let far = Far::start("far").await;
        far.knows("near", &near.url()).await;
        let received = soon("a value", far.stage.recv("near", "x", 1)).await;
        assert_eq!(ran(received), Ok(9));
        eventually("nothing is held", || {
            near.rendezvous.stats() == Default::default()
        })
        .await;
    });
}

#[test]
fn a_consumer_that_dies_while_a_value_comes_does_not_take_it_along() {
    alone(async || {
        // One that rides in a frame, and a large one.
        for len in [100, 6 << 20] {
            let near = Near::start("near").await;
            let mut far = Far::start("far").await;
            far.knows("near", &near.url()).await;
            let waits = far.stage.recv("near", "x", 1);
            eventually("it waits here", || near.rendezvous.stats().waiting == 1).await;
            // It stands still, so that the value is on its way, and never confirmed.
            far.child.suspend();
            let key = near.rendezvous.key_to("far", "x", 1).unwrap();
            near.rendezvous
                .send(&key, made(&near.context, len, 1))
                .unwrap();
            eventually("it is given to the pipe", || {
                near.rendezvous.stats().waiting == 0
            })
            .await;
            assert_eq!(near.rendezvous.stats().bytes, len);
            far.child.kill();
            drop(waits);
            let far = Far::start("far").await;
            far.knows("near", &near.url()).await;
            let received = soon("a value", far.stage.recv("near", "x", 1)).await;
            assert_eq!(ran(received), Ok(len));
            eventually("nothing is held", || {
                near.rendezvous.stats() == Default::default()
            })
            .await;
        }
    });
}

#[test]
fn a_consumer_asks_again_after_its_connection_broke() {
    alone(async || {
        let (near, far) = near_and_far().await;
        let key = near.key("far", "x", 1).await;
        let waits = near.rendezvous.recv(&key);
        far.is("it waits there", |(.., waiting)| waiting == 1).await;
        let connection = near.rendezvous.connection("far").unwrap();
        soon("a close", connection.close()).await.unwrap();
        let error = soon("the end", waits).await.unwrap_err();
        println!("{error}");
        assert!(matches!(error, RecvError::Call { .. }), "{error}");
        far.send("near", "x", 1, 11).await.unwrap();
        // The same incarnation, over another connection.
        let value = soon("a value", near.rendezvous.recv(&key)).await.unwrap();
        assert_eq!(check(&value, 1), 11);
    });
}

#[test]
fn a_producer_that_dies_is_an_error_at_once_and_one_that_comes_again_is_another() {
    alone(async || {
        let (near, mut far) = near_and_far().await;
        let key = near.key("far", "x", 1).await;
        let waits = near.rendezvous.recv(&key);
        far.is("it waits there", |(.., waiting)| waiting == 1).await;
        far.child.kill();
        let error = soon("the end", waits).await.unwrap_err();
        println!("{error}");
        let RecvError::Call { producer, error } = error else {
            panic!("{error}");
        };
        assert_eq!(&*producer, "far");
        assert!(
            matches!(
                &error,
                CallError::Connection {
                    error: Error::Lost { .. },
                    ..
                }
            ),
            "{error:?}"
        );
        assert_eq!(near.rendezvous.stats().waiting, 0);

        let again = Far::start("far").await;
        near.knows("far", &again).await;
        again.send("near", "x", 1, 12).await.unwrap();
        let error = soon("the end", near.rendezvous.recv(&key))
            .await
            .unwrap_err();
        println!("{error}");
        let RecvError::Restarted {
            expected, found, ..
        } = error
        else {
            panic!("{error}");
        };
        assert_eq!(expected, key.incarnation());
        let key = near.key("far", "x", 1).await;
        assert_eq!(found, key.incarnation());
        let value = soon("a value", near.rendezvous.recv(&key)).await.unwrap();
        assert_eq!(check(&value, 1), 12);
    });
}
