//! Servers that are reachable but unhealthy: they answer nothing, lack a method, cannot send the result of a call that they ran,
//! or are too busy.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tensorpipe::device::DeviceKind;
use tensorpipe::{Context, Device, Tensor};
use tensorpipe_rpc::{
    CallError, ConnectError, DeviceMap, Replicas, Server, ServerLimits,
    replicas::{Backoff, ReplicaState, RetryBudget},
    tensor_service,
};

use super::lab::{
    Ledger, Site, WorkClient, client_of, quick, replicas_of, sites, soon, states, tcp, until,
};
use super::suitable::{OtherWork, other};

/// Takes every pipe, hears what is asked first, and lets go of it after a while.
async fn never_answers(context: &Context) -> String {
    let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    let url = listener.url().to_string();
    tokio::spawn(async move {
        while let Ok(pipe) = listener.accept().await {
            tokio::spawn(async move {
                let _ = pipe.read().await;
                tokio::time::sleep(4 * quick().longest).await;
            });
        }
    });
    url
}

#[tokio::test]
async fn one_that_takes_pipes_and_answers_nothing_is_given_up() {
    let context = tcp();
    let url = never_answers(&context).await;
    let builder = Replicas::builder().context(&context).url(url);
    let replicas = builder.backoff(quick()).connect_attempts(3).connect().await;
    let replicas = replicas.unwrap();
    // However long each pipe lasted, nothing has worked on it.
    let error = soon(WorkClient::on(&replicas)).await.unwrap_err();
    assert!(matches!(error, ConnectError::Unavailable(_)), "{error:?}");
    assert_eq!(states(&replicas), [ReplicaState::GivenUp]);
}

#[tokio::test]
async fn a_method_that_one_lacks_is_called_elsewhere_whatever_the_budget() {
    let ledger = Ledger::default();
    let mut sites = sites(2, &ledger).await;
    soon(sites[0].server.take().unwrap().shutdown()).await;
    let older = other::older::WorkService::new(OtherWork);
    let _older = sites[0].serve(older).await;
    let budget = RetryBudget {
        share: 0.0,
        reserve: 2,
    };
    let (client, _replicas) = client_of(replicas_of(&sites).retry_budget(budget)).await;
    // That is for servers that have too much to do.
    for id in 0..20 {
        assert_eq!(soon(client.add(id, 0)).await.unwrap(), 1);
        assert_eq!(ledger.runs(id), 1);
    }
}

/// One server is reached by `xth`, and the other over sockets alone.
#[tokio::test]
async fn a_call_that_one_cannot_have_as_required_is_made_elsewhere_whatever_the_budget() {
    let ledger = Ledger::default();
    let far = Site::new(0, &ledger, ServerLimits::default()).await;
    let here = Context::new();
    let worker = super::lab::Worker {
        name: 1,
        ledger: ledger.clone(),
    };
    let near = Server::builder().context(&here);
    let near = near.service(super::lab::WorkService::new(worker));
    let near = near.listen("memory://as required").await.unwrap();
    let urls = [far.proxy.url.clone(), near.url().to_string()];
    let builder = Replicas::builder().context(&here).urls(urls);
    let builder = builder.retry_budget(RetryBudget {
        share: 0.0,
        reserve: 0,
    });
    let (client, _replicas) = client_of(builder.backoff(quick())).await;
    let strict = client.with_requirement(["xth"]);
    let tensor = Tensor::from(vec![1u8; 300_000]);
    for id in 0..20 {
        ledger.begin(id);
        let lengths = soon(strict.large(id, String::new(), &tensor)).await;
        assert_eq!(lengths.unwrap(), (0, 300_000));
        assert_eq!(ledger.runs(id), 2);
    }
}

#[tokio::test]
async fn what_has_run_is_not_run_again_because_its_references_were_too_many() {
    let ledger = Ledger::default();
    let mut limits = ServerLimits::default();
    limits.references = 1;
    let sites = [
        Site::new(0, &ledger, limits.clone()).await,
        Site::new(1, &ledger, limits).await,
    ];
    let (client, _replicas) = client_of(replicas_of(&sites)).await;
    let error = soon(client.gives(1)).await.unwrap_err();
    assert!(matches!(error, CallError::BadReply(_)), "{error:?}");
    assert!(error.may_have_run() && error.to_string().contains("limit"));
    assert_eq!(ledger.runs(1), 1);
}

