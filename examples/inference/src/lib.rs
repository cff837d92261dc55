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
//! Clients tokenize, so that what travels are tensors whose rows are sentences: calls can be joined along the first dimension, and each
//! gets its rows of the result. For that all rows are as wide as the longest sentence that the model takes. A row is 1 KiB, and costs
//! nothing to compute beyond its own length, because the server cuts the padding off again before the model sees it ([`passes`]).
//!
//! Files, in the order of a call: [`client`] ([`tokens`]) → [`service`] → [`server`] → [`model`] ([`passes`]). Around them:
//! [`nearest`] and [`load`] are what the program does with a client. [`serve`] is the server's process, and [`child`] starts one.
//! [`fetch`] and [`tiny`] make model directories. [`reference`](mod@reference) compares with sentence-transformers.
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

/// The sentences that are used where none are given: pairs that mean nearly the same, and some odd ones.
pub const SENTENCES: &str = include_str!("../data/sentences.txt");
