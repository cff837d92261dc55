//! The contract of every combination of backends: whole messages between whole contexts.

use std::sync::Arc;

use super::{assert_same, pattern, within};
use crate::context::Context;
use crate::device::{Buffer, BufferMut, Device};
use crate::error::Error;
use crate::listener::Listener;
use crate::message::{Allocation, Message, MessageTensor, Payload, Place};
use crate::pipe::Pipe;
use crate::tensor::{DType, Tensor};

/// Makes contexts, and a URL that any of them can listen at.
#[derive(Clone)]
pub struct Subject {
    make: Arc<dyn Fn() -> Context + Send + Sync>,
    url: String,
}

impl std::fmt::Debug for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Subject({})", self.url)
    }
}

impl Subject {
    /// Contexts made by `make`, the server's listening at `url`.
    pub fn new(make: impl Fn() -> Context + Send + Sync + 'static, url: impl Into<String>) -> Self {
        Self {
            make: Arc::new(make),
            url: url.into(),
        }
    }

    async fn listen(&self) -> Listener {
        let listener = within("listen", (self.make)().listen([&self.url])).await;
        listener.unwrap_or_else(|error| panic!("listen: {error}"))
    }

    async fn pair(&self) -> (Pipe, Pipe) {
        let listener = self.listen().await;
        let (context, url) = ((self.make)(), listener.url().to_string());
        let (client, server) = within("a pipe", async {
            tokio::join!(context.connect(&url), listener.accept())
        })
        .await;
        (pipe(client), pipe(server))
    }
}

fn pipe(made: Result<Pipe, Error>) -> Pipe {
    made.unwrap_or_else(|error| panic!("no pipe: {error}"))
}

#[doc(hidden)]
#[macro_export]
macro_rules! __pipe_scenarios {
    ($then:ident $args:tt) => {
        $crate::$then! { $args
            client_ping_serial client_ping_inline server_ping_pong_twice mixed_tensor_message
            simple_write_read simple_write_read_payloads_only simple_write_read_tensors_only
            simple_write_read_with_all_target_devices simple_write_read_with_some_target_devices
            multiple_write_read multiple_write_read_with_some_target_devices
            write_from_both_then_read nothing_at_all every_dtype_and_shape
            close_delivers_the_last_message
        }
    };
}

/// The scenarios' names, in the order in which [`all`] runs them.
pub const SCENARIOS: &[&str] = crate::__pipe_scenarios!(__suite_names());

/// Runs every scenario, each with a subject of its own, and returns their names.
///
/// # Panics
/// Where the contract is broken.
pub async fn all(make: impl Fn() -> Subject) -> &'static [&'static str] {
    crate::__pipe_scenarios!(__suite_run(make))
}

/// A part of a test message: its length, and whether its writer names a device for it.
type Part = (usize, bool);

/// A message whose every byte follows from its `seed`.
fn message(seed: u64, payloads: &[usize], tensors: &[Part]) -> Message {
    let mut message = Message::new(pattern(24, seed));
    for (i, len) in payloads.iter().enumerate() {
        let seed = seed * 100 + i as u64;
        message =
            message.payload(Payload::new(pattern(*len, seed)).with_metadata(pattern(9, seed)));
    }
    for (i, (len, targeted)) in tensors.iter().enumerate() {
        let seed = seed * 100 + 50 + i as u64;
        let tensor = Tensor::from_vec(pattern(*len, seed), [*len as u64]);
        let tensor = tensor.unwrap_or_else(|error| panic!("{error}"));
        let mut tensor = MessageTensor::from(tensor).with_metadata(pattern(11, seed));
        if *targeted {
            tensor = tensor.to_device(Device::CPU);
        }
        message = message.tensor(tensor);
    }
    message
}

fn check(found: &Message, seed: u64, payloads: &[usize], tensors: &[Part]) {
    let wanted = message(seed, payloads, tensors);
    assert_same(&found.metadata, &wanted.metadata, "metadata");
    assert_eq!(found.payloads.len(), payloads.len());
    assert_eq!(found.tensors.len(), tensors.len());
    for (found, wanted) in found.payloads.iter().zip(&wanted.payloads) {
        assert_same(found.as_bytes(), wanted.as_bytes(), "a payload");
        assert_same(&found.metadata, &wanted.metadata, "a payload's metadata");
    }
    for (found, wanted) in found.tensors.iter().zip(&wanted.tensors) {
        let bytes = |tensor: &MessageTensor| tensor.tensor.buffer().as_bytes().map(<[u8]>::to_vec);
        let (Some(is), Some(should)) = (bytes(found), bytes(wanted)) else {
            panic!("a tensor is not in main memory");
        };
        assert_same(&is, &should, "a tensor");
        assert_same(&found.metadata, &wanted.metadata, "a tensor's metadata");
        assert_eq!(found.target, wanted.target, "a tensor's target");
        assert_eq!(found.tensor.dtype(), DType::U8);
        assert_eq!(found.tensor.shape(), wanted.tensor.shape());
    }
}

