//! What every channel has to do: the contract in [`channels`](crate::channels), through pipes between two contexts that
//! have this channel alone and let no tensor ride in a message's frame.

mod dying;
mod giving_up;

pub use dying::{
    a_reader_that_dies_leaves_nothing, a_writer_that_dies_leaves_nothing,
    dying_in_the_middle_leaves_nothing, memory_is_given_back,
};
pub use giving_up::{
    cancel_of_the_writer_leaves_the_pipe_going, dropped_reads_leave_the_pipe_going,
    refusing_leaves_the_pipe_going, skipped_tensors_are_not_sent,
};

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{assert_same, eventually, pattern, within};
use crate::channels::Channel;
use crate::config::{Limits, Timeouts};
use crate::context::Context;
use crate::device::{Buffer, BufferMut, Device};
use crate::error::{Error, ResetCode};
use crate::listener::Listener;
use crate::message::{Allocation, Message, MessageTensor, Place};
use crate::pipe::{Handler, Incoming, Pipe};
use crate::tensor::{DType, Tensor};
use crate::transports::{TcpTransport, Transport};

type Make = dyn Fn() -> Arc<dyn Channel> + Send + Sync;
type Upload = dyn Fn(&[u8]) -> Buffer + Send + Sync;
type Room = dyn Fn(usize) -> BufferMut + Send + Sync;
type Download = dyn Fn(&Buffer) -> Vec<u8> + Send + Sync;

/// A channel, and how bytes get onto its device and back.
#[derive(Clone)]
pub struct Subject {
    make: Arc<Make>,
    device: Device,
    upload: Arc<Upload>,
    room: Arc<Room>,
    download: Arc<Download>,
    /// A channel may open connections later.
    listeners: Arc<Mutex<Vec<Listener>>>,
}

impl std::fmt::Debug for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Subject({} on {})", (self.make)().name(), self.device)
    }
}

impl Subject {
    /// A channel for main memory; `make` makes one for each of two contexts.
    pub fn cpu(make: impl Fn() -> Arc<dyn Channel> + Send + Sync + 'static) -> Self {
        Self::on(
            Device::CPU,
            make,
            Buffer::copy_from_slice,
            BufferMut::zeroed,
            |buffer| buffer.as_bytes().unwrap_or_default().to_vec(),
        )
    }

    /// A channel for `device`: `upload` makes memory there of bytes, `room` makes memory there to be filled, `download`
    /// fetches the bytes.
    pub fn on(
        device: Device,
        make: impl Fn() -> Arc<dyn Channel> + Send + Sync + 'static,
        upload: impl Fn(&[u8]) -> Buffer + Send + Sync + 'static,
        room: impl Fn(usize) -> BufferMut + Send + Sync + 'static,
        download: impl Fn(&Buffer) -> Vec<u8> + Send + Sync + 'static,
    ) -> Self {
        Self {
            make: Arc::new(make),
            device,
            upload: Arc::new(upload),
            room: Arc::new(room),
            download: Arc::new(download),
            listeners: Arc::default(),
        }
    }

