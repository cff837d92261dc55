//! Compares what the route says with what happens, at both sides of each size limit.

use std::sync::Arc;

use tensorpipe::channels::Channel;
use tensorpipe::{
    Device, Limits, Pipe,
    channels::{Pays, Threshold},
    device::MemoryKind,
    route::{Band, Carrier},
};

use super::scene::{
    LONGEST, Scene, basic_alone, between_processes, lends_no_copies, sends, within_process,
};

type Channels = fn() -> Vec<Arc<dyn Channel>>;

/// Over each transport what is used there, and what could be.
const WAYS: [(&str, Channels); 7] = [
    ("memory", within_process),
    ("memory", between_processes),
    ("shm", between_processes),
    ("shm", basic_alone),
    ("tcp", within_process),
    ("tcp", between_processes),
    ("tcp", basic_alone),
];

/// Sizes at both ends of each band of one kind of memory, and what the route says of them.
fn borders(pipe: &Pipe, memory: MemoryKind) -> Vec<(u64, Carrier)> {
    let choice = &pipe.route().choice;
    let bands = choice.bands().into_iter();
    let bands = bands.filter(|band| band.memory == memory && band.target == Device::CPU);
    let ends = |band: Band| {
        let (start, end) = band.sizes.into_inner();
        [start, end.min(LONGEST)].map(|len| (len, band.carrier))
    };
    let borders: Vec<_> = bands.flat_map(ends).collect();
    assert!(borders.len() >= 2, "{choice}");
    for (len, carrier) in &borders {
        let asked = choice.carrier(Device::CPU, memory, Device::CPU, *len);
        assert_eq!(asked, *carrier);
    }
    borders
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_route_says_is_what_carries_it() {
    for (transport, channels) in WAYS {
        let scene = Scene::over(transport, channels).await;
        for memory in [MemoryKind::Heap, MemoryKind::Pool] {
            for (len, carrier) in borders(&scene.client, memory) {
                let found = scene.sends(memory, len).await;
                let route = scene.client.route();
                assert_eq!(found, carrier, "{len} bytes of {memory}:\n{route}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_borrowed_goes_back_as_the_route_says() {
    for transport in ["shm", "tcp"] {
        let scene = Scene::over(transport, between_processes).await;
        for (len, carrier) in borders(&scene.server, MemoryKind::Borrowed) {
            // One that is long enough to be lent, of which a part goes back.
            let whole = len.max(1 << 20);
            let tensor = scene.tensor(MemoryKind::Pool, whole);
            let (_, borrowed) = sends(&scene.client, &scene.server, tensor, whole).await;
            assert_eq!(borrowed.buffer().memory().kind(), MemoryKind::Borrowed);
            let part = borrowed.rows(0..len).unwrap();
            let (found, _) = sends(&scene.server, &scene.client, part, whole).await;
            assert_eq!(found, carrier, "{len} bytes:\n{}", scene.server.route());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_readers_limits_are_in_it() {
    let mut limits = Limits::default();
    for eager_part in [0, 1000, 1 << 20] {
        limits.eager_part = eager_part;
        limits.eager_message = 2 << 20;
        limits.window_bytes = 8 << 20;
        let scene = Scene::with("tcp", between_processes, limits.clone(), |builder| {
            // Whichever processors this machine has.
            lends_no_copies(builder).threshold("cma", Threshold::new(Pays::From(4 << 20)))
        })
        .await;
        let words = scene.client.route().to_string();
        let expected = match eager_part {
            0 => "\n  heap: basic < 4 MiB, cma above\n  pool, borrowed: lease",
            1000 => {
                "\n  heap: in the frame <= 1000 B, basic < 4 MiB, cma above\n  pool, borrowed: in the frame <= 1000 B, lease above"
            }
            _ => {
                "\n  heap: in the frame <= 1 MiB, basic < 4 MiB, cma above\n  pool, borrowed: in the frame <= 4 KiB, lease above"
            }
        };
        assert!(words.ends_with(expected), "{words}");
        for memory in [MemoryKind::Heap, MemoryKind::Pool] {
            for (len, carrier) in borders(&scene.client, memory) {
                let found = scene.sends(memory, len).await;
                assert_eq!(found, carrier, "{len} bytes of {memory}:\n{words}");
            }
        }
    }
}
