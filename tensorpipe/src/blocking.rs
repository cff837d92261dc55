//! Blocking twins for plain threads.
//!
//! The work is done on one thread of a tokio runtime of the process's own; calls here wait for it. Inside an async runtime
//! they would block it, so there they are refused: use the async types. A forked child has a thread of its own, and
//! makes contexts and pipes of its own.
//!
//! ```
//! use tensorpipe::{Message, Tensor, blocking::Context};
//!
//! let context = Context::new();
//! let listener = context.listen(["tcp://127.0.0.1:0"])?;
//! let url = listener.url().to_string();
//! let reader = std::thread::spawn(move || listener.accept()?.read());
//! let pipe = context.connect(&url)?;
//! pipe.write(Message::new("hello").tensor(Tensor::from(vec![1f32, 2.0])))?;
//! assert_eq!(&reader.join().unwrap()?.metadata[..], b"hello");
//! # Ok::<(), tensorpipe::Error>(())
//! ```

use std::future::Future;
use std::sync::OnceLock;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};

use crate::error::{Error, Misuse, SystemError};
use crate::sys::fork::PerProcess;
use crate::sys::workers::panics;
use crate::{Allocation, ConnectPolicy, Descriptor, Message, Pool, ReadError, Route, Url};

fn runtime() -> Result<&'static Runtime, Error> {
    // A forked child has not got its parent's thread.
    static RUNTIME: PerProcess<OnceLock<Runtime>> = PerProcess::new();
    let runtime = RUNTIME.get(OnceLock::new);
    if let Some(runtime) = runtime.get() {
        return Ok(runtime);
    }
    // If that is refused, the next call tries again.
    let made = make()?;
    Ok(runtime.get_or_init(|| made))
}

fn make() -> Result<Runtime, SystemError> {
    let refused = |error| SystemError::new("clone", "a thread for blocking pipes", error);
    // Where the system refuses a thread, tokio panics, and leaks what it has opened. So one is tried first.
    let tried = std::thread::Builder::new().spawn(|| {}).map_err(refused)?;
    let _ = tried.join();
    // If another thread was faster than tokio: the error that it panics with.
    let mut built = Err(std::io::Error::from_raw_os_error(libc::EAGAIN));
    panics(|| {
        built = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("tensorpipe")
            .enable_all()
            .build();
    });
    built.map_err(refused)
}

/// The runtime to wait on, from a thread that belongs to none.
fn outside() -> Result<&'static Runtime, Error> {
    if Handle::try_current().is_ok() {
        let text =
            "a blocking call inside a tokio runtime would block it; use the async types there";
        return Err(Misuse::Other(text.to_owned()).into());
    }
    runtime()
}

fn wait<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    outside()?.block_on(work)
}

async fn bounded<T>(
    what: &str,
    after: Duration,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    match tokio::time::timeout(after, work).await {
        Ok(result) => result,
        Err(_) => Err(Error::Timeout {
            what: what.into(),
            after,
            hint: "",
        }),
    }
}

/// As [`crate::Context`].
#[derive(Clone, Debug, Default)]
pub struct Context(crate::Context);

impl From<crate::Context> for Context {
    fn from(context: crate::Context) -> Self {
        Self(context)
    }
}

impl Context {
    /// A context with every default. With settings: `Context::from(tensorpipe::Context::builder()…build()?)`.
    pub fn new() -> Self {
        Self::default()
    }

    /// As [`crate::Context::pool`].
    pub fn pool(&self) -> &Pool {
        self.0.pool()
    }

    /// As [`crate::Context::listen`].
    ///
    /// # Errors
    /// The same.
    pub fn listen<U: AsRef<str>>(
        &self,
        urls: impl IntoIterator<Item = U>,
    ) -> Result<Listener, Error> {
        wait(self.0.listen(urls)).map(Listener)
    }

    /// As [`crate::Context::connect`].
    ///
    /// # Errors
    /// The same.
    pub fn connect(&self, url: impl AsRef<str>) -> Result<Pipe, Error> {
        wait(self.0.connect(url)).map(Pipe)
    }

    /// As [`crate::Context::connect_with`].
    ///
    /// # Errors
    /// The same.
    pub fn connect_with(
        &self,
        url: impl AsRef<str>,
        policy: &ConnectPolicy,
    ) -> Result<Pipe, Error> {
        wait(self.0.connect_with(url, policy)).map(Pipe)
    }

    /// As [`crate::Context::close`].
    ///
    /// # Errors
    /// The same.
    pub fn close(&self) -> Result<(), Error> {
        wait(self.0.close())
    }
}

