//! A server that calls its client, in another process.

use tensorpipe_rpc::CallError;
use tensorpipe_tests::{Child, alone, eventually, runtime, say, soon};

use super::works::{client, here, parent};

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
