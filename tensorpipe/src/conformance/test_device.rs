//! Devices for tests, `test:0`, `test:1`, …: memory that the CPU cannot read, and queues that work with a delay.
//!
//! The memory is private, behind a lock. Only work on a [`TestQueue`] touches it: on the queue's thread, in order, each piece after a
//! pause. So code that does not wait for a fence finds garbage, and code that frees memory too early causes a fault.

mod queue;

pub use queue::{Copied, Hold, TestQueue};

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::device::{
    Allocator, Buffer, BufferMut, Copying, Device, DeviceKind, Domain, Memory, QueuedWork,
    Registered, Registrable, Registrations,
};
use crate::error::DeviceError;

/// The content of fresh and freed memory.
const GARBAGE: u8 = 0xdd;

/// Bytes of one device.
const CAPACITY: usize = 512 << 20;

/// The devices of one machine, and their allocator. Cloning clones a handle.
#[derive(Clone)]
pub struct TestDevices {
    machine: Arc<Machine>,
}

struct Machine {
    devices: u32,
    domain: Domain,
    state: Mutex<MachineState>,
}

#[derive(Default)]
struct MachineState {
    /// By address.
    memory: HashMap<u64, Cells>,
    next: u64,
    faults: Vec<String>,
}

/// One allocation.
struct Cells {
    device: Device,
    bytes: Vec<u8>,
    /// How many registrations it has.
    pinned: usize,
}

impl TestDevices {
    /// The device kind of all of them.
    pub const KIND: DeviceKind = DeviceKind::new("test");

    /// A machine with so many devices.
    pub fn new(devices: u32) -> Self {
        let machine = Machine {
            devices,
            domain: Domain::unique(),
            state: Mutex::default(),
        };
        Self {
            machine: Arc::new(machine),
        }
    }

    /// Device number `index`, whether or not it exists.
    pub const fn device(index: u32) -> Device {
        Device::new(Self::KIND, index)
    }

    /// A queue for copies between main memory and these devices.
    pub fn queue(&self) -> TestQueue {
        TestQueue::new(self.machine.clone())
    }

    /// Registers `buffer` with the devices' bus, once for its allocation. `None` for memory that cannot be registered.
    pub fn register(&self, buffer: &Buffer) -> Option<Registered<Pinned>> {
        let memory = buffer.memory().as_any().downcast_ref::<TestMemory>();
        let address = memory.map(|memory| memory.address);
        let pin = |_: Registrable<'_>| {
            let pinned = Pinned {
                address,
                machine: self.machine.clone(),
            };
            pinned.count(|pins| pins + 1);
            Ok::<_, std::convert::Infallible>(pinned)
        };
        let Ok(registered) = buffer.registered(self.machine.domain, pin)?;
        Some(registered)
    }

    /// Allocated bytes on all devices.
    pub fn allocated(&self) -> usize {
        let state = self.machine.lock();
        state.memory.values().map(|cells| cells.bytes.len()).sum()
    }

    /// The faults on the devices: each is a mistake of the code that uses them.
    pub fn faults(&self) -> Vec<String> {
        self.machine.lock().faults.clone()
    }
}

impl std::fmt::Debug for TestDevices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TestDevices({})", self.machine.devices)
    }
}

impl Allocator for TestDevices {
    fn devices(&self) -> Vec<Device> {
        (0..self.machine.devices).map(Self::device).collect()
    }

    fn allocate(&self, device: Device, len: usize) -> Result<Box<dyn Memory>, DeviceError> {
        let mut state = self.machine.lock();
        let here = state.memory.values().filter(|cells| cells.device == device);
        let used: usize = here.map(|cells| cells.bytes.len()).sum();
        let refused = |reason: String| Err(DeviceError::new(device, "allocate", reason));
        if !self.devices().contains(&device) {
            return refused("there is no such device".to_owned());
        }
        if len > CAPACITY - used {
            return refused(format!("{used} of {CAPACITY} bytes are in use"));
        }
        let address = state.next;
        state.next += 1;
        let cells = Cells {
            device,
            bytes: vec![GARBAGE; len],
            pinned: 0,
        };
        state.memory.insert(address, cells);
        Ok(Box::new(TestMemory {
            registrations: Registrations::default(),
            device,
            address,
            len,
            work: QueuedWork::default(),
            machine: self.machine.clone(),
        }))
    }

