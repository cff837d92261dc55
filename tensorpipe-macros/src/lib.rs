//! `#[tensor_service]`: turns a trait into the client and server stubs of `tensorpipe-rpc`.
//!
//! The way of a trait through this crate: `args` and `model` read the tokens, `check` finds every
//! mistake and puts it into the one bag of `report`, `expand` writes the code, and `fallback`
//! writes placeholders instead when the bag is not empty. `names` owns every generated name.
//!
//! Invariant: nothing generated can be meant by accident. Paths are absolute, local variables have
//! macro hygiene, and the user's own tokens keep their spans, so that rustc's errors about a type
//! point into the trait.

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

/// Beside the trait `Foo`, `FooClient` (one method per call, each returns a `Call`) and `FooService<S>` (serves any
/// `S: Foo`) come into being. `tensorpipe_rpc::tensor_service`, which is this macro, has an example.
///
/// # The trait
///
/// - Methods are `async fn`, take `&self`, have no generics, and their arguments and results are
///   owned types that implement serde's `Serialize` and `Deserialize`. `Tensor` and `Payload`
///   may stand anywhere inside them.
/// - `-> Result<T, E>`, written out, lets the client see `E` as the service's own error. No
///   return type means `()`.
/// - An argument of type `&CallContext` or `CallContext` is filled in by the server and is not
///   an argument of the client's method.
/// - `#[rpc(idempotent)]` says that a call may be sent again when its fate is unknown.
/// - `#[rpc(batch(max_size = 32, max_wait = "2ms"))]` gathers calls of many clients: the implementation
///   sees the rows of all in one `Tensor`, and returns a row for each. `concurrency = 2` lets two
///   batches run at once.
/// - `#[tensor(device = "cuda:0")]` on an argument has all its tensors land on that device of the server. On a method, it
///   has all tensors that the method answers with land on that device of the client. On streams it holds for
///   each item. It is part of the definition that both ends compare, and goes before a client's device map. Where a tensor
///   cannot land, the call fails with `CallError::NoPlace`.
/// - Supertraits and default bodies are allowed; `#[cfg]`, `#[deprecated]`, `#[must_use]` and doc comments
///   of a method reach the client.
/// - Implementations write plain `async fn`; their futures must be `Send`.
///
/// # The attribute
///
/// `#[tensor_service(crate = "path")]` names the runtime crate where it is not `::tensorpipe_rpc`,
/// for example because another crate re-exports it.
#[proc_macro_attribute]
pub fn tensor_service(args: TokenStream, item: TokenStream) -> TokenStream {
    expand::tensor_service(args.into(), item.into()).into()
}
