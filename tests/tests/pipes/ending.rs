//! Ways in which a pipe ends: in good order, from both sides at once, against a peer that does not read, and with a reason.

use std::time::Instant;

use tensorpipe::Error;

use super::*;

fn impatient() -> Context {
    let timeouts = timeouts(|timeouts| timeouts.linger = Duration::from_millis(300));
    over_tcp().timeouts(timeouts).build().unwrap()
}

#[tokio::test]
async fn both_ends_close_at_once() {
    every_way(async |context, _, _| {
        for _ in 0..20 {
            let (client, server) = pair(&context, &context).await;
            client.send(message(1, 100)).unwrap();
            server.send(message(2, 100)).unwrap();
            let (a, b) = soon("both closes", async {
                tokio::join!(client.close(), server.close())
            })
            .await;
            a.unwrap();
            b.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn closing_is_bounded_when_the_peer_does_not_read() {
    let context = impatient();
    let (client, server) = pair(&context, &over_tcp().build().unwrap()).await;
    let write = client.write(message(1, 8 << 20));
    let begun = Instant::now();
    let error = soon("close", client.close()).await.unwrap_err();
    assert!(matches!(error, Error::Undelivered { .. }), "{error}");
    assert!(error.to_string().contains("linger"), "{error}");
    assert!(
        begun.elapsed() < Duration::from_secs(2),
        "{:?}",
        begun.elapsed()
    );
    assert!(soon("the write", write).await.is_err());
    // The descriptor came; the tensor did not.
    let read = async { server.read_descriptor().await?.read().await };
    assert!(soon("the read", read).await.is_err());
}

#[tokio::test]
async fn a_close_of_a_context_that_is_given_up_goes_on_and_the_next_one_says_how_it_ended() {
    let (context, peer) = (impatient(), over_tcp().build().unwrap());
    let (ours, _theirs) = pair(&context, &peer).await;
    ours.send(message(1, 8 << 20)).unwrap();
    let given_up = tokio::time::timeout(Duration::from_millis(1), context.close());
    given_up.await.unwrap_err();
    for _ in 0..2 {
        let error = soon("close", context.close()).await.unwrap_err();
        assert!(matches!(error, Error::Undelivered { .. }), "{error}");
    }
}

/// The runtime of a pipe keeps the time of its close. One of a single thread that nobody runs does not.
#[test]
fn a_close_ends_in_time_although_the_runtime_of_its_pipe_does_not_run() {
    let stalled = current_thread();
    let timeouts = timeouts(|timeouts| {
        timeouts.linger = Duration::from_millis(300);
        timeouts.silence = Some(Duration::from_secs(1));
    });
    let context = over_shm().timeouts(timeouts).build().unwrap();
    let (client, server) = stalled.block_on(pair(&context, &context));
    current_thread().block_on(async {
        client.send(message(1, 8 << 20)).unwrap();
        let error = soon("close", client.close()).await.unwrap_err();
        assert!(error.to_string().contains("runtime"), "{error}");
        // Its peer has everything that it wrote, and hears of the end.
        soon("the other close", server.close()).await.ok();
        soon("the context's", context.close()).await.ok();
    });
}

/// A pipe whose other end lives in this runtime, and dies with it.
async fn mortal(context: &Context, theirs: &Runtime) -> (Pipe, Pipe) {
    let peer = over_tcp().build().unwrap();
    let listening = async move { peer.listen(["tcp://127.0.0.1:0"]).await.unwrap() };
    let listener = theirs.spawn(listening).await.unwrap();
    let url = listener.url().to_string();
    let accepted = theirs.spawn(async move { listener.accept().await.unwrap() });
    let ours = context.connect(url).await.unwrap();
    (ours, accepted.await.unwrap())
}

#[tokio::test]
async fn closing_a_context_tells_of_a_peer_that_dies_meanwhile_and_of_none_that_died_before() {
    for dies_before in [true, false] {
        let (context, theirs) = (over_tcp().build().unwrap(), tensorpipe_tests::runtime());
        let (ours, their_pipe) = mortal(&context, &theirs).await;
        ours.send(message(1, 8 << 20)).unwrap();
        if dies_before {
            theirs.shutdown_background();
            soon("its end", ours.ended()).await;
            soon("close", context.close()).await.unwrap();
        } else {
            let closing = tokio::spawn(async move { context.close().await });
            tokio::time::sleep(Duration::from_millis(20)).await;
            theirs.shutdown_background();
            let error = soon("close", closing).await.unwrap().unwrap_err();
            assert!(matches!(error, Error::Lost { .. }), "{error}");
        }
        drop(their_pipe);
    }
}

/// The peer's runtime ends, and its connection with it, while this end writes.
#[test]
fn what_came_before_a_write_failed_is_read() {
    let (ours, theirs) = (current_thread(), tensorpipe_tests::runtime());
    let context = over_tcp().build().unwrap();
    let (client, server) = ours.block_on(mortal(&context, &theirs));
    for text in ["first", "last"] {
        theirs.block_on(server.write(Message::new(text))).unwrap();
    }
    // Nothing of this end runs meanwhile.
    drop(theirs);
    let read = ours.block_on(async {
        // The first write is answered by a reset, the second fails.
        for _ in 0..2 {
            client.send(Message::new("too late")).unwrap();
            std::thread::sleep(Duration::from_millis(50));
        }
        let mut read = Vec::new();
        let end = loop {
            match soon("a message", client.read()).await {
                Ok(message) => read.push(message.metadata),
                Err(error) => break error,
            }
        };
        assert!(matches!(end, Error::Lost { .. }), "{end}");
        read
    });
    assert_eq!(read, ["first", "last"]);
}

#[tokio::test]
async fn closing_a_context_ends_everything_within_its_bound() {
    let context = impatient();
    let peer = over_tcp().build().unwrap();
    let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    let url = listener.url().to_string();
    let mut pipes = Vec::new();
    for _ in 0..5 {
        let (theirs, ours) = tokio::join!(peer.connect(&url), listener.accept());
        let (theirs, ours) = (theirs.unwrap(), ours.unwrap());
        // What nobody reads holds it up until the bound.
        ours.send(message(1, 8 << 20)).unwrap();
        pipes.push((theirs, ours));
    }
    let accepting = tokio::spawn(async move { listener.accept().await });
    let begun = Instant::now();
    let error = soon("close", context.close()).await.unwrap_err();
    assert!(matches!(error, Error::Undelivered { .. }), "{error}");
    assert!(
        begun.elapsed() < Duration::from_secs(2),
        "{:?}",
        begun.elapsed()
    );
    assert!(soon("accept", accepting).await.unwrap().is_err());
    for (theirs, ours) in &pipes {
        assert!(soon("our read", ours.read()).await.is_err());
        assert!(soon("their end", theirs.ended()).await.ends_pipe());
    }
    assert!(context.connect(&url).await.is_err());
}

#[tokio::test]
async fn closing_a_context_delivers_to_those_who_read() {
    let (context, peer) = (impatient(), over_tcp().build().unwrap());
    let (client, server) = pair(&context, &peer).await;
    client.send(message(1, 8 << 20)).unwrap();
    let (closed, read) = soon("close", async {
        tokio::join!(context.close(), server.read())
    })
    .await;
    closed.unwrap();
    check(&read.unwrap(), 1, 8 << 20);
}

#[tokio::test]
async fn pipes_that_nobody_accepts_end_with_their_listener() {
    let context = over_tcp().build().unwrap();
    let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    let url = listener.url().to_string();
    let client = context.connect(&url).await.unwrap();
    let reading = client.read();
    drop(listener);
    let error = soon("the end", reading).await.unwrap_err();
    assert!(
        matches!(error, Error::Closed { by_peer: true, .. }),
        "{error}"
    );
}

#[tokio::test]
async fn a_pipe_that_goes_away_finishes_what_it_has() {
    every_way(async |_, client, server| {
        let before = client.write(message(0, 1 << 20));
        let incoming = head(&server).await;
        let next = server.go_away("moving to another machine");
        assert_eq!(next, 1);
        check(&soon("a read", incoming.read()).await.unwrap(), 0, 1 << 20);
        soon("the write before", before).await.unwrap();
        // All of them were looked at, and are read.
        soon("a flush", client.flush()).await.unwrap();
        let after = soon("the write after", client.write(message(1, 100))).await;
        let error = match after {
            // It may have left before the other side's word came.
            Ok(()) => {
                soon("a later write", async {
                    loop {
                        if let Err(error) = client.write(message(2, 100)).await {
                            return error;
                        }
                    }
                })
                .await
            }
            Err(error) => error,
        };
        assert!(matches!(error, Error::GoingAway { .. }), "{error}");
        assert!(
            error.to_string().contains("moving to another machine"),
            "{error}"
        );
        exchange(&server, &client, 3, 1000).await;
        soon("close", server.close()).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn the_first_error_is_everybodys() {
    let (client, server) = tcp_pair().await;
    let waiting: Vec<_> = (0..4)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.read().await })
        })
        .collect();
    let write = client.write(message(1, 1 << 20));
    let flush = client.flush();
    tokio::task::yield_now().await;
    soon("close", server.close()).await.ok();
    for read in waiting {
        let error = soon("a read", read).await.unwrap().unwrap_err();
        assert!(
            matches!(error, Error::Closed { by_peer: true, .. }),
            "{error}"
        );
    }
    assert!(soon("the write", write).await.is_err());
    assert!(soon("the flush", flush).await.is_err());
    assert!(
        soon("a later write", client.write(message(1, 1)))
            .await
            .is_err()
    );
}

/// Whoever has written enough, and goes on reading, has not closed.
#[tokio::test]
async fn who_writes_no_more_is_closed_by_the_peer() {
    every_way(async |_, client, server| {
        client.finish();
        let end = soon("the end", server.read()).await.unwrap_err();
        assert!(matches!(end, Error::Closed { by_peer: true, .. }), "{end}");
        assert!(!client.has_ended() && !server.has_ended());
        soon("close", server.close()).await.unwrap();
        let end = soon("the end", client.ended()).await;
        assert!(matches!(end, Error::Closed { by_peer: true, .. }), "{end}");
        assert!(client.has_ended() && server.has_ended());
    })
    .await;
}
