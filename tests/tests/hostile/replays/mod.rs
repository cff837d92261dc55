//! What a pipe hands out, said again: by another process, by another user, over another transport, a second time, and to a listener that was
//! started again. One table a side, in [`listeners`] and [`connectors`]: each row says what is replayed, by whom, where, and what it gets. What
//! calls give away is in [`references`].
//!
//! ```text
//! victim     listens in a process of its own, and is started again where it was
//! member     a connector by hand, which the victim hands things; it has the secret, so what a thief says is right in every byte
//! lent       what the victim's lane says of memory, overheard
//! thief      says those bytes: here, or in a process that has nothing else, and asks nobody whose they are; or waits in somebody's place
//! ```
//!
//! | handed out | at listeners | at connectors |
//! |---|---|---|
//! | handshake, token of a connection | `listeners`; other kinds and transports `negotiate/ticket.rs` | `connectors` |
//! | rings of `shm` | `listeners`: the socket that they come over is of the same user | `connectors`: they are not passed to another user |
//! | invitation, segment of `lease` | `listeners`; with keys of other pipes `channels/exchange/broker/tests.rs` | `connectors`: not brought to another user |
//! | a loan | `tests/leases/claims.rs`, `liars.rs` | the same: a lane has both sides |
//! | export of `cma` | `listeners` | `connectors`: another user is not asked |
//! | reference, `Shared` | `references`; claimed by two `tests/rpc/references.rs` | `references`: of a client that serves |
//! | key and receipt of a rendezvous | `references`; guesses `tensorpipe-rpc/tests/rendezvous/hostile.rs` | another producer: `remote.rs` there |
//! | session of TLS | `tests/identity/sessions.rs` | the same |
//!
//! What makes no sense. Over another transport: an exchange has one, packets between processes of a machine; and TLS is one. By another
//! process: a session of TLS lies in the memory of one transport, as does whatever proves it. Rings, again: who has them has their memory, and can
//! say in it what it likes (`rings.rs`). After a restart, at connectors: each of their handshakes begins with a number of its own, so a
//! listener that was started again is another one that repeats.

mod connectors;
mod lent;
mod listeners;
mod member;
mod references;
mod thief;
mod victim;

pub(crate) use thief::{gets, play_thief};
pub(crate) use victim::play_victim;

use super::{borrowed_names, calls, memory, proofs, raw, stream};

const KEY: u8 = 6;
const CHALLENGE: u8 = 7;
const PROOF: u8 = 8;

const SECRET: [u8; 16] = *b"nobody knows it.";
const NAME: &str = "trainers";
