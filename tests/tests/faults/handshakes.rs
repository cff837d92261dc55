//! A process dies while a pipe is being made.

use std::time::{Duration, Instant};

use tensorpipe::{ConnectPolicy, Error};
use tensorpipe_tests::{Child, descriptors};

use super::scene::{DIRECT, SOON, Survivor, UPGRADED, Way, alone, context, is_typed};

/// The child connects, and dies.
fn connector_dies(point: &str, ways: [Way; 2]) {
    for way in ways {
        alone(async || {
            let survivor = Survivor::new(way).await;
            let before = descriptors();
            let mut child = Child::start(
                "pipe",
                &[
                    ("TEST_SIDE", "connects"),
                    ("TEST_URL", &survivor.url()),
                    ("TEST_WAY", &way.name()),
                    ("TENSORPIPE_STOP_AT", point),
                ],
            );
            assert_eq!(child.hear("stopped"), point);
            // What it has sent is here by now.
            tokio::time::sleep(Duration::from_millis(50)).await;
            child.kill();
            // Sooner than the bound of a handshake: hostile peers who hang up do not take its place from others.
            let killed = Instant::now();
            while descriptors() > before {
                assert!(killed.elapsed() < SOON, "its connection is kept");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            survivor.goes_on().await;
        });
    }
}

/// The child listens, and dies.
fn listener_dies(point: &str, ways: [Way; 2]) {
    for way in ways {
        alone(async || {
            let survivor = Survivor::new(way).await;
            let mut child = Child::start(
                "pipe",
                &[
                    ("TEST_SIDE", "listens"),
                    ("TEST_WAY", &way.name()),
                    ("TENSORPIPE_STOP_AT", point),
                ],
            );
            let url = child.hear("url");
            let context = survivor.context.clone();
            let connecting =
                tokio::spawn(
                    async move { context.connect_with(url, &ConnectPolicy::once()).await },
                );
            assert_eq!(child.hear("stopped"), point);
            tokio::time::sleep(Duration::from_millis(50)).await;
            child.kill();
            let connected = tokio::time::timeout(SOON, connecting)
                .await
                .expect("connecting ends soon")
                .unwrap();
            match connected {
                Err(error) => {
                    println!("{way:?}, {point}: {error}");
                    let Error::Connect { source, .. } = &error else {
                        panic!("{error:?}");
                    };
                    assert!(
                        matches!(**source, Error::Lost { .. } | Error::System(_)),
                        "{error:?}"
                    );
                }
                // The answer was there: the connector's part was done.
                Ok(pipe) => {
                    let read = tokio::time::timeout(SOON, pipe.read()).await;
                    let error = read.expect("reading ends soon").unwrap_err();
                    println!("{way:?}, {point}: {error}");
                    assert!(is_typed(&error), "{error:?}");
                }
            }
            survivor.goes_on().await;
        });
    }
}

#[test]
fn a_connector_dies_before_its_first_byte() {
    connector_dies("connected", DIRECT);
}

#[test]
fn a_connector_dies_after_its_hello() {
    connector_dies("hello-sent", DIRECT);
}

#[test]
fn a_connector_dies_over_the_answer() {
    connector_dies("answer-received", DIRECT);
}

#[test]
fn a_connector_that_was_to_upgrade_dies_over_the_answer() {
    connector_dies("answer-received", UPGRADED);
}

#[test]
fn a_connector_dies_before_it_says_why_it_has_come_again() {
    connector_dies("join-connected", UPGRADED);
}

#[test]
fn a_connector_dies_after_it_has_upgraded() {
    connector_dies("join-sent", UPGRADED);
}

#[test]
fn a_listener_dies_before_its_answer() {
    listener_dies("hello-received", DIRECT);
}

#[test]
fn a_listener_dies_after_its_answer() {
    listener_dies("answer-sent", DIRECT);
}

#[test]
fn a_listener_dies_after_it_has_said_where_to_move() {
    listener_dies("answer-sent", UPGRADED);
}

#[test]
fn a_listener_dies_over_the_upgraded_connection() {
    listener_dies("join-received", UPGRADED);
}

#[test]
fn a_listener_that_comes_late_is_waited_for() {
    for way in DIRECT {
        alone(async || {
            let context = context(way);
            // Free now, and most likely in a second: a port of the system's choice is not given out again soon.
            let early = context.listen([way.url()]).await.unwrap();
            let url = early.url().to_string();
            drop(early);
            let mut child = Child::start(
                "pipe",
                &[
                    ("TEST_SIDE", "listens"),
                    ("TEST_WAY", &way.name()),
                    ("TEST_URL", &url),
                    ("TEST_LATE", "700"),
                    ("TEST_DOES", "echoes"),
                ],
            );
            let pipe = tokio::time::timeout(Duration::from_secs(30), context.connect(&url))
                .await
                .unwrap()
                .unwrap();
            pipe.send(tensorpipe::Message::new("early")).unwrap();
            assert_eq!(&pipe.read().await.unwrap().metadata[..], b"early");
            child.kill();
            assert!(is_typed(
                &tokio::time::timeout(SOON, pipe.ended()).await.unwrap()
            ));
        });
    }
}
