//! What a pipe hands out, said again: by another process, by another user, over another transport, a second time, and to a listener that was
//! started again. One table a side, in [`listeners`] and [`connectors`]: each row says what is replayed, by whom, where, and what it gets. What
//! calls give away is in [`references`].
//!
//! ```text
//! victim     listens in a process of its own, and is started again where it was
//! member     a connector by hand, which the victim hands things; it has the secret, so what a thief says is right in every byte
//! thief      says those bytes: here, or in a process that has nothing else, and asks nobody whose they are
//! ```
//!
//! Elsewhere: invitations and passes with a key of another pipe, and of another exchange (`channels/exchange/broker/tests.rs`). Tokens of
//! other kinds and over other transports (`negotiate/ticket.rs`). Claims of loans (`tests/leases/claims.rs`); references that were claimed
//! (`tests/rpc/references.rs`); keys of rendezvous of a producer that was started again (`tests/rendezvous/gone.rs`).

mod connectors;
mod listeners;
mod member;
mod references;
mod thief;
mod victim;

pub(crate) use thief::{gets, play_thief};
pub(crate) use victim::play_victim;

use super::{borrowed_names, memory, proofs, raw, stream};

const KEY: u8 = 6;
const CHALLENGE: u8 = 7;
const PROOF: u8 = 8;

const SECRET: [u8; 16] = *b"nobody knows it.";
const NAME: &str = "trainers";