    fn copy(&self, from: Vec<Buffer>, mut to: BufferMut) -> Option<Copying> {
        let queue = self.queue();
        Some(Box::pin(async move {
            let mut all = Vec::new();
            for part in from {
                let read = match part.device().is_cpu() {
                    true => part,
                    false => {
                        let read = queue.read(&part, BufferMut::zeroed(part.len()))?;
                        read.fence().when().await;
                        let gone = || DeviceError::new(part.device(), "copy", "no bytes");
                        read.take().ok_or_else(gone)?.freeze()
                    }
                };
                all.extend_from_slice(read.as_bytes().unwrap_or_default());
            }
            if all.len() != to.len() {
                let reason = format!("{} bytes for {}", all.len(), to.len());
                return Err(DeviceError::new(to.device(), "copy", reason));
            }
            let Some(room) = to.as_bytes_mut() else {
                return queue.write(Buffer::from_vec(all), to);
            };
            room.copy_from_slice(&all);
            Ok(to.freeze())
        }))
    }

    /// So little that tests reach the bound.
    fn retain(&self, _: Device) -> u64 {
        64 << 20
    }
}

impl Machine {
    fn lock(&self) -> MutexGuard<'_, MachineState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MachineState {
    /// The bytes of a range, for work on a queue.
    fn bytes(&mut self, place: DeviceRange) -> Option<&mut [u8]> {
        let end = place.offset + place.len;
        let found = self.memory.get_mut(&place.address);
        let found = found.and_then(|cells| cells.bytes.get_mut(place.offset..end));
        if found.is_none() {
            self.faults.push(format!("work on freed memory: {place:?}"));
        }
        found
    }
}

/// Where bytes lie on the devices.
#[derive(Clone, Copy, Debug)]
struct DeviceRange {
    address: u64,
    offset: usize,
    len: usize,
}

/// Memory of a test device.
struct TestMemory {
    /// Declared before the memory, which `drop` frees: see there.
    registrations: Registrations,
    device: Device,
    address: u64,
    len: usize,
    work: QueuedWork,
    machine: Arc<Machine>,
}

impl TestMemory {
    /// The range of some memory, if it is of this kind.
    fn place(memory: &dyn Memory, offset: usize, len: usize) -> Result<DeviceRange, DeviceError> {
        let known = memory.as_any().downcast_ref::<Self>();
        let place = known.map(|known| DeviceRange {
            address: known.address,
            offset,
            len,
        });
        let reason = "memory of somebody else's device";
        place.ok_or_else(|| DeviceError::new(memory.device(), "copy", reason))
    }
}

impl Memory for TestMemory {
    fn device(&self) -> Device {
        self.device
    }
    fn len(&self) -> usize {
        self.len
    }
    fn as_bytes(&self) -> Option<&[u8]> {
        None
    }
    fn work(&self) -> Option<&QueuedWork> {
        Some(&self.work)
    }
    fn registrable(&self) -> Option<Registrable<'_>> {
        Some(Registrable::whole(&self.registrations, self.len))
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

impl Drop for TestMemory {
    fn drop(&mut self) {
        let unfinished = self.work.unfinished().len();
        self.registrations.clear();
        let mut state = self.machine.lock();
        let pinned = (state.memory.remove(&self.address)).map_or(0, |cells| cells.pinned);
        if unfinished + pinned > 0 {
            state.faults.push(format!(
                "memory freed with {unfinished} pieces of work queued on it, and {pinned} registrations"
            ));
        }
    }
}

/// A registration of device memory. For main memory, nothing is counted.
pub struct Pinned {
    address: Option<u64>,
    machine: Arc<Machine>,
}

impl Pinned {
    fn count(&self, change: impl FnOnce(usize) -> usize) {
        let mut state = self.machine.lock();
        let cells = self.address.and_then(|at| state.memory.get_mut(&at));
        match cells {
            Some(cells) => cells.pinned = change(cells.pinned),
            None if self.address.is_none() => {}
            None => {
                let outlived = "a registration has outlived its memory".to_owned();
                state.faults.push(outlived);
            }
        }
    }
}

impl std::fmt::Debug for Pinned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pinned({:?})", self.address)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.count(|pins| pins - 1);
    }
}
