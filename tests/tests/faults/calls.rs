//! A server of calls dies.

use std::time::Duration;

use tensorpipe::Error;
use tensorpipe_rpc::{CallError, ConnectError, Server, tensor_service};
use tensorpipe_tests::{Child, runtime, say};

use super::scene::{CARRIED, SOON, Way, alone, context};

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

/// Runs a test over everything that can carry a pipe.
fn each_way(test: impl AsyncFn(Way)) {
    for way in CARRIED {
        alone(async || test(way).await);
    }
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
    each_way(async |way| {
        // Its first message answers the bind, the second the call.
        let mut child = start(way, Some("message-half-sent:2"));
        let client = connect(way, &child).await;
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
    each_way(async |way| {
        let mut child = start(way, Some("tensor-half-sent"));
        let client = connect(way, &child).await;
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
