//! Wakers and subscribers are the user's code: they may look at the table that wakes or logs.

use std::pin::pin;
use std::task::{Context, Wake, Waker};

use tracing::subscriber::with_default;

use super::*;
use crate::engine::foreign_code::{Seen, Watches, engine, soon};
use crate::lock::AtomicUsize;

static SCHEMA: Schema = Schema {
    service: "service",
    methods: &[],
};

/// Looks at the table, and counts how often.
struct Looks {
    shared: Arc<Shared>,
    times: AtomicUsize,
}

impl Looks {
    fn new(shared: &Arc<Shared>) -> Arc<Self> {
        Arc::new(Self {
            shared: shared.clone(),
            times: AtomicUsize::new(0),
        })
    }

    fn look(&self) {
        self.shared.errors(0);
        self.times.fetch_add(1, Ordering::Relaxed);
    }

    fn times(&self) -> usize {
        self.times.load(Ordering::Relaxed)
    }
}

impl Wake for Looks {
    fn wake(self: Arc<Self>) {
        self.look();
    }
}

/// Asserts that `act` wakes who waits for `wait`.
fn wakes(shared: &Arc<Shared>, wait: impl Future, act: impl FnOnce()) {
    let looks = Looks::new(shared);
    let waker = Waker::from(looks.clone());
    let mut wait = pin!(wait);
    let polled = wait.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    act();
    assert_eq!(looks.times(), 1);
    // A notification that nobody takes would go to the next one to wait.
    let _ = wait.poll(&mut Context::from_waker(Waker::noop()));
}

fn error() -> ConnectError {
    ConnectError::ShuttingDown
}

async fn live() -> Arc<Live> {
    let (engine, _) = engine().await;
    Live::new(Connection { engine }, false)
}

fn shared() -> Arc<Shared> {
    let shared = Shared::new(Options::default());
    shared.change(&["tcp://127.0.0.1:1".into()]).unwrap();
    Arc::new(shared)
}

/// Another one takes its place.
fn leaves(shared: &Shared) {
    let change = shared.change(&["tcp://127.0.0.1:2".into()]).unwrap();
    shared.tell_left(change.left);
}

/// And it may panic: the replica's task goes on.
#[tokio::test]
async fn a_subscriber_may_look_at_the_table() {
    let live = live().await;
    soon(move || {
        let shared = shared();
        let looks = Looks::new(&shared);
        let looking = looks.clone();
        let subscriber = Watches(move |seen| {
            if seen == Seen::Event {
                looking.look();
                panic!("a subscriber's own");
            }
        });
        with_default(subscriber, || {
            shared.connected(0, &live);
            shared.record_bind(0, &live, Err(error()));
            shared.mark_lost(0, &live, error());
            shared.failed(0, error(), true);
            shared.given_up(0);
            leaves(&shared);
        });
        assert_eq!(looks.times(), 6);
    });
}

#[tokio::test]
async fn whoever_is_woken_may_look_at_the_table() {
    let live = live().await;
    soon(move || {
        // What tracing meets first on a thread without a subscriber may be off for the other test, too.
        with_default(Watches(|_| ()), || {
            let shared = shared();
            let waiting = || shared.wait_for(|_| None::<()>);
            wakes(&shared, waiting(), || shared.connected(0, &live));
            wakes(&shared, waiting(), || {
                shared.record_bind(0, &live, Ok(1));
            });
            let (_, task) = shared.url(0).unwrap();
            wakes(&shared, task.notified(), || _ = shared.service(&SCHEMA));
            wakes(&shared, task.notified(), || {
                shared.mark_lost(0, &live, error());
            });
            wakes(&shared, task.notified(), || shared.reconnect_all());
            wakes(&shared, waiting(), || shared.given_up(0));
            wakes(&shared, waiting(), || leaves(&shared));
        });
    });
}
