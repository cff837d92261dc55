//! Receipts for values, on their way back to the producer.
//!
//! The first leaves at once, on the task that has received the value, so that the producer hears of it before it is asked for the next one.
//! Those that come while it is on its way leave together when it has arrived. Invariant: a receipt is in the list or in a call that is
//! awaited until the producer has heard of it, or another incarnation has taken its place. What a connection takes along is given over the
//! next one, which is made for it unless the producer cannot be reached. Else a broken network would fill a producer with what nobody will
//! ask for again. A producer that cannot make sense of a receipt is not given it again. One that takes none is told only a few times more
//! once the rendezvous that received the values is gone.

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
const RECEIPTS_AT_ONCE: usize = 512;

/// Those of one producer. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Receipts {
    producer: Weak<Peer>,
    runtime: Handle,
    unsent: Arc<Mutex<Unsent>>,
}

#[derive(Debug, Default)]
struct Unsent {
    /// With the numbers of their loans. As many at the most as the producer lends.
    keys: Vec<(Key, u64)>,
    /// A task is at it.
    telling: bool,
}

impl Receipts {
    pub(super) fn new(producer: &Weak<Peer>, runtime: &Handle) -> Self {
        Self {
            producer: producer.clone(),
            runtime: runtime.clone(),
            unsent: Arc::default(),
        }
    }

    /// There is a connection, to this incarnation.
    pub(super) fn connected(&self, client: &TensorRendezvousClient, incarnation: u64) {
        // What an earlier one had is gone with it. Those that are being told stay: a receipt for what was not lent changes nothing.
        let is_there = |(key, _): &(Key, u64)| key.incarnation() == incarnation;
        lock(&self.unsent).keys.retain(is_there);
        self.begin(client);
    }

    /// The value of this key is here, of the loan of this number.
    pub(super) fn give(&self, client: &TensorRendezvousClient, key: Key, loan: u64) {
        lock(&self.unsent).keys.push((key, loan));
        self.begin(client);
    }

    /// Unless somebody is at it, or there is nothing to tell.
    fn begin(&self, client: &TensorRendezvousClient) {
        let keys = {
            let mut unsent = lock(&self.unsent);
            if unsent.telling || unsent.keys.is_empty() {
                return;
            }
            unsent.telling = true;
            std::mem::take(&mut unsent.keys)
        };
        let told = tell(client, &keys);
        let telling = self.clone().give_all(client.clone(), told, keys);
        self.runtime.spawn(telling);
    }

    /// Until none are left, or the producer cannot be reached.
    async fn give_all(
        self,
        mut client: TensorRendezvousClient,
        mut told: Call<()>,
        mut keys: Vec<(Key, u64)>,
    ) {
        let (mut again, mut last) = (AGAIN, LAST);
        loop {
            match told.await {
                Ok(()) => {
                    keys.drain(..keys.len().min(RECEIPTS_AT_ONCE));
                    again = AGAIN;
                }
                Err(error) => {
                    if is_senseless(&error) {
                        tracing::warn!(%error, "a producer takes no receipts");
                        keys.drain(..keys.len().min(RECEIPTS_AT_ONCE));
                    } else {
                        tracing::debug!(%error, "a receipt is given again");
                    }
                    let is_over = is_over(&client, &error);
                    match self.producer.upgrade() {
                        Some(producer) if is_over => producer.give_up(&client),
                        Some(_) => {}
                        None => last -= 1,
                    }
                    if last == 0 {
                        lock(&self.unsent).telling = false;
                        return;
                    }
                    // It has too much to do, or replies of its wait to be read. The first one may have been made
                    // within a call that had no time left.
                    tokio::time::sleep(again).await;
                    again = LONGEST.min(2 * again);
                    if is_over {
                        match self.reconnected().await {
                            Some(other) => client = other,
                            None => return self.put_back(keys),
                        }
                    }
                }
            }
            {
                let mut unsent = lock(&self.unsent);
                keys.append(&mut unsent.keys);
                if keys.is_empty() {
                    unsent.telling = false;
                    return;
                }
            }
            told = tell(&client, &keys);
        }
    }

    /// Another connection, if there can be one.
    async fn reconnected(&self) -> Option<TensorRendezvousClient> {
        match self.producer.upgrade()?.connected().await {
            Ok(link) => Some(link.client.clone()),
            Err(error) => {
                tracing::debug!(%error, "receipts of values wait for another connection");
                None
            }
        }
    }

    /// They are told over the next connection, whoever makes it.
    fn put_back(&self, mut keys: Vec<(Key, u64)>) {
        {
            let mut unsent = lock(&self.unsent);
            unsent.keys.append(&mut keys);
            unsent.telling = false;
        }
        // Whoever has made it by now found this task at it.
        let link = self.producer.upgrade().and_then(|peer| peer.linked());
        if let Some(link) = link {
            self.begin(&link.client);
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
    let receipts = keys[..keys.len().min(RECEIPTS_AT_ONCE)].iter();
    let receipts = receipts.map(|(key, loan)| Receipt {
        key: key.as_str().to_owned(),
        loan: *loan,
    });
    client.received(receipts.collect::<Vec<_>>())
}
