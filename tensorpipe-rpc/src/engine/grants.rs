//! References on their way to a third process: shared by one holder, claimed by the next.

use super::admission::Admitted;
use super::{Body, Engine};
use crate::codec::Reply;
use crate::header::FailureCode;
use crate::remote::{Grant, UNRESOLVED};

impl Engine {
    /// Answers with what lets a third process have a reference.
    pub(super) fn share(&self, admitted: &Admitted, body: &Body) {
        let (Some(serving), Some((of, index))) = (&self.serving, self.which(admitted, body)) else {
            return;
        };
        let unresolved = |text: &str| {
            self.give_up(admitted, FailureCode::Unresolved, text.to_owned());
        };
        let Some(referent) = self.owned.find_at(of, index) else {
            return unresolved(UNRESOLVED);
        };
        let server = &serving.server;
        let urls = server.urls.get().cloned().unwrap_or_default();
        if urls.is_empty() {
            return unresolved("its owner listens nowhere: a third process cannot reach it");
        }
        let limit = server.limits.references;
        match server.grants.give(referent, limit, self.pipe.runtime()) {
            Ok(token) => self.reply(admitted, Reply::value(Grant { urls, token })),
            Err(text) => self.give_up(admitted, FailureCode::Overloaded, text),
        }
    }

    /// Answers with a reference that somebody else has shared.
    pub(super) fn claim(&self, admitted: &Admitted, body: &Body) {
        let Some(serving) = &self.serving else { return };
        let token = body.metadata.first_chunk::<16>();
        let Some(referent) = token.and_then(|token| serving.server.grants.take(token)) else {
            let text =
                "nothing was shared under this name, or it was claimed, or not within a minute";
            return self.give_up(admitted, FailureCode::Unresolved, text.to_owned());
        };
        let call = admitted.header.call;
        self.reply(admitted, Reply::reference(call, referent));
    }
}