    fn context(&self, name: &str) -> Context {
        let transport: Arc<dyn Transport> = Arc::new(TcpTransport::new());
        let limits = Limits {
            eager_part: 0,
            ..Limits::default()
        };
        let timeouts = Timeouts {
            linger: Duration::from_secs(5),
            ..Timeouts::default()
        };
        let context = Context::builder()
            .name(name)
            .transports([transport])
            .channels([(self.make)()])
            .limits(limits)
            .timeouts(timeouts);
        context.build().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Two ends, of two contexts: the one that connected, the one that accepted.
    async fn pair(&self) -> (Pipe, Pipe) {
        let (client, server) = (self.context("client"), self.context("server"));
        let listener = listen(&server).await;
        let url = listener.url().to_string();
        let (client, server) = within("a pipe", async {
            tokio::join!(client.connect(&url), listener.accept())
        })
        .await;
        let pipe = |pipe: Result<Pipe, Error>| pipe.unwrap_or_else(|error| panic!("{error}"));
        let (client, server) = (pipe(client), pipe(server));
        let name = (self.make)().name();
        for pipe in [&client, &server] {
            let chosen = pipe.route().channels.iter().any(|route| route.name == name);
            assert!(chosen, "`{name}` was not chosen: {}", pipe.route());
        }
        self.keep(listener);
        (client, server)
    }

    /// Until the scenario ends.
    fn keep(&self, listener: Listener) {
        crate::sync::lock(&self.listeners).push(listener);
    }

    fn tensor(&self, len: usize, seed: u64) -> MessageTensor {
        let buffer = (self.upload)(&pattern(len, seed));
        assert_eq!(buffer.device(), self.device);
        let tensor = Tensor::from_buffer(buffer, DType::U8, [len as u64]);
        let tensor = tensor.unwrap_or_else(|error| panic!("{error}"));
        MessageTensor::from(tensor).to_device(self.device)
    }

    fn message(&self, parts: &[(usize, u64)]) -> Message {
        let message = Message::new("m");
        parts.iter().fold(message, |message, (len, seed)| {
            message.tensor(self.tensor(*len, *seed))
        })
    }

    fn check(&self, message: &Message, parts: &[(usize, u64)]) {
        assert_eq!(message.tensors.len(), parts.len());
        for (tensor, (len, seed)) in message.tensors.iter().zip(parts) {
            if *len > 0 {
                assert_eq!(tensor.tensor.device(), self.device);
            }
            let found = (self.download)(tensor.tensor.buffer());
            assert_same(&found, &pattern(*len, *seed), "a tensor");
        }
    }

    /// Sends `parts` from one end to the other and compares them.
    async fn move_parts(&self, from: &Pipe, to: &Pipe, parts: &[(usize, u64)]) {
        let (written, read) = within("a message", async {
            tokio::join!(from.write(self.message(parts)), to.read())
        })
        .await;
        written.unwrap_or_else(|error| panic!("write: {error}"));
        self.check(&read.unwrap_or_else(|error| panic!("read: {error}")), parts);
    }
}

async fn listen(context: &Context) -> Listener {
    let listener = within("listen", context.listen(["tcp://127.0.0.1:0"])).await;
    listener.unwrap_or_else(|error| panic!("{error}"))
}

#[doc(hidden)]
#[macro_export]
macro_rules! __channel_scenarios {
    ($then:ident $args:tt) => {
        $crate::$then! { $args
            device_descriptors client_to_server server_to_client send_multiple_tensors
            send_tensors_both_ways empty_tensor empty_and_nonempty_tensors null_pointer
            callbacks_are_deferred into_memory_of_the_readers many_messages_under_way
            skipped_tensors_are_not_sent refusing_leaves_the_pipe_going
            cancel_of_the_writer_leaves_the_pipe_going dropped_reads_leave_the_pipe_going
            a_writer_that_dies_leaves_nothing a_reader_that_dies_leaves_nothing
            dying_in_the_middle_leaves_nothing memory_is_given_back
        }
    };
}

/// The scenarios' names, in the order in which [`all`] runs them.
pub const SCENARIOS: &[&str] = crate::__channel_scenarios!(__suite_names());

/// Runs every scenario, each with a subject of its own, and returns their names.
///
/// # Panics
/// Where the contract is broken.
pub async fn all(make: impl Fn() -> Subject) -> &'static [&'static str] {
    crate::__channel_scenarios!(__suite_run(make))
}

/// Name, devices and descriptors keep their form; two of a kind on one machine judge each other without a panic.
pub async fn device_descriptors(subject: Subject) {
    let (one, two) = ((subject.make)(), (subject.make)());
    assert!(!one.name().is_empty() && one.name() == two.name());
    let devices = one.devices();
    assert!(devices.iter().any(|(device, _)| *device == subject.device));
    assert_eq!(devices, one.devices(), "devices do not change");
    for (device, descriptor) in &devices {
        assert!(descriptor.len() <= 1024, "a descriptor fits a brochure");
        for foreign in [&b""[..], &[0xff; 1024], &pattern(1024, 3)] {
            if let Err(reason) = one.reaches((*device, descriptor), (*device, foreign)) {
                assert!(!reason.is_empty(), "a refusal says why");
            }
        }
    }
    let of = |channel: &Arc<dyn Channel>| {
        let mut found = channel.devices().into_iter();
        found.find(|(device, _)| *device == subject.device)
    };
    let (Some(ours), Some(theirs)) = (of(&one), of(&two)) else {
        panic!("the device is not among the devices");
    };
    let verdict = one.reaches((ours.0, &ours.1), (theirs.0, &theirs.1));
    assert_eq!(verdict, Ok(()));
    let verdict = two.reaches((theirs.0, &theirs.1), (ours.0, &ours.1));
    assert_eq!(verdict, Ok(()));
}

