//! Peers that die.

use tensorpipe::{ConnectPolicy, testing};
use tensorpipe_rpc::CallError;

use crate::scene::{ScalerClient, millis, pair, serve, tensor};

#[test]
fn a_server_that_dies_fails_the_calls_that_it_had_and_may_come_back() {
    testing::run(1, async |network| {
        let (_server, client) = pair(&network).await;
        network.link("server", "client").delay(millis(7));
        let nap = client.nap(60_000);
        tokio::time::sleep(millis(1_000)).await;
        network.crash("server");
        let error = nap.await.unwrap_err();
        assert!(matches!(error, CallError::Connection { .. }), "{error}");
        assert!(error.may_have_run());
        assert_eq!(network.elapsed(), millis(1_007));
        let reset = "1 server -> client: reset";
        assert!(network.trace().iter().any(|event| event.what == reset));

        // Whose context was made before cannot come back.
        let again = serve(&network.host("server")).await;
        let context = network.host("client").context().build().unwrap();
        let client = ScalerClient::connect_with(&context, again.url())
            .await
            .unwrap();
        client.scale(tensor(1), 3.0).await.unwrap();
    });
}

/// It is no more there for new ones than for those that it had.
#[test]
fn a_dead_host_neither_serves_nor_calls() {
    testing::run(1, async |network| {
        let (server, client) = pair(&network).await;
        let lives = network.host("client").spawn(std::future::pending::<()>());
        let before = network.host("client").context().build().unwrap();
        network.crash("client");
        let once = ConnectPolicy::once();
        let connected = before.connect_with(server.url(), &once);
        let error = connected.await.unwrap_err();
        assert!(
            error.to_string().contains("host client has crashed"),
            "{error}"
        );
        assert!(lives.await.unwrap_err().is_cancelled());
        client.scale(tensor(1), 3.0).await.unwrap_err();
        tokio::time::sleep(millis(1)).await;
        assert_eq!(server.pipes().len(), 0);

        network.crash("server");
        let context = network.host("client").context().build().unwrap();
        let before = network.elapsed();
        let error = context.connect(server.url()).await.unwrap_err();
        assert!(
            matches!(error, tensorpipe::Error::Connect { .. }),
            "{error}"
        );
        // As long as the policy says that a listener is waited for.
        assert!(network.elapsed() - before > millis(20_000), "{error}");
    });
}
