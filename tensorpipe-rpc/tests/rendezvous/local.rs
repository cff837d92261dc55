//! Tasks and threads of one process hand values over to each other.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use tensorpipe::{DType, Tensor};
use tensorpipe_rpc::rendezvous::{BuildError, Limits, RecvError, Rendezvous, SendError, Value};

use crate::{soon, until};

fn bounded(bytes: u64) -> Rendezvous {
    let mut limits = Limits::default();
    limits.bytes = bytes;
    Rendezvous::builder("here").limits(limits).build().unwrap()
}

fn bytes(count: u64) -> Tensor {
    Tensor::zeros(DType::U8, [count]).unwrap()
}

#[tokio::test]
async fn a_value_is_handed_over_without_a_copy_before_or_after() {
    let here = Rendezvous::new("here").unwrap();
    let (first, second) = (here.key_to("here", "a", 1), here.key_to("here", "b", 1));
    let (first, second) = (first.unwrap(), second.unwrap());
    let tensor = Tensor::from(vec![1f32, 2.0, 3.0]);
    let place = tensor.as_bytes().unwrap().as_ptr();

    here.send(&first, &tensor).unwrap();
    let value = here.recv(&first).await.unwrap();
    assert_eq!(value.tensor.as_bytes().unwrap().as_ptr(), place);
    assert!(!value.is_dead);

    let waits = tokio::spawn(here.recv(&second));
    until(|| here.stats().waiting == 1).await;
    here.send(&second, tensor).unwrap();
    let value = soon(waits).await.unwrap().unwrap();
    assert_eq!(value.tensor.as_bytes().unwrap().as_ptr(), place);
    assert_eq!(here.stats().bytes, 0);
}

#[tokio::test]
async fn a_dead_value_travels_and_says_so() {
    let here = Rendezvous::new("here").unwrap();
    let key = here.key_from("here", "branch", 1).await.unwrap();
    here.send(&key, Value::dead()).unwrap();
    let value = here.recv(&key).await.unwrap();
    assert!(value.is_dead && value.tensor.is_empty());
}

#[tokio::test]
async fn a_callback_is_called_once_with_the_value_or_with_why_not() {
    let here = Rendezvous::new("here").unwrap();
    let (told, mut hears) = tokio::sync::mpsc::unbounded_channel();
    let ask = |tensor: &str, step: u64| {
        let told = told.clone();
        let key = here.key_to("here", tensor, step).unwrap();
        let task = here.recv_with(&key, move |value| told.send(value).unwrap());
        (key, task)
    };
    let (key, _) = ask("a", 1);
    here.send(&key, bytes(3)).unwrap();
    assert_eq!(
        soon(hears.recv()).await.unwrap().unwrap().tensor.byte_len(),
        3
    );
    ask("b", 2);
    here.finish(2);
    let heard = soon(hears.recv()).await.unwrap();
    assert!(matches!(heard, Err(RecvError::Finished { step: 2 })));
    // Given up: never called, and the place is free.
    let (key, task) = ask("c", 3);
    task.abort();
    until(|| here.stats().waiting == 0).await;
    here.send(&key, bytes(4)).unwrap();
    assert_eq!(here.recv(&key).await.unwrap().tensor.byte_len(), 4);
    assert!(hears.try_recv().is_err());
}

#[tokio::test]
async fn a_receive_that_is_dropped_loses_nothing() {
    let here = Rendezvous::new("here").unwrap();
    let key = here.key_to("here", "a", 1).unwrap();
    let mut recv = here.recv(&key);
    let mut cx = Context::from_waker(Waker::noop());
    assert!(recv.poll_unpin(&mut cx).is_pending());
    here.send(&key, bytes(7)).unwrap();
    drop(recv);
    drop(here.recv(&key));
    assert_eq!(here.recv(&key).await.unwrap().tensor.byte_len(), 7);
}

