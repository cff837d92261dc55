//! Malformed calls, sent over a valid pipe to a server of calls.

use std::time::Duration;

use tensorpipe::{Context, Error, Message, Misuse, Payload, Pipe, Tensor};

use super::raw::{MESSAGE, REFUSE, Raw, SOON, header, message, noise, tensor};
use super::server::{Target, unharmed};
use super::stream::Way;

const CALL: u8 = 1;
const FAILURE: u8 = 4;
const BIND: u8 = 5;

/// Messages that may be under way to a server.
const WINDOW: usize = 1024;

pub(crate) fn method(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

pub(crate) fn call(flags: u8, service: u32, method: u32, body: &[u8]) -> Vec<u8> {
    let mut out = vec![CALL, 28, flags, 0];
    out.extend_from_slice(&77u64.to_le_bytes());
    out.extend_from_slice(&service.to_le_bytes());
    out.extend_from_slice(&method.to_le_bytes());
    out.extend_from_slice(&5_000_000u64.to_le_bytes());
    out.extend_from_slice(body);
    out
}

fn floats(len: u64) -> Tensor {
    Tensor::from_vec(vec![1f32; len as usize], [len]).unwrap()
}

fn on_a_pipe(target: &Target, test: impl AsyncFnOnce(Context, Pipe)) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let context = target.context();
        let pipe = context.connect(&target.calls).await.unwrap();
        tokio::time::timeout(4 * SOON, test(context, pipe.clone()))
            .await
            .expect("the server answers or refuses");
        target.was_sent(pipe.stats().bytes_out);
    });
}

/// Not a call: the message is refused or skipped, the pipe goes on.
#[test]
fn messages_that_are_no_calls_are_refused_and_the_pipe_goes_on() {
    unharmed(|target| {
        on_a_pipe(target, async |_, pipe| {
            let mut reply_to_nothing = call(0, 0, 0, b"");
            reply_to_nothing[0] = 2;
            let mut unknown_kind = call(0, 0, 0, b"");
            unknown_kind[0] = 99;
            let mut long_header = call(0, 0, 0, b"");
            long_header[1] = 255;
            for metadata in [
                Vec::new(),
                vec![CALL],
                call(0, 0, 0, b"")[..27].to_vec(),
                long_header,
                unknown_kind,
                reply_to_nothing,
                // A trace is promised that is not there.
                call(2, 0, 0, b""),
                noise(1, 200),
                noise(2, 60_000),
            ] {
                pipe.send(Message::new(metadata).tensor(floats(1_000_000)))
                    .unwrap();
            }
            let refused = pipe.write(Message::new(vec![0; 40])).await;
            if let Err(error) = refused {
                assert!(matches!(error, Error::Refused { .. }), "{error:?}");
            }
            assert!(!pipe.has_ended(), "{}", pipe.ended().await);
            fails(&pipe, Message::new(call(0, 0, method("nothing"), b"")), 3).await;
        });
    });
}

/// The server answers `message` with a failure of this code.
async fn fails(pipe: &Pipe, message: Message, code: u8) {
    pipe.send(message).unwrap();
    let reply = tokio::time::timeout(Duration::from_secs(5), pipe.read())
        .await
        .expect("a reply")
        .unwrap();
    println!("{}", String::from_utf8_lossy(&reply.metadata[12..]));
    assert_eq!(
        (reply.metadata[0], reply.metadata[3]),
        (FAILURE, code),
        "{:?}",
        reply.metadata
    );
}

