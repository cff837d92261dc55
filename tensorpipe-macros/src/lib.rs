//! `#[tensor_service]` turns a trait into the client and server stubs of `tensorpipe-rpc`. Use it through that crate, whose
//! documentation of it begins with an example.
//!
//! How a trait passes through this crate: `args` and `model` read the tokens, and `check` reports every mistake to `report`. If
//! there are none, `expand` writes the code; otherwise `fallback` writes placeholders. `names` owns every generated name.
//!
//! Invariant: user code cannot refer to generated names by accident. Paths are absolute, and local variables have macro hygiene.
//! The user's own tokens keep their spans, so rustc's errors about a type point into the trait.
#![forbid(unsafe_code)]

use proc_macro::TokenStream;

mod args;
mod check;
mod expand;
mod fallback;
mod model;
mod names;
mod options;
mod place;
mod report;
mod signature;
mod types;

/// For a trait `Foo` it also writes `FooClient`, with a method for each of the trait's that returns a `Call`, and `FooService<S>`,
/// which serves any `S: Foo`.
///
/// # The trait
///
/// - Methods take `&self` and have no generics. They are `async fn`, or plain `fn` if they return a stream.
/// - Supertraits and default bodies are allowed. The client's methods take over `#[cfg]`, `#[deprecated]`, `#[must_use]` and doc
///   comments.
/// - Implementations write plain `async fn`; their futures must be `Send`.
///
/// # Arguments
///
/// The client's method takes each argument as `T` or `&T`, a `String` also as `&str`, and a `Vec<E>` also as `&[E]`. Passing a
/// `&Tensor` clones the handle, not the bytes. The type of an argument is not inferred: write `text.parse::<u64>()?`.
///
/// | written | what it is |
/// |---|---|
/// | an owned type with serde's `Serialize` and `Deserialize` | sent; a `Tensor` or `Payload` anywhere in it travels beside the bytes |
/// | `Payload` | bytes, beside the others. serde takes a `Vec<u8>` byte by byte: in a build without optimisation 0.3 s a MiB |
/// | `&CallContext` or `CallContext` | filled in by the server; no argument of the client's method |
/// | `Streaming<T>`, once | a stream that the client gives (`tensorpipe_rpc::stream`) |
/// | `Remote<T>` | a reference to a value that stays where it is, or the call that will return one (`tensorpipe_rpc::remote`) |
///
/// # Results
///
/// | written | the client gets |
/// |---|---|
/// | nothing, or `-> T` | `Result<T, CallError>` |
/// | `-> Result<T, E>`, written out | `Result<T, CallError<E>>`, with `E` in `CallError::Service` |
/// | `-> Remote<T>`, `-> Result<Remote<T>, E>` | a reference; the call itself can be given to other calls |
/// | `-> impl Stream<Item = T>`, `-> impl Stream<Item = Result<T, E>>` | a `CallStream`; an `Err` ends it. No `async` |
///
/// `?` on a call turns its error into `anyhow::Error` or `Box<dyn Error>` if `E` is `Debug` and `Display`: derive
/// `thiserror::Error`. Or take `tensorpipe_rpc::ServiceError` for `E`: then `?` works in the method, on every `std::error::Error`. Of an `anyhow::Error` make one by `ServiceError::new(format!("{error:#}"))`.
///
/// # The client
///
/// Besides the trait's methods, which cannot have these names, `FooClient` has:
///
/// | | |
/// |---|---|
/// | `connect(url)` | connects to one server with the process's default context, and waits up to 30 s for it |
/// | `connect_with(&context, url)` | the same with a context of your own |
/// | `on(&target)` | a client on a `Connection` that is there, or on `Replicas` |
/// | `connection()` | the `Connection`: its route, its peer, `close`. Over `Replicas`, that of the first server found |
/// | `with_deadline(duration)` | a client whose calls have so much time, instead of 60 s |
/// | `with_stats()` | a client of whose calls `.stats()` says what happened (`CallStats`) |
/// | `with_trace(trace)` | a client whose calls belong to this trace |
/// | `with_device_map(map)` | a client whose tensors land where this `DeviceMap` says |
/// | `with_requirement(channels)` | a client whose tensors go over one of these channels, beside small ones in the message itself, or not at all |
/// | `clone()` | the same client; each `with_…` and each clone shares the connection |
/// | `SCHEMA` | the definition of the service, which both ends compare |
///
/// `FooService` has `new(implementation)` and `from_arc(implementation)`, and `batches()` if a method is batched.
///
/// # Attributes
///
/// | attribute | on | meaning |
/// |---|---|---|
/// | `#[rpc(idempotent)]` | a method | a call may be sent again when its fate is unknown (`Replicas`) |
/// | `#[rpc(batch(max_size = 32, max_wait = "2ms"))]` | a method | calls of many clients are one run: the implementation sees the rows of all in one `Tensor`, and returns a row for each. `concurrency = 2` lets two batches run at once (`tensorpipe_rpc::batch`) |
/// | `#[rpc(idempotent, batch(..))]` | a method | both: a batch that fails is run again, each call alone |
/// | `#[tensor(device = "cuda:0")]` | an argument | its tensors land on that device of the server |
/// | `#[tensor(device = "cuda:0")]` | a method | the tensors of its result land on that device of the client |
///
/// `#[tensor]` applies to each item of a stream. It is part of the definition that both ends compare, and overrides a client's
/// device map. If a tensor cannot land on the device, the call fails with `CallError::NoPlace`.
///
/// `#[tensor_service(crate = "path")]` names the runtime crate if it is not `::tensorpipe_rpc`, for example because another crate
/// re-exports it.
#[proc_macro_attribute]
pub fn tensor_service(args: TokenStream, item: TokenStream) -> TokenStream {
    expand::tensor_service(args.into(), item.into()).into()
}
