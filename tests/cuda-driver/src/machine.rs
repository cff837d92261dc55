//! The machine: its devices, their memory, and what went wrong there.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_uint};
use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{CUdeviceptr, CUresult};

use crate::streams::Position;

/// The one there is.
pub(crate) static MACHINE: LazyLock<Machine> = LazyLock::new(Machine::new);

/// What memory holds that nobody has written.
pub(crate) const GARBAGE: u8 = 0xdd;

/// Device addresses are no canonical ones: whoever uses one as a pointer dies.
const ADDRESSES: u64 = 0x1100_0000_0000_0000;

/// Allocations lie apart, so that a copy beyond the end of one is seen.
const APART: u64 = 1 << 21;

pub(crate) struct Machine {
    pub(crate) devices: u32,
    pub(crate) version: i32,
    pub(crate) capacity: u64,
    /// What `cuInit` answers.
    pub(crate) init: c_uint,
    /// Which device of the machine each of this process's is.
    order: Vec<u32>,
    /// Whether it says that it exports dma-bufs.
    pub(crate) dma_bufs: i32,
    /// Functions that it does not support, by name.
    refused: String,
    /// A call that fails.
    failing: Mutex<Option<Failing>>,
    /// Functions that pass or open other memory than is meant, by name.
    swapped: String,
    /// Copies of so many bytes fail.
    lost: usize,
    memory: Mutex<Memory>,
    /// Pinned main memory, by its start.
    pinned: Mutex<BTreeMap<usize, usize>>,
    faults: Mutex<Vec<String>>,
    /// Calls that waited for a device.
    pub(crate) waits: AtomicU64,
    /// Copies between devices that do not reach each other.
    pub(crate) detours: AtomicU64,
    /// Handles that were opened.
    pub(crate) imports: AtomicU64,
    /// Copies to main memory that are queued.
    pub(crate) downloads: AtomicU64,
    /// Registrations of main memory, and those of them that are read-only.
    pub(crate) registrations: AtomicU64,
    pub(crate) read_only: AtomicU64,
}

struct Failing {
    function: String,
    /// Calls up to that one and with it; 0 behind it.
    left: u64,
    error: CUresult,
}

impl Failing {
    /// `NAME:NTH:CODE`; `None` where nothing is said.
    fn parse(said: &str) -> Option<Self> {
        if said.is_empty() {
            return None;
        }
        let mut fields = said.split(':');
        let mut field = || fields.next().expect("NAME:NTH:CODE");
        Some(Self {
            function: field().to_owned(),
            left: field().parse().expect("which call"),
            error: match field() {
                "2" => CUresult::CUDA_ERROR_OUT_OF_MEMORY,
                "4" => CUresult::CUDA_ERROR_DEINITIALIZED,
                "400" => CUresult::CUDA_ERROR_INVALID_HANDLE,
                "801" => CUresult::CUDA_ERROR_NOT_SUPPORTED,
                "999" => CUresult::CUDA_ERROR_UNKNOWN,
                code => panic!("no error {code} is known here"),
            },
        })
    }
}

#[derive(Default)]
struct Memory {
    blocks: BTreeMap<CUdeviceptr, Block>,
    next: u64,
}

pub(crate) struct Block {
    pub(crate) device: u32,
    pub(crate) len: usize,
    bytes: Bytes,
    /// It is there behind this.
    since: Option<Position>,
    /// Some device was let in.
    pub(crate) is_reached: bool,
    /// Its release is queued.
    pub(crate) is_released: bool,
    /// It went with its device's context.
    is_lost: bool,
}

/// Memory of this process's, or of a file that others have mapped, too.
pub(crate) enum Bytes {
    Own(Vec<u8>),
    Mapped(usize, usize),
}

impl Bytes {
    pub(crate) fn of_file(file: &File, len: usize) -> Option<Self> {
        Some(Self::Mapped(
            crate::physical::map(file, len)?.expose_provenance(),
            len,
        ))
    }

    fn all(&mut self) -> &mut [u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Mapped(start, len) => {
                let start = std::ptr::with_exposed_provenance_mut(*start);
                // SAFETY: mapped in `of_file`, as long. Other processes touch it when their streams do: as a device's memory is touched.
                unsafe { std::slice::from_raw_parts_mut(start, *len) }
            }
        }
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        if let Self::Mapped(start, len) = *self {
            let start = std::ptr::with_exposed_provenance_mut(start);
            // SAFETY: mapped in `of_file`, and touched by nobody from now on.
            unsafe { libc::munmap(start, len) };
        }
    }
}

