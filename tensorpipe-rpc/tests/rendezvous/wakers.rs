//! Wakers are the user's code, also when they are cloned.
#![allow(
    unsafe_code,
    reason = "a waker whose clone runs code of one's own has no safe form"
)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, RawWaker, RawWakerVTable, Waker};
use std::thread;
use std::time::Duration;

use futures_util::FutureExt;
use tensorpipe::{DType, Tensor};
use tensorpipe_rpc::rendezvous::{Limits, Rendezvous};

/// What a waker looks at whenever it is cloned.
struct Looks {
    at: Rendezvous,
    looked: AtomicUsize,
}

const LOOKS: RawWakerVTable = RawWakerVTable::new(
    |data| {
        // SAFETY: each waker of this table owns a count of this `Arc`, and this one is being cloned, so it lives.
        unsafe { Arc::increment_strong_count(data.cast::<Looks>()) };
        // SAFETY: the count of the waker that is being cloned keeps it alive meanwhile.
        let looks = unsafe { &*data.cast::<Looks>() };
        looks.at.stats();
        looks.looked.fetch_add(1, Ordering::SeqCst);
        RawWaker::new(data, &LOOKS)
    },
    drops,
    |_| {},
    drops,
);

fn drops(data: *const ()) {
    // SAFETY: the waker that ends here owns a count of this `Arc`.
    drop(unsafe { Arc::from_raw(data.cast::<Looks>()) });
}

/// Bounded, as what waits for a lock waits for ever.
fn soon(run: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        run();
        done.send(())
    });
    let done = is_done.recv_timeout(Duration::from_secs(20));
    done.expect("within 20 s");
}

#[tokio::test]
async fn a_clone_of_one_may_look_back_at_the_rendezvous() {
    let mut limits = Limits::default();
    limits.bytes = 1;
    let here = Rendezvous::builder("here").limits(limits).build().unwrap();
    let bytes = |count| Tensor::zeros(DType::U8, [count]).unwrap();
    let key = |tensor: &str| here.key_to("here", tensor, 1).unwrap();
    here.send(&key("full"), bytes(1)).unwrap();
    let (mut recv, mut send) = (
        here.recv(&key("received")),
        here.send_or_wait(&key("sent"), bytes(1)),
    );
    soon(move || {
        let looks = Arc::new(Looks {
            at: here,
            looked: AtomicUsize::new(0),
        });
        let data = Arc::into_raw(looks.clone()).cast();
        // SAFETY: the table's functions are for such an `Arc`, a count of which the waker owns.
        let waker = unsafe { Waker::new(data, &LOOKS) };
        let mut cx = Context::from_waker(&waker);
        assert!(recv.poll_unpin(&mut cx).is_pending());
        assert!(send.poll_unpin(&mut cx).is_pending());
        assert!(looks.looked.load(Ordering::SeqCst) >= 2);
    });
}
