//! Hostile peers name devices that the server does not have: as the target of a tensor, and as the place for results.

use std::sync::Arc;
use std::time::Duration;

use tensorpipe::conformance::TestDevices;
use tensorpipe::device::DevicePool;
use tensorpipe::{Allocation, Error, Limits, Misuse, Place, Timeouts};
use tensorpipe_tests::soon;

use super::calls::{call, method};
use super::raw::{Frame, GRANT, MESSAGE, Raw, data, message, tensor};
use super::server::{context_over, unharmed};
use super::stream::Way;

const VALUE: u8 = 2;
const FAILURE: u8 = 4;
const BAD_ARGUMENTS: u8 = 4;
const NO_PLACE_FOR_RESULT: u8 = 13;

/// Flags of a part, and of a call.
const EAGER: u8 = 1;
const TARGET: u8 = 4;
const PLACES: u8 = 32;

const F32: u8 = 8;

/// `test:9`, as it travels.
const NOWHERE: &[u8] = b"\x04test\x09\0\0\0";

/// Of floats in main memory, to go there.
fn to_nowhere(flags: u8, floats: u64) -> Vec<u8> {
    let mut part = tensor(flags | TARGET, 0, F32, &[floats]);
    // Behind the source, before the length of its metadata.
    let at = part.len() - 4;
    part.splice(at..at, NOWHERE.iter().copied());
    part
}

/// A call of a hostile peer's who says this of where it wants tensors of the result.
fn wanting(method: u32, places: &[u8], body: &[u8]) -> Vec<u8> {
    let len = (places.len() as u16).to_le_bytes();
    call(PLACES, 0, method, &[&len[..], places, body].concat())
}

/// What the next reply says: its kind, its code, and its words.
fn reply(raw: &mut Raw) -> (u8, u8, String) {
    let Frame { body, .. } = raw.frame_of(MESSAGE);
    let at = 4 + u32::from_le_bytes([body[0], body[1], body[2], body[3]]) as usize;
    let words = String::from_utf8_lossy(&body[at + 12..]).into_owned();
    println!("{words}");
    (body[at], body[at + 3], words)
}

#[test]
fn a_target_that_nobody_has_costs_nothing_and_is_no_handlers() {
    unharmed(|target| {
        target.serves();
        let before = target.resident();
        let mut raw = Raw::open(&target.calls);
        let floats = [1f32.to_le_bytes(), 2f32.to_le_bytes()].concat();
        let one = |method: &str, flags, content: &[u8]| {
            let body = call(0, 0, self::method(method), b"\x00");
            message(&body, &[to_nowhere(flags, 2)], content)
        };
        // It is in main memory, whatever its sender says: who has not asked for the device takes it.
        raw.send(&one("sum", EAGER, &floats));
        assert_eq!(reply(&mut raw).0, VALUE);
        raw.send(&one("sum", 0, b""));
        raw.frame_of(GRANT);
        raw.send(&data(1, 0, &floats));
        assert_eq!(reply(&mut raw).0, VALUE);
        // And who has does not.
        for (number, flags) in [(2, EAGER), (3, 0)] {
            raw.send(&one(
                "take",
                flags,
                &floats[..floats.len() * usize::from(flags)],
            ));
            if flags == 0 {
                raw.frame_of(GRANT);
                raw.send(&data(number, 0, &floats));
            }
            let (kind, code, words) = reply(&mut raw);
            assert_eq!((kind, code), (FAILURE, BAD_ARGUMENTS));
            assert!(words.contains("sent to cpu:0"), "{words}");
            assert!(words.contains("#[tensor(device = \"test:9\")]"), "{words}");
        }
        let body = call(0, 0, method("take"), b"\x00");
        raw.send(&message(&body, &[tensor(EAGER, 0, F32, &[2])], &floats));
        assert_eq!(reply(&mut raw).1, BAD_ARGUMENTS);
        // Announced and never sent.
        let body = call(0, 0, method("sum"), b"\x00");
        raw.send(&message(&body, &[to_nowhere(0, 1 << 30)], b"").repeat(900));
        std::thread::sleep(Duration::from_millis(300));
        let grown = target.resident().saturating_sub(before);
        println!("900 calls of 4 GiB for a device: {} KiB", grown >> 10);
        assert!(grown <= 16 << 20, "{} KiB", grown >> 10);
        drop(raw);
    });
}

/// The reader would take its memory, as it was, for what has come.
#[tokio::test]
async fn a_channel_that_does_not_reach_a_device_brings_nothing_there() {
    let context = context_over(Way::Tcp, Timeouts::default(), Limits::default());
    let listener = context
        .listen([Way::Tcp.url("places").as_str()])
        .await
        .unwrap();
    let url = listener.url().to_string();
    let raw = tokio::task::spawn_blocking(move || {
        let mut raw = Raw::open(&url);
        raw.send(&message(b"m", &[to_nowhere(0, 2)], b""));
        raw
    });
    let pipe = soon("a pipe", listener.accept()).await.unwrap();
    let incoming = soon("a message", pipe.read_descriptor()).await.unwrap();
    let devices = TestDevices::new(10);
    let pool = DevicePool::new(TestDevices::device(9), Arc::new(devices));
    let mut place = Allocation::default();
    place.tensors.push(Place::Into(pool.take(8).unwrap()));
    let read = soon("an error", incoming.read_into(place)).await;
    let error = Error::from(read.unwrap_err());
    assert!(
        matches!(&error, Error::Misuse(Misuse::OutOfReach { .. })),
        "{error:?}"
    );
    drop(raw.await);
}

#[test]
fn results_wanted_where_nothing_brings_them_are_an_error_and_nonsense_is_another() {
    unharmed(|target| {
        let mut raw = Raw::open(&target.calls);
        let floats = 1f32.to_le_bytes();
        let echo = |places: &[u8]| {
            let body = wanting(method("echo"), places, b"\x00");
            message(&body, &[tensor(EAGER, 0, F32, &[1])], &floats)
        };
        // All of them; those from main memory; those from elsewhere, of which there are none.
        for (places, found) in [
            (NOWHERE.to_vec(), (FAILURE, NO_PLACE_FOR_RESULT)),
            ([&[0], NOWHERE].concat(), (FAILURE, NO_PLACE_FOR_RESULT)),
            ([NOWHERE, NOWHERE].concat(), (VALUE, 0)),
            (Vec::new(), (VALUE, 0)),
        ] {
            raw.send(&echo(&places));
            let (kind, code, words) = reply(&mut raw);
            assert_eq!((kind, code), found, "{places:?}");
            assert_eq!(
                code == NO_PLACE_FOR_RESULT,
                words.contains("to test:9"),
                "{words}"
            );
        }
        for nonsense in [
            &NOWHERE[..5],
            b"\x04TEST\0\0\0\0",
            b"\x10abcdefghijklmnop\0\0\0\0",
            b"\xff",
            &[0; 3],
            &[0; 130],
            &[0; 60_000],
        ] {
            raw.send(&echo(nonsense));
            let (kind, code, words) = reply(&mut raw);
            assert_eq!((kind, code), (FAILURE, BAD_ARGUMENTS), "{nonsense:?}");
            assert!(words.contains("makes no sense"), "{words}");
        }
        // Cut short: no call at all.
        for cut in [&b"\x05\0"[..], b"\x05", b"", b"\xff\xff\0"] {
            let body = call(PLACES, 0, method("echo"), cut);
            raw.send(&message(&body, &[tensor(0, 0, F32, &[1 << 20])], b""));
        }
        raw.send(&echo(b""));
        assert_eq!(reply(&mut raw).0, VALUE);
        drop(raw);
    });
}