/// The server drops each pipe before it has answered a call.
#[tokio::test]
async fn a_call_that_this_end_refuses_does_not_show_that_a_server_works() {
    let ledger = Ledger::default();
    let sites = sites(1, &ledger).await;
    let builder = replicas_of(&sites).connect_attempts(3).backoff(Backoff {
        longest: Duration::from_secs(60),
        ..quick()
    });
    let (client, replicas) = client_of(builder).await;
    let nowhere = DeviceMap::new([(Device::CPU, Device::new(DeviceKind::new("npu"), 0))]);
    let placed = client.with_device_map(nowhere.unwrap());
    let server = sites[0].server.as_ref().unwrap();
    let refused = async {
        while states(&replicas) != [ReplicaState::GivenUp] {
            if states(&replicas) == [ReplicaState::Live] && !server.pipes().is_empty() {
                let call = placed.with_deadline(Duration::from_secs(1));
                let tensor = Tensor::from(vec![1u8; 8]);
                let error = call.large(1, String::new(), &tensor).await.unwrap_err();
                assert!(!error.may_have_run(), "{error:?}");
                for pipe in server.pipes() {
                    pipe.close().await.unwrap();
                }
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    soon(refused).await;
    assert_eq!(ledger.runs(1), 0);
}

#[tensor_service]
trait Other {
    async fn hello(&self) -> u64;
}

struct Nine;

impl Other for Nine {
    async fn hello(&self) -> u64 {
        9
    }
}

#[tokio::test]
async fn one_with_too_much_to_do_to_be_asked_goes_on_with_what_it_has() {
    let ledger = Ledger::default();
    let mut limits = ServerLimits::default();
    limits.calls_per_connection = 1;
    let context = tcp();
    let worker = super::lab::Worker {
        name: 0,
        ledger: ledger.clone(),
    };
    let server = Server::builder()
        .context(&context)
        .limits(limits)
        .service(super::lab::WorkService::new(worker))
        .service(OtherService::new(Nine))
        .listen("tcp://127.0.0.1:0")
        .await
        .unwrap();
    let proxy = super::proxy::Proxy::to(server.url().as_ref()).await;
    let builder = Replicas::builder().context(&context).url(&proxy.url);
    let (client, replicas) = client_of(builder.backoff(quick())).await;
    let held = client.once(1);
    until(|| ledger.runs(1) == 1).await;
    // Another client of another service: the answer has to wait until there is room.
    let asked = replicas.clone();
    let other = tokio::spawn(async move { OtherClient::on(&asked).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(states(&replicas), [ReplicaState::Live]);
    assert!(!other.is_finished());
    drop(held);
    let other = soon(other).await.unwrap().unwrap();
    assert_eq!(soon(other.hello()).await.unwrap(), 9);
    assert_eq!(proxy.came.load(Ordering::SeqCst), 1, "on the pipe it has");
}

/// How long its pipe was idle before says nothing about it.
#[tokio::test]
async fn a_replica_that_was_well_for_long_is_tried_again_after_its_first_hang() {
    let ledger = Ledger::default();
    let sites = sites(2, &ledger).await;
    let patience = Duration::from_millis(300);
    let builder = replicas_of(&sites).unanswered(1).give_up_after(patience);
    let (client, replicas) = client_of(builder.backoff(quick())).await;
    until(|| states(&replicas) == [ReplicaState::Live; 2]).await;
    tokio::time::sleep(2 * patience).await;
    let client = client.with_deadline(Duration::from_millis(50));
    let late = soon(client.once(1)).await.unwrap_err();
    assert!(matches!(late, CallError::Deadline { .. }), "{late:?}");
    until(|| states(&replicas) != [ReplicaState::Live; 2]).await;
    until(|| states(&replicas) == [ReplicaState::Live; 2]).await;
}
