//! Hostile peers must not flood the log: ports are scanned all the time, and nobody reads a million lines.

use std::cell::RefCell;
use std::fmt::Debug;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use tensorpipe::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tracing::field::Field;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::memory::story;
use super::raw::{HELLO, SOON, frame, hello_body, preface, text};

thread_local! {
    static WARNINGS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Notes this thread's warnings, with their fields.
struct Notes;

impl Subscriber for Notes {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut warning = String::new();
        event.record(&mut |field: &Field, value: &dyn Debug| {
            warning.push_str(&format!("{field}={value:?} "));
        });
        WARNINGS.with_borrow_mut(|warnings| warnings.push(warning));
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// What is warned of on a runtime of this thread while this happens, and soon after. What it returns is kept so long.
pub(crate) fn warnings<T>(happens: impl Future<Output = T>) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    WARNINGS.take();
    tracing::subscriber::with_default(Notes, || {
        runtime.block_on(async {
            let _kept = happens.await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        });
    });
    WARNINGS.take()
}

/// How often is warned while a hundred hostile peers say this, one after the other, and go.
fn warnings_of(hostile_peers: &[u8]) -> usize {
    let warnings = warnings(async {
        let listener = Context::new().listen(["tcp://127.0.0.1:0"]).await.unwrap();
        for _ in 0..100 {
            let mut hostile = TcpStream::connect(listener.url().address()).await.unwrap();
            hostile.write_all(hostile_peers).await.unwrap();
            hostile.shutdown().await.unwrap();
            let mut answer = Vec::new();
            let end = hostile.read_to_end(&mut answer);
            let _ = tokio::time::timeout(SOON, end).await.expect("the end");
        }
        listener
    });
    warnings.len()
}

#[test]
fn who_only_looks_whether_somebody_listens_is_no_warning() {
    let _story = story!();
    assert_eq!(warnings_of(b""), 0);
}

#[test]
fn a_hundred_hostile_peers_with_the_same_fault_are_a_few_warnings() {
    let _story = story!();
    // Five in ten seconds, on a machine that is slow.
    let warnings = warnings_of(b"GET / HTTP/1.1\r\n\r\n");
    assert!((1..=20).contains(&warnings), "{warnings}");
}

/// Of a process at this place that lends, as anybody on this machine may say.
fn lends_here() -> Vec<u8> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let boot = u128::from_str_radix(&boot.trim().replace('-', ""), 16).unwrap();
    let network = std::fs::metadata("/proc/self/ns/net").unwrap();
    let mut place = vec![1];
    place.extend(boot.to_be_bytes());
    place.extend(network.dev().to_le_bytes());
    place.extend(network.ino().to_le_bytes());
    place.extend(nix::unistd::geteuid().as_raw().to_le_bytes());
    place.extend([0x11; 16]);
    place.extend(format!("tensorpipe-{:032x}", 1).into_bytes());
    place
}

/// A channel is chosen for one of its devices, and cannot be opened for what it says of another.
#[test]
fn a_hundred_pipes_that_cannot_be_opened_are_a_few_warnings() {
    let _story = story!();
    let mut body = hello_body(&["tcp"], &[]);
    *body.last_mut().unwrap() = 1;
    body.extend(text(b"lease"));
    body.extend([0, 2]);
    for descriptor in [&b"\0I cannot"[..], &lends_here()] {
        body.push(0);
        body.extend(text(descriptor));
    }
    let hello = [preface(), frame(HELLO, &body)].concat();
    let warnings = warnings_of(&hello);
    assert!((1..=20).contains(&warnings), "{warnings}");
}