/// A call that makes no sense: it fails, by its number, and the next one is served.
#[test]
fn calls_that_make_no_sense_fail_one_by_one() {
    for way in Way::ALL {
        const UNIMPLEMENTED: u8 = 3;
        const BAD_ARGUMENTS: u8 = 4;
        const NO_SERVICE: u8 = 9;
        let target = Target::start(way);
        on_a_pipe(&target, async |_, pipe| {
            let (add, sum) = (method("add"), method("sum"));
            let with = |flags, method, body: &[u8]| Message::new(call(flags, 0, method, body));
            fails(
                &pipe,
                Message::new(call(0, 7, add, b"\x01\x02")),
                NO_SERVICE,
            )
            .await;
            fails(&pipe, Message::new(call(0, u32::MAX, add, b"")), NO_SERVICE).await;
            fails(&pipe, with(0, 0xdead_beef, b""), UNIMPLEMENTED).await;
            fails(&pipe, with(0, add, b""), BAD_ARGUMENTS).await;
            fails(&pipe, with(0, add, b"\x01"), BAD_ARGUMENTS).await;
            fails(&pipe, with(0, add, b"\x01\x02\x03"), BAD_ARGUMENTS).await;
            fails(&pipe, with(0, add, &[0xff; 30]), BAD_ARGUMENTS).await;
            fails(&pipe, with(0, add, &noise(9, 30_000)), BAD_ARGUMENTS).await;
            // The body is promised in a payload that is not there.
            fails(&pipe, with(1, add, b""), BAD_ARGUMENTS).await;
            // Tensors and payloads that no argument names, or none where one is named.
            fails(
                &pipe,
                with(0, add, b"\x01\x02").tensor(floats(4)),
                BAD_ARGUMENTS,
            )
            .await;
            let big = with(0, add, b"\x01\x02").tensor(floats(1_000_000));
            fails(&pipe, big, BAD_ARGUMENTS).await;
            let payload = Payload::new(vec![1; 10]);
            fails(
                &pipe,
                with(0, add, b"\x01\x02").payload(payload),
                BAD_ARGUMENTS,
            )
            .await;
            for body in [
                &b""[..],
                b"\x00",
                b"\x01",
                b"\xff\xff\xff\xff\x0f",
                &noise(4, 100),
            ] {
                fails(&pipe, with(0, sum, body), BAD_ARGUMENTS).await;
            }
            let two = with(0, sum, b"\x00").tensor(floats(4)).tensor(floats(4));
            fails(&pipe, two, BAD_ARGUMENTS).await;
            // A bind that describes nothing.
            let bind = |body: &[u8]| {
                let mut metadata = vec![BIND, 12, 0, 0];
                metadata.extend_from_slice(&[7; 8]);
                metadata.extend_from_slice(body);
                Message::new(metadata)
            };
            fails(&pipe, bind(b""), BAD_ARGUMENTS).await;
            fails(&pipe, bind(&[0xff; 2000]), BAD_ARGUMENTS).await;
            fails(&pipe, bind(&noise(6, 20_000)), BAD_ARGUMENTS).await;
            assert!(!pipe.has_ended());
            // And one that does make sense: 2 + 3.
            pipe.send(with(0, add, b"\x02\x03")).unwrap();
            let reply = pipe.read().await.unwrap();
            assert_eq!(
                (reply.metadata[0], &reply.metadata[12..]),
                (2, &b"\x05"[..])
            );
        });
        target.stays_unharmed();
    }
}

#[test]
fn metadata_beyond_the_limit_is_not_sent_by_us_and_not_taken_from_others() {
    unharmed(|target| {
        on_a_pipe(target, async |_, pipe| {
            let error = pipe
                .write(Message::new(vec![0; 2 << 20]))
                .await
                .unwrap_err();
            println!("{error}");
            assert!(
                matches!(error, Error::Misuse(Misuse::TooLarge { .. })),
                "{error:?}"
            );
        });
        let mut raw = Raw::open(&target.calls);
        raw.send(&header(MESSAGE, 8 << 20, &noise(8, 4000)));
        raw.is_cut("giant metadata", SOON);
    });
}

/// Calls whose tensors never come: large ones are refused beyond what may be announced, more of them than a pipe's window has are a fault,
/// and they are gone with their pipe.
#[test]
fn calls_that_never_come_whole_do_not_pile_up() {
    const LARGE: u64 = 8 << 30;
    for way in Way::ALL {
        let budget = (2 * LARGE).to_string();
        let target = Target::start_with(way, &[("TEST_BUDGET", &budget)]);
        target.serves();
        let before = target.resident();
        let mut raw = Raw::open(&target.calls);
        let body = call(0, 0, method("sum"), b"\x00");
        let announced = |len| message(&body, &[tensor(0, 0, 0, &[len])], b"");
        raw.send(&announced(LARGE).repeat(WINDOW / 2));
        for _ in 2..WINDOW / 2 {
            raw.frame_of(REFUSE);
        }
        raw.send(&announced(1 << 10).repeat(WINDOW / 2));
        target.serves();
        let grown = target.resident().saturating_sub(before);
        println!("{WINDOW} calls announced: {} KiB", grown >> 10);
        assert!(grown <= 16 << 20, "{} KiB", grown >> 10);
        raw.send(&announced(1 << 10));
        raw.is_cut("one call too many", SOON);
        target.shrinks_to(before, 8 << 20, "after they have gone");
        target.stays_unharmed();
    }
}
