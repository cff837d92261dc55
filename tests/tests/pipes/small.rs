//! Metadata-only messages: a handler gets their bytes. Messages that leave later leave in order, whether or not the write's
//! future is polled.

use std::sync::Mutex;

use tensorpipe::engine::{EnginePipe, Handler, Held, Outbound, When};
use tensorpipe::{Error, Incoming, MessageStats};

use super::*;

/// Takes, refuses, drops or keeps a message, as it asks for.
#[derive(Default)]
struct Picky {
    taken: Mutex<Vec<Vec<u8>>>,
    kept: Mutex<Vec<Incoming>>,
    others: Mutex<Vec<u64>>,
}

impl Handler for Picky {
    fn incoming(&self, incoming: Incoming) {
        if !incoming.descriptor().tensors.is_empty() {
            self.others.lock().unwrap().push(incoming.id());
            return drop(incoming.accept());
        }
        match &incoming.descriptor().metadata[..] {
            b"refuse" => incoming.refuse("not this one"),
            b"drop" => drop(incoming),
            b"keep" => self.kept.lock().unwrap().push(incoming),
            shown => {
                let shown = shown.to_vec();
                let taken = incoming.accept().expect("it is here").unwrap();
                assert_eq!(taken.metadata, shown);
                self.taken.lock().unwrap().push(shown);
            }
        }
    }

    fn message(&self, _: u64, message: Result<Message, Error>, _: MessageStats, _: Held) {
        message.unwrap();
    }

    fn closed(&self, _: &Error) {}
}

#[tokio::test]
async fn a_handler_takes_refuses_drops_or_keeps_a_small_message() {
    every_way(async |_, client, server| {
        let handler = Arc::new(Picky::default());
        server.set_handler(handler.clone()).unwrap();
        client.send(Message::new("one")).unwrap();
        let refused = client.send(Message::new("refuse")).unwrap();
        client.send(Message::new("drop")).unwrap();
        client.send(Message::new("keep")).unwrap();
        client.send(message(4, 100)).unwrap();
        client
            .submit(&mut Outbound::new(b""), When::Now, |_| ())
            .unwrap();
        client
            .submit(&mut Outbound::new(b"two"), When::NextDrive, |_| ())
            .unwrap();
        eventually("all of them", || handler.taken.lock().unwrap().len() == 3).await;
        assert_eq!(*handler.taken.lock().unwrap(), [&b"one"[..], b"", b"two"]);
        assert_eq!(*handler.others.lock().unwrap(), [4]);
        assert_eq!(refused, 1);
        // What is kept is read whenever one likes, also by whoever is no handler.
        let kept = handler.kept.lock().unwrap().pop().unwrap();
        assert_eq!(kept.id(), 3);
        let kept = soon("the kept one", kept.read()).await.unwrap();
        assert_eq!(kept.metadata, "keep");
        soon("everything read", client.flush()).await.unwrap();
        soon("close", client.close()).await.unwrap();
    })
    .await;
}

/// Many more than there is credit for, in both directions, some that leave at once and some together.
#[tokio::test]
async fn small_messages_keep_their_order_and_give_their_credit_back() {
    const MANY: u64 = 5000;
    every_way(async |_, client, server| {
        let handler = Arc::new(Picky::default());
        server.set_handler(handler.clone()).unwrap();
        let mut numbers = Vec::new();
        for number in 0..MANY {
            let number_it = |id| numbers.push(id);
            let bytes = number.to_le_bytes();
            let when = match number % 7 {
                0..3 => When::NextDrive,
                3..5 => When::Coalesce(100),
                5 => When::Coalesce(1),
                _ => When::Now,
            };
            let submitted = client
                .submit(&mut Outbound::new(&bytes), when, number_it)
                .unwrap();
            assert_eq!(submitted.id, number);
            if number % 50 == 0 {
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(numbers, (0..MANY).collect::<Vec<_>>());
        let all = || handler.taken.lock().unwrap().len() as u64 == MANY;
        eventually("all of them", all).await;
        let taken = handler.taken.lock().unwrap().clone();
        let numbers = taken
            .iter()
            .map(|bytes| u64::from_le_bytes(bytes[..].try_into().unwrap()));
        assert!(numbers.eq(0..MANY), "out of order");
        assert_eq!(client.unwritten(), 0);
    })
    .await;
}

/// Nothing else happens on the pipe, and nobody awaits anything.
#[tokio::test]
async fn what_leaves_soon_leaves_though_nobody_waits() {
    every_way(async |_, client, server| {
        for round in 0..3u8 {
            for one in 0..=round {
                client
                    .submit(&mut Outbound::new(&[one]), When::NextDrive, |_| ())
                    .unwrap();
            }
            for one in 0..=round {
                let read = soon("a message", server.read()).await.unwrap();
                assert_eq!(read.metadata, [one][..]);
            }
        }
        client
            .submit(&mut Outbound::new(b"last"), When::NextDrive, |_| ())
            .unwrap();
        soon("close", client.close()).await.unwrap();
        let last = soon("the last one", server.read()).await.unwrap();
        assert_eq!(last.metadata, "last");
    })
    .await;
}
