//! Tensors arrive on the device that the trait or the device map names, over every transport, from any device, of any length.

use std::collections::HashMap;

use futures_util::{StreamExt, TryStreamExt};
use tensorpipe::{Device, Misuse, Tensor};
use tensorpipe_rpc::{CallError, DeviceMap, PlaceError};

use super::kind::{CHANNEL, ONE, ZERO, toy};
use super::scene::{LENGTHS, Scene, names, repeat, soon};

const TRANSPORTS: [&str; 3] = ["tcp", "shm", "memory"];

const EVERYWHERE: [Device; 3] = [Device::CPU, toy(0), toy(1)];

fn crossed() -> DeviceMap {
    DeviceMap::new([(toy(0), toy(1)), (toy(1), toy(0))]).unwrap()
}

#[tokio::test]
async fn arguments_land_where_the_trait_says() {
    for over in TRANSPORTS {
        let scene = Scene::over(over).await;
        for len in LENGTHS {
            for from in EVERYWHERE {
                let tensor = || scene.here.tensor(from, len, 1);
                let placed = HashMap::from([("w".to_owned(), vec![tensor(), tensor()])]);
                let found = scene.client.found(len, tensor(), placed, Some(tensor()));
                assert_eq!(
                    soon(found).await.unwrap(),
                    ["cpu:0", ONE, ONE, "cpu:0"],
                    "{len} bytes of {from} over {over}"
                );
                let found = soon(scene.client.pair(len, tensor(), tensor())).await;
                assert_eq!(found.unwrap(), [ONE, "cpu:0"]);
            }
        }
        // A placed argument without a tensor, then one with.
        let main = Some(scene.here.tensor(toy(0), 10, 1));
        let found = scene
            .client
            .found(10, scene.here.tensor(toy(1), 10, 1), HashMap::new(), main);
        assert_eq!(soon(found).await.unwrap(), ["cpu:0", "cpu:0"]);
    }
}

#[tokio::test]
async fn results_land_where_the_trait_says() {
    for over in TRANSPORTS {
        let scene = Scene::over(over).await;
        for len in LENGTHS {
            let tensors = soon(scene.client.placed(len, names(&EVERYWHERE)))
                .await
                .unwrap();
            for (seed, tensor) in (0..).zip(&tensors) {
                let found = scene.here.found(tensor, len, seed);
                assert_eq!(found, ZERO, "{len} bytes over {over}");
            }
            assert_eq!(tensors.len(), 3);
        }
    }
}

#[tokio::test]
async fn a_map_pairs_devices_both_ways_and_the_trait_goes_before_it() {
    for over in TRANSPORTS {
        let scene = Scene::over(over).await;
        let client = scene.client.with_device_map(crossed());
        for len in LENGTHS {
            for (from, to) in EVERYWHERE.into_iter().zip(["cpu:0", ONE, ZERO]) {
                let tensor = || scene.here.tensor(from, len, 1);
                let placed = HashMap::from([("w".to_owned(), vec![tensor()])]);
                let found = client.found(len, tensor(), placed, Some(tensor()));
                assert_eq!(
                    soon(found).await.unwrap(),
                    [to, ONE, "cpu:0"],
                    "{len} of {from}"
                );
            }
            let tensors = soon(client.plain(len, names(&EVERYWHERE))).await.unwrap();
            let found = |tensors: &[Tensor]| {
                let all = (0..).zip(tensors);
                let all = all.map(|(seed, tensor)| scene.here.found(tensor, len, seed));
                all.collect::<Vec<_>>()
            };
            assert_eq!(found(&tensors), ["cpu:0", ONE, ZERO], "{len} over {over}");
            let tensors = soon(client.placed(len, names(&EVERYWHERE))).await.unwrap();
            assert_eq!(found(&tensors), [ZERO; 3], "{len} over {over}");
        }
        // The client without a map is as before.
        let tensors = soon(scene.client.plain(9, names(&[toy(0)]))).await.unwrap();
        assert_eq!(scene.here.found(&tensors[0], 9, 0), "cpu:0");
    }
}

