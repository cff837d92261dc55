//! Receipts for values, on their way back to the producer.
//!
//! The first leaves at once, on the task that has received the value, so that the producer hears of it before it is asked for the
//! next one. Those that come while it is on its way leave together when it has arrived. Invariant: a receipt is in the list or in
//! a call that is awaited until the producer has heard of it, or another incarnation has taken its place. What a connection takes
//! along is given over the next one, which is made for it unless the producer cannot be reached: else a broken network would
//! fill a producer with what nobody will ask for again. A producer that cannot make sense of a receipt is not given it again, and
//! one that takes none is told only a few times more once the rendezvous that received the values is gone.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::runtime::Handle;

use super::key::Key;
use super::peers::Peer;
use super::service::{Receipt, TensorRendezvousClient};
use crate::call::Call;
use crate::error::CallError;
use crate::lock::lock;

/// How long until a producer that did not take a receipt is told again, at first: then twice as long each time.
const AGAIN: Duration = Duration::from_millis(10);

/// The longest that this becomes.
const LONGEST: Duration = Duration::from_secs(1);

/// How often a producer that does not take a receipt is told again when the rendezvous is gone.
const LAST: u32 = 5;

/// Receipts that are given at once: no more than any peer takes in a message.
const TOGETHER: usize = 512;

/// Those of one producer. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Receipts {
    producer: Weak<Peer>,
    runtime: Handle,
    gathered: Arc<Mutex<Gathered>>,
}

#[derive(Debug, Default)]
struct Gathered {
    /// With the numbers of their loans. As many at the most as the producer lends.
    keys: Vec<(Key, u64)>,
    /// Where they go; `None` until there is a connection again.
    client: Option<TensorRendezvousClient>,
    /// A call or a connection is under way, or will be soon.
    telling: bool,
}

impl Receipts {
    pub(super) fn new(producer: &Weak<Peer>, runtime: &Handle) -> Self {
        Self {
            producer: producer.clone(),
            runtime: runtime.clone(),
            gathered: Arc::default(),
        }
    }

    /// From now on they go to this incarnation, over a new connection.
    pub(super) fn connected(&self, client: &TensorRendezvousClient, incarnation: u64) {
        {
            let mut gathered = lock(&self.gathered);
            gathered.client = Some(client.clone());
            // What an earlier one had is gone with it. Those that are being told stay: a receipt for what was not lent changes
            // nothing.
            gathered
                .keys
                .retain(|(key, _)| key.incarnation() == incarnation);
        }
        self.begin();
    }

    /// The value of this key is here, of the loan of this number.
    pub(super) fn give(&self, key: Key, loan: u64) {
        lock(&self.gathered).keys.push((key, loan));
        self.begin();
    }

    /// Unless somebody is at it, or there is nothing to tell.
    fn begin(&self) {
        let (client, keys) = {
            let mut gathered = lock(&self.gathered);
            if gathered.telling || gathered.keys.is_empty() {
                return;
            }
            gathered.telling = true;
            (gathered.client.clone(), std::mem::take(&mut gathered.keys))
        };
        let told = client.map(|client| (tell(&client, &keys), client));
        self.runtime.spawn(self.clone().give_all(told, keys));
    }

    /// Until none are left, or the producer cannot be reached.
    async fn give_all(
        self,
        mut told: Option<(Call<()>, TensorRendezvousClient)>,
        mut keys: Vec<(Key, u64)>,
    ) {
        let (mut again, mut last) = (AGAIN, LAST);
        loop {
            let reached = match told {
                Some((told, client)) => {
                    match told.await {
                        Ok(()) => {
                            keys.drain(..keys.len().min(TOGETHER));
                            again = AGAIN;
                        }
                        Err(error) => {
                            if is_senseless(&error) {
                                tracing::warn!(%error, "a producer takes no receipts");
                                keys.drain(..keys.len().min(TOGETHER));
                            } else {
                                tracing::debug!(%error, "a receipt is given again");
                            }
                            if is_over(&client, &error) {
                                self.give_up(&client);
                            }
                            if self.producer.strong_count() == 0 {
                                last -= 1;
                            }
                            if last == 0 {
                                lock(&self.gathered).telling = false;
                                return;
                            }
                            // It has too much to do, or replies of its wait to be read. The first one may have been made
                            // within a call that had no time left.
                            tokio::time::sleep(again).await;
                            again = LONGEST.min(2 * again);
                        }
                    }
                    true
                }
                None => self.connect().await,
            };
            let client = {
                let mut gathered = lock(&self.gathered);
                keys.append(&mut gathered.keys);
                // Where it cannot be reached, over the next connection, whoever makes it.
                if keys.is_empty() || (gathered.client.is_none() && !reached) {
                    gathered.keys = keys;
                    gathered.telling = false;
                    return;
                }
                gathered.client.clone()
            };
            told = client.map(|client| (tell(&client, &keys), client));
        }
    }

    /// Nobody can be told over this connection any more.
    fn give_up(&self, client: &TensorRendezvousClient) {
        let known = |known: &mut TensorRendezvousClient| is_same(known, client);
        let before = lock(&self.gathered).client.take_if(known);
        drop(before);
        if let Some(producer) = self.producer.upgrade() {
            producer.give_up(client);
        }
    }

    /// Whether there is a connection now.
    async fn connect(&self) -> bool {
        let Some(producer) = self.producer.upgrade() else {
            return false;
        };
        match producer.connected().await {
            Ok(link) => {
                let client = &mut lock(&self.gathered).client;
                client.get_or_insert_with(|| link.client.clone());
                true
            }
            Err(error) => {
                tracing::debug!(%error, "receipts of values wait for another connection");
                false
            }
        }
    }
}

/// Whether nobody can be told over this connection any more.
fn is_over(client: &TensorRendezvousClient, error: &CallError) -> bool {
    matches!(error, CallError::ShuttingDown) || client.connection().pipe().has_ended()
}

/// Whether it would be no other another time.
fn is_senseless(error: &CallError) -> bool {
    matches!(
        error,
        CallError::Unimplemented(_) | CallError::Encode(_) | CallError::BadArguments(_)
    )
}

/// Whether both call over one connection.
pub(super) fn is_same(one: &TensorRendezvousClient, other: &TensorRendezvousClient) -> bool {
    Arc::ptr_eq(&one.connection().engine, &other.connection().engine)
}

fn tell(client: &TensorRendezvousClient, keys: &[(Key, u64)]) -> Call<()> {
    let receipts = keys[..keys.len().min(TOGETHER)].iter();
    let receipts = receipts.map(|(key, loan)| Receipt {
        key: key.as_str().to_owned(),
        loan: *loan,
    });
    client.received(receipts.collect::<Vec<_>>())
}
