//! Calls that wait for a replica, and the tasks that keep the replicas.
//!
//! A call waits in the table's real `wait_pick`, without a deadline. The tasks are rewritten here, with the steps in the order of the real
//! `keeper`, which needs a network and a clock.

use loom::future::block_on;
use loom::thread;

use super::balance::Balance;
use super::builder::Options;
use super::replica::Live;
use super::table::{Pick, Shared};
use crate::check;
use crate::client::connection::Connection;
use crate::error::{ConnectError, ReplicaError};
use crate::schema::Schema;
use crate::sync::Arc;

static SERVICE: Schema = Schema;

fn set(replicas: usize) -> Arc<Shared> {
    balanced(replicas, Balance::RoundRobin)
}

fn balanced(replicas: usize, balance: Balance) -> Arc<Shared> {
    let urls = (0..replicas).map(|number| format!("memory://{number}").into());
    let urls: Vec<_> = urls.collect();
    let options = Options {
        balance,
        ..Options::default()
    };
    let shared = Shared::new(options);
    shared.change(&urls).unwrap();
    Arc::new(shared)
}

/// A set of one connected replica, which has already said that it has the service.
fn served() -> (Arc<Shared>, Arc<Live>) {
    let shared = set(1);
    shared.service(&SERVICE);
    let live = comes(&shared, 0);
    ask(&shared, 0, &live);
    (shared, live)
}

/// The steps of a replica's task after it has connected.
fn comes(shared: &Shared, index: usize) -> Arc<Live> {
    shared.connecting(index);
    let live = Live::new(Connection::default(), false);
    shared.connected(index, &live);
    live
}

/// The task asks the server for each service that clients want. Returns whether it asked.
fn ask(shared: &Shared, index: usize, live: &Arc<Live>) -> bool {
    let mut asked = false;
    while shared.next_unbound(index, live).is_some() {
        shared.record_bind(index, live, Ok(7));
        asked = true;
    }
    asked
}

/// A task whose replica connects and is asked once for the services that clients want.
fn keep(shared: &Arc<Shared>) -> thread::JoinHandle<Arc<Live>> {
    let shared = shared.clone();
    thread::spawn(move || {
        let live = comes(&shared, 0);
        ask(&shared, 0, &live);
        live
    })
}

/// A task whose replica connects, and that sleeps until a client wants a service.
fn keep_until_asked(shared: &Arc<Shared>) -> thread::JoinHandle<()> {
    let shared = shared.clone();
    thread::spawn(move || {
        let live = comes(&shared, 0);
        while !ask(&shared, 0, &live) {
            sleep(&shared, 0);
        }
    })
}

/// The task sleeps until it is notified.
fn sleep(shared: &Shared, index: usize) {
    let (_, wake) = shared.url(index).unwrap();
    block_on(wake.notified());
}

/// A call without a deadline. loom reports a call that would wait for ever.
fn call(shared: &Shared) -> Pick {
    block_on(shared.wait_pick(0, &[]))
}

/// Whether the call goes to a replica, with the service number that the server said.
fn is_here(picked: &Pick) -> bool {
    matches!(picked, Pick::Replica(picked) if picked.service == 7)
}

/// A call waits while a replica connects and its server says that it has the service.
pub fn a_call_hears_of_a_replica_that_comes() {
    check(None, || {
        let shared = set(1);
        shared.service(&SERVICE);
        let task = keep(&shared);
        assert!(is_here(&call(&shared)));
        task.join().unwrap();
    });
}

/// A call waits while one replica leaves, and another one joins and connects.
pub fn a_call_hears_of_a_replica_that_joins() {
    check(3, || {
        let shared = set(1);
        shared.service(&SERVICE);
        let changing = {
            let shared = shared.clone();
            thread::spawn(move || {
                let change = shared.change(&["memory://new".into()]).unwrap();
                shared.tell_left(change.left);
                let live = comes(&shared, change.joined[0]);
                ask(&shared, change.joined[0], &live);
            })
        };
        assert!(is_here(&call(&shared)));
        changing.join().unwrap();
    });
}

/// A replica connects while it leaves: no call goes there once it has left, and its task has nothing more to do.
pub fn a_replica_that_connects_while_it_leaves_gets_no_calls() {
    check(None, || {
        let shared = set(1);
        shared.service(&SERVICE);
        let task = keep(&shared);
        let change = shared.change(&["memory://new".into()]).unwrap();
        shared.tell_left(change.left);
        assert!(matches!(shared.pick(0, &[]), Pick::NotYet));
        let live = task.join().unwrap();
        assert!(!shared.is_live(0, &live) && !shared.connecting(0));
    });
}

/// A `connect` waits for the first replica before there is a client.
pub fn whoever_connects_hears_of_the_first_replica() {
    check(None, || {
        let shared = set(1);
        let of_task = shared.clone();
        let task = thread::spawn(move || drop(comes(&of_task, 0)));
        let found = block_on(shared.wait_for(|shared| shared.find(None)));
        assert!(found.is_ok());
        task.join().unwrap();
    });
}

/// Making a client waits until a replica has its service.
pub fn a_client_is_made_when_a_replica_has_its_service() {
    check(3, || {
        let shared = set(1);
        let task = keep_until_asked(&shared);
        let service = shared.service(&SERVICE);
        let found = block_on(shared.wait_for(|shared| shared.find(Some(service))));
        assert!(matches!(found, Ok((_, 7))));
        task.join().unwrap();
    });
}

/// Two calls wait for one replica, and both are woken.
pub fn all_calls_hear_of_it() {
    check(2, || {
        let shared = set(1);
        shared.service(&SERVICE);
        let of_other = shared.clone();
        let task = keep(&shared);
        let other = thread::spawn(move || assert!(is_here(&call(&of_other))));
        assert!(is_here(&call(&shared)));
        task.join().unwrap();
        other.join().unwrap();
    });
}