/// A map may name main memory, of which small tensors ride in a message's frame.
#[tokio::test]
async fn a_map_moves_what_lies_in_main_memory_too() {
    let map = DeviceMap::new([(Device::CPU, toy(1)), (toy(0), Device::CPU)]).unwrap();
    let scene = Scene::over("shm").await;
    let client = scene.client.with_device_map(map);
    for len in LENGTHS {
        for (from, to) in [(Device::CPU, ONE), (toy(0), "cpu:0"), (toy(1), "cpu:0")] {
            let tensor = scene.here.tensor(from, len, 1);
            let found = soon(client.found(len, tensor, HashMap::new(), None))
                .await
                .unwrap();
            assert_eq!(found, [to], "{len} of {from}");
        }
        let tensors = soon(client.plain(len, names(&[Device::CPU, toy(1)])))
            .await
            .unwrap();
        assert_eq!(scene.here.found(&tensors[0], len, 0), ZERO);
        assert_eq!(scene.here.found(&tensors[1], len, 1), "cpu:0");
    }
}

#[tokio::test]
async fn items_of_streams_land_where_the_trait_or_the_map_says() {
    for over in TRANSPORTS {
        let scene = Scene::over(over).await;
        let mapped = scene.client.with_device_map(crossed());
        for len in LENGTHS {
            let items = |from| repeat(&scene.here.tensor(from, len, 1), 7);
            for (stream, there, here) in [
                (scene.client.streams(len, items(toy(0))), ONE, ZERO),
                (scene.client.streams(len, items(Device::CPU)), ONE, ZERO),
                (mapped.streams(len, items(toy(1))), ONE, ZERO),
                (
                    scene.client.plain_streams(len, items(toy(0))),
                    "cpu:0",
                    "cpu:0",
                ),
                (mapped.plain_streams(len, items(toy(0))), ONE, ZERO),
                (mapped.plain_streams(len, items(toy(1))), ZERO, ONE),
                (
                    mapped.plain_streams(len, items(Device::CPU)),
                    "cpu:0",
                    "cpu:0",
                ),
            ] {
                let items: Vec<_> = soon(stream.try_collect()).await.unwrap();
                assert_eq!(items.len(), 7);
                for (was, item) in &items {
                    let found = scene.here.found(item, len, 1);
                    assert_eq!((&**was, &*found), (there, here), "{len} over {over}");
                }
            }
        }
    }
}

#[tokio::test]
async fn how_items_came_is_counted_with_a_map_as_without() {
    let scene = Scene::over(TRANSPORTS[0]).await;
    let client = scene.client.with_stats();
    let mut carried = Vec::new();
    for client in [client.with_device_map(crossed()), client] {
        let items = repeat(&scene.here.tensor(Device::CPU, 100, 1), 7);
        let mut stream = client.plain_streams(100, items);
        while let Some(item) = soon(stream.next()).await {
            item.unwrap();
        }
        let transfer = stream.stats().result.expect("a stream").transfer;
        carried.push((transfer.streamed, transfer.copied, transfer.channels));
    }
    assert!(carried[1].0 > Some(0), "{:?}", carried[1]);
    assert_eq!(carried[0], carried[1]);
}

/// Of a call with a tensor on a device, of its result, and of both.
#[tokio::test]
async fn how_tensors_on_devices_went_is_counted() {
    const LEN: usize = 300_000;
    let scene = Scene::over("tcp").await;
    let client = scene.client.with_stats();
    for from in [toy(0), toy(1)] {
        let x = scene.here.tensor(from, LEN, 1);
        let (kept, stats) = soon(client.keep(x).stats()).await;
        kept.unwrap();
        assert_eq!(stats.request.channels, [CHANNEL]);
        assert!(stats.request.bytes > LEN as u64, "{stats}");
        assert!(stats.request.diverted.is_empty() && stats.reply.channels.is_empty());
    }
    let placed = client.placed(LEN, names(&[toy(0), toy(1)]));
    let (tensors, stats) = soon(placed.stats()).await;
    assert_eq!(tensors.unwrap().len(), 2);
    assert_eq!(stats.reply.channels, [CHANNEL]);
    assert!(stats.reply.bytes > 2 * LEN as u64, "{stats}");
    assert!(stats.request.channels.is_empty() && stats.server.is_some());
}

