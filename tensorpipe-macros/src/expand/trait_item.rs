//! The trait itself: `async fn` written as a function that returns a `Send` future.

use crate::model::{Method, Service};
use crate::place::is_tensor_attr;
use proc_macro2::TokenStream;
use quote::{ToTokens, quote, quote_spanned};
use syn::{FnArg, ItemTrait, Pat, PatType, Signature};

// Input:
//     pub trait Embedder: Debug {
//         /// Docs.
//         #[rpc(idempotent)]
//         async fn embed(&self, text: String) -> Tensor;
//         async fn warm(&self, size: u64) { .. }
//         fn generate(&self, prompts: Streaming<Tensor>) -> impl Stream<Item = Token>;
//     }
//
// Output:
//     pub trait Embedder: Send + Sync + 'static + Debug {
//         /// Docs.
//         fn embed(&self, text: String) -> impl Future<Output = Tensor> + Send;
//         fn warm(&self, size: u64) -> impl Future<Output = ()> + Send {
//             async move { let size = size; .. }
//         }
//         fn generate(&self, prompts: Streaming<Tensor>) -> impl Stream<Item = Token> + Send;
//     }
pub(super) fn expand(service: &Service<'_>) -> TokenStream {
    let ItemTrait {
        attrs,
        vis,
        trait_token,
        ident,
        supertraits,
        ..
    } = service.syntax;
    let supertraits = supertraits.iter();
    let methods = service.methods.iter().map(method);
    quote! {
        #(#attrs)*
        #vis #trait_token #ident: ::core::marker::Send + ::core::marker::Sync + 'static #(+ #supertraits)* {
            #(#methods)*
        }
    }
}

pub(crate) fn method(method: &Method<'_>) -> TokenStream {
    let attrs = method.attrs();
    let Signature {
        fn_token,
        ident,
        inputs,
        ..
    } = &method.syntax.sig;
    let written = method.outcome.written();
    // Take the span of the user's method, so that lints about it do not point at the attribute.
    let stream = method.outcome.is_stream();
    let output = match stream {
        true => quote_spanned!(ident.span()=> -> #written + ::core::marker::Send),
        false => quote_spanned! {ident.span()=>
            -> impl ::core::future::Future<Output = #written> + ::core::marker::Send
        },
    };
    let body = match &method.syntax.default {
        None => method.syntax.semi_token.to_token_stream(),
        Some(block) if stream => quote!(#block),
        // As with rustc's `async fn`, the future owns every argument, even an unused one.
        Some(block) => {
            let names = inputs.iter().filter_map(owned_name);
            let stmts = &block.stmts;
            // rustc calls the braces of a block inside the async block needless, so the async block takes the statements.
            let mut inner = TokenStream::new();
            block.brace_token.surround(&mut inner, |inner| {
                inner.extend(quote!(#(let #names = #names;)* #(#stmts)*));
            });
            quote!({ async move #inner })
        }
    };
    let inputs = inputs.iter().cloned().map(without_place);
    quote!(#(#attrs)* #fn_token #ident(#(#inputs),*) #output #body)
}

/// The parameter without our attribute, which rustc does not know.
fn without_place(mut input: FnArg) -> FnArg {
    match &mut input {
        FnArg::Receiver(input) => input.attrs.retain(|attr| !is_tensor_attr(attr)),
        FnArg::Typed(input) => input.attrs.retain(|attr| !is_tensor_attr(attr)),
    }
    input
}

fn owned_name(input: &FnArg) -> Option<&Pat> {
    match input {
        FnArg::Receiver(_) => None,
        FnArg::Typed(PatType { pat, .. }) => Some(pat),
    }
}
