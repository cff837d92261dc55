//! Credit in advance: after one message had to wait for its reader's go-ahead, later messages need none.

use std::time::Instant;

use tensorpipe::engine::EnginePipe;
use tensorpipe::{Allocation, Error, Place};

use super::*;

/// Writes a message of so many bytes that nobody reads. It leaves at once if it has credit, and waits for its reader otherwise; then it is
/// read.
async fn unread(client: &Pipe, server: &Pipe, number: u64, len: usize, leaves: bool) {
    // What was read before gives its credit back, and nothing else goes back that it would ride with.
    pause(20).await;
    let mut write = client.write(message(number, len));
    let incoming = head(server).await;
    if leaves {
        soon("a write that needs no reader", &mut write)
            .await
            .unwrap();
    } else {
        // Its bytes would be behind its descriptor.
        let waits = tokio::time::timeout(Duration::from_millis(300), &mut write).await;
        assert!(waits.is_err(), "{number} has left unread");
    }
    let read = soon("a read", incoming.read()).await.unwrap();
    check(&read, number, len);
    if !leaves {
        soon("the write", write).await.unwrap();
    }
}

async fn leaves(client: &Pipe, server: &Pipe, number: u64, len: usize) {
    unread(client, server, number, len, true).await;
}

async fn waits(client: &Pipe, server: &Pipe, number: u64, len: usize) {
    unread(client, server, number, len, false).await;
}

#[tokio::test]
async fn a_pipe_has_some_and_earns_more_by_using_it() {
    let (client, server) = tcp_pair().await;
    // It has 256 KiB and not more.
    leaves(&client, &server, 1, 200 << 10).await;
    waits(&client, &server, 2, 1 << 20).await;
    for number in 3..8 {
        leaves(&client, &server, number, 1 << 20).await;
    }
    // More than a pipe can have.
    for number in 8..10 {
        waits(&client, &server, number, 5 << 20).await;
    }
    leaves(&server, &client, 1, 200 << 10).await;
}

#[tokio::test]
async fn who_grants_none_is_asked_for_everything() {
    let context = limited(|limits| limits.window_ahead = 0);
    let (client, server) = pair(&context, &over_tcp().build().unwrap()).await;
    for number in 1..4 {
        waits(&server, &client, number, 100 << 10).await;
    }
    leaves(&client, &server, 1, 100 << 10).await;
}

/// What is granted to all pipes of one host is bounded: who comes later waits for its reader, and nothing else.
#[tokio::test]
async fn all_pipes_together_have_a_share_of_the_budget() {
    let server = limited(|limits| limits.receive_budget = 16 << 20);
    let client = over_tcp().build().unwrap();
    let mut pipes = Vec::new();
    for _ in 0..6 {
        pipes.push(pair(&client, &server).await);
    }
    for (i, (client, server)) in pipes.iter().enumerate() {
        unread(client, server, 1, 200 << 10, i < 4).await;
    }
    drop(pipes.remove(0));
    // Once it is gone, a new one has its credit.
    let another = async || {
        pause(100).await;
        let (client, _server) = pair(&client, &server).await;
        let write = client.write(message(1, 200 << 10));
        tokio::time::timeout(Duration::from_millis(300), write).await
    };
    let until = Instant::now() + Duration::from_secs(20);
    while another().await.is_err() {
        assert!(Instant::now() < until, "it does not come back");
    }
}

/// Its bytes come all the same, take no memory, and are counted; the pipe goes on.
#[tokio::test]
async fn what_is_not_wanted_is_dropped_as_it_comes() {
    let (client, server) = tcp_pair().await;
    for number in 1..20 {
        let write = client.write(message(number, 200 << 10));
        head(&server).await.refuse("not today");
        let ended = soon("the write", write).await;
        assert!(
            matches!(ended, Ok(()) | Err(Error::Refused { .. })),
            "{ended:?}"
        );
        exchange(&client, &server, number, 100).await;
    }
    let dropped = server.stats().bytes_dropped;
    assert!(dropped > 0 && dropped <= 19 * (200 << 10), "{dropped}");
}

/// What has left has arrived: whether its reader looked at it before its writer closed or not.
#[tokio::test]
async fn what_came_ahead_can_be_read_when_its_writer_is_gone() {
    for context in [over_tcp().build().unwrap(), Context::new()] {
        let (client, server) = pair(&context, &context).await;
        for number in 1..4 {
            soon("a write", client.write(message(number, 70_000)))
                .await
                .unwrap();
        }
        let held = head(&server).await;
        soon("the close", client.close()).await.unwrap();
        soon("the end", server.ended()).await;
        let read = soon("a held one", held.read()).await.unwrap();
        check(&read, 1, 70_000);
        comes(&server, 2, 70_000).await;
        let into = Allocation {
            tensors: vec![Place::Into(server.pool().take(70_000))],
            ..Allocation::default()
        };
        let descriptor = soon("a descriptor", server.read_descriptor());
        let last = descriptor.await.unwrap().read_into(into);
        check(&soon("a read", last).await.unwrap(), 3, 70_000);
        let end = soon("the end", server.read()).await.unwrap_err();
        assert!(matches!(end, Error::Closed { by_peer: true, .. }), "{end}");
    }
}

/// What comes ahead has credit of its own: it takes nothing of what a large message needs that is read on purpose.
#[tokio::test]
async fn what_waits_unread_takes_nothing_of_the_budget() {
    const BUDGET: usize = 16 << 20;
    let server = limited(|limits| limits.receive_budget = BUDGET as u64);
    let (client, server) = pair(&over_tcp().build().unwrap(), &server).await;
    let large = client.write(message(1, BUDGET));
    let ahead = client.write(message(2, 200 << 10));
    let incoming = head(&server).await;
    soon("the one behind", ahead).await.unwrap();
    let read = soon("the large one", incoming.read()).await.unwrap();
    check(&read, 1, BUDGET);
    soon("its write", large).await.unwrap();
    comes(&server, 2, 200 << 10).await;
}

/// Where calls that wait have used up the budget, what came ahead is read all the same, and the pipe goes on.
#[tokio::test]
async fn where_the_budget_is_used_up_messages_pass() {
    let server = limited(|limits| limits.receive_budget = 16 << 20);
    let (client, server) = pair(&over_tcp().build().unwrap(), &server).await;
    leaves(&client, &server, 1, 200 << 10).await;
    let held = server.hold(16 << 20).unwrap();
    leaves(&client, &server, 2, 200 << 10).await;
    let large = client.write(message(3, 2 << 20));
    let failed = soon("the read", server.read()).await.unwrap_err();
    assert!(matches!(failed, Error::OutOfMemory { .. }), "{failed}");
    // All of it may have left before that was known.
    let ended = soon("its write", large).await;
    assert!(
        matches!(ended, Ok(()) | Err(Error::Refused { .. })),
        "{ended:?}"
    );
    for number in 3..6 {
        exchange(&client, &server, number, 1000).await;
        exchange(&server, &client, number, 1000).await;
    }
    drop(held);
    leaves(&client, &server, 7, 200 << 10).await;
}