/// A tensor on a device goes as its caller requires, or the call fails before a byte moves.
#[tokio::test]
async fn tensors_on_devices_go_as_is_required() {
    const LEN: usize = 300_000;
    let scene = Scene::over("tcp").await;
    let x = |from| scene.here.tensor(from, LEN, 1);
    let as_it_goes = scene.client.with_requirement([CHANNEL, "basic"]);
    let kept = soon(as_it_goes.keep(x(toy(0)))).await.unwrap();
    assert_eq!(soon(scene.client.kept(LEN, &kept)).await.unwrap(), ONE);
    let strict = scene.client.with_requirement(["basic"]);
    let sent = || scene.client.connection().pipe().stats().bytes_out;
    let (before, ran) = (sent(), scene.ran());
    for from in [toy(0), toy(1)] {
        let failed = soon(strict.keep(x(from))).await.unwrap_err();
        let CallError::NoPlace {
            error:
                PlaceError::Here(Misuse::NotAsRequired {
                    what,
                    required,
                    instead,
                    ..
                }),
            may_have_run: false,
        } = &failed
        else {
            panic!("{failed:?}");
        };
        assert_eq!(**what, *format!("argument `x` from {from} to {ONE}"));
        assert_eq!((&**required, &**instead), ("basic", CHANNEL));
    }
    assert_eq!((sent(), scene.ran()), (before, ran), "nothing is sent");
    scene.goes_on().await;
}

#[tokio::test]
async fn a_value_that_stayed_is_fetched_to_a_device() {
    for over in TRANSPORTS {
        let scene = Scene::over(over).await;
        for len in LENGTHS {
            let kept = soon(scene.client.keep(scene.here.tensor(toy(0), len, 1)))
                .await
                .unwrap();
            for device in [toy(0), toy(1), Device::CPU] {
                let tensor = soon(kept.fetch_to(device)).await.unwrap();
                assert_eq!(scene.here.found(&tensor, len, 1), device.to_string());
            }
            let tensor = soon(kept.fetch()).await.unwrap();
            assert_eq!(scene.here.found(&tensor, len, 1), "cpu:0");
        }
    }
}

/// Rows are gathered in main memory, and each caller has its own where the trait says.
#[tokio::test]
async fn rows_of_a_batch_come_back_to_a_device() {
    let scene = Scene::over("shm").await;
    let mapped = scene.client.with_device_map(crossed());
    let rows = |from| scene.here.tensor(from, 1, 1);
    let (one, other) = (
        scene.client.batch(rows(Device::CPU)),
        mapped.batch(rows(toy(0))),
    );
    let (one, other) = soon(async { tokio::join!(one, other) }).await;
    for tensor in [one.unwrap(), other.unwrap()] {
        assert_eq!(scene.here.found(&tensor, 1, 1), ONE);
    }
    assert_eq!(*scene.batches.lock().unwrap(), ["2 rows on cpu:0"]);
}

/// Rows of all callers stand behind each other on a device of the server's, wherever they come from.
#[tokio::test]
async fn rows_of_a_batch_are_gathered_on_a_device() {
    let scene = Scene::over("shm").await;
    for len in [100_000, 0] {
        let rows = |from, count, seed| {
            let rows = scene.here.tensor(from, count * len, seed);
            rows.reshape([count, len]).unwrap()
        };
        let (one, two, three) = (
            scene.client.batch_there(rows(Device::CPU, 1, 1)),
            scene.client.batch_there(rows(toy(0), 2, 2)),
            scene.client.batch_there(rows(toy(1), 1, 3)),
        );
        let all = soon(async { tokio::join!(one, two, three) }).await;
        for (tensor, count, seed) in [(all.0, 1, 1), (all.1, 2, 2), (all.2, 1, 3)] {
            let tensor = tensor.unwrap();
            assert_eq!(tensor.shape(), [count as u64, len as u64]);
            assert_eq!(scene.here.found(&tensor, count * len, seed), "cpu:0");
        }
        let runs = std::mem::take(&mut *scene.batches.lock().unwrap());
        assert_eq!(runs, [format!("4 rows on {ONE}")]);
    }
}

/// What a call of no wishes costs on the wire is what it cost before: its message has no target, and no flag.
#[tokio::test]
async fn many_at_once_do_not_mix() {
    let scene = Scene::over("shm").await;
    let mapped = scene.client.with_device_map(crossed());
    let calls = (0..200usize).map(|i| {
        let (client, wanted) = match i % 3 {
            0 => (&scene.client, "cpu:0"),
            _ => (&mapped, ONE),
        };
        let len = 50 + 700 * i;
        let call = client.plain(len, names(&[toy(0)]));
        let here = &scene.here;
        async move {
            let tensors = call.await.unwrap();
            assert_eq!(here.found(&tensors[0], len, 0), wanted, "{i}");
        }
    });
    soon(
        futures_util::stream::iter(calls)
            .buffer_unordered(32)
            .collect::<()>(),
    )
    .await;
}
