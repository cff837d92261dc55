//! Receipts for values, on their way back to the producer.
//!
//! The first leaves at once, on the task that has received the value, so that the producer hears of it before it is asked for the
//! next one. Those that come while it is on its way leave together when it has arrived. Invariant: a receipt is in the list or in
//! a call that is awaited, until the producer has heard of it. Those that a connection takes along are given over the next one, if
//! the same incarnation is there: else a broken network would fill a producer with what nobody will ask for again.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::runtime::Handle;

use super::key::Key;
use super::service::TensorRendezvousClient;
use crate::call::Call;
use crate::error::CallError;
use crate::lock::lock;

/// How long until a producer that did not take a receipt is told again, at first: then twice as long each time.
const AGAIN: Duration = Duration::from_millis(10);

/// The longest that this becomes.
const LONGEST: Duration = Duration::from_secs(1);

/// Receipts that are given at once: no more than any peer takes in a message.
const TOGETHER: usize = 512;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Receipts {
    client: TensorRendezvousClient,
    runtime: Handle,
    gathered: Arc<Mutex<Gathered>>,
    lost: Lost,
}

/// Receipts that a connection to a producer has not delivered before it ended. As many at the most as the producer lends.
pub(super) type Lost = Arc<Mutex<Vec<Key>>>;

#[derive(Debug, Default)]
struct Gathered {
    /// As many at the most as the producer keeps values.
    keys: Vec<Key>,
    state: State,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Idle,
    /// A call is under way.
    Telling,
    /// Nobody can be told any more.
    Over,
}

impl Receipts {
    pub(super) fn new(client: TensorRendezvousClient, runtime: &Handle, lost: &Lost) -> Self {
        Self {
            client,
            runtime: runtime.clone(),
            gathered: Arc::default(),
            lost: lost.clone(),
        }
    }

    /// Gives what connections before this one, which is to that incarnation, have not delivered.
    pub(super) fn give_lost(&self, incarnation: u64) {
        let lost = {
            let mut lost = lock(&self.lost);
            // What an earlier incarnation had is gone with it.
            lost.retain(|key| key.incarnation() == incarnation);
            lost.pop()
        };
        if let Some(key) = lost {
            self.give(key);
        }
    }

    /// The value of this key is here.
    pub(super) fn give(&self, key: Key) {
        {
            let mut gathered = lock(&self.gathered);
            match gathered.state {
                State::Idle => gathered.state = State::Telling,
                State::Telling => return gathered.keys.push(key),
                State::Over => return lock(&self.lost).push(key),
            }
        }
        let mut keys = vec![key];
        keys.append(&mut lock(&self.lost));
        let told = tell(&self.client, &keys);
        let (client, gathered) = (self.client.clone(), self.gathered.clone());
        let others = give_others(told, keys, client, gathered, self.lost.clone());
        self.runtime.spawn(others);
    }
}

/// Until none are left, or the connection ends.
async fn give_others(
    mut told: Call<()>,
    mut keys: Vec<Key>,
    client: TensorRendezvousClient,
    gathered: Arc<Mutex<Gathered>>,
    lost: Lost,
) {
    let mut again = AGAIN;
    loop {
        match told.await {
            Ok(()) => {
                keys.drain(..keys.len().min(TOGETHER));
                again = AGAIN;
            }
            Err(error) if is_over(&client, &error) => {
                tracing::debug!(%error, "receipts of values are not taken any more");
                let mut gathered = lock(&gathered);
                gathered.state = State::Over;
                keys.append(&mut gathered.keys);
                return lock(&lost).append(&mut keys);
            }
            // It has too much to do, or replies of its wait to be read. The first one may have been made within a call that
            // had no time left.
            Err(error) => {
                tracing::debug!(%error, "a receipt is given again");
                tokio::time::sleep(again).await;
                again = LONGEST.min(2 * again);
            }
        }
        {
            let mut gathered = lock(&gathered);
            keys.append(&mut gathered.keys);
            if keys.is_empty() {
                gathered.state = State::Idle;
                return;
            }
        }
        told = tell(&client, &keys);
    }
}

/// Whether nobody can be told any more.
fn is_over(client: &TensorRendezvousClient, error: &CallError) -> bool {
    matches!(error, CallError::ShuttingDown) || client.connection().pipe().has_ended()
}

fn tell(client: &TensorRendezvousClient, keys: &[Key]) -> Call<()> {
    let keys = &keys[..keys.len().min(TOGETHER)];
    let keys: Vec<_> = keys.iter().map(|key| key.as_str().to_owned()).collect();
    client.received(keys)
}