async fn write(pipe: &Pipe, message: Message) {
    let written = within("a write", pipe.write(message)).await;
    written.unwrap_or_else(|error| panic!("write: {error}"));
}

/// Reads one message in two steps, every part into memory that the reader brings.
async fn read(pipe: &Pipe) -> Message {
    let incoming = within("a descriptor", pipe.read_descriptor()).await;
    let incoming = incoming.unwrap_or_else(|error| panic!("read_descriptor: {error}"));
    let descriptor = incoming.descriptor();
    let place = |len: u64| Place::Into(BufferMut::zeroed(len as usize));
    let allocation = Allocation {
        payloads: descriptor.payloads.iter().map(|p| place(p.len)).collect(),
        tensors: descriptor
            .tensors
            .iter()
            .map(|t| place(t.byte_len()))
            .collect(),
    };
    let message = within("a read", incoming.read_into(allocation)).await;
    message.unwrap_or_else(|error| panic!("read: {error}"))
}

/// One message each way, one after the other.
async fn exchange(subject: &Subject, payloads: &[usize], tensors: &[Part]) {
    let (client, server) = subject.pair().await;
    for (seed, (from, to)) in [(&client, &server), (&server, &client)]
        .into_iter()
        .enumerate()
    {
        let seed = seed as u64;
        let (_, found) = tokio::join!(write(from, message(seed, payloads, tensors)), read(to));
        check(&found, seed, payloads, tensors);
    }
}

const PAYLOADS: [usize; 3] = [13, 70_000, 1];
const TENSORS: [Part; 3] = [(17, false), (300_000, false), (4096, false)];

/// A client connects, then writes; the server accepts, then reads.
pub async fn client_ping_serial(subject: Subject) {
    let (client, server) = subject.pair().await;
    let written = client.write(message(1, &PAYLOADS, &TENSORS));
    check(&read(&server).await, 1, &PAYLOADS, &TENSORS);
    let written = within("the write", written).await;
    written.unwrap_or_else(|error| panic!("{error}"));
}

/// In two tasks: all of the server's work depends on its accept, all of the client's on its connect.
pub async fn client_ping_inline(subject: Subject) {
    let listener = subject.listen().await;
    let url = listener.url().to_string();
    let server = tokio::spawn(async move {
        let pipe = pipe(within("accept", listener.accept()).await);
        check(&read(&pipe).await, 2, &PAYLOADS, &TENSORS);
        write(&pipe, message(3, &[5], &[])).await;
        pipe
    });
    let client = pipe(within("connect", (subject.make)().connect(&url)).await);
    write(&client, message(2, &PAYLOADS, &TENSORS)).await;
    check(&read(&client).await, 3, &[5], &[]);
    assert!(within("the server", server).await.is_ok());
}

/// The server pings and the client answers, twice.
pub async fn server_ping_pong_twice(subject: Subject) {
    let (client, server) = subject.pair().await;
    let pings = async {
        for round in 0..2 {
            write(&server, message(round, &PAYLOADS, &TENSORS)).await;
            check(&read(&server).await, round + 10, &[4], &TENSORS);
        }
    };
    let pongs = async {
        for round in 0..2 {
            check(&read(&client).await, round, &PAYLOADS, &TENSORS);
            write(&client, message(round + 10, &[4], &TENSORS)).await;
        }
    };
    tokio::join!(pings, pongs);
}

/// Tensors of every sort in one message: empty, tiny, large, with and without a target.
pub async fn mixed_tensor_message(subject: Subject) {
    let tensors = [
        (0, false),
        (1, true),
        (2 << 20, false),
        (100, false),
        (1 << 20, true),
    ];
    exchange(&subject, &[0, 10], &tensors).await;
}

/// Payloads and tensors.
pub async fn simple_write_read(subject: Subject) {
    exchange(&subject, &PAYLOADS, &TENSORS).await;
}

/// Payloads only.
pub async fn simple_write_read_payloads_only(subject: Subject) {
    exchange(&subject, &PAYLOADS, &[]).await;
}

/// Tensors only.
pub async fn simple_write_read_tensors_only(subject: Subject) {
    exchange(&subject, &[], &TENSORS).await;
}