/// Sizes around every border that a channel may have.
const SIZES: [usize; 9] = [
    1,
    7,
    4096,
    4097,
    65_536,
    65_537,
    (1 << 20) - 1,
    3 << 20,
    (9 << 20) + 5,
];

/// Tensors of many sizes from the end that connected.
pub async fn client_to_server(subject: Subject) {
    let (client, server) = subject.pair().await;
    for (i, len) in SIZES.into_iter().enumerate() {
        subject
            .move_parts(&client, &server, &[(len, i as u64)])
            .await;
    }
}

/// Tensors of many sizes from the end that accepted.
pub async fn server_to_client(subject: Subject) {
    let (client, server) = subject.pair().await;
    for (i, len) in SIZES.into_iter().enumerate() {
        subject
            .move_parts(&server, &client, &[(len, i as u64)])
            .await;
    }
}

/// Many tensors in one message, of different sizes.
pub async fn send_multiple_tensors(subject: Subject) {
    let (client, server) = subject.pair().await;
    let parts: Vec<_> = (0..40).map(|i| (1 + i * 4099, i as u64)).collect();
    subject.move_parts(&client, &server, &parts).await;
}

/// Both ends send at once.
pub async fn send_tensors_both_ways(subject: Subject) {
    let (client, server) = subject.pair().await;
    for round in 0..4 {
        let there = [(2 << 20, round), (100, round + 10)];
        let back = [(3 << 20, round + 20), (5000, round + 30)];
        tokio::join!(
            subject.move_parts(&client, &server, &there),
            subject.move_parts(&server, &client, &back),
        );
    }
}

/// A tensor without bytes arrives with its type and shape.
pub async fn empty_tensor(subject: Subject) {
    let (client, server) = subject.pair().await;
    subject.move_parts(&client, &server, &[(0, 0)]).await;
    subject
        .move_parts(&server, &client, &[(0, 0), (0, 0)])
        .await;
}

/// Tensors with and without bytes in one message.
pub async fn empty_and_nonempty_tensors(subject: Subject) {
    let (client, server) = subject.pair().await;
    let parts = [(0, 0), (5000, 1), (0, 0), (0, 0), (1 << 20, 2), (0, 0)];
    subject.move_parts(&client, &server, &parts).await;
}

/// Memory of no bytes at both ends, brought by the reader.
pub async fn null_pointer(subject: Subject) {
    let (client, server) = subject.pair().await;
    let message = Message::new("m").tensor(subject.tensor(0, 0));
    let read = async {
        let incoming = server.read_descriptor().await?;
        let allocation = Allocation {
            tensors: vec![Place::Into((subject.room)(0))],
            ..Allocation::default()
        };
        incoming.read_into(allocation).await
    };
    let (written, read) = within("a message", async {
        tokio::join!(client.write(message), read)
    })
    .await;
    written.unwrap_or_else(|error| panic!("write: {error}"));
    subject.check(
        &read.unwrap_or_else(|error| panic!("read: {error}")),
        &[(0, 0)],
    );
}

/// Answers each message from inside the handler, and sees whether it is called while it is being called.
struct Echo {
    subject: Subject,
    pipe: Mutex<Option<Pipe>>,
    inside: AtomicBool,
    seen: AtomicUsize,
}

impl Echo {
    fn call(&self, act: impl FnOnce(&Pipe)) {
        let nested = self.inside.swap(true, Ordering::SeqCst);
        assert!(!nested, "the handler was called from inside the handler");
        let pipe = crate::sync::lock(&self.pipe).clone();
        if let Some(pipe) = pipe {
            act(&pipe);
        }
        self.inside.store(false, Ordering::SeqCst);
    }
}

