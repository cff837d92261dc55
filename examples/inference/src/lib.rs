//! A server of sentence embeddings: all-MiniLM-L6-v2, or any BERT that averages its tokens, run by candle.
//!
//! ```text
//! client                                             server
//!   sentences                                          model directory ──▶ Model (weights mapped into memory)
//!     │ Tokens: the tokenizer that the server's card carries    ▲
//!     ▼                                                         │ one run for the whole batch, sentences of
//!   tokens [n, width] u32, lengths [n] u32                      │ like lengths together (passes)
//!     └──────────── Embedder::embed ──────────▶ Embeddings ─────┘
//!   [n, dimension] f32  ◀───────────────────────────┘
//! ```
//!
//! Clients tokenize, so calls carry tensors with one sentence a row. The server can join calls along the first dimension and give each
//! call its rows of the result. This requires rows of equal width: the longest sentence that the model takes. A row is 1 KiB. Its padding
//! costs no computation, because the server cuts it off before the model sees it ([`passes`]).
//!
//! Files, in the order of a call: [`client`] ([`tokens`]) → [`service`] → [`server`] → [`model`] ([`passes`]). Around them:
//! [`nearest`] and [`load`] are the program's uses of a client. [`serve`] is the server's process, and [`child`] starts it.
//! [`fetch`] and [`tiny`] make model directories. [`reference`](mod@reference) compares results with those of sentence-transformers.
#![forbid(unsafe_code)]

pub mod child;
pub mod client;
pub mod fetch;
pub mod load;
pub mod model;
pub mod nearest;
pub mod passes;
pub mod reference;
pub mod serve;
pub mod server;
pub mod service;
pub mod tiny;
pub mod tokens;

/// Default sentences: pairs that mean nearly the same, and some odd ones.
pub const SENTENCES: &str = include_str!("../data/sentences.txt");
