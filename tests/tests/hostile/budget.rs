//! Unfinished messages of all peers count against one memory budget of the whole context.

use std::sync::Arc;
use std::time::Duration;

use tensorpipe::channels::{
    BasicChannel, Channel, ChannelFault, CmaChannel, LaneIo, MptChannel, OpId, Pays, Threshold,
    Want,
};
use tensorpipe::engine::EnginePipe;
use tensorpipe::transports::{TcpTransport, Transport};
use tensorpipe::{Buffer, Context, Error, Limits, Message, Tensor, Timeouts};
use tensorpipe_rpc::{CallError, Server};
use tensorpipe_tests::{Double, Says, pair, soon};
use tokio::sync::Notify;

use super::memory::story;
use super::raw::{GRANT, PING, PONG, REFUSE, Raw, data, frame, message, tensor};
use super::server::{AdderClient, AdderService, Sums, context};

const HALF: usize = 6 << 20;

/// More than the system holds between two processes: its writer has not handed it over when it is given up.
const HUGE: usize = 64 << 20;

const CHUNK: usize = 256 << 10;

/// Two messages of [`HALF`] are too much.
fn tight() -> Context {
    within_budget(10 << 20)
}

fn within_budget(bytes: u64) -> Context {
    let mut limits = Limits::default();
    limits.receive_budget = bytes;
    context(Timeouts::default(), limits)
}

fn of(bytes: usize) -> Message {
    Message::new("m").tensor(Tensor::from_vec(vec![1u8; bytes], [bytes as u64]).unwrap())
}

