//! A connection that asks to join, and both answers of the listener, over connections in memory.

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::*;
use crate::proto::handshake::ServerHandshake;
use crate::proto::wire::hello::Reject;

const WITHIN: Duration = Duration::from_secs(3);

/// A connection that asks to join, the listener's end of it, and the listener's end of the first connection.
fn asking() -> (Joining, DuplexStream, DuplexStream) {
    let ((joined, there), (first, stays)) = (duplex(1 << 20), duplex(1 << 20));
    let first = OriginalConnection::new(
        Box::new(first),
        Arc::default(),
        SettledPeer::default(),
        WITHIN,
    );
    let joining = Joining::new(Box::new(joined), "b".into(), Some(first));
    (joining, there, stays)
}

fn reject() -> Vec<u8> {
    ServerHandshake::reject(&Reject {
        transient: false,
        reason: "late".to_owned(),
    })
}

async fn say(bytes: Vec<u8>, mut joining: Joining) -> io::Result<Joining> {
    let (mut here, mut unread) = (0, [0; 1]);
    std::future::poll_fn(|cx| {
        let mut buf = ReadBuf::new(&mut unread);
        while here < bytes.len() {
            match Pin::new(&mut joining).poll_write(cx, &bytes[here..])? {
                Poll::Ready(len) => here += len,
                Poll::Pending => {
                    // As the driver does: if it cannot write, it reads.
                    if Pin::new(&mut joining).poll_read(cx, &mut buf)?.is_pending() {
                        return Poll::Pending;
                    }
                }
            }
        }
        Poll::Ready(Ok(()))
    })
    .await
    .map(|()| joining)
}

#[tokio::test]
async fn all_that_was_said_is_said_again_and_no_more_is_remembered_than_the_bound() {
    let (joining, mut there, mut stays) = asking();
    let said: Vec<u8> = (0..SAID_MAX as u32 * 2).map(|i| i as u8).collect();
    let writing = tokio::spawn(say(said.clone(), joining));
    let mut came = vec![0; SAID_MAX];
    there.read_exact(&mut came).await.unwrap();
    assert_eq!(came, said[..SAID_MAX]);
    there.write_all(&reject()).await.unwrap();
    let mut joining = writing.await.unwrap().unwrap();
    let mut again = Vec::new();
    put_stay(&mut again, "b refused the pipe: late", None);
    again.extend_from_slice(&said);
    let mut came = vec![0; again.len()];
    stays.read_exact(&mut came).await.unwrap();
    assert!(came == again);
    assert_eq!(there.read(&mut came).await.unwrap(), 0, "nothing follows");
    stays.write_all(b"good").await.unwrap();
    let mut came = [0; 4];
    joining.read_exact(&mut came).await.unwrap();
    assert_eq!(&came, b"good");
}

#[tokio::test]
async fn a_writer_at_the_bound_goes_on_when_it_may_join() {
    let (joining, mut there, mut stays) = asking();
    let said: Vec<u8> = (0..SAID_MAX as u32 * 2).map(|i| i as u8).collect();
    let writing = tokio::spawn(say(said.clone(), joining));
    let mut came = vec![0; said.len()];
    there.read_exact(&mut came[..SAID_MAX]).await.unwrap();
    // In pieces; other bytes follow the last one.
    let word = [ServerHandshake::joined(None), b"good".to_vec()].concat();
    for byte in &word[..word.len() - 5] {
        there.write_all(&[*byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    there.write_all(&word[word.len() - 5..]).await.unwrap();
    there.read_exact(&mut came[SAID_MAX..]).await.unwrap();
    assert!(came == said);
    writing.await.unwrap().unwrap();
    assert_eq!(stays.read(&mut came).await.unwrap(), 0, "it is let go of");
}

/// Its listener is out of descriptors, say: the kernel has taken the connection, and nobody accepts it.
#[tokio::test(start_paused = true)]
async fn where_nobody_decides_in_time_it_stays_and_repeats_what_was_written() {
    let (mut joining, mut there, mut stays) = asking();
    joining.write_all(b"hello").await.unwrap();
    let begun = tokio::time::Instant::now();
    let read = tokio::spawn(async move {
        let mut answer = [0; 5];
        joining.read_exact(&mut answer).await.map(|_| answer)
    });
    let mut came = vec![0; 1000];
    let mut len = 0;
    while !came[..len].ends_with(b"hello") {
        len += stays.read(&mut came[len..]).await.unwrap();
    }
    assert!(len > 5 && begun.elapsed() >= WITHIN);
    stays.write_all(b"there").await.unwrap();
    assert_eq!(&read.await.unwrap().unwrap(), b"there");
    let mut said = Vec::new();
    there.read_to_end(&mut said).await.unwrap();
    assert_eq!(said, b"hello", "it is let go of");
}

#[tokio::test]
async fn without_a_first_connection_a_rejection_is_its_error() {
    let (joined, mut there) = duplex(1 << 10);
    let mut joining = Joining::new(Box::new(joined), "b".into(), None);
    joining.write_all(b"hello").await.unwrap();
    there.write_all(&reject()).await.unwrap();
    for _ in 0..2 {
        let error = joining.read(&mut [0; 4]).await.unwrap_err();
        let error: &Error = error.get_ref().unwrap().downcast_ref().unwrap();
        assert!(matches!(error, Error::Rejected { .. }), "{error}");
    }
    assert!(joining.write_all(b"hello").await.is_err());
}

#[tokio::test]
async fn what_was_read_is_given_before_what_comes() {
    let (connection, mut there) = duplex(1 << 10);
    let mut joined = Joining::joined(b"read".to_vec(), Box::new(connection));
    assert!(joined.is_ready(), "there is something to be read");
    there.write_all(b" before").await.unwrap();
    let mut came = [0; 11];
    joined.read_exact(&mut came).await.unwrap();
    assert_eq!(&came, b"read before");
    joined.write_all(b"back").await.unwrap();
    there.read_exact(&mut came[..4]).await.unwrap();
    assert_eq!(&came[..4], b"back");
    drop(there);
    assert_eq!(joined.read(&mut came).await.unwrap(), 0);
}
