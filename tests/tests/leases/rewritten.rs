//! A hostile lender keeps writing to memory that it has lent: a reader that parses those bytes must decide on its own copy.

#![allow(unsafe_code, reason = "a hostile writer keeps no rules")]

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use futures_util::{SinkExt, Stream, StreamExt, stream};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tensorpipe::tensor::interop::MappedSafetensors;
use tensorpipe::{Context, DType, Message, Payload, Pipe, Pool, Tensor};
use tensorpipe_rpc::rendezvous::{RecvError, Rendezvous};
use tensorpipe_rpc::tarpc::{TarpcMessage, TransportError, transport};
use tensorpipe_rpc::{CallError, Remote, Server, Streaming, schema::method_id, tensor_service};
use tensorpipe_tests::{Child, say};

use super::scene::{alone, context, runtime, soon};

/// Long: it takes a while from when its beginning was checked until all of it is, and is copied.
const TEXT: usize = 2_000_000;

/// So often it was text. In between it is refused any number of times, as the writer happens to stand.
const TEXTS: u64 = 5;

/// Where nobody looks for long between the check and the use.
const MANY: u64 = 100;

const MOST: u64 = 3000;

/// How often a text is looked at, by a reader who has been told that it is one; with pauses, so that the writer has a core.
const LOOKS: u32 = 30;
const PAUSE: Duration = Duration::from_millis(1);

/// Whether something stays so.
fn stays(so: impl Fn() -> bool) -> bool {
    (0..LOOKS).all(|_| {
        std::thread::sleep(PAUSE);
        so()
    })
}

const CALL: u8 = 1;
const VALUE: u8 = 2;
const SERVICE_ERROR: u8 = 3;
const FAILURE: u8 = 4;
const BIND: u8 = 5;
const ITEMS: u8 = 9;
const REPLY_ITEMS: u8 = 10;
const END: u8 = 11;
const FETCH: u8 = 15;
const SHARE: u8 = 17;
const CLAIM: u8 = 18;
const WRAPPED: u8 = 19;

const REFERENCES: u8 = 4;

/// Of failures.
const BAD_ARGUMENTS: u8 = 4;
const NO_SERVICE: u8 = 9;
const BAD_ITEM: u8 = 11;
const OTHER: u8 = 200;

/// What asks a child for a message that is no call's.
const BYTES: u8 = b'b';

/// How long a text is: three bytes of seven bits.
const LEN: [u8; 3] = [
    TEXT as u8 | 0x80,
    (TEXT >> 7) as u8 | 0x80,
    (TEXT >> 14) as u8,
];

#[tensor_service]
pub(crate) trait Reader {
    /// Whether the text stayed one.
    async fn reads(&self, text: Watched) -> bool;
    /// The same of each of these.
    async fn hears(&self, texts: Streaming<Watched>) -> bool;
    async fn says(&self) -> Watched;
    async fn fails(&self) -> Result<u8, Watched>;
    async fn refers(&self) -> Remote<Watched>;
    fn tells(&self) -> impl Stream<Item = Watched>;
    #[rpc(batch(max_size = 64, max_wait = "20ms"))]
    async fn gathers(&self, rows: Tensor) -> Tensor;
}

struct Honest;

impl Reader for Honest {
    async fn reads(&self, text: Watched) -> bool {
        text.stayed
    }

    async fn hears(&self, mut texts: Streaming<Watched>) -> bool {
        let mut stayed = true;
        while let Some(Ok(text)) = texts.next().await {
            stayed &= text.stayed;
        }
        stayed
    }

    async fn says(&self) -> Watched {
        Watched { stayed: true }
    }

    async fn fails(&self) -> Result<u8, Watched> {
        Ok(0)
    }

    async fn refers(&self) -> Remote<Watched> {
        Remote::new(Watched { stayed: true })
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

impl TarpcMessage for Watched {}

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
                let stayed = text.len() != TEXT || stays(is_text);
                Ok(Watched { stayed })
            }
        }

        deserializer.deserialize_str(Look)
    }
}

