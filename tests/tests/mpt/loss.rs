//! A connection is lost with chunks on it: the other connections carry them again. If none is left, the pipe ends.

use std::time::Duration;

use tensorpipe::transports::TcpTransport;
use tensorpipe::{Error, Message, Tensor};
use tensorpipe_tests::eventually;

use crate::proxy::Proxy;
use crate::scene::{Pair, carry, numbers, pair, soon};

const MIB: usize = 1 << 20;

/// Far more than is on its way at once.
const LEN: usize = 64 * MIB;

/// A tensor of [`LEN`] bytes over two connections so slow that it takes seconds, to which `happens` once both carry it: both ends' outcomes.
async fn large(
    pair: &Pair,
    proxy: &Proxy,
    happens: impl FnOnce(),
) -> (Result<(), Error>, Result<Message, Error>) {
    let tensor = Tensor::from(numbers(LEN));
    let written = pair.client.write(Message::new("").tensor(tensor));
    let read = pair.server.read_descriptor().await.unwrap().read();
    eventually("the first chunks", || {
        proxy.seen() == 3 && pair.sent().iter().all(|sent| *sent > 1)
    })
    .await;
    happens();
    soon("the end", async { tokio::join!(written, read) }).await
}

async fn slow(proxy: &Proxy) -> Pair {
    let slow = TcpTransport::paced(|number| (number > 0).then_some(32 << 20));
    pair(2, slow, |port| proxy.start(port)).await
}

#[tokio::test]
async fn where_one_of_two_is_lost_the_other_carries_what_was_on_it() {
    for lose in [Proxy::cut, Proxy::stall] {
        let proxy = Proxy::default();
        let pair = slow(&proxy).await;
        let (written, read) = large(&pair, &proxy, || lose(&proxy, 2)).await;
        written.unwrap();
        let message = read.unwrap();
        let found = message.tensors[0].tensor.as_slice::<u64>().unwrap();
        assert!(found == numbers(LEN), "it arrived otherwise");
        let sent = pair.sent();
        let (least, most) = (sent[0].min(sent[1]), sent[0].max(sent[1]));
        assert!(2 * least < most && least + most > 128, "{sent:?}");
        carry(&pair.client, &pair.server, 8 * MIB).await;
        carry(&pair.server, &pair.client, 8 * MIB).await;
    }
}

/// The tensor waits for a connection that is still being made, instead of ending the pipe.
#[tokio::test]
async fn where_the_first_is_lost_before_the_second_has_joined_the_second_carries_all() {
    for comes in [true, false] {
        let proxy = Proxy::with_late(2);
        let pair = slow(&proxy).await;
        let tensor = Tensor::from(numbers(LEN));
        let written = pair.client.write(Message::new("").tensor(tensor));
        let read = pair.server.read_descriptor().await.unwrap().read();
        eventually("the first chunks", || {
            proxy.seen() == 3 && pair.sent().iter().any(|sent| *sent > 1)
        })
        .await;
        proxy.cut(1);
        tokio::time::sleep(Duration::from_millis(500)).await;
        match comes {
            true => proxy.goes_on(2),
            false => proxy.cut(2),
        }
        let ends = async { tokio::join!(written, read) };
        let (written, read) = soon("the end", ends).await;
        if comes {
            written.unwrap();
            let message = read.unwrap();
            let found = message.tensors[0].tensor.as_slice::<u64>().unwrap();
            assert!(found == numbers(LEN), "it arrived otherwise");
            carry(&pair.server, &pair.client, 8 * MIB).await;
        } else {
            let (written, read) = (written.unwrap_err(), read.unwrap_err());
            assert!(written.ends_pipe() && read.ends_pipe());
        }
    }
}

#[tokio::test]
async fn what_comes_late_after_all_changes_nothing() {
    let proxy = Proxy::default();
    let pair = slow(&proxy).await;
    let (written, read) = large(&pair, &proxy, || proxy.stall(1)).await;
    let before = pair.sent();
    written.unwrap();
    let found = read.unwrap();
    proxy.goes_on(1);
    // It gets rid of what came late, and carries again.
    soon("chunks on each", async {
        while pair
            .sent()
            .iter()
            .zip(&before)
            .any(|(now, then)| *now < then + 4)
        {
            carry(&pair.client, &pair.server, 8 * MIB).await;
        }
    })
    .await;
    let found = found.tensors[0].tensor.as_slice::<u64>().unwrap();
    assert!(found == numbers(LEN), "it was written to later");
}

#[tokio::test]
async fn where_all_are_lost_the_pipe_ends() {
    let proxy = Proxy::default();
    let pair = slow(&proxy).await;
    let (written, read) = large(&pair, &proxy, || {
        proxy.cut(1);
        proxy.cut(2);
    })
    .await;
    let (written, read) = (written.unwrap_err(), read.unwrap_err());
    assert!(written.ends_pipe() && read.ends_pipe());
    // Whoever sees it first says what it was; the other sees the pipe end.
    let said = format!("{written} / {read}");
    assert!(said.contains("of channel mpt"), "{said}");
    let later = pair.client.write(Message::new("later")).await;
    assert!(matches!(later, Err(Error::Lost { .. })), "{later:?}");
}
