//! Streams and events. A stream is a thread that gets to its work late; an event is a position in a stream.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::{c_uint, c_void};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cudarc::driver::sys::{CUevent, CUhostFn, CUresult, CUstream};

use crate::captures;
use crate::devices::{current, is_there};
use crate::machine::{MACHINE, handle};

type Job = Box<dyn FnOnce() + Send>;

static DELAY: LazyLock<Duration> = LazyLock::new(|| {
    let found = std::env::var("TEST_CUDA_DELAY_US").ok();
    let found = found.and_then(|text| text.parse().ok());
    Duration::from_micros(found.unwrap_or(500))
});

pub(crate) struct Stream {
    pub(crate) device: u32,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<(bool, Job)>,
    pushed: u64,
    done: u64,
    /// Pieces of work that fail.
    failing: Vec<u64>,
    is_closed: bool,
}

/// So many pieces of a stream's work are done.
#[derive(Clone)]
pub(crate) struct Position {
    stream: Arc<Stream>,
    at: u64,
}

impl Position {
    pub(crate) fn is_reached(&self) -> bool {
        self.stream.lock().done >= self.at
    }

    /// Whether the last piece of work before it failed.
    fn has_failed(&self) -> bool {
        self.stream.lock().failing.contains(&self.at)
    }

    fn wait(&self) {
        let mut state = self.stream.lock();
        while state.done < self.at {
            let woken = self.stream.changed.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Stream {
    fn new(device: u32) -> Arc<Self> {
        let stream = Arc::new(Self {
            device,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let works = stream.clone();
        std::thread::spawn(move || works.work());
        stream
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, is_late: bool, job: Job) {
        let mut state = self.lock();
        state.jobs.push_back((is_late, job));
        state.pushed += 1;
        self.changed.notify_all();
    }

    /// Queues work that begins late.
    pub(crate) fn queue(&self, job: impl FnOnce() + Send + 'static) {
        self.push(true, Box::new(job));
    }

    /// Queues a copy of so many bytes.
    pub(crate) fn queue_copy(&self, len: usize, job: impl FnOnce() + Send + 'static) {
        if !MACHINE.loses(len) {
            return self.queue(job);
        }
        let mut state = self.lock();
        state.jobs.push_back((true, Box::new(|| ())));
        state.pushed += 1;
        let number = state.pushed;
        state.failing.push(number);
        self.changed.notify_all();
    }

    /// Behind all that is queued now.
    pub(crate) fn position(self: &Arc<Self>) -> Position {
        Position {
            at: self.lock().pushed,
            stream: self.clone(),
        }
    }

    pub(crate) fn synchronize(self: &Arc<Self>) {
        MACHINE.waited();
        self.position().wait();
    }

    fn work(&self) {
        loop {
            let mut state = self.lock();
            let (is_late, job) = loop {
                if let Some(job) = state.jobs.pop_front() {
                    break job;
                }
                if state.is_closed {
                    return;
                }
                let woken = self.changed.wait(state);
                state = woken.unwrap_or_else(PoisonError::into_inner);
            };
            drop(state);
            if is_late {
                std::thread::sleep(*DELAY);
            }
            job();
            self.lock().done += 1;
            self.changed.notify_all();
        }
    }
}

/// All streams that there are, those of address 0 for each device first.
static STREAMS: LazyLock<Mutex<Vec<Arc<Stream>>>> = LazyLock::new(|| {
    let usual = (0..MACHINE.devices).map(Stream::new);
    Mutex::new(usual.collect())
});

fn streams() -> MutexGuard<'static, Vec<Arc<Stream>>> {
    STREAMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for all work on a device.
pub(crate) fn synchronize(device: u32) {
    MACHINE.waited();
    let streams = streams().clone();
    let here = streams.iter().filter(|stream| stream.device == device);
    here.for_each(|stream| stream.position().wait());
}

/// How many wait for all work.
static SETTLING: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

fn settling() -> MutexGuard<'static, usize> {
    SETTLING.0.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until nobody waits for all work.
pub(crate) fn is_settled() {
    let mut settling = settling();
    while *settling > 0 {
        let woken = SETTLING.1.wait(settling);
        settling = woken.unwrap_or_else(PoisonError::into_inner);
    }
}

/// Waits for all work on all devices, as a real driver does before it unpins main memory (seen on an H200 with driver 580). It is counted,
/// but for the thread that is there to wait.
pub(crate) fn settle() {
    let mut name = [0u8; 16];
    // SAFETY: a thread's name has so many bytes at most, with a zero behind it.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    if !name.starts_with(b"tp-free\0") {
        MACHINE.waited();
    }
    let positions = streams().iter().map(Stream::position).collect::<Vec<_>>();
    *settling() += 1;
    positions.iter().for_each(Position::wait);
    *settling() -= 1;
    SETTLING.1.notify_all();
}

/// What C calls `CU_STREAM_PER_THREAD`.
const PER_THREAD: usize = 2;

thread_local! {
    /// This thread's streams of address [`PER_THREAD`], by device.
    static OWN: RefCell<BTreeMap<u32, Arc<Stream>>> = const { RefCell::new(BTreeMap::new()) };
}

/// The stream that C means.
pub(crate) fn stream(named: CUstream) -> Result<Arc<Stream>, CUresult> {
    MACHINE.state()?;
    let device = current()?;
    let mut streams = streams();
    is_there(device, "a stream")?;
    if named.is_null() {
        return Ok(streams[device as usize].clone());
    }
    if named.addr() == PER_THREAD {
        let own = OWN.with_borrow_mut(|own| {
            let make = || {
                let own = Stream::new(device);
                streams.push(own.clone());
                own
            };
            own.entry(device).or_insert_with(make).clone()
        });
        return Ok(own);
    }
    let found = streams
        .iter()
        .find(|stream| Arc::as_ptr(stream).cast() == named.cast_const());
    found.cloned().ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
}

fn status(result: Result<(), CUresult>) -> CUresult {
    result.err().unwrap_or(CUresult::CUDA_SUCCESS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(out: *mut CUstream, _flags: c_uint) -> CUresult {
    may_fail!("cuStreamCreate");
    let device = match MACHINE.state().and_then(|()| current()) {
        Ok(device) => device,
        Err(error) => return error,
    };
    let stream = Stream::new(device);
    streams().push(stream.clone());
    // SAFETY: the caller has room for a handle. It is named by its address, and kept by the list.
    unsafe { *out = Arc::as_ptr(&stream).cast_mut().cast() };
    CUresult::CUDA_SUCCESS
}

/// Its work goes on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamDestroy_v2(named: CUstream) -> CUresult {
    may_fail!("cuStreamDestroy_v2");
    let mut streams = streams();
    let known = |stream: &Arc<Stream>| Arc::as_ptr(stream).cast() == named.cast_const();
    let Some(at) = streams.iter().position(known) else {
        return CUresult::CUDA_ERROR_INVALID_HANDLE;
    };
    let stream = streams.remove(at);
    stream.lock().is_closed = true;
    stream.changed.notify_all();
    CUresult::CUDA_SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamSynchronize(named: CUstream) -> CUresult {
    may_fail!("cuStreamSynchronize");
    let waited = stream(named).map(|stream| stream.synchronize());
    status(waited.and_then(|()| MACHINE.state()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamWaitEvent(
    named: CUstream,
    event: CUevent,
    _flags: c_uint,
) -> CUresult {
    may_fail!("cuStreamWaitEvent");
    status(stream(named).and_then(|stream| {
        // SAFETY: the caller's event is one of ours.
        let event = unsafe { Event::of(event) };
        if let Some(position) = event.recorded() {
            let refused = CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
            captures::ends(named, refused, |_| event.is_captured.load(Relaxed))?;
            stream.push(false, Box::new(move || position.wait()));
        }
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchHostFunc(
    named: CUstream,
    function: CUhostFn,
    data: *mut c_void,
) -> CUresult {
    may_fail!("cuLaunchHostFunc");
    let Some(function) = function else {
        return CUresult::CUDA_ERROR_INVALID_VALUE;
    };
    static ONE: Mutex<()> = Mutex::new(());
    let data = data.expose_provenance();
    status(stream(named).map(|stream| {
        stream.queue(move || {
            let one = || ONE.lock().unwrap_or_else(PoisonError::into_inner);
            let _one = MACHINE.locks.then(one);
            // SAFETY: the caller's function takes the caller's data, once, on a thread of the driver's.
            unsafe { function(std::ptr::with_exposed_provenance_mut(data)) }
        });
    }))
}

#[derive(Default)]
struct Event {
    recorded: Mutex<Option<Position>>,
    /// It was recorded while a graph was captured on its stream.
    is_captured: AtomicBool,
}

impl Event {
    unsafe fn of<'a>(event: CUevent) -> &'a Self {
        // SAFETY: by contract made by `cuEventCreate`, and not destroyed.
        unsafe { &*event.cast::<Self>() }
    }

    fn recorded(&self) -> Option<Position> {
        let recorded = self.recorded.lock();
        recorded.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(out: *mut CUevent, _flags: c_uint) -> CUresult {
    may_fail!("cuEventCreate");
    if let Err(error) = MACHINE.state().and_then(|()| current()) {
        return error;
    }
    // SAFETY: the caller has room for a handle.
    unsafe { *out = handle(Arc::new(Event::default())).cast() };
    CUresult::CUDA_SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventDestroy_v2(event: CUevent) -> CUresult {
    may_fail!("cuEventDestroy_v2");
    // SAFETY: made by `handle`, and given up by the caller.
    drop(unsafe { Arc::from_raw(event.cast::<Event>().cast_const()) });
    CUresult::CUDA_SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventRecord(event: CUevent, named: CUstream) -> CUresult {
    may_fail!("cuEventRecord");
    status(stream(named).map(|stream| {
        // SAFETY: the caller's event is one of ours.
        let event = unsafe { Event::of(event) };
        let recorded = event.recorded.lock();
        *recorded.unwrap_or_else(PoisonError::into_inner) = Some(stream.position());
        (event.is_captured).store(captures::is_captured(named), Relaxed);
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventQuery(event: CUevent) -> CUresult {
    may_fail!("cuEventQuery");
    // SAFETY: the caller's event is one of ours.
    let recorded = unsafe { Event::of(event) }.recorded();
    if let Some(position) = &recorded
        && let Err(error) = is_there(position.stream.device, "an event")
    {
        return error;
    }
    match recorded {
        Some(position) if !position.is_reached() => CUresult::CUDA_ERROR_NOT_READY,
        Some(position) if position.has_failed() => CUresult::CUDA_ERROR_LAUNCH_FAILED,
        _ => status(MACHINE.state()),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventSynchronize(event: CUevent) -> CUresult {
    may_fail!("cuEventSynchronize");
    MACHINE.waited();
    // SAFETY: the caller's event is one of ours.
    if let Some(position) = unsafe { Event::of(event) }.recorded() {
        position.wait();
    }
    status(MACHINE.state())
}
