//! What a fault is, and how a process puts itself under it: words, so that a child can be told.

use std::sync::atomic::Ordering;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tensorpipe_tests::{Made, Use, descriptors, watch};

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
}

const fn call(name: &'static str, uses: &'static [Use]) -> Call {
    Call {
        name,
        uses,
        start: &[],
        open: None,
        seen_as: &[],
    }
}

impl Call {
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

/// What the library asks of the system. Not here: what the runtime cannot be without once it runs (`epoll_wait`, `futex`).
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
    call("getsockopt", &[(libc::SYS_getsockopt, None)]).fails(ALL),
    call("setsockopt", &[(libc::SYS_setsockopt, None)]).fails(INET),
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
    call("sendmsg", &[(libc::SYS_sendmsg, None)])
        .fails(SHM)
        .fails_late(NOTHING),
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
    call("writev", &[(libc::SYS_writev, None)])
        .fails(&["tcp"])
        .fails_late(&["tcp"])
        .seen_as(GONE),
    call("prctl", &[(libc::SYS_prctl, None)]).fails_late(NOTHING),
    call("prlimit64", &[(libc::SYS_prlimit64, None)]).fails_late(NOTHING),
    // Which source there is, is looked up once: late, there is none at all.
    call("getrandom", &[(libc::SYS_getrandom, None)]).fails_late(NOTHING),
    call("sched_getaffinity", &[(libc::SYS_sched_getaffinity, None)]).fails_late(NOTHING),
    call(
        "clone",
        &[(libc::SYS_clone, None), (libc::SYS_clone3, None)],
    )
    .fails_late(NOTHING),
];

/// What was counted under a fault.
pub(crate) enum Counted {
    Nothing,
    /// Calls of one name that were denied.
    Denied(Made),
    /// All of [`CALLS`], which were made.
    All(Made),
}

impl Counted {
    /// How often something was denied; or the names of what was made, each in a line of its own.
    pub(crate) fn words(&self) -> Vec<String> {
        let sum = |made: &[std::sync::atomic::AtomicU64]| -> u64 {
            made.iter().map(|one| one.load(Ordering::Relaxed)).sum()
        };
        match self {
            Self::Nothing => Vec::new(),
            Self::Denied(made) => vec![sum(made).to_string()],
            Self::All(made) => {
                let mut left = &made[..];
                let mut names = Vec::new();
                for call in CALLS {
                    let (own, others) = left.split_at(call.uses.len());
                    left = others;
                    if sum(own) > 0 {
                        names.push(call.name.to_owned());
                    }
                }
                names
            }
        }
    }
}

/// Puts this process under a fault from now on: `deny CALL ERROR`, `limit WHICH BYTES`, `count`, or nothing; `commit BYTES`, the whole
/// machine.
pub(crate) fn impose(fault: &str) -> Counted {
    let words: Vec<&str> = fault.split(' ').collect();
    match words[..] {
        ["nothing"] => Counted::Nothing,
        ["count"] => {
            let uses: Vec<Use> = CALLS.iter().flat_map(|call| call.uses).copied().collect();
            Counted::All(watch(&uses, None))
        }
        ["deny", name, errno] => {
            let errno = match errno {
                "EPERM" => libc::EPERM,
                "ENOSYS" => libc::ENOSYS,
                other => panic!("no error {other}"),
            };
            let call = CALLS.iter().find(|call| call.name == name).unwrap();
            Counted::Denied(watch(call.uses, Some(errno)))
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
