//! A server of calls dies.

use std::time::Duration;

use tensorpipe::Error;
use tensorpipe_rpc::{CallError, ConnectError, Server, tensor_service};
use tensorpipe_tests::{Child, runtime, say};

use super::scene::{SOON, Way, context, each_way};

#[tensor_service]
pub(crate) trait Sleeper {
    async fn sleep(&self, millis: u64) -> u64;
    async fn blob(&self, len: u64) -> String;
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

    /// Text, which is encoded as a whole, and not byte by byte.
    async fn blob(&self, len: u64) -> String {
        "3".repeat(len as usize)
    }
}

pub(crate) fn play() {
    runtime().block_on(async {
        let way = Way::named(&std::env::var("TEST_WAY").unwrap());
        let server = Server::builder()
            .context(&context(way))
            .service(SleeperService::new(Bed))
            .listen(way.url())
            .await
            .unwrap();
        say("url", server.url());
        server.wait().await;
    });
}

fn start(way: Way, stop_at: Option<&str>) -> Child {
    let way = way.name();
    let mut variables = vec![("TEST_WAY", &*way)];
    variables.extend(stop_at.map(|point| ("TENSORPIPE_STOP_AT", point)));
    Child::start("calls", &variables)
}

async fn connect(way: Way, child: &Child) -> SleeperClient {
    let client = SleeperClient::connect_with(&context(way), child.hear("url")).await;
    let client = client.unwrap();
    assert_eq!(client.connection().route().transport, way.carrier());
    client
}

/// What a call to a server that is dead by now ends with, soon. Whether its method may have run.
async fn lost<T: std::fmt::Debug>(call: impl Future<Output = Result<T, CallError>>) -> bool {
    let ended = tokio::time::timeout(SOON, call).await;
    let error = ended
        .expect("a call to a dead server ends soon")
        .unwrap_err();
    println!("{error}");
    let CallError::Connection {
        error: Error::Lost { .. },
        may_have_run,
    } = error
    else {
        panic!("{error:?}");
    };
    may_have_run
}

#[test]
fn a_server_dies_in_a_call_which_may_have_run_and_later_ones_have_not() {
    each_way(async |way| {
        let mut child = start(way, None);
        let client = connect(way, &child).await;
        assert_eq!(client.sleep(1).await.unwrap(), 1);
        assert_eq!(child.hear("sleeping"), "1");
        let call = tokio::spawn(client.sleep(60_000));
        assert_eq!(child.hear("sleeping"), "60000");
        child.kill();
        assert!(lost(async { call.await.unwrap() }).await);
        assert!(!lost(client.sleep(1)).await);
    });
}

/// A reply in its message, and one that is long.
#[test]
fn a_server_dies_in_the_middle_of_a_reply() {
    // Its first message answers the bind, the second the call.
    for (at, len) in [
        ("message-half-sent:2", 20_000),
        ("tensor-half-sent", 32 << 20),
    ] {
        each_way(async |way| {
            let mut child = start(way, Some(at));
            let client = connect(way, &child).await;
            let call = tokio::spawn(client.blob(len));
            child.hear("stopped");
            tokio::time::sleep(Duration::from_millis(50)).await;
            child.kill();
            assert!(lost(async { call.await.unwrap() }).await, "{at}");
        });
    }
}

#[test]
fn a_server_of_something_else_says_so() {
    each_way(async |way| {
        let child = start(way, None);
        let error = StrangerClient::connect_with(&context(way), child.hear("url"))
            .await
            .unwrap_err();
        println!("{error}");
        assert!(matches!(error, ConnectError::NoService { .. }), "{error:?}");
        assert!(error.to_string().contains("Stranger"), "{error}");
        assert!(error.to_string().contains("Sleeper"), "{error}");
    });
}
