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

/// An hour of it passes in less than half a minute.
#[test]
fn keep_alive_gives_a_stalled_link_up_after_its_silence() {
    let (begun, hour) = (Instant::now(), millis(3_600_000));
    for stalled in [("client", "server"), ("server", "client")] {
        testing::run(1, async |network| {
            let mut timeouts = Timeouts::default();
            timeouts.silence = Some(hour);
            let (server, client) = pair_with(&network, timeouts).await;
            let client = client.with_deadline(3 * hour);
            network.link(stalled.0, stalled.1).stall();
            let before = network.elapsed();
            let error = client.nap(7_200_000).await.unwrap_err();
            assert!(matches!(error, CallError::Connection { .. }), "{error}");
            let took = network.elapsed() - before;
            assert!(took > hour / 2 && took <= hour, "{stalled:?}: {took:?}");
            drop(server);
        });
    }
    assert!(begun.elapsed() < millis(30_000));
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