/// A thread that writes these two in turn, by `write`.
struct Writer {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    fn begins(mut write: impl FnMut(u8) + Send + 'static) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let is_over = over.clone();
        let thread = std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                for byte in [0xff, b'a'] {
                    write(byte);
                    std::hint::spin_loop();
                }
            }
        });
        Self {
            over,
            thread: Some(thread),
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(
                ended.is_ok() || std::thread::panicking(),
                "nothing was rewritten"
            );
        }
    }
}

/// A text in memory of a pool, or in any other, of which a thread turns the first byte into what no text has, and back.
struct Rewritten {
    /// Ends before the memory goes.
    _writer: Writer,
    memory: Tensor,
}

impl Rewritten {
    /// With this before and behind it.
    fn of(pool: &Pool, front: &[u8], back: &[u8]) -> Self {
        Self::over(front, back, |text| {
            let mut memory = pool.tensor(DType::U8, [text.len() as u64]).unwrap();
            memory.make_mut::<u8>().unwrap().copy_from_slice(&text);
            memory
        })
    }

    /// In memory that is not lent: it is copied, or read.
    fn elsewhere() -> Self {
        Self::over(&LEN, &[], Tensor::from)
    }

    fn over(front: &[u8], back: &[u8], make: impl FnOnce(Vec<u8>) -> Tensor) -> Self {
        let mut memory = make([front, &[b'a'; TEXT], back].concat());
        let first = memory.make_mut::<u8>().unwrap()[front.len()..].as_mut_ptr();
        let first = first.expose_provenance();
        let writer = Writer::begins(move |byte| {
            let first = std::ptr::with_exposed_provenance_mut::<u8>(first);
            // SAFETY: the memory stays until this thread has ended. That others read it is what this is about.
            unsafe { first.write_volatile(byte) };
        });
        Self {
            _writer: writer,
            memory,
        }
    }

    /// As the body of a message with this header, which says that it is a payload.
    fn behind(&self, header: Vec<u8>) -> Message {
        let body = Payload::from(self.memory.buffer().clone());
        Message::new(header).payload(body)
    }
}

/// Of a message whose body is a payload.
fn header(kind: u8, call: &[u8]) -> Vec<u8> {
    [&[kind, 12, 1, 0], call].concat()
}

/// The header of a call of a method of this name.
fn called(method: &str, call: u64) -> Vec<u8> {
    let mut header = header(CALL, &call.to_le_bytes());
    header[1] = 28;
    header.extend([0; 4]);
    header.extend(method_id(method).to_le_bytes());
    header.extend([0; 8]);
    header
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

/// What a child rewrites, by what it is an answer to.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Answer {
    /// The text as a value.
    Text,
    /// As the words of a failure.
    Words,
    /// As where the owner of a value is, in `Grant`.
    Place,
    /// As the words of a rendezvous, in `Pulled::Refused(Refusal::NoKey(..))`.
    Refusal,
}

impl Answer {
    const ALL: [Self; 4] = [Self::Text, Self::Words, Self::Place, Self::Refusal];

    /// What stands before and behind the text.
    fn around(self) -> (Vec<u8>, &'static [u8]) {
        match self {
            Self::Text => (LEN.to_vec(), &[]),
            Self::Words => (Vec::new(), &[]),
            Self::Place => ([&[1][..], &LEN].concat(), &[7; 16]),
            Self::Refusal => ([&[1, 6][..], &LEN].concat(), &[]),
        }
    }

    fn len(self) -> u64 {
        let (front, back) = self.around();
        (front.len() + TEXT + back.len()) as u64
    }
}

/// The child that answers whatever it is asked with what it rewrites.
pub(crate) fn answer() {
    runtime().block_on(async {
        let wanted = std::env::var("TEST_ANSWER").unwrap();
        let answer = Answer::ALL.map(|answer| (format!("{answer:?}"), answer));
        let (_, answer) = answer
            .into_iter()
            .find(|(name, _)| *name == wanted)
            .unwrap();
        let context = context("answers", 64 << 20);
        let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
        say("url", listener.url());
        let (front, back) = answer.around();
        let text = Arc::new(Rewritten::of(context.pool(), &front, back));
        while let Ok(pipe) = listener.accept().await {
            tokio::spawn(answers(pipe, answer, text.clone()));
        }
    });
}

