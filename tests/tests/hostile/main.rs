//! Hostile peers. A server in its own process meets hostile bytes: it must not panic, hang, or stop serving others, and
//! [`memory`] bounds its growth. A client of ours meets hostile servers: every wait ends with a typed error.
#![allow(missing_docs, reason = "a test")]

mod answers;
mod borrowed_names;
mod budget;
mod calls;
mod floods;
mod given_back;
mod greetings;
mod joins;
mod logs;
mod memory;
mod origins;
mod pages;
mod places;
mod proofs;
mod raw;
mod replays;
mod resets;
mod rings;
mod server;
mod shares;
mod slow;
mod stream;
mod streams;
mod tokens;
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
        Some("lingers") => floods::play_lingers(),
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
