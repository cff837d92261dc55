//! The system does not let one end lend or borrow. Tensors arrive all the same, without delay, and the route says why.

use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tensorpipe::Pipe;
use tensorpipe::transports::ShmTransport;

use tensorpipe_tests::{Child, NOBODY, can_start_by, runtime, say};

use super::scene::{Keeps, Peer, alone, builder, check, context, eventually, lendable, made};

const LEN: usize = 3 << 20;

/// An exchange that does not answer is given up after this long.
const BOUND: Duration = Duration::from_secs(5);

/// Starts a process in a pid namespace of its own, with a `/proc` that fits: LeakSanitizer finds the threads there.
const PIDS: [&str; 5] = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];

fn degraded(pipe: &Pipe) -> tensorpipe::route::Degraded {
    let mut channels = pipe.route().channels.iter();
    let lease = channels.find(|channel| channel.name == "lease");
    lease
        .unwrap_or_else(|| panic!("{}", pipe.route()))
        .degraded
        .clone()
}

#[test]
fn an_end_without_shared_memory_is_refused_in_the_route() {
    alone(async || {
        let context = context("parent", 64 << 20);
        let peer = Peer::start(&context, &[("TEST_NO_MEMFD", "1")]).await;
        let (ours, theirs) = (peer.pipe.route().to_string(), peer.told("route").await);
        for route in [&ours, &theirs] {
            assert!(route.contains("not channel lease:"), "{route}");
            assert!(route.contains("memfd_create"), "{route}");
            assert!(!route.contains("lease above"), "{route}");
        }
        check(&peer.gives(LEN, 1).await, 1);
        let refused: Vec<_> = peer.pipe.route().refused.clone();
        let why = |name: &str| {
            refused
                .iter()
                .find(|refusal| refusal.candidate == name)
                .cloned()
        };
        assert!(why("transport shm").is_some(), "{refused:?}");
    });
}

/// No listener could be there: nobody waits for one.
#[test]
fn shared_memory_that_is_asked_for_by_name_is_refused_at_once() {
    alone(async || {
        let context = context("parent", 64 << 20);
        let peer = Peer::start(&context, &[("TEST_NO_MEMFD", "1")]).await;
        let told = peer.told("reach shm://nobody").await;
        let (refused, listened) = told.split_once(" | ").unwrap();
        assert!(refused.contains("1 attempt: memfd_create"), "{refused}");
        for words in [refused, listened] {
            assert!(words.contains("or use `tcp`"), "{words}");
        }
    });
}

/// Wherever they run out: where its exchange is there and can let nobody in, too.
#[test]
fn a_lender_without_descriptors_turns_away_at_once() {
    alone(async || {
        let context = context("parent", 64 << 20);
        let mut diverted = 0;
        for few in 0..10 {
            let peer = Peer::start(&context, &[]).await;
            let eat = format!("eat all descriptors but {few}");
            assert_eq!(peer.told(&eat).await, "eaten");
            let begun = Instant::now();
            peer.gives(LEN, few).await;
            let took = begun.elapsed();
            assert!(took < BOUND, "{took:?} with {few} left");
            let bytes: u64 = peer.told("diverted").await.parse().unwrap();
            diverted += u64::from(bytes == LEN as u64);
            assert_eq!(degraded(&peer.pipe), tensorpipe::route::Degraded::default());
        }
        assert!((1..10).contains(&diverted), "{diverted}");
    });
}

#[test]
fn a_pool_that_the_system_refuses_says_so() {
    alone(async || {
        let context = context("parent", 64 << 20);
        let peer = Peer::start(&context, &[]).await;
        assert_eq!(peer.told("eat all descriptors but 0").await, "eaten");
        peer.gives(LEN, 1).await;
        assert_eq!(peer.told("pool").await, "1 1");
        let tensors = [
            made(context.pool(), 60 << 20, 1),
            made(context.pool(), 60 << 20, 2),
        ];
        drop(tensors);
        let here = lendable(context.pool());
        assert_eq!(
            (here.fallbacks, here.refused),
            (1, 0),
            "its bound, not the system"
        );
    });
}

