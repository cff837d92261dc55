//! The system does not let one end read the other's memory. Tensors arrive all the same, and the route says why.
#![allow(unsafe_code, reason = "a thread is ended by system calls")]

use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{SigHandler, Signal, signal};
use nix::unistd::Pid;
use tensorpipe::channels::{BasicChannel, Channel, CmaChannel};
use tensorpipe::{DeviceKind, Error, Message, Misuse, route::Degraded};
use tensorpipe_tests::{Child, Fate, forbid, say};

use super::scene::{Peer, Takes, alone, builder, context, degraded, made, soon, with_channels};

const LEN: usize = 3 << 20;

/// From now on no thread of this process reads memory of others.
pub(crate) fn forbid_reading() {
    forbid(libc::SYS_process_vm_readv, None, Fate::Fails(libc::EPERM));
}

#[test]
fn an_end_that_cannot_read_is_refused_in_the_route() {
    alone(async || {
        let context = context("parent");
        let peer = Peer::start(&context, &[("TEST_FORBIDDEN", "1")]).await;
        let route = peer.pipe.route().to_string();
        for words in ["not channel cma:", "the peer: it cannot read", "seccomp"] {
            assert!(route.contains(words), "{route}");
        }
        let theirs = peer.told("route").await;
        assert!(theirs.contains("not channel cma:"), "{theirs}");
        peer.takes(LEN, 1).await;
        peer.gives(LEN, 2).await;
        let stats = peer.pipe.stats();
        assert!(stats.bytes_out > LEN as u64 && stats.bytes_in > LEN as u64);
    });
}

#[test]
fn a_reader_that_may_not_says_so_and_gets_the_bytes() {
    alone(async || {
        let context = context("parent");
        let peer = Peer::start(&context, &[]).await;
        assert_eq!(peer.told("forbid").await, "forbidden");
        // The first is offered, and then sent; the second is not offered.
        for seed in 0..2 {
            peer.takes(LEN, seed).await;
            assert!(peer.pipe.stats().bytes_out > LEN as u64 * (seed + 1));
            let degraded = degraded(&peer.pipe);
            let reason = degraded.sending().unwrap();
            assert!(
                reason.contains("the peer cannot read this process"),
                "{reason}"
            );
            assert!(reason.contains("process_vm_readv") && reason.contains("seccomp"));
            assert_eq!(degraded.receiving(), None);
        }
        let (ours, theirs) = (peer.pipe.route().to_string(), peer.told("route").await);
        assert!(ours.contains("; sends nothing: the peer cannot"), "{ours}");
        assert!(
            theirs.contains("; receives nothing: process_vm_readv"),
            "{theirs}"
        );
        // The other direction is as it was.
        peer.gives(LEN, 7).await;
        let stats = peer.pipe.stats();
        assert!(stats.bytes_copied == LEN as u64 && stats.bytes_in < 10_000);
    });
}

/// Who requires that it is read there hears that it is not, and nothing goes another way.
#[test]
fn what_must_not_go_another_way_is_an_error_then() {
    alone(async || {
        let channels: [Arc<dyn Channel>; 2] =
            [Arc::new(CmaChannel::new()), Arc::new(BasicChannel::new())];
        let builder = builder("parent", channels.into());
        let context = builder.require(DeviceKind::CPU, ["cma"]).build().unwrap();
        let peer = Peer::start(&context, &[]).await;
        peer.told("forbid").await;
        let message = Message::new("take 1").tensor(made(LEN, 1));
        let refused = soon("a write", peer.pipe.write(message)).await;
        let refused = refused.unwrap_err();
        let is_typed = matches!(refused, Error::Misuse(Misuse::NotAsRequired { .. }));
        assert!(is_typed, "{refused}");
        let stats = peer.pipe.stats();
        assert!(stats.bytes_out < 10_000 && stats.bytes_diverted == 0);
    });
}

