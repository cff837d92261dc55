//! Faults, and how a process applies one to itself. A fault is a string, so that a test can pass it to a child.

use std::sync::atomic::Ordering;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tensorpipe_tests::{Made, Use, descriptors, is_sanitized, watch};

/// A system call, or one use of it, and what follows where it is denied.
pub(crate) struct Call {
    /// In the table.
    pub(crate) name: &'static str,
    uses: &'static [Use],
    /// The parts that may then fail, where it is denied from the start.
    pub(crate) start: Parts,
    /// The same once all pipes are open. `None`: it is not made then.
    pub(crate) open: Option<Parts>,
    /// How a denied call may look from the peer's end.
    pub(crate) seen_as: &'static [&'static str],
    /// Denied with it: it is made only where these fail.
    before: &'static [Use],
    /// It is made once all pipes have said little for 10 s, and at no other time.
    pub(crate) when_idle: bool,
    /// Whether it is made once all pipes are open depends on who polls then.
    by_chance: bool,
}

const fn call(name: &'static str, uses: &'static [Use]) -> Call {
    Call {
        name,
        uses,
        start: &[],
        open: None,
        seen_as: &[],
        before: &[],
        when_idle: false,
        by_chance: false,
    }
}

impl Call {
    fn has(&self, one: &Use) -> bool {
        let (number, _) = one;
        self.uses.contains(one) || self.uses.contains(&(*number, None))
    }

    /// Whether it is always made where nothing is denied, and nothing rests.
    pub(crate) fn is_usual(&self) -> bool {
        self.before.is_empty() && !self.when_idle && !self.by_chance
    }

    const fn fails(self, start: Parts) -> Self {
        Self { start, ..self }
    }

    const fn fails_late(self, open: Parts) -> Self {
        Self {
            open: Some(open),
            ..self
        }
    }

    const fn seen_as(self, seen_as: &'static [&'static str]) -> Self {
        Self { seen_as, ..self }
    }

    const fn instead_of(self, before: &'static [Use]) -> Self {
        Self { before, ..self }
    }

    const fn by_chance(self) -> Self {
        let by_chance = true;
        Self { by_chance, ..self }
    }

    const fn when_idle(self) -> Self {
        let when_idle = true;
        Self { when_idle, ..self }
    }
}

type Parts = &'static [&'static str];

/// What nothing fails for; shared memory by name; what goes over sockets of the network, or begins there.
const NOTHING: Parts = &[];
const SHM: Parts = &["shm"];
const INET: Parts = &["lease", "cma", "tcp", "call"];
const ALL: Parts = &["shm", "lease", "cma", "tcp", "call"];

/// The peer of whoever was denied a call.
const GONE: &[&str] = &["process is gone", "has dropped the connection"];

const fn used(number: libc::c_long, argument: u32, value: i32) -> Use {
    (number, Some((argument, value as u32)))
}

/// Linux 6.1; in no crate's list yet.
const MADV_COLLAPSE: i32 = 25;

