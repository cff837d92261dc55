//! The contract of a device: of its [`Allocator`], [`Fence`] and [`Memory`](crate::device::Memory).
//!
//! A backend implements a [`Fixture`] to show the suite how to use its queues. [`TestFixture`] does so for the device of
//! [`TestDevices`](super::TestDevices).

mod fixture;

pub use fixture::TestFixture;

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::{assert_same, blocking, eventually, pattern};
use crate::device::{Allocator, Buffer, BufferMut, Device, DevicePool, Domain, Fence};
use crate::{Context, Tensor};

/// A backend as the suite uses it: an allocator, and two queues for each device, one that writes and one that reads.
pub trait Fixture: Send + Sync + 'static {
    /// An allocator for devices whose memory the CPU cannot read.
    fn allocator(&self) -> Arc<dyn Allocator>;

    /// Queues a write of `bytes` to memory of the same length, without waiting.
    fn write(&self, bytes: &[u8], to: BufferMut) -> Buffer;

    /// Queues a read of `buffer`, without waiting; calling the result waits.
    fn read(&self, buffer: &Buffer) -> Box<dyn FnOnce() -> Vec<u8> + Send>;

    /// Keeps the queue that writes to `device` from going on, until the result is dropped.
    fn hold_writes(&self, device: Device) -> Box<dyn Any + Send>;

    /// As [`hold_writes`](Self::hold_writes), for the queue that reads.
    fn hold_reads(&self, device: Device) -> Box<dyn Any + Send>;
}

/// A backend, as one scenario uses it.
pub struct Subject {
    fixture: Box<dyn Fixture>,
    allocator: Arc<dyn Allocator>,
}

impl std::fmt::Debug for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Subject({:?})", self.allocator.devices())
    }
}

impl Subject {
    /// Uses this backend.
    pub fn new(fixture: impl Fixture) -> Self {
        Self {
            allocator: fixture.allocator(),
            fixture: Box::new(fixture),
        }
    }

    fn device(&self) -> Device {
        // The last one, so that a backend that supports only its first device fails.
        let last = self.allocator.devices().pop();
        last.unwrap_or_else(|| panic!("it has no device"))
    }

    fn pool(&self) -> DevicePool {
        DevicePool::new(self.device(), self.allocator.clone())
    }

    fn uploaded(&self, pool: &DevicePool, len: usize, seed: u64) -> Buffer {
        let room = pool.take(len).unwrap_or_else(|error| panic!("{error}"));
        self.fixture.write(&pattern(len, seed), room)
    }

    /// Waits until no queued work uses it any more.
    async fn end_of_work(&self, buffer: &Buffer) {
        let is_idle = || {
            let work = buffer.memory().work();
            work.is_none_or(|work| work.unfinished().is_empty())
        };
        eventually("the end of all work", is_idle).await;
    }

    async fn check(&self, buffer: &Buffer, seed: u64) {
        let read = self.fixture.read(buffer);
        check_read(read, buffer.len(), seed).await;
    }
}

async fn check_read(read: Box<dyn FnOnce() -> Vec<u8> + Send>, len: usize, seed: u64) {
    let found = blocking("a read", read).await;
    assert_same(&found, &pattern(len, seed), "memory of a device");
}

fn is_reached(fence: &Arc<dyn Fence>) -> bool {
    match fence.reached() {
        Some(Err(error)) => panic!("{error}"),
        reached => reached.is_some(),
    }
}

#[doc(hidden)]
#[macro_export]
macro_rules! __device_scenarios {
    ($then:ident $args:tt) => {
        $crate::$then! { $args
            memory_is_where_it_was_asked_for memory_is_ready_behind_its_work
            nobody_waits_for_a_queue callbacks_run_once
            memory_is_used_again_behind_its_work memory_is_freed_behind_its_work
            what_is_read_is_not_overwritten registrations_are_made_once_and_end_with_the_memory
            tensors_are_copied_there_and_back parts_are_gathered a_device_has_an_end
        }
    };
}

/// The scenarios' names, in the order in which [`all`] runs them.
pub const SCENARIOS: &[&str] = crate::__device_scenarios!(__suite_names());

