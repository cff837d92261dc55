//! Receipts, by which a consumer confirms values to their producer.
//!
//! The first receipt leaves at once, on the task that received the value, so the producer gets it before the next request. Later
//! ones are gathered while it is on its way, and then leave together.
//!
//! Invariant: a receipt is in the list, or in a call that is awaited, until the producer has it or another incarnation has replaced
//! it. Receipts of a broken connection go over the next one, which is made for them if the producer can be reached. Otherwise a
//! broken network would fill a producer with values that nobody asks for again. A receipt that a producer cannot decode is not
//! repeated, and a message that is larger than its limits is sent in halves. Once the receiving rendezvous is gone, a producer that takes no receipts is tried only a few times more. One that takes none and
//! lends all the same is at fault: above [`KEPT`], its further receipts are dropped.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tensorpipe::{Error, Misuse};
use tokio::runtime::Handle;

use super::key::Key;
use super::limits::LENT;
use super::peers::{Link, Peer};
use super::service::{Receipt, TensorRendezvousClient};
use crate::call::Call;
use crate::error::CallError;
use crate::lock::lock;

/// The first pause before a producer that did not take a receipt is asked again. Each pause is twice as long as the last.
const AGAIN: Duration = Duration::from_millis(10);

/// The longest pause.
const LONGEST: Duration = Duration::from_secs(1);

/// How often a producer that takes no receipts is asked again once the rendezvous is gone.
const LAST: u32 = 5;

/// How many receipts one message has at most.
const RECEIPTS_AT_ONCE: usize = 512;

/// How many receipts are kept for one producer. That lends [`LENT`] values before it is told of any, and what others already wait for.
const KEPT: usize = 4 * LENT;

/// The receipts for one producer. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Receipts {
    /// Another one once the producer has another URL.
    producer: Arc<Mutex<Weak<Peer>>>,
    runtime: Handle,
    unsent: Arc<Mutex<Unsent>>,
}

#[derive(Debug, Default)]
struct Unsent {
    /// Keys with the numbers of their loans.
    keys: Vec<(Key, u64)>,
    /// A task is sending receipts.
    sending: bool,
}

/// Adds receipts to others, as far as they are kept.
fn keep(keys: &mut Vec<(Key, u64)>, more: &mut Vec<(Key, u64)>) {
    keys.append(more);
    keys.truncate(KEPT);
}

impl Receipts {
    pub(super) fn new(runtime: &Handle) -> Self {
        Self {
            producer: Arc::default(),
            runtime: runtime.clone(),
            unsent: Arc::default(),
        }
    }

    /// The producer is reached like this from now on; [`resume`](Self::resume) follows.
    pub(super) fn hand_to(&self, producer: &Arc<Peer>) {
        *lock(&self.producer) = Arc::downgrade(producer);
    }

    /// Makes a connection for receipts that wait for one.
    pub(super) fn resume(&self) {
        let waits = {
            let unsent = lock(&self.unsent);
            !unsent.sending && !unsent.keys.is_empty()
        };
        if !waits {
            return;
        }
        let receipts = self.clone();
        self.runtime
            .spawn(async move { drop(receipts.reconnected().await) });
    }

    fn producer(&self) -> Option<Arc<Peer>> {
        lock(&self.producer).upgrade()
    }

    /// There is a connection to this incarnation, at the URL of `peer`. Changes nothing if the producer has another URL by now:
    /// what listens at the old one may be an earlier incarnation.
    pub(super) fn connected(&self, peer: &Peer, client: &TensorRendezvousClient, incarnation: u64) {
        {
            let producer = lock(&self.producer);
            if !std::ptr::eq(producer.as_ptr(), peer) {
                return;
            }
            // Values of an earlier incarnation are gone, so their receipts are dropped. Those being sent stay: a receipt for a
            // value that was not lent changes nothing.
            let is_there = |(key, _): &(Key, u64)| key.incarnation() == incarnation;
            lock(&self.unsent).keys.retain(is_there);
        }
        self.begin(client);
    }

    /// The value of this key is here; `loan` is the number of its loan.
    pub(super) fn give(&self, client: &TensorRendezvousClient, key: Key, loan: u64) {
        {
            let mut unsent = lock(&self.unsent);
            if unsent.keys.len() < KEPT {
                unsent.keys.push((key, loan));
            }
        }
        self.begin(client);
    }