async fn answers(pipe: Pipe, answer: Answer, text: Arc<Rewritten>) {
    while let Ok(message) = pipe.read().await {
        let metadata = &message.metadata;
        if metadata[0] == BYTES {
            pipe.send(text.behind(vec![BYTES])).unwrap();
            continue;
        }
        let call = &metadata[4..12];
        let value =
            |flags, body: &[u8]| Message::new([&[VALUE, 12, flags, 0], call, body].concat());
        // The first one that this reply gives away, whose number takes two bytes of seven bits.
        let number = u16::from_le_bytes([call[0], call[1]]);
        let number = [number as u8 | 0x80, (number >> 7) as u8];
        let reference = || value(REFERENCES, &[&[0], &number[..], &[0]].concat());
        let is = |method: &str| metadata[16..20] == method_id(method).to_le_bytes();
        let reply = match metadata[0] {
            BIND => value(0, &[0]),
            CALL if answer == Answer::Words => {
                let mut failure = header(FAILURE, call);
                failure[3] = OTHER;
                text.behind(failure)
            }
            CALL if is("tells") => {
                let mut items = header(REPLY_ITEMS, call);
                items[3] = 1;
                pipe.send(text.behind(items)).unwrap();
                value(0, &[])
            }
            CALL if is("fails") => text.behind(header(SERVICE_ERROR, call)),
            CALL if is("refers") => reference(),
            CALL if is("hello") => value(0, b"\x07answers\x09"),
            CLAIM => reference(),
            // Its urls, which are none, and a token.
            SHARE if answer != Answer::Place => value(0, &[0; 17]),
            CALL | FETCH | SHARE => text.behind(header(VALUE, call)),
            WRAPPED => text.behind(header(WRAPPED, call)),
            // Of what there is no answer to.
            _ => continue,
        };
        if pipe.send(reply).is_err() {
            return;
        }
        // As above.
        tokio::time::sleep(PAUSE).await;
    }
}

/// What this call comes to, once all of it is sent: the reply's kind, its code, and its body.
async fn replied(pipe: &Pipe, message: Message, call: u64) -> (u8, u8, Vec<u8>) {
    pipe.send(message).unwrap();
    // Whoever waits for it polls, on the core that the writer could have.
    tokio::time::sleep(PAUSE).await;
    loop {
        let reply = soon("a reply", pipe.read()).await.unwrap().metadata;
        // Credits come, too, and a handler may end behind what its stream has come to.
        if [VALUE, FAILURE].contains(&reply[0]) && reply[4..12] == call.to_le_bytes() {
            return (reply[0], reply[3], reply[12..].to_vec());
        }
    }
}

#[test]
fn arguments_that_change_while_they_are_read_are_text_or_refused() {
    alone(async || {
        let child = Child::start("reads", &[]);
        let context = context("rewrites", 64 << 20);
        let pipe = context.connect(child.hear("url")).await.unwrap();
        let reads = async |text: &Rewritten, call: u64| {
            let message = text.behind(called("reads", call));
            let (kind, code, body) = replied(&pipe, message, call).await;
            is_text_or_refused((kind, code, &body), BAD_ARGUMENTS)
        };
        let text = Rewritten::of(context.pool(), &LEN, &[]);
        let calls = until(TEXTS, 0, async |call| reads(&text, call).await).await;
        let len = text.memory.byte_len() as u64;
        assert_eq!(pipe.stats().bytes_lent, calls * len);
        let text = Rewritten::elsewhere();
        until(TEXTS, calls, async |call| reads(&text, call).await).await;
    });
}

/// Makes calls, from this number on, until so many have had text. Returns the number of the next one.
async fn until(texts: u64, first: u64, has_text: impl AsyncFn(u64) -> bool) -> u64 {
    let (mut call, mut came) = (first, 0);
    while came < texts && call < first + MOST {
        came += u64::from(has_text(call).await);
        call += 1;
    }
    assert!(came > 0, "never text in {MOST} calls");
    call
}

