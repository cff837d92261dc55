//! The runtime of a rendezvous ends before it does, or nobody runs it.

use std::time::Duration;

use tensorpipe::{DType, Tensor};
use tensorpipe_rpc::rendezvous::{Limits, RecvError, Rendezvous, SendError};
use tokio::runtime::{Builder, Runtime};

use crate::{soon, until};

#[test]
fn waits_end_with_it() {
    let (first, other) = (Runtime::new().unwrap(), Runtime::new().unwrap());
    let mut limits = Limits::default();
    limits.bytes = 1;
    let here = first.block_on(async {
        let builder = Rendezvous::builder("here").limits(limits);
        builder.peer("there", "memory://nobody").build().unwrap()
    });
    let key = |tensor: &str| here.key_to("here", tensor, 1).unwrap();
    let bytes = |count| Tensor::zeros(DType::U8, [count]).unwrap();
    here.send(&key("full"), bytes(1)).unwrap();
    let bounds = [Duration::from_secs(60), Duration::MAX];
    // Some begin before it ends, and some later.
    let waiting = bounds.map(|bound| {
        let tensor = format!("early {}", bound.as_secs());
        let recv = other.spawn(here.recv_within(&key(&tensor), bound));
        let tensor = format!("sent {}", bound.as_secs());
        let send = other.spawn(here.send_within(&key(&tensor), bytes(1), bound));
        (recv, send)
    });
    other.block_on(until(|| {
        here.stats().waiting == 2 && here.stats().blocked == 2
    }));
    other.block_on(async { tokio::time::sleep(Duration::from_millis(50)).await });
    drop(first);
    for (recv, send) in waiting {
        let recv = other.block_on(async { soon(recv).await.unwrap() });
        assert!(matches!(recv, Err(RecvError::Deadline { .. })), "{recv:?}");
        let send = other.block_on(async { soon(send).await.unwrap() });
        assert!(matches!(send, Err(SendError::Full { .. })), "{send:?}");
    }
    for bound in bounds {
        let recv = here.recv_within(&key("late"), bound);
        let recv = other.block_on(async { soon(recv).await });
        assert!(matches!(recv, Err(RecvError::Deadline { .. })), "{recv:?}");
        let send = here.send_within(&key("late too"), bytes(1), bound);
        let send = other.block_on(async { soon(send).await });
        assert!(matches!(send, Err(SendError::Full { .. })), "{send:?}");
    }
    let there = other.block_on(async { soon(here.incarnation_of("there")).await });
    assert!(
        matches!(there, Err(RecvError::Unreachable { .. })),
        "{there:?}"
    );
}

#[test]
fn bounds_hold_while_nobody_runs_it() {
    let idle = Builder::new_current_thread().enable_all().build().unwrap();
    let here = idle.block_on(async { Rendezvous::new("here").unwrap() });
    let key = here.key_to("here", "never sent", 1).unwrap();
    let wait = || async { soon(here.recv_within(&key, Duration::from_millis(20))).await };
    let other = Runtime::new().unwrap();
    let received = other.block_on(wait());
    assert!(
        matches!(received, Err(RecvError::Deadline { .. })),
        "{received:?}"
    );
}
