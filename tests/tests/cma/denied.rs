//! The system does not let one end read: tensors arrive all the same, and the route says why.
#![allow(unsafe_code, reason = "filters are installed by system calls")]

use std::sync::Arc;

use tensorpipe::Setback;
use tensorpipe::channels::CmaChannel;

use super::scene::{Peer, Takes, alone, context, setback, with_channels};

const LEN: usize = 3 << 20;

/// From now on no thread of this process reads memory of others: a filter like those of containers.
pub(crate) fn forbid_reading() {
    let step = |code: u32, k: u32, (jt, jf): (u8, u8)| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let call = libc::SYS_process_vm_readv as u32;
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let mut steps = [
        // The call's number is the first word.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, (0, 0)),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call, (0, 1)),
        step(libc::BPF_RET | libc::BPF_K, refuse, (0, 0)),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, (0, 0)),
    ];
    let filter = libc::sock_fprog {
        len: steps.len() as u16,
        filter: steps.as_mut_ptr(),
    };
    // SAFETY: the call takes numbers, and touches no memory.
    let set = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(set, 0);
    // SAFETY: the filter and its steps live until the call has returned.
    let set = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_TSYNC,
            &raw const filter,
        )
    };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
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
            let setback = setback(&peer.pipe);
            let reason = setback.sending().unwrap();
            assert!(
                reason.contains("the peer cannot read this process"),
                "{reason}"
            );
            assert!(reason.contains("process_vm_readv") && reason.contains("seccomp"));
            assert_eq!(setback.receiving(), None);
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

#[test]
fn a_reader_may_lose_its_right_later() {
    alone(async || {
        let context = context("parent");
        let peer = Peer::start(&context, &[]).await;
        assert_eq!(peer.takes(LEN, 1).await, LEN as u64);
        assert_eq!(setback(&peer.pipe), Setback::default());
        assert!(peer.pipe.stats().bytes_out < 10_000);
        peer.told("forbid").await;
        peer.takes(LEN, 2).await;
        assert!(peer.pipe.stats().bytes_out > LEN as u64);
        assert!(setback(&peer.pipe).sending().is_some());
        peer.takes(LEN, 3).await;
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