/// What the library asks of the system, but for [`NOT_OURS`].
pub(crate) const CALLS: &[Call] = &[
    call("memfd_create", &[(libc::SYS_memfd_create, None)])
        .fails(SHM)
        .fails_late(NOTHING),
    call("ftruncate", &[(libc::SYS_ftruncate, None)])
        .fails(SHM)
        .fails_late(NOTHING),
    call("fallocate", &[(libc::SYS_fallocate, None)]).fails_late(NOTHING),
    call(
        "fcntl(F_ADD_SEALS)",
        &[used(libc::SYS_fcntl, 1, libc::F_ADD_SEALS)],
    )
    .fails(SHM)
    .fails_late(NOTHING),
    call(
        "fcntl(F_GET_SEALS)",
        &[used(libc::SYS_fcntl, 1, libc::F_GET_SEALS)],
    )
    .fails(SHM)
    .fails_late(NOTHING)
    .seen_as(GONE),
    call(
        "fcntl(F_DUPFD_CLOEXEC)",
        &[used(libc::SYS_fcntl, 1, libc::F_DUPFD_CLOEXEC)],
    ),
    call(
        "mmap(MAP_SHARED)",
        &[
            used(libc::SYS_mmap, 3, libc::MAP_SHARED),
            used(
                libc::SYS_mmap,
                3,
                libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE,
            ),
        ],
    )
    .fails(SHM)
    .fails_late(NOTHING),
    call(
        "mmap(MAP_FIXED_NOREPLACE)",
        &[used(
            libc::SYS_mmap,
            3,
            libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE,
        )],
    )
    .fails_late(NOTHING),
    call("munmap", &[(libc::SYS_munmap, None)]).fails_late(NOTHING),
    call(
        "madvise(MADV_DONTFORK)",
        &[used(libc::SYS_madvise, 2, libc::MADV_DONTFORK)],
    )
    .fails(SHM)
    .fails_late(NOTHING),
    call(
        "madvise(MADV_WIPEONFORK)",
        &[used(libc::SYS_madvise, 2, libc::MADV_WIPEONFORK)],
    )
    .fails(SHM),
    call(
        "madvise(MADV_HUGEPAGE)",
        &[used(libc::SYS_madvise, 2, libc::MADV_HUGEPAGE)],
    )
    .fails_late(NOTHING),
    call(
        "madvise(MADV_COLLAPSE)",
        &[used(libc::SYS_madvise, 2, MADV_COLLAPSE)],
    )
    .fails_late(NOTHING),
    call(
        "madvise(MADV_REMOVE)",
        &[used(libc::SYS_madvise, 2, libc::MADV_REMOVE)],
    )
    .when_idle(),
    // Which one it is, is the C library's choice.
    call(
        "fstat",
        &[
            (libc::SYS_fstat, None),
            (libc::SYS_newfstatat, None),
            (libc::SYS_statx, None),
        ],
    )
    .fails(SHM)
    .fails_late(NOTHING)
    .seen_as(GONE),
    call("fstatfs", &[(libc::SYS_fstatfs, None)])
        .fails(SHM)
        .fails_late(NOTHING)
        .seen_as(GONE),
    call("openat", &[(libc::SYS_openat, None)]).fails_late(NOTHING),
    #[cfg(target_arch = "x86_64")]
    call(
        "readlink",
        &[(libc::SYS_readlink, None), (libc::SYS_readlinkat, None)],
    )
    .fails_late(NOTHING),
    #[cfg(not(target_arch = "x86_64"))]
    call("readlink", &[(libc::SYS_readlinkat, None)]).fails_late(NOTHING),
    call("lseek", &[(libc::SYS_lseek, None)]).fails_late(NOTHING),
    call("eventfd2", &[(libc::SYS_eventfd2, None)]),
    call("epoll_ctl", &[(libc::SYS_epoll_ctl, None)]).fails(ALL),
    #[cfg(target_arch = "x86_64")]
    call("ppoll", &[(libc::SYS_ppoll, None), (libc::SYS_poll, None)]).fails_late(NOTHING),
    #[cfg(not(target_arch = "x86_64"))]
    call("ppoll", &[(libc::SYS_ppoll, None)]).fails_late(NOTHING),
    call("process_vm_readv", &[(libc::SYS_process_vm_readv, None)]).fails_late(NOTHING),
    call(
        "getsockopt(SO_PEERCRED)",
        &[used(libc::SYS_getsockopt, 2, libc::SO_PEERCRED)],
    )
    .fails(SHM),
    call(
        "getsockopt(SO_PEERPIDFD)",
        &[used(libc::SYS_getsockopt, 2, libc::SO_PEERPIDFD)],
    ),
    call("pidfd_open", &[(libc::SYS_pidfd_open, None)]).instead_of(&[used(
        libc::SYS_getsockopt,
        2,
        libc::SO_PEERPIDFD,
    )]),
    call(
        "getsockopt(SO_ERROR)",
        &[used(libc::SYS_getsockopt, 2, libc::SO_ERROR)],
    )
    .fails(ALL),
    call("getsockopt", &[(libc::SYS_getsockopt, None)]).fails(ALL),
    call(
        "setsockopt(SO_REUSEADDR)",
        &[used(libc::SYS_setsockopt, 2, libc::SO_REUSEADDR)],
    )
    .fails(INET),
    call(
        "setsockopt(TCP_NODELAY)",
        &[used(libc::SYS_setsockopt, 2, libc::TCP_NODELAY)],
    )
    .fails(INET),
    call(
        "setsockopt(SO_KEEPALIVE)",
        &[used(libc::SYS_setsockopt, 2, libc::SO_KEEPALIVE)],
    )
    .fails(INET),
    call(
        "setsockopt(TCP_KEEPIDLE)",
        &[used(libc::SYS_setsockopt, 2, libc::TCP_KEEPIDLE)],
    )
    .fails(INET),
    call(
        "setsockopt(TCP_KEEPINTVL)",
        &[used(libc::SYS_setsockopt, 2, libc::TCP_KEEPINTVL)],
    )
    .fails(INET),
    call(
        "setsockopt(TCP_NOTSENT_LOWAT)",
        &[used(libc::SYS_setsockopt, 2, libc::TCP_NOTSENT_LOWAT)],
    )
    .fails(INET),
    call("setsockopt", &[(libc::SYS_setsockopt, None)]).fails(INET),
    // Before the others of its family.
    call(
        "socket(SOCK_SEQPACKET)",
        &[used(
            libc::SYS_socket,
            1,
            libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
        )],
    ),
    call(
        "socket(AF_UNIX)",
        &[used(libc::SYS_socket, 0, libc::AF_UNIX)],
    )
    .fails(SHM),
    call(
        "socket(AF_INET)",
        &[used(libc::SYS_socket, 0, libc::AF_INET)],
    )
    .fails(INET),
    call("socketpair", &[(libc::SYS_socketpair, None)]),
    call("bind", &[(libc::SYS_bind, None)]).fails(ALL),
    call("listen", &[(libc::SYS_listen, None)]).fails(ALL),
    call("connect", &[(libc::SYS_connect, None)]).fails(ALL),
    call("accept4", &[(libc::SYS_accept4, None)])
        .fails(ALL)
        .seen_as(&["Timeouts::handshake"]),
    call("getsockname", &[(libc::SYS_getsockname, None)]).fails(INET),
    call("getpeername", &[(libc::SYS_getpeername, None)]).fails(INET),
    call("shutdown", &[(libc::SYS_shutdown, None)]),
    // Pipes that would be upgraded to `shm` stay on `tcp`, which needs the call, too.
    call("sendmsg", &[(libc::SYS_sendmsg, None)])
        .fails(ALL)
        .fails_late(&["tcp"])
        .seen_as(GONE),
    call("recvmsg", &[(libc::SYS_recvmsg, None)])
        .fails(SHM)
        .fails_late(NOTHING)
        .seen_as(GONE),
    call("sendto", &[(libc::SYS_sendto, None)])
        .fails(ALL)
        .fails_late(ALL)
        .seen_as(GONE),
    call("recvfrom", &[(libc::SYS_recvfrom, None)])
        .fails(ALL)
        .fails_late(ALL)
        .seen_as(GONE),
    call(
        "prctl(PR_SET_NAME)",
        &[used(libc::SYS_prctl, 0, libc::PR_SET_NAME)],
    )
    .fails_late(NOTHING),
    call(
        "prctl(PR_SET_PTRACER)",
        &[used(libc::SYS_prctl, 0, libc::PR_SET_PTRACER)],
    ),
    call("prlimit64", &[(libc::SYS_prlimit64, None)]).fails_late(NOTHING),
    // Which source there is, is looked up once: late, there is none at all.
    call("getrandom", &[(libc::SYS_getrandom, None)]).fails_late(NOTHING),
    call("sysinfo", &[(libc::SYS_sysinfo, None)]),
    // It has no way to fail: what comes back is taken for another user.
    call("geteuid", &[(libc::SYS_geteuid, None)])
        .fails(SHM)
        .fails_late(NOTHING)
        .seen_as(&["the peer runs as uid"]),
    call("getpid", &[(libc::SYS_getpid, None)]).fails_late(NOTHING),
    call("gettid", &[(libc::SYS_gettid, None)]).fails_late(NOTHING),
    call("getrusage", &[(libc::SYS_getrusage, None)]).by_chance(),
    call("sched_getaffinity", &[(libc::SYS_sched_getaffinity, None)]).fails_late(NOTHING),
    call(
        "clone",
        &[(libc::SYS_clone, None), (libc::SYS_clone3, None)],
    )
    .fails_late(NOTHING),
];

