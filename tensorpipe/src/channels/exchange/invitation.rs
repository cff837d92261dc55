//! How a lane learns which process its peer is.
//!
//! A descriptor says who the peer claims to be. A lane that has something to lend sends an unguessable number over its pipe,
//! and the peer brings that number to the exchange's socket, where the kernel says which process it is. So whoever is at the
//! other end of the pipe is that process, or has the number from it.

use std::sync::OnceLock;

use super::Exchange;
use super::borrower::Borrower;
use crate::process::{Token, random_token};
use crate::sync::{Arc, lock};

/// One lane's. It is good while it is held.
#[derive(Debug)]
pub(in crate::channels) struct Invitation {
    number: Token,
    /// Who came with it.
    borrower: OnceLock<Arc<Borrower>>,
}

impl Invitation {
    /// Made known to the exchange, which must be open.
    pub(super) fn new(exchange: &Exchange) -> Arc<Self> {
        let made = Arc::new(Self {
            number: random_token(),
            borrower: OnceLock::new(),
        });
        lock(&exchange.invitations).insert(made.number, Arc::downgrade(&made));
        made
    }

    /// What the peer is to bring.
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

impl Drop for Invitation {
    fn drop(&mut self) {
        // A forked child has an exchange of its own, which knows nothing of this.
        lock(&Exchange::here().invitations).remove(&self.number);
    }
}