/// What became of a call whose reply says whether its text stayed one: `false` if it was refused, for this reason.
#[track_caller]
fn is_text_or_refused((kind, code, body): (u8, u8, &[u8]), refused: u8) -> bool {
    match kind {
        VALUE => assert_eq!(body, [1], "it had a `str` that is none"),
        kind => assert_eq!((kind, code), (FAILURE, refused)),
    }
    kind == VALUE
}

#[test]
fn items_of_arguments_that_change_while_they_are_read_are_text_or_refused() {
    alone(async || {
        let child = Child::start("reads", &[]);
        let context = context("rewrites", 64 << 20);
        let pipe = context.connect(child.hear("url")).await.unwrap();
        let text = Rewritten::of(context.pool(), &LEN, &[]);
        let hears = async |call: u64| {
            let mut begins = called("hears", call);
            begins[2] = 0;
            pipe.send(Message::new(begins)).unwrap();
            let mut items = header(ITEMS, &call.to_le_bytes());
            items[3] = 1;
            pipe.send(text.behind(items)).unwrap();
            let mut end = header(END, &call.to_le_bytes());
            end[2] = 0;
            let (kind, code, body) = replied(&pipe, Message::new(end), call).await;
            is_text_or_refused((kind, code, &body), BAD_ITEM)
        };
        let calls = until(TEXTS, 0, hears).await;
        let len = text.memory.byte_len() as u64;
        assert_eq!(pipe.stats().bytes_lent, calls * len);
    });
}

/// What a client says of the service that it wants.
#[test]
fn a_description_that_changes_while_it_is_read_is_text_or_refused() {
    alone(async || {
        let child = Child::start("reads", &[]);
        let context = context("rewrites", 64 << 20);
        let pipe = context.connect(child.hear("url")).await.unwrap();
        // It has no methods.
        let text = Rewritten::of(context.pool(), &LEN, &[0]);
        let binds = async |call: u64| {
            let message = text.behind(header(BIND, &call.to_le_bytes()));
            let (kind, code, words) = replied(&pipe, message, call).await;
            let words = String::from_utf8_lossy(&words);
            assert_eq!(kind, FAILURE, "{words}");
            if code == NO_SERVICE {
                let name = words.split('`').nth(1).unwrap();
                let is_text = name.chars().all(|c| c == 'a');
                assert!(is_text, "a `str` that is none: {words}");
                return true;
            }
            assert_eq!(code, BAD_ARGUMENTS, "{words}");
            false
        };
        let calls = until(MANY, 0, binds).await;
        let len = text.memory.byte_len() as u64;
        assert_eq!(pipe.stats().bytes_lent, calls * len);
    });
}

/// Somebody asks who is answered with what is rewritten: `ask` gives what came of each round, and over which pipes, where those are to be
/// had. All of it was lent.
fn answers_are_text_or_refused(
    answer: Answer,
    ask: impl AsyncFn(&Context, &str) -> (Vec<Result<Watched, CallError>>, Vec<Pipe>),
) {
    alone(async || {
        let child = Child::start("answers", &[("TEST_ANSWER", &format!("{answer:?}"))]);
        let context = context("asks", 64 << 20);
        let (came, pipes) = ask(&context, &child.hear("url")).await;
        let rounds = came.len() as u64;
        for (round, text) in came.into_iter().enumerate() {
            match text {
                Ok(text) => assert!(text.stayed, "round {round} gave a `str` that is none"),
                Err(error) => assert!(matches!(error, CallError::Decode(_)), "{error}"),
            }
        }
        if !pipes.is_empty() {
            let borrowed = pipes.iter().map(|pipe| pipe.stats().bytes_borrowed);
            assert_eq!(borrowed.sum::<u64>(), rounds * answer.len());
        }
    });
}

/// Whether another round is due, until so many have given text.
fn is_due(came: &[Result<Watched, CallError>], texts: u64) -> bool {
    let texts_came = came.iter().filter(|came| came.is_ok()).count();
    assert!(texts_came > 0 || came.len() < MOST as usize, "never text");
    (texts_came as u64) < texts && came.len() < MOST as usize
}