#[test]
fn a_reader_may_lose_its_right_later() {
    alone(async || {
        let context = context("parent");
        let peer = Peer::start(&context, &[]).await;
        assert_eq!(peer.takes(LEN, 1).await, LEN as u64);
        assert_eq!(degraded(&peer.pipe), Degraded::default());
        assert!(peer.pipe.stats().bytes_out < 10_000);
        peer.told("forbid").await;
        peer.takes(LEN, 2).await;
        assert!(peer.pipe.stats().bytes_out > LEN as u64);
        assert!(degraded(&peer.pipe).sending().is_some());
        peer.takes(LEN, 3).await;
    });
}

/// From now on this process runs without its main thread, as after `pthread_exit`.
pub(crate) fn end_main_thread() {
    extern "C" fn end(_: i32) {
        // SAFETY: the call takes a number. Nobody joins the thread, whose stack stays.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    }
    let handler = SigHandler::Handler(end);
    // SAFETY: the handler makes one system call, which is allowed there.
    unsafe { signal(Signal::SIGUSR1, handler) }.unwrap();
    let (main, usr1) = (Pid::this().as_raw(), Signal::SIGUSR1 as i32);
    // SAFETY: the call takes numbers, and touches no memory. The main thread's id is the process's.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, main, main, usr1) };
    assert_eq!(sent, 0);
    let is_zombie = || {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
        stat.rsplit(')').next().unwrap().starts_with(" Z")
    };
    while !is_zombie() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The kernel reads a process's memory by its main thread.
#[test]
fn who_has_lost_its_main_thread_sends_the_bytes() {
    alone(async || {
        let context = context("parent");
        let peer = Peer::start(&context, &[]).await;
        peer.gives(LEN, 1).await;
        assert_eq!(peer.pipe.stats().bytes_copied, LEN as u64);
        assert_eq!(peer.told("end main").await, "ended");
        for seed in 2..4 {
            peer.gives(LEN, seed).await;
        }
        let stats = peer.pipe.stats();
        assert!(stats.bytes_in > 2 * LEN as u64);
        let degraded = degraded(&peer.pipe);
        let reason = degraded.receiving().unwrap();
        assert!(reason.contains("its main thread has ended"), "{reason}");
    });
}

#[test]
fn without_another_channel_it_sends_bytes_itself() {
    alone(async || {
        let context = with_channels("parent", vec![Arc::new(CmaChannel::new())]);
        let peer = Peer::start(&context, &[]).await;
        peer.told("forbid").await;
        for seed in 0..3 {
            peer.takes(LEN, seed).await;
        }
        // Too small for it, and nothing else is there.
        peer.takes(300_000, 9).await;
        assert_eq!(peer.pipe.route().channels.len(), 1);
        assert!(peer.pipe.stats().bytes_out > 3 * LEN as u64 + 300_000);
    });
}

/// Where the system gives no random number nothing is shown, and the route says so in its words.
#[test]
fn without_random_numbers_it_is_sent_and_the_route_says_what_to_do() {
    alone(async || {
        let context = context("parent");
        let peer = Peer::start(&context, &[]).await;
        peer.gives(LEN, 1).await;
        peer.told("random").await;
        peer.gives(LEN, 2).await;
        let theirs = peer.told("route").await;
        for words in ["getrandom: Permission denied", "denies it: allow it"] {
            assert!(theirs.contains(words), "{theirs}");
        }
    });
}

/// From now on a process that lets others read it is killed.
pub(crate) fn forbid_asking() {
    let first = Some(libc::PR_SET_PTRACER as u32);
    forbid(libc::SYS_prctl, first, Fate::Kills);
}

/// The child that asks.
pub(crate) fn play_asker() {
    forbid_asking();
    say("forbidden", "");
    let channel = CmaChannel::readable_by_all();
    say("alive", format!("{channel:?}"));
}

#[test]
fn others_may_read_only_if_that_is_asked_for() {
    alone(async || {
        let context = context("parent");
        let peer = Peer::start(&context, &[("TEST_UNASKED", "1")]).await;
        peer.gives(LEN, 1).await;
        assert_eq!(
            peer.takes(LEN, 2).await,
            LEN as u64,
            "{}",
            peer.pipe.route()
        );
    });
    let mut asker = Child::start("asker", &[]);
    asker.hear("forbidden");
    assert_eq!(asker.signal(), Some(libc::SIGSYS), "it did not ask");
}
