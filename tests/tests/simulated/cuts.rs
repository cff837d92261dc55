//! A connection is cut after each of its bytes in turn: both ends hear of it, and neither hangs.

use tensorpipe::testing;
use tensorpipe::{ConnectPolicy, Error};
use tensorpipe_rpc::{CallError, ConnectError};

use crate::scene::{RUNS, ScalerClient, millis, pair, serve, tensor};

/// From the first byte to the first one that is not reached.
const BYTES: std::ops::Range<u64> = 0..400;

const WAYS: [(&str, &str); 2] = [("client", "server"), ("server", "client")];

#[test]
fn a_handshake_that_is_cut_behind_any_byte_is_an_error_at_its_connector() {
    for (way, cut) in WAYS
        .into_iter()
        .flat_map(|way| BYTES.map(move |cut| (way, cut)))
    {
        let connected = testing::run(cut, async |network| {
            let server = serve(&network.host("server")).await;
            let context = network.host("client").context();
            let context = context.connect_policy(ConnectPolicy::once());
            let context = context.build().unwrap();
            network.link(way.0, way.1).delay(millis(1)).cut_after(cut);
            let connected = ScalerClient::connect_with(&context, server.url()).await;
            let took = network.elapsed();
            assert!(took < millis(100), "{way:?} {cut}: {took:?}");
            // Nothing is left at the server, either.
            if connected.is_err() {
                tokio::time::sleep(millis(10)).await;
                assert_eq!(server.pipes().len(), 0, "{way:?} {cut}");
            }
            connected.map(|_| ())
        });
        match connected {
            Ok(()) => assert!(cut > 100, "{way:?} {cut}: what was cut?"),
            Err(ConnectError::Pipe(Error::Connect { source, .. })) => {
                assert!(
                    matches!(*source, Error::Lost { .. }),
                    "{way:?} {cut}: {source}"
                );
            }
            Err(ConnectError::Pipe(Error::Lost { .. }) | ConnectError::Call(_)) => {}
            Err(other) => panic!("{way:?} {cut}: {other}"),
        }
    }
}

#[test]
fn a_call_that_is_cut_behind_any_byte_fails_or_has_its_answer() {
    let mut fails = 0;
    for (way, cut) in WAYS
        .into_iter()
        .flat_map(|way| BYTES.map(move |cut| (way, cut)))
    {
        testing::run(cut, async |network| {
            RUNS.set(0);
            let (server, client) = pair(&network).await;
            network.link(way.0, way.1).delay(millis(1)).cut_after(cut);
            let called = client.scale_once(tensor(20), 2.0).await;
            match called {
                Ok(scaled) => assert_eq!(scaled.as_slice::<f32>().unwrap(), [2.0; 20]),
                Err(CallError::Connection { may_have_run, .. }) => {
                    tokio::time::sleep(millis(10)).await;
                    assert!(may_have_run || RUNS.get() == 0, "{way:?} {cut}");
                    // All of the call was behind its first byte.
                    assert!(cut > 0 || way == WAYS[1] || RUNS.get() == 0);
                    fails += 1;
                }
                Err(other) => panic!("{way:?} {cut}: {other}"),
            }
            assert!(RUNS.get() <= 1, "{way:?} {cut}");
            // Of the last bytes the client's own farewell may be what is cut.
            drop(client);
            tokio::time::sleep(millis(20_000)).await;
            assert_eq!(server.pipes().len(), 0, "{way:?} {cut}");
        });
    }
    assert!(fails > 200, "{fails}");
}
