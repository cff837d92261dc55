//! Limits: exceeding one returns an error that names the limit, and affects nothing else.

use tensorpipe::{Error, Misuse, Payload};
use tokio::net::TcpStream;

use super::*;

#[tokio::test]
async fn what_the_reader_does_not_take_is_refused_at_the_writer() {
    let limited = over_tcp().limits(limits(|limits| {
        limits.metadata = 1000;
        limits.payload = 2000;
        limits.tensor = 3000;
        limits.message = 4000;
        limits.parts = 5;
    }));
    let limited = limited.build().unwrap();
    let (client, server) = pair(&over_tcp().build().unwrap(), &limited).await;
    let too_much = [
        ("metadata", Message::new(vec![0; 1001])),
        (
            "metadata",
            Message::new(vec![0; 500]).payload(Payload::new("x").with_metadata(vec![0; 501])),
        ),
        (
            "payload",
            Message::new("").payload(Payload::new(vec![0; 2001])),
        ),
        ("tensor", message(0, 3001)),
        (
            "message",
            message(0, 2500).payload(Payload::new(vec![0; 1501])),
        ),
        (
            "parts",
            (0..6).fold(Message::new(""), |m, _| m.payload(Payload::new(""))),
        ),
    ];
    for (name, message) in too_much {
        let error = soon("the refusal", client.write(message))
            .await
            .unwrap_err();
        match &error {
            Error::Misuse(Misuse::TooLarge { field, .. }) => assert_eq!(*field, name),
            other => panic!("{other}"),
        }
        assert!(
            error.to_string().contains(&format!("Limits::{name}")),
            "{error}"
        );
    }
    // The other direction has the other side's limits.
    exchange(&server, &client, 1, 1 << 20).await;
    let most = message(2, 2000).payload(Payload::new(vec![1; 2000]));
    let (written, read) = tokio::join!(client.write(most), server.read());
    written.unwrap();
    check(&read.unwrap(), 2, 2000);
}

#[tokio::test]
async fn a_listener_has_only_so_many_pipes() {
    let full = over_tcp()
        .name("a full house")
        .limits(limits(|limits| limits.pipes = 2));
    let server = full.build().unwrap();
    let client = over_tcp().build().unwrap();
    let listener = server.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    let url = listener.url().to_string();
    let (a, a_server) = tokio::join!(client.connect(&url), listener.accept());
    let (b, b_server) = tokio::join!(client.connect(&url), listener.accept());
    let (a, a_server, b, b_server) = (a.unwrap(), a_server.unwrap(), b.unwrap(), b_server.unwrap());
    let refused = client
        .connect_with(&url, &ConnectPolicy::once())
        .await
        .unwrap_err();
    let text = refused.to_string();
    assert!(text.contains("it has 2 pipes already"), "{text}");
    // Whoever waits gets in when somebody leaves.
    let waiting = tokio::spawn({
        let (client, url) = (client.clone(), url.clone());
        async move { client.connect(&url).await }
    });
    pause(100).await;
    assert!(!waiting.is_finished());
    let (closed, ended) = tokio::join!(a.close(), a_server.ended());
    closed.unwrap();
    assert!(matches!(ended, Error::Closed { .. }), "{ended}");
    drop(a_server);
    let c = soon("the pipe that waited", waiting)
        .await
        .unwrap()
        .unwrap();
    let c_server = soon("its other end", listener.accept()).await.unwrap();
    exchange(&c, &c_server, 1, 1000).await;
    exchange(&b, &b_server, 2, 1000).await;
}

/// Ten times as many pipes as a listener may have begin and end while it does not accept.
#[tokio::test]
async fn pipes_that_nobody_accepts_and_that_brought_nothing_leave_their_places() {
    let limits = limits(|limits| limits.pipes = 4);
    let server = over_tcp().limits(limits).build().unwrap();
    let client = over_tcp().build().unwrap();
    let listener = server.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    let url = listener.url().to_string();
    for _ in 0..40 {
        let pipe = soon("a place", client.connect(&url)).await.unwrap();
        soon("the goodbye", pipe.close()).await.unwrap();
    }
    let last = over_tcp().name("the last").build().unwrap();
    let last = soon("a place", last.connect(&url)).await.unwrap();
    let accepted = loop {
        let pipe = soon("a pipe", listener.accept()).await.unwrap();
        if pipe.peer_name() == "the last" {
            break pipe;
        }
    };
    exchange(&last, &accepted, 1, 1000).await;
}

#[tokio::test]
async fn pipes_that_ended_with_messages_keep_them_and_their_places_until_accepted() {
    let limits = limits(|limits| limits.pipes = 4);
    let server = over_tcp().limits(limits).build().unwrap();
    let client = over_tcp().build().unwrap();
    let listener = server.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    let url = listener.url().to_string();
    for number in 0..4 {
        let pipe = soon("a place", client.connect(&url)).await.unwrap();
        // Nobody reads yet, so its goodbye is not waited for.
        let written = soon("the write", pipe.write(message(number, 1000))).await;
        written.unwrap();
        drop(pipe);
    }
    pause(300).await;
    let refused = client.connect_with(&url, &ConnectPolicy::once()).await;
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("it has 4 pipes already"), "{text}");
    for number in 0..4 {
        let pipe = soon("a pipe", listener.accept()).await.unwrap();
        check(&pipe.read().await.unwrap(), number, 1000);
    }
    let (fresh, accepted) = tokio::join!(client.connect(&url), listener.accept());
    exchange(&fresh.unwrap(), &accepted.unwrap(), 1, 1000).await;
}

#[tokio::test]
async fn silent_hostile_peers_do_not_lock_out_others() {
    let context = over_tcp().timeouts(timeouts(|timeouts| {
        timeouts.handshake = Duration::from_millis(1500);
    }));
    let context = context.build().unwrap();
    let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    let address = listener.url().address().to_owned();
    let mut hostile_peers = Vec::new();
    for _ in 0..300 {
        hostile_peers.push(TcpStream::connect(&address).await.unwrap());
    }
    let client = over_tcp().build().unwrap();
    let url = listener.url().to_string();
    let (client, server) = soon("a pipe", async {
        tokio::join!(client.connect(&url), listener.accept())
    })
    .await;
    exchange(&client.unwrap(), &server.unwrap(), 1, 1 << 20).await;
    // All of them are thrown out, and nobody is kept for longer than a handshake.
    pause(1600).await;
    for hostile in &hostile_peers {
        let mut byte = [0; 256];
        let gone = match hostile.try_read(&mut byte) {
            Ok(_) => true,
            Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
        };
        if !gone {
            soon("the end of a hostile peer", hostile.readable())
                .await
                .unwrap();
        }
    }
}
