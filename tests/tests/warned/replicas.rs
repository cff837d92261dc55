//! What is told of replicas, and of calls on them.

use futures_util::stream;
use tensorpipe_rpc::Stream;

use super::*;

/// A URL at which nobody listens yet.
fn nobody() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    format!("tcp://{}", listener.local_addr().unwrap())
}

#[test]
fn a_replica_that_is_not_there_is_told_and_that_it_comes() {
    collect();
    runtime().block_on(async {
        let url = nobody();
        let other = fragile().await;
        let urls = [url.clone(), other.url().to_string()];
        let replicas = Replicas::builder().urls(urls).connect().await.unwrap();
        let of = format!("url={url}");
        let absent = ["WARN", "a replica is not there", "refused", &of];
        eventually("a warning", || !said(&absent).is_empty()).await;
        let server = Server::builder().service(FragileService::new(Panics));
        let _server = server.listen(&url).await.unwrap();
        replicas.reconnect();
        let again = ["WARN", "a replica is there again", &of];
        eventually("the end of it", || said(&again).len() == 1).await;
        assert_eq!(said(&absent).len(), 1, "{:?}", said(&[]));
    });
}

#[test]
fn who_gives_a_replica_up_says_why() {
    collect();
    runtime().block_on(async {
        let url = nobody();
        let replicas = Replicas::builder().url(&url).connect_attempts(2);
        let _ = replicas.connect().await.unwrap_err();
        let of = format!("url={url}");
        let given_up = ["WARN", "a replica is given up", "refused", &of];
        eventually("a warning", || said(&given_up).len() == 1).await;
    });
}

/// The variable of a process that runs no other test.
const ALONE: &str = "ALONE";

/// Alone, because what is the same is told once in ten seconds, whosever replica it is.
#[test]
fn the_last_replica_that_is_gone_is_worth_a_warning_and_so_is_the_next_one() {
    if std::env::var_os(ALONE).is_none() {
        let test = "the_last_replica_that_is_gone_is_worth_a_warning_and_so_is_the_next_one";
        return plays_again(&format!("replicas::{test}"), ALONE, "");
    }
    collect();
    runtime().block_on(async {
        let servers = [fragile().await, fragile().await];
        let urls = servers.each_ref().map(|server| server.url().to_string());
        let replicas = Replicas::builder().urls(&urls).connect().await.unwrap();
        let is_live = |one: &ReplicaStatus| matches!(one.state, ReplicaState::Live);
        let all = || replicas.status().iter().all(is_live);
        eventually("both", all).await;
        for server in servers {
            server.shutdown().await;
        }
        let gone = || said(&["WARN", "the last replica is gone", "url="]).len() == 1;
        eventually("a warning", gone).await;
        let server = Server::builder().service(FragileService::new(Panics));
        let _server = server.listen(&urls[0]).await.unwrap();
        let of = format!("url={}", urls[0]);
        let again = ["WARN", "a replica is there again", &of];
        eventually("the end of it", || said(&again).len() == 1).await;
    });
}

#[test]
fn a_replica_that_is_there_is_told() {
    collect();
    runtime().block_on(async {
        let server = fragile().await;
        let url = server.url().to_string();
        let _replicas = Replicas::builder().url(&url).connect().await.unwrap();
        let of = format!("url={url}");
        let there = ["a replica is there", &of];
        let hears = heard() >= Level::INFO;
        eventually("it", || said(&there).len() == usize::from(hears)).await;
    });
}

#[test]
fn a_replica_that_is_there_is_told_where_more_than_warnings_is_heard() {
    plays_again("replicas::a_replica_that_is_there_is_told", INFO_TOO, "");
}

#[tensor_service]
trait Moving {
    #[rpc(idempotent)]
    async fn answer(&self) -> u64;

    async fn breaks(&self);

    fn numbers(&self) -> impl Stream<Item = u64>;
}

/// Answers, unless it is stuck.
struct Machine {
    is_stuck: bool,
}

impl Moving for Machine {
    async fn answer(&self) -> u64 {
        match self.is_stuck {
            true => std::future::pending().await,
            false => 7,
        }
    }

    async fn breaks(&self) {
        panic!("a machine's own");
    }

    fn numbers(&self) -> impl Stream<Item = u64> {
        stream::iter([1])
    }
}

async fn machine(is_stuck: bool) -> Server {
    let server = Server::builder().service(MovingService::new(Machine { is_stuck }));
    server.listen("tcp://127.0.0.1:0").await.unwrap()
}

/// What was said of a failed call with these words. A process that takes spans runs no other test.
fn told(words: [&str; 2], method: &str) -> Vec<String> {
    let method = match heard() {
        Level::INFO => String::new(),
        _ => format!("method=\"{method}\""),
    };
    said(&["the call failed", words[0], words[1], &method])
}

#[test]
fn a_call_that_is_answered_elsewhere_is_no_warning() {
    collect();
    let dies = runtime();
    let stuck = dies.block_on(machine(true));
    runtime().block_on(async {
        let other = machine(false).await;
        let urls = [stuck.url().to_string(), other.url().to_string()];
        let replicas = Replicas::builder().urls(urls).connect().await.unwrap();
        let is_live = |one: &ReplicaStatus| matches!(one.state, ReplicaState::Live);
        let client = MovingClient::on(&replicas).await.unwrap();
        let all = || replicas.status().iter().all(is_live);
        eventually("both", all).await;
        let calls: Vec<_> = (0..4).map(|_| client.answer()).collect();
        eventually("a call that is stuck", || stuck.calls_in_flight() > 0).await;
        drop(stuck);
        dies.shutdown_background();
        for call in calls {
            assert_eq!(soon("a call", call).await.unwrap(), 7);
        }
    });
    assert!(told(["", ""], "answer").is_empty(), "{:?}", said(&[]));
}

#[test]
fn a_call_over_replicas_that_fails_is_told_once() {
    collect();
    runtime().block_on(async {
        let server = machine(false).await;
        let url = server.url().to_string();
        let replicas = Replicas::builder().urls([url]).connect().await.unwrap();
        let client = MovingClient::on(&replicas).await.unwrap();
        let error = soon("a call", client.breaks()).await.unwrap_err();
        assert!(matches!(error, CallError::Panicked { .. }), "{error}");
        replicas.close().await.unwrap();
        let error = soon("a call", client.breaks()).await.unwrap_err();
        assert!(matches!(error, CallError::Unavailable { .. }), "{error}");
        let error = soon("a call", client.numbers().next())
            .await
            .unwrap()
            .unwrap_err();
        assert!(matches!(error, CallError::Unavailable { .. }), "{error}");
    });
    let broken = told(["ERROR", "the method panicked: a machine's own"], "breaks");
    assert_eq!(broken.len(), 1, "{:?}", said(&[]));
    for method in ["breaks", "numbers"] {
        // It has no span, whoever takes some.
        let method = format!("method=\"{method}\"");
        let words = [
            "WARN",
            "the call failed",
            "no server can be called",
            &method,
        ];
        assert_eq!(said(&words).len(), 1, "{:?}", said(&[]));
    }
}

#[test]
fn what_is_told_of_calls_over_replicas_is_the_same_with_spans() {
    for test in [
        "replicas::a_call_that_is_answered_elsewhere_is_no_warning",
        "replicas::a_call_over_replicas_that_fails_is_told_once",
    ] {
        plays_again(test, INFO_TOO, "");
    }
}
