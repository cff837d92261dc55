//! A handler that uses its pipe.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::{Subject, eventually, within};
use crate::MessageStats;
use crate::engine::{EnginePipe, Handler, Held};
use crate::error::Error;
use crate::message::Message;
use crate::pipe::{Incoming, Pipe};

/// Answers each message from inside the handler, and detects calls while another call runs.
struct Echo {
    subject: Subject,
    pipe: Mutex<Option<Pipe>>,
    inside: AtomicBool,
    seen: AtomicUsize,
    /// The messages that were accepted, for the scenario to check.
    arrived: Mutex<Vec<Message>>,
}

impl Echo {
    fn call(&self, act: impl FnOnce(&Pipe)) {
        let nested = self.inside.swap(true, Ordering::SeqCst);
        assert!(!nested, "the handler was called from inside the handler");
        let pipe = crate::sync::lock(&self.pipe).clone();
        if let Some(pipe) = pipe {
            act(&pipe);
        }
        self.inside.store(false, Ordering::SeqCst);
    }
}

impl Handler for Echo {
    fn incoming(&self, incoming: Incoming) {
        self.call(|pipe| {
            drop(pipe.send(self.subject.message(&[(300_000, 5)])));
            if let Some(whole) = incoming.accept() {
                drop(whole);
                self.seen.fetch_add(1, Ordering::SeqCst);
            }
            drop(pipe.send(self.subject.message(&[(200_000, 6)])));
        });
    }

    fn message(&self, _: u64, message: Result<Message, Error>, _: MessageStats, _: Held) {
        self.call(|_| {
            let message = message.unwrap_or_else(|error| panic!("{error}"));
            crate::sync::lock(&self.arrived).push(message);
            self.seen.fetch_add(1, Ordering::SeqCst);
        });
    }

    fn closed(&self, _: &Error) {}
}

/// No result is reported from inside the call that asked for it: a handler that writes and accepts is not called again before it returns.
pub async fn callbacks_are_deferred(subject: Subject) {
    let (client, server) = subject.pair().await;
    let echo = Arc::new(Echo {
        subject: subject.clone(),
        pipe: Mutex::new(Some(server.clone())),
        inside: AtomicBool::new(false),
        seen: AtomicUsize::new(0),
        arrived: Mutex::default(),
    });
    server.set_handler(echo.clone()).unwrap();
    for _ in 0..5 {
        let written = client.write(subject.message(&[(100_000, 4)]));
        for parts in [(300_000, 5), (200_000, 6)] {
            let read = within("an answer", client.read()).await;
            let message = read.unwrap_or_else(|error| panic!("{error}"));
            subject.check(&message, &[parts]).await;
        }
        let written = within("a write", written).await;
        written.unwrap_or_else(|error| panic!("{error}"));
    }
    eventually("all messages", || echo.seen.load(Ordering::SeqCst) == 5).await;
    let arrived = std::mem::take(&mut *crate::sync::lock(&echo.arrived));
    for message in &arrived {
        subject.check(message, &[(100_000, 4)]).await;
    }
    *crate::sync::lock(&echo.pipe) = None;
}
