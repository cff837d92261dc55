//! A CUDA driver for tests, which a process finds by its loader's path: [`Driver::load`].
//!
//! What a real driver leaves open happens here. Work on a stream begins late, on the stream's own thread. Device addresses are such that
//! the CPU faults on them. Memory holds garbage before it is written, and touching it before its allocation or after its release is a
//! *fault*. A fault is kept, and every later call fails, as after an illegal access on a real device. Copies from and to pinned main memory
//! are made when their stream gets to them. Of other memory they are as the real ones: to a device the bytes are read within the call, from
//! a device the call waits until they are there.
//!
//! Calls that wait for a device, as the real ones do or may, are counted: the suites see to it that there are none.
//!
//! Types and numbers are cudarc's. It proves logic, never speed.
//!
//! | variable | |
//! |---|---|
//! | `TEST_CUDA` | `real`: the suites run on the machine's own driver instead |
//! | `TEST_CUDA_DEVICES` | how many there are; 2 |
//! | `TEST_CUDA_VERSION` | what the driver says; 12040 |
//! | `TEST_CUDA_DELAY_US` | how late each piece of work begins; 500 |
//! | `TEST_CUDA_MEMORY` | bytes of each device; 1 GiB |
//! | `TEST_CUDA_SHARED` | a folder in which processes note what physical memory they have a handle on, or mapped: each sees what is used by all |
//! | `TEST_CUDA_INIT` | a number that `cuInit` fails with |
//! | `TEST_CUDA_PEERS` | pairs of devices of which the first reaches the second's memory, as `0-1,1-0`; none |
//! | `TEST_CUDA_ORDER` | which of the machine's devices each is, as `1,0`: with it go its UUID and whose memory it maps; `0,1` |
//! | `TEST_CUDA_DMA_BUFS` | 1: it says that it exports dma-bufs, which it does not; 0 |
//! | `TEST_CUDA_VMM` | 0: it says that its devices have no virtual memory management; 1 |
//! | `TEST_CUDA_POOLS` | 0: it says that its devices have no memory pools; 1 |
//! | `TEST_CUDA_REFUSES` | names of functions that are not supported, with commas between them |
//! | `TEST_CUDA_FAILS` | `NAME:NTH:CODE`: call number NTH of that function, from 1 on, fails with that error. With `NTH+`, later calls fail, too. `testCudaFails` says so later |
//! | `TEST_CUDA_SWAPS` | the same of `cuMemExportToShareableHandle` and `cuMemImportFromShareableHandle`: they pass and open other memory |
//! | `TEST_CUDA_LOSES` | a length: copies of so many bytes between main memory and a device are not made, and an event right behind one fails |
//! | `TEST_CUDA_LOCKS` | 1: what real drivers may do, too: while main memory is unpinned, most other calls wait, and one host function runs at a time; 0 |
//! | `TEST_CUDA_REPORT` | a file to which each process adds a line with its number when it begins, and one for each fault and each wait, as they happen |

#![allow(
    unsafe_code,
    non_snake_case,
    unreachable_pub,
    clippy::missing_safety_doc,
    reason = "a C library: its functions have the names, and the contracts, of CUDA's driver API"
)]

/// Returns from a function that is to fail, and does not from one that is held.
macro_rules! may_fail {
    ($function:literal) => {
        if let Err(error) = crate::machine::MACHINE.fails($function) {
            return error;
        }
    };
}

mod blocks;
mod captures;
mod devices;
mod kernels;
mod machine;
mod memory;
mod physical;
mod streams;
mod told;

use std::path::PathBuf;
use std::sync::OnceLock;

/// What a process reports first.
const BEGINS: &str = "begins";

/// Where processes find the driver. The place goes with it.
#[derive(Debug)]
pub struct Driver {
    place: tempfile::TempDir,
}

fn library() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a name");
    let beside = test.parent().expect("it lies in a folder");
    let library = beside.join("libtensorpipe_test_cuda.so");
    assert!(library.exists(), "{} was not built", library.display());
    library
}

/// Whether the suites are to run on a real driver (`TEST_CUDA=real`): then this one is not found, and has nothing to say.
pub fn is_real() -> bool {
    std::env::var_os("TEST_CUDA").is_some_and(|driver| driver == "real")
}

impl Driver {
    /// A place for the loader's path (`LD_LIBRARY_PATH`), with the driver under its usual names.
    ///
    /// # Panics
    /// When the library is not beside the running test, or a link cannot be made.
    pub fn load() -> Self {
        let place = tempfile::tempdir().expect("a folder");
        if is_real() {
            return Self { place };
        }
        let library = library();
        for name in ["libcuda.so.1", "libcuda.so"] {
            let link = place.path().join(name);
            std::os::unix::fs::symlink(&library, link).expect("a link");
        }
        Self { place }
    }

    /// Makes it this process's driver: who asks for `libcuda.so.1` from now on gets it. There must be no other.
    ///
    /// # Panics
    /// As [`load`](Self::load), and where it cannot be opened.
    pub fn here() {
        static LOADED: OnceLock<()> = OnceLock::new();
        if is_real() {
            return;
        }
        LOADED.get_or_init(|| {
            // SAFETY: it is this crate's, and has no initialisers. It stays.
            let opened = unsafe { libloading::Library::new(library()) };
            std::mem::forget(opened.expect("a library"));
        });
    }

    /// A file for `TEST_CUDA_REPORT`, which goes with the driver.
    pub fn report(&self) -> PathBuf {
        self.place.path().join("report")
    }

    /// A folder for `TEST_CUDA_SHARED`, which goes with the driver.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn shared(&self) -> PathBuf {
        let shared = self.place.path().join("shared");
        std::fs::create_dir_all(&shared).expect("a folder");
        shared
    }

    /// How many processes have used their devices by now.
    ///
    /// # Panics
    /// Where one has done something wrong there, or has waited for one.
    pub fn nothing_went_wrong(&self) -> usize {
        let report = std::fs::read_to_string(self.report()).unwrap_or_default();
        let wrong: Vec<_> = report
            .lines()
            .filter(|line| !line.ends_with(BEGINS))
            .collect();
        assert!(wrong.is_empty(), "{wrong:?}");
        report.lines().count()
    }

    /// For `LD_LIBRARY_PATH`.
    pub fn path(&self) -> PathBuf {
        self.place.path().to_owned()
    }
}
