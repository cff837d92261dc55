//! Peers that keep resources, or send much and read nothing: their cost is bounded.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};
use tensorpipe::Url;
use tensorpipe::transports::{ShmTransport, Transport};
use tensorpipe_tests::{Child, NOBODY, can_start_by, runtime, say};
use tokio::io::AsyncReadExt;

use super::raw::{
    ANSWER, FLUSH, GRANT, MESSAGE, PING, REFUSE, RESET, Raw, SOON, frame, header, hello, message,
    message_body, preface, reason, tensor,
};
use super::rings::{knock, offer};
use super::server::{HANDSHAKE, Target, unharmed};
use super::stream::Way;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The bound on handshakes of a server that has to serve others within it.
const BOUND: Duration = Duration::from_secs(6);
const BOUND_MILLIS: &str = "6000";

/// Servers that have served somebody, since their memory is not steady before, are unharmed by this in the end.
fn unharmed_when_warm(attack: impl Fn(&Target)) {
    for way in Way::ALL {
        let target = Target::start_with(way, &[("TEST_HANDSHAKE", BOUND_MILLIS)]);
        target.serves();
        attack(&target);
        target.stays_unharmed();
    }
}

#[test]
fn two_hundred_silent_connections_cost_little_and_shut_nobody_out() {
    unharmed_when_warm(|target| {
        let before = target.resident();
        let hello = hello();
        let begun = Instant::now();
        let mut silent: Vec<Raw> = (0..200)
            .map(|i| {
                let mut raw = Raw::connect(&target.pipes);
                // Nothing, half a preface, a preface, half a hello.
                raw.send(&hello[..[0, 6, 12, 60][i % 4]]);
                raw
            })
            .collect();
        std::thread::sleep(Duration::from_millis(300));
        let grown = target.resident().saturating_sub(before);
        println!("200 silent connections: {} KiB", grown / KIB);
        assert!(grown <= 200 * 64 * KIB, "{} KiB", grown / KIB);
        target.serves();
        assert!(
            begun.elapsed() < BOUND,
            "they were still there while others were served; the machine is too slow for this test"
        );
        for raw in &mut silent {
            raw.is_cut("a silent connection", BOUND + SOON);
        }
        target.shrinks_to(before, 4 * MIB, "after they were cut off");
    });
}

/// Beyond the limit of handshakes a connection is turned away at once, and told that it may come again.
#[test]
fn more_silent_connections_than_handshakes_are_allowed_do_not_hang() {
    unharmed(|target| {
        let mut silent: Vec<Raw> = (0..300).map(|_| Raw::connect(&target.pipes)).collect();
        for raw in &mut silent {
            raw.is_cut("one silent connection of many", HANDSHAKE + SOON);
        }
    });
}

/// Who has not said what it wants makes room for who has.
#[test]
fn more_silent_connections_than_places_lock_nobody_out() {
    for way in Way::ALL {
        let target = Target::start_with(way, &[("TEST_HANDSHAKE", "60000")]);
        let hello = hello();
        let _silent: Vec<Raw> = (0..270)
            .map(|i| {
                let mut raw = Raw::connect(&target.pipes);
                // Nothing, or half a hello.
                raw.send(&hello[..[0, 60][i % 2]]);
                raw
            })
            .collect();
        target.stays_unharmed();
    }
}

/// The system says who calls over shm: another user is one failed connection each time, and makes nobody wait.
#[test]
fn ten_thousand_calls_of_another_user_hold_nobody_up() {
    if !nix::unistd::geteuid().is_root() || !can_start_by(&NOBODY) {
        println!("skipped: only root can run a program as another user");
        return;
    }
    let target = Target::start(Way::Shm);
    let url = &[("TEST_URL", target.pipes.as_str())];
    let hostile = Child::start_by(&NOBODY, "another user", url);
    let let_in = hostile.hear("let-in");
    target.serves();
    assert_eq!(let_in, "0");
    target.stays_unharmed();
}

/// The other user of that test.
pub(crate) fn play_another_user() {
    let url: Url = std::env::var("TEST_URL").unwrap().parse().unwrap();
    let let_in = runtime().block_on(async {
        let transport = ShmTransport::new().any_user();
        let mut let_in = 0;
        for _ in 0..10_000 {
            // It may have hung up before this side has said a word.
            if let Ok(mut connection) = transport.connect(url.address()).await {
                let mut byte = [0];
                let read = connection.read(&mut byte).await;
                let_in += usize::from(read.is_ok_and(|read| read > 0));
            }
        }
        let_in
    });
    say("let-in", let_in);
}

/// How long a socket of that user keeps whoever closes it.
const LINGERS: Duration = Duration::from_secs(60);

