//! A round trip while both ends poll over shared memory makes no system call at either end.
//!
//! Only two kinds of calls are allowed: the runtime polls timers and sockets after some sixty turns, and the child reports its end. Any
//! other call kills the child. On a busy machine a poll can be in vain and a wake-up is needed: this may happen to half of the children.

use tensorpipe_tests::{Child, allow_only, is_sanitized, say};

use super::*;

/// The runtime's poll of sockets.
#[cfg(target_arch = "x86_64")]
const WAIT: libc::c_long = libc::SYS_epoll_wait;
#[cfg(not(target_arch = "x86_64"))]
const WAIT: libc::c_long = libc::SYS_epoll_pwait;

const ROUND_TRIPS: usize = 100;

const CHILDREN: usize = 8;

/// The child.
pub(crate) fn play() {
    current_thread().block_on(async {
        let context = over_shm().build().unwrap();
        let (client, server) = pair(&context, &context).await;
        assert_eq!(client.route().transport, "shm");
        let wakes = || client.stats().wakes + server.stats().wakes;
        for _ in 0..100 {
            let before = wakes();
            round_trips(&client, &server, ROUND_TRIPS).await;
            if wakes() == before {
                break;
            }
        }
        allow_only(&[WAIT, libc::SYS_write]);
        round_trips(&client, &server, ROUND_TRIPS).await;
        // Whatever it does from here on may end it.
        say("quiet", "");
    });
}

#[test]
fn a_round_trip_while_both_poll_makes_no_system_call() {
    if is_sanitized() {
        println!(
            "skipped: instrumented code takes longer than a poll lasts, and makes calls of its own"
        );
        return;
    }
    let mut quiet = 0;
    for _ in 0..CHILDREN {
        let mut child = Child::start("polled", &[]);
        match child.hears("quiet") {
            Some(_) => quiet += 1,
            None => assert_eq!(child.signal(), Some(libc::SIGSYS), "{}", child.complaints()),
        }
    }
    println!("{quiet} of {CHILDREN} made no system call");
    assert!(quiet >= CHILDREN / 2, "{quiet} of {CHILDREN}");
}