/// The same of a client's calls, one each round.
fn calls_give_text_or_are_refused(
    answer: Answer,
    texts: u64,
    call: impl AsyncFn(&Context, &ReaderClient) -> Result<Watched, CallError>,
) {
    answers_are_text_or_refused(answer, async |context, url| {
        let client = ReaderClient::connect_with(context, url);
        let client = soon("a client", client).await.unwrap();
        let mut came = Vec::new();
        while is_due(&came, texts) {
            came.push(soon("an answer", call(context, &client)).await);
        }
        (came, vec![client.connection().pipe().clone()])
    });
}

#[test]
fn results_that_change_while_they_are_read_are_text_or_refused() {
    calls_give_text_or_are_refused(Answer::Text, TEXTS, async |_, client| client.says().await);
}

#[test]
fn errors_that_change_while_they_are_read_are_text_or_refused() {
    calls_give_text_or_are_refused(Answer::Text, TEXTS, async |_, client| {
        match client.fails().await {
            Err(CallError::Service(text)) => Ok(text),
            Err(CallError::Decode(error)) => Err(CallError::Decode(error)),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn items_that_change_while_they_are_read_are_text_or_refused() {
    calls_give_text_or_are_refused(Answer::Text, TEXTS, async |_, client| {
        client.tells().next().await.unwrap()
    });
}

#[test]
fn values_that_change_while_they_are_fetched_are_text_or_refused() {
    calls_give_text_or_are_refused(Answer::Text, TEXTS, async |_, client| {
        client.refers().await?.fetch().await
    });
}

/// Over a connection of its own.
#[test]
fn shared_values_that_change_while_they_are_fetched_are_text_or_refused() {
    answers_are_text_or_refused(Answer::Text, async |context, url| {
        let client = ReaderClient::connect_with(context, url);
        let client = soon("a client", client).await.unwrap();
        let shared = client.refers().await.unwrap().share().await.unwrap();
        let mut came = Vec::new();
        while is_due(&came, TEXTS) {
            let opened = soon("a reference", shared.open(context)).await.unwrap();
            came.push(soon("an answer", opened.fetch()).await);
        }
        (came, Vec::new())
    });
}

#[test]
fn places_that_change_while_they_are_read_are_text_or_refused() {
    calls_give_text_or_are_refused(Answer::Place, MANY, async |_, client| {
        let shared = client.refers().await?.share().await?;
        let url = shared.urls().last().unwrap();
        Ok(text_of(url, |c| c == 'a'))
    });
}

/// Of words that come without a length nothing is refused: what is no text is replaced.
#[test]
fn words_that_change_while_they_are_read_are_text() {
    calls_give_text_or_are_refused(Answer::Words, MANY, async |_, client| {
        match client.says().await {
            Err(CallError::Other(words)) => Ok(text_of(&words, |c| "a\u{fffd}".contains(c))),
            other => panic!("{other:?}"),
        }
    });
}

/// Whether this is text, and what is expected of it.
fn text_of(text: &str, expected: impl Fn(char) -> bool) -> Watched {
    let is_text = str::from_utf8(std::hint::black_box(text.as_bytes())).is_ok();
    Watched {
        stayed: is_text && !text.is_empty() && text.chars().all(expected),
    }
}

/// What a producer says who has no value.
#[test]
fn refusals_of_a_rendezvous_that_change_while_they_are_read_are_text_or_refused() {
    answers_are_text_or_refused(Answer::Refusal, async |context, url| {
        let rendezvous = Rendezvous::builder("asks").context(context);
        let rendezvous = rendezvous.peer("answers", url).build().unwrap();
        let key = rendezvous.key_from("answers", "x", 1);
        let key = soon("a key", key).await.unwrap();
        let mut came = Vec::new();
        while is_due(&came, MANY) {
            let refused = soon("an answer", rendezvous.recv(&key)).await.unwrap_err();
            came.push(match refused {
                RecvError::Call {
                    error: CallError::Other(words),
                    ..
                } => Ok(text_of(&words, |c| c == 'a')),
                RecvError::Call { error, .. } => Err(error),
                other => panic!("{other}"),
            });
        }
        let connection = rendezvous.connection("answers").unwrap();
        (came, vec![connection.pipe().clone()])
    });
}

/// What cannot be read ends the transport.
#[test]
fn messages_of_tarpc_that_change_while_they_are_read_are_text_or_refused() {
    answers_are_text_or_refused(Answer::Text, async |context, url| {
        let (mut came, mut pipes) = (Vec::new(), Vec::new());
        while is_due(&came, TEXTS) {
            let pipe = soon("a pipe", context.connect(url)).await.unwrap();
            pipes.push(pipe.clone());
            let mut transport = transport::<Watched, Watched>(pipe);
            transport.send(Watched { stayed: true }).await.unwrap();
            let message = soon("an answer", transport.next()).await.unwrap();
            came.push(message.map_err(|error| match error {
                TransportError::Decode { error, .. } => CallError::Decode(error),
                other => panic!("{other}"),
            }));
        }
        (came, pipes)
    });
}

/// As everybody has them who parses a payload.
#[test]
fn bytes_of_a_payload_stay_what_they_are() {
    answers_are_text_or_refused(Answer::Text, async |context, url| {
        let pipe = soon("a pipe", context.connect(url)).await.unwrap();
        let mut came = Vec::new();
        while is_due(&came, TEXTS) {
            pipe.send(Message::new(vec![BYTES])).unwrap();
            let mut message = soon("an answer", pipe.read()).await.unwrap();
            let bytes = message.payloads.remove(0).into_bytes();
            let first = bytes.to_vec();
            let stayed = stays(|| std::hint::black_box(&bytes)[..] == first);
            came.push(Ok(Watched { stayed }));
        }
        (came, vec![pipe])
    });
}

/// As many bytes as a text.
const ROWS: [u64; 2] = [8, TEXT as u64 / 8];

/// Whatever is in a tensor, its shape is what was announced, and each of its bytes is one that was there.
#[test]
fn rows_that_change_while_they_are_gathered_are_rows() {
    alone(async || {
        let child = Child::start("reads", &[]);
        let context = context("rewrites", 64 << 20);
        let client = ReaderClient::connect_with(&context, child.hear("url"));
        let client = soon("a client", client).await.unwrap();
        let texts = [
            Rewritten::of(context.pool(), &LEN, &[]),
            Rewritten::elsewhere(),
        ];
        let rows = texts.each_ref().map(|text| {
            let rows = text.memory.buffer().slice(LEN.len()..LEN.len() + TEXT);
            Tensor::from_buffer(rows, DType::U8, ROWS).unwrap()
        });
        for _ in 0..2 * TEXTS {
            let calls = rows.iter().map(|rows| client.gathers(rows));
            let gathered = futures_util::future::join_all(calls);
            for gathered in soon("rows", gathered).await {
                let gathered = gathered.unwrap();
                assert_eq!(gathered.shape(), ROWS);
                let (first, others) = gathered.as_slice::<u8>().unwrap().split_first().unwrap();
                assert!([b'a', 0xff].contains(first) && others.iter().all(|byte| *byte == b'a'));
            }
        }
    });
}

/// A mapped file is memory of others, too. Only its header is read here. Conversions to other libraries' tensors look at no content.
#[test]
fn names_in_a_file_that_changes_while_it_is_opened_are_text_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let (front, back) = (
        r#"{""#,
        r#"":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#,
    );
    let header = [front.as_bytes(), &[b'a'; 60_000], back.as_bytes()].concat();
    let len = (header.len() as u64).to_le_bytes();
    std::fs::write(&path, [&len[..], &header, &[7; 4]].concat()).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    let first = (len.len() + front.len()) as u64;
    let _writer = Writer::begins(move |byte| file.write_all_at(&[byte], first).unwrap());
    let (mut whole, mut opened) = (0, 0);
    while whole < MANY && opened < MOST {
        opened += 1;
        // Else there is an error in words.
        if let Ok(file) = MappedSafetensors::open(&path) {
            let name = &file.names()[0];
            assert!(text_of(name, |c| c == 'a').stayed, "a name that is no text");
            assert_eq!(file.tensor(name).unwrap().as_slice::<u8>().unwrap(), [7; 4]);
            whole += 1;
        }
    }
    println!("{whole} of {opened} times");
    assert!(whole > 0, "none was ever text");
}
