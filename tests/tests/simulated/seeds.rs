//! A seed gives a run, and gives it again.

use tensorpipe::testing::{self, Event};
use tensorpipe_rpc::CallError;

use crate::scene::{ScalerClient, millis, serve, tensor};

/// Several clients on links with jitter, one that is cut and connects anew, and a partition.
fn story(seed: u64) -> Vec<Event> {
    testing::run(seed, async |network| {
        let host = network.host("server");
        let url = host.url(1);
        let mut clients = Vec::new();
        for name in ["a", "b", "c"] {
            let at = network.host(name);
            for (from, to) in [(name, "server"), ("server", name)] {
                network.link(from, to).delay(millis(3)).jitter(millis(40));
            }
            let (network, url) = (network.clone(), url.clone());
            clients.push(at.clone().spawn(async move {
                let context = at.context().build().unwrap();
                let connect = || ScalerClient::connect_with(&context, &url);
                let mut client = connect().await.unwrap();
                for round in 0..10u16 {
                    match client.scale(tensor(usize::from(round) * 500), 2.0).await {
                        Ok(_) => network.note(format!("{}: round {round}", at.name())),
                        Err(CallError::Connection { .. }) => client = connect().await.unwrap(),
                        Err(other) => panic!("{other}"),
                    }
                }
            }));
        }
        // They have tried in vain, and paused by chance.
        tokio::time::sleep(millis(300)).await;
        let server = serve(&host).await;
        tokio::time::sleep(millis(400)).await;
        network.link("a", "server").cut_after(10_000);
        network.partition("b", "server");
        tokio::time::sleep(millis(2_000)).await;
        network.heal("b", "server");
        for client in clients {
            client.await.unwrap();
        }
        server.shutdown().await;
        network.trace()
    })
}

#[test]
fn the_same_seed_gives_the_same_trace_and_another_another() {
    let first = story(7);
    assert!(first.len() > 100, "{first:#?}");
    assert!(first.iter().any(|event| event.what.ends_with("is cut")));
    for _ in 0..3 {
        let again = story(7);
        for (first, again) in first.iter().zip(&again) {
            assert_eq!(first, again);
        }
        assert_eq!(first.len(), again.len());
    }
    let other = story(8);
    assert_ne!(first, other);
    // Connections overtake each other: clients end their rounds in another order.
    let order = |trace: &[Event]| -> Vec<String> {
        let notes = trace.iter().filter(|event| event.what.contains("round"));
        notes.map(|event| event.what.clone()).collect()
    };
    assert_ne!(order(&first), order(&other));
}
