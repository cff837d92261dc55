//! References to values of another process. Either process may end.

use tensorpipe::{ConnectPolicy, Context};
use tensorpipe_rpc::{CallError, Remote};
use tensorpipe_tests::{Child, alone, eventually, runtime, say, soon};

use super::works::{Part, client, here, numbered, parent};

#[test]
fn a_chain_takes_one_round_trip_and_its_middle_never_comes_here() {
    alone(async || {
        let child = Child::start("server", &[]);
        let (client, _) = client(&child.hear("url")).await;
        let pipe = client.connection().pipe().clone();
        let before = pipe.stats();
        // It answers nothing for now: what leaves leaves without an answer.
        child.suspend();
        let mut tensor = client.make(1 << 20);
        let mut links = Vec::new();
        for _ in 0..4 {
            let next = client.double(&tensor);
            links.push(std::mem::replace(&mut tensor, next));
        }
        let bytes = client.bytes(&tensor);
        eventually("all of it has left", || pipe.unwritten() == 0).await;
        child.resume();
        assert_eq!(soon("an answer", bytes).await.unwrap(), 16 << 20);
        drop((links, tensor));
        // 31 MiB were made there.
        let stats = pipe.stats();
        let moved = stats.bytes_in - before.bytes_in + stats.bytes_borrowed + stats.bytes_copied;
        assert!(moved < 64 << 10, "{moved} bytes came");
    });
}

#[test]
fn a_third_process_takes_a_reference_and_talks_to_its_owner() {
    alone(async || {
        let mut owner = Child::start("server", &[]);
        let mut third = Child::start("server", &[]);
        let (at_owner, _) = client(&owner.hear("url")).await;
        let (at_third, _) = client(&third.hear("url")).await;
        let kept = at_owner.keep(numbered(3 << 20, 9)).await.unwrap();
        let shared = soon("a shared one", kept.share()).await.unwrap();
        drop(kept);
        assert_eq!(
            soon("a copy", at_third.open(shared.clone())).await.unwrap(),
            9
        );
        let again = soon("an error", at_third.open(shared)).await.unwrap_err();
        assert!(again.to_string().contains("was claimed"), "{again}");

        // It is held there, whatever becomes of whoever shared it.
        let part = at_owner.part(1).await.unwrap();
        let shared = part.share().await.unwrap();
        soon("held", at_third.hold(shared)).await.unwrap();
        drop(part);
        assert_eq!(at_owner.under_way().await.unwrap(), 1);
        third.kill();
        let quiet = async { while at_owner.under_way().await.unwrap() > 0 {} };
        soon("its holder's death is noticed", quiet).await;

        // An owner that is gone is an error.
        let shared = at_owner.keep(numbered(10, 9)).await.unwrap().share().await;
        owner.kill();
        let impatient = Context::builder().connect_policy(ConnectPolicy::once());
        let opened = shared.unwrap().open(&impatient.build().unwrap()).await;
        assert!(
            matches!(opened, Err(CallError::Connection { .. })),
            "{opened:?}"
        );
    });
}

/// The next stage of a pipeline gets the value from the stage that has made it.
#[test]
fn a_method_passes_on_a_reference_to_a_value_of_its_own() {
    alone(async || {
        let (first, second) = (Child::start("server", &[]), Child::start("server", &[]));
        let (client, _) = client(&first.hear("url")).await;
        let passed = client.pass_on(numbered(3 << 20, 9), second.hear("url"));
        assert_eq!(soon("its first byte", passed).await.unwrap(), 9);
    });
}

#[test]
fn an_owner_that_dies_gives_its_holders_an_error() {
    alone(async || {
        let mut child = Child::start("server", &[]);
        let (client, _) = client(&child.hear("url")).await;
        let kept = client.keep(numbered(100, 1)).await.unwrap();
        let waits = client.late_part(1, 60_000);
        let next = client.join(&waits, &waits);
        child.kill();
        for error in [
            soon("an error", kept.fetch()).await.unwrap_err(),
            soon("an error", next).await.unwrap_err(),
        ] {
            assert!(matches!(error, CallError::Connection { .. }), "{error}");
        }
    });
}

/// References that all holders together take.
const IN_ALL: usize = 100_000;

/// The role of a process that takes references, lets go of some, and is killed.
pub(crate) fn hold() {
    runtime().block_on(async {
        let (client, _) = client(&parent()).await;
        let mut held: Vec<Remote<Part>> = Vec::new();
        for round in 0u64.. {
            let more = client.parts(97).await.unwrap();
            held.extend(more);
            // Some are given to calls, some are results that nobody awaits, some are dropped.
            let joined = client.join(&held[0], &held[held.len() / 2]);
            drop(client.join(&joined, &joined));
            if round % 3 == 0 {
                drop(joined);
            } else {
                held.push(joined.await.unwrap());
            }
            let keep = held.len() * 2 / 3;
            held.drain(..held.len() - keep);
            if round == 5 {
                say("holds", held.len());
            }
        }
    });
}

#[test]
fn of_a_hundred_thousand_references_none_is_left_however_their_holders_end() {
    alone(async || {
        let (server, hall) = here().await;
        let url = server.url().to_string();
        let made = || hall.made.load(std::sync::atomic::Ordering::SeqCst);
        let mut killed = 0;
        while made() < IN_ALL {
            let mut children: Vec<_> = (0..2)
                .map(|_| Child::start("holder", &[("URL", &url)]))
                .collect();
            for (i, child) in children.iter_mut().enumerate() {
                child.hear("holds");
                assert!(server.references() > 0);
                // At no particular moment.
                let before = made();
                let further = IN_ALL / 12 * (i + 1) + killed * 137 % 500;
                eventually("more references", || made() >= before + further).await;
                child.kill();
                killed += 1;
            }
        }
        eventually("all parts are gone", || hall.under_way() == 0).await;
        eventually("all pipes are gone", || server.pipes().is_empty()).await;
        assert_eq!(server.references(), 0);
        assert_eq!(server.calls_in_flight(), 0);
        println!("{} references, {killed} holders killed", made());
        assert_eq!(server.shutdown().await, 0);
    });
}
