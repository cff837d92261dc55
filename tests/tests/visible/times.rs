//! Where the time of a call went, and of which calls that is not known.

use std::time::Duration;

use tensorpipe_rpc::observe::ServerTimes;
use tensorpipe_rpc::{CallError, CallStats};

use super::scene::{client, of_heap, of_pool, runtime, soon};

#[test]
fn the_handlers_time_is_the_handlers_and_the_parts_make_the_whole() {
    runtime().block_on(async {
        for way in ["defaults", "basic"] {
            let (client, _context, _server) = client(way).await;
            let (slept, stats) = soon("a call", client.with_stats().sleep(30).stats()).await;
            assert_eq!(slept.unwrap(), 30);
            let server = stats.server.unwrap();
            assert!(server.handling >= Duration::from_millis(30), "{stats:?}");
            assert_eq!(stats.handling(), Some(server.handling));
            assert!(stats.round_trip >= server.handling + server.waiting);
            let parts = stats.queue + server.waiting + server.handling + stats.wire().unwrap();
            // More, where the server was at it before this thread, interrupted, noted that the call had left.
            assert!(parts >= stats.round_trip, "{stats:?}");
            assert!(stats.queue > Duration::ZERO);
        }
    });
}

#[test]
fn an_error_of_the_methods_own_has_figures_as_a_result_has() {
    runtime().block_on(async {
        let (client, _context, _server) = client("basic").await;
        let (slept, stats) = soon("a call", client.with_stats().sleep(0).stats()).await;
        assert!(matches!(slept, Err(CallError::Service(_))));
        assert_eq!(stats.bytes_copied(), Some(0));
        assert!(stats.wire().is_some());
    });
}

#[test]
fn of_a_call_that_was_not_answered_only_this_side_is_known() {
    runtime().block_on(async {
        let (client, _context, mut server) = client("basic").await;
        let asked = client.with_stats();
        let brief = asked.with_deadline(Duration::from_millis(20));
        let (late, stats) = soon("a call", brief.sleep(5000).stats()).await;
        assert!(matches!(late, Err(CallError::Deadline { .. })));
        assert!(stats.round_trip >= Duration::from_millis(20));
        // Both ends look at the time: the server's answer that it is up may be here first, with figures.
        let known = |server: ServerTimes| server.handling <= stats.round_trip;
        assert!(stats.server.is_none_or(known), "{stats:?}");
        let call = asked.sleep(5000).stats();
        server.kill();
        let (cut, stats) = soon("a call", call).await;
        assert!(matches!(cut, Err(CallError::Connection { .. })));
        assert!(stats.round_trip > Duration::ZERO);
        assert_eq!((stats.server, stats.bytes_copied()), (None, None));
    });
}

#[test]
fn a_call_that_failed_there_has_figures_until_it_did() {
    runtime().block_on(async {
        let (client, context, _server) = client("defaults").await;
        let asked = client.with_stats();
        let (panicked, stats) = soon("a call", asked.panic().stats()).await;
        assert!(matches!(panicked, Err(CallError::Panicked(_))));
        assert!(stats.round_trip > Duration::ZERO && stats.request.bytes > 0);
        assert!(stats.server.is_some() && stats.wire().is_some());
        assert_eq!(stats.bytes_copied(), Some(0));
        let [attempt] = &stats.attempts[..] else {
            panic!("{stats:?}");
        };
        assert!(
            attempt
                .error
                .as_ref()
                .unwrap()
                .contains("as it was asked to")
        );
        assert_eq!(attempt.took, stats.round_trip);
        // What it was given went its way all the same.
        let ours = of_pool(context.pool(), 8 << 20);
        let (refused, stats) = soon("a call", asked.refuse(&ours).stats()).await;
        assert!(matches!(refused, Err(CallError::Service(_))));
        assert_eq!(
            (&*stats.request.channels[0], stats.bytes_copied()),
            ("lease", Some(0))
        );
    });
}

#[test]
fn of_a_call_that_nobody_asked_about_nothing_is_known() {
    runtime().block_on(async {
        let (client, _context, _server) = client("basic").await;
        let (taken, stats) = soon("a call", client.take(of_heap(8)).stats()).await;
        assert_eq!(taken.unwrap(), 8);
        assert_eq!(stats, CallStats::default());
        assert_eq!(stats.bytes_copied(), None, "not asked is not zero");
    });
}