/// What is no call of this library's, or one that no process can run without: a filter that denies it ends every program, or leaves
/// it waiting for ever. Where an argument is given, only that use is meant.
const NOT_OURS: &[Use] = &[
    // What the runtime, the standard library and whoever prints live by.
    (libc::SYS_read, None),
    (libc::SYS_write, None),
    (libc::SYS_close, None),
    (libc::SYS_futex, None),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_epoll_wait, None),
    (libc::SYS_epoll_pwait, None),
    (libc::SYS_sched_yield, None),
    (libc::SYS_clock_nanosleep, None),
    // Memory and threads: of the C library, and with memory that is not shared also of this one.
    (libc::SYS_brk, None),
    (libc::SYS_mprotect, None),
    (libc::SYS_mremap, None),
    used(libc::SYS_mmap, 3, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS),
    used(
        libc::SYS_mmap,
        3,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
    ),
    used(
        libc::SYS_mmap,
        3,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK,
    ),
    used(libc::SYS_madvise, 2, libc::MADV_DONTNEED),
    (libc::SYS_set_robust_list, None),
    (libc::SYS_rseq, None),
    (libc::SYS_sigaltstack, None),
    (libc::SYS_rt_sigprocmask, None),
    (libc::SYS_rt_sigaction, None),
    (libc::SYS_rt_sigreturn, None),
    (libc::SYS_restart_syscall, None),
    (libc::SYS_exit, None),
    (libc::SYS_exit_group, None),
    // Of builds with debug assertions: the standard library's before it closes, and the runtime's.
    used(libc::SYS_fcntl, 1, libc::F_GETFD),
    used(libc::SYS_fcntl, 1, libc::F_GETFL),
    // Whoever counts waits in it.
    (libc::SYS_ioctl, None),
];