    /// Starts a task that sends receipts, unless one runs or there are none.
    fn begin(&self, client: &TensorRendezvousClient) {
        let keys = {
            let mut unsent = lock(&self.unsent);
            if unsent.sending || unsent.keys.is_empty() {
                return;
            }
            unsent.sending = true;
            std::mem::take(&mut unsent.keys)
        };
        let told = send_batch(client, &keys, RECEIPTS_AT_ONCE);
        let telling = self.clone().give_all(client.clone(), told, keys);
        self.runtime.spawn(telling);
    }

    /// Sends receipts until none are left, or the producer cannot be reached.
    async fn give_all(
        self,
        mut client: TensorRendezvousClient,
        mut told: Call<()>,
        mut keys: Vec<(Key, u64)>,
    ) {
        let (mut again, mut last) = (AGAIN, LAST);
        let mut at_once = RECEIPTS_AT_ONCE;
        loop {
            match told.await {
                Ok(()) => {
                    keys.drain(..keys.len().min(at_once));
                    at_once = RECEIPTS_AT_ONCE.min(2 * at_once);
                    again = AGAIN;
                }
                Err(error) if is_too_large(&error) && keys.len().min(at_once) > 1 => {
                    at_once = keys.len().min(at_once) / 2;
                }
                Err(error) => {
                    if is_permanent(&error) {
                        tracing::warn!(%error, "a producer takes no receipts");
                        keys.drain(..keys.len().min(at_once));
                    } else {
                        tracing::debug!(%error, "a receipt is given again");
                    }
                    let is_disconnected = is_disconnected(&client, &error);
                    match self.producer() {
                        Some(producer) if is_disconnected => producer.drop_link(&client),
                        Some(_) => {}
                        None => last -= 1,
                    }
                    if last == 0 {
                        lock(&self.unsent).sending = false;
                        return;
                    }
                    // The producer is overloaded, or has replies waiting to be read. The first request may also have been made
                    // within a call that had no time left.
                    tokio::time::sleep(again).await;
                    again = LONGEST.min(2 * again);
                    if is_disconnected || self.is_elsewhere(&client) {
                        match self.reconnected().await {
                            Ok(other) => client = other,
                            Err(tried) => return self.put_back(keys, &tried),
                        }
                    }
                }
            }
            {
                let mut unsent = lock(&self.unsent);
                keep(&mut keys, &mut unsent.keys);
                if keys.is_empty() {
                    unsent.sending = false;
                    return;
                }
            }
            told = send_batch(&client, &keys, at_once);
        }
    }

    /// Whether the producer has another URL than when this connection was made.
    fn is_elsewhere(&self, client: &TensorRendezvousClient) -> bool {
        let is_other = |link: Arc<Link>| !is_same(&link.client, client);
        let producer = self.producer();
        producer.is_some_and(|producer| producer.linked().is_none_or(is_other))
    }

    /// Another connection to the producer, or the producer that cannot be reached.
    async fn reconnected(&self) -> Result<TensorRendezvousClient, Weak<Peer>> {
        let producer = lock(&self.producer).clone();
        let Some(peer) = producer.upgrade() else {
            return Err(producer);
        };
        match peer.connected().await {
            Ok(link) => Ok(link.client.clone()),
            Err(error) => {
                tracing::debug!(%error, "receipts of values wait for another connection");
                Err(producer)
            }
        }
    }

    /// Returns the receipts to the list, for the next connection. The producer of the last one was `tried` in vain.
    fn put_back(&self, mut keys: Vec<(Key, u64)>, tried: &Weak<Peer>) {
        {
            let mut unsent = lock(&self.unsent);
            keep(&mut unsent.keys, &mut keys);
            unsent.sending = false;
        }
        // If a connection was made meanwhile, or another URL was set, this task was still running then.
        let Some(producer) = self.producer() else {
            return;
        };
        if let Some(link) = producer.linked() {
            self.begin(&link.client);
        } else if Arc::as_ptr(&producer) != tried.as_ptr() {
            self.resume();
        }
    }
}

/// Whether no call can be made over this connection any more.
fn is_disconnected(client: &TensorRendezvousClient, error: &CallError) -> bool {
    matches!(error, CallError::ShuttingDown) || client.connection().pipe().has_ended()
}

/// Whether a retry would fail in the same way.
fn is_permanent(error: &CallError) -> bool {
    matches!(
        error,
        CallError::Unimplemented(_) | CallError::Encode(_) | CallError::BadArguments(_)
    ) || is_too_large(error)
}

