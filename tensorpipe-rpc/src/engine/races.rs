//! What several threads may do at once, one after another in each order: references in a reply that nobody looks at go back.

use std::sync::Arc;
use std::time::Duration;

use tensorpipe::{Context, Message, MessageStats, Pipe};

use super::{CallSlot, Engine};
use crate::header::{Header, Kind, REFERENCES};

/// An engine that has asked for something, and the other end.
struct Asked {
    engine: Arc<Engine>,
    slot: Arc<CallSlot>,
    peer: Pipe,
}

impl Asked {
    async fn new() -> Self {
        let context = Context::new();
        let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
        let url = listener.url().to_string();
        let (near, peer) = tokio::join!(context.connect(url), listener.accept());
        let engine = Engine::start(near.unwrap(), None).unwrap();
        let (_, slot) = engine.ask(Kind::Claim, &[0; 16], None, None).unwrap();
        let peer = peer.unwrap();
        let asked = soon(peer.read()).await.unwrap();
        assert_eq!(Header::decode(&asked.metadata).unwrap().call, slot.id);
        Self { engine, slot, peer }
    }

    /// All of a reply with references is here.
    fn is_answered(&self) {
        let mut header = Header::plain(Kind::Value, self.slot.id);
        header.flags |= REFERENCES;
        let message = Message::new(header.to_vec());
        let header = Header::decode(&message.metadata).unwrap();
        let came = MessageStats::default();
        let (engine, slot) = (&self.engine, &self.slot);
        engine.reply_complete(0, &header, slot, Ok(message), came);
    }

    /// The peer hears that nobody refers to what it gave away.
    async fn gives_back(&self) {
        let said = soon(self.peer.read()).await.unwrap();
        let header = Header::decode(&said.metadata).unwrap();
        assert_eq!((header.kind, header.call), (Kind::Release, self.slot.id));
        assert_eq!(said.metadata.len(), header.body_at, "all of them");
        assert_eq!(self.engine.calls.under_way(), 0);
    }
}

async fn soon<T>(work: impl Future<Output = T>) -> T {
    let bounded = tokio::time::timeout(Duration::from_secs(20), work).await;
    bounded.expect("within 20 s")
}

#[tokio::test]
async fn a_reply_whose_call_is_given_up_while_it_comes_is_given_back() {
    let asked = Asked::new().await;
    // Whoever drives the pipe has found the call; then another thread drops it.
    asked.engine.cancel(&asked.slot);
    asked.is_answered();
    asked.gives_back().await;
}

#[tokio::test]
async fn a_reply_that_nobody_has_looked_at_is_given_back() {
    let asked = Asked::new().await;
    asked.is_answered();
    asked.engine.cancel(&asked.slot);
    asked.gives_back().await;
}

#[tokio::test]
async fn the_second_reply_of_a_call_is_given_back_and_the_first_is_there() {
    let asked = Asked::new().await;
    asked.is_answered();
    asked.is_answered();
    asked.gives_back().await;
    let first = asked.slot.poll(None).unwrap();
    assert!(first.has_references());
}
