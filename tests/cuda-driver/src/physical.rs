//! Physical memory, and where it is mapped. It lies in a file that has no name, so that a descriptor of it is all that another process
//! needs.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_ulonglong, c_void};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{
    CUdeviceptr, CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemGenericAllocationHandle, CUresult,
};

use crate::blocks::{Bytes, GARBAGE};
use crate::devices::give;
use crate::machine::MACHINE;

/// In multiples of which there is some.
pub(crate) const GRANULARITY: usize = 2 << 20;

/// The longest range of addresses.
const MOST: usize = 1 << 46;

/// What stands behind the bytes of a device: that, and whose they are.
const MARK: u64 = 0x7465_7374_6375_6461;

static GARBAGES: [u8; GRANULARITY] = [GARBAGE; GRANULARITY];

/// Of what a handle is.
struct Physical {
    file: File,
    len: usize,
    device: u32,
    /// How others may get it: a set of bits, as the driver's.
    kinds: u32,
    /// The same in all processes.
    number: u64,
    /// Tells other processes that this one has it.
    note: Option<PathBuf>,
}

impl Physical {
    fn new(file: File, len: usize, device: u32, kinds: u32) -> std::io::Result<Self> {
        static NOTES: AtomicU64 = AtomicU64::new(0);
        let number = file.metadata()?.ino();
        let note = shared().map(|shared| {
            let (whose, process) = (MACHINE.physical(device), std::process::id());
            let count = NOTES.fetch_add(1, Ordering::Relaxed);
            shared.join(format!("{whose} {number} {len} {process} {count}"))
        });
        note.as_ref().map(File::create).transpose()?;
        Ok(Self {
            file,
            len,
            device,
            kinds,
            number,
            note,
        })
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        self.note.take().map(std::fs::remove_file);
    }
}

/// Where processes tell each other of physical memory, if they do.
fn shared() -> Option<PathBuf> {
    let shared = std::env::var_os("TEST_CUDA_SHARED")?;
    (!shared.is_empty()).then(|| shared.into())
}

/// Bytes of a device that some process has a handle on, or mapped.
pub(crate) fn used(device: u32) -> u64 {
    let mut all = BTreeMap::new();
    for handle in handles().all.values() {
        let physical = &handle.physical;
        if physical.device == device {
            all.insert(physical.number, physical.len as u64);
        }
    }
    let notes = shared().and_then(|shared| std::fs::read_dir(shared).ok());
    for note in notes.into_iter().flatten().flatten() {
        let name = note.file_name().to_string_lossy().into_owned();
        let fields: Vec<u64> = name.split(' ').flat_map(str::parse).collect();
        let [whose, number, len, process, _] = fields[..] else {
            continue;
        };
        // What a process had that was killed is free.
        let is_there = std::fs::exists(format!("/proc/{process}")).unwrap_or(true);
        if whose == u64::from(MACHINE.physical(device)) && is_there {
            all.insert(number, len);
        }
    }
    all.values().sum()
}

/// A handle lives while somebody has a reference to it, or it is mapped. Then its number is another one's.
struct Handle {
    physical: Arc<Physical>,
    references: usize,
    mapped: usize,
}

#[derive(Default)]
struct Handles {
    all: BTreeMap<CUmemGenericAllocationHandle, Handle>,
    /// What is mapped where, by its start: how long, and of which handle.
    mapped: BTreeMap<CUdeviceptr, (usize, CUmemGenericAllocationHandle)>,
}

impl Handles {
    /// What is mapped around an address: its start, its length, and its handle.
    fn around(
        &self,
        address: CUdeviceptr,
    ) -> Result<(CUdeviceptr, usize, CUmemGenericAllocationHandle), CUresult> {
        let before = self.mapped.range(..=address).next_back();
        let here = before.filter(|(start, (len, _))| address - **start < *len as u64);
        let here = here.map(|(start, (len, handle))| (*start, *len, *handle));
        here.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }

    /// One holder less.
    fn give_up(
        &mut self,
        number: CUmemGenericAllocationHandle,
        of: impl FnOnce(&mut Handle) -> &mut usize,
    ) -> Result<(), CUresult> {
        let handle = self.all.get_mut(&number);
        let handle = handle.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let count = of(handle);
        *count = count
            .checked_sub(1)
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        if handle.references + handle.mapped == 0 {
            self.all.remove(&number);
        }
        Ok(())
    }
}

static HANDLES: LazyLock<Mutex<Handles>> = LazyLock::new(Mutex::default);

fn handles() -> MutexGuard<'static, Handles> {
    HANDLES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn status(result: Result<(), CUresult>) -> CUresult {
    result.err().unwrap_or(CUresult::CUDA_SUCCESS)
}

