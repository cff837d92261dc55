//! What calls give away.

use tensorpipe_rpc::Connection;
use tensorpipe_tests::{runtime, soon};

use super::raw::{MESSAGE, Raw, message};
use super::victim::{KeeperClient, Victim, context};

#[test]
fn a_reference_is_worth_nothing_to_other_connections_and_to_an_owner_that_was_started_again() {
    const FETCH: u8 = 15;
    const FAILURE: u8 = 4;
    const NO_REFERENCE: u8 = 10;
    let mut victim = Victim::start(false);
    let third = Victim::start(false);
    runtime().block_on(async {
        let context = context(false);
        let connection = Connection::connect_with(&context, &*victim.calls)
            .await
            .unwrap();
        let client = KeeperClient::on(&connection).await.unwrap();
        let at_third = KeeperClient::connect_with(&context, &*third.calls)
            .await
            .unwrap();
        let kept = soon("a reference", client.keep(7)).await.unwrap();
        // By the numbers of calls, of which there are few.
        let url = victim.calls.clone();
        let thief = tokio::task::spawn_blocking(move || {
            let mut raw = Raw::open(&url);
            for call in 0..20u64 {
                let mut fetch = vec![FETCH, 12, 0, 0];
                fetch.extend(call.to_le_bytes());
                fetch.extend([&call.to_le_bytes()[..], &[0; 4]].concat());
                raw.send(&message(&fetch, &[], b""));
                let reply = raw.frame_of(MESSAGE).body;
                let at = 4 + u32::from_le_bytes([reply[0], reply[1], reply[2], reply[3]]) as usize;
                let (kind, code) = (reply[at], reply[at + 3]);
                assert_eq!((kind, code), (FAILURE, NO_REFERENCE), "call {call}");
            }
        });
        thief.await.unwrap();
        assert_eq!(soon("a copy", kept.fetch()).await.unwrap(), 7);
        // What is meant for a third is good once, and of this owner.
        let shared = [(); 2].map(|()| kept.share());
        let [one, other] = shared.map(|shared| async { soon("shared", shared).await.unwrap() });
        let (one, other) = (one.await, other.await);
        assert_eq!(soon("7", at_third.open(one.clone())).await.unwrap(), 7);
        let error = soon("an error", at_third.open(one)).await.unwrap_err();
        assert!(error.to_string().contains("was claimed"), "{error}");
        tokio::task::block_in_place(|| victim.starts_again());
        let error = soon("an error", at_third.open(other)).await.unwrap_err();
        assert!(error.to_string().contains("was claimed"), "{error}");
    });
}
