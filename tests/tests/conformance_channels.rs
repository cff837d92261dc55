//! Every channel through the channel suite.
#![allow(missing_docs, reason = "a test")]

use std::sync::Arc;

use tensorpipe::channels::{BasicChannel, CmaChannel, LeaseChannel, MptChannel, XthChannel};
use tensorpipe::conformance::channel::Subject;
use tensorpipe::{Buffer, BufferMut, Device, Pool};

tensorpipe::channel_conformance!(basic, || Arc::new(BasicChannel::new()));
// A process reads its own memory here, where the channel would refuse that; two processes are in `cma/`.
tensorpipe::channel_conformance!(cma, || Arc::new(CmaChannel::also_within_process()));
// Both ends are in this process, which the channel refuses where it may choose; two processes are in `leases/`.
tensorpipe::channel_conformance!(
    lease,
    subject = Subject::on(
        Device::CPU,
        || Arc::new(LeaseChannel::also_within_process()),
        lendable,
        BufferMut::zeroed,
        |buffer| buffer.as_bytes().unwrap().to_vec(),
    )
);
// Whatever the size.
tensorpipe::channel_conformance!(mpt, || Arc::new(MptChannel::new()));
tensorpipe::channel_conformance!(xth, || Arc::new(XthChannel::new()));

/// Only what lies in lendable memory can be lent.
fn lendable(bytes: &[u8]) -> Buffer {
    static POOL: std::sync::LazyLock<Pool> = std::sync::LazyLock::new(Pool::default);
    let mut buffer = POOL.try_take_lendable(bytes.len()).unwrap();
    buffer.as_bytes_mut().unwrap().copy_from_slice(bytes);
    buffer.freeze()
}
