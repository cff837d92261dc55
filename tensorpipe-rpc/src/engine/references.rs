//! References in calls and replies: given away, fetched, and shared with a third process.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};
use tensorpipe::ambient;
use tensorpipe::engine::EnginePipe;

use super::admission::Admitted;
use super::calls::DEFAULT_DEADLINE;
use super::{Body, CallSlot, Engine, Request};
use crate::caught::catch_panic;
use crate::codec::{Encoded, Reply};
use crate::context::CallContext;
use crate::error::CallError;
use crate::header::{FailureCode, Header, Kind};
use crate::placement::CallPlacement;
use crate::remote::{EncodedReferences, FETCH, Grant, Handle, Referent, UNRESOLVED, drop_value};

impl Engine {
    /// Asks the peer something about a reference, whose handle is kept until the peer has answered.
    pub(crate) fn ask(
        self: &Arc<Self>,
        kind: Kind,
        body: &[u8],
        about: Option<Arc<Handle>>,
        places: Option<Arc<CallPlacement>>,
    ) -> Result<(Arc<Self>, Arc<CallSlot>), CallError> {
        let left = CallContext::current().and_then(|outer| outer.time_left());
        let after = left.map_or(DEFAULT_DEADLINE, |left| left.min(DEFAULT_DEADLINE));
        if after.is_zero() {
            return Err(CallError::no_time());
        }
        let id = self.calls.next_id();
        let mut metadata = Header::plain(kind, id).to_vec();
        let header_len = metadata.len();
        metadata.extend_from_slice(body);
        let slot = self.call(Request {
            id,
            method: &FETCH,
            encoded: Encoded {
                metadata,
                ..Encoded::default()
            },
            header_len,
            deadline: ambient::now().checked_add(after).map(|at| (at, after)),
            references: about.map(EncodedReferences::pinning),
            trace: None,
            places,
            required: None,
        });
        Ok((self.clone(), slot))
    }

    /// Answers with a copy of what a reference refers to.
    pub(super) fn fetch(self: &Arc<Self>, id: u64, admitted: Admitted, body: &Body) {
        let Some((of, index)) = self.which(&admitted, body) else {
            return;
        };
        if !self.owned.is_pending(of) {
            return self.fetch_now(id, admitted, of, index);
        }
        self.when_ended(id, admitted, smallvec![of], move |engine, mut admitted| {
            admitted.begun = None;
            engine.fetch_now(id, admitted, of, index);
        });
    }

    /// Reads which reference a request names. Answers with a failure if it names none.
    fn which(&self, admitted: &Admitted, body: &Body) -> Option<(u64, u32)> {
        let reference = body.metadata.split_first_chunk::<8>();
        let reference = reference.and_then(|(of, index)| Some((of, index.first_chunk()?)));
        let Some((of, index)) = reference else {
            let text = "which reference is cut short";
            self.fail_admitted(admitted, FailureCode::BadArguments, text);
            return None;
        };
        Some((u64::from_le_bytes(*of), u32::from_le_bytes(*index)))
    }

    /// A copy may take long, or wait for a lock of the program's: it is made like a method's result.
    fn fetch_now(self: &Arc<Self>, id: u64, admitted: Admitted, of: u64, index: u32) {
        let Some(serving) = &self.serving else { return };
        let Some(referent) = self.owned.find_at(of, index) else {
            return self.fail_admitted(&admitted, FailureCode::Unresolved, UNRESOLVED);
        };
        let speed = serving.server.fetch_speed(&referent);
        let fetched = Box::pin(async move {
            let copied = catch_panic(|| referent.fetched());
            // Not while a panic unwinds: this may be the last handle, and its drop may panic, too.
            drop_value(referent);
            match copied {
                Ok(Some(reply)) => reply,
                Ok(None) => {
                    let text = "the value does not travel: call a method of its owner's with it";
                    Reply::failed(FailureCode::Unresolved, text.to_owned())
                }
                Err(panic) => Reply::failed(FailureCode::Panicked, panic),
            }
        });
        // A handler of another call may be driving the pipe here. The value's references belong to this answer, so use its context.
        let context = admitted.context.clone();
        context.within(|| self.poll_handler(id, admitted, fetched, &speed));
    }

    /// Answers with a token that lets a third process claim a reference.
    pub(super) fn share(&self, admitted: &Admitted, body: &Body) {
        let Some((of, index)) = self.which(admitted, body) else {
            return;
        };
        let Some(referent) = self.owned.find_at(of, index) else {
            return self.fail_admitted(admitted, FailureCode::Unresolved, UNRESOLVED);
        };
        // The caller knows by which host it has reached this one.
        match self.grant(referent, |_| true) {
            Ok(grant) => self.reply(admitted, Reply::value(grant)),
            Err((code, text)) => self.fail_admitted(admitted, code, text),
        }
    }

    /// Keeps a value until a third process claims it, as [`ServerShared::share`](crate::server::ServerShared::share).
    pub(crate) fn grant(
        &self,
        referent: Referent,
        named: fn(&str) -> bool,
    ) -> Result<Grant, (FailureCode, String)> {
        let Some(serving) = &self.serving else {
            return Err((FailureCode::Unresolved, "it serves nothing".to_owned()));
        };
        let runtime = self.pipe.runtime();
        let server = &serving.server;
        server.share(referent, serving.id, runtime, named)
    }

    /// Answers with a reference that somebody else has shared.
    pub(super) fn claim(&self, admitted: &Admitted, body: &Body) {
        let Some(serving) = &self.serving else { return };
        let token = body.metadata.first_chunk::<16>();
        let Some(referent) = token.and_then(|token| serving.server.grants.take(token)) else {
            let text =
                "nothing was shared under this name, or it was claimed, or not within a minute";
            return self.fail_admitted(admitted, FailureCode::Unresolved, text);
        };
        let call = admitted.call;
        self.reply(admitted, Reply::reference(call, referent));
    }

    /// Runs `go_on` for a call when the calls that it waits for have ended.
    pub(super) fn when_ended(
        self: &Arc<Self>,
        id: u64,
        mut admitted: Admitted,
        calls: SmallVec<[u64; 1]>,
        go_on: impl FnOnce(&Arc<Self>, Admitted) + Send + 'static,
    ) {
        let engine = self.clone();
        self.list(id, &mut admitted);
        self.pipe.runtime().spawn(async move {
            let context = admitted.context.clone();
            let ended = async {
                for call in calls {
                    engine.owned.ended(call).await;
                }
            };
            tokio::select! {
                biased;
                () = context.cancelled() => engine.late_or_given_up(&admitted),
                () = ended => go_on(&engine, admitted),
            }
        });
    }
}
