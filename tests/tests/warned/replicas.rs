//! What is told of replicas, and of calls on them.

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

#[test]
fn the_last_replica_that_is_gone_is_worth_a_warning_and_so_is_the_next_one() {
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
        let of = |url: &String| format!("url={url}");
        let gone = || {
            let gone = |url| said(&["WARN", "the last replica is gone", &of(url)]);
            urls.iter().flat_map(gone).count() == 1
        };
        eventually("a warning", gone).await;
        let server = Server::builder().service(FragileService::new(Panics));
        let _server = server.listen(&urls[0]).await.unwrap();
        let again = ["WARN", "a replica is there again", &of(&urls[0])];
        eventually("the end of it", || said(&again).len() == 1).await;
    });
}

#[test]
fn a_replica_that_is_there_is_told() {
    collect();
    runtime().block_on(async {
        let server = fragile().await;
        let url = server.url().to_string();
        let replicas = Replicas::builder().url(&url).connect().await.unwrap();
        let of = format!("url={url}");
        let there = ["a replica is there", &of];
        let hears = heard() >= Level::INFO;
        eventually("it", || said(&there).len() == usize::from(hears)).await;
        // Not gone, which another test waits for.
        replicas.close().await.unwrap();
    });
}

#[test]
fn a_replica_that_is_there_is_told_where_more_than_warnings_is_heard() {
    plays_again("replicas::a_replica_that_is_there_is_told", INFO_TOO, "");
}