/// The client is made while the task goes to sleep, with nothing to ask.
pub fn a_service_is_asked_for_whenever_its_client_comes() {
    check(3, || {
        let shared = set(1);
        let task = keep_until_asked(&shared);
        shared.service(&SERVICE);
        assert!(is_here(&call(&shared)));
        task.join().unwrap();
    });
}

/// One of two replicas is given up, while the other connects, or its task ends.
pub fn a_call_hears_that_no_replica_is_left() {
    for comes_after_all in [false, true] {
        check(2, move || {
            let shared = set(2);
            shared.service(&SERVICE);
            let tasks = [0, 1].map(|index| {
                let shared = shared.clone();
                thread::spawn(move || {
                    if index == 0 {
                        shared.failed(index, ConnectError::ShuttingDown, false);
                        shared.given_up(index);
                    } else if comes_after_all {
                        let live = comes(&shared, index);
                        ask(&shared, index, &live);
                    } else {
                        shared.forsaken(index, ConnectError::ShuttingDown);
                    }
                })
            });
            let picked = call(&shared);
            assert_eq!(is_here(&picked), comes_after_all);
            assert!(comes_after_all || matches!(picked, Pick::Unavailable));
            for task in tasks {
                task.join().unwrap();
            }
            let errors = shared.errors(0);
            let why = |error: &ReplicaError| error.error.is_some() && error.url.ends_with('0');
            assert!(why(&errors[0]), "{errors:?}");
        });
    }
}

/// A pipe has ended. A call notices before the replica's task, which sleeps, and must wake the task.
pub fn the_task_of_a_replica_that_a_call_takes_out_is_told() {
    check(3, || {
        let (shared, live) = served();
        let (of_task, old) = (shared.clone(), live.clone());
        let task = thread::spawn(move || {
            while of_task.is_live(0, &old) {
                sleep(&of_task, 0);
            }
            let live = comes(&of_task, 0);
            ask(&of_task, 0, &live);
        });
        live.connection.end();
        let Pick::Replica(picked) = call(&shared) else {
            panic!("its task has it come again");
        };
        assert!(!Arc::ptr_eq(&picked.live, &live), "that one has gone");
        task.join().unwrap();
    });
}

/// Two calls and the task notice that a pipe has ended, while its successor connects: the successor stays.
pub fn a_pipe_that_has_gone_takes_no_other_with_it() {
    check(2, || {
        let (shared, old) = served();
        old.connection.end();
        let (of_task, of_other) = (shared.clone(), (shared.clone(), old.clone()));
        let task = thread::spawn(move || {
            of_task.mark_lost(0, &old, ConnectError::ShuttingDown);
            let live = comes(&of_task, 0);
            ask(&of_task, 0, &live);
            live
        });
        let other = thread::spawn(move || {
            let (shared, old) = of_other;
            shared.mark_lost(0, &old, ConnectError::ShuttingDown);
        });
        let Pick::Replica(picked) = call(&shared) else {
            panic!("its task has it come again");
        };
        let live = task.join().unwrap();
        other.join().unwrap();
        assert!(Arc::ptr_eq(&picked.live, &live) && shared.is_live(0, &live));
    });
}

/// Two servers fall silent, and a call on each misses its deadline. One replica stays, since no better one is left.
pub fn of_two_that_answer_nothing_one_stays() {
    check(None, || {
        let shared = balanced(2, Balance::LeastBusy);
        shared.service(&SERVICE);
        let both = [0, 1].map(|index| {
            let live = comes(&shared, index);
            ask(&shared, index, &live);
            live
        });
        let of_other = (shared.clone(), both[1].clone());
        let other = thread::spawn(move || of_other.0.missed_deadline(1, &of_other.1, 0));
        shared.missed_deadline(0, &both[0], 0);
        other.join().unwrap();
        let left = [0, 1].map(|index| shared.is_live(index, &both[index]));
        assert!(left[0] != left[1], "{left:?}");
        assert!(is_here(&call(&shared)));
    });
}

/// `Replicas::reconnect` runs while a task goes to rest until it is notified.
pub fn a_task_that_rests_is_hurried() {
    check(None, || {
        let shared = set(1);
        shared.service(&SERVICE);
        shared.failed(0, ConnectError::ShuttingDown, false);
        shared.given_up(0);
        let of_task = shared.clone();
        let task = thread::spawn(move || {
            let (_, wake) = of_task.url(0).unwrap();
            loop {
                let told = wake.notified();
                if of_task.should_reconnect_now(0) {
                    break;
                }
                block_on(told);
            }
            of_task.connecting(0);
        });
        shared.reconnect_all();
        task.join().unwrap();
    });
}

/// `Replicas::close` runs while a call waits and the replica connects. `close` gets the connection, unless no call could use it any more.
pub fn closing_ends_a_call_that_waits() {
    check(3, || {
        let shared = set(1);
        shared.service(&SERVICE);
        let (of_task, of_closer) = (shared.clone(), shared.clone());
        let task = thread::spawn(move || {
            let live = comes(&of_task, 0);
            let was_there = of_task.is_live(0, &live);
            ask(&of_task, 0, &live);
            was_there
        });
        let closer = thread::spawn(move || of_closer.close(&ConnectError::ShuttingDown).len());
        let was_called = is_here(&call(&shared));
        let was_there = task.join().unwrap();
        let closed = closer.join().unwrap();
        assert!(closed == 1 || !(was_there || was_called), "it is left open");
        assert!(
            matches!(call(&shared), Pick::Unavailable),
            "closed stays closed"
        );
        assert!(shared.errors(0)[0].error.is_some());
    });
}
