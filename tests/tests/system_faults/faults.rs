//! What a fault is, and how a process puts itself under it: words, so that a child can be told.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tensorpipe_tests::{Fate, descriptors, forbid_where};

/// A system call, by the name in the table; where only one of its uses is denied, the argument that tells it.
pub(crate) struct Call {
    pub(crate) name: &'static str,
    number: libc::c_long,
    only: Option<(u32, u32)>,
}

const fn call(name: &'static str, number: libc::c_long) -> Call {
    Call {
        name,
        number,
        only: None,
    }
}

const fn used(name: &'static str, number: libc::c_long, argument: u32, value: i32) -> Call {
    Call {
        name,
        number,
        only: Some((argument, value as u32)),
    }
}

/// What the library asks of the system. Not here: what the runtime cannot be without once it runs (`epoll_wait`, `futex`).
pub(crate) const CALLS: &[Call] = &[
    call("memfd_create", libc::SYS_memfd_create),
    call("ftruncate", libc::SYS_ftruncate),
    call("fallocate", libc::SYS_fallocate),
    used("fcntl(F_ADD_SEALS)", libc::SYS_fcntl, 1, libc::F_ADD_SEALS),
    used("fcntl(F_GET_SEALS)", libc::SYS_fcntl, 1, libc::F_GET_SEALS),
    used(
        "fcntl(F_DUPFD_CLOEXEC)",
        libc::SYS_fcntl,
        1,
        libc::F_DUPFD_CLOEXEC,
    ),
    used("mmap(MAP_SHARED)", libc::SYS_mmap, 3, libc::MAP_SHARED),
    used(
        "madvise(MADV_DONTFORK)",
        libc::SYS_madvise,
        2,
        libc::MADV_DONTFORK,
    ),
    used(
        "madvise(MADV_WIPEONFORK)",
        libc::SYS_madvise,
        2,
        libc::MADV_WIPEONFORK,
    ),
    used(
        "madvise(MADV_REMOVE)",
        libc::SYS_madvise,
        2,
        libc::MADV_REMOVE,
    ),
    used(
        "madvise(MADV_HUGEPAGE)",
        libc::SYS_madvise,
        2,
        libc::MADV_HUGEPAGE,
    ),
    call("mincore", libc::SYS_mincore),
    call("fstat", libc::SYS_fstat),
    call("fstatfs", libc::SYS_fstatfs),
    call("openat", libc::SYS_openat),
    call("eventfd2", libc::SYS_eventfd2),
    call("epoll_ctl", libc::SYS_epoll_ctl),
    call("ppoll", libc::SYS_ppoll),
    call("process_vm_readv", libc::SYS_process_vm_readv),
    call("pidfd_open", libc::SYS_pidfd_open),
    used(
        "getsockopt(SO_PEERCRED)",
        libc::SYS_getsockopt,
        2,
        libc::SO_PEERCRED,
    ),
    call("getsockopt", libc::SYS_getsockopt),
    call("setsockopt", libc::SYS_setsockopt),
    used("socket(AF_UNIX)", libc::SYS_socket, 0, libc::AF_UNIX),
    used("socket(AF_INET)", libc::SYS_socket, 0, libc::AF_INET),
    call("socketpair", libc::SYS_socketpair),
    call("bind", libc::SYS_bind),
    call("listen", libc::SYS_listen),
    call("connect", libc::SYS_connect),
    call("accept4", libc::SYS_accept4),
    call("getsockname", libc::SYS_getsockname),
    call("getpeername", libc::SYS_getpeername),
    call("shutdown", libc::SYS_shutdown),
    call("sendmsg", libc::SYS_sendmsg),
    call("recvmsg", libc::SYS_recvmsg),
    call("sendto", libc::SYS_sendto),
    call("recvfrom", libc::SYS_recvfrom),
    call("writev", libc::SYS_writev),
    call("prctl", libc::SYS_prctl),
    call("prlimit64", libc::SYS_prlimit64),
    call("getrandom", libc::SYS_getrandom),
    call("sched_getaffinity", libc::SYS_sched_getaffinity),
    call("sched_yield", libc::SYS_sched_yield),
    call("clone", libc::SYS_clone),
];

/// Puts this process under a fault from now on: `deny CALL ERROR`, `limit WHICH BYTES`, or nothing.
pub(crate) fn impose(fault: &str) {
    let words: Vec<&str> = fault.split(' ').collect();
    match words[..] {
        ["nothing"] => {}
        ["deny", name, errno] => {
            let errno = if errno == "EPERM" {
                libc::EPERM
            } else {
                libc::ENOSYS
            };
            let call = CALLS.iter().find(|call| call.name == name).unwrap();
            forbid_where(call.number, call.only, Fate::Fails(errno));
            if call.number == libc::SYS_clone {
                forbid_where(libc::SYS_clone3, None, Fate::Fails(errno));
            }
            if call.only == Some((3, libc::MAP_SHARED as u32)) {
                let aligned = (libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE) as u32;
                forbid_where(call.number, Some((3, aligned)), Fate::Fails(errno));
            }
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
