//! Where the time of a call went, and for which calls that is unknown.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tensorpipe_rpc::observe::ServerTimes;
use tensorpipe_rpc::{CallError, CallStats};
use tokio::runtime::Builder;

use super::scene::{client, of_heap, of_pool, runtime, soon};

#[test]
fn the_handlers_time_is_the_handlers_and_the_parts_make_the_whole() {
    const SLEEP: Duration = Duration::from_millis(30);
    runtime().block_on(async {
        for way in ["defaults", "basic"] {
            let (client, _context, _server) = client(way).await;
            for _ in 0..5 {
                let begun = Instant::now();
                let (slept, stats) = soon("a call", client.with_stats().sleep(30).stats()).await;
                let took = begun.elapsed();
                assert_eq!(slept.unwrap(), 30);
                let server = stats.server.unwrap();
                assert_eq!(stats.handling(), Some(server.handling));
                // One inside the other.
                let there = server.waiting + server.handling + server.sending;
                let nested = [SLEEP, server.handling, there, stats.round_trip, took];
                assert!(nested.is_sorted(), "{nested:?}: {stats:?}");
                assert!(stats.queue < took);
                let parts = stats.queue + there + stats.wire().unwrap();
                assert_eq!(parts, stats.round_trip, "{stats:?}");
            }
        }
    });
}

#[test]
fn the_time_that_an_answer_waits_behind_others_is_not_on_the_way() {
    const AWAY: Duration = Duration::from_millis(600);
    // Nobody else reads.
    let alone = Builder::new_current_thread().enable_all().build().unwrap();
    alone.block_on(async {
        let (client, _context, _server) = client("defaults").await;
        let client = client.with_stats();
        // More than is taken by what is between the two, while nobody reads.
        let calls: Vec<_> = (0..120).map(|_| client.spell(30_000).stats()).collect();
        std::thread::sleep(AWAY);
        let all = soon("the answers", join_all(calls)).await;
        let texts = all.iter().map(|(text, _)| text.as_ref().unwrap());
        assert!(texts.into_iter().all(|text| text.len() == 30_000));
        let at_once = |(_, stats): &(_, CallStats)| stats.server.unwrap().sending < AWAY / 2;
        assert!(all.iter().any(at_once), "some found room");
        // A server reads no further calls while so many answers wait: the last ones may not have come to it before.
        let waited = |stats: &&CallStats| stats.server.unwrap().sending > AWAY / 2;
        let stats = all.iter().map(|(_, stats)| stats).find(waited);
        let stats = stats.expect("an answer that waited");
        assert!(stats.wire().unwrap() < AWAY / 2, "{stats:?}");
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
        let begun = Instant::now();
        let (late, stats) = soon("a call", brief.sleep(5000).stats()).await;
        let took = begun.elapsed();
        assert!(matches!(late, Err(CallError::Deadline { .. })));
        assert!((Duration::from_millis(20)..=took).contains(&stats.round_trip));
        // Both ends look at the time: the server's answer that it is up may be here first, with figures.
        let known = |server: ServerTimes| server.handling <= stats.round_trip;
        assert!(stats.server.is_none_or(known), "{stats:?}");
        let begun = Instant::now();
        let call = asked.sleep(5000).stats();
        server.kill();
        let (cut, stats) = soon("a call", call).await;
        let took = begun.elapsed();
        assert!(matches!(cut, Err(CallError::Connection { .. })));
        assert!(!stats.round_trip.is_zero() && stats.round_trip <= took);
        assert_eq!((stats.server, stats.bytes_copied()), (None, None));
    });
}

#[test]
fn a_call_that_failed_there_has_figures_until_it_did() {
    runtime().block_on(async {
        let (client, context, _server) = client("defaults").await;
        let asked = client.with_stats();
        let (panicked, stats) = soon("a call", asked.panic().stats()).await;
        assert!(matches!(panicked, Err(CallError::Panicked { .. })));
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
        assert!(!stats.is_measured());
        assert_eq!(stats.bytes_copied(), None, "not asked is not zero");
    });
}