fn keep(physical: Physical) -> CUmemGenericAllocationHandle {
    let mut handles = handles();
    // The first that is free: the real ones are addresses, which come again, too.
    let taken = handles.all.keys().zip(1..);
    let next = taken.take_while(|(number, expected)| **number == *expected);
    let number = next.count() as CUmemGenericAllocationHandle + 1;
    let handle = Handle {
        physical: Arc::new(physical),
        references: 1,
        mapped: 0,
    };
    handles.all.insert(number, handle);
    number
}

fn known(handle: CUmemGenericAllocationHandle) -> Result<Arc<Physical>, CUresult> {
    let handles = handles();
    let found = handles.all.get(&handle);
    let found = found.map(|handle| handle.physical.clone());
    found.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAllocationGranularity(
    out: *mut usize,
    _properties: *const CUmemAllocationProp,
    _option: CUmemAllocationGranularity_flags,
) -> CUresult {
    may_fail!("cuMemGetAllocationGranularity");
    // SAFETY: the caller's promise.
    unsafe { give(out, Ok(GRANULARITY)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemCreate(
    out: *mut CUmemGenericAllocationHandle,
    len: usize,
    properties: *const CUmemAllocationProp,
    _flags: c_ulonglong,
) -> CUresult {
    may_fail!("cuMemCreate");
    // SAFETY: the caller's promise.
    let device = unsafe { (*properties).location.id } as u32;
    // SAFETY: as above.
    let kinds = unsafe { (*properties).requestedHandleTypes }.0;
    let made = MACHINE.state().and_then(|()| {
        if len == 0 || !len.is_multiple_of(GRANULARITY) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        if MACHINE.used(device) + len as u64 > MACHINE.capacity {
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        let made = file(len, device).and_then(|made| Physical::new(made, len, device, kinds));
        made.map(keep)
            .map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    });
    // SAFETY: the caller's promise.
    unsafe { give(out, made) }
}

fn file(len: usize, device: u32) -> std::io::Result<File> {
    // SAFETY: the name ends with a zero.
    let number = unsafe { libc::memfd_create(c"test cuda".as_ptr(), libc::MFD_CLOEXEC) };
    if number < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: it is new, and nobody else's.
    let file = unsafe { File::from_raw_fd(number) };
    for at in (0..len).step_by(GRANULARITY) {
        file.write_all_at(&GARBAGES, at as u64)?;
    }
    let mut end = MARK.to_le_bytes().to_vec();
    end.extend(u64::from(MACHINE.physical(device)).to_le_bytes());
    file.write_all_at(&end, len as u64)?;
    Ok(file)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> CUresult {
    may_fail!("cuMemRelease");
    status(handles().give_up(handle, |handle| &mut handle.references))
}

/// One reference more to what is mapped around an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemRetainAllocationHandle(
    out: *mut CUmemGenericAllocationHandle,
    address: *mut c_void,
) -> CUresult {
    may_fail!("cuMemRetainAllocationHandle");
    let mut handles = handles();
    let found = handles.around(address.addr() as CUdeviceptr);
    let found = found.map(|(.., number)| {
        let handle = handles.all.get_mut(&number);
        handle.expect("it is mapped").references += 1;
        number
    });
    // SAFETY: the caller's promise.
    unsafe { give(out, found) }
}

/// Of one mapping, also where others lie beside it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAddressRange_v2(
    start: *mut CUdeviceptr,
    len: *mut usize,
    address: CUdeviceptr,
) -> CUresult {
    may_fail!("cuMemGetAddressRange_v2");
    let found = handles().around(address);
    // SAFETY: the caller's promise.
    let gave = unsafe { give(len, found.map(|(_, len, _)| len)) };
    match gave {
        // SAFETY: the caller's promise.
        CUresult::CUDA_SUCCESS => unsafe { give(start, found.map(|(start, ..)| start)) },
        refused => refused,
    }
}

/// How many handles of physical memory there are.
#[unsafe(no_mangle)]
pub extern "C" fn testCudaHandles() -> u64 {
    handles().all.len() as u64
}

/// Addresses are cheap: one that nothing is mapped at is no memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAddressReserve(
    out: *mut CUdeviceptr,
    len: usize,
    _alignment: usize,
    _wanted: CUdeviceptr,
    _flags: c_ulonglong,
) -> CUresult {
    may_fail!("cuMemAddressReserve");
    let reserved = MACHINE.state().and_then(|()| match len {
        0 => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        1..=MOST => Ok(MACHINE.reserve(len)),
        _ => Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY),
    });
    // SAFETY: the caller's promise.
    unsafe { give(out, reserved) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAddressFree(address: CUdeviceptr, len: usize) -> CUresult {
    may_fail!("cuMemAddressFree");
    match MACHINE.is_used(address, len) {
        false => CUresult::CUDA_SUCCESS,
        true => MACHINE.fault(format!(
            "{address:#x} is given up while something is mapped there"
        )),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemMap(
    address: CUdeviceptr,
    len: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    _flags: c_ulonglong,
) -> CUresult {
    may_fail!("cuMemMap");
    status(known(handle).and_then(|physical| {
        if offset != 0 || len > physical.len {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let bytes = Bytes::of_file(&physical.file, len);
        let bytes = bytes.ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        MACHINE.map(address, physical.device, len, bytes)?;
        let mut handles = handles();
        handles.mapped.insert(address, (len, handle));
        if let Some(handle) = handles.all.get_mut(&handle) {
            handle.mapped += 1;
        }
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemSetAccess(
    address: CUdeviceptr,
    len: usize,
    descriptions: *const CUmemAccessDesc,
    count: usize,
) -> CUresult {
    may_fail!("cuMemSetAccess");
    // SAFETY: the caller has so many.
    let all = unsafe { std::slice::from_raw_parts(descriptions, count) };
    let let_in = all.iter().map(|one| one.location.id as u32);
    status(MACHINE.blocks(address, len, |block| block.reached.extend(let_in.clone())))
}

/// What is queued on it must be done: the real one takes the pages away.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemUnmap(address: CUdeviceptr, len: usize) -> CUresult {
    may_fail!("cuMemUnmap");
    status(MACHINE.unmap(address, len).and_then(|()| {
        let mut handles = handles();
        let range = address..address + len as u64;
        let gone: Vec<_> = handles.mapped.extract_if(range, |_, _| true).collect();
        let mut gone = gone.into_iter();
        gone.try_for_each(|(_, (_, number))| handles.give_up(number, |handle| &mut handle.mapped))
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemExportToShareableHandle(
    out: *mut c_void,
    handle: CUmemGenericAllocationHandle,
    kind: CUmemAllocationHandleType,
    _flags: c_ulonglong,
) -> CUresult {
    may_fail!("cuMemExportToShareableHandle");
    MACHINE.exports.fetch_add(1, Ordering::Relaxed);
    let exported = known(handle).and_then(|physical| {
        if physical.kinds & kind.0 == 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let another = match MACHINE.swaps("cuMemExportToShareableHandle") {
            true => file(physical.len, physical.device),
            false => physical.file.try_clone(),
        };
        let another = another
            .map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?
            .into_raw_fd();
        // SAFETY: an open descriptor. The real one does not promise to close it for other programs.
        unsafe { libc::fcntl(another, libc::F_SETFD, 0) };
        Ok(another)
    });
    // SAFETY: the caller's promise.
    unsafe { give(out.cast::<c_int>(), exported) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemImportFromShareableHandle(
    out: *mut CUmemGenericAllocationHandle,
    number: *mut c_void,
    kind: CUmemAllocationHandleType,
) -> CUresult {
    may_fail!("cuMemImportFromShareableHandle");
    MACHINE.imports.fetch_add(1, Ordering::Relaxed);
    let imported = MACHINE.state().and_then(|()| {
        // SAFETY: the caller's descriptor is open during the call; it stays the caller's.
        let theirs = unsafe { std::os::fd::BorrowedFd::borrow_raw(number.addr() as c_int) };
        let refused = |_| CUresult::CUDA_ERROR_INVALID_VALUE;
        let ours: OwnedFd = theirs.try_clone_to_owned().map_err(refused)?;
        let file = File::from(ours);
        let len = file.metadata().map_err(refused)?.len();
        let len = len
            .checked_sub(16)
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let mut end = [0; 16];
        file.read_exact_at(&mut end, len).map_err(refused)?;
        let (mark, device) = end.split_at(8);
        if *mark != MARK.to_le_bytes() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let seen = MACHINE.seen_as(device[0].into());
        let (len, device) = (
            len as usize,
            seen.ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)?,
        );
        let file = match MACHINE.swaps("cuMemImportFromShareableHandle") {
            true => self::file(len, device).map_err(refused)?,
            false => file,
        };
        let imported = Physical::new(file, len, device, kind.0);
        imported.map(keep).map_err(refused)
    });
    // SAFETY: the caller's promise.
    unsafe { give(out, imported) }
}

/// Maps all of a file, shared with who else has it.
pub(crate) fn map(file: &File, len: usize) -> Option<*mut u8> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let (shared, number) = (libc::MAP_SHARED, file.as_raw_fd());
    // SAFETY: a new mapping, wherever there is room.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), len, access, shared, number, 0) };
    (start != libc::MAP_FAILED).then_some(start.cast())
}