fn variable<T: std::str::FromStr>(name: &str, usual: T) -> T {
    let found = std::env::var(name).ok();
    found.and_then(|text| text.parse().ok()).unwrap_or(usual)
}

impl Machine {
    fn new() -> Self {
        report(crate::BEGINS);
        Self {
            devices: variable("TEST_CUDA_DEVICES", 2),
            version: variable("TEST_CUDA_VERSION", 12040),
            capacity: variable("TEST_CUDA_MEMORY", 1 << 30),
            init: variable("TEST_CUDA_INIT", 0),
            order: variable("TEST_CUDA_ORDER", String::new())
                .split(',')
                .filter_map(|number| number.parse().ok())
                .collect(),
            dma_bufs: variable("TEST_CUDA_DMA_BUFS", 0),
            refused: variable("TEST_CUDA_REFUSES", String::new()),
            failing: Mutex::new(Failing::parse(&variable("TEST_CUDA_FAILS", String::new()))),
            swapped: variable("TEST_CUDA_SWAPS", String::new()),
            lost: variable("TEST_CUDA_LOSES", usize::MAX),
            memory: Mutex::default(),
            pinned: Mutex::default(),
            faults: Mutex::default(),
            waits: AtomicU64::new(0),
            detours: AtomicU64::new(0),
            imports: AtomicU64::new(0),
            downloads: AtomicU64::new(0),
            registrations: AtomicU64::new(0),
            read_only: AtomicU64::new(0),
        }
    }

