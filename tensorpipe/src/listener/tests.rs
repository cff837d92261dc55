//! What a listener survives, and what it says of it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::task::Context as TaskContext;

use super::*;
use crate::context::Context;
use crate::error::SystemError;
use crate::transports::{BoxFuture, Connection};

/// Answers each accept with the next of these, then with nothing more.
struct Errors(Mutex<VecDeque<(&'static str, io::Error)>>);

struct ErrorAcceptor(
    VecDeque<(&'static str, io::Error)>,
    Arc<tokio::sync::Notify>,
);

impl Acceptor for ErrorAcceptor {
    fn address(&self) -> String {
        "here".to_owned()
    }

    fn poll_accept(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<Box<dyn Connection>, Error>> {
        let Some((call, error)) = self.0.pop_front() else {
            self.1.notify_one();
            return Poll::Pending;
        };
        Poll::Ready(Err(SystemError::new(call, "here", error).into()))
    }
}

impl Transport for Errors {
    fn name(&self) -> &'static str {
        "errors"
    }

    fn domain(&self) -> Vec<u8> {
        Vec::new()
    }

    fn connect<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Box<dyn Connection>, Error>> {
        Box::pin(async { Err(Misuse::NoRuntime.into()) })
    }

    fn listen<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Box<dyn Acceptor>, Error>> {
        Box::pin(async {
            let errors = std::mem::take(&mut *lock(&self.0));
            let done = DONE.with(Clone::clone);
            Ok(Box::new(ErrorAcceptor(errors, done)) as Box<dyn Acceptor>)
        })
    }
}

thread_local! {
    static DONE: Arc<tokio::sync::Notify> = Arc::default();
}

/// How long, on a virtual clock, until all errors are through.
async fn through(call: &'static str, errors: impl Iterator<Item = io::Error>) -> Duration {
    let errors = errors.map(|error| (call, error));
    let errors: Arc<dyn Transport> = Arc::new(Errors(Mutex::new(errors.collect())));
    let context = Context::builder().transports([errors]).build().unwrap();
    let begun = tokio::time::Instant::now();
    let _listener = context.listen(["errors://here"]).await.unwrap();
    DONE.with(Clone::clone).notified().await;
    begun.elapsed()
}

/// A better way, at whose door nobody is let in.
#[derive(Default)]
struct Side {
    /// The system lets nobody listen there. Otherwise somebody listens and accepts nobody, as a listener without descriptors.
    is_forbidden: bool,
    waiting: Mutex<Vec<tokio::io::DuplexStream>>,
}

struct DeafAcceptor;

impl Acceptor for DeafAcceptor {
    fn address(&self) -> String {
        "here".to_owned()
    }

    fn poll_accept(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<Box<dyn Connection>, Error>> {
        Poll::Pending
    }
}

impl Transport for Side {
    fn name(&self) -> &'static str {
        "side"
    }

    fn domain(&self) -> Vec<u8> {
        Vec::new()
    }

    fn upgrade_address(&self) -> Option<String> {
        Some("here".to_owned())
    }

    fn connect<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Box<dyn Connection>, Error>> {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        lock(&self.waiting).push(theirs);
        Box::pin(async { Ok(Box::new(ours) as Box<dyn Connection>) })
    }

    fn listen<'a>(&'a self, at: &'a str) -> BoxFuture<'a, Result<Box<dyn Acceptor>, Error>> {
        Box::pin(async move {
            if self.is_forbidden {
                let error = io::Error::from_raw_os_error(libc::EACCES);
                return Err(SystemError::new("listen", at, error).into());
            }
            Ok(Box::new(DeafAcceptor) as Box<dyn Acceptor>)
        })
    }
}

fn beside_tcp(side: Side) -> crate::ContextBuilder {
    let tcp: Arc<dyn Transport> = Arc::new(crate::transports::TcpTransport::new());
    Context::builder().transports([Arc::new(side) as Arc<dyn Transport>, tcp])
}

/// The routes that a new pipe's two ends print.
async fn routes(context: &Context) -> [String; 2] {
    let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    let url = listener.url().to_string();
    let (client, server) = tokio::join!(context.connect(&url), listener.accept());
    [client, server].map(|pipe| pipe.unwrap().route().to_string())
}

#[tokio::test]
async fn a_way_that_the_system_refuses_costs_the_upgrade_and_not_the_listener() {
    let side = Side {
        is_forbidden: true,
        ..Side::default()
    };
    let context = beside_tcp(side).build().unwrap();
    for route in routes(&context).await {
        assert!(route.starts_with("transport tcp ("), "{route}");
        let words = "not transport side: listen here: Permission denied";
        assert!(route.contains(words), "{route}");
    }
    // Where it is asked for by name, it is an error.
    let asked = context.listen(["tcp://127.0.0.1:0", "side://here"]);
    assert!(matches!(asked.await, Err(Error::System(_))));
}

#[tokio::test]
async fn whoever_is_not_let_in_at_a_better_way_stays_on_the_first() {
    for secret in [None, Some("a secret that both ends have, long enough")] {
        let timeouts = crate::Timeouts {
            handshake: Duration::from_secs(4),
            ..Default::default()
        };
        let context = beside_tcp(Side::default()).timeouts(timeouts);
        let context = match secret {
            Some(secret) => context.token("t", secret),
            None => context,
        };
        for route in routes(&context.build().unwrap()).await {
            assert!(route.starts_with("transport tcp ("), "{route}");
            let words = "not transport side: being let in took longer than ";
            assert!(route.contains(words), "{route}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn unproven_peers_slow_nobody_and_a_lack_of_descriptors_makes_a_pause() {
    let code = io::Error::from_raw_os_error;
    let hung_up = std::iter::repeat_with(|| code(libc::ECONNABORTED)).take(10_000);
    assert_eq!(through("accept", hung_up).await, Duration::ZERO);
    // As over tcp, where a peer is gone by the time it is looked at.
    let gone = std::iter::repeat_with(|| code(libc::ENOTCONN)).take(10_000);
    assert_eq!(through("setsockopt", gone).await, Duration::ZERO);
    // As over shm.
    let another_user = || io::Error::new(io::ErrorKind::PermissionDenied, "another user");
    let not_let_in = std::iter::repeat_with(another_user).take(10_000);
    assert_eq!(through("getsockopt", not_let_in).await, Duration::ZERO);
    // An acceptor that only ever fails.
    let broken = std::iter::repeat_with(|| io::Error::other("broken")).take(5000);
    assert!(through("accept", broken).await >= PAUSE);
    let short = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
    let short = short.into_iter().map(code);
    assert!(through("accept", short).await >= 4 * PAUSE);
}

thread_local! {
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Notes what this thread is warned of.
struct Notes;

impl tracing::field::Visit for Notes {
    fn record_debug(&mut self, _: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        SAID.with_borrow_mut(|said| *said += &format!("{value:?}; "));
    }
}

impl tracing::Subscriber for Notes {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= tracing::Level::WARN
    }
    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut Self);
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::Id {
        tracing::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::Id, _: &tracing::Id) {}
    fn enter(&self, _: &tracing::Id) {}
    fn exit(&self, _: &tracing::Id) {}
}

#[tokio::test(start_paused = true)]
async fn a_server_that_may_not_accept_says_so_and_what_to_do() {
    let _notes = tracing::subscriber::set_default(Notes);
    for (code, advice) in [
        (
            libc::EPERM,
            "a sandbox (seccomp, a security module) denies it: allow it",
        ),
        (libc::ENOSYS, "a seccomp filter hides it: allow it"),
        (libc::EMFILE, "raise the limit of open files"),
    ] {
        SAID.take();
        through("accept", [io::Error::from_raw_os_error(code)].into_iter()).await;
        let said = SAID.take();
        assert!(said.contains("no connection can be accepted"), "{said}");
        assert!(
            said.contains("accept here: ") && said.contains(advice),
            "{said}"
        );
    }
}

#[tokio::test]
async fn a_forked_child_lets_go_of_a_listener_which_its_parent_keeps() {
    let context = Context::new();
    let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    let url = listener.url().to_string();
    // Not even if it closes it.
    assert!(crate::sys::fork::tests::in_a_child(|| {
        listener.close();
        true
    }));
    context.connect(&url).await.unwrap();
    let mut listener = Some(listener);
    assert!(crate::sys::fork::tests::a_child_drops(&mut listener));
    context.connect(&url).await.unwrap();
}
