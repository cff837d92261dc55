//! Streams from one process to another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::{StreamExt, stream};
use tensorpipe_rpc::CallError;
use tensorpipe_tests::{Child, alone, eventually, runtime, say, soon};

use super::works::{client, here, is_numbered, numbered, parent};

#[test]
fn a_server_that_dies_in_mid_stream_is_an_error_at_once() {
    alone(async || {
        for bytes in [100, 5 << 20] {
            let mut child = Child::start("server", &[]);
            let (client, _) = client(&child.hear("url")).await;
            let mut tensors = client.tensors(0, bytes);
            for i in 0..20 {
                let tensor = soon("an item", tensors.next()).await.unwrap();
                assert!(is_numbered(&tensor.unwrap(), i));
            }
            let given = Arc::new(AtomicBool::new(true));
            let gone = OnDrop(given.clone());
            let measured = client.measure(stream::iter(0u64..).map(move |i| {
                let _gone = &gone;
                numbered(bytes, i)
            }));
            child.kill();
            // What had come is still there; then the reason.
            let error = loop {
                match soon("the end", tensors.next()).await.unwrap() {
                    Ok(_) => {}
                    Err(error) => break error,
                }
            };
            assert!(matches!(error, CallError::Connection { .. }), "{error}");
            assert!(error.may_have_run());
            let error = soon("the end", measured).await.unwrap_err();
            assert!(matches!(error, CallError::Connection { .. }), "{error}");
            eventually("the given stream is dropped", || {
                !given.load(Ordering::SeqCst)
            })
            .await;
        }
    });
}

struct OnDrop(Arc<AtomicBool>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// The role of a caller that reads a stream for as long as it lives.
pub(crate) fn read() {
    runtime().block_on(async {
        let (client, _) = client(&parent()).await;
        let mut tensors = client.tensors(0, 1 << 20);
        for i in 0.. {
            let tensor = tensors.next().await.unwrap().unwrap();
            assert!(is_numbered(&tensor, i));
            if i == 10 {
                say("reads", i);
            }
        }
    });
}

/// The role of a caller that gives a stream without end.
pub(crate) fn feed() {
    runtime().block_on(async {
        let (client, _) = client(&parent()).await;
        let endless = stream::iter(0u64..).map(|i| {
            if i == 1000 {
                say("feeds", i);
            }
            numbered(5000, i)
        });
        client.measure(endless).await.unwrap();
    });
}

#[test]
fn a_caller_that_dies_or_falls_silent_leaves_no_stream_behind() {
    alone(async || {
        let (server, hall) = here().await;
        let url = server.url().to_string();
        for (role, says) in [("reader", "reads"), ("feeder", "feeds")] {
            let mut child = Child::start(role, &[("URL", &url)]);
            child.hear(says);
            assert_eq!(hall.under_way(), 1);
            child.kill();
            eventually("the stream ends", || hall.under_way() == 0).await;
            eventually("the pipe ends", || server.pipes().is_empty()).await;
        }
        // One that stops reading holds up its own stream; another caller's goes on.
        let child = Child::start("reader", &[("URL", &url)]);
        child.hear("reads");
        child.suspend();
        let (client, _) = client(&url).await;
        let tensors = client.tensors(500, 5000);
        assert_eq!(soon("another stream", tensors.count()).await, 500);
        drop(child);
        eventually("the stream ends", || hall.under_way() == 0).await;
        assert_eq!(server.shutdown().await, 0);
    });
}
