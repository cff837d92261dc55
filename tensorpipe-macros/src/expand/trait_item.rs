//! The trait itself: `async fn` written as a function that returns a `Send` future.

use crate::model::{Method, Service};
use crate::names::local;
use crate::place::is_tensor_attr;
use proc_macro2::TokenStream;
use quote::{ToTokens, quote, quote_spanned};
use syn::{FnArg, ItemTrait, Pat, PatIdent, PatType, Signature, parse_quote};

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
    let mut inputs: Vec<_> = inputs.iter().cloned().map(without_place).collect();
    let body = match &method.syntax.default {
        None => method.syntax.semi_token.to_token_stream(),
        Some(block) if stream => quote!(#block),
        // As with rustc's `async fn`, the future owns every argument, even an unused one.
        Some(block) => {
            let owned = inputs.iter_mut().filter_map(own);
            let stmts = &block.stmts;
            // rustc calls the braces of a block inside the async block needless, so the async block takes the statements.
            let mut inner = TokenStream::new();
            block.brace_token.surround(&mut inner, |inner| {
                inner.extend(quote!(#(#owned)* #(#stmts)*));
            });
            quote!({ async move #inner })
        }
    };
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

/// Moves the argument into the future. A context may have a pattern, such as `_` or `mut cx`: then the parameter gets a name, and the
/// future binds the pattern.
fn own(input: &mut FnArg) -> Option<TokenStream> {
    let FnArg::Typed(PatType { pat, .. }) = input else {
        return None;
    };
    Some(match &**pat {
        Pat::Ident(PatIdent {
            by_ref: None,
            mutability: None,
            subpat: None,
            ident,
            ..
        // Captured, not a local: before edition 2024 what the last expression leaves behind outlives the block's locals.
        }) => quote!(let _ = &#ident;),
        written => {
            let name = local("_context");
            let owned = quote!(let #name = #name; let #written = #name;);
            **pat = parse_quote!(#name);
            owned
        }
    })
}
