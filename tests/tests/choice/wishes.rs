//! A context overrides the preferences of its channels, and adds channels of its own.

use std::sync::Arc;

use tensorpipe::channels::{BasicChannel, Channel, LeaseChannel, MptChannel};
use tensorpipe::{
    ContextBuilder, Limits, Pipe,
    channels::{Pays, Threshold},
    device::MemoryKind,
    route::Carrier,
};
use tensorpipe_tests::Double;

use super::scene::{Scene, between_processes, lends_no_copies, within_process};

const MIB: u64 = 1 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_context_has_the_last_word_on_its_own_sending() {
    let lend = Threshold::new(Pays::From(2 * MIB)).of(MemoryKind::Pool);
    let scene = Scene::with("tcp", between_processes, Limits::default(), |builder| {
        lends_no_copies(builder)
            .threshold("cma", Threshold::new(Pays::LastResort))
            .threshold("cma", Threshold::new(Pays::From(MIB)).over("tcp"))
            .threshold("lease", lend)
    })
    .await;
    let words = scene.client.route().to_string();
    let ours = "\n  heap: in the frame <= 64 KiB, basic < 1 MiB, cma above\
                \n  pool: in the frame <= 64 KiB, basic < 1 MiB, cma < 2 MiB, lease above\
                \n  borrowed: in the frame <= 4 KiB, lease above";
    assert!(words.contains(ours), "{words}");
    for (memory, len, carrier) in [
        (MemoryKind::Heap, MIB - 1, Carrier::Channel("basic")),
        (MemoryKind::Heap, MIB, Carrier::Channel("cma")),
        (MemoryKind::Pool, 5000, Carrier::Frame),
        (MemoryKind::Pool, MIB - 1, Carrier::Channel("basic")),
        (MemoryKind::Pool, MIB, Carrier::Channel("cma")),
        (MemoryKind::Pool, 2 * MIB, Carrier::Channel("lease")),
    ] {
        assert_eq!(scene.sends(memory, len).await, carrier, "{len}:\n{words}");
    }
    // The other end has not asked for anything.
    let usual = Scene::over("tcp", between_processes).await;
    let choice = |pipe: &Pipe| pipe.route().choice.to_string();
    assert_eq!(choice(&scene.server), choice(&usual.server));
    assert_ne!(choice(&scene.server), choice(&scene.client));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_rings_cma_is_used_by_who_wants_it() {
    let wish = Threshold::new(Pays::From(MIB)).over("shm");
    let scene = Scene::with("shm", between_processes, Limits::default(), |builder| {
        lends_no_copies(builder).threshold("cma", wish)
    })
    .await;
    for (len, carrier) in [(MIB - 1, "basic"), (MIB, "cma")] {
        let found = scene.sends(MemoryKind::Heap, len).await;
        assert_eq!(found, Carrier::Channel(carrier));
    }
}

/// What has room in the frame is with its reader whether or not that reads: the rest is copied once, and lent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ordinary_memory_is_copied_to_be_lent() {
    for transport in ["shm", "tcp"] {
        let scene = Scene::over(transport, between_processes).await;
        let words = scene.client.route().to_string();
        let expected = "\n  heap: in the frame < 16 KiB, lease above\
                        \n  pool, borrowed: in the frame <= 4 KiB, lease above";
        assert!(words.ends_with(expected), "{words}");
        for (len, carrier) in [
            (16 * 1024 - 1, Carrier::Frame),
            (16 * 1024, Carrier::Channel("lease")),
            (300_000, Carrier::Channel("lease")),
            (5 * MIB, Carrier::Channel("lease")),
        ] {
            assert_eq!(scene.sends(MemoryKind::Heap, len).await, carrier, "{len}");
        }
    }
}

/// As `prefer_channel` makes it.
fn with_mpt_first() -> Vec<Arc<dyn Channel>> {
    let mpt: Arc<dyn Channel> = Arc::new(MptChannel::new());
    [vec![mpt], between_processes()].concat()
}

fn with_mpt_alone() -> Vec<Arc<dyn Channel>> {
    let mut channels = with_mpt_first();
    channels.retain(|channel| channel.name() != LeaseChannel::new().name());
    channels
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_can_be_lent_is_not_striped_unless_a_context_says_so_of_it() {
    let (heap, pool) = (MemoryKind::Heap, MemoryKind::Pool);
    let none = |builder: ContextBuilder| builder;
    let of_all =
        |builder: ContextBuilder| builder.threshold("mpt", Threshold::new(Pays::From(2 * MIB)));
    let of_pools = |builder: ContextBuilder| {
        let striped = Threshold::new(Pays::From(2 * MIB)).of(MemoryKind::Pool);
        builder.threshold("mpt", striped)
    };
    type Wishes = fn(ContextBuilder) -> ContextBuilder;
    type Channels = fn() -> Vec<Arc<dyn Channel>>;
    for (channels, wishes, sent) in [
        (
            with_mpt_first as Channels,
            none as Wishes,
            [(heap, "mpt"), (pool, "lease")],
        ),
        (with_mpt_first, of_all, [(heap, "mpt"), (pool, "lease")]),
        (with_mpt_first, of_pools, [(heap, "mpt"), (pool, "mpt")]),
        // As between two machines.
        (with_mpt_alone, none, [(heap, "mpt"), (pool, "mpt")]),
    ] {
        let scene = Scene::with("tcp", channels, Limits::default(), wishes).await;
        for (memory, name) in sent {
            let found = scene.sends(memory, 5 * MIB).await;
            let route = scene.client.route();
            assert_eq!(found, Carrier::Channel(name), "{memory}:\n{route}");
        }
    }
}

/// It does what `basic` does, under a name of its own and where it says.
fn with_own() -> Vec<Arc<dyn Channel>> {
    let heap = Threshold::new(Pays::From(100_000)).of(MemoryKind::Heap);
    let own = Double::of(Arc::new(BasicChannel::new())).named("own");
    let own = own.with_threshold(heap.over("tcp")).channel();
    [vec![own], within_process()].concat()
}

#[tokio::test]
async fn a_channel_of_ones_own_takes_part() {
    let scene = Scene::over("tcp", with_own).await;
    let words = scene.client.route().to_string();
    // Over tcp nothing shows that both ends are in one process.
    let lines = "\n  heap: in the frame <= 64 KiB, basic <= 99999 B, own above\
                 \n  pool, borrowed: in the frame <= 64 KiB, basic above";
    assert!(words.contains(lines), "{words}");
    for (memory, len, carrier) in [
        (MemoryKind::Heap, 99_999, "basic"),
        (MemoryKind::Heap, 100_000, "own"),
        (MemoryKind::Pool, 100_000, "basic"),
    ] {
        let found = scene.sends(memory, len).await;
        assert_eq!(found, Carrier::Channel(carrier), "{words}");
    }
    // Over another transport it says nothing of itself, and carries nothing; nor can a context make it.
    let scene = Scene::with("memory", with_own, Limits::default(), |builder| {
        builder.threshold("own", Threshold::new(Pays::From(1)))
    })
    .await;
    let found = scene.sends(MemoryKind::Heap, MIB).await;
    assert_eq!(found, Carrier::Channel("xth"));
    // But over the one that it knows.
    let scene = Scene::with("tcp", with_own, Limits::default(), |builder| {
        builder.threshold("own", Threshold::new(Pays::From(1)))
    })
    .await;
    let found = scene.sends(MemoryKind::Heap, 10).await;
    assert_eq!(found, Carrier::Channel("own"));
}
