//! If a requested device is not available, the caller gets an error and the connection goes on.

use std::collections::HashMap;

use futures_util::TryStreamExt;
use tensorpipe::{Device, Misuse};
use tensorpipe_rpc::{CallError, DeviceMap, PlaceError, Remote};

use super::kind::{ONE, ZERO, toy};
use super::scene::{Has, Scene, USUAL, names, repeat, soon};

/// Its words, where this side knows the reason: whether it is for want of memory, and the device.
#[track_caller]
fn here<T, E: std::fmt::Debug>(
    found: Result<T, CallError<E>>,
    ran: bool,
) -> (&'static str, Device, String) {
    match found {
        Err(CallError::NoPlace {
            error: PlaceError::Here(misuse),
            may_have_run,
        }) if may_have_run == ran => match &misuse {
            Misuse::OutOfReach { device, .. } => ("reach", *device, misuse.to_string()),
            Misuse::NoAllocator { device, .. } => ("memory", *device, misuse.to_string()),
            _ => panic!("{misuse:?}"),
        },
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("it has a place"),
    }
}

/// And where the server does.
#[track_caller]
fn there<T, E: std::fmt::Debug>(found: Result<T, CallError<E>>, ran: bool) -> String {
    match found {
        Err(CallError::NoPlace {
            error: PlaceError::There(words),
            may_have_run,
        }) if may_have_run == ran => words.to_string(),
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("it has a place"),
    }
}

fn to_nowhere() -> DeviceMap {
    DeviceMap::new([(toy(0), toy(7)), (toy(7), toy(0))]).unwrap()
}

#[tokio::test]
async fn an_argument_that_no_channel_brings_there_is_not_sent() {
    for over in ["tcp", "memory"] {
        let scene = Scene::over(over).await;
        let sent = || scene.client.connection().pipe().stats().bytes_out;
        let before = sent();
        for len in [10, 300_000] {
            for from in [Device::CPU, toy(0)] {
                let x = scene.here.tensor(from, len, 1);
                let (why, device, words) = here(soon(scene.client.farther(x)).await, false);
                assert_eq!((why, device), ("reach", toy(7)));
                assert!(
                    words.starts_with("argument `x` cannot") && words.contains("Pipe::route"),
                    "{words}"
                );
            }
            let mapped = scene.client.with_device_map(to_nowhere());
            let x = scene.here.tensor(toy(0), len, 1);
            let placed = HashMap::from([("w".to_owned(), vec![x.clone()])]);
            let (why, device, words) = here(soon(mapped.found(len, x, placed, None)).await, false);
            assert_eq!((why, device), ("reach", toy(7)));
            assert!(words.starts_with("argument `plain` cannot"), "{words}");
        }
        assert_eq!(sent(), before, "nothing is sent over {over}");
        assert_eq!(scene.ran(), 0);
        scene.goes_on().await;
    }
}

#[tokio::test]
async fn a_server_without_memory_there_says_so_and_does_not_run() {
    let there_has = Has {
        memory: false,
        ..USUAL
    };
    let scene = Scene::of("tcp", USUAL, there_has).await;
    for len in [10, 300_000] {
        let x = scene.here.tensor(toy(0), len, 1);
        let words = there(soon(scene.client.keep(x)).await, false);
        let why = format!("argument `x` has no place: this context has no memory of {ONE}");
        assert!(words.starts_with(&why), "{words}");
        assert!(words.contains("ContextBuilder::allocator"), "{words}");
    }
    assert_eq!(scene.ran(), 0);
    scene.goes_on().await;
}

/// A map may send any argument there: the server does not blame the one with the attribute.
#[tokio::test]
async fn of_a_client_with_a_map_no_argument_is_named_that_may_be_in_its_place() {
    let there_has = Has {
        memory: false,
        ..USUAL
    };
    let scene = Scene::of("tcp", USUAL, there_has).await;
    let map = |to| DeviceMap::new([(toy(0), to)]).unwrap();
    let client = scene.client.with_device_map(map(toy(1)));
    for len in [10, 300_000] {
        let x = || scene.here.tensor(toy(0), len, 1);
        // `placed`, with the attribute for this device, is empty.
        let found = client.found(len, x(), HashMap::new(), None);
        let words = there(soon(found).await, false);
        let why = format!("this context has no memory of {ONE}");
        assert!(words.starts_with(&why), "{words}");
        // This map sends nothing there.
        let client = scene.client.with_device_map(map(toy(0)));
        let words = there(soon(client.keep(x())).await, false);
        assert!(
            words.starts_with("argument `x` has no place: this"),
            "{words}"
        );
    }
    assert_eq!(scene.ran(), 0);
    scene.goes_on().await;
}