/// As [`crate::Listener`].
#[derive(Debug)]
pub struct Listener(crate::Listener);

impl Listener {
    /// As [`crate::Listener::urls`].
    pub fn urls(&self) -> &[Url] {
        self.0.urls()
    }

    /// As [`crate::Listener::url`].
    pub fn url(&self) -> &Url {
        self.0.url()
    }

    /// As [`crate::Listener::accept`].
    ///
    /// # Errors
    /// The same.
    pub fn accept(&self) -> Result<Pipe, Error> {
        wait(self.0.accept()).map(Pipe)
    }

    /// The same for a bounded time.
    ///
    /// # Errors
    /// The same, and [`Error::Timeout`].
    pub fn accept_within(&self, bound: Duration) -> Result<Pipe, Error> {
        wait(bounded("waiting for a pipe", bound, self.0.accept())).map(Pipe)
    }
}

/// As [`crate::Pipe`].
#[derive(Clone, Debug)]
pub struct Pipe(crate::Pipe);

impl Pipe {
    /// The async pipe behind it.
    pub fn as_async(&self) -> &crate::Pipe {
        &self.0
    }

    /// As [`crate::Pipe::route`].
    pub fn route(&self) -> &Route {
        self.0.route()
    }

    /// As [`crate::Pipe::write`]: returns when every byte is handed over, for large tensors not before the peer reads.
    ///
    /// # Errors
    /// The same.
    pub fn write(&self, message: Message) -> Result<(), Error> {
        wait(async { self.0.write(message).await })
    }

    /// As [`crate::Pipe::send`]: returns at once.
    ///
    /// # Errors
    /// The same.
    pub fn send(&self, message: Message) -> Result<u64, Error> {
        self.0.send(message)
    }

    /// As [`crate::Pipe::flush`].
    ///
    /// # Errors
    /// The same.
    pub fn flush(&self) -> Result<(), Error> {
        wait(async { self.0.flush().await })
    }

    /// As [`crate::Pipe::read_descriptor`].
    ///
    /// # Errors
    /// The same.
    pub fn read_descriptor(&self) -> Result<Incoming, Error> {
        wait(self.0.read_descriptor()).map(Incoming)
    }

    /// As [`crate::Pipe::read`].
    ///
    /// # Errors
    /// The same.
    pub fn read(&self) -> Result<Message, Error> {
        wait(self.0.read())
    }

    /// The next message if it comes within a bound; its tensors may take longer.
    ///
    /// # Errors
    /// The same, and [`Error::Timeout`].
    pub fn read_within(&self, bound: Duration) -> Result<Message, Error> {
        let incoming = wait(bounded(
            "waiting for a message",
            bound,
            self.0.read_descriptor(),
        ))?;
        wait(async { incoming.read().await })
    }

    /// As [`crate::Pipe::close`].
    ///
    /// # Errors
    /// The same.
    pub fn close(&self) -> Result<(), Error> {
        wait(self.0.close())
    }

    /// As [`crate::Pipe::close_within`].
    ///
    /// # Errors
    /// The same.
    pub fn close_within(&self, linger: Duration) -> Result<(), Error> {
        wait(self.0.close_within(linger))
    }
}

/// As [`crate::Incoming`].
#[derive(Debug)]
pub struct Incoming(crate::Incoming);

impl Incoming {
    /// As [`crate::Incoming::descriptor`].
    pub fn descriptor(&self) -> &Descriptor {
        self.0.descriptor()
    }

    /// As [`crate::Incoming::read`].
    ///
    /// # Errors
    /// The same.
    pub fn read(self) -> Result<Message, Error> {
        wait(async { self.0.read().await })
    }

    /// As [`crate::Incoming::read_into`].
    ///
    /// # Errors
    /// The same; the memory comes back with it.
    pub fn read_into(self, allocation: Allocation) -> Result<Message, ReadError> {
        match outside() {
            Err(error) => Err(ReadError { error, allocation }),
            Ok(runtime) => runtime.block_on(self.0.read_into(allocation)),
        }
    }

    /// As [`crate::Incoming::skip`].
    pub fn skip(self) {
        self.0.skip();
    }

    /// As [`crate::Incoming::refuse`].
    pub fn refuse(self, reason: &str) {
        self.0.refuse(reason);
    }