/// The writer names a device for every tensor.
pub async fn simple_write_read_with_all_target_devices(subject: Subject) {
    exchange(&subject, &PAYLOADS, &TENSORS.map(|(len, _)| (len, true))).await;
}

/// The writer names a device for some tensors.
pub async fn simple_write_read_with_some_target_devices(subject: Subject) {
    exchange(&subject, &PAYLOADS, &some_targets()).await;
}

fn some_targets() -> [Part; 3] {
    let mut tensors = TENSORS;
    tensors[1].1 = true;
    tensors
}

async fn several(subject: &Subject, tensors: &[Part]) {
    let (client, server) = subject.pair().await;
    let writes: Vec<_> = (0..10)
        .map(|i| client.write(message(i, &PAYLOADS, tensors)))
        .collect();
    for i in 0..10 {
        check(&read(&server).await, i, &PAYLOADS, tensors);
    }
    for written in writes {
        let written = within("a write", written).await;
        written.unwrap_or_else(|error| panic!("{error}"));
    }
}

/// Several messages are written, then read in order.
pub async fn multiple_write_read(subject: Subject) {
    several(&subject, &TENSORS).await;
}

/// The same with targets for some tensors.
pub async fn multiple_write_read_with_some_target_devices(subject: Subject) {
    several(&subject, &some_targets()).await;
}

/// Both ends write before either reads.
pub async fn write_from_both_then_read(subject: Subject) {
    let (client, server) = subject.pair().await;
    let writes = [
        client.write(message(1, &PAYLOADS, &TENSORS)),
        server.write(message(2, &PAYLOADS, &TENSORS)),
    ];
    let (at_client, at_server) = tokio::join!(read(&client), read(&server));
    check(&at_server, 1, &PAYLOADS, &TENSORS);
    check(&at_client, 2, &PAYLOADS, &TENSORS);
    for written in writes {
        let written = within("a write", written).await;
        written.unwrap_or_else(|error| panic!("{error}"));
    }
}

/// A message of nothing is a message.
pub async fn nothing_at_all(subject: Subject) {
    let (client, server) = subject.pair().await;
    let (_, found) = tokio::join!(write(&client, Message::default()), read(&server));
    assert!(found.metadata.is_empty() && found.payloads.is_empty() && found.tensors.is_empty());
    exchange(&subject, &[0, 0], &[(0, false), (0, true)]).await;
}

/// Types and shapes arrive as they were: scalars, empty dimensions, many dimensions.
pub async fn every_dtype_and_shape(subject: Subject) {
    let (client, server) = subject.pair().await;
    let shapes: [&[u64]; 5] = [&[], &[0, 3], &[2, 3, 4], &[1; 32], &[5]];
    let dtypes = [
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::U16,
        DType::U32,
        DType::U64,
        DType::Bool,
    ];
    let kinds = || {
        dtypes
            .iter()
            .flat_map(|dtype| shapes.map(|shape| (*dtype, shape)))
    };
    let made = |seed, (dtype, shape): (DType, &[u64])| {
        let tensor = Tensor::zeros(dtype, shape).and_then(|zeros| {
            let bytes = Buffer::copy_from_slice(&pattern(zeros.byte_len(), seed));
            Tensor::from_buffer(bytes, dtype, shape)
        });
        tensor.unwrap_or_else(|error| panic!("{error}"))
    };
    let mut sent = Message::new("kinds");
    for (seed, kind) in (0..).zip(kinds()) {
        sent = sent.tensor(made(seed, kind));
    }
    let (_, found) = tokio::join!(write(&client, sent), read(&server));
    assert_eq!(found.tensors.len(), kinds().count());
    for ((seed, kind), found) in (0..).zip(kinds()).zip(&found.tensors) {
        let tensor = &found.tensor;
        assert_eq!((tensor.dtype(), tensor.shape()), kind);
        assert_eq!(tensor.as_bytes(), made(seed, kind).as_bytes(), "{kind:?}");
    }
}

/// A message that was written before a close is read after it; then the pipe ends in good order.
pub async fn close_delivers_the_last_message(subject: Subject) {
    let (client, server) = subject.pair().await;
    let reader = async {
        for i in 0..3 {
            check(&read(&server).await, i, &PAYLOADS, &TENSORS);
        }
        let end = within("the end", server.read_descriptor()).await;
        assert!(
            matches!(end, Err(Error::Closed { by_peer: true, .. })),
            "{end:?}"
        );
    };
    let writer = async {
        for i in 0..3 {
            drop(client.write(message(i, &PAYLOADS, &TENSORS)));
        }
        let closed = within("close", client.close()).await;
        closed.unwrap_or_else(|error| panic!("close: {error}"));
    };
    tokio::join!(reader, writer);
}