    /// Whether a call of this function fails, and with what.
    pub(crate) fn fails(&self, function: &str) -> Result<(), CUresult> {
        let named = |name: &str| name == function || Some(name) == function.strip_suffix("_v2");
        if self.refused.split(',').any(named) {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *failing {
            Some(failing) if named(&failing.function) && failing.left > 0 => {
                failing.left -= 1;
                match failing.left {
                    0 => Err(failing.error),
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// Who a device is, also in processes that see them in another order.
    pub(crate) fn physical(&self, device: u32) -> u32 {
        let said = self.order.get(device as usize);
        said.copied().unwrap_or(device)
    }

    /// The device here that is this one.
    pub(crate) fn seen_as(&self, physical: u32) -> Option<u32> {
        (0..self.devices).find(|device| self.physical(*device) == physical)
    }

    pub(crate) fn swaps(&self, function: &str) -> bool {
        self.swapped.split(',').any(|swapped| swapped == function)
    }

    pub(crate) fn loses(&self, len: usize) -> bool {
        self.lost == len
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn faults(&self) -> MutexGuard<'_, Vec<String>> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn pinned(&self) -> MutexGuard<'_, BTreeMap<usize, usize>> {
        self.pinned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the devices reach so many bytes of main memory by themselves.
    pub(crate) fn is_pinned(&self, start: usize, len: usize) -> bool {
        let pinned = self.pinned();
        let found = pinned.range(..=start).next_back();
        found.is_some_and(|(at, long)| start + len <= at + long)
    }

    /// Something that a real device may punish. Every later call fails.
    pub(crate) fn fault(&self, what: String) -> CUresult {
        report(&format!("fault: {what}"));
        self.faults().push(what);
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
    }

    /// What calls return once there was a fault.
    pub(crate) fn state(&self) -> Result<(), CUresult> {
        match self.faults().is_empty() {
            true => Ok(()),
            false => Err(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS),
        }
    }

    pub(crate) fn waited(&self) {
        report("waits for a device");
        self.waits.fetch_add(1, Ordering::Relaxed);
    }

    /// Bytes of a device that are in use.
    pub(crate) fn used(&self, device: u32) -> u64 {
        let memory = self.memory();
        let here = memory
            .blocks
            .values()
            .filter(|block| block.device == device);
        here.map(|block| block.len as u64).sum()
    }

    pub(crate) fn allocate(
        &self,
        device: u32,
        len: usize,
        since: Option<Position>,
    ) -> Result<CUdeviceptr, CUresult> {
        if len == 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        if self.used(device) + len as u64 > self.capacity {
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        let address = self.reserve(len);
        let block = Block {
            device,
            len,
            bytes: Bytes::Own(vec![GARBAGE; len]),
            since,
            is_reached: true,
            is_released: false,
            is_lost: false,
        };
        self.memory().blocks.insert(address, block);
        Ok(address)
    }

    /// Addresses that nobody has had.
    pub(crate) fn reserve(&self, len: usize) -> CUdeviceptr {
        let mut memory = self.memory();
        let address = ADDRESSES + memory.next;
        memory.next += (len as u64).next_multiple_of(APART) + APART;
        address
    }

    /// Maps physical memory there, unless something is there already.
    pub(crate) fn map(
        &self,
        address: CUdeviceptr,
        (device, len): (u32, usize),
        bytes: Bytes,
    ) -> Result<(), CUresult> {
        let block = Block {
            device,
            len,
            bytes,
            since: None,
            is_reached: false,
            is_released: false,
            is_lost: false,
        };
        let mut memory = self.memory();
        if memory.is_used(address, len) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        memory.blocks.insert(address, block);
        Ok(())
    }

    /// Whether anything lies there.
    pub(crate) fn is_used(&self, address: CUdeviceptr, len: usize) -> bool {
        self.memory().is_used(address, len)
    }

    /// Lets `look` see each block of a range, which must hold all of it.
    pub(crate) fn blocks(
        &self,
        address: CUdeviceptr,
        len: usize,
        look: impl Fn(&mut Block),
    ) -> Result<(), CUresult> {
        let mut memory = self.memory();
        let range = address..address + len as u64;
        let mut held = 0;
        for (_, block) in memory.blocks.range_mut(range) {
            look(block);
            held += block.len;
        }
        match held == len {
            true => Ok(()),
            false => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// Unmaps each block of a range.
    pub(crate) fn unmap(&self, address: CUdeviceptr, len: usize) -> Result<(), CUresult> {
        self.blocks(address, len, |_| ())?;
        let range = address..address + len as u64;
        let mut memory = self.memory();
        let gone: Vec<_> = memory.blocks.extract_if(range, |_, _| true).collect();
        drop(memory);
        drop(gone);
        Ok(())
    }

    /// A device's context is gone, and with it what is there, but for what is about to go.
    pub(crate) fn lose(&self, device: u32) {
        let mut memory = self.memory();
        let here = memory.blocks.values_mut();
        let here = here.filter(|block| block.device == device && !block.is_released);
        here.for_each(|block| block.is_lost = true);
    }

    /// Lets `look` see the block that begins at this address.
    pub(crate) fn block<R>(
        &self,
        address: CUdeviceptr,
        look: impl FnOnce(&mut Block) -> R,
    ) -> Result<R, CUresult> {
        let mut memory = self.memory();
        let block = memory.blocks.get_mut(&address);
        block.map(look).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }

    /// The device on which an address lies.
    pub(crate) fn device_of(&self, address: CUdeviceptr) -> Option<u32> {
        let memory = self.memory();
        let (start, block) = memory.blocks.range(..=address).next_back()?;
        (address - start < block.len as u64).then_some(block.device)
    }

    pub(crate) fn free(&self, address: CUdeviceptr) -> Result<(), CUresult> {
        let block = self.memory().blocks.remove(&address);
        block.map(drop).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }

    /// Work touches these bytes now: those of one block, or of several that are mapped one behind the other.
    pub(crate) fn touch(
        &self,
        address: CUdeviceptr,
        len: usize,
        what: &str,
        act: impl FnOnce(&mut [u8]),
    ) {
        let mut memory = self.memory();
        let pieces = match memory.pieces(address, len) {
            Ok(pieces) => pieces,
            Err(why) => {
                drop(memory);
                self.fault(format!("{what}: {why}"));
                return;
            }
        };
        if let [(start, range)] = &pieces[..] {
            return act(memory.bytes(*start, range));
        }
        let mut all = Vec::with_capacity(len);
        for (start, range) in &pieces {
            all.extend_from_slice(memory.bytes(*start, range));
        }
        act(&mut all);
        let mut rest = &all[..];
        for (start, range) in &pieces {
            let (here, behind) = rest.split_at(range.len());
            memory.bytes(*start, range).copy_from_slice(here);
            rest = behind;
        }
    }
}

impl Memory {
    fn is_used(&self, address: CUdeviceptr, len: usize) -> bool {
        let before = self.blocks.range(..address + len as u64).next_back();
        before.is_some_and(|(start, block)| start + block.len as u64 > address)
    }

    /// The blocks that so many bytes lie in, by their start, and where there; why work may not touch them.
    fn pieces(
        &self,
        address: CUdeviceptr,
        len: usize,
    ) -> Result<Vec<(CUdeviceptr, Range<usize>)>, String> {
        let (mut pieces, mut at, mut left) = (Vec::new(), address, len);
        loop {
            let found = self.blocks.range(..=at).next_back();
            let found = found.and_then(|(start, block)| {
                let begin = usize::try_from(at - start).ok()?;
                (begin + left.min(1) <= block.len).then_some((*start, block, begin))
            });
            let Some((start, block, begin)) = found else {
                return Err(format!("{len} bytes at {address:#x} are not allocated"));
            };
            let is_early = |since: &Position| !since.is_reached();
            if block.since.as_ref().is_some_and(is_early) {
                return Err(format!("{address:#x} is used before its allocation"));
            }
            if block.is_lost {
                return Err(format!("the context of {address:#x} is gone"));
            }
            if !block.is_reached {
                return Err(format!("no device may reach {address:#x}"));
            }
            let here = left.min(block.len - begin);
            pieces.push((start, begin..begin + here));
            left -= here;
            at += here as u64;
            if left == 0 {
                return Ok(pieces);
            }
        }
    }

    /// Bytes of a block that there is.
    fn bytes(&mut self, start: CUdeviceptr, range: &Range<usize>) -> &mut [u8] {
        let block = self.blocks.get_mut(&start);
        let all = block.map_or(&mut [][..], |block| block.bytes.all());
        &mut all[range.clone()]
    }
}

/// Adds a line to the report, if one is wanted: at once, since a process may be killed.
fn report(what: &str) {
    let Some(file) = std::env::var_os("TEST_CUDA_REPORT").filter(|file| !file.is_empty()) else {
        return;
    };
    let line = format!("{} {what}\n", std::process::id());
    let opened = File::options().append(true).create(true).open(file);
    // One call for one line: those of other processes stay apart.
    let written = opened.and_then(|mut file| file.write_all(line.as_bytes()));
    written.expect("a report that is wanted is written");
}

/// How often memory of another process was opened.
#[unsafe(no_mangle)]
pub extern "C" fn testCudaImports() -> u64 {
    MACHINE.imports.load(Ordering::Relaxed)
}

/// From now on a call fails, as `TEST_CUDA_FAILS` says it, or none. Whether the one that was to fail before has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn testCudaFails(said: *const c_char) -> bool {
    // SAFETY: the caller's promise: it ends with a zero.
    let said = unsafe { std::ffi::CStr::from_ptr(said) };
    let next = Failing::parse(&said.to_string_lossy());
    let mut failing = MACHINE
        .failing
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let before = std::mem::replace(&mut *failing, next);
    before.is_some_and(|before| before.left == 0)
}

/// How many copies to main memory are queued and not made yet.
#[unsafe(no_mangle)]
pub extern "C" fn testCudaDownloads() -> u64 {
    MACHINE.downloads.load(Ordering::Relaxed)
}

/// How often main memory was registered.
#[unsafe(no_mangle)]
pub extern "C" fn testCudaRegistrations() -> u64 {
    MACHINE.registrations.load(Ordering::Relaxed)
}

/// How often of that read-only.
#[unsafe(no_mangle)]
pub extern "C" fn testCudaReadOnly() -> u64 {
    MACHINE.read_only.load(Ordering::Relaxed)
}

/// How many faults there were; the last one of them, as a C string, in `text`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn testCudaFaults(text: *mut c_char, room: usize) -> usize {
    let faults = MACHINE.faults();
    let last = faults.last().map(String::as_bytes).unwrap_or_default();
    let len = last.len().min(room.saturating_sub(1));
    if room > 0 {
        // SAFETY: the caller has room for so many bytes, and one more.
        unsafe { std::ptr::copy_nonoverlapping(last.as_ptr(), text.cast(), len) };
        // SAFETY: as above.
        let end = unsafe { text.add(len) };
        // SAFETY: as above.
        unsafe { end.write(0) };
    }
    faults.len()
}

/// How often somebody waited for a device.
#[unsafe(no_mangle)]
pub extern "C" fn testCudaWaits() -> u64 {
    MACHINE.waits.load(Ordering::Relaxed)
}

/// How many copies between devices went by way of main memory.
#[unsafe(no_mangle)]
pub extern "C" fn testCudaDetours() -> u64 {
    MACHINE.detours.load(Ordering::Relaxed)
}

/// Bytes of a device that are in use.
#[unsafe(no_mangle)]
pub extern "C" fn testCudaUsed(device: u32) -> u64 {
    MACHINE.used(device)
}

/// Shares what C holds by its address.
pub(crate) fn handle<T>(value: Arc<T>) -> *mut T {
    Arc::into_raw(value).cast_mut()
}