/// Above the number of each call that there is.
const NUMBERS: libc::c_long = 512;

/// What was counted under a fault.
pub(crate) enum Counted {
    Nothing,
    /// Calls of one name that were denied; of so many uses.
    Denied(Made, usize),
    /// All that was made but for [`NOT_OURS`], by its use.
    All(Made, Vec<Use>),
}

impl Counted {
    /// How often something was denied; or the names of what was made, each in a line of its own: a number, where [`CALLS`] has no name.
    pub(crate) fn words(&self) -> Vec<String> {
        match self {
            Self::Nothing => Vec::new(),
            Self::Denied(..) => vec![self.times().to_string()],
            Self::All(made, uses) => {
                let counts = made.iter().map(|one| one.load(Ordering::Relaxed));
                let made = uses.iter().zip(counts).filter(|(_, times)| *times > 0);
                let made: Vec<Use> = made.map(|(one, _)| *one).collect();
                let (calls, others) = made
                    .iter()
                    .partition::<Vec<Use>, _>(|one| CALLS.iter().any(|call| call.has(one)));
                let is_made = |call: &&Call| calls.iter().any(|one| call.has(one));
                let names = CALLS
                    .iter()
                    .filter(is_made)
                    .map(|call| call.name.to_owned());
                let is_ours = |one: &&Use| !NOT_OURS.contains(one);
                let others = others.iter().filter(is_ours);
                let others = others.map(|(number, _)| format!("system call {number}"));
                names.chain(others).collect()
            }
        }
    }

    /// How often something was denied.
    pub(crate) fn times(&self) -> u64 {
        match self {
            Self::Denied(made, own) => {
                let own = made.iter().take(*own);
                own.map(|one| one.load(Ordering::Relaxed)).sum()
            }
            _ => 0,
        }
    }
}

/// Each use of [`CALLS`], and every other call but [`NOT_OURS`]. One use of a call stands before all of it.
fn all_uses() -> Vec<Use> {
    let named = CALLS.iter().flat_map(|call| call.uses).chain(NOT_OURS);
    let mut uses: Vec<Use> = named.copied().filter(|(_, only)| only.is_some()).collect();
    let is_ours = |number: &libc::c_long| !NOT_OURS.contains(&(*number, None));
    // A sanitizer makes calls of its own.
    let numbers: Vec<_> = match is_sanitized() {
        true => CALLS
            .iter()
            .flat_map(|call| call.uses)
            .map(|(number, _)| *number)
            .collect(),
        false => (0..NUMBERS).filter(is_ours).collect(),
    };
    uses.extend(numbers.into_iter().map(|number| (number, None)));
    uses
}

/// Puts this process under a fault from now on: `deny CALL ERROR`, `limit WHICH BYTES`, `count`, or nothing; `commit BYTES`, the whole
/// machine.
pub(crate) fn impose(fault: &str) -> Counted {
    let words: Vec<&str> = fault.split(' ').collect();
    match words[..] {
        ["nothing"] => Counted::Nothing,
        ["count"] => {
            let uses = all_uses();
            Counted::All(watch(&uses, None), uses)
        }
        ["deny", name, errno] => {
            let errno = match errno {
                "EPERM" => libc::EPERM,
                "ENOSYS" => libc::ENOSYS,
                other => panic!("no error {other}"),
            };
            let call = CALLS.iter().find(|call| call.name == name).unwrap();
            let uses = [call.uses, call.before].concat();
            Counted::Denied(watch(&uses, Some(errno)), call.uses.len())
        }
        ["limit", which, most] => {
            let most: u64 = most.parse().unwrap();
            let (which, most) = match which {
                "FSIZE" => (Resource::RLIMIT_FSIZE, most),
                "MEMLOCK" => (Resource::RLIMIT_MEMLOCK, most),
                "NPROC" => (Resource::RLIMIT_NPROC, most),
                // More than there is already.
                "NOFILE" => (Resource::RLIMIT_NOFILE, descriptors() as u64 - 1 + most),
                "AS" => (Resource::RLIMIT_AS, address_space() + most),
                other => panic!("no limit {other}"),
            };
            let (_, hard) = getrlimit(which).unwrap();
            setrlimit(which, most.min(hard), hard).unwrap();
            Counted::Nothing
        }
        ["commit", room] => {
            super::vm::promise(room.parse().unwrap());
            Counted::Nothing
        }
        _ => panic!("no fault `{fault}`"),
    }
}

/// Of this process, in bytes.
fn address_space() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').next().unwrap().parse().unwrap();
    pages * 4096
}
