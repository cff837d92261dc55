//! Every future may be dropped after any number of polls: nothing is lost, leaked or stuck.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use tensorpipe::{Buffer, DType, Error, Message, ResetCode, Tensor};

use super::*;

/// Polls `times` times, however long it would still wait, then drops it.
async fn polled<T>(work: impl Future<Output = T>, times: usize) -> Option<T> {
    let mut work = pin!(work);
    for _ in 0..times {
        let poll = poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx))).await;
        if let Poll::Ready(result) = poll {
            return Some(result);
        }
        tokio::task::yield_now().await;
    }
    None
}

const LEN: usize = 2_000_000;

#[tokio::test]
async fn a_dropped_read_descriptor_loses_no_message() {
    every_way(async |_, client, server| {
        for times in 0..20u64 {
            let write = client.write(message(times, LEN));
            let incoming = match polled(server.read_descriptor(), times as usize).await {
                Some(incoming) => incoming,
                None => soon("the descriptor", server.read_descriptor()).await,
            };
            let read = soon("the message", incoming.unwrap().read()).await.unwrap();
            check(&read, times, LEN);
            soon("the write", write).await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn a_dropped_read_gives_up_its_message_and_no_other() {
    every_way(async |context, client, server| {
        for times in 0..20u64 {
            let dropped = client.write(message(1000, LEN));
            let incoming = head(&server).await;
            if let Some(read) = polled(incoming.read(), times as usize).await {
                check(&read.unwrap(), 1000, LEN);
            }
            exchange(&client, &server, times, LEN).await;
            exchange(&server, &client, times, 10).await;
            drop(soon("the dropped one's write", dropped).await);
        }
        memory_is_back(&context).await;
    })
    .await;
}

/// What little is still to come is thrown away; else its writer is told to stop.
#[tokio::test]
async fn the_writer_of_a_dropped_read_hears_of_it_where_much_is_still_to_come() {
    let nothing_ahead = limits(|limits| limits.window_ahead = 0);
    let context = over_tcp().limits(nothing_ahead).build().unwrap();
    let (client, server) = pair(&context, &context).await;
    for (len, stops) in [(60 << 10, false), (64 << 20, true)] {
        let write = client.write(message(1, len));
        let incoming = soon("the descriptor", server.read_descriptor()).await;
        drop(incoming.unwrap().read());
        match soon("the write", write).await {
            Ok(()) => assert!(!stops, "all {len} bytes were sent"),
            Err(Error::Refused { code, .. }) => {
                assert!(stops && code == ResetCode::Cancelled, "{len} bytes, {code}");
            }
            Err(other) => panic!("{other}"),
        }
    }
}

#[tokio::test]
async fn a_dropped_write_still_writes() {
    every_way(async |context, client, server| {
        for times in 0..20u64 {
            let write = polled(client.write(message(times, LEN)), times as usize);
            let (_, read) = soon("the message", async { tokio::join!(write, server.read()) }).await;
            check(&read.unwrap(), times, LEN);
        }
        memory_is_back(&context).await;
    })
    .await;
}

#[tokio::test]
async fn a_cancelled_write_leaves_the_pipe_going() {
    every_way(async |context, client, server| {
        for times in 0..20u64 {
            let mut write = client.write(message(1000, LEN));
            let reader = server.clone();
            let read = tokio::spawn(async move { reader.read().await });
            for _ in 0..times {
                if polled(&mut write, 1).await.is_some() {
                    break;
                }
            }
            write.cancel();
            // A message that was not sent yet is never seen: the next one is.
            client.send(message(times, 10)).unwrap();
            match soon("a read", read).await.unwrap() {
                Ok(message) if message.metadata[..] == 1000u64.to_le_bytes() => {
                    check(&message, 1000, LEN);
                    check(&server.read().await.unwrap(), times, 10);
                }
                Ok(message) => check(&message, times, 10),
                Err(error) => {
                    assert!(error.to_string().contains("cancelled"), "{error}");
                    check(&server.read().await.unwrap(), times, 10);
                }
            }
        }
        memory_is_back(&context).await;
    })
    .await;
}

#[tokio::test]
async fn a_dropped_flush_or_accept_or_connect_leaves_nothing_stuck() {
    let context = over_tcp().name("legit").build().unwrap();
    let hasty = over_tcp().name("hasty").build().unwrap();
    let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    let url = listener.url().to_string();
    for times in 0..20 {
        drop(polled(hasty.connect(&url), times).await);
        drop(polled(listener.accept(), times).await);
    }
    let connect = async { soon("connect", context.connect(&url)).await.unwrap() };
    let accept = async {
        loop {
            let pipe = soon("accept", listener.accept()).await.unwrap();
            if pipe.peer_name() == "legit" {
                return pipe;
            }
            // Its connector has gone: it says so, too.
            assert!(soon("the hasty one's end", pipe.read()).await.is_err());
        }
    };
    let (client, server) = tokio::join!(connect, accept);
    for times in 0..20 {
        client.send(message(times, 100)).unwrap();
        drop(polled(client.flush(), times as usize).await);
        comes(&server, times, 100).await;
        soon("a flush", client.flush()).await.unwrap();
    }
}

#[tokio::test]
async fn a_dropped_close_still_delivers() {
    every_way(async |context, _, _| {
        for times in 0..12 {
            let (client, server) = pair(&context, &context).await;
            client.send(message(7, LEN)).unwrap();
            drop(polled(client.close(), times).await);
            drop(client);
            comes(&server, 7, LEN).await;
            let end = soon("the end", server.read()).await.unwrap_err();
            assert!(end.to_string().contains("closed by the peer"), "{end}");
        }
    })
    .await;
}

/// A future that was polled and is kept, but never polled again, has the role of the pipe's poller: others get it back.
#[tokio::test]
async fn a_forgotten_future_does_not_starve_the_others() {
    let (client, server) = tcp_pair().await;
    let mut forgotten = Box::pin(server.ended());
    assert!(polled(&mut forgotten, 1).await.is_none());
    let reader = server.clone();
    let reading = tokio::spawn(async move { reader.read().await });
    tokio::task::yield_now().await;
    let mut also_forgotten = Box::pin(server.read_descriptor());
    assert!(polled(&mut also_forgotten, 1).await.is_none());
    let mut answers = Box::pin(client.read());
    assert!(polled(&mut answers, 1).await.is_none());
    soon("a write", client.write(message(0, 300_000)))
        .await
        .unwrap();
    check(
        &soon("the read", reading).await.unwrap().unwrap(),
        0,
        300_000,
    );
    server.send(message(2, 10)).unwrap();
    check(&soon("the answer", answers).await.unwrap(), 2, 10);
    drop((forgotten, also_forgotten));
}

/// A waker of somebody who made a mistake.
struct Panics;

impl std::task::Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("not now");
    }
}

#[tokio::test]
async fn a_waker_that_panics_keeps_nobody_else_asleep() {
    every_way(async |_, client, server| {
        let waiting: Vec<_> = (0..8)
            .map(|_| {
                let server = server.clone();
                tokio::spawn(async move { server.ended().await })
            })
            .collect();
        tokio::task::yield_now().await;
        let bad = std::task::Waker::from(Arc::new(Panics));
        let mut cx = std::task::Context::from_waker(&bad);
        let mut read = pin!(server.read_descriptor());
        let mut ended = pin!(server.ended());
        assert!(read.as_mut().poll(&mut cx).is_pending());
        assert!(ended.as_mut().poll(&mut cx).is_pending());
        client.send(message(1, 10)).unwrap();
        soon("closing", client.close()).await.unwrap();
        drop(soon("closing", server.close()).await);
        for waiting in waiting {
            soon("the end", waiting).await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn the_longest_bounds_are_for_ever() {
    let policy = ConnectPolicy::retrying_for(Duration::MAX);
    let longest = timeouts(|timeouts| {
        (timeouts.handshake, timeouts.linger) = (Duration::MAX, Duration::MAX);
        timeouts.silence = Some(Duration::MAX);
    });
    let context = over_tcp().timeouts(longest).connect_policy(policy);
    let context = context.build().unwrap();
    let (client, server) = pair(&context, &context).await;
    exchange(&client, &server, 1, 70_000).await;
    let bounds = (client.close_within(Duration::MAX), server.close());
    let (one, two) = soon("closing", async { tokio::join!(bounds.0, bounds.1) }).await;
    one.unwrap();
    two.unwrap();
}

/// Bytes whose owner is a bad one.
struct Spiteful(Vec<u8>);

impl AsRef<[u8]> for Spiteful {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Spiteful {
    fn drop(&mut self) {
        panic!("expected: it does not like to be dropped");
    }
}

/// The last handle is dropped by whichever thread has written the bytes, in the middle of that.
#[tokio::test]
async fn memory_that_panics_as_it_is_dropped_costs_its_pipe_nothing() {
    every_way(async |_, client, server| {
        for (times, len) in [100, 100_000, LEN].into_iter().enumerate() {
            for times in [times as u64, 10 + times as u64] {
                let memory = Buffer::from_owner(Spiteful(vec![7; len]));
                let tensor = Tensor::from_buffer(memory, DType::U8, [len as u64]).unwrap();
                let odd = Message::new(times.to_le_bytes().to_vec()).tensor(tensor);
                let writes = [client.write(odd), client.write(message(times, len))];
                let odd = soon("the odd one", server.read()).await.unwrap();
                assert_eq!(odd.metadata[..], times.to_le_bytes());
                assert!(
                    odd.tensors[0]
                        .tensor
                        .as_bytes()
                        .unwrap()
                        .iter()
                        .all(|byte| *byte == 7)
                );
                comes(&server, times, len).await;
                drop(odd);
                for write in writes {
                    soon("a write", write).await.unwrap();
                }
            }
        }
        client.send(message(99, 10)).unwrap();
        comes(&server, 99, 10).await;
    })
    .await;
}
