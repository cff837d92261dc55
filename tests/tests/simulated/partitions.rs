//! Links stall, and some of them heal.

use std::time::Instant;

use tensorpipe::channels::MptChannel;
use tensorpipe::{Error, Message, Tensor, Timeouts, testing};
use tensorpipe_rpc::CallError;

use crate::scene::{millis, pair, pair_with, tensor};

#[test]
fn a_call_through_a_partition_that_heals_before_its_deadline_succeeds() {
    testing::run(1, async |network| {
        let (_server, client) = pair(&network).await;
        network.partition("client", "server");
        let call = async {
            let scaled = client.scale(tensor(10_000), 2.0).await;
            assert_eq!(network.elapsed(), millis(4_000));
            scaled
        };
        let healing = async {
            tokio::time::sleep(millis(4_000)).await;
            network.heal("client", "server");
        };
        let (scaled, ()) = tokio::join!(call, healing);
        assert_eq!(scaled.unwrap().as_slice::<f32>().unwrap(), [2.0; 10_000]);
    });
}

/// The server hears of the call and has done it; the answer is what the partition holds.
#[test]
fn a_deadline_passes_on_the_virtual_clock() {
    let begun = Instant::now();
    testing::run(1, async |network| {
        // Nobody gives the silent link up before.
        let mut timeouts = Timeouts::default();
        timeouts.silence = None;
        let (_server, client) = pair_with(&network, timeouts).await;
        let client = client.with_deadline(millis(3_600_000));
        network.link("server", "client").stall();
        let before = network.elapsed();
        let error = client.scale(tensor(3), 2.0).await.unwrap_err();
        assert!(matches!(error, CallError::Deadline { .. }), "{error}");
        let took = network.elapsed() - before;
        assert!(
            (millis(3_600_000)..millis(3_601_000)).contains(&took),
            "{took:?}"
        );
    });
    // An hour, in what a busy machine needs.
    assert!(begun.elapsed() < millis(30_000));
}

#[test]
fn keep_alive_gives_a_stalled_link_up_after_its_silence() {
    for stalled in [("client", "server"), ("server", "client")] {
        testing::run(1, async |network| {
            let mut timeouts = Timeouts::default();
            timeouts.silence = Some(millis(180_000));
            let (server, client) = pair_with(&network, timeouts).await;
            let client = client.with_deadline(millis(3_600_000));
            network.link(stalled.0, stalled.1).stall();
            let before = network.elapsed();
            let error = client.nap(3_000_000).await.unwrap_err();
            assert!(matches!(error, CallError::Connection { .. }), "{error}");
            let took = network.elapsed() - before;
            assert!(took <= millis(180_000), "{stalled:?}: {took:?}");
            drop(server);
        });
    }
}

/// Also what only connects: it waits as if the listener were slow, and gets through.
#[test]
fn a_connection_is_made_once_the_partition_heals() {
    testing::run(1, async |network| {
        let server = network.host("server").context().build().unwrap();
        let client = network.host("client").context().build().unwrap();
        let listener = server.listen(["sim://server:0"]).await.unwrap();
        network.partition("client", "server");
        let healing = async {
            tokio::time::sleep(millis(5_000)).await;
            network.heal("client", "server");
        };
        let connecting = client.connect(listener.url());
        let (connected, accepted, ()) = tokio::join!(connecting, listener.accept(), healing);
        connected.unwrap();
        accepted.unwrap();
        assert_eq!(network.elapsed(), millis(5_000));
    });
}

/// Nobody watches over the peer, and `mpt` over its connections: chunks that are not confirmed end the pipe.
#[test]
fn chunks_of_mpt_on_a_stalled_link_end_their_pipe() {
    testing::run(1, async |network| {
        let mut timeouts = Timeouts::default();
        timeouts.silence = None;
        let context = |name| {
            let context = network.host(name).context().timeouts(timeouts.clone());
            let context = context.prefer_channel(MptChannel::new());
            context.build().unwrap()
        };
        let (server, client) = (context("server"), context("client"));
        let listener = server.listen(["sim://server:1"]).await.unwrap();
        let (pipe, accepted) = tokio::join!(client.connect(listener.url()), listener.accept());
        let (pipe, accepted) = (pipe.unwrap(), accepted.unwrap());
        let message = || Message::new("").tensor(Tensor::from(vec![1u8; 16 << 20]));
        // Its connections are opened.
        let (written, read) = tokio::join!(pipe.write(message()), accepted.read());
        written.unwrap();
        drop(read.unwrap());
        let written = pipe.write(message());
        let incoming = accepted.read_descriptor().await.unwrap();
        // The reader's go-ahead comes through, and no chunk.
        network.link("client", "server").stall();
        let before = network.elapsed();
        let _reading = incoming.read();
        let error = written.await.unwrap_err();
        assert!(matches!(error, Error::Lost { .. }), "{error}");
        let words = error.to_string();
        assert!(words.contains("no chunk was confirmed for 60s"), "{words}");
        let took = network.elapsed() - before;
        assert!((millis(60_000)..millis(70_000)).contains(&took), "{took:?}");
    });
}
