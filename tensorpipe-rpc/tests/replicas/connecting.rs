//! How often a client tries to connect to an absent server: a transport that reaches nobody counts it, on a virtual clock.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tensorpipe::transports::{Acceptor, BoxFuture, Connection, Transport};
use tensorpipe::{Context, Error, Misuse, SystemError};
use tensorpipe_rpc::{
    ConnectError, Replicas,
    replicas::{Backoff, ReplicaState},
};
use tokio::time::Instant;

/// When somebody tried.
#[derive(Clone, Default)]
struct Nowhere(Arc<Mutex<Vec<Instant>>>);

impl Nowhere {
    fn attempts(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// Between one attempt and the next, in milliseconds.
    fn pauses(&self) -> Vec<u128> {
        let attempts = self.0.lock().unwrap();
        let pauses = attempts.windows(2);
        pauses.map(|pair| (pair[1] - pair[0]).as_millis()).collect()
    }
}

fn refused() -> Error {
    let refused = std::io::ErrorKind::ConnectionRefused;
    SystemError::new("connect", "nowhere", refused.into()).into()
}

impl Transport for Nowhere {
    fn name(&self) -> &'static str {
        "nowhere"
    }

    fn domain(&self) -> Vec<u8> {
        b"nowhere".to_vec()
    }

    fn connect<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Box<dyn Connection>, Error>> {
        self.0.lock().unwrap().push(Instant::now());
        Box::pin(async { Err(refused()) })
    }

    fn listen<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Box<dyn Acceptor>, Error>> {
        Box::pin(async { Err(refused()) })
    }
}

fn nowhere() -> (Nowhere, tensorpipe_rpc::replicas::ReplicasBuilder) {
    let nowhere = Nowhere::default();
    let transports: [Arc<dyn Transport>; 1] = [Arc::new(nowhere.clone())];
    let context = Context::builder().transports(transports).build().unwrap();
    let builder = Replicas::builder()
        .context(&context)
        .url("nowhere://here")
        .backoff(Backoff {
            first: Duration::from_millis(100),
            longest: Duration::from_secs(1),
            factor: 2.0,
            jitter: 0.0,
        })
        .connect_timeout(Duration::from_secs(3600));
    (nowhere, builder)
}

fn has_no_replica(error: &ConnectError) -> bool {
    let ConnectError::Unavailable(replicas) = error else {
        return false;
    };
    replicas.len() == 1 && &*replicas[0].url == "nowhere://here" && replicas[0].error.is_some()
}

#[tokio::test(start_paused = true)]
async fn pauses_grow_up_to_the_longest_and_attempts_are_bounded() {
    let (nowhere, builder) = nowhere();
    let error = builder.connect_attempts(7).connect().await.unwrap_err();
    assert!(has_no_replica(&error), "{error:?}");
    assert!(error.to_string().contains("nowhere://here"), "{error}");
    assert_eq!(nowhere.pauses(), [100, 200, 400, 800, 1000, 1000]);
}

