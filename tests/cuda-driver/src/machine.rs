//! The machine: its devices, which of its calls fail, and what went wrong there.

use std::collections::BTreeMap;
use std::ffi::c_uint;
use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::CUresult;

use crate::blocks::Memory;
use crate::streams::is_settled;

/// Calls that need no lock of the driver's.
const WITHOUT_LOCK: [&str; 8] = [
    "cuInit",
    "cuGetErrorString",
    "cuDeviceGet",
    "cuCtxSetCurrent",
    "cuCtxGetCurrent",
    "cuEventQuery",
    "cuStreamIsCapturing",
    "cuThreadExchangeStreamCaptureMode",
];

/// The one there is.
pub(crate) static MACHINE: LazyLock<Machine> = LazyLock::new(Machine::new);

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
    /// Whether its devices have virtual memory management.
    pub(crate) managed: i32,
    /// Whether devices have memory pools.
    pub(crate) pools: i32,
    /// Whether calls wait while another one unpins main memory, and one host function runs at a time.
    pub(crate) locks: bool,
    /// Functions that it does not support, by name.
    refused: String,
    /// A call that fails.
    pub(crate) failing: Mutex<Option<Failing>>,
    /// A function that does not return, by name, and how many calls of it wait.
    held: Mutex<(String, u64)>,
    let_go: Condvar,
    /// Functions that pass or open other memory than is meant, by name.
    swapped: String,
    /// Copies of so many bytes fail.
    lost: usize,
    pub(crate) memory: Mutex<Memory>,
    /// Pinned main memory, by its start.
    pinned: Mutex<BTreeMap<usize, usize>>,
    faults: Mutex<Vec<String>>,
    /// Calls that waited for a device.
    pub(crate) waits: AtomicU64,
    /// Copies between devices that do not reach each other.
    pub(crate) detours: AtomicU64,
    /// Handles that were opened.
    pub(crate) imports: AtomicU64,
    /// Handles that were passed on.
    pub(crate) exports: AtomicU64,
    /// Copies to main memory that are queued.
    pub(crate) downloads: AtomicU64,
    /// The longest pinned main memory that was made.
    pub(crate) longest_pinned: AtomicU64,
    /// Registrations of main memory, and those of them that are read-only.
    pub(crate) registrations: AtomicU64,
    pub(crate) read_only: AtomicU64,
}

pub(crate) struct Failing {
    function: String,
    /// Calls up to that one and with it; 0 behind it.
    pub(crate) left: u64,
    /// Whether all calls behind it fail, too.
    lasts: bool,
    error: CUresult,
}

impl Failing {
    /// `NAME:NTH:CODE`, or `NAME:NTH+:CODE`; `None` where nothing is said.
    pub(crate) fn parse(said: &str) -> Option<Self> {
        if said.is_empty() {
            return None;
        }
        let mut fields = said.split(':');
        let mut field = || fields.next().expect("NAME:NTH:CODE");
        let (function, which) = (field().to_owned(), field());
        let nth = which.strip_suffix('+');
        Some(Self {
            function,
            left: nth.unwrap_or(which).parse().expect("which call"),
            lasts: nth.is_some(),
            error: match field() {
                "2" => CUresult::CUDA_ERROR_OUT_OF_MEMORY,
                "4" => CUresult::CUDA_ERROR_DEINITIALIZED,
                "46" => CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE,
                "201" => CUresult::CUDA_ERROR_INVALID_CONTEXT,
                "400" => CUresult::CUDA_ERROR_INVALID_HANDLE,
                "700" => CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
                "801" => CUresult::CUDA_ERROR_NOT_SUPPORTED,
                "806" => CUresult::CUDA_ERROR_MPS_RPC_FAILURE,
                "900" => CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                "908" => CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
                "911" => CUresult::CUDA_ERROR_EXTERNAL_DEVICE,
                "999" => CUresult::CUDA_ERROR_UNKNOWN,
                code => panic!("no error {code} is known here"),
            },
        })
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
            managed: variable("TEST_CUDA_VMM", 1),
            pools: variable("TEST_CUDA_POOLS", 1),
            locks: variable("TEST_CUDA_LOCKS", 0) > 0,
            refused: variable("TEST_CUDA_REFUSES", String::new()),
            failing: Mutex::new(Failing::parse(&variable("TEST_CUDA_FAILS", String::new()))),
            held: Mutex::default(),
            let_go: Condvar::new(),
            swapped: variable("TEST_CUDA_SWAPS", String::new()),
            lost: variable("TEST_CUDA_LOSES", usize::MAX),
            memory: Mutex::default(),
            pinned: Mutex::default(),
            faults: Mutex::default(),
            waits: AtomicU64::new(0),
            detours: AtomicU64::new(0),
            imports: AtomicU64::new(0),
            exports: AtomicU64::new(0),
            downloads: AtomicU64::new(0),
            longest_pinned: AtomicU64::new(0),
            registrations: AtomicU64::new(0),
            read_only: AtomicU64::new(0),
        }
    }

    /// Whether a call of this function fails, and with what.
    pub(crate) fn fails(&self, function: &str) -> Result<(), CUresult> {
        if self.locks && !WITHOUT_LOCK.contains(&function) {
            is_settled();
        }
        let named = |name: &str| name == function || Some(name) == function.strip_suffix("_v2");
        let mut held = self.held();
        while named(&held.0) {
            held.1 += 1;
            held = self
                .let_go
                .wait(held)
                .unwrap_or_else(PoisonError::into_inner);
            held.1 -= 1;
        }
        drop(held);
        crate::captures::allow(function)?;
        if self.refused.split(',').any(named) {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *failing {
            Some(failing) if named(&failing.function) && (failing.lasts || failing.left > 0) => {
                failing.left = failing.left.saturating_sub(1);
                match failing.left {
                    0 => Err(failing.error),
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    fn held(&self) -> MutexGuard<'_, (String, u64)> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on calls of this function do not return, or all do.
    pub(crate) fn hold(&self, function: &str) {
        function.clone_into(&mut self.held().0);
        self.let_go.notify_all();
    }

    /// How many calls do not return.
    pub(crate) fn are_held(&self) -> u64 {
        self.held().1
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

    pub(crate) fn faults(&self) -> MutexGuard<'_, Vec<String>> {
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
        // Whoever panics over what the calls return is asked why.
        eprintln!("the test driver: {what}");
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

/// Shares what C holds by its address.
pub(crate) fn handle<T>(value: Arc<T>) -> *mut T {
    Arc::into_raw(value).cast_mut()
}