/// Whether the producer takes no message as large as this one: its own [`tensorpipe::Limits`].
fn is_too_large(error: &CallError) -> bool {
    let is_of_limit = |error: &Error| matches!(error, Error::Misuse(Misuse::TooLarge { .. }));
    matches!(error, CallError::Connection { error, .. } if is_of_limit(error))
}

/// Whether both clients use one connection.
pub(super) fn is_same(one: &TensorRendezvousClient, other: &TensorRendezvousClient) -> bool {
    Arc::ptr_eq(&one.connection().engine, &other.connection().engine)
}

/// Sends the first of these receipts, at most so many.
fn send_batch(client: &TensorRendezvousClient, keys: &[(Key, u64)], at_once: usize) -> Call<()> {
    let receipts = keys[..keys.len().min(at_once)].iter();
    let receipts = receipts.map(|(key, loan)| Receipt {
        key: key.as_str().to_owned(),
        loan: *loan,
    });
    client.received(receipts.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use tensorpipe::Context;

    use super::super::service::{Hello, Pulled, TensorRendezvous, TensorRendezvousService};
    use super::*;
    use crate::context::CallContext;
    use crate::server::Server;

    /// Lends for ever, and never takes a receipt.
    struct Deaf;

    impl TensorRendezvous for Deaf {
        async fn hello(&self, from: Hello, _: &CallContext) -> Hello {
            from
        }
        async fn pull(&self, _: String) -> Pulled {
            std::future::pending().await
        }
        async fn received(&self, _: Vec<Receipt>, _: &CallContext) {
            std::future::pending().await
        }
        async fn abort(&self, _: Hello, _: String, _: &CallContext) {}
    }

    /// Counts the receipts that it takes.
    struct Counts(Arc<Mutex<usize>>);

    impl TensorRendezvous for Counts {
        async fn hello(&self, from: Hello, _: &CallContext) -> Hello {
            from
        }
        async fn pull(&self, _: String) -> Pulled {
            std::future::pending().await
        }
        async fn received(&self, receipts: Vec<Receipt>, _: &CallContext) {
            *lock(&self.0) += receipts.len();
        }
        async fn abort(&self, _: Hello, _: String, _: &CallContext) {}
    }

    /// One key is longer than a whole message may be: that receipt is dropped, and no other waits for it.
    #[tokio::test]
    async fn receipts_beyond_the_limits_of_their_producer_leave_in_smaller_messages() {
        let mut limits = tensorpipe::Limits::default();
        (limits.metadata, limits.payload) = (1200, 1200);
        let context = Context::builder().limits(limits).build().unwrap();
        let counted = Arc::default();
        let server = Server::builder().context(&context);
        let counts = TensorRendezvousService::new(Counts(Arc::clone(&counted)));
        let server = server.service(counts).listen("tcp://127.0.0.1:0");
        let server = server.await.unwrap();
        let near = Context::builder().build().unwrap();
        let client = TensorRendezvousClient::connect_with(&near, server.url());
        let client = client.await.unwrap();
        let receipts = Receipts::new(&Handle::current());
        let key = |name: &str| Key::new(name, 7, name, name, 1).unwrap();
        let (short, long) = (key("a"), key(&"a".repeat(500)));
        for loan in 0..100 {
            let key = if loan == 50 { &long } else { &short };
            receipts.give(&client, key.clone(), loan);
        }
        let all = async {
            while *lock(&counted) < 99 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), all)
            .await
            .unwrap();
        assert_eq!(*lock(&counted), 99);
    }

    #[tokio::test]
    async fn receipts_that_a_producer_never_takes_are_not_kept_without_end() {
        let context = Context::builder().build().unwrap();
        let server = Server::builder().context(&context);
        let server = server.service(TensorRendezvousService::new(Deaf));
        let server = server.listen("tcp://127.0.0.1:0").await.unwrap();
        let client = TensorRendezvousClient::connect_with(&context, server.url());
        let client = client.await.unwrap();
        let receipts = Receipts::new(&Handle::current());
        let key = Key::new("front", 7, "back", "a", 1).unwrap();
        for loan in 0..2 * KEPT as u64 {
            receipts.give(&client, key.clone(), loan);
        }
        let kept = || lock(&receipts.unsent).keys.len();
        assert_eq!(kept(), KEPT);
        receipts.put_back(vec![(key, 0); KEPT], &Weak::new());
        assert_eq!(kept(), KEPT);
    }
}