#[tokio::test(start_paused = true)]
async fn jitter_makes_no_pause_longer_and_none_shorter_than_it_may() {
    let (nowhere, builder) = nowhere();
    let backoff = Backoff {
        first: Duration::from_millis(1000),
        longest: Duration::from_millis(1000),
        factor: 1.0,
        jitter: 0.5,
    };
    let builder = builder.backoff(backoff).connect_attempts(50);
    builder.connect().await.unwrap_err();
    let pauses = nowhere.pauses();
    assert_eq!(pauses.len(), 49);
    // The clock counts whole milliseconds, and rounds up.
    assert!(
        pauses.iter().all(|pause| (500..=1001).contains(pause)),
        "{pauses:?}"
    );
    assert!(pauses.iter().any(|pause| *pause != pauses[0]), "{pauses:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_is_given_up_after_its_time() {
    let (nowhere, builder) = nowhere();
    let begun = Instant::now();
    let error = builder.give_up_after(Duration::from_secs(5));
    let error = error.connect().await.unwrap_err();
    assert!(has_no_replica(&error), "{error:?}");
    // 0.1 + 0.2 + 0.4 + 0.8 + 3 × 1: a further one would come too late.
    assert_eq!(nowhere.attempts(), 8);
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_the_first_server_does_not_wait_for_ever() {
    let (_, builder) = nowhere();
    let begun = Instant::now();
    let error = builder
        .connect_timeout(Duration::from_secs(7))
        .connect()
        .await;
    let error = error.unwrap_err();
    assert!(has_no_replica(&error));
    assert_eq!(begun.elapsed().as_secs(), 7);
    // All attempts, not the last one alone: 0.1 + 0.2 + 0.4 + 0.8 + 5 × 1.
    let said = error.to_string();
    let all = "no server can be called: no pipe to nowhere://here after 6.5 s and 10 attempts: connect nowhere: ";
    assert!(said.starts_with(all), "{said}");
}

#[tokio::test(start_paused = true)]
async fn several_servers_that_are_not_there_are_told_apart() {
    let (_, builder) = nowhere();
    let builder = builder.url("nowhere://there").connect_attempts(1);
    let said = builder.connect().await.unwrap_err().to_string();
    for words in [
        ": (1) no pipe to nowhere://here",
        "; (2) no pipe to nowhere://there",
    ] {
        assert!(said.contains(words), "{said}");
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_goes_on_when_the_last_handle_is_gone() {
    let (nowhere, builder) = nowhere();
    let connect = builder.connect();
    let gave_up = tokio::time::timeout(Duration::from_secs(2), connect).await;
    assert!(gave_up.is_err());
    let attempts = nowhere.attempts();
    assert!(attempts > 2);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(nowhere.attempts(), attempts);
}

#[tokio::test]
async fn what_makes_no_sense_is_said_at_once() {
    for (url, says) in [("not a url", "not a url"), ("", "")] {
        let error = Replicas::builder().url(url).connect().await.unwrap_err();
        assert!(
            matches!(&error, ConnectError::Pipe(Error::Misuse(_))),
            "{error:?}"
        );
        assert!(error.to_string().contains(says), "{error}");
    }
    let error = Replicas::builder().connect().await.unwrap_err();
    assert!(error.to_string().contains("name one with `url`"), "{error}");
    // A transport that this context has not will not come, also where another server is there.
    let sites = super::lab::sites(1, &Default::default()).await;
    let builder = super::lab::replicas_of(&sites).url("http://127.0.0.1:1");
    let error = super::lab::soon(builder.connect()).await.unwrap_err();
    let ConnectError::Pipe(Error::Misuse(Misuse::UnknownTransport { name, .. })) = &error else {
        panic!("{error:?}");
    };
    assert_eq!(name, "http");
}

#[tokio::test]
async fn a_replica_has_the_route_of_the_connection_that_it_has_now() {
    use super::lab::{Ledger, client_of, replicas_of, sites, states, until};

    let ledger = Ledger::default();
    let sites = sites(1, &ledger).await;
    let (client, replicas) = client_of(replicas_of(&sites)).await;
    let route = || replicas.status()[0].route.clone();
    let first = route().unwrap();
    assert_eq!(&*first, client.connection().route());
    sites[0].proxy.cut();
    until(|| states(&replicas) != [ReplicaState::Live]).await;
    assert_eq!(route(), None);
    sites[0].proxy.mend();
    until(|| states(&replicas) == [ReplicaState::Live]).await;
    let second = route().unwrap();
    assert_eq!(second.transport, "tcp");
    assert_ne!(second.address, first.address);
    assert_eq!(&*first, client.connection().route(), "the first one stays");
}

#[tokio::test]
async fn a_server_that_was_given_up_is_tried_again_when_somebody_asks() {
    use super::lab::{Ledger, client_of, replicas_of, sites, soon, states, until};

    let ledger = Ledger::default();
    let sites = sites(1, &ledger).await;
    let (client, replicas) = client_of(replicas_of(&sites).connect_attempts(3)).await;
    sites[0].proxy.cut();
    until(|| states(&replicas) == [ReplicaState::GivenUp]).await;
    let error = soon(client.who(1)).await.unwrap_err();
    assert!(!error.may_have_run(), "{error:?}");
    sites[0].proxy.mend();
    replicas.reconnect();
    until(|| states(&replicas) == [ReplicaState::Live]).await;
    assert_eq!(soon(client.who(2)).await.unwrap(), 0);
}

/// Calls with streams are sent once, to one replica.
#[tokio::test]
async fn a_server_that_answers_only_streams_is_connected_to_again_and_again() {
    use super::lab::{client_of, replicas_of, sites, until};

    let sites = sites(1, &Default::default()).await;
    let builder = replicas_of(&sites).connect_attempts(3).backoff(Backoff {
        first: Duration::from_millis(1),
        longest: Duration::from_secs(60),
        ..Backoff::default()
    });
    let (client, replicas) = client_of(builder).await;
    let pipes = || sites[0].server.as_ref().unwrap().pipes();
    for _ in 0..6 {
        until(|| replicas.status()[0].state == ReplicaState::Live && pipes().len() == 1).await;
        assert_eq!(client.names(0).next().await.unwrap().unwrap(), 0);
        pipes()[0].close().await.unwrap();
        until(|| pipes().is_empty()).await;
    }
    until(|| replicas.status()[0].state == ReplicaState::Live).await;
}

#[tokio::test]
async fn a_server_that_takes_pipes_and_drops_them_is_not_connected_to_in_a_loop() {
    use super::lab::{replicas_of, sites, until};

    let sites = sites(1, &Default::default()).await;
    let builder = replicas_of(&sites).connect_attempts(4).backoff(Backoff {
        first: Duration::from_millis(1),
        longest: Duration::from_secs(60),
        ..Backoff::default()
    });
    let replicas = builder.connect().await.unwrap();
    // Nobody has called anything: each pipe that ends counts as an attempt that failed.
    for pipe in 1..4 {
        until(|| sites[0].server.as_ref().unwrap().pipes().len() == 1).await;
        sites[0].server.as_ref().unwrap().pipes()[0]
            .close()
            .await
            .unwrap();
        until(|| {
            sites[0]
                .proxy
                .came
                .load(std::sync::atomic::Ordering::SeqCst)
                > pipe
        })
        .await;
    }
    until(|| sites[0].server.as_ref().unwrap().pipes().len() == 1).await;
    sites[0].server.as_ref().unwrap().pipes()[0]
        .close()
        .await
        .unwrap();
    until(|| replicas.status()[0].state == ReplicaState::GivenUp).await;
}
