//! The holder's end of a reference.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use tensorpipe::Device;

use super::{Grant, Id, RESULT};
use crate::call::{Call, StartedCall};
use crate::caught::ignore_panic;
use crate::engine::Engine;
use crate::header::Kind;
use crate::placement::CallPlacement;
use crate::schema::{Method, Places, Streams};

/// A value at the other end of a connection. Dropping the handle tells the owner to release the value.
pub(crate) struct Handle {
    engine: Arc<Engine>,
    pub(super) id: Id,
}

/// How errors name a fetch.
pub(crate) static FETCH: Method = Method {
    service: "Remote",
    name: "fetch",
    id: 0,
    signature: "async fn fetch(&self) -> T",
    idempotent: true,
    promises: false,
    streams: Streams {
        argument: false,
        reply: false,
    },
    places: Places::NOWHERE,
    structure: |_| {},
};

impl Handle {
    pub(super) fn new(engine: Arc<Engine>, id: Id) -> Self {
        Self { engine, id }
    }

    /// A reference to the future result of a call.
    pub(crate) fn promised(engine: Arc<Engine>, call: u64) -> Self {
        let index = RESULT;
        Self::new(engine, Id { call, index })
    }

    /// The connection that the reference came over.
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// The address of that connection's engine.
    pub(super) fn address(&self) -> usize {
        Arc::as_ptr(&self.engine).addr()
    }

    /// Whether the reference came over the connection whose engine is at this address.
    pub(super) fn is_of(&self, engine: usize) -> bool {
        self.address() == engine
    }

    pub(super) fn fetch<T: DeserializeOwned>(self: &Arc<Self>, to: Option<Device>) -> Call<T> {
        self.ask(Kind::Fetch, to.map(CallPlacement::of_fetched))
    }

    /// Asks the owner for a grant, with which a third process can claim the reference.
    pub(super) fn share(self: &Arc<Self>) -> Call<Grant> {
        self.ask(Kind::Share, None)
    }

    fn ask<T: DeserializeOwned>(
        self: &Arc<Self>,
        kind: Kind,
        places: Option<Arc<CallPlacement>>,
    ) -> Call<T> {
        let mut body = self.id.call.to_le_bytes().to_vec();
        body.extend_from_slice(&self.id.index.to_le_bytes());
        let made = self.engine.ask(kind, &body, Some(self.clone()), places);
        Call::of_value(&FETCH, made.map(StartedCall::sent))
    }
}

impl Drop for Handle {
    /// A release may cancel a call that holds the last handle of another, and so on: they follow one after another, for a stack that
    /// does not grow with the chain.
    fn drop(&mut self) {
        let ended = (self.engine.clone(), self.id);
        let mut next = match RELEASES.try_with(|releases| releases.borrow_mut().begin(ended)) {
            Ok(first) => first,
            // The thread ends.
            Err(_) => Some((self.engine.clone(), self.id)),
        };
        while let Some((engine, Id { call, index })) = next {
            ignore_panic(|| engine.release(call, Some(index)));
            ignore_panic(move || drop(engine));
            let following = RELEASES.try_with(|releases| releases.borrow_mut().next());
            next = following.ok().flatten();
        }
    }
}

thread_local! {
    static RELEASES: RefCell<Releases> = const { RefCell::new(Releases { is_at_it: false, later: Vec::new() }) };
}

/// The references that end on a thread.
struct Releases {
    /// A release is under way, further down the stack.
    is_at_it: bool,
    /// Those that follow it.
    later: Vec<(Arc<Engine>, Id)>,
}

impl Releases {
    /// Returns the release that is to begin, if none is under way.
    fn begin(&mut self, ended: (Arc<Engine>, Id)) -> Option<(Arc<Engine>, Id)> {
        match std::mem::replace(&mut self.is_at_it, true) {
            true => {
                self.later.push(ended);
                None
            }
            false => Some(ended),
        }
    }

    /// What follows the release that has ended.
    fn next(&mut self) -> Option<(Arc<Engine>, Id)> {
        let next = self.later.pop();
        self.is_at_it = next.is_some();
        next
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Id { call, index } = self.id;
        write!(f, "{call}/{index} at {}", self.engine.pipe.peer_name())
    }
}
