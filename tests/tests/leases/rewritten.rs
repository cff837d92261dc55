//! A lender that goes on writing to what it has lent: whoever parses those bytes decides on a copy of its own.

#![allow(unsafe_code, reason = "a hostile writer keeps no rules")]

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use futures_util::{Stream, StreamExt, stream};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tensorpipe::{DType, Message, Payload, Pipe, Pool, Tensor};
use tensorpipe_rpc::{CallError, Server, service::Service, tensor_service};
use tensorpipe_tests::{Child, say};

use super::scene::{alone, context, runtime, soon};

const TEXT: usize = 60_000;

const ROUNDS: u64 = 10;

/// How long a text is looked at, by a reader who has been told that it is one.
const LOOK: Duration = Duration::from_millis(50);

const CALL: u8 = 1;
const REPLY_ITEMS: u8 = 10;
const VALUE: u8 = 2;
const FAILURE: u8 = 4;
const BAD_ARGUMENTS: u8 = 4;

#[tensor_service]
pub(crate) trait Reader {
    /// Whether the text stayed one.
    async fn reads(&self, text: Watched) -> bool;
    async fn says(&self) -> Watched;
    fn tells(&self) -> impl Stream<Item = Watched>;
    #[rpc(batch(max_size = 64, max_wait = "20ms"))]
    async fn gathers(&self, rows: Tensor) -> Tensor;
}

struct Honest;

impl Reader for Honest {
    async fn reads(&self, text: Watched) -> bool {
        text.stayed
    }

    async fn says(&self) -> Watched {
        Watched { stayed: true }
    }

    fn tells(&self) -> impl Stream<Item = Watched> {
        stream::empty()
    }

    async fn gathers(&self, rows: Tensor) -> Tensor {
        rows
    }
}

/// A text, and whether it stayed one for as long as whoever takes it out of its message could look at it.
#[derive(Debug)]
pub(crate) struct Watched {
    stayed: bool,
}

impl Serialize for Watched {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("")
    }
}

impl<'de> Deserialize<'de> for Watched {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Look;

        impl Visitor<'_> for Look {
            type Value = Watched;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Watched, E> {
                let is_text = || str::from_utf8(std::hint::black_box(text.as_bytes())).is_ok();
                let begun = Instant::now();
                let mut stayed = true;
                while stayed && text.len() == TEXT && begun.elapsed() < LOOK {
                    stayed = is_text();
                }
                Ok(Watched { stayed })
            }
        }

        deserializer.deserialize_str(Look)
    }
}

/// The bytes of a string in memory of a pool, or in any other, of which a thread turns the last one into what no text has, and back.
struct Rewritten {
    memory: Tensor,
    over: Arc<AtomicBool>,
    writer: Option<JoinHandle<()>>,
}

impl Rewritten {
    fn of(pool: &Pool) -> Self {
        Self::over(|text| {
            let mut memory = pool.tensor(DType::U8, [text.len() as u64]).unwrap();
            memory.make_mut::<u8>().unwrap().copy_from_slice(&text);
            memory
        })
    }

    /// In memory that is not lent: it is copied, or read.
    fn elsewhere() -> Self {
        Self::over(Tensor::from)
    }

    fn over(make: impl FnOnce(Vec<u8>) -> Tensor) -> Self {
        // Its length stands before it, in three bytes of seven bits.
        let len = [TEXT | 0x80, (TEXT >> 7) | 0x80, TEXT >> 14].map(|bits| bits as u8);
        let text = [&len[..], &[b'a'; TEXT]].concat();
        let mut memory = make(text);
        let bytes = memory.make_mut::<u8>().unwrap();
        let last = bytes.as_mut_ptr_range().end.addr() - 1;
        let last = bytes.as_mut_ptr().with_addr(last).expose_provenance();
        let over = Arc::new(AtomicBool::new(false));
        let is_over = over.clone();
        let writer = std::thread::spawn(move || {
            let last = std::ptr::with_exposed_provenance_mut::<u8>(last);
            while !is_over.load(Ordering::Relaxed) {
                for byte in [0xff, b'a'] {
                    // SAFETY: the memory stays until this thread has ended. That others read it is what this is about.
                    unsafe { last.write_volatile(byte) };
                    std::hint::spin_loop();
                }
            }
        });
        Self {
            memory,
            over,
            writer: Some(writer),
        }
    }

    /// As the body of a message with this header, which says that it is a payload.
    fn behind(&self, header: Vec<u8>) -> Message {
        let body = Payload::from(self.memory.buffer().clone());
        Message::new(header).payload(body)
    }
}

