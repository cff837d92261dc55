//! Receipts for values, on their way back to the producer.
//!
//! The first leaves at once, on the task that has received the value, so that the producer hears of it before it is asked for the
//! next one. Those that come while it is on its way leave together when it has arrived. Invariant: a receipt is in the list or in
//! a call that is awaited, until the connection ends; then the value stays with its producer.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;

use super::key::Key;
use super::service::TensorRendezvousClient;
use crate::call::Call;
use crate::error::CallError;

/// How long until those are told again who had no time.
const AGAIN: Duration = Duration::from_millis(10);

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Receipts {
    client: TensorRendezvousClient,
    runtime: Handle,
    gathered: Arc<Mutex<Gathered>>,
}

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
    pub(super) fn new(client: TensorRendezvousClient, runtime: &Handle) -> Self {
        Self {
            client,
            runtime: runtime.clone(),
            gathered: Arc::default(),
        }
    }

    /// The value of this key is here.
    pub(super) fn give(&self, key: Key) {
        {
            let mut gathered = lock(&self.gathered);
            match gathered.state {
                State::Idle => gathered.state = State::Telling,
                State::Telling => return gathered.keys.push(key),
                State::Over => return,
            }
        }
        let keys = vec![key];
        let told = tell(&self.client, &keys);
        let others = give_others(told, keys, self.client.clone(), self.gathered.clone());
        self.runtime.spawn(others);
    }
}

/// Until none are left, or the connection ends.
async fn give_others(
    mut told: Call<()>,
    mut keys: Vec<Key>,
    client: TensorRendezvousClient,
    gathered: Arc<Mutex<Gathered>>,
) {
    loop {
        match told.await {
            Ok(()) => keys.clear(),
            // The first one may have been made within a call that had no time left.
            Err(CallError::Overloaded(_) | CallError::Deadline { .. }) => {
                tokio::time::sleep(AGAIN).await;
            }
            Err(error) => {
                tracing::debug!(%error, "receipts of values are not taken any more");
                let mut gathered = lock(&gathered);
                gathered.keys = Vec::new();
                gathered.state = State::Over;
                return;
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

fn tell(client: &TensorRendezvousClient, keys: &[Key]) -> Call<()> {
    let keys: Vec<_> = keys.iter().map(|key| key.as_str().to_owned()).collect();
    client.received(keys)
}

fn lock(gathered: &Mutex<Gathered>) -> MutexGuard<'_, Gathered> {
    gathered.lock().unwrap_or_else(PoisonError::into_inner)
}
