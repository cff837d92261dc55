//! Messages beyond 4 GiB: no length is 32 bits long on the way.

use tensorpipe::{Allocation, BufferMut, DType, Place};

use super::*;

const LEN: usize = (4 << 30) + 1;

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

#[tokio::test]
async fn a_tensor_beyond_4_gib_over_tcp() {
    let (client, server) = tcp_pair().await;
    let written = client.write(Message::new("giant").tensor(giant()));
    let read = async {
        let incoming = server.read_descriptor().await?;
        assert_eq!(incoming.descriptor().tensors[0].byte_len(), LEN as u64);
        // Not the pool's: it would keep it for the other tests of this process.
        let allocation = Allocation {
            tensors: vec![Place::Into(BufferMut::zeroed(LEN))],
            ..Allocation::default()
        };
        incoming.read_into(allocation).await
    };
    let (written, read) = tokio::join!(written, read);
    written.unwrap();
    check_giant(read.unwrap().tensors[0].tensor.as_bytes().unwrap());
    exchange(&client, &server, 1, 1000).await;
}

#[tokio::test]
async fn a_tensor_beyond_4_gib_within_a_process_and_skipped() {
    let context = Context::new();
    let (client, server) = pair(&context, &context).await;
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
    let (client, server) = tcp_pair().await;
    let written = client.write(Message::new("giant").tensor(tensor));
    within("a descriptor", server.read_descriptor())
        .await
        .unwrap()
        .skip();
    within("the write", written).await.unwrap();
    assert!(client.stats().bytes_out < 10_000, "{:?}", client.stats());
}
