//! A server that calls its client, in another process.

use std::time::Duration;

use tensorpipe_rpc::CallError;
use tensorpipe_tests::{Child, alone, eventually, runtime, say, soon};

use super::works::{client, here, parent};

#[test]
fn a_server_calls_its_client_over_the_same_pipe() {
    alone(async || {
        let child = Child::start("server", &[]);
        let (client, hall) = client(&child.hear("url")).await;
        assert_eq!(soon("an answer", client.ask_back(5)).await.unwrap(), 5);
        // Cancelled, and late: nothing is left at either end.
        let call = client.ask_back(60_000);
        eventually("the call back is here", || hall.under_way() == 1).await;
        drop(call);
        eventually("the call back is gone", || hall.under_way() == 0).await;
        let hurried = client.with_deadline(Duration::from_millis(200));
        let error = soon("an error", hurried.ask_back(60_000)).await;
        assert!(
            matches!(error, Err(CallError::Deadline { .. })),
            "{error:?}"
        );
        eventually("the call back is gone", || hall.under_way() == 0).await;
        // The call back has a deadline of its own, which may be seen first.
        let gone = async {
            while client.under_way().await.unwrap() > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        soon("the handler that calls back is gone", gone).await;
    });
}

#[test]
fn a_server_that_dies_leaves_no_call_back_behind() {
    alone(async || {
        let mut child = Child::start("server", &[]);
        let (client, hall) = client(&child.hear("url")).await;
        let call = client.ask_back(60_000);
        eventually("the call back is here", || hall.under_way() == 1).await;
        child.kill();
        let error = soon("an error", call).await.unwrap_err();
        assert!(matches!(error, CallError::Connection { .. }), "{error}");
        eventually("the call back is gone", || hall.under_way() == 0).await;
    });
}

/// The role of a client that is called back.
pub(crate) fn be_called() {
    runtime().block_on(async {
        let (client, hall) = client(&parent()).await;
        let call = client.ask_back(60_000);
        eventually("the call back is here", || hall.under_way() == 1).await;
        say("called", "");
        let _ = call.await;
    });
}

#[test]
fn a_client_that_dies_ends_the_handler_that_waits_for_it() {
    alone(async || {
        let (server, hall) = here().await;
        let url = server.url().to_string();
        let mut child = Child::start("called", &[("URL", &url)]);
        child.hear("called");
        assert_eq!(hall.under_way(), 1);
        child.kill();
        eventually("the handler is gone", || hall.under_way() == 0).await;
        eventually("the pipe is gone", || server.pipes().is_empty()).await;
    });
}
