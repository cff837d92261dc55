//! If no message is queued, a write sends its message at once, within the call. All other messages are queued and still
//! come in order.

use tensorpipe::channels::LeaseChannel;
use tensorpipe::engine::EnginePipe;
use tensorpipe::{DType, Error, Payload, ResetCode};

use super::*;

/// Nobody polls: neither the write nor anything else of the writer's.
#[tokio::test]
async fn a_write_that_nobody_polls_has_left() {
    for (client, server) in both_pairs().await {
        client.write(Message::new("settled")).await.unwrap();
        soon("the first", server.read()).await.unwrap();
        let before = client.stats().writes;
        let forgotten = client.write(Message::new("gone").payload(Payload::new(vec![7; 100])));
        assert_eq!(
            (client.stats().writes - before, client.unwritten()),
            (1, 0),
            "one write, and nothing is left"
        );
        let message = soon("the message", server.read()).await.unwrap();
        assert_eq!(
            (&*message.metadata, message.payloads[0].as_bytes()[99]),
            (&b"gone"[..], 7)
        );
        drop(forgotten);
    }
}

/// Until the connection takes no more one of them leaves in part, and those behind it wait for their turn.
#[tokio::test]
async fn one_that_left_halfway_and_those_behind_it_come_whole_and_in_order() {
    const MESSAGES: u64 = 400;
    for (client, server) in both_pairs().await {
        let body = |number: u64| pattern(10_000 + number as usize * 7 % 6000, number);
        let writes: Vec<_> = (0..MESSAGES)
            .map(|number| {
                let message = Message::new(number.to_le_bytes().to_vec());
                client.write(message.payload(Payload::new(body(number))))
            })
            .collect();
        assert!(client.unwritten() > 0, "nothing was in the way");
        let read = async {
            for number in 0..MESSAGES {
                let message = server.read().await.unwrap();
                assert_eq!(*message.metadata, number.to_le_bytes());
                assert_same(message.payloads[0].as_bytes(), &body(number), "payload");
            }
        };
        let written = async {
            for write in writes {
                write.await.unwrap();
            }
        };
        soon("all of them", async { tokio::join!(read, written) }).await;
        assert_eq!(client.unwritten(), 0);
    }
}

/// A message of which a part is still here is not handed over.
#[tokio::test]
async fn one_that_left_halfway_is_unwritten_until_the_rest_has_left() {
    const LEN: u64 = 50_000;
    for (client, server) in both_pairs().await {
        let mut before = client.stats().bytes_out;
        let half = loop {
            let payload = Payload::new(vec![7; LEN as usize]);
            let id = client.send(Message::new("").payload(payload)).unwrap();
            let after = client.stats().bytes_out;
            if after < before + LEN {
                break id;
            }
            assert!(!client.is_unwritten(id));
            before = after;
        };
        assert!(client.is_unwritten(half));
        assert_eq!(client.unwritten(), 1);
        // Taken back too late, it comes all the same; its reader hears of it.
        client.reset(half, ResetCode::Cancelled, "");
        assert_eq!(client.unwritten(), 0);
        client.send(Message::new("last")).unwrap();
        let read = async { while *server.read().await.unwrap().metadata != *b"last" {} };
        soon("the rest", read).await;
        eventually("the end", || client.unwritten() == 0).await;
    }
}

/// Its RESET was here when it was read, and whoever reads it hears what that said.
#[tokio::test]
async fn one_that_was_taken_back_before_it_is_read_says_why() {
    for (client, server) in both_pairs().await {
        for number in 0..4 {
            // More than a pipe has credit ahead for: it waits for the go-ahead.
            let id = client.send(message(number, 9 << 20)).unwrap();
            let incoming = head(&server).await;
            client.reset(id, ResetCode::Failed, "the cable is cut");
            // Behind the RESET.
            exchange(&client, &server, number, 100).await;
            if number % 2 == 0 {
                incoming.skip();
                continue;
            }
            let error = soon("its end", incoming.read()).await.unwrap_err();
            let Error::Reset { code, reason } = error else {
                panic!("{error:?}");
            };
            let said = (code, &*reason);
            assert_eq!(said, (ResetCode::Failed, "the cable is cut"));
        }
        exchange(&client, &server, 9, 9 << 20).await;
    }
}

