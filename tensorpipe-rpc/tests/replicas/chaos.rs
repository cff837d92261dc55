//! Links are cut and servers replaced at random moments under load. Every call ends, and its outcome is true about what has
//! run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use tensorpipe_rpc::{
    CallError, ServerLimits,
    replicas::{Balance, ReplicaState},
};

use super::lab::{Ledger, Site, WorkClient, client_of, replicas_of, soon, states, until};

/// What became of the calls.
#[derive(Default)]
struct Ends {
    answered: AtomicU64,
    may_have_run: AtomicU64,
    did_not_run: AtomicU64,
}

async fn one_call(client: &WorkClient, ledger: &Ledger, id: u64, ends: &Ends) {
    let idempotent = id.is_multiple_of(2);
    let result: Result<u64, CallError> = if idempotent {
        client.who(id).await
    } else {
        client.add(id, id % 4).await
    };
    match result {
        Ok(_) => {
            let runs = ledger.runs(id);
            assert!(runs == 1 || idempotent && runs > 1, "{id} ran {runs} times");
            ends.answered.fetch_add(1, Ordering::Relaxed);
        }
        Err(error) if error.may_have_run() => {
            assert!(idempotent || ledger.runs(id) <= 1, "{id}: {error}");
            ends.may_have_run.fetch_add(1, Ordering::Relaxed);
        }
        Err(error) => {
            assert_eq!(ledger.runs(id), 0, "{id}: {error}");
            ends.did_not_run.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Calls one after another, until it is over.
async fn load(
    client: WorkClient,
    ledger: Ledger,
    ids: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    ends: Arc<Ends>,
) {
    while !over.load(Ordering::SeqCst) {
        let id = ids.fetch_add(1, Ordering::Relaxed);
        soon(one_call(&client, &ledger, id, &ends)).await;
    }
}

async fn disturb(sites: &mut [Site], ledger: &Ledger, random: &mut Rng) {
    for name in 100..130 {
        let index = random.usize(..sites.len());
        let site = &mut sites[index];
        match random.u8(..4) {
            0 => {
                if let Some(server) = site.server.take() {
                    soon(server.shutdown()).await;
                }
            }
            1 if site.server.is_none() => site.replace(name, ledger).await,
            2 => site.proxy.mend(),
            _ => site.proxy.cut(),
        }
        tokio::time::sleep(Duration::from_millis(random.u64(..20))).await;
    }
}

async fn under_chaos(seed: u64, balance: Balance) {
    let ledger = Ledger::default();
    let mut limits = ServerLimits::default();
    limits.calls = 6;
    limits.drain = Duration::from_secs(5);
    let mut sites = Vec::new();
    for name in 0..3 {
        sites.push(Site::new(name, &ledger, limits.clone()).await);
    }
    let (client, replicas) = client_of(replicas_of(&sites).balance(balance)).await;
    let hurried = client.with_deadline(Duration::from_secs(2));
    let (ids, over, ends) = (Arc::default(), Arc::default(), Arc::<Ends>::default());
    let loads: Vec<_> = (0..16)
        .map(|_| {
            let (ids, over, ends) = (Arc::clone(&ids), Arc::clone(&over), ends.clone());
            tokio::spawn(load(hurried.clone(), ledger.clone(), ids, over, ends))
        })
        .collect();
    disturb(&mut sites, &ledger, &mut Rng::with_seed(seed)).await;

    // Peace: everybody is there again, and every call is answered.
    for (index, site) in sites.iter_mut().enumerate() {
        if site.server.is_none() {
            site.replace(200 + index as u64, &ledger).await;
        }
        site.proxy.mend();
    }
    until(|| states(&replicas) == [ReplicaState::Live; 3]).await;
    over.store(true, Ordering::SeqCst);
    for load in loads {
        soon(load).await.unwrap();
    }
    for id in 1 << 40..(1 << 40) + 20 {
        soon(client.add(id, 0)).await.unwrap();
    }
    let counts = [&ends.answered, &ends.may_have_run, &ends.did_not_run];
    let counts = counts.map(|count| count.load(Ordering::Relaxed));
    println!("seed {seed}: {counts:?} answered, may have run, did not run");
    assert!(counts[0] > 0);
    assert!(replicas.status().iter().all(|one| one.calls_in_flight == 0));
    drop((client, hurried, replicas));
    for site in &sites {
        let server = site.server.as_ref().unwrap();
        until(|| server.pipes().is_empty() && server.calls_in_flight() == 0).await;
        until(|| site.context.pool().stats().outstanding_bytes == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_turn() {
    for seed in 1..=4 {
        under_chaos(seed, Balance::RoundRobin).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_least_busy_first() {
    for seed in 5..=8 {
        under_chaos(seed, Balance::LeastBusy).await;
    }
}
