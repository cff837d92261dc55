//! Dropping a call, at every stage: nothing leaks, and the connection goes on.

use std::time::Duration;

use tensorpipe::{DType, Tensor};

use super::lab::{Both, over_each, tensor, until};

const LARGE: u64 = 4 << 30;

/// Within a process a tensor is handed over, and is never under way.
fn moves_bytes(both: &Both) -> bool {
    let transport = &both.client.connection().route().transport;
    assert!(["tcp", "shm", "memory"].contains(&&**transport));
    transport != "memory"
}

#[tokio::test]
async fn before_anything_is_polled() {
    over_each(async |both| {
        for _ in 0..100 {
            drop(both.client.sleep(60_000));
            drop(both.client.bounce(tensor(300_000, 1)));
            drop(both.client.zeros(1 << 20));
        }
        both.is_clean().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_arguments_are_under_way() {
    over_each(async |both| {
        if moves_bytes(&both) {
            let large = Tensor::zeros(DType::U8, [LARGE]).unwrap();
            let before = both.client.connection().pipe().stats().bytes_out;
            let call = both.client.length(&large);
            let sent = || both.client.connection().pipe().stats().bytes_out - before;
            until(|| sent() > 1 << 20).await;
            drop(call);
            assert!(sent() < LARGE / 2);
            until(|| both.server.calls_in_flight() == 0).await;
            assert_eq!(both.begun(), 0, "it never ran");
        }
        both.is_clean().await;
    })
    .await;
}

#[tokio::test]
async fn while_the_handler_runs() {
    over_each(async |both| {
        let calls = [
            Box::pin(async { both.client.sleep(60_000).await.map(drop) })
                as std::pin::Pin<Box<dyn Future<Output = _>>>,
            Box::pin(async { both.client.work().await }),
            Box::pin(async { both.client.delegate().await }),
        ];
        for mut call in calls {
            let at_it = until(|| both.at_it() == 1);
            tokio::select! {
                _ = &mut call => panic!("it was not to end"),
                () = at_it => {}
            }
            drop(call);
            both.is_clean().await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_reply_is_under_way() {
    over_each(async |both| {
        if moves_bytes(&both) {
            let mut call = both.client.zeros(LARGE);
            let before = both.client.connection().pipe().stats().bytes_in;
            let received = || both.client.connection().pipe().stats().bytes_in - before;
            tokio::select! {
                _ = &mut call => panic!("it was not to end"),
                () = until(|| received() > 1 << 20) => {}
            }
            drop(call);
            both.is_clean().await;
            assert!(received() < LARGE / 2);
        }
        // And a reply that is still waiting to be asked for.
        let call = both.client.zeros(10 << 20);
        tokio::time::sleep(Duration::from_millis(5)).await;
        drop(call);
        both.is_clean().await;
    })
    .await;
}

#[tokio::test]
async fn a_call_outlives_its_client_and_connection() {
    over_each(async |both| {
        let Both { client, server, .. } = both;
        let call = client.sleep(30);
        drop(client);
        assert_eq!(call.await.unwrap(), 30);
        until(|| server.pipes().is_empty()).await;
    })
    .await;
}

#[tokio::test]
async fn the_last_call_dropped_closes_the_connection_and_ends_the_handler() {
    over_each(async |both| {
        let Both {
            client,
            server,
            bench,
            ..
        } = both;
        let call = client.work();
        drop(client);
        let at_it = || bench.at_it.load(std::sync::atomic::Ordering::SeqCst);
        until(|| at_it() == 1).await;
        drop(call);
        until(|| at_it() == 0 && server.calls_in_flight() == 0).await;
        until(|| server.pipes().is_empty()).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_goes_while_the_reply_is_under_way() {
    over_each(async |both| {
        if !moves_bytes(&both) {
            return;
        }
        let url = both.server.url().to_string();
        for goodbye in [true, false] {
            let client = super::lab::LabClient::connect_with(&both.near, &url);
            let client = client.await.unwrap();
            let mut call = client.zeros(LARGE);
            let connection = client.connection().clone();
            drop(client);
            let received = || connection.pipe().stats().bytes_in;
            tokio::select! {
                _ = &mut call => panic!("it was not to end"),
                () = until(|| received() > 1 << 20) => {}
            }
            if goodbye {
                let (closed, ended) = tokio::join!(connection.close(), call);
                closed.unwrap();
                assert!(ended.unwrap_err().may_have_run());
            } else {
                drop((connection, call));
            }
            until(|| both.server.pipes().len() == 1).await;
            both.is_clean().await;
        }
    })
    .await;
}
