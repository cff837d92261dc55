//! Filters of system calls (seccomp), like those of containers, for this process until it ends.
#![allow(unsafe_code, reason = "filters are installed by system calls")]

use nix::libc;

/// What becomes of a call.
#[derive(Clone, Copy, Debug)]
pub enum Fate {
    /// It fails with this error.
    Fails(i32),
    /// It ends the process (SIGSYS).
    Kills,
}

/// From now on the call of this number has that fate, in every thread; with `first`, only where that is its first argument.
///
/// # Panics
/// When the system takes no filter.
pub fn forbid(call: libc::c_long, first: Option<u32>, fate: Fate) {
    forbid_where(call, first.map(|value| (0, value)), fate);
}

/// The same; with `only`, where the argument of that number, from 0, has that value.
///
/// # Panics
/// As above.
pub fn forbid_where(call: libc::c_long, only: Option<(u32, u32)>, fate: Fate) {
    let fate = match fate {
        Fate::Fails(errno) => libc::SECCOMP_RET_ERRNO | errno.unsigned_abs(),
        Fate::Kills => libc::SECCOMP_RET_KILL_PROCESS,
    };
    // The call's number is the first word, the lower half of its first argument the fifth.
    let mut steps = vec![load(0)];
    match only {
        None => steps.push(equal(call as u32, 1)),
        Some((index, value)) => {
            steps.extend([equal(call as u32, 3), load(16 + 8 * index), equal(value, 1)])
        }
    }
    steps.extend([ends(fate), ends(libc::SECCOMP_RET_ALLOW)]);
    install(steps, libc::SECCOMP_FILTER_FLAG_TSYNC);
}

/// From now on any other system call of this thread ends the process (SIGSYS).
///
/// # Panics
/// As above.
pub fn allow_only(calls: &[libc::c_long]) {
    let mut steps = vec![load(0)];
    for (i, call) in calls.iter().enumerate() {
        let left = (calls.len() - 1 - i) as u8;
        // Past the others and the end that kills.
        let code = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        steps.push(step(code, *call as u32, (left + 1, 0)));
    }
    steps.extend([
        ends(libc::SECCOMP_RET_KILL_PROCESS),
        ends(libc::SECCOMP_RET_ALLOW),
    ]);
    install(steps, 0);
}

fn step(code: u32, k: u32, (jt, jf): (u8, u8)) -> libc::sock_filter {
    let code = code as u16;
    libc::sock_filter { code, jt, jf, k }
}

/// A word of what describes the call.
fn load(at: u32) -> libc::sock_filter {
    step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at, (0, 0))
}

/// Skips `no` steps unless it is `k`.
fn equal(k: u32, no: u8) -> libc::sock_filter {
    step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, k, (0, no))
}

fn ends(k: u32) -> libc::sock_filter {
    step(libc::BPF_RET | libc::BPF_K, k, (0, 0))
}

fn install(mut steps: Vec<libc::sock_filter>, flags: libc::c_ulong) {
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
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}