/// Runs every scenario, each with a subject of its own, and returns their names.
///
/// # Panics
/// Where the contract is broken.
pub async fn all(make: impl Fn() -> Subject) -> &'static [&'static str] {
    crate::__device_scenarios!(__suite_run(make))
}

/// Memory on each device, of each size, holds its bytes.
pub async fn memory_is_where_it_was_asked_for(subject: Subject) {
    let devices = subject.allocator.devices();
    assert_eq!(devices, subject.allocator.devices(), "they do not change");
    for device in devices {
        assert!(!device.is_cpu());
        let pool = DevicePool::new(device, subject.allocator.clone());
        assert_eq!(pool.device(), device);
        for (seed, len) in [0, 1, 4097, 1 << 20].into_iter().enumerate() {
            let buffer = subject.uploaded(&pool, len, seed as u64);
            assert_eq!((buffer.device(), buffer.len()), (device, len));
            assert!(buffer.as_bytes().is_none(), "the CPU cannot read it");
            assert!(buffer.memory().work().is_some(), "it keeps fences");
            subject.check(&buffer, seed as u64).await;
            // A part of it, from an offset.
            let part = buffer.slice(len / 3..len);
            let found = blocking("a read", subject.fixture.read(&part)).await;
            let whole = pattern(len, seed as u64);
            assert_same(&found, &whole[len / 3..], "a slice");
        }
    }
}

/// A write reports its end by a fence.
pub async fn memory_is_ready_behind_its_work(subject: Subject) {
    let pool = subject.pool();
    let held = subject.fixture.hold_writes(subject.device());
    let buffer = subject.uploaded(&pool, 70_000, 1);
    let Some(fence) = buffer.ready() else {
        panic!("it is ready although nothing was written");
    };
    assert!(!is_reached(&fence));
    let read = subject.fixture.read(&buffer);
    drop(held);
    check_read(read, 70_000, 1).await;
    eventually("the fence", || {
        is_reached(&fence) && buffer.ready().is_none()
    })
    .await;
    subject.check(&buffer, 1).await;
}

/// On a device that stands still, every call returns at once.
pub async fn nobody_waits_for_a_queue(subject: Subject) {
    let device = subject.device();
    let held = [
        subject.fixture.hold_writes(device),
        subject.fixture.hold_reads(device),
    ];
    let calls = move || {
        let pool = subject.pool();
        let buffer = subject.uploaded(&pool, 70_000, 1);
        let read = subject.fixture.read(&buffer);
        drop(buffer);
        pool.trim(0);
        drop(pool);
        // The end of a backend may wait for its queues.
        (read, subject)
    };
    let (read, _subject) = blocking("a call on a device that stands still", calls).await;
    drop(held);
    check_read(read, 70_000, 1).await;
}

/// Callbacks run once, whether they are registered before or after the fence is reached.
pub async fn callbacks_run_once(subject: Subject) {
    let pool = subject.pool();
    let held = subject.fixture.hold_writes(subject.device());
    let buffer = subject.uploaded(&pool, 5000, 1);
    let fence = buffer.ready().unwrap_or_else(|| panic!("no fence"));
    let runs = Arc::new(AtomicUsize::new(0));
    let call = || {
        let (runs, fence) = (runs.clone(), fence.clone());
        move || {
            assert!(is_reached(&fence), "a callback before its time");
            runs.fetch_add(1, Ordering::SeqCst);
        }
    };
    (0..3).for_each(|_| fence.when_reached(Box::new(call())));
    assert_eq!(runs.load(Ordering::SeqCst), 0);
    drop(held);
    eventually("the callbacks", || runs.load(Ordering::SeqCst) == 3).await;
    fence.when_reached(Box::new(call()));
    eventually("a late one", || runs.load(Ordering::SeqCst) == 4).await;
    subject.check(&buffer, 1).await;
    assert_eq!(runs.load(Ordering::SeqCst), 4);
}

