//! The contract of every channel, see [`channels`](crate::channels). The scenarios use pipes between two contexts that have only this
//! channel, and that let no tensor ride in a message's frame.

mod devices;
mod dying;
mod giving_up;
mod handlers;
mod moving;

pub use devices::{
    a_queue_that_stands_still_holds_up_no_pipe, memory_in_use_is_filled_behind_that,
    to_and_from_main_memory,
};
pub use dying::{
    a_reader_that_dies_leaves_nothing, a_writer_that_dies_leaves_nothing,
    dying_in_the_middle_leaves_nothing, memory_is_given_back,
};
pub use giving_up::{
    cancel_of_the_writer_leaves_the_pipe_going, dropped_reads_leave_the_pipe_going,
    memory_comes_back_from_what_is_given_up, refusing_leaves_the_pipe_going,
    skipped_tensors_are_not_sent,
};
pub use handlers::callbacks_are_deferred;
pub use moving::{
    client_to_server, empty_and_nonempty_tensors, empty_tensor, into_memory_of_the_readers,
    many_messages_under_way, null_pointer, send_multiple_tensors, send_tensors_both_ways,
    server_to_client,
};

use std::any::Any;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{assert_same, blocking, eventually, pattern, within};
use crate::channels::Channel;
use crate::config::{Limits, Timeouts};
use crate::context::Context;
use crate::device::{Allocator, Buffer, BufferMut, Device, DeviceOffer};
use crate::error::Error;
use crate::listener::Listener;
use crate::message::{Message, MessageTensor};
use crate::pipe::Pipe;
use crate::tensor::{DType, Tensor};
use crate::transports::{MemoryTransport, TcpTransport, Transport};

type Make = dyn Fn() -> Arc<dyn Channel> + Send + Sync;
type Upload = dyn Fn(&[u8]) -> Buffer + Send + Sync;
type Room = dyn Fn(usize) -> BufferMut + Send + Sync;
type Download = dyn Fn(&Buffer) -> Vec<u8> + Send + Sync;
type Hold = dyn Fn() -> Box<dyn Any + Send> + Send + Sync;

/// A channel, and how to get bytes onto its device and back.
#[derive(Clone)]
pub struct Subject {
    make: Arc<Make>,
    device: Device,
    upload: Arc<Upload>,
    room: Arc<Room>,
    download: Arc<Download>,
    allocator: Option<Arc<dyn Allocator>>,
    hold: Option<Arc<Hold>>,
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

    /// A channel for `device`. `upload` makes memory there from bytes, `room` makes memory there to be filled, and `download` fetches
    /// the bytes. `download` also gets buffers without bytes, which come from no allocator ([`Buffer::empty`]).
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
            allocator: None,
            hold: None,
            listeners: Arc::default(),
        }
    }

    /// Gives the contexts this allocator: for a channel that receives into device memory of its own choice
    /// ([`LaneIo::allocate`](crate::channels::LaneIo::allocate)).
    pub fn with_allocator(self, allocator: Arc<dyn Allocator>) -> Self {
        Self {
            allocator: Some(allocator),
            ..self
        }
    }

    /// Lets the suite stop the device: work that `upload` queues does not go on until the result of `hold` is dropped. Without it,
    /// the suite cannot detect a lane that blocks on its device.
    pub fn with_hold(self, hold: impl Fn() -> Box<dyn Any + Send> + Send + Sync + 'static) -> Self {
        Self {
            hold: Some(Arc::new(hold)),
            ..self
        }
    }

    fn context(&self, name: &str) -> Context {
        let channel = (self.make)();
        let mut transports: Vec<Arc<dyn Transport>> = vec![Arc::new(TcpTransport::new())];
        if channel.in_process() {
            // Pipes are upgraded to this transport.
            transports.insert(0, Arc::new(MemoryTransport::new()));
        }
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
            .transports(transports)
            .channels([channel])
            .limits(limits)
            .timeouts(timeouts);
        let context = self.allocator.iter().fold(context, |context, allocator| {
            context.allocator(allocator.clone())
        });
        context.build().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Two ends, of two contexts: the end that connected, and the end that accepted.
    async fn pair(&self) -> (Pipe, Pipe) {
        self.connect(&self.context("client"), &self.context("server"))
            .await
    }

    async fn connect(&self, client: &Context, server: &Context) -> (Pipe, Pipe) {
        let listener = listen(server).await;
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

    /// Keeps the listener until the scenario ends.
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

    /// The bytes of a buffer.
    async fn downloaded(&self, buffer: &Buffer) -> Vec<u8> {
        let (download, buffer) = (self.download.clone(), buffer.clone());
        blocking("a download", move || download(&buffer)).await
    }

    async fn check(&self, message: &Message, parts: &[(usize, u64)]) {
        assert_eq!(message.tensors.len(), parts.len());
        for (tensor, (len, seed)) in message.tensors.iter().zip(parts) {
            if *len > 0 {
                assert_eq!(tensor.tensor.device(), self.device);
            }
            let found = self.downloaded(tensor.tensor.buffer()).await;
            assert_same(&found, &pattern(*len, *seed), "a tensor");
        }
    }

    /// Sends `parts` from one end to the other and compares them.
    async fn move_parts(&self, from: &Pipe, to: &Pipe, parts: &[(usize, u64)]) {
        // A failed write panics at once; the read would wait in vain.
        let write = async {
            let written = from.write(self.message(parts)).await;
            written.unwrap_or_else(|error| panic!("write: {error}"));
        };
        let both = async { tokio::join!(write, to.read()) };
        let ((), read) = within("a message", both).await;
        let message = read.unwrap_or_else(|error| panic!("read: {error}"));
        self.check(&message, parts).await;
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
            memory_comes_back_from_what_is_given_up
            a_writer_that_dies_leaves_nothing a_reader_that_dies_leaves_nothing
            dying_in_the_middle_leaves_nothing memory_is_given_back
            to_and_from_main_memory a_queue_that_stands_still_holds_up_no_pipe
            memory_in_use_is_filled_behind_that
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

/// Name, devices and descriptors have the right form. Two channels of a kind on one machine check each other's descriptors without a panic.
pub async fn device_descriptors(subject: Subject) {
    let (one, two) = ((subject.make)(), (subject.make)());
    assert!(!one.name().is_empty() && one.name() == two.name());
    let devices = one.devices();
    assert!(devices.iter().any(|(device, _)| *device == subject.device));
    assert_eq!(devices, one.devices(), "devices do not change");
    for (device, descriptor) in &devices {
        assert!(descriptor.len() <= 1024, "a descriptor fits a brochure");
        for foreign in [&b""[..], &[0xff; 1024], &pattern(1024, 3)] {
            if let Err(reason) = one.reaches(
                DeviceOffer::new(*device, descriptor),
                DeviceOffer::new(*device, foreign),
            ) {
                // Except for a pair that the channel is not meant to connect, whatever the descriptor.
                let own = one.reaches(
                    DeviceOffer::new(*device, descriptor),
                    DeviceOffer::new(*device, descriptor),
                );
                let is_said = !reason.is_empty() || own == Err(String::new());
                assert!(is_said, "a refusal says why");
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
    let ours = DeviceOffer::new(ours.0, &ours.1);
    let theirs = DeviceOffer::new(theirs.0, &theirs.1);
    let verdict = one.reaches(ours, theirs);
    assert_eq!(verdict, Ok(()));
    let verdict = two.reaches(theirs, ours);
    assert_eq!(verdict, Ok(()));
}