/// Announces [`HALF`] and one byte, and sends all but that byte.
async fn stall(address: String, body: Vec<u8>) -> Raw {
    tokio::task::spawn_blocking(move || {
        let mut raw = Raw::open(&address);
        let announced = tensor(0, 0, 0, &[HALF as u64 + 1]);
        // Its credit bounds this one, and not the other.
        let ahead = tensor(2, 0, 0, &[16]);
        raw.send(&message(&body, &[announced, ahead], b""));
        raw.send(&data(0, 1, &[1; 16]));
        raw.frame_of(GRANT);
        for _ in 0..HALF / CHUNK {
            raw.send(&data(0, 0, &[1; CHUNK]));
        }
        // What was sent before it is there.
        raw.send(&frame(PING, &[1; 8]));
        raw.frame_of(PONG);
        raw
    })
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_beyond_the_budget_fails_and_its_writer_hears_why() {
    let story = story!();
    // The honest writer's own tensors.
    story.allow((HUGE + HALF) as u64);
    // All that one pipe announces fits: what is refused is what others hold.
    let server = within_budget(HUGE as u64);
    let listener = server.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    let url = listener.url().to_string();
    let address = listener.url().to_string();
    let hostile = tokio::spawn(stall(address, Vec::new()));
    let held = soon("the hostile peer", listener.accept()).await.unwrap();
    let stalled = tokio::spawn(async move { held.read().await });
    let hostile = soon("its bytes", hostile).await.unwrap();

    let other = context(Timeouts::default(), Limits::default());
    let (client, pipe) = tokio::join!(other.connect(&url), listener.accept());
    let (client, pipe) = (client.unwrap(), pipe.unwrap());
    // Beside what the hostile peer holds, a byte less is left than a message of half takes.
    let _others = pipe.hold((HUGE - 2 * HALF + 1) as u64).unwrap();
    for bytes in [HALF, HUGE] {
        let (written, read) = soon("a refusal", async {
            tokio::join!(client.write(of(bytes)), pipe.read())
        })
        .await;
        let error = read.unwrap_err();
        println!("{error}");
        assert!(
            matches!(&error, Error::OutOfMemory { bytes: of, reason } if *of == bytes as u64 && reason.contains("being read take")),
            "{error:?}"
        );
        // The writer hears of it, unless the system took all of its bytes first.
        match written {
            Ok(()) => assert_ne!(bytes, HUGE, "the system does not hold so much"),
            Err(error) => assert!(matches!(error, Error::Refused { .. }), "{error:?}"),
        }
    }

    // It comes back with the pipe of whoever held it.
    drop(hostile);
    let error = soon("the stalled read", stalled)
        .await
        .unwrap()
        .unwrap_err();
    assert!(error.ends_pipe(), "{error:?}");
    for _ in 0..3 {
        let (written, read) = soon("a message", async {
            tokio::join!(client.write(of(HALF)), pipe.read())
        })
        .await;
        written.unwrap();
        assert_eq!(read.unwrap().tensors[0].tensor.byte_len(), HALF);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_beyond_the_budget_is_refused_as_overload() {
    let story = story!();
    story.allow(HALF as u64);
    let server = Server::builder()
        .context(&tight())
        .service(AdderService::new(Sums))
        .listen("tcp://127.0.0.1:0")
        .await
        .unwrap();
    let body = super::calls::call(0, 0, super::calls::method("sum"), b"\x00");
    let address = server.url().to_string();
    let hostile = stall(address, body).await;
    let other = context(Timeouts::default(), Limits::default());
    let client = AdderClient::connect_with(&other, server.url().to_string())
        .await
        .unwrap();
    let tensor = Tensor::from_vec(vec![1f32; HALF / 4], [HALF as u64 / 4]).unwrap();
    let error = soon("a refusal", client.sum(&tensor)).await.unwrap_err();
    println!("{error}");
    assert!(matches!(error, CallError::Overloaded(_)), "{error:?}");
    assert!(!error.may_have_run());
    drop(hostile);
    soon("the budget comes back", async {
        while client.sum(&tensor).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

/// Announced and not sent: what one pipe may take of addresses is bounded, and is its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pipe_that_announces_more_than_the_budget_is_told_and_hurts_no_other() {
    let story = story!();
    // A tensor at both ends of an honest pipe.
    story.allow(3 * HALF as u64);
    let server = tight();
    let listener = server.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    let url = listener.url().to_string();
    let address = listener.url().to_string();
    let hostile = tokio::task::spawn_blocking(move || {
        let mut raw = Raw::open(&address);
        for _ in 0..2 {
            raw.send(&message(b"m", &[tensor(0, 0, 0, &[HALF as u64])], b""));
        }
        raw.frame_of(GRANT);
        raw.frame_of(REFUSE);
        raw
    });
    let held = soon("the hostile peer", listener.accept()).await.unwrap();
    let first = held.read_descriptor().await.unwrap().read();
    let second = held.read_descriptor().await.unwrap().read();
    let error = soon("the second", second).await.unwrap_err();
    println!("{error}");
    assert!(
        matches!(&error, Error::OutOfMemory { reason, .. } if reason.contains("receive_budget")),
        "{error:?}"
    );
    let hostile = soon("its answers", hostile).await.unwrap();
    let other = context(Timeouts::default(), Limits::default());
    let (client, pipe) = tokio::join!(other.connect(&url), listener.accept());
    let (client, pipe) = (client.unwrap(), pipe.unwrap());
    let (written, read) = soon("another pipe's message", async {
        tokio::join!(client.write(of(HALF)), pipe.read())
    })
    .await;
    written.unwrap();
    assert_eq!(read.unwrap().tensors[0].tensor.byte_len(), HALF);
    // Given up, its addresses are free for the next.
    drop(first);
    drop(hostile);
}

/// Chunks that come over connections of a channel's own count as those on the pipe's do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_in_stripes_counts_too() {
    let story = story!();
    // Two tensors at both ends of an honest pipe.
    story.allow(4 * HALF as u64);
    let channels = || -> [Arc<dyn Channel>; 2] {
        [Arc::new(MptChannel::new()), Arc::new(BasicChannel::new())]
    };
    let mut limits = Limits::default();
    limits.receive_budget = 10 << 20;
    let tcp = || -> [Arc<dyn Transport>; 1] { [Arc::new(TcpTransport::new())] };
    let server = Context::builder().transports(tcp()).channels(channels());
    let server = server.limits(limits).build().unwrap();
    let client = Context::builder().transports(tcp()).channels(channels());
    let client = client.build().unwrap();
    let (client, pipe) = pair(&client, &server, "tcp://127.0.0.1:0").await;
    // Somebody else takes as much as makes the second half of the tensor too much.
    let others = pipe.hold(7 << 20).unwrap();
    let (written, read) = soon("a refusal", async {
        tokio::join!(client.write(of(HALF)), pipe.read())
    })
    .await;
    let error = read.unwrap_err();
    println!("{error}");
    assert!(
        matches!(&error, Error::OutOfMemory { reason, .. } if reason.contains("receive_budget")),
        "{error:?}"
    );
    drop(written);
    drop(others);
    let (written, read) = soon("a message", async {
        tokio::join!(client.write(of(HALF)), pipe.read())
    })
    .await;
    written.unwrap();
    assert_eq!(read.unwrap().tensors[0].tensor.byte_len(), HALF);
    // What it took is free again.
    soon("all of it", async {
        while pipe.hold(10 << 20).is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// Promises an export that is in no table. Asked for the bytes, it tells, and sends none.
struct Withholds(Arc<Notify>);

impl Says for Withholds {
    fn send(&mut self, op: OpId, source: Buffer, io: &mut LaneIo<'_>) {
        let (slot, number, len) = (1023u32, 1u64, source.len() as u64);
        let export = [
            &slot.to_le_bytes()[..],
            &number.to_le_bytes(),
            &len.to_le_bytes(),
        ];
        io.control(op, [&[1][..], &export.concat()].concat());
    }

    fn recv(&mut self, _: OpId, _: Want, _: &mut LaneIo<'_>) {}

    fn control(&mut self, _: OpId, _: &[u8], _: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        self.0.notify_one();
        Ok(())
    }
}

/// What a peer of this machine only says it exports costs addresses, also while its bytes are asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_export_that_cannot_be_read_takes_no_budget() {
    let story = story!();
    // The hostile writer's own tensor.
    story.allow(HALF as u64);
    let asked = Arc::new(Notify::new());
    let tells = asked.clone();
    let liar = Double::liar(CmaChannel::also_within_process(), move |_| {
        Withholds(tells.clone())
    });
    let tcp = || -> [Arc<dyn Transport>; 1] { [Arc::new(TcpTransport::new())] };
    let mut limits = Limits::default();
    limits.receive_budget = 10 << 20;
    let honest: Arc<dyn Channel> = Arc::new(CmaChannel::also_within_process());
    let server = Context::builder().transports(tcp()).channels([honest]);
    let server = server.limits(limits).build().unwrap();
    let client = Context::builder()
        .transports(tcp())
        .channels([liar.channel()]);
    let client = client.threshold("cma", Threshold::new(Pays::From(1 << 20)));
    let client = client.build().unwrap();
    let (client, pipe) = pair(&client, &server, "tcp://127.0.0.1:0").await;
    client.send(of(HALF)).unwrap();
    let reading = soon("the descriptor", pipe.read_descriptor()).await;
    let reading = tokio::spawn(reading.unwrap().read());
    soon("it is asked for the bytes", asked.notified()).await;
    drop(pipe.hold(10 << 20).unwrap());
    reading.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_read_takes_no_budget_though_its_last_byte_never_comes() {
    let _story = story!();
    let server = tight();
    let listener = server.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    let address = listener.url().to_string();
    let hostile = tokio::spawn(stall(address, Vec::new()));
    let pipe = soon("the hostile peer", listener.accept()).await.unwrap();
    let reading = soon("the descriptor", pipe.read_descriptor()).await;
    let mut reading = reading.unwrap().read();
    let hostile = tokio::select! {
        read = &mut reading => panic!("{read:?}"),
        hostile = soon("its bytes", hostile) => hostile.unwrap(),
    };
    assert!(pipe.hold(5 << 20).is_err(), "what has come counts");
    drop(reading);
    drop(pipe.hold(10 << 20).unwrap());
    drop(hostile);
}