#[test]
fn processes_of_other_users_share_memory_only_if_both_want_to() {
    if !can_start_by(&NOBODY) {
        return;
    }
    alone(async || {
        let (strict, open) = (builder("parent", 64 << 20), builder("parent", 64 << 20));
        let strict = strict.build().unwrap();
        let open = open.prefer_transport(ShmTransport::new().any_user());
        let open = open.build().unwrap();
        for (context, theirs, shared) in [
            (&strict, &[][..], false),
            (&strict, &[("TEST_ANY_USER", "1")][..], false),
            (&open, &[][..], false),
            (&open, &[("TEST_ANY_USER", "1")][..], true),
        ] {
            let peer = Peer::start_by(&NOBODY, context, theirs).await;
            check(&peer.gives(LEN, 5).await, 5);
            let route = peer.pipe.route();
            match shared {
                true => assert_eq!(route.transport, "shm", "{route}"),
                false => {
                    assert_eq!(route.transport, "tcp", "{route}");
                    let words = route.to_string();
                    let why = "not transport shm: the peer runs as another user (uid 65534";
                    let told = peer.told("route").await;
                    assert!(
                        words.contains(why) || told.contains("another user"),
                        "{words} {told}"
                    );
                }
            }
            // Memory is neither lent to another user's process, nor read there.
            for channel in ["channel lease", "channel cma"] {
                let mut refused = route.refused.iter();
                let refused = refused.find(|one| one.candidate == channel).unwrap();
                let why = "cpu:0 to cpu:0: the peer runs as another user";
                assert!(refused.reason.starts_with(why), "{route}");
            }
        }
    });
}

/// Who calls itself root in a namespace of its own seems to be the same user, until the kernel is asked.
#[test]
fn a_peer_that_only_seems_to_be_of_this_user_is_found_out_once() {
    let by = [&NOBODY[..], &["unshare", "-U", "-r"]].concat();
    if !nix::unistd::geteuid().is_root() || !can_start_by(&by) {
        return;
    }
    alone(async || {
        let context = context("parent", 64 << 20);
        let peer = Peer::start_by(&by, &context, &[]).await;
        assert_eq!(peer.pipe.route().transport, "tcp");
        let tensor = made(context.pool(), LEN, 7);
        peer.keeps(&tensor, 7).await;
        peer.told("check").await;
        let is_known = || degraded(&peer.pipe).sending().is_some();
        eventually("the reason", is_known).await;
        let route = peer.pipe.route().to_string();
        assert!(
            route.contains("the peer cannot borrow from this process"),
            "{route}"
        );
        assert!(!route.contains("lease above"), "{route}");
        let theirs = peer.told("route").await;
        assert!(
            theirs.contains("; receives nothing: the peer's exchange is one of user"),
            "{theirs}"
        );
        // From now on other channels are given them.
        let before = peer.pipe.stats().bytes_diverted;
        assert_eq!(before, LEN as u64);
        peer.keeps(&tensor, 7).await;
        peer.told("check").await;
        assert_eq!(peer.pipe.stats().bytes_diverted, before);
        check(&peer.gives(LEN, 9).await, 9);
    });
}

/// In a pid namespace of its own the parent has no number.
#[test]
fn a_process_of_another_pid_namespace_is_called_that() {
    if !can_start_by(&PIDS) {
        return;
    }
    alone(async || {
        let context = context("parent", 64 << 20);
        let peer = Peer::start_by(&PIDS, &context, &[]).await;
        let theirs = peer.told("route").await;
        let ends = "(process 1 <-> a process of another pid namespace";
        assert!(theirs.contains(ends), "{theirs}");
        // The system tells of its end all the same.
        peer.gives(LEN, 3).await;
        assert_eq!(peer.pipe.stats().bytes_borrowed, LEN as u64);
    });
}