/// Known before the method runs: nothing brings tensors there.
#[tokio::test]
async fn a_result_that_nothing_brings_here_is_not_asked_for() {
    let scene = Scene::over("tcp").await;
    let sent = || scene.client.connection().pipe().stats().bytes_out;
    let before = sent();
    let (why, device, words) = here(soon(scene.client.far()).await, false);
    assert_eq!((why, device), ("reach", toy(7)));
    assert!(words.contains("the result"), "{words}");
    assert_eq!(sent(), before, "nothing is sent");
    let kept = soon(scene.client.keep(scene.here.tensor(Device::CPU, 10, 1)))
        .await
        .unwrap();
    let (why, device, _) = here(soon(kept.fetch_to(toy(9))).await, false);
    assert_eq!((why, device), ("reach", toy(9)));
    assert_eq!(scene.ran(), 1);
    scene.goes_on().await;
    // What is in this process is not moved by a call.
    let mine = Remote::new(scene.here.tensor(toy(0), 10, 1));
    let tensor = soon(mine.fetch_to(toy(0))).await.unwrap();
    assert_eq!(scene.here.found(&tensor, 10, 1), ZERO);
    let (why, device, words) = here(soon(mine.fetch_to(Device::CPU)).await, false);
    assert_eq!((why, device), ("reach", Device::CPU));
    assert!(words.starts_with("the value cannot"), "{words}");
    let place = format!("in this process, on {ZERO}");
    assert!(words.contains(&place), "{words}");
}

/// Known when it comes: its bytes have not moved, and the method has run.
#[tokio::test]
async fn a_client_without_memory_there_blames_nobody_else() {
    let here_has = Has {
        memory: false,
        ..USUAL
    };
    let scene = Scene::of("tcp", here_has, USUAL).await;
    for len in [10, 300_000] {
        let (why, device, _) = here(soon(scene.client.placed(len, names(&[toy(1)]))).await, true);
        assert_eq!((why, device), ("memory", toy(0)));
        let map = DeviceMap::new([(toy(1), toy(0))]).unwrap();
        let mapped = scene.client.with_device_map(map);
        let (why, device, _) = here(soon(mapped.plain(len, names(&[toy(0)]))).await, true);
        assert_eq!((why, device), ("memory", toy(1)));
    }
    assert_eq!(scene.ran(), 4);
    scene.goes_on().await;
}

/// The server finds that no channel brings the result where the caller's map wants it: the caller hears of it, as one who asked.
#[tokio::test]
async fn a_result_that_the_server_cannot_send_there_is_the_callers_error() {
    let scene = Scene::over("tcp").await;
    let map = DeviceMap::new([(toy(7), toy(1))]).unwrap();
    let mapped = scene.client.with_device_map(map);
    for len in [10, 300_000] {
        let words = there(soon(mapped.plain(len, names(&[toy(1)]))).await, true);
        let why = format!("the result cannot be put on {}", toy(7));
        assert!(
            words.starts_with(&why) && words.contains(&format!("from {ONE}")),
            "{words}"
        );
    }
    assert_eq!(scene.ran(), 2);
    scene.goes_on().await;
}

#[tokio::test]
async fn an_item_without_a_place_ends_its_stream() {
    let scene = Scene::over("tcp").await;
    let mapped = scene.client.with_device_map(to_nowhere());
    let items = repeat(&scene.here.tensor(toy(0), 300_000, 1), 3);
    let ended = soon(mapped.plain_streams(300_000, items).try_collect::<Vec<_>>()).await;
    let (_, device, words) = here(ended, true);
    assert_eq!(device, toy(7));
    assert!(words.contains("the stream's items cannot"), "{words}");
    scene.goes_on().await;

    let no_memory = Has {
        memory: false,
        ..USUAL
    };
    let scene = Scene::of("tcp", USUAL, no_memory).await;
    let items = repeat(&scene.here.tensor(toy(0), 300_000, 1), 3);
    let ended = soon(scene.client.streams(300_000, items).try_collect::<Vec<_>>()).await;
    let words = there(ended, true);
    assert!(words.contains(&format!("no memory of {ONE}")), "{words}");
    scene.goes_on().await;

    let scene = Scene::of("tcp", no_memory, USUAL).await;
    let items = repeat(&scene.here.tensor(Device::CPU, 300_000, 1), 3);
    let ended = soon(scene.client.streams(300_000, items).try_collect::<Vec<_>>()).await;
    assert_eq!(here(ended, true).0, "memory");
    scene.goes_on().await;
}