/// Memory that is dropped while a queue reads it is reused only after the read, and then it is.
pub async fn memory_is_used_again_behind_its_work(subject: Subject) {
    let pool = subject.pool();
    let len = 200_000;
    let first = subject.uploaded(&pool, len, 1);
    subject.check(&first, 1).await;
    let held = subject.fixture.hold_reads(subject.device());
    let read = subject.fixture.read(&first);
    drop(first);
    let second = subject.uploaded(&pool, len, 2);
    eventually("the second writing", || second.ready().is_none()).await;
    assert_eq!(pool.stats().fresh, 2, "it is still read");
    drop(held);
    check_read(read, len, 1).await;
    subject.check(&second, 2).await;
    subject.end_of_work(&second).await;
    drop(second);
    let taken = [pool.take(len), pool.take(len)];
    assert!(taken.iter().all(Result::is_ok));
    assert_eq!(pool.stats().fresh, 2, "all of it is idle");
}

/// As above, for memory that is freed: its pool keeps nothing, or is dropped before the memory comes back or after.
pub async fn memory_is_freed_behind_its_work(subject: Subject) {
    let frees: [fn(DevicePool, Buffer); 3] = [
        |pool, buffer| {
            drop(buffer);
            pool.trim(0);
            assert_eq!(pool.stats().retained_bytes, 0);
        },
        |pool, buffer| {
            drop(buffer);
            drop(pool);
        },
        |pool, buffer| {
            drop(pool);
            drop(buffer);
        },
    ];
    for free in frees {
        let pool = subject.pool();
        let buffer = subject.uploaded(&pool, 300_000, 3);
        subject.check(&buffer, 3).await;
        let held = subject.fixture.hold_reads(subject.device());
        let read = subject.fixture.read(&buffer);
        free(pool, buffer);
        drop(held);
        check_read(read, 300_000, 3).await;
    }
}

/// The holder of the only handle overwrites memory only behind a read that is still queued.
pub async fn what_is_read_is_not_overwritten(subject: Subject) {
    let len = 100_000;
    let memory = subject.allocator.allocate(subject.device(), len);
    let memory = memory.unwrap_or_else(|error| panic!("{error}"));
    let room = |memory| BufferMut::from_memory(memory, len).unwrap_or_else(|_| panic!("shared"));
    let first = subject
        .fixture
        .write(&pattern(len, 4), room(Arc::from(memory)));
    subject.check(&first, 4).await;
    let held = subject.fixture.hold_reads(subject.device());
    let read = subject.fixture.read(&first);
    let memory = first.memory().clone();
    drop(first);
    let again = room(memory);
    assert!(!again.unfinished().is_empty(), "a queue reads it");
    let second = subject.fixture.write(&pattern(len, 5), again);
    // Long enough for a wrong queue that does not wait.
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(
        second.ready().is_some(),
        "it is overwritten while it is read"
    );
    drop(held);
    check_read(read, len, 4).await;
    subject.check(&second, 5).await;
    subject.end_of_work(&second).await;
}