/// Meets lenders of other pid namespaces that have no number for this process, each while it may open so few files.
pub(crate) fn play_short_of_files() {
    const FILES: Resource = Resource::RLIMIT_NOFILE;
    runtime().block_on(async {
        let context = context("outside", 64 << 20);
        let mut peers = Vec::new();
        for _ in 0..3 {
            peers.push(Peer::start_by(&PIDS, &context, &[]).await);
        }
        // Opens what stays.
        let first = Peer::start_by(&PIDS, &context, &[]).await;
        check(&first.gives(LEN, 9).await, 9);
        let (soft, hard) = getrlimit(FILES).unwrap();
        setrlimit(FILES, 128, hard).unwrap();
        for (few, peer) in peers.iter().enumerate() {
            let open = || std::fs::File::open("/dev/null").ok();
            let mut eaten: Vec<_> = std::iter::from_fn(open).collect();
            eaten.truncate(eaten.len() - few);
            check(&peer.gives(LEN, 5).await, 5);
        }
        setrlimit(FILES, soft, hard).unwrap();
        tokio::time::sleep(BOUND).await;
        for (few, peer) in peers.iter().enumerate() {
            let before = peer.pipe.stats().bytes_borrowed;
            check(&peer.gives(LEN, 6).await, 6);
            let borrowed = peer.pipe.stats().bytes_borrowed - before;
            say("borrowed", format!("{borrowed} after {few} files"));
        }
    });
}

#[test]
fn who_could_open_nothing_when_it_was_let_in_borrows_later() {
    if !can_start_by(&PIDS) {
        return;
    }
    let child = Child::start("short of files", &[]);
    for few in 0..3 {
        assert_eq!(child.hear("borrowed"), format!("{LEN} after {few} files"));
    }
}

/// The kernel ends with a signal whoever sizes memory beyond that limit.
#[test]
fn a_limit_on_the_size_of_files_leaves_what_fits() {
    alone(async || {
        let context = context("parent", 64 << 20);
        for (bytes, transport) in [("0", "tcp"), ("65536", "tcp"), ("1048576", "shm")] {
            let limit = ("TEST_FILE_SIZE", bytes);
            let peer = Peer::start(&context, &[limit]).await;
            for seed in 0..3 {
                check(&peer.gives(LEN, seed).await, seed);
            }
            let tensor = made(context.pool(), LEN, 7);
            check(&peer.echoes(&tensor).await, 7);
            assert_eq!(peer.pipe.route().transport, transport, "{bytes}");
            let pool = peer.told("pool").await;
            assert!(!pool.ends_with(" 0"), "{bytes}: what is lent is longer");
            if transport == "tcp" {
                let route = peer.told("route").await;
                assert!(route.contains("`ulimit -f`"), "{bytes}: {route}");
            }
        }
    });
}

/// Where a user namespace has no map, each user is called by the number that stands for all that have none.
pub(crate) fn play_unmapped() {
    runtime().block_on(async {
        let context = context("parent", 64 << 20);
        let peer = Peer::start(&context, &[]).await;
        check(&peer.gives(LEN, 5).await, 5);
        say("strict", peer.pipe.route().to_string().replace('\n', " | "));
        let any = builder("parent", 64 << 20).prefer_transport(ShmTransport::new().any_user());
        let any = any.build().unwrap();
        let peer = Peer::start(&any, &[("TEST_ANY_USER", "1")]).await;
        check(&peer.gives(LEN, 5).await, 5);
        say("open", peer.pipe.route().to_string().replace('\n', " | "));
    });
}

#[test]
fn users_that_cannot_be_told_apart_are_not_the_same() {
    let by = ["unshare", "--user"];
    if !can_start_by(&by) {
        return;
    }
    let child = Child::start_by(&by, "unmapped", &[]);
    let route = child.hear("strict");
    assert!(route.starts_with("transport tcp"), "{route}");
    for candidate in ["transport shm", "channel lease", "channel cma"] {
        let why = route
            .split(" | ")
            .find(|line| line.contains(&format!("not {candidate}: ")));
        let why = why.unwrap_or_else(|| panic!("{candidate}: {route}"));
        assert!(why.contains("users cannot be told apart"), "{why}");
    }
    let route = child.hear("open");
    assert!(route.starts_with("transport shm"), "{route}");
    assert!(route.contains("not channel lease: "), "{route}");
}
