//! Why a connection ended, as the error that a read or write returns.

use std::io;

use crate::ring::Fault;

pub(super) fn gone() -> io::Error {
    io::Error::new(
        io::ErrorKind::ConnectionReset,
        "the peer's process is gone, or has dropped the connection; its log may say why",
    )
}

pub(super) fn not_here() -> io::Error {
    io::Error::new(
        io::ErrorKind::NotConnected,
        "it belongs to the process that this one was forked from: connect anew here",
    )
}

pub(super) fn fault(fault: Fault) -> io::Error {
    match fault {
        Fault::Counter => io::Error::new(
            io::ErrorKind::InvalidData,
            "the peer wrote nonsense into the shared memory",
        ),
        Fault::NoReader => io::Error::new(
            io::ErrorKind::BrokenPipe,
            "the peer has dropped the connection",
        ),
    }
}
