//! Bytes that nobody of good will sends. A server in a process of its own meets them: it may not panic, hang, grow, or
//! stop serving others; what it grows by is paid for ([`memory`]). A client of ours meets a server of that kind: every wait ends, with a typed error.
#![allow(missing_docs, reason = "a test")]

#[path = "hostile/answers.rs"]
mod answers;
#[path = "hostile/borrowed_names.rs"]
mod borrowed_names;
#[path = "hostile/budget.rs"]
mod budget;
#[path = "hostile/calls.rs"]
mod calls;
#[path = "hostile/floods.rs"]
mod floods;
#[path = "hostile/given_back.rs"]
mod given_back;
#[path = "hostile/greetings.rs"]
mod greetings;
#[path = "hostile/joins.rs"]
mod joins;
#[path = "hostile/logs.rs"]
mod logs;
#[path = "hostile/memory.rs"]
mod memory;
#[path = "hostile/origins.rs"]
mod origins;
#[path = "hostile/pages.rs"]
mod pages;
#[path = "hostile/places.rs"]
mod places;
#[path = "hostile/proofs.rs"]
mod proofs;
#[path = "hostile/raw.rs"]
mod raw;
#[path = "hostile/replays/mod.rs"]
mod replays;
#[path = "hostile/resets.rs"]
mod resets;
#[path = "hostile/rings.rs"]
mod rings;
#[path = "hostile/server.rs"]
mod server;
#[path = "hostile/shares.rs"]
mod shares;
#[path = "hostile/slow.rs"]
mod slow;
#[path = "hostile/stream.rs"]
mod stream;
#[path = "hostile/streams.rs"]
mod streams;
#[path = "hostile/tokens.rs"]
mod tokens;
#[path = "hostile/waiting.rs"]
mod waiting;

/// What this binary does when a test of it starts it again.
#[test]
fn child() {
    let role = tensorpipe_tests::role();
    if role.is_some() {
        memory::victim();
    }
    match role.as_deref() {
        None => {}
        Some("server") => server::play(),
        Some("another user") => floods::play_another_user(),
        Some("shares") => shares::play(),
        Some("host") => origins::play_host(),
        Some("flood") => origins::play_flood(),
        Some("thief") => replays::play_thief(),
        Some("tokens") => tokens::play(),
        Some("victim") => replays::play_victim(),
        Some("waiting") => waiting::play(),
        Some(other) => panic!("no role {other}"),
    }
}