impl Drop for Rewritten {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

fn header(kind: u8, call: &[u8]) -> Vec<u8> {
    [&[kind, 12, 1, 0], call].concat()
}

/// The child that serves, and parses what it is called with.
pub(crate) fn serve() {
    runtime().block_on(async {
        let server = Server::builder().service(ReaderService::new(Honest));
        let server = server.listen("tcp://127.0.0.1:0").await.unwrap();
        say("url", server.url());
        server.wait().await;
    });
}

/// The child that answers each call with what it rewrites.
pub(crate) fn answer() {
    runtime().block_on(async {
        let context = context("answers", 64 << 20);
        let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
        say("url", listener.url());
        let pipe = listener.accept().await.unwrap();
        let text = Rewritten::of(context.pool());
        while let Ok(message) = pipe.read().await {
            let call = &message.metadata[4..12];
            let reply = match message.metadata[0] {
                CALL if message.metadata[16..20] == method(2) => {
                    let mut items = header(REPLY_ITEMS, call);
                    items[3] = 1;
                    pipe.send(text.behind(items)).unwrap();
                    Message::new([&[VALUE, 12, 0, 0], call].concat())
                }
                CALL => text.behind(header(VALUE, call)),
                _ => Message::new([&[VALUE, 12, 0, 0], call, &[0]].concat()),
            };
            pipe.send(reply).unwrap();
        }
    });
}

/// The number of a method, as calls say it.
fn method(index: usize) -> [u8; 4] {
    let schema = ReaderService::new(Honest).schema();
    schema.methods[index].id.to_le_bytes()
}

/// Whether what it is called with stays a text there; `None` where it is refused.
async fn stays_text(pipe: &Pipe, text: &Rewritten, call: u64) -> Option<bool> {
    let mut header = header(CALL, &call.to_le_bytes());
    header[1] = 28;
    header.extend([0; 4]);
    header.extend(method(0));
    header.extend([0; 8]);
    pipe.send(text.behind(header)).unwrap();
    let reply = soon("a reply", pipe.read()).await.unwrap().metadata;
    match (reply[0], reply[3]) {
        (VALUE, _) => Some(reply[12] == 1),
        (FAILURE, BAD_ARGUMENTS) => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn arguments_that_change_while_they_are_read_are_text_or_refused() {
    alone(async || {
        let child = Child::start("reads", &[]);
        let context = context("rewrites", 64 << 20);
        let pipe = context.connect(child.hear("url")).await.unwrap();
        let text = Rewritten::of(context.pool());
        for call in 0..ROUNDS {
            let stays = stays_text(&pipe, &text, call).await;
            assert_ne!(stays, Some(false), "call {call} had a `str` that is none");
        }
        let len = text.memory.byte_len() as u64;
        assert_eq!(pipe.stats().bytes_lent, ROUNDS * len);
        let text = Rewritten::elsewhere();
        for call in ROUNDS..2 * ROUNDS {
            let stays = stays_text(&pipe, &text, call).await;
            assert_ne!(stays, Some(false), "call {call} had a `str` that is none");
        }
    });
}

/// A client calls who answers with what it rewrites. All of that is lent; `ask` gives what comes of one call.
fn answers_are_text_or_refused(
    ask: impl AsyncFn(&ReaderClient) -> Vec<Result<Watched, CallError>>,
) {
    alone(async || {
        let child = Child::start("answers", &[]);
        let context = context("asks", 64 << 20);
        let client = ReaderClient::connect_with(&context, child.hear("url"));
        let client = soon("a client", client).await.unwrap();
        for call in 0..ROUNDS {
            for text in soon("an answer", ask(&client)).await {
                match text {
                    Ok(text) => assert!(text.stayed, "call {call} gave a `str` that is none"),
                    Err(error) => assert!(matches!(error, CallError::Decode(_)), "{error}"),
                }
            }
        }
        let borrowed = client.connection().pipe().stats().bytes_borrowed;
        assert_eq!(borrowed, ROUNDS * (TEXT as u64 + 3));
    });
}

#[test]
fn results_that_change_while_they_are_read_are_text_or_refused() {
    answers_are_text_or_refused(async |client| vec![client.says().await]);
}

#[test]
fn items_that_change_while_they_are_read_are_text_or_refused() {
    answers_are_text_or_refused(async |client| client.tells().collect().await);
}

/// Whatever is in a tensor, its shape is what was announced, and each of its bytes is one that was there.
#[test]
fn rows_that_change_while_they_are_gathered_are_rows() {
    alone(async || {
        let child = Child::start("reads", &[]);
        let context = context("rewrites", 64 << 20);
        let client = ReaderClient::connect_with(&context, child.hear("url"));
        let client = soon("a client", client).await.unwrap();
        let texts = [Rewritten::of(context.pool()), Rewritten::elsewhere()];
        let rows = texts.each_ref().map(|text| {
            let len = text.memory.byte_len();
            let rows = text.memory.buffer().slice(len - 60_000..len);
            Tensor::from_buffer(rows, DType::U8, [6, 10_000]).unwrap()
        });
        for _ in 0..ROUNDS {
            let calls = rows.iter().map(|rows| client.gathers(rows));
            let gathered = futures_util::future::join_all(calls);
            for gathered in soon("rows", gathered).await {
                let gathered = gathered.unwrap();
                assert_eq!(gathered.shape(), [6, 10_000]);
                let (last, others) = gathered.as_slice::<u8>().unwrap().split_last().unwrap();
                assert!([b'a', 0xff].contains(last) && others.iter().all(|byte| *byte == b'a'));
            }
        }
    });
}
