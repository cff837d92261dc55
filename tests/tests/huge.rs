//! Messages beyond 4 GiB: no length on their path is limited to 32 bits.
//!
//! A binary of its own: 4 GiB through the kernel take ten seconds and more, during which tests with bounds would fail.
#![allow(missing_docs, reason = "a test")]

use std::sync::Arc;

use tensorpipe::transports::{ShmTransport, TcpTransport};
use tensorpipe::{Allocation, BufferMut, Context, DType, Message, Pipe, Place, Tensor};
use tensorpipe_tests::{over, pair};

const LEN: usize = (4 << 30) + 1;

const AT: &str = "tcp://127.0.0.1:0";

/// Zeros but for marks around the border; untouched pages cost no memory.
fn giant() -> Tensor {
    let mut tensor = Tensor::zeros(DType::U8, [LEN as u64]).unwrap();
    let bytes = tensor.make_mut::<u8>().unwrap();
    for at in marks() {
        bytes[at] = 0xa5;
    }
    tensor
}

fn marks() -> [usize; 5] {
    [0, (2 << 30) + 5, LEN - 2, LEN - 1, 12_345]
}

fn check_giant(bytes: &[u8]) {
    assert_eq!(bytes.len(), LEN);
    let zeros = vec![0; 16 << 20];
    for (i, piece) in bytes.chunks(zeros.len()).enumerate() {
        let marked: Vec<usize> = marks()
            .into_iter()
            .filter(|at| at / zeros.len() == i)
            .map(|at| at % zeros.len())
            .collect();
        if marked.is_empty() {
            assert!(piece == &zeros[..piece.len()], "piece {i} is not zero");
        }
        for at in marked {
            assert_eq!(piece[at], 0xa5, "byte {at} of piece {i}");
        }
    }
}

fn over_tcp() -> Context {
    over(vec![Arc::new(TcpTransport::new())]).build().unwrap()
}

/// Begins on tcp, is upgraded to rings of 128 KiB in shared memory.
fn over_shm() -> Context {
    let tcp = over(vec![Arc::new(TcpTransport::new())]);
    tcp.prefer_transport(ShmTransport::new()).build().unwrap()
}

#[tokio::test]
async fn a_tensor_beyond_4_gib_over_tcp_and_over_shm() {
    // One after the other: each takes 4 GiB.
    for (context, transport) in [(over_tcp(), "tcp"), (over_shm(), "shm")] {
        let (client, server) = pair(&context, &context, AT).await;
        assert_eq!(client.route().transport, transport);
        crosses(&client, &server).await;
    }
}

async fn crosses(client: &Pipe, server: &Pipe) {
    let written = client.write(Message::new("giant").tensor(giant()));
    let read = async {
        let incoming = server.read_descriptor().await?;
        assert_eq!(incoming.descriptor().tensors[0].byte_len(), LEN as u64);
        let allocation = Allocation {
            tensors: vec![Place::Into(BufferMut::zeroed(LEN))],
            ..Allocation::default()
        };
        incoming.read_into(allocation).await
    };
    let (written, read) = tokio::join!(written, read);
    written.unwrap();
    check_giant(read.unwrap().tensors[0].tensor.as_bytes().unwrap());
    let (written, read) = tokio::join!(client.write(Message::new("on it goes")), server.read());
    written.unwrap();
    assert_eq!(&read.unwrap().metadata[..], b"on it goes");
}

#[tokio::test]
async fn a_tensor_beyond_4_gib_within_a_process_and_skipped() {
    let context = Context::new();
    let (client, server) = pair(&context, &context, AT).await;
    let tensor = giant();
    let at = tensor.as_bytes().unwrap().as_ptr();
    let (written, read) = tokio::join!(
        client.write(Message::new("giant").tensor(tensor.clone())),
        server.read()
    );
    written.unwrap();
    assert_eq!(
        read.unwrap().tensors[0].tensor.as_bytes().unwrap().as_ptr(),
        at
    );
    let context = over_tcp();
    let (client, server) = pair(&context, &context, AT).await;
    let written = client.write(Message::new("giant").tensor(tensor));
    server.read_descriptor().await.unwrap().skip();
    written.await.unwrap();
    assert!(client.stats().bytes_out < 10_000, "{:?}", client.stats());
}
