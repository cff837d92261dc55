//! One end dies without a goodbye: the other gets typed errors, and no memory is kept.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::{Subject, blocking, eventually, listen, within};
use crate::device::Memory;
use crate::error::Error;
use crate::message::Message;
use crate::pipe::Pipe;

/// A peer on a thread and runtime of its own, that can die without a goodbye.
struct Peer {
    kill: tokio::sync::oneshot::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

impl Peer {
    /// Connects to `url` and does `work`; ends when told to, or when `work` does.
    fn start<W: Future<Output = ()> + 'static>(
        subject: &Subject,
        url: String,
        work: impl FnOnce(Subject, Pipe) -> W + Send + 'static,
    ) -> Self {
        let (kill, killed) = tokio::sync::oneshot::channel();
        let subject = subject.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap_or_else(|error| panic!("{error}"));
            let held = runtime.block_on(async {
                let context = subject.context("mortal");
                let pipe = context.connect(&url).await;
                let pipe = pipe.unwrap_or_else(|error| panic!("{error}"));
                let mut work = Box::pin(work(subject, pipe.clone()));
                tokio::select! {
                    () = &mut work => {}
                    _ = killed => {}
                }
                (pipe, work)
            });
            // First its tasks, then the handles, so that no goodbye is sent.
            runtime.shutdown_background();
            drop(held);
        });
        Self { kill, thread }
    }

    async fn die(self) {
        let _ = self.kill.send(());
        let thread = self.thread;
        let joined = blocking("the end of the peer's thread", move || thread.join());
        assert!(joined.await.is_ok(), "the peer's thread panicked");
    }
}

/// A pipe accepted from a [`Peer`].
async fn mortal<W: Future<Output = ()> + 'static>(
    subject: &Subject,
    work: impl FnOnce(Subject, Pipe) -> W + Send + 'static,
) -> (Pipe, Peer) {
    let listener = listen(&subject.context("survivor")).await;
    let peer = Peer::start(subject, listener.url().to_string(), work);
    let pipe = within("accept", listener.accept()).await;
    subject.keep(listener);
    (pipe.unwrap_or_else(|error| panic!("{error}")), peer)
}

#[track_caller]
fn assert_lost<T: std::fmt::Debug>(result: Result<T, Error>) {
    assert!(matches!(result, Err(Error::Lost { .. })), "{result:?}");
}

/// The writer dies between its descriptor and the go-ahead: the reader gets a typed error, now and later.
pub async fn a_writer_that_dies_leaves_nothing(subject: Subject) {
    let (pipe, peer) = mortal(&subject, |subject, pipe| async move {
        let _ = pipe.write(subject.message(&[(8 << 20, 1)])).await;
        std::future::pending().await
    })
    .await;
    let incoming = within("a descriptor", pipe.read_descriptor()).await;
    let incoming = incoming.unwrap_or_else(|error| panic!("{error}"));
    peer.die().await;
    assert_lost(within("the read", incoming.read()).await);
    assert_lost(within("a later read", pipe.read()).await);
    assert_lost(within("a later write", pipe.write(subject.message(&[(10, 1)]))).await);
    eventually("memory back", || pipe.pool().stats().outstanding_bytes == 0).await;
}

fn watched(message: &Message) -> Vec<Weak<dyn Memory>> {
    let tensors = message.tensors.iter();
    tensors
        .map(|tensor| Arc::downgrade(tensor.tensor.buffer().memory()))
        .collect()
}

/// The reader dies before its go-ahead: the writer gets a typed error, and its memory is released.
pub async fn a_reader_that_dies_leaves_nothing(subject: Subject) {
    let (pipe, peer) = mortal(&subject, |_, pipe| async move {
        let _kept = pipe.read_descriptor().await;
        std::future::pending().await
    })
    .await;
    let message = subject.message(&[(8 << 20, 1), (100_000, 2)]);
    let memory = watched(&message);
    let mut write = pipe.write(message);
    let early = tokio::time::timeout(Duration::from_millis(100), &mut write).await;
    assert!(early.is_err(), "written without a reader: {early:?}");
    peer.die().await;
    assert_lost(within("the write", write).await);
    eventually("the source let go of", || {
        memory.iter().all(|memory| memory.strong_count() == 0)
    })
    .await;
}

/// Either end dies while bytes flow. Each operation completes whole or fails with a typed error, and no memory is kept.
pub async fn dying_in_the_middle_leaves_nothing(subject: Subject) {
    for millis in [0, 2, 5, 10, 20] {
        let (pipe, peer) = mortal(&subject, |subject, pipe| async move {
            loop {
                let parts = [(8 << 20, 1), (8 << 20, 2)];
                let (written, read) =
                    tokio::join!(pipe.write(subject.message(&parts)), pipe.read());
                if written.is_err() || read.is_err() {
                    return;
                }
            }
        })
        .await;
        let parts = [(8 << 20, 3), (8 << 20, 4)];
        let message = subject.message(&parts);
        let memory = watched(&message);
        let traffic = async {
            let write = pipe.write(message);
            let read = async {
                loop {
                    match pipe.read().await {
                        Ok(message) => {
                            let parts = [(8 << 20, 1), (8 << 20, 2)];
                            subject.check(&message, &parts).await;
                        }
                        Err(error) => return error,
                    }
                }
            };
            let (_, error) = tokio::join!(write, read);
            error
        };
        let death = async {
            tokio::time::sleep(Duration::from_millis(millis)).await;
            peer.die().await;
        };
        let (error, ()) = within("the end of the pipe", async {
            tokio::join!(traffic, death)
        })
        .await;
        assert_lost::<()>(Err(error));
        eventually("memory back", || {
            pipe.pool().stats().outstanding_bytes == 0
                && memory.iter().all(|memory| memory.strong_count() == 0)
        })
        .await;
    }
}

/// After a message is read and dropped, neither the writer's nor the reader's memory is held.
pub async fn memory_is_given_back(subject: Subject) {
    let (client, server) = subject.pair().await;
    let parts = [(3 << 20, 1), (100, 2), (70_000, 3)];
    let message = subject.message(&parts);
    let memory = watched(&message);
    let (written, read) = within("a message", async {
        tokio::join!(client.write(message), server.read())
    })
    .await;
    written.unwrap_or_else(|error| panic!("write: {error}"));
    let message = read.unwrap_or_else(|error| panic!("read: {error}"));
    subject.check(&message, &parts).await;
    drop(message);
    eventually("memory back", || {
        server.pool().stats().outstanding_bytes == 0
            && memory.iter().all(|memory| memory.strong_count() == 0)
    })
    .await;
}