#[tokio::test]
async fn a_key_is_sent_and_received_once_where_it_belongs() {
    let here = Rendezvous::new("here").unwrap();
    let key = here.key_to("here", "a", 1).unwrap();
    let mut first = here.recv(&key);
    assert!(matches!(here.recv(&key).await, Err(RecvError::Awaited(_))));
    here.send(&key, bytes(1)).unwrap();
    let error = here.send(&key, bytes(1)).unwrap_err();
    assert!(matches!(error, SendError::AlreadySent(_)), "{error}");
    (&mut first).await.unwrap();
    assert!(matches!(here.recv(&key).await, Err(RecvError::Received(_))));
    assert!(matches!(first.await, Err(RecvError::Received(_))));

    // Of another process, of another run, for somebody else.
    let foreign = tensorpipe_rpc::rendezvous::Key::new("there", 1, "here", "a", 1).unwrap();
    assert!(matches!(
        here.send(&foreign, bytes(1)),
        Err(SendError::NotProducer { .. })
    ));
    assert!(matches!(
        here.recv(&foreign).await,
        Err(RecvError::UnknownPeer { .. })
    ));
    let earlier = here.incarnation().wrapping_add(1);
    let earlier = tensorpipe_rpc::rendezvous::Key::new("here", earlier, "here", "a", 2).unwrap();
    assert!(matches!(
        here.send(&earlier, bytes(1)),
        Err(SendError::NotProducer { .. })
    ));
    assert!(matches!(
        here.recv(&earlier).await,
        Err(RecvError::Restarted { .. })
    ));
    let theirs = here.key_to("there", "a", 1).unwrap();
    assert!(matches!(
        here.recv(&theirs).await,
        Err(RecvError::NotConsumer { .. })
    ));
    assert_eq!(here.stats().waiting, 0);
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_is_told_when_time_is_up_and_leaves_nothing() {
    let here = bounded(10);
    let key = here.key_to("here", "a", 1).unwrap();
    let after = Duration::from_secs(3);
    let error = here.recv_within(&key, after).await.unwrap_err();
    println!("{error}");
    assert!(matches!(error, RecvError::Deadline { after: bound, .. } if bound == after));
    assert_eq!(here.stats().waiting, 0);

    here.send(&here.key_to("here", "b", 1).unwrap(), bytes(10))
        .unwrap();
    let error = here.send_within(&key, bytes(1), after).await.unwrap_err();
    println!("{error}");
    assert!(matches!(error, SendError::Full { held: 10, .. }));
    assert_eq!((here.stats().blocked, here.stats().bytes), (0, 10));
}

#[tokio::test]
async fn a_producer_ahead_of_its_consumer_is_held_back_or_told() {
    let here = bounded(100);
    let key = |i: u64| here.key_to("here", &format!("v/{i}"), 1).unwrap();
    let produced = tokio::spawn({
        let here = here.clone();
        async move {
            for i in 0..50 {
                let key = here.key_to("here", &format!("v/{i}"), 1).unwrap();
                here.send_or_wait(&key, bytes(30)).await.unwrap();
            }
        }
    });
    until(|| here.stats().blocked == 1).await;
    assert_eq!(here.stats().bytes, 90);
    assert!(matches!(
        here.send(&key(60), bytes(30)),
        Err(SendError::Full { held: 90, .. })
    ));
    for i in 0..50 {
        soon(here.recv(&key(i))).await.unwrap();
        assert!(here.stats().bytes <= 100);
    }
    soon(produced).await.unwrap();
    assert_eq!(here.stats().bytes, 0);
}

#[tokio::test]
async fn a_send_that_is_dropped_while_it_waits_was_not_sent() {
    let here = bounded(10);
    let (first, second) = (here.key_to("here", "a", 1), here.key_to("here", "b", 1));
    let (first, second) = (first.unwrap(), second.unwrap());
    here.send(&first, bytes(10)).unwrap();
    let blocked = here.send_or_wait(&second, bytes(5));
    assert_eq!(here.stats().blocked, 1);
    drop(blocked);
    assert_eq!(here.stats().blocked, 0);
    let recv = here.recv(&second);
    here.send(&second, bytes(6)).unwrap();
    assert_eq!(recv.await.unwrap().tensor.byte_len(), 6);
}

#[tokio::test]
async fn an_abort_ends_every_wait() {
    let here = bounded(10);
    let key = |tensor: &str| here.key_to("here", tensor, 1).unwrap();
    here.send(&key("a"), bytes(10)).unwrap();
    let waits: Vec<_> = (0..20).map(|i| here.recv(&key(&i.to_string()))).collect();
    let waits = tokio::spawn(join_all(waits));
    let blocked = tokio::spawn(here.send_or_wait(&key("b"), bytes(1)));
    until(|| here.stats().blocked == 1 && here.stats().waiting == 20).await;
    here.abort("the loss is not a number");
    for waited in soon(waits).await.unwrap() {
        let Err(RecvError::Aborted(aborted)) = waited else {
            panic!("{waited:?}");
        };
        assert_eq!(
            (&*aborted.by, &*aborted.reason),
            ("here", "the loss is not a number")
        );
    }
    assert!(matches!(
        soon(blocked).await.unwrap(),
        Err(SendError::Aborted(_))
    ));
    // It stays so, and the first reason counts.
    here.abort("nobody hears this");
    let late = [
        here.recv(&key("a")).await.unwrap_err().to_string(),
        here.send(&key("c"), bytes(1)).unwrap_err().to_string(),
        (here.send_or_wait(&key("c"), bytes(1)).await.unwrap_err()).to_string(),
    ];
    for error in late {
        let said = "the rendezvous of `here` was aborted: the loss is not a number";
        assert_eq!(error, said);
    }
    assert_eq!(here.stats(), Default::default());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_meet_each_exactly_once() {
    let here = bounded(64);
    const TASKS: u64 = 8;
    const EACH: u64 = 500;
    let key =
        |here: &Rendezvous, task: u64, i: u64| here.key_to("here", &task.to_string(), i).unwrap();
    let tasks = (0..TASKS).map(|task| {
        let (sends, receives) = (here.clone(), here.clone());
        let send = tokio::spawn(async move {
            for i in 0..EACH {
                let value = Tensor::scalar(task * EACH + i);
                sends
                    .send_or_wait(&key(&sends, task, i), value)
                    .await
                    .unwrap();
            }
        });
        let receive = tokio::spawn(async move {
            for i in 0..EACH {
                let key = key(&receives, task, i);
                // Now and then somebody is impatient.
                if i % 7 == 0 {
                    let mut impatient = receives.recv(&key);
                    let first = impatient.poll_unpin(&mut Context::from_waker(Waker::noop()));
                    if let Poll::Ready(value) = first {
                        assert_eq!(
                            value.unwrap().tensor.item::<u64>().unwrap(),
                            task * EACH + i
                        );
                        continue;
                    }
                }
                let value = receives.recv(&key).await.unwrap();
                assert_eq!(value.tensor.item::<u64>().unwrap(), task * EACH + i);
            }
        });
        async { tokio::try_join!(send, receive).unwrap() }
    });
    soon(join_all(tasks)).await;
    assert_eq!(here.stats(), Default::default());
}

#[test]
fn without_a_runtime_there_is_none() {
    assert!(matches!(
        Rendezvous::new("here"),
        Err(BuildError::Misuse(_))
    ));
    assert!(matches!(Rendezvous::new("a;b"), Err(BuildError::Name(_))));
}

#[tokio::test]
async fn values_are_dropped_and_tasks_woken_with_no_lock_held() {
    /// Looks at the rendezvous when it is dropped.
    struct Nosy(Arc<std::sync::OnceLock<Rendezvous>>, Vec<u8>);
    impl AsRef<[u8]> for Nosy {
        fn as_ref(&self) -> &[u8] {
            &self.1
        }
    }
    impl Drop for Nosy {
        fn drop(&mut self) {
            assert!(self.0.get().unwrap().stats().bytes <= 10);
        }
    }
    let shared = Arc::new(std::sync::OnceLock::new());
    let here = shared.get_or_init(|| bounded(10)).clone();
    let nosy = || {
        let owner = Nosy(shared.clone(), vec![0; 10]);
        Tensor::from_bytes(bytes_of(owner))
    };
    let key = |i: u64| here.key_to("here", &i.to_string(), i).unwrap();
    soon(async {
        let told = tokio::task::spawn_blocking({
            let (here, first, second, third) = (here.clone(), nosy(), nosy(), nosy());
            let keys = [key(1), key(2), key(3)];
            move || {
                here.send(&keys[0], first).unwrap();
                here.send(&keys[1], second).unwrap_err();
                drop(here.send_or_wait(&keys[2], third));
                here.finish(1);
                here.abort("over");
            }
        });
        told.await.unwrap();
    })
    .await;
}

#[test]
fn a_waker_that_is_dropped_finds_no_lock_held() {
    /// Looks at the rendezvous when the last of it is dropped, as a task does whose future has a place there.
    struct Nosy(Rendezvous);
    impl std::task::Wake for Nosy {
        fn wake(self: Arc<Self>) {}
    }
    impl Drop for Nosy {
        fn drop(&mut self) {
            self.0.stats();
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let (told, ended) = std::sync::mpsc::channel();
    // On a thread of its own: what goes wrong here hangs.
    std::thread::spawn(move || {
        let _runtime = runtime.enter();
        let here = bounded(1);
        let key = |i: u64| here.key_to("here", &i.to_string(), i).unwrap();
        let poll = |future: &mut (dyn Future<Output = bool> + Unpin)| {
            let waker = Arc::new(Nosy(here.clone())).into();
            future
                .poll_unpin(&mut Context::from_waker(&waker))
                .is_pending()
        };
        here.send(&key(0), bytes(1)).unwrap();
        let mut recv = here.recv(&key(1)).map(|value| value.is_ok());
        let mut send = here
            .send_or_wait(&key(2), bytes(1))
            .map(|sent| sent.is_ok());
        // Another waker in the place of the first, and of the last nobody looks after.
        for _ in 0..2 {
            assert!(poll(&mut recv) && poll(&mut send));
        }
        drop((recv, send));
        let mut swept = here.recv(&key(3)).map(|value| value.is_ok());
        let mut aborted = here.recv(&key(4)).map(|value| value.is_ok());
        assert!(poll(&mut swept) && poll(&mut aborted));
        here.finish(3);
        here.abort("over");
        assert!(!poll(&mut swept) && !poll(&mut aborted));
        told.send(()).unwrap();
    });
    let ended = ended.recv_timeout(Duration::from_secs(20));
    ended.expect("it ends, and does not hang");
}

fn bytes_of(owner: impl AsRef<[u8]> + Send + 'static) -> bytes::Bytes {
    bytes::Bytes::from_owner(owner)
}