/// There is one registration for each domain, whatever slices are made and however often the pool hands the memory out.
pub async fn registrations_are_made_once_and_end_with_the_memory(subject: Subject) {
    struct Registration(Arc<AtomicUsize>);
    impl Drop for Registration {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let (pool, len) = (subject.pool(), 100_000);
    let (domains, there) = (
        [Domain::unique(), Domain::unique()],
        Arc::new(AtomicUsize::new(0)),
    );
    let made = AtomicUsize::new(0);
    let register = |buffer: &Buffer, domain| {
        let registered = buffer.registered(domain, |place| {
            assert!(place.offset + buffer.len() <= place.len, "{place:?}");
            made.fetch_add(1, Ordering::SeqCst);
            there.fetch_add(1, Ordering::SeqCst);
            Ok::<_, ()>(Registration(there.clone()))
        });
        registered.map(|registered| registered.unwrap_or_else(|()| panic!("refused")))
    };
    for _ in 0..3 {
        let buffer = subject.uploaded(&pool, len, 6);
        for domain in domains {
            let (Some(whole), Some(part)) = (
                register(&buffer, domain),
                register(&buffer.slice(5000..6000), domain),
            ) else {
                return assert!(buffer.memory().registrable().is_none());
            };
            assert_eq!(part.offset(), whole.offset() + 5000);
        }
        assert_eq!(made.load(Ordering::SeqCst), 2, "one for each domain");
        subject.check(&buffer, 6).await;
        subject.end_of_work(&buffer).await;
    }
    assert_eq!(pool.stats().fresh, 1);
    let buffer = subject.uploaded(&pool, len, 7);
    let in_use = register(&buffer, domains[0]);
    subject.end_of_work(&buffer).await;
    drop(buffer);
    pool.trim(0);
    assert_eq!(there.load(Ordering::SeqCst), 2, "a user holds the memory");
    drop(in_use);
    pool.trim(0);
    eventually("the end of both", || there.load(Ordering::SeqCst) == 0).await;
}

/// Tensors are copied to each device in turn and back to main memory, behind the sources' ready fences, if the allocator copies.
pub async fn tensors_are_copied_there_and_back(subject: Subject) {
    let nothing = subject.allocator.copy(Vec::new(), BufferMut::zeroed(0));
    if nothing.is_none() {
        return println!("skipped: its allocator copies nothing");
    }
    let context = Context::builder().allocator(subject.allocator.clone());
    let context = context.build().unwrap_or_else(|error| panic!("{error}"));
    let devices = subject.allocator.devices().into_iter();
    for device in devices.chain([Device::CPU]) {
        let empty = Tensor::from_bytes(Buffer::empty(subject.device()));
        let empty = to(&empty, device, &context).await;
        assert_eq!((empty.device(), empty.byte_len()), (device, 0));
    }
    for (seed, len) in [(1, 1), (2, 5000), (3, 3_000_000), (4, 9_000_000)] {
        let mut tensor = Tensor::from(pattern(len, seed));
        for device in subject.allocator.devices() {
            tensor = to(&tensor, device, &context).await;
            assert_eq!(tensor.device(), device);
            subject.check(tensor.buffer(), seed).await;
        }
        let held = subject.fixture.hold_writes(tensor.device());
        let late = subject.uploaded(&subject.pool(), len, seed + 10);
        let late = Tensor::from_bytes(late);
        let mut back = std::pin::pin!(to(&late, Device::CPU, &context));
        let early = tokio::time::timeout(Duration::from_millis(20), &mut back).await;
        assert!(early.is_err(), "it is not written yet");
        drop(held);
        let (back, late) = (to(&tensor, Device::CPU, &context).await, back.await);
        for (found, seed) in [(back, seed), (late, seed + 10)] {
            let found = found.as_bytes().unwrap_or_default();
            assert_same(found, &pattern(len, seed), "main memory");
        }
    }
}

/// Several buffers are concatenated, each one behind its own ready fence.
pub async fn parts_are_gathered(subject: Subject) {
    let pool = subject.pool();
    if !pool.gathers() {
        return println!("skipped: its allocator copies nothing");
    }
    let held = subject.fixture.hold_writes(subject.device());
    let late = subject.uploaded(&pool, 5000, 1);
    let (first, empty) = (late.slice(0..1000), late.slice(7..7));
    let parts = vec![first, empty, late.slice(1000..5000)];
    let mut gathered = std::pin::pin!(pool.gather(parts));
    let early = tokio::time::timeout(Duration::from_millis(20), &mut gathered).await;
    drop(held);
    let gathered = match early {
        Ok(gathered) => gathered,
        Err(_) => super::within("what is gathered", gathered).await,
    };
    let gathered = gathered.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(
        (gathered.device(), gathered.len()),
        (subject.device(), 5000)
    );
    subject.check(&gathered, 1).await;
    let nothing = pool.gather(vec![late.slice(0..0)]).await;
    assert!(nothing.is_ok_and(|nothing| nothing.is_empty()));
    let elsewhere = vec![late, Buffer::copy_from_slice(&[1])];
    assert!(pool.gather(elsewhere).await.is_err());
}

async fn to(tensor: &Tensor, device: Device, context: &Context) -> Tensor {
    let copied = super::within("a copy", tensor.to(device, context)).await;
    copied.unwrap_or_else(|error| panic!("{error}"))
}

/// A request that no device can satisfy is an error, and later ones succeed.
pub async fn a_device_has_an_end(subject: Subject) {
    let pool = subject.pool();
    let error = match pool.take(usize::MAX / 4) {
        Ok(buffer) => panic!("{buffer:?}"),
        Err(error) => error,
    };
    assert_eq!(error.device, subject.device());
    assert!(!error.reason.is_empty());
    let buffer = subject.uploaded(&pool, 10_000, 8);
    subject.check(&buffer, 8).await;
}
