//! A server of calls dies.

use std::time::Duration;

use tensorpipe::Error;
use tensorpipe_rpc::{CallError, ConnectError, Server, tensor_service};
use tensorpipe_tests::{Child, say};

use super::scene::{SOON, alone, context};

#[tensor_service]
pub(crate) trait Sleeper {
    async fn sleep(&self, millis: u64) -> u64;
    async fn blob(&self, len: u64) -> Vec<u8>;
}

#[tensor_service]
pub(crate) trait Stranger {
    async fn nothing(&self);
}

struct Bed;

impl Sleeper for Bed {
    async fn sleep(&self, millis: u64) -> u64 {
        say("sleeping", millis);
        tokio::time::sleep(Duration::from_millis(millis)).await;
        millis
    }

    async fn blob(&self, len: u64) -> Vec<u8> {
        vec![3; len as usize]
    }
}

pub(crate) fn play() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let server = Server::builder()
            .context(&context(false))
            .service(SleeperService::new(Bed))
            .listen("tcp://127.0.0.1:0")
            .await
            .unwrap();
        say("url", server.url());
        server.wait().await;
    });
}

async fn connect(child: &Child) -> SleeperClient {
    SleeperClient::connect_with(&context(false), child.hear("url"))
        .await
        .unwrap()
}

#[test]
fn a_server_dies_in_a_call_which_may_have_run_and_later_ones_have_not() {
    alone(async || {
        let mut child = Child::start("calls", &[]);
        let client = connect(&child).await;
        assert_eq!(client.sleep(1).await.unwrap(), 1);
        assert_eq!(child.hear("sleeping"), "1");
        let call = tokio::spawn(client.sleep(60_000));
        assert_eq!(child.hear("sleeping"), "60000");
        child.kill();
        let error = tokio::time::timeout(SOON, call)
            .await
            .expect("a call to a dead server ends soon")
            .unwrap()
            .unwrap_err();
        println!("{error}");
        assert!(
            matches!(
                &error,
                CallError::Connection {
                    error: Error::Lost { .. },
                    may_have_run: true
                }
            ),
            "{error:?}"
        );
        let error = tokio::time::timeout(SOON, client.sleep(1))
            .await
            .unwrap()
            .unwrap_err();
        println!("{error}");
        assert!(
            matches!(
                &error,
                CallError::Connection {
                    error: Error::Lost { .. },
                    may_have_run: false
                }
            ),
            "{error:?}"
        );
    });
}

#[test]
fn a_server_dies_in_the_middle_of_a_reply() {
    alone(async || {
        // Its first message answers the bind, the second the call.
        let mut child = Child::start("calls", &[("TENSORPIPE_STOP_AT", "message-half-sent:2")]);
        let client = connect(&child).await;
        let call = tokio::spawn(client.blob(20_000));
        child.hear("stopped");
        tokio::time::sleep(Duration::from_millis(50)).await;
        child.kill();
        let error = tokio::time::timeout(SOON, call)
            .await
            .expect("a call whose reply was cut ends soon")
            .unwrap()
            .unwrap_err();
        println!("{error}");
        assert!(
            matches!(
                &error,
                CallError::Connection {
                    may_have_run: true,
                    ..
                }
            ),
            "{error:?}"
        );
    });
}

#[test]
fn a_server_dies_in_the_middle_of_a_long_reply() {
    alone(async || {
        let mut child = Child::start("calls", &[("TENSORPIPE_STOP_AT", "tensor-half-sent")]);
        let client = connect(&child).await;
        let call = tokio::spawn(client.blob(32 << 20));
        child.hear("stopped");
        tokio::time::sleep(Duration::from_millis(50)).await;
        child.kill();
        let error = tokio::time::timeout(SOON, call)
            .await
            .expect("a call whose reply was cut ends soon")
            .unwrap()
            .unwrap_err();
        println!("{error}");
        assert!(error.may_have_run(), "{error:?}");
    });
}

#[test]
fn a_server_of_something_else_says_so() {
    alone(async || {
        let child = Child::start("calls", &[]);
        let error = StrangerClient::connect_with(&context(false), child.hear("url"))
            .await
            .unwrap_err();
        println!("{error}");
        assert!(matches!(error, ConnectError::NoService { .. }), "{error:?}");
        assert!(error.to_string().contains("Stranger"), "{error}");
        assert!(error.to_string().contains("Sleeper"), "{error}");
    });
}
