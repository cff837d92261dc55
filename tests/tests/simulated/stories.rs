//! What a story may do, and what its network shows of it.

use std::sync::Arc;
use std::time::Duration;

use tensorpipe::testing::{self, Network};
use tensorpipe::transports::{TcpTransport, Transport};
use tensorpipe::{Error, Message};
use tensorpipe_tests::pair;

use crate::scene::millis;

#[test]
fn a_network_that_outlives_its_story_still_knows_how_long_that_was() {
    let network = testing::run(1, async |network| {
        tokio::time::sleep(millis(3000)).await;
        network.note("the end");
        tokio::time::sleep(millis(2000)).await;
        assert_eq!(network.elapsed(), millis(5000));
        network
    });
    network.note("afterwards");
    assert!(network.elapsed() >= millis(5000));
    assert!(network.trace().is_sorted_by_key(|event| event.at));
}

#[test]
fn a_link_may_delay_for_ever() {
    testing::run(1, async |network| {
        let context = |name| network.host(name).context().build();
        let (client, server) = (context("client")?, context("server")?);
        let (pipe, accepted) = pair(&client, &server, "sim://server:1").await;
        network
            .link("client", "server")
            .delay(Duration::MAX)
            .jitter(Duration::MAX);
        pipe.send(Message::new("never"))?;
        let heard = tokio::time::timeout(Duration::from_secs(3600), accepted.read()).await;
        // Its keep-alive gives the link up in the end.
        assert!(!matches!(heard, Ok(Ok(_))));
        Ok::<_, Error>(())
    })
    .unwrap();
}

/// It bypasses the network, and works in real time.
#[test]
fn a_context_of_a_host_may_have_another_transport() {
    testing::run(1, async |network| {
        let tcp: Arc<dyn Transport> = Arc::new(TcpTransport::new());
        let context = network.host("server").context().transports([tcp]).build()?;
        let listener = context.listen(["tcp://127.0.0.1:0"]).await?;
        // The clock does not wait for the system: this may time out.
        let _ = context.connect(listener.url()).await;
        Ok::<_, Error>(())
    })
    .unwrap();
}

/// On a runtime of several threads a task begins while its `spawn` is still under way.
#[test]
fn a_host_that_has_crashed_starts_nothing() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let network = Network::new(1);
    let host = network.host("host");
    network.crash("host");
    runtime.block_on(async {
        for _ in 0..1000 {
            let (starts, started) = tokio::sync::oneshot::channel();
            let task = host.spawn(async move { starts.send(()) });
            assert!(task.await.unwrap_err().is_cancelled());
            assert!(started.await.is_err(), "it has started");
        }
    });
}
