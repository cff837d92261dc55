//! How to do it, by task. This module has no items; each example is compiled and run.
//!
//! | task | where |
//! |---|---|
//! | types of one's own, errors, deadlines, cancel | [here](#a-service) |
//! | a client that reconnects, several servers | [here](#a-client-that-reconnects), [`Replicas`](crate::Replicas) |
//! | a server that calls its client | [`Connection::builder`](crate::Connection::builder) |
//! | calls from plain threads | [here](#calls-from-plain-threads) |
//! | who calls, and who may | [here](#who-calls), [`Builder::authorize`](crate::Builder::authorize) |
//! | tensors on GPUs and other devices | [here](#tensors-on-devices), [`DeviceMap`](crate::DeviceMap), [`device::cuda`](tensorpipe::device) |
//! | no copies | [here](#tensors-that-are-lent), [`LeaseChannel`](tensorpipe::channels::LeaseChannel) |
//! | limits, transports, a name; one machine as if it were two | [here](#a-context-of-ones-own), [`Limits`](tensorpipe::Limits), [`ServerLimits`](crate::ServerLimits) |
//! | streams | [`stream`](crate::stream) |
//! | calls of many clients handled as one | [`batch`](crate::batch) |
//! | values that stay at the server | [`remote`](crate::remote) |
//! | what a call did | [`CallStats`](crate::CallStats), [`observe`](crate::observe) |
//! | values by name | [`rendezvous`](crate::rendezvous) |
//! | tarpc | [`tarpc`](crate::tarpc) |
//! | messages that are not calls | [`tensorpipe`] |
//!
//! # A service
//!
//! Arguments and results are types that implement serde's traits. Tensors may stand anywhere inside them. The bytes carry no names, so
//! some of serde's attributes do not work: a service with `untagged`, `tag` or `flatten`, or with `skip` on a variant before others, is
//! refused when it is served or connected to; `skip_serializing_if` is an error of the call.
//!
//! ```
//! use std::time::Duration;
//!
//! use serde::{Deserialize, Serialize};
//! use tensorpipe::Tensor;
//! use tensorpipe_rpc::{CallContext, CallError, Server, tensor_service};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Batch {
//!     images: Tensor,
//!     labels: Vec<u32>,
//! }
//!
//! // As an `Error` of its own it goes with `?`.
//! #[derive(Debug, Serialize, Deserialize, thiserror::Error)]
//! enum TrainError {
//!     #[error("a batch without labels")]
//!     Empty,
//! }
//!
//! #[tensor_service]
//! trait Trainer {
//!     async fn step(&self, batch: Batch) -> Result<f32, TrainError>;
//!     /// The server fills the context in: it is no argument of the client's method.
//!     async fn time_left(&self, cx: &CallContext) -> Option<Duration>;
//!     async fn sleep(&self, millis: u64);
//! }
//!
//! struct Here;
//!
//! impl Trainer for Here {
//!     async fn step(&self, batch: Batch) -> Result<f32, TrainError> {
//!         match batch.labels.len() {
//!             0 => Err(TrainError::Empty),
//!             count => Ok(batch.images.byte_len() as f32 / count as f32),
//!         }
//!     }
//!
//!     async fn time_left(&self, cx: &CallContext) -> Option<Duration> {
//!         cx.time_left()
//!     }
//!
//!     async fn sleep(&self, millis: u64) {
//!         tokio::time::sleep(Duration::from_millis(millis)).await;
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = Server::builder().service(TrainerService::new(Here)).listen("tcp://127.0.0.1:0").await?;
//! let client = TrainerClient::connect(server.url()).await?;
//!
//! let batch = Batch { images: Tensor::from(vec![0u8; 4]), labels: vec![7, 7] };
//! assert_eq!(client.step(batch).await?, 2.0);
//! // The method's own error is `CallError::Service`. What else can happen has variants of its own.
//! let empty = Batch { images: Tensor::from(vec![0u8; 4]), labels: vec![] };
//! assert!(matches!(client.step(empty).await, Err(CallError::Service(TrainError::Empty))));
//!
//! // 60 s unless the client says otherwise. The time that is left travels with the call.
//! let hurried = client.with_deadline(Duration::from_millis(50));
//! assert!(hurried.time_left().await?.unwrap() <= Duration::from_millis(50));
//! let error = hurried.sleep(10_000).await.unwrap_err();
//! assert!(matches!(error, CallError::Deadline { .. }) && error.may_have_run());
//!
//! // Calls run side by side. Dropping one cancels it: its handler is dropped at its next await.
//! let slow = client.sleep(10_000);
//! client.sleep(0).await?;
//! drop(slow);
//! # Ok(())
//! # }
//! ```
//!
//! The client's `with_deadline` returns another client on the same connection. For the longest time that a server grants see
//! [`ServerLimits::longest_call`](crate::ServerLimits::longest_call).
//!
//! # A client that reconnects
//!
//! `FooClient::connect` makes one connection. When that ends, calls fail with
//! [`CallError::Connection`](crate::CallError::Connection), and the client makes no other. A client on
//! [`Replicas`](crate::Replicas) connects again, to one server or to several.
//!
//! ```
//! use tensorpipe_rpc::{CallError, Replicas, Server, tensor_service};
//!
//! #[tensor_service]
//! trait Store {
//!     /// May run twice: it is sent again when its server died halfway.
//!     #[rpc(idempotent)]
//!     async fn get(&self, key: String) -> u64;
//!     /// May not. If its server dies meanwhile, the error says that it may have run.
//!     async fn add(&self, key: String, by: u64) -> u64;
//! }
//!
//! struct Zero;
//!
//! impl Store for Zero {
//!     async fn get(&self, _key: String) -> u64 {
//!         0
//!     }
//!
//!     async fn add(&self, _key: String, by: u64) -> u64 {
//!         by
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let serve = async |url: &str| Server::builder().service(StoreService::new(Zero)).listen(url).await;
//! let server = serve("tcp://127.0.0.1:0").await?;
//! let url = server.url().to_string();
//!
//! let plain = StoreClient::connect(&url).await?;
//! let replicas = Replicas::builder().url(&url).connect().await?;
//! let client = StoreClient::on(&replicas).await?;
//! assert_eq!(client.get("a").await?, 0);
//!
//! server.shutdown().await;
//! let _again = serve(&url).await?;
//! assert!(plain.get("a").await.is_err(), "one connection, and it has ended");
//! assert_eq!(client.get("a").await?, 0);
//! match client.add("a", 1).await {
//!     Err(error) if error.may_have_run() => println!("look before you add again: {error}"),
//!     other => println!("{other:?}"),
//! }
//! for replica in replicas.status() {
//!     println!("{} {:?} {:?}", replica.url, replica.state, replica.last_error);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! With several URLs ([`ReplicasBuilder::urls`](crate::replicas::ReplicasBuilder::urls)) [`Balance`](crate::replicas::Balance)
//! picks the server of each call. A call moves to another server where that is safe.
//!
//! - **No server is live:** a call waits for one until its deadline, then fails with
//!   [`CallError::Unavailable`](crate::CallError::Unavailable). **A call with a stream or a reference does not wait:** it fails
//!   with that error at once, and is sent only once.
//! - **A server that comes back** is found within [`Backoff::longest`](crate::replicas::Backoff::longest), 5 s by default, and the time that
//!   an attempt takes. After [`give_up_after`](crate::replicas::ReplicasBuilder::give_up_after), 10 min by default, it is no longer looked for,
//!   and calls fail at once, until [`Replicas::reconnect`](crate::Replicas::reconnect), which tries at once.
//! - **Servers that come and go** are named anew by [`Replicas::set_urls`](crate::Replicas::set_urls), from what your service discovery
//!   says.
//! - **The live servers,** and the route to each, are in [`Replicas::status`](crate::Replicas::status). `client.connection()` stays
//!   the connection to the first server found.
//!
//! # Calls from plain threads
//!
//! A program without an async `main` keeps a runtime and waits on it. (`tensorpipe::blocking` has pipes for such programs, not calls.)
//!
//! ```
//! use tensorpipe_rpc::{Server, tensor_service};
//!
//! #[tensor_service]
//! trait Adder {
//!     async fn add(&self, a: u64, b: u64) -> u64;
//! }
//!
//! struct Sum;
//!
//! impl Adder for Sum {
//!     async fn add(&self, a: u64, b: u64) -> u64 {
//!         a + b
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
//! let server = runtime.block_on(Server::builder().service(AdderService::new(Sum)).listen("tcp://127.0.0.1:0"))?;
//! let client = runtime.block_on(AdderClient::connect(server.url()))?;
//!
//! let (first, second) = (client.add(1, 2), client.add(3, 4)); // both are on their way
//! assert_eq!((runtime.block_on(first)?, runtime.block_on(second)?), (3, 7));
//! // Any thread may call.
//! let (client, handle) = (client.clone(), runtime.handle().clone());
//! let other = std::thread::spawn(move || handle.block_on(client.add(5, 6)));
//! assert_eq!(other.join().unwrap()?, 11);
//! # Ok(())
//! # }
//! ```
//!
//! Not a runtime of `current_thread`: it runs within `block_on` only. Its pipes rest between two calls, and their peers give them up after
//! [`Timeouts::blocked`](tensorpipe::Timeouts::blocked) (60 s).
//!
//! # Who calls
//!
//! A token is a name and a secret. Both ends prove that they have it when they connect; the server knows its caller by the name.
//!
//! ```
//! use tensorpipe::Context;
//! use tensorpipe_rpc::{CallContext, CallError, Server, tensor_service};
//!
//! #[tensor_service]
//! trait Door {
//!     async fn knock(&self, cx: &CallContext) -> String;
//!     async fn open(&self);
//! }
//!
//! struct Porter;
//!
//! impl Door for Porter {
//!     async fn knock(&self, cx: &CallContext) -> String {
//!         cx.caller().identity.as_ref().map_or("an unproven peer".to_owned(), |identity| identity.to_string())
//!     }
//!
//!     async fn open(&self) {}
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let (guests, staff) = ([1; 32], [2; 32]);
//! let context = Context::builder().token("guests", guests).token("staff", staff).build()?;
//! let server = Server::builder()
//!     .context(&context)
//!     .service(DoorService::new(Porter))
//!     // Asked about each call, on its header.
//!     .authorize(|caller, _service, method| match caller.identity.as_ref().and_then(|known| known.token()) {
//!         Some("guests") if method == "open" => Err("ask the staff".to_owned()),
//!         _ => Ok(()),
//!     })
//!     .listen("tcp://127.0.0.1:0")
//!     .await?;
//!
//! let guest = Context::builder().token("guests", guests).build()?;
//! let client = DoorClient::connect_with(&guest, server.url()).await?;
//! assert_eq!(client.knock().await?, "token guests");
//! assert!(matches!(client.open().await, Err(CallError::Denied(_))));
//! # Ok(())
//! # }
//! ```
//!
//! - **Without a token** a server over `shm` lets in processes of its own user on its machine: the kernel says who they are
//!   ([`Peer::addr`](tensorpipe::Peer::addr)). A server over `tcp` lets in everybody.
//! - **Over `tcp`** a token proves who connects. It hides nothing, and an attacker who can change bytes on the network can change
//!   calls: use `tls` (feature `tls`), with or without a token. An identity then has certificates as well
//!   ([`Identity::over`](tensorpipe::Identity::over)).
//! - **Channels.** `lease`, `cuda_ipc` and `cma` work between processes of one user, which the kernel names, and of one pipe, whose key both have
//!   where there is one. `xth` works within a process. `basic` and `mpt` trust their connections.
//!
//! # Tensors on devices
//!
//! The trait or the client names the device on which a tensor lands. The pipe then chooses a channel for it, before the bytes move.
//!
//! ```
//! use tensorpipe::{Device, DeviceKind, Tensor};
//! use tensorpipe_rpc::{CallError, DeviceMap, Server, tensor_service};
//!
//! #[tensor_service]
//! trait Trainer {
//!     /// On an argument, a device of the server. On the method, a device of the client, for the result.
//!     #[tensor(device = "cpu:0")]
//!     async fn step(&self, #[tensor(device = "cuda:1")] batch: Tensor) -> Tensor;
//!     /// Where the client's map says, or else where the receiver wants it.
//!     async fn evaluate(&self, batch: Tensor) -> Tensor;
//! }
//!
//! struct Echo;
//!
//! impl Trainer for Echo {
//!     async fn step(&self, batch: Tensor) -> Tensor {
//!         batch
//!     }
//!
//!     async fn evaluate(&self, batch: Tensor) -> Tensor {
//!         batch
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = Server::builder().service(TrainerService::new(Echo)).listen("tcp://127.0.0.1:0").await?;
//! // Arguments that lie on `cuda:0` here land on `cuda:1` there; results on `cuda:1` there land on `cuda:0` here.
//! let gpu = |index| Device::new(DeviceKind::CUDA, index);
//! let map = DeviceMap::new([(gpu(0), gpu(1))])?;
//! let client = TrainerClient::connect(server.url()).await?.with_device_map(map);
//!
//! let batch = Tensor::from(vec![1.0f32, 2.0]);
//! assert_eq!(client.evaluate(&batch).await?.device(), Device::CPU);
//! match client.step(&batch).await {
//!     // No channel here reaches a GPU: nothing was sent, and the error says what to look at.
//!     Err(CallError::NoPlace { error, may_have_run: false }) => println!("{error}"),
//!     other => panic!("{other:?}"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! - Both ends compare the attribute when they connect. It overrides the map, and applies to items of streams, too.
//! - A tensor that cannot be there is an error of its call. It never lands elsewhere instead, and the connection goes on.
//! - The context of each end has the GPUs: `Context::builder().try_cuda(&CudaDevices::open())`, with the feature `cuda` of `tensorpipe`.
//! - [`ContextBuilder::require`](tensorpipe::ContextBuilder::require) names the channels that tensors of a kind of device must use,
//!   if a slower channel is worse than an error. `client.with_requirement(["lease"])` does so for the arguments of calls, including
//!   streams.
//! - [`Tensor::to`](tensorpipe::Tensor::to) copies a tensor to a device and back.
//!
//! # Tensors that are lent
//!
//! Between processes of one machine, a tensor of [`Pool::tensor`](tensorpipe::Pool::tensor) is lent: its reader maps it and copies
//! nothing. A tensor of ordinary memory is copied once, by its writer, and the copy is lent.
//!
//! ```
//! use tensorpipe::{Context, DType, Tensor};
//! use tensorpipe_rpc::{CallContext, Server, ServiceError, tensor_service};
//!
//! #[tensor_service]
//! trait Model {
//!     async fn ones(&self, rows: u64, cx: &CallContext) -> Result<Tensor, ServiceError>;
//!     async fn sum(&self, x: Tensor) -> Result<f32, ServiceError>;
//! }
//!
//! struct Cpu;
//!
//! impl Model for Cpu {
//!     async fn ones(&self, rows: u64, cx: &CallContext) -> Result<Tensor, ServiceError> {
//!         // Of the pool of the server's context.
//!         let mut x = cx.pool().tensor(DType::F32, [rows, 64])?;
//!         x.make_mut::<f32>()?.fill(1.0);
//!         Ok(x)
//!     }
//!
//!     async fn sum(&self, x: Tensor) -> Result<f32, ServiceError> {
//!         Ok(x.as_slice::<f32>()?.iter().sum())
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = Server::builder().service(ModelService::new(Cpu)).listen("tcp://127.0.0.1:0").await?;
//! let client = ModelClient::connect(server.url()).await?;
//! let mut x = Context::global().pool().tensor(DType::F32, [1024, 64])?;
//! x.make_mut::<f32>()?.fill(2.0);
//! let (sum, stats) = client.with_stats().sum(&x).stats().await;
//! assert_eq!(sum?, 2.0 * 1024.0 * 64.0);
//! assert_eq!(stats.bytes_copied(), Some(0)); // by neither end
//! assert_eq!(client.ones(4).await?.shape(), [4, 64]);
//! # Ok(())
//! # }
//! ```
//!
//! What costs a copy:
//!
//! - **Writing while something is lent.** [`Tensor::make_mut`](tensorpipe::Tensor::make_mut) copies the whole tensor while any part
//!   of it is lent or has another handle. 64 MiB took 132 ms instead of 1 µs, and some 10 ms where the pool had warm memory for the
//!   copy. So make each block of a cache a tensor of its own, as the example `kv_blocks` does.
//! - **Writing to a borrowed tensor.** The reader gets a copy in its own pool.
//! - **Passing on.** A borrowed tensor goes back to its lender without a copy. For a third process it is copied.
//! - **More than 4096 loans** of one process to another at once, or more than 256 MiB of copies that a reader keeps. The next
//!   tensors are copied, or go over another channel. [`LendableStats`](tensorpipe::device::LendableStats) and
//!   [`PipeStats::bytes_diverted`](tensorpipe::PipeStats::bytes_diverted) count them. The route says which channel they took, and
//!   why ([`ChannelRoute::diverted`](tensorpipe::route::ChannelRoute::diverted)).
//!
//! # A context of one's own
//!
//! Clients and servers use [`Context::global`](tensorpipe::Context::global) unless they are given another one.
//!
//! ```
//! use std::time::Duration;
//!
//! use tensorpipe::{Context, Limits, Timeouts};
//! use tensorpipe_rpc::{Connection, Server, ServerLimits, tensor_service};
//!
//! #[tensor_service]
//! trait Ping {
//!     async fn ping(&self);
//! }
//!
//! struct Pong;
//!
//! impl Ping for Pong {
//!     async fn ping(&self) {}
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut limits = Limits::default();
//! limits.tensor = 1 << 30;
//! limits.receive_budget = 4 << 30;
//! let mut timeouts = Timeouts::default();
//! timeouts.silence = Some(Duration::from_secs(5));
//! let context = Context::builder().name("worker 1").limits(limits).timeouts(timeouts).build()?;
//!
//! let mut calls = ServerLimits::default();
//! calls.longest_call = Duration::from_secs(600);
//! let server = Server::builder()
//!     .service(PingService::new(Pong))
//!     .context(&context)
//!     .limits(calls)
//!     .listen("tcp://127.0.0.1:0")
//!     .await?;
//!
//! let connection = Connection::connect_with(&context, server.url()).await?;
//! PingClient::on(&connection).await?.ping().await?;
//! assert_eq!(server.shutdown().await, 0, "calls given up");
//! # Ok(())
//! # }
//! ```
//!
//! The pipe between two processes of one machine is upgraded from `tcp` to `shm`. `lease` and `cma` also serve a pipe that stays on
//! `tcp`. For tests and measurements, a context that behaves as if between two machines has neither:
//!
//! ```
//! use std::sync::Arc;
//!
//! use tensorpipe::Context;
//! use tensorpipe::channels::{BasicChannel, Channel};
//! use tensorpipe::transports::{TcpTransport, Transport};
//! use tensorpipe_rpc::Server;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let tcp: Arc<dyn Transport> = Arc::new(TcpTransport::new());
//! let basic: Arc<dyn Channel> = Arc::new(BasicChannel::new());
//! let context = Context::builder().transports([tcp]).channels([basic]).build()?;
//!
//! let server = Server::builder().context(&context).listen("tcp://127.0.0.1:0").await?;
//! let pipe = context.connect(server.url()).await?;
//! let channels: Vec<_> = pipe.route().channels.iter().map(|channel| channel.name.as_str()).collect();
//! assert_eq!((pipe.route().transport.as_str(), channels), ("tcp", vec!["basic"]));
//! # Ok(())
//! # }
//! ```
//!
//! # A build for speed
//!
//! A call passes through many small functions of several crates. In the program's own `Cargo.toml`:
//!
//! ```toml
//! [profile.release]
//! codegen-units = 1
//! lto = "fat"
//! ```
//!
//! With `lto` 64 calls in flight took a tenth to a fifth less each, and an echo an eighth less (`benches/RESULTS.md`).