/// What it sends lies unread in a connection that the server closes: closing that takes as long as the sender likes.
#[test]
fn a_descriptor_of_another_user_that_takes_long_to_close_holds_nobody_up() {
    if !nix::unistd::geteuid().is_root() || !can_start_by(&NOBODY) {
        println!("skipped: only root can run a program as another user");
        return;
    }
    let target = Target::start(Way::Shm);
    let begun = Instant::now();
    let url = &[("TEST_URL", target.pipes.as_str())];
    let hostile = Child::start_by(&NOBODY, "lingers", url);
    hostile.hear("sent");
    target.serves();
    target.stays_unharmed();
    assert!(begun.elapsed() < LINGERS / 2);
}

/// The other user of that test.
pub(crate) fn play_lingers() {
    let url = std::env::var("TEST_URL").unwrap();
    let mut ends = Vec::new();
    for _ in 0..10 {
        let reader = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut writer = TcpStream::connect(reader.local_addr().unwrap()).unwrap();
        ends.push(reader.accept().unwrap().0);
        writer.set_nonblocking(true).unwrap();
        while writer.write(&[0; 1 << 16]).is_ok() {}
        let linger = libc::linger {
            l_onoff: 1,
            l_linger: LINGERS.as_secs() as i32,
        };
        setsockopt(&writer, sockopt::Linger, &linger).unwrap();
        // The server may have hung up already.
        while !offer(&knock(&url).0, b"x", &[writer.as_raw_fd()]) {}
    }
    say("sent", ends.len());
    std::thread::sleep(LINGERS);
}

/// Not a byte: it need not wait for the bound of a whole handshake.
#[test]
fn a_connection_that_says_nothing_is_cut_off_soon() {
    for way in Way::ALL {
        let target = Target::start_with(way, &[("TEST_HANDSHAKE", "60000")]);
        let mut silent = Raw::connect(&target.pipes);
        silent.is_cut("a silent connection", 3 * SOON);
        target.stays_unharmed();
    }
}

#[test]
fn a_peer_that_sends_a_byte_at_a_time_is_cut_off_at_the_bound() {
    unharmed(|target| {
        let mut slow = Raw::connect(&target.pipes);
        let begun = Instant::now();
        // What cannot be written any more over tcp goes to nobody over shm: it is seen where it is read.
        slow.0.set_read_timeout(Duration::from_millis(100));
        for byte in hello() {
            if slow.0.write_all(&[byte]).is_err() {
                break;
            }
            match slow.0.read(&mut [0; 100]) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if is_in_time(&error) => {}
                Err(_) => break,
            }
            assert!(
                begun.elapsed() < HANDSHAKE + SOON,
                "still there after {:?}",
                begun.elapsed()
            );
        }
        slow.is_cut("a slow hello", SOON);
        println!("cut off after {:?}", begun.elapsed());
        assert!(begun.elapsed() >= HANDSHAKE / 2);
    });
}

