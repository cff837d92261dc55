//! How a lane learns which process its peer is.
//!
//! A descriptor only says who the peer claims to be. A lane that has something to lend sends an unguessable number over its pipe. The peer
//! brings that number to the exchange's socket, where the kernel says which process it is. So the process that comes is at the other end of
//! the pipe, or has the number from the process there. If the pipe has a key, the peer brings a value derived from the number, the key and
//! the name of the exchange instead. An eavesdropper without the key cannot derive it, and the value is of no use at another exchange.
//!
//! A [`Pass`] is for a process that reads its peer's memory, on a pipe with a key. A peer may direct the reader to some other process's
//! exchange; that one does not know the pass, and does not answer.

use std::sync::OnceLock;

use super::Exchange;
use super::borrower::Borrower;
use super::lender::Lender;
use crate::error::SystemError;
use crate::keys::PipeKey;
use crate::process::{Token, random_token};
use crate::sync::{Arc, lock};

/// The invitation of one lane, valid while it is held.
#[derive(Debug)]
pub(in crate::channels) struct Invitation {
    /// What the peer is told.
    number: Token,
    /// What it has to bring.
    brings: Token,
    /// The process that came with it.
    borrower: OnceLock<Arc<Borrower>>,
}

impl Invitation {
    /// Registers it with the exchange, which must be open.
    pub(super) fn new(
        exchange: &Exchange,
        key: Option<&PipeKey>,
    ) -> Result<Arc<Self>, SystemError> {
        let number = random_token()?;
        let made = Arc::new(Self {
            number,
            brings: brings(&exchange.name, &number, key),
            borrower: OnceLock::new(),
        });
        lock(&exchange.invitations).insert(made.brings, Arc::downgrade(&made));
        Ok(made)
    }

    /// The number to send to the peer.
    pub(in crate::channels) fn number(&self) -> Token {
        self.number
    }

    /// The peer's process, once it has come.
    pub(in crate::channels) fn borrower(&self) -> Option<&Arc<Borrower>> {
        self.borrower.get()
    }

    /// A process has come with the invitation. `false`: another process came before.
    pub(super) fn accept(&self, borrower: &Arc<Borrower>) -> bool {
        Arc::ptr_eq(self.borrower.get_or_init(|| borrower.clone()), borrower)
    }
}

impl Lender {
    /// What to bring to this lender's exchange, for a number that came over a pipe with this key.
    pub(in crate::channels) fn brings(&self, number: &Token, key: Option<&PipeKey>) -> Token {
        brings(self.name(), number, key)
    }
}

fn brings(exchange: &str, number: &Token, key: Option<&PipeKey>) -> Token {
    key.map_or(*number, |key| key.invitation(exchange, number))
}

/// The pass of one pipe, valid while it is held. A process that asks with it for the export table has the pipe's key.
#[derive(Debug)]
pub(in crate::channels) struct Pass(Token);

impl Pass {
    pub(super) fn new(number: Token) -> Self {
        Self(number)
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        // A forked child's exchange has no such pass. Another lane of the pipe may have made a new one meanwhile.
        let exchange = Exchange::here();
        let mut passes = lock(&exchange.passes);
        if passes
            .get(&self.0)
            .is_some_and(|pass| pass.strong_count() == 0)
        {
            passes.remove(&self.0);
        }
    }
}

impl Drop for Invitation {
    fn drop(&mut self) {
        // A forked child has an exchange of its own, which has no such invitation.
        lock(&Exchange::here().invitations).remove(&self.brings);
    }
}
