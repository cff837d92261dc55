//! How a lane learns which process its peer is.
//!
//! A descriptor says who the peer claims to be. A lane that has something to lend sends an unguessable number over its pipe. The peer
//! brings that number to the exchange's socket, where the kernel says which process it is. So whoever is at the other end of the pipe is
//! that process, or has the number from it. Where the pipe has a key, it brings what only who has the key can make of the number, and what
//! is good at that exchange alone. Having read the number is of no use.
//!
//! A [`Pass`] is for a process that reads memory of its peer's. The exchange of another process, to which a peer may lead it, does not know
//! the pass, and does not answer. It is there for pipes with a key alone.

use std::sync::OnceLock;

use super::Exchange;
use super::borrower::Borrower;
use super::lender::Lender;
use crate::error::SystemError;
use crate::keys::PipeKey;
use crate::process::{Token, random_token};
use crate::sync::{Arc, lock};

/// One lane's. It is good while it is held.
#[derive(Debug)]
pub(in crate::channels) struct Invitation {
    /// What the peer is told.
    number: Token,
    /// What it has to bring.
    brings: Token,
    /// Who came with it.
    borrower: OnceLock<Arc<Borrower>>,
}

impl Invitation {
    /// Made known to the exchange, which must be open.
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

    /// What the peer is told.
    pub(in crate::channels) fn number(&self) -> Token {
        self.number
    }

    /// The process that the peer is, once it has come.
    pub(in crate::channels) fn borrower(&self) -> Option<&Arc<Borrower>> {
        self.borrower.get()
    }

    /// Somebody has come with it. `false`: another one did before.
    pub(super) fn accept(&self, borrower: &Arc<Borrower>) -> bool {
        Arc::ptr_eq(self.borrower.get_or_init(|| borrower.clone()), borrower)
    }
}

impl Lender {
    /// What to bring to its exchange, of a number that came over a pipe with this key.
    pub(in crate::channels) fn brings(&self, number: &Token, key: Option<&PipeKey>) -> Token {
        brings(self.name(), number, key)
    }
}

fn brings(exchange: &str, number: &Token, key: Option<&PipeKey>) -> Token {
    key.map_or(*number, |key| key.invitation(exchange, number))
}

/// One pipe's. Whoever asks by it where the export table is has the pipe's key. It is good while it is held.
#[derive(Debug)]
pub(in crate::channels) struct Pass(Token);

impl Pass {
    pub(super) fn new(number: Token) -> Self {
        Self(number)
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        // A forked child's exchange knows nothing of this. Another lane of the pipe may have made a new one meanwhile.
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
        // A forked child has an exchange of its own, which knows nothing of this.
        lock(&Exchange::here().invitations).remove(&self.brings);
    }
}