impl Handler for Echo {
    fn incoming(&self, incoming: Incoming) {
        self.call(|pipe| {
            drop(pipe.send(self.subject.message(&[(300_000, 5)])));
            if let Some(whole) = incoming.accept() {
                drop(whole);
                self.seen.fetch_add(1, Ordering::SeqCst);
            }
            drop(pipe.send(self.subject.message(&[(200_000, 6)])));
        });
    }

    fn message(&self, _: u64, message: Result<Message, Error>) {
        self.call(|_| {
            let message = message.unwrap_or_else(|error| panic!("{error}"));
            self.subject.check(&message, &[(100_000, 4)]);
            self.seen.fetch_add(1, Ordering::SeqCst);
        });
    }

    fn reset(&self, _: u64, _: ResetCode, _: &str) {}

    fn refused(&self, _: u64, _: ResetCode, _: &str) {}

    fn going_away(&self, _: u64, _: &str) {}

    fn closed(&self, _: &Error) {}
}

/// No result is reported from inside the call that asked for it: a handler that writes and accepts is not called anew
/// before it returns.
pub async fn callbacks_are_deferred(subject: Subject) {
    let (client, server) = subject.pair().await;
    let echo = Arc::new(Echo {
        subject: subject.clone(),
        pipe: Mutex::new(Some(server.clone())),
        inside: AtomicBool::new(false),
        seen: AtomicUsize::new(0),
    });
    server.set_handler(echo.clone());
    for _ in 0..5 {
        let written = client.write(subject.message(&[(100_000, 4)]));
        for parts in [(300_000, 5), (200_000, 6)] {
            let read = within("an answer", client.read()).await;
            subject.check(&read.unwrap_or_else(|error| panic!("{error}")), &[parts]);
        }
        let written = within("a write", written).await;
        written.unwrap_or_else(|error| panic!("{error}"));
    }
    eventually("all messages", || echo.seen.load(Ordering::SeqCst) == 5).await;
    *crate::sync::lock(&echo.pipe) = None;
}

/// Memory that the reader brings is filled and comes back; the rest is the channel's or the pool's.
pub async fn into_memory_of_the_readers(subject: Subject) {
    let (client, server) = subject.pair().await;
    for len in [1, 70_000, 5 << 20] {
        let parts = [(len, 1), (len / 2 + 1, 2), (len, 3)];
        let read = async {
            let incoming = server.read_descriptor().await?;
            let allocation = Allocation {
                tensors: vec![
                    Place::Into((subject.room)(parts[0].0)),
                    Place::Pool,
                    Place::Into((subject.room)(parts[2].0)),
                ],
                ..Allocation::default()
            };
            incoming.read_into(allocation).await
        };
        let (written, read) = within("a message", async {
            tokio::join!(client.write(subject.message(&parts)), read)
        })
        .await;
        written.unwrap_or_else(|error| panic!("write: {error}"));
        subject.check(
            &read.unwrap_or_else(|error| panic!("read: {error}")),
            &parts,
        );
    }
}

/// Many messages are written before one is read; reads are started together and end in any order.
pub async fn many_messages_under_way(subject: Subject) {
    let (client, server) = subject.pair().await;
    let parts = |i: u64| [((i as usize % 7) * 60_000 + 1, i), (10, i + 100)];
    let writes: Vec<_> = (0..20)
        .map(|i| client.write(subject.message(&parts(i))))
        .collect();
    let mut reads = Vec::new();
    for _ in 0..20 {
        let incoming = within("a descriptor", server.read_descriptor()).await;
        reads.push(incoming.unwrap_or_else(|error| panic!("{error}")).read());
    }
    for (i, read) in reads.into_iter().enumerate().rev() {
        let message = within("a read", read).await;
        let message = message.unwrap_or_else(|error| panic!("read: {error}"));
        subject.check(&message, &parts(i as u64));
    }
    for write in writes {
        let written = within("a write", write).await;
        written.unwrap_or_else(|error| panic!("write: {error}"));
    }
}
