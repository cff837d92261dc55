//! The runtime on which replicas were connected ends before they do, or nobody runs it.

use std::time::Duration;

use tensorpipe_rpc::ConnectError;
use tokio::runtime::{Builder, Runtime};

use super::lab::{
    Ledger, WorkClient, all_gone, assert_unavailable, client_of, replicas_of, sites, soon,
};

#[test]
fn calls_after_it_are_errors() {
    let (first, other) = (Runtime::new().unwrap(), Runtime::new().unwrap());
    let ledger = Ledger::default();
    let sites = other.block_on(sites(2, &ledger));
    let (client, replicas) = first.block_on(client_of(replicas_of(&sites)));
    drop(first);
    for deadline in [Duration::from_secs(60), Duration::MAX] {
        let call = async { client.with_deadline(deadline).who(1).await };
        let error = other.block_on(soon(call)).unwrap_err();
        assert_unavailable(&error, false);
        assert!(error.to_string().contains("connect anew"), "{error}");
    }
    let asked = other.block_on(async { soon(WorkClient::on(&replicas)).await });
    assert!(
        matches!(asked, Err(ConnectError::Unavailable(_))),
        "{asked:?}"
    );
    assert_eq!(ledger.runs(1), 0);
}

#[test]
fn calls_that_wait_for_a_server_end_with_it() {
    let (first, other) = (Runtime::new().unwrap(), Runtime::new().unwrap());
    let ledger = Ledger::default();
    let (_sites, client, _replicas) = first.block_on(all_gone(2, &ledger));
    let calls = [Duration::from_secs(60), Duration::MAX].map(|deadline| {
        let client = client.with_deadline(deadline);
        let call = other.spawn(async move { client.who(1).await });
        let begun = async { tokio::time::sleep(Duration::from_millis(50)).await };
        other.block_on(begun);
        assert!(!call.is_finished());
        call
    });
    drop(first);
    for call in calls {
        let error = other.block_on(async { soon(call).await.unwrap() });
        assert_unavailable(&error.unwrap_err(), false);
    }
}

#[test]
fn a_call_that_waits_for_a_server_has_its_deadline_while_nobody_runs_it() {
    let idle = Builder::new_current_thread().enable_all().build().unwrap();
    let ledger = Ledger::default();
    let (_sites, client, _replicas) = idle.block_on(all_gone(2, &ledger));
    let client = client.with_deadline(Duration::from_millis(200));
    let other = Runtime::new().unwrap();
    let call = other.block_on(async { soon(client.who(1)).await });
    assert_unavailable(&call.unwrap_err(), false);
}