/// Whether nothing has come yet.
fn is_in_time(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

/// Who is told where a pipe goes on must come within the bound, too: here nobody answers a HELLO twice.
#[test]
fn an_open_pipe_that_says_nothing_answers_pings_or_is_given_up() {
    unharmed_when_warm(|target| {
        let mut raw = Raw::open(&target.pipes);
        // The default silence is 10 s: a ping comes after 5, and the end after 10.
        let begun = Instant::now();
        raw.0.set_read_timeout(Duration::from_secs(9));
        let came = raw.is_cut("a pipe that says nothing", Duration::from_secs(15));
        assert!(came.windows(5).any(|window| window[4] == PING), "{came:?}");
        assert!(begun.elapsed() > Duration::from_secs(8));
    });
}

#[test]
fn a_tensor_of_64_gib_that_never_comes_takes_no_memory() {
    unharmed_when_warm(|target| {
        let before = target.resident();
        let mut all = Vec::new();
        for _ in 0..20 {
            let mut raw = Raw::open(&target.pipes);
            raw.send(&message(b"", &[tensor(0, 0, 0, &[64 << 30])], b""));
            all.push(raw);
        }
        std::thread::sleep(Duration::from_millis(500));
        let grown = target.resident().saturating_sub(before);
        println!("20 times 64 GiB announced: {} KiB", grown / KIB);
        assert!(grown <= 20 * 256 * KIB, "{} KiB", grown / KIB);
        target.serves();
        drop(all);
        target.shrinks_to(before, 4 * MIB, "after they have gone");
    });
}

/// Long heads, of which the first bytes come.
#[test]
fn large_heads_that_never_come_take_no_memory() {
    let body = message_body(&[7; 1_000_000], &[], b"");
    unharmed_when_warm(|target| {
        let mut open: Vec<Raw> = std::iter::repeat_with(|| {
            let mut raw = Raw::open(&target.pipes);
            raw.send(&header(MESSAGE, body.len() as u32, &body[..100]));
            raw
        })
        .take(60)
        .collect();
        target.serves();
        for raw in &mut open {
            raw.0.set_read_timeout(Duration::from_millis(1));
            let read = raw.0.read(&mut [0; 100]);
            assert!(!matches!(read, Ok(0)), "it is no fault so far");
        }
        drop(open);
    });
}

/// Sends `flood` as often as the peer takes it, up to `times`, and reads nothing. The server may cut it off, or take it all.
fn flood(
    target: &Target,
    what: &str,
    mut raw: Raw,
    times: usize,
    mut piece: impl FnMut(usize) -> Vec<u8>,
) {
    let before = target.resident();
    let mut most = 0;
    let mut sent = 0u64;
    raw.0.set_write_timeout(Duration::from_millis(700));
    for i in 0..times {
        let piece = piece(i);
        if raw.0.write_all(&piece).is_err() {
            break;
        }
        sent += piece.len() as u64;
        most = most.max(target.resident().saturating_sub(before));
    }
    println!(
        "{what}: {} KiB sent, at most {} KiB more",
        sent / KIB,
        most / KIB
    );
    assert!(most <= 32 * MIB, "{what}: {} KiB", most / KIB);
    target.serves();
    drop(raw);
    // What it keeps is its allocator's, and its ring for a while.
    target.shrinks_to(before, 16 * MIB, what);
}

/// An open pipe on which the server has sent message 0, which is ours come back.
fn with_a_message(target: &Target) -> Raw {
    let mut raw = Raw::open(&target.pipes);
    raw.send(&message(b"hello", &[], b""));
    raw.frame_of(MESSAGE);
    raw
}

#[test]
fn floods_that_want_answers_are_bounded() {
    unharmed_when_warm(|target| {
        let pings = frame(PING, &[1; 8]).repeat(1000);
        flood(target, "pings", Raw::open(&target.pipes), 200, |_| {
            pings.clone()
        });
        let refusals = reason(REFUSE, 0, 3, b"").repeat(1000);
        flood(target, "refusals", with_a_message(target), 200, |_| {
            refusals.clone()
        });
        let old = reason(RESET, 0, 1, &[b'x'; 1000]).repeat(100);
        flood(
            target,
            "resets of one message",
            with_a_message(target),
            200,
            |_| old.clone(),
        );
        flood(
            target,
            "resets of ever new ones",
            Raw::open(&target.pipes),
            200,
            |i| {
                (0..1000)
                    .flat_map(|j| reason(RESET, (i * 1000 + j) as u64, 1, b""))
                    .collect()
            },
        );
        let flushes = frame(FLUSH, &[0; 8]).repeat(1000);
        flood(target, "flushes", with_a_message(target), 200, |_| {
            flushes.clone()
        });
    });
}

/// What comes back is not read: the server must not pile it up.
#[test]
fn echoes_that_nobody_reads_are_bounded() {
    unharmed_when_warm(|target| {
        let one = message(&[7; 1000], &[], b"").repeat(100);
        flood(target, "messages", Raw::open(&target.pipes), 1000, |_| {
            one.clone()
        });
    });
}

/// Message after message that is announced, granted and taken back.
#[test]
fn announcing_and_taking_back_takes_no_memory() {
    unharmed_when_warm(|target| {
        let before = target.resident();
        let mut raw = Raw::open(&target.pipes);
        for i in 0..500u64 {
            raw.send(&message(b"", &[tensor(0, 0, 0, &[1 << 30])], b""));
            raw.frame_of(GRANT);
            raw.send(&reason(RESET, i, 1, b""));
        }
        target.shrinks_to(before, 8 * MIB, "500 times 1 GiB taken back");
        drop(raw);
    });
}

/// Addresses are not memory, but they end too.
#[test]
fn announcing_more_than_there_are_addresses_is_no_harm() {
    unharmed_when_warm(|target| {
        let before = target.resident();
        let body = super::calls::call(0, 0, super::calls::method("sum"), b"\x00");
        let one = message(&body, &[tensor(0, 0, 8, &[2 << 30])], b"");
        let mut all: Vec<Raw> = Vec::new();
        for _ in 0..20 {
            let mut raw = Raw::open(&target.calls);
            raw.send(&one.repeat(1000));
            all.push(raw);
        }
        std::thread::sleep(Duration::from_millis(1000));
        let grown = target.resident().saturating_sub(before);
        println!("20000 times 8 GiB announced: {} KiB", grown / KIB);
        assert!(grown <= 64 * MIB, "{} KiB", grown / KIB);
        target.serves();
        drop(all);
        // What the allocator keeps.
        target.shrinks_to(before, 64 * MIB, "after they have gone");
    });
}

/// The preface alone, many times over, in one connection.
#[test]
fn a_hello_over_and_over_is_one_hello_and_a_fault() {
    unharmed(|target| {
        let mut raw = Raw::connect(&target.pipes);
        raw.send(&hello().repeat(50));
        let came = raw.is_cut("many hellos", SOON);
        assert!(
            came.starts_with(&preface()) && came[16] == ANSWER,
            "{came:?}"
        );
    });
}
