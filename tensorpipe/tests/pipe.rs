//! A pipe between two contexts of one process, over tcp and moved to memory.
#![allow(missing_docs, reason = "a test")]

use std::sync::Arc;
use std::time::Duration;

use tensorpipe::channels::{BasicChannel, Channel};
use tensorpipe::transports::{TcpTransport, Transport};
use tensorpipe::{Context, DType, Error, Message, Payload, Pipe, Tensor};

fn tcp_only() -> Context {
    let transports: [Arc<dyn Transport>; 1] = [Arc::new(TcpTransport::new())];
    let channels: [Arc<dyn Channel>; 1] = [Arc::new(BasicChannel::new())];
    Context::builder()
        .name("tcp only")
        .transports(transports)
        .channels(channels)
        .build()
        .unwrap()
}

async fn pair(context: &Context) -> (Pipe, Pipe) {
    let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    let url = listener.url().to_string();
    let (client, server) = tokio::join!(context.connect(&url), listener.accept());
    (client.unwrap(), server.unwrap())
}

async fn both(test: impl AsyncFn(Context)) {
    test(tcp_only()).await;
    test(Context::new()).await;
}

fn tensor(len: usize, seed: u8) -> Tensor {
    let bytes: Vec<u8> = (0..len)
        .map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed))
        .collect();
    Tensor::from_vec(bytes, [len as u64]).unwrap()
}

#[tokio::test]
async fn a_message_with_everything_arrives() {
    both(async |context| {
        let (client, server) = pair(&context).await;
        println!("{}", client.route());
        for size in [0, 1, 1000, 65536, 65537, 1 << 20, 10_000_000] {
            let message = Message::new("hello")
                .payload(Payload::new(b"payload".to_vec()).with_metadata("p"))
                .tensor(tensor(size, 1))
                .tensor(tensor(3, 2))
                .tensor(tensor(size / 2, 3));
            let (written, read) = tokio::join!(client.write(message), server.read());
            written.unwrap();
            let read = read.unwrap();
            assert_eq!(&read.metadata[..], b"hello");
            assert_eq!(read.payloads[0].as_bytes(), b"payload");
            assert_eq!(&read.payloads[0].metadata[..], b"p");
            for (i, (len, seed)) in [(size, 1), (3, 2), (size / 2, 3)].into_iter().enumerate() {
                assert_eq!(
                    read.tensors[i].tensor.as_bytes().unwrap(),
                    tensor(len, seed).as_bytes().unwrap()
                );
                assert_eq!(read.tensors[i].tensor.dtype(), DType::U8);
            }
        }
        assert_eq!(client.route().transport, server.route().transport);
    })
    .await;
}

#[tokio::test]
async fn close_delivers_what_was_written() {
    both(async |context| {
        let (client, server) = pair(&context).await;
        for i in 0..10u8 {
            client
                .send(Message::new(vec![i]).tensor(tensor(1 << 20, i)))
                .unwrap();
        }
        let reader = tokio::spawn(async move {
            let mut seen = Vec::new();
            loop {
                match server.read().await {
                    Ok(message) => {
                        assert_eq!(
                            message.tensors[0].tensor.as_bytes().unwrap(),
                            tensor(1 << 20, message.metadata[0]).as_bytes().unwrap()
                        );
                        seen.push(message.metadata[0]);
                    }
                    Err(Error::Closed { by_peer: true, .. }) => return seen,
                    Err(error) => panic!("{error}"),
                }
            }
        });
        client.close().await.unwrap();
        assert_eq!(reader.await.unwrap(), (0..10).collect::<Vec<u8>>());
    })
    .await;
}

#[tokio::test]
async fn a_dropped_pipe_still_delivers_and_flush_waits_for_the_reader() {
    both(async |context| {
        let (client, server) = pair(&context).await;
        client.send(Message::new("one")).unwrap();
        let mut flush = client.flush();
        assert!(
            tokio::time::timeout(Duration::from_millis(20), &mut flush)
                .await
                .is_err()
        );
        let incoming = server.read_descriptor().await.unwrap();
        let (flushed, read) = tokio::join!(flush, incoming.read());
        flushed.unwrap();
        read.unwrap();
        client
            .send(Message::new("two").tensor(tensor(300_000, 5)))
            .unwrap();
        drop(client);
        let message = server.read().await.unwrap();
        assert_eq!(&message.metadata[..], b"two");
        assert!(matches!(
            server.read().await,
            Err(Error::Closed { by_peer: true, .. })
        ));
    })
    .await;
}

