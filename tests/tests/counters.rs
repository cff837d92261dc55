//! Counters instead of clocks: system calls, copied bytes and allocations of an operation do not depend on how busy the
//! machine is.
#![allow(missing_docs, reason = "a test")]

use std::sync::Arc;

use tensorpipe::conformance::{assert_same, pattern};
use tensorpipe::transports::TcpTransport;
use tensorpipe::{Context, Message, Payload, Pipe, PipeStats, Tensor};
use tensorpipe_rpc::{Server, tensor_service};
use tensorpipe_tests::{Counting, over, pair};

#[global_allocator]
static ALLOCATOR: Counting = Counting::new();

fn over_tcp() -> Context {
    over(vec![Arc::new(TcpTransport::new())]).build().unwrap()
}

/// One message; what both ends did for it, and how many allocations that took.
async fn cost(client: &Pipe, server: &Pipe, message: Message) -> (PipeStats, PipeStats, u64) {
    let before = (client.stats(), server.stats());
    let allocations = ALLOCATOR.allocations();
    let (written, read) = tokio::join!(client.write(message), server.read());
    let allocations = ALLOCATOR.allocations() - allocations;
    written.unwrap();
    drop(read.unwrap());
    let since = |after: PipeStats, before: PipeStats| {
        let mut since = after;
        since.writes -= before.writes;
        since.reads -= before.reads;
        since.bytes_in -= before.bytes_in;
        since.bytes_out -= before.bytes_out;
        since.bytes_copied -= before.bytes_copied;
        since
    };
    let (c, s) = (
        since(client.stats(), before.0),
        since(server.stats(), before.1),
    );
    (c, s, allocations)
}

#[tensor_service]
trait Echo {
    async fn text(&self, text: String) -> String;
}

struct Back;

impl Echo for Back {
    async fn text(&self, text: String) -> String {
        text
    }
}

/// A small call, both ends: its slot, what each end reads, and the handler with its context. One alone, and many together. Most of
/// what is counted is metrics, and a debug build that reads back what it has written: without them it is 6.
async fn calls_allocate_little() {
    let context = over_tcp();
    let server = Server::builder()
        .context(&context)
        .service(EchoService::new(Back))
        .listen("tcp://127.0.0.1:0")
        .await
        .unwrap();
    let url = server.url().to_string();
    let client = EchoClient::connect_with(&context, url).await.unwrap();
    let alone = async || drop(client.text("").await.unwrap());
    let together = async || {
        let calls: [_; 40] = std::array::from_fn(|_| client.text(""));
        for call in calls {
            call.await.unwrap();
        }
    };
    let mut rounds = Vec::new();
    // A handler that other work on the machine has interrupted runs on a task of its own for a while: half of the rounds may meet that.
    for _ in 0..100 {
        let before = ALLOCATOR.allocations();
        alone().await;
        let between = ALLOCATOR.allocations();
        together().await;
        let after = ALLOCATOR.allocations();
        rounds.push([between - before, after - between]);
    }
    // One or two more where the machine, or a sanitizer, is so slow that handlers run on tasks of their own.
    let fit = rounds
        .iter()
        .filter(|[one, all]| *one <= 24 && *all <= 40 * 24);
    println!(
        "allocations of a call, both ends, and of 40 together: {:?}",
        rounds[0]
    );
    assert!(2 * fit.count() >= rounds.len(), "{rounds:?}");
}

fn tensor(len: usize) -> Tensor {
    Tensor::from_vec(pattern(len, 1), [len as u64]).unwrap()
}

/// One test, because the allocator counts for the whole process.
#[tokio::test]
async fn operations_cost_what_they_should() {
    let context = over_tcp();
    let (client, server) = pair(&context, &context, "tcp://127.0.0.1:0").await;
    for _ in 0..20 {
        cost(
            &client,
            &server,
            Message::new("warm").tensor(tensor(64 << 10)),
        )
        .await;
        cost(
            &client,
            &server,
            Message::new("warm").tensor(tensor(10 << 20)),
        )
        .await;
    }
    // 64 KiB leave in one write, with head, metadata and payload.
    let message = Message::new("m")
        .payload(Payload::new(vec![1; 100]))
        .tensor(tensor(64 << 10));
    let (sent, received, _) = cost(&client, &server, message).await;
    assert_eq!(sent.writes, 1, "{sent:?}");
    assert_eq!(sent.bytes_copied, 0, "the writer copies nothing");
    assert!(received.bytes_copied <= (64 << 10) + 100, "{received:?}");
    assert!(
        sent.bytes_out - (64 << 10) - 100 < 200,
        "the frame around it is small: {sent:?}"
    );

    // A large tensor is read where it belongs: what came in with a frame's header is all that is copied.
    let (sent, received, _) =
        cost(&client, &server, Message::new("m").tensor(tensor(10 << 20))).await;
    assert_eq!(sent.bytes_copied, 0);
    assert!(received.bytes_copied < 512 << 10, "{received:?}");
    assert!(
        sent.writes < 60,
        "pieces of 256 KiB and a few control frames: {sent:?}"
    );

    // Metadata alone.
    let mut most = 0;
    for _ in 0..50 {
        let message = Message::new("metadata only");
        let (sent, _, allocations) = cost(&client, &server, message).await;
        assert_eq!(sent.writes, 1);
        most = most.max(allocations);
    }
    println!("allocations of a message of metadata alone, both ends: at most {most}");
    assert!(most <= 4, "{most} allocations for a message of metadata");
    let mut most = 0;
    for _ in 0..50 {
        let message = Message::new("one tensor").tensor(tensor(4096));
        let (sent, _, allocations) = cost(&client, &server, message).await;
        assert_eq!(sent.writes, 1);
        most = most.max(allocations);
    }
    println!("allocations of a message of one tensor, both ends: at most {most}");
    assert!(most <= 10, "{most} allocations for a message of one tensor");

    calls_allocate_little().await;

    // Within a process a tensor is handed over.
    let context = Context::new();
    let (client, server) = pair(&context, &context, "tcp://127.0.0.1:0").await;
    let given = tensor(64 << 20);
    let message = Message::new("m").tensor(given.clone());
    let (sent, received, _) = cost(&client, &server, message).await;
    assert_eq!((sent.bytes_copied, received.bytes_copied), (0, 0));
    assert!(
        sent.bytes_out < 1000 && received.bytes_out < 1000,
        "{sent:?} {received:?}"
    );
    assert_same(
        given.as_bytes().unwrap(),
        &pattern(64 << 20, 1),
        "the giver's",
    );
    // The library's own count is not all: it is the same memory.
    client
        .send(Message::new("m").tensor(given.clone()))
        .unwrap();
    let mut received = server.read().await.unwrap();
    let theirs = &mut received.tensors[0].tensor;
    let at = given.as_bytes().unwrap().as_ptr();
    assert_eq!(theirs.as_bytes().unwrap().as_ptr(), at);
    // Once the giver has let go of it, the receiver owns it alone.
    drop(given);
    assert_eq!(theirs.make_mut::<u8>().unwrap().as_ptr(), at);
}