    /// As [`crate::Incoming::refuse_overloaded`].
    pub fn refuse_overloaded(self, reason: &str) {
        self.0.refuse_overloaded(reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tensor;

    #[test]
    fn threads_talk_and_bounds_hold() {
        let context = Context::new();
        let listener = context.listen(["tcp://127.0.0.1:0"]).unwrap();
        let error = listener
            .accept_within(Duration::from_millis(20))
            .unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        let url = listener.url().to_string();
        let echo = std::thread::spawn(move || {
            let pipe = listener.accept()?;
            let message = pipe.read_descriptor()?.read()?;
            pipe.write(message)?;
            pipe.flush()
        });
        let pipe = context.connect(&url).unwrap();
        assert!(matches!(
            pipe.read_within(Duration::from_millis(20)),
            Err(Error::Timeout { .. })
        ));
        pipe.write(Message::new("big").tensor(Tensor::from(vec![7u8; 1 << 20])))
            .unwrap();
        let back = pipe.read().unwrap();
        assert_eq!(
            back.tensors[0].tensor.as_bytes().unwrap(),
            &[7; 1 << 20][..]
        );
        echo.join().unwrap().unwrap();
    }

    /// Everything that a reader may do with a message, from a thread; then the end, from both sides.
    #[test]
    fn a_thread_reads_into_its_memory_skips_refuses_and_closes() {
        // The writer closes its context, and with it whatever that has not read.
        let (here, context) = (Context::new(), Context::new());
        let listener = here.listen(["tcp://127.0.0.1:0"]).unwrap();
        let url = listener.url().to_string();
        let message = || Message::new("big").tensor(Tensor::from(vec![7u8; 1 << 20]));
        let writer = std::thread::spawn(move || {
            let pipe = context.connect_with(&url, &ConnectPolicy::once()).unwrap();
            // Two threads on one pipe.
            let other = pipe.clone();
            let first = std::thread::spawn(move || other.write(message()));
            assert_eq!(&pipe.read().unwrap().metadata[..], b"got it");
            first.join().unwrap().unwrap();
            pipe.write(message()).unwrap();
            // More than may come before it is read.
            let large = Message::new("large").tensor(Tensor::from(vec![7u8; 8 << 20]));
            let refused = pipe.write(large).unwrap_err();
            assert!(refused.to_string().contains("no room"), "{refused}");
            pipe.send(Message::new("last")).unwrap();
            pipe.close_within(Duration::from_secs(10)).unwrap();
            context.close().unwrap();
            assert!(context.connect(&url).is_err());
        });
        let pipe = listener.accept().unwrap();
        let incoming = pipe.read_descriptor().unwrap();
        assert_eq!(incoming.descriptor().tensors[0].shape, [1 << 20]);
        let room = Allocation {
            tensors: vec![crate::Place::Into(crate::BufferMut::zeroed(1 << 20))],
            ..Allocation::default()
        };
        let read = incoming.read_into(room).unwrap();
        let bytes = read.tensors[0].tensor.as_bytes().unwrap();
        assert_eq!(bytes, &[7; 1 << 20][..]);
        pipe.write(Message::new("got it")).unwrap();
        pipe.read_descriptor().unwrap().skip();
        pipe.read_descriptor().unwrap().refuse("no room");
        assert_eq!(&pipe.read().unwrap().metadata[..], b"last");
        let end = pipe.read().unwrap_err();
        assert!(
            matches!(end, Error::Closed { by_peer: true, .. }),
            "{end:?}"
        );
        writer.join().unwrap();
    }

    #[test]
    fn a_forked_child_has_a_thread_of_its_own() {
        let talk = || {
            let listener = Context::new().listen(["memory://forked"])?;
            let pipe = Context::new().connect(listener.url())?;
            pipe.write(Message::new("hello"))?;
            listener.accept()?.read()
        };
        assert_eq!(&talk().unwrap().metadata[..], b"hello");
        assert!(crate::sys::fork::tests::in_a_child(|| talk().is_ok()));
    }

    #[test]
    fn a_bound_that_passes_says_which() {
        let listener = Context::new().listen(["tcp://127.0.0.1:0"]).unwrap();
        let bound = Duration::from_millis(20);
        let error = listener.accept_within(bound).unwrap_err();
        assert_eq!(
            error.to_string(),
            "waiting for a pipe took longer than 20 ms"
        );
    }

    #[test]
    fn inside_a_runtime_it_is_refused() {
        let runtime = Builder::new_current_thread().build().unwrap();
        let error = runtime
            .block_on(async { Context::new().connect("tcp://127.0.0.1:1") })
            .unwrap_err();
        assert!(error.to_string().contains("async types"), "{error}");
    }
}