/// A peer that is gone is found out by the message that would leave at once, and both the write and the pipe say so.
#[tokio::test]
async fn a_message_to_a_peer_that_is_gone_fails_like_any_other() {
    for (client, server) in both_pairs().await {
        client.write(Message::new("hello")).await.unwrap();
        soon("the first", server.read()).await.unwrap();
        server.close().await.unwrap();
        drop(server);
        let error = soon("the end", async {
            loop {
                if let Err(error) = client.write(Message::new("anybody there?")).await {
                    return error;
                }
            }
        })
        .await;
        assert!(
            error.ends_pipe() || matches!(error, Error::GoingAway { .. }),
            "{error}"
        );
        soon("the pipe's own end", client.ended()).await;
    }
}

/// However many parts a message has: what its channels say of it leaves as well, though nobody waits for it.
#[tokio::test]
async fn what_channels_say_of_a_long_message_is_not_left_behind() {
    for context in [over_tcp, over_shm] {
        let channels = || -> [Arc<dyn Channel>; 2] {
            [
                Arc::new(LeaseChannel::also_within_process()),
                Arc::new(BasicChannel::new()),
            ]
        };
        // Nor does the peer ask whether anybody is there. What is left behind leaves with the heartbeat, after 1.25 s.
        let quiet = timeouts(|timeouts| timeouts.silence = None);
        let context = || context().channels(channels()).timeouts(quiet.clone());
        let (near, far) = (context().build().unwrap(), context().build().unwrap());
        let (client, server) = pair(&near, &far).await;
        client.write(Message::new("settled")).await.unwrap();
        soon("the first", server.read()).await.unwrap();
        let tensor = near.pool().tensor(DType::U8, [1 << 20]).unwrap();
        let mut lent = 0;
        for payloads in 60..68 {
            let message = (0..payloads).fold(Message::new(""), |message, _| {
                message.payload(Payload::new(vec![7; 600]))
            });
            client.send(message.tensor(tensor.clone())).unwrap();
            let what = format!("a message of {payloads} payloads");
            let before_the_heartbeat = Duration::from_secs(1);
            let read = tokio::time::timeout(before_the_heartbeat, server.read()).await;
            let message = read.expect(&what).unwrap();
            assert_eq!(
                (message.payloads.len(), message.tensors.len()),
                (payloads, 1)
            );
            lent += 1 << 20;
            let answer = eventually("its answer", || client.stats().bytes_lent == lent);
            let answer = tokio::time::timeout(before_the_heartbeat, answer).await;
            answer.expect("its answer is left behind");
        }
    }
}

/// Threads that come while another has the connection, and go without waiting: each message leaves, and its echo comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn none_of_several_threads_leaves_its_message_behind() {
    const EACH: u32 = 300;
    const THREADS: u32 = 3;
    for context in [over_tcp(), over_shm()] {
        let quiet = timeouts(|timeouts| timeouts.silence = None);
        let context = context.timeouts(quiet).build().unwrap();
        let (client, server) = pair(&context, &context).await;
        let echo = tokio::spawn(async move {
            for _ in 0..EACH * THREADS {
                let message = server.read().await.unwrap();
                server.send(message).unwrap();
            }
            server
        });
        let senders: Vec<_> = (0..THREADS)
            .map(|thread| {
                let client = client.clone();
                std::thread::spawn(move || {
                    for number in 0..EACH {
                        let body = vec![7; (number as usize * 37) % 3000];
                        let message = Message::new(thread.to_le_bytes().to_vec());
                        client.send(message.payload(Payload::new(body))).unwrap();
                        if number % 7 == 0 {
                            std::thread::sleep(Duration::from_micros(100));
                        }
                    }
                })
            })
            .collect();
        let echoes = async {
            for _ in 0..EACH * THREADS {
                client.read().await.unwrap();
            }
        };
        soon("the echoes", echoes).await;
        senders
            .into_iter()
            .for_each(|sender| sender.join().unwrap());
        drop(soon("the echo", echo).await.unwrap());
    }
}

/// The goodbye does not overtake the rest of a message, and the write of that one ends well.
#[tokio::test]
async fn closing_waits_for_the_rest_of_one_that_left_halfway() {
    for (client, server) in both_pairs().await {
        let mut sent = 0;
        let half = loop {
            let payload = Payload::new(pattern(50_000, sent));
            let write = client.write(Message::new("").payload(payload));
            sent += 1;
            if client.unwritten() > 0 {
                break write;
            }
        };
        let read = async {
            for number in 0..sent {
                let message = server.read().await.unwrap();
                assert_same(
                    message.payloads[0].as_bytes(),
                    &pattern(50_000, number),
                    "payload",
                );
            }
            assert!(matches!(
                server.read().await,
                Err(Error::Closed { by_peer: true, .. })
            ));
        };
        let ends = async { tokio::join!(client.close(), half, read) };
        let (closed, written, ()) = soon("the end", ends).await;
        closed.unwrap();
        written.unwrap();
    }
}