#[tokio::test]
async fn skip_refuse_and_dropped_reads_leave_the_pipe_going() {
    both(async |context| {
        let (client, server) = pair(&context).await;
        let big = || Message::new("big").tensor(tensor(5_000_000, 9));
        let (skipped, refused, dropped) = (
            client.write(big()),
            client.write(big()),
            client.write(big()),
        );
        server.read_descriptor().await.unwrap().skip();
        server
            .read_descriptor()
            .await
            .unwrap()
            .refuse("too big for me");
        drop(server.read_descriptor().await.unwrap().read());
        let last = client.write(Message::new("last"));
        let (skipped, refused, dropped, last, read) =
            tokio::join!(skipped, refused, dropped, last, server.read());
        skipped.unwrap();
        let refused = refused.unwrap_err();
        assert_eq!(
            refused.to_string(),
            "the peer did not take the message: refused: too big for me"
        );
        // In process the tensor may have been handed over before the read was dropped.
        if let Err(error) = dropped {
            assert!(matches!(error, Error::Refused { .. }), "{error}");
        }
        last.unwrap();
        assert_eq!(&read.unwrap().metadata[..], b"last");
    })
    .await;
}

#[tokio::test]
async fn xth_hands_a_tensor_over_without_a_copy() {
    let (client, server) = pair(&Context::new()).await;
    assert_eq!(server.route().transport, "memory");
    let tensor = tensor(1 << 20, 7);
    let at = tensor.as_bytes().unwrap().as_ptr();
    let (written, read) =
        tokio::join!(client.write(Message::new("").tensor(tensor)), server.read());
    written.unwrap();
    let mut read = read.unwrap();
    assert_eq!(read.tensors[0].tensor.as_bytes().unwrap().as_ptr(), at);
    // Given away: the receiver owns it alone.
    assert_eq!(
        read.tensors[0].tensor.make_mut::<u8>().unwrap().as_ptr(),
        at
    );
}

#[tokio::test]
async fn a_message_of_64_kib_is_one_write() {
    let (client, server) = pair(&tcp_only()).await;
    let write = |n: usize| {
        client.write(
            Message::new("m")
                .payload(Payload::new(vec![1; 100]))
                .tensor(tensor(n, 1)),
        )
    };
    let (a, b) = tokio::join!(write(100), server.read());
    a.unwrap();
    b.unwrap();
    let before = client.stats();
    let (a, b) = tokio::join!(write(64 << 10), server.read());
    a.unwrap();
    b.unwrap();
    assert_eq!(client.stats().writes - before.writes, 1);
}

#[tokio::test]
async fn nobody_there_is_an_error_that_says_for_whom_it_waited() {
    let context = tcp_only();
    let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    let url = listener.url().to_string();
    drop(listener);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let policy = tensorpipe::ConnectPolicy::retrying_for(Duration::from_millis(200));
    let error = context.connect_with(&url, &policy).await.unwrap_err();
    println!("{error}");
    let Error::Connect {
        waited, attempts, ..
    } = &error
    else {
        panic!("{error:?}");
    };
    assert!(*attempts > 2 && *waited <= Duration::from_secs(5));
    let begins = format!(
        "no pipe to {url} after {} ms and {attempts} attempts: connect ",
        waited.as_millis()
    );
    assert!(error.to_string().starts_with(&begins), "{error}");
    // By default it is waited for much longer, and a caller who wants none of it says so.
    assert_eq!(
        tensorpipe::ConnectPolicy::default().retry_for,
        Duration::from_secs(30)
    );
    let once = tensorpipe::ConnectPolicy::once();
    let error = context.connect_with(&url, &once).await.unwrap_err();
    assert!(
        matches!(error, Error::Connect { attempts: 1, .. }),
        "{error:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_pipe_that_is_moved_is_accepted() {
    // The connector lets go of its first connection as soon as it has moved.
    let context = Context::new();
    let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    let url = listener.url().to_string();
    for _ in 0..200 {
        let (client, server) = tokio::join!(
            context.connect(&url),
            tokio::time::timeout(Duration::from_secs(5), listener.accept())
        );
        assert_eq!(
            client.unwrap().route().upgraded_from.as_deref(),
            Some("tcp")
        );
        assert_eq!(server.unwrap().unwrap().route().transport, "memory");
    }
}
