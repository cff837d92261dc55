//! Weather: limits of all sizes, links that are slow, stall and are cut, servers that die, and clients that do a bit of everything. All of
//! it follows from a seed.
//!
//! - An act ends in time, with the right result or with an error. In calm weather it has no error.
//! - Afterwards nothing is under way, nothing is held, and whatever fits through a new connection fits through those that are left.
//! - Closing and shutting down end in time.
//! - The clock moves on: no task keeps its thread busy.
//!
//! `WEATHER=1000..2000 cargo test -p tensorpipe-tests --test weather -- --nocapture` runs other seeds than those of a usual run.
#![allow(missing_docs, reason = "a test")]

mod bounds;
#[allow(dead_code, reason = "stories of devices count more")]
#[path = "../cuda/driver.rs"]
mod driver;
mod errands;
#[allow(dead_code, reason = "others hold streams up")]
#[path = "../cuda/fixture.rs"]
mod fixture;
mod meetings;
mod memories;
mod pipes;
mod places;
mod proxy;
mod visits;
mod world;

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use tensorpipe::testing::{self, Network};
use tokio::runtime::Builder;

use self::places::{Ground, Real};
use self::world::CHILDREN;

/// The seeds of a usual run.
const SEEDS: std::ops::Range<u64> = 0..100;

/// The same in real time.
const REAL_SEEDS: std::ops::Range<u64> = 0..12;

/// In real time, for a story: otherwise a thread that spins would hang the test.
const PATIENCE: Duration = Duration::from_secs(300);

tensorpipe_tests::child! {
    "server" => world::serves(),
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// How often what has happened, by kind.
type Seen = Arc<Mutex<BTreeMap<String, u64>>>;

/// What happens in a story.
#[derive(Clone)]
struct Log {
    seen: Seen,
    network: Option<Network>,
}

impl Log {
    fn new(ground: &Ground, seen: Seen) -> Self {
        let network = match ground {
            Ground::Simulated(network) => Some(network.clone()),
            _ => None,
        };
        Self { seen, network }
    }

    fn count(&self, kind: &str) {
        *self
            .seen
            .lock()
            .unwrap()
            .entry(kind.to_owned())
            .or_default() += 1;
    }

    /// Adds a line to the network's trace.
    fn note(&self, words: String) {
        if let Some(network) = &self.network {
            network.note(words);
        }
    }
}

fn one_of<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.usize(..of.len())]
}

fn seeds(usual: std::ops::Range<u64>) -> std::ops::Range<u64> {
    let Ok(asked) = std::env::var("WEATHER") else {
        return usual;
    };
    let (from, to) = asked.split_once("..").expect("WEATHER is FROM..TO");
    from.parse().unwrap()..to.parse().unwrap()
}

/// Shows the end of the trace of a story that panics.
struct Shows(Network);

impl Drop for Shows {
    fn drop(&mut self) {
        if thread::panicking() {
            let trace = self.0.trace();
            let last = trace.len().saturating_sub(200);
            trace[last..].iter().for_each(|event| println!("{event}"));
        }
    }
}

/// Runs a story for each seed on a thread of its own, so many at a time.
fn runs(seeds: std::ops::Range<u64>, at_a_time: usize, story: fn(u64, Seen)) {
    let (seen, mut running) = (Seen::default(), VecDeque::new());
    let mut seeds = seeds.peekable();
    while seeds.peek().is_some() || !running.is_empty() {
        while running.len() < at_a_time
            && let Some(seed) = seeds.next()
        {
            let (tell, told) = mpsc::channel();
            let seen = seen.clone();
            let thread = thread::spawn(move || {
                story(seed, seen);
                let _ = tell.send(());
            });
            running.push_back((seed, thread, told));
        }
        let (seed, thread, told) = running.pop_front().unwrap();
        match told.recv_timeout(PATIENCE) {
            Ok(()) => {}
            Err(RecvTimeoutError::Timeout) => panic!("seed {seed} goes on after {PATIENCE:?}"),
            Err(RecvTimeoutError::Disconnected) => {
                let _ = thread.join();
                panic!("seed {seed} failed");
            }
        }
    }
    println!("{:?}", seen.lock().unwrap());
}

/// On the simulated network.
fn simulated(seed: u64, story: impl AsyncFnOnce(Ground)) {
    testing::run(seed, async |network: Network| {
        let _shows = Shows(network.clone());
        story(Ground::Simulated(network)).await;
    });
}

#[test]
fn acts_end_in_time_and_leave_nothing() {
    runs(seeds(SEEDS), 1, |seed, seen| {
        simulated(seed, async |ground| visits::story(ground, seed, seen).await);
    });
}

#[test]
fn pipes_carry_what_they_can_and_keep_nothing() {
    runs(seeds(SEEDS), 1, |seed, seen| {
        simulated(seed, async |ground| pipes::story(ground, seed, seen).await);
    });
}

#[test]
fn values_meet_those_who_ask_for_them() {
    runs(seeds(SEEDS), 1, |seed, seen| {
        simulated(seed, async |ground| {
            meetings::story(ground, seed, seen).await
        });
    });
}

/// Several threads, memory that is lent, and tcp through a proxy.
fn in_real_time(seed: u64, story: impl Future<Output = ()>) {
    let mut builder = match seed % 3 {
        0 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    let runtime = builder.worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(story);
}

#[test]
fn acts_in_real_time() {
    runs(seeds(REAL_SEEDS), 4, |seed, seen| {
        in_real_time(
            seed,
            visits::story(Ground::Real(Real::here(seed)), seed, seen),
        );
    });
}

/// Processes stop and go on, and are killed.
#[test]
fn acts_between_processes() {
    runs(seeds(REAL_SEEDS), 4, |seed, seen| {
        in_real_time(
            seed,
            visits::story(Ground::Real(Real::processes(seed)), seed, seen),
        );
    });
}

#[test]
fn pipes_in_real_time() {
    runs(seeds(REAL_SEEDS), 4, |seed, seen| {
        in_real_time(
            seed,
            pipes::story(Ground::Real(Real::here(seed)), seed, seen),
        );
    });
}

#[test]
fn meetings_in_real_time() {
    runs(seeds(REAL_SEEDS), 4, |seed, seen| {
        in_real_time(
            seed,
            meetings::story(Ground::Real(Real::here(seed)), seed, seen),
        );
    });
}

/// Tensors on the devices of the driver for tests, which sees what is done wrong there.
#[test]
fn acts_and_pipes_of_gpus() {
    runs(seeds(REAL_SEEDS), 4, |seed, seen| {
        let ground = || Ground::Real(Real::here(seed).with_gpus());
        in_real_time(seed, async move {
            pipes::story(ground(), seed, seen.clone()).await;
            visits::story(ground(), seed, seen).await;
        });
    });
    driver::nothing_went_wrong();
}

/// The same where each server is a process, which may be killed with what it has lent or borrowed.
#[test]
fn acts_of_gpus_between_processes() {
    runs(seeds(REAL_SEEDS), 4, |seed, seen| {
        let ground = Ground::Real(Real::processes(seed).with_gpus());
        in_real_time(seed, visits::story(ground, seed, seen));
    });
    driver::nothing_went_wrong();
    let children = CHILDREN.lock().unwrap().take();
    assert!(children.unwrap().nothing_went_wrong() > 0);
}
