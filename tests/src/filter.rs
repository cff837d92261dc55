//! Filters of system calls (seccomp), as containers have them. They hold for this process until it ends.
#![allow(unsafe_code, reason = "filters are installed by system calls")]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

use nix::libc;

/// The outcome of a filtered system call.
#[derive(Clone, Copy, Debug)]
pub enum Fate {
    /// It fails with this error.
    Fails(i32),
    /// It ends the process (SIGSYS).
    Kills,
}

/// A system call number. The pair restricts it to calls whose argument (index from 0) has this value.
pub type Use = (libc::c_long, Option<(u32, u32)>);

/// From now on, in every thread, system call `call` has this fate. With `first`, only calls with that first argument.
///
/// # Panics
/// When the system takes no filter.
pub fn forbid(call: libc::c_long, first: Option<u32>, fate: Fate) {
    let fate = match fate {
        Fate::Fails(errno) => libc::SECCOMP_RET_ERRNO | errno.unsigned_abs(),
        Fate::Kills => libc::SECCOMP_RET_KILL_PROCESS,
    };
    let only = first.map(|value| (0, value));
    install(
        steps(&[(call, only)], fate),
        libc::SECCOMP_FILTER_FLAG_TSYNC,
    );
}

/// How often calls were made under [`watch`], in the order of its `uses`.
pub type Made = Arc<Vec<AtomicU64>>;

/// From now on, in every thread, counts these calls; then they fail with `errno` or, without one, proceed. Works once in a process.
///
/// # Panics
/// As above.
pub fn watch(uses: &[Use], errno: Option<i32>) -> Made {
    let made: Made = Arc::new(uses.iter().map(|_| AtomicU64::new(0)).collect());
    let (counted, uses) = (made.clone(), uses.to_vec());
    let filter = steps(&uses, libc::SECCOMP_RET_USER_NOTIF);
    let (begun, begins) = mpsc::channel();
    let (give, given) = mpsc::channel();
    // This thread makes no system call but `ioctl`, so it goes on whatever the filter denies.
    std::thread::spawn(move || {
        begun.send(()).expect("somebody waits");
        let listener: OwnedFd = given.recv().expect("it comes");
        while answer(&listener, &uses, &counted, errno) {}
    });
    begins.recv().expect("it begins");
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER
        | libc::SECCOMP_FILTER_FLAG_TSYNC
        | libc::SECCOMP_FILTER_FLAG_TSYNC_ESRCH;
    let listener = install(filter, flags);
    // SAFETY: the descriptor is new, and nobody else owns it.
    let listener = unsafe { OwnedFd::from_raw_fd(listener as i32) };
    give.send(listener).expect("the thread waits");
    made
}

/// Waits for a call, counts it, and decides its outcome. `false` once no thread is left that could make one.
fn answer(listener: &OwnedFd, uses: &[Use], made: &[AtomicU64], errno: Option<i32>) -> bool {
    let fd = listener.as_raw_fd();
    // SAFETY: zeros are a valid value, and the call requires them.
    let mut call: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one `seccomp_notif` to it.
    if unsafe { libc::ioctl(fd, libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut call) } != 0 {
        let error = std::io::Error::last_os_error().raw_os_error();
        // The thread that made the call was interrupted, or is gone.
        return matches!(error, Some(libc::EINTR | libc::ENOENT));
    }
    let is_meant = |(number, only): &Use| {
        libc::c_long::from(call.data.nr) == *number
            && only.is_none_or(|(index, value)| call.data.args[index as usize] as u32 == value)
    };
    if let Some(at) = uses.iter().position(is_meant) {
        made[at].fetch_add(1, Ordering::Relaxed);
    }
    let mut answer = libc::seccomp_notif_resp {
        id: call.id,
        val: 0,
        error: errno.map_or(0, |errno| -errno),
        flags: match errno {
            Some(_) => 0,
            None => libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
        },
    };
    // SAFETY: the kernel reads `answer`. The call fails if the thread that made the system call is gone.
    unsafe { libc::ioctl(fd, libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer) };
    true
}

/// The filter program: `uses` get this fate, all other calls proceed.
fn steps(uses: &[Use], fate: u32) -> Vec<libc::sock_filter> {
    let mut steps = Vec::new();
    for (call, only) in uses {
        // The call's number is the first word, the lower half of its first argument the fifth.
        steps.push(load(0));
        match only {
            None => steps.push(equal(*call as u32, 1)),
            Some((index, value)) => {
                steps.extend([
                    equal(*call as u32, 3),
                    load(16 + 8 * index),
                    equal(*value, 1),
                ]);
            }
        }
        steps.push(ends(fate));
    }
    steps.push(ends(libc::SECCOMP_RET_ALLOW));
    steps
}

/// From now on any other system call of this thread ends the process (SIGSYS).
///
/// # Panics
/// As above.
pub fn allow_only(calls: &[libc::c_long]) {
    let mut steps = vec![load(0)];
    for (i, call) in calls.iter().enumerate() {
        let left = (calls.len() - 1 - i) as u8;
        // An allowed call jumps over the remaining comparisons and the final kill.
        let code = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        steps.push(step(code, *call as u32, left + 1, 0));
    }
    steps.extend([
        ends(libc::SECCOMP_RET_KILL_PROCESS),
        ends(libc::SECCOMP_RET_ALLOW),
    ]);
    install(steps, 0);
}

fn step(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    let code = code as u16;
    libc::sock_filter { code, jt, jf, k }
}

/// Loads a word of the `seccomp_data` that describes the call.
fn load(at: u32) -> libc::sock_filter {
    step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at, 0, 0)
}

/// Skips `no` steps unless the loaded word is `k`.
fn equal(k: u32, no: u8) -> libc::sock_filter {
    step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, k, 0, no)
}

fn ends(k: u32) -> libc::sock_filter {
    step(libc::BPF_RET | libc::BPF_K, k, 0, 0)
}

fn install(mut steps: Vec<libc::sock_filter>, flags: libc::c_ulong) -> libc::c_long {
    let filter = libc::sock_fprog {
        len: steps.len() as u16,
        filter: steps.as_mut_ptr(),
    };
    // SAFETY: the call takes numbers, and touches no memory.
    let set = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(set, 0);
    // SAFETY: the filter and its steps live until the call has returned.
    let set = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &raw const filter,
        )
    };
    assert!(set >= 0, "{}", std::io::Error::last_os_error());
    set
}
