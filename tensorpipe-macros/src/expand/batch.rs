//! Batched methods: what the adapter holds for them, and how it hands a call over.

use super::schema::Index;
use super::travelling;
use crate::model::{Method, Outcome, Service};
use crate::names::local;
use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::Type;
use syn::ext::IdentExt;
use syn::spanned::Spanned;

/// The additions to the adapter of a service with batched methods; empty for other services.
#[derive(Default)]
pub(super) struct Parts {
    /// The struct's field.
    pub(super) field: TokenStream,
    /// The field's value in a new adapter.
    pub(super) make: TokenStream,
    /// The field's value in a clone.
    pub(super) copy: TokenStream,
    /// The method that returns the batching statistics.
    pub(super) reader: TokenStream,
}

impl Parts {
    pub(super) fn of(service: &Service<'_>, private: &TokenStream) -> Self {
        let methods = service.methods.iter().zip(Index::all(service));
        let methods: Vec<_> = methods
            .filter_map(|(method, index)| {
                let batch = method.options.batch.as_ref()?;
                let (cfgs, name) = (method.cfgs(), method.name());
                let index = index.expression();
                let (max_size, max_wait, concurrency) =
                    (batch.max_size, batch.max_wait, batch.concurrency);
                Some(quote! {
                    #(#cfgs)*
                    #private::BatchedMethod {
                        index: #index,
                        name: #name,
                        max_size: #max_size,
                        max_wait: #max_wait,
                        concurrency: #concurrency,
                    }
                })
            })
            .collect();
        if methods.is_empty() {
            return Self::default();
        }
        let vis = &service.syntax.vis;
        let name = service.syntax.ident.unraw().to_string();
        Self {
            field: quote!(batches: #private::Batches,),
            make: quote!(batches: #private::Batches::new(#name, &[#(#methods),*]),),
            copy: quote!(batches: ::core::clone::Clone::clone(&self.batches),),
            reader: quote! {
                /// What batching does for its methods. Stays true when the service is given to a server.
                #[must_use]
                #vis fn batches(&self) -> #private::Batches {
                    ::core::clone::Clone::clone(&self.batches)
                }
            },
        }
    }
}

// Input:
//     #[rpc(batch(max_size = 32, max_wait = "2ms"))]
//     async fn embed(&self, ids: Tensor, layer: u32, context: &CallContext) -> Result<Tensor, Refused>;
//
// Output, behind the arguments and `let service = ..`:
//     self.batches.gather(0, context, key, [("ids", ids)], move |[ids], batch| {
//         Box::pin(async move {
//             let context = CallContext::clone(batch.context());
//             batch.result::<Tensor, Refused>(S::embed(&*service, ids, layer, &context).await)
//         })
//     })
pub(super) fn gathered(
    method: &Method<'_>,
    index: &Index,
    handled: &TokenStream,
    private: &TokenStream,
) -> TokenStream {
    let [context, key, batch] = ["context", "key", "batch"].map(local);
    let index = index.expression();
    let gathered = method
        .arguments()
        .filter(|argument| method.gathers(argument));
    let tensors: Vec<_> = gathered.map(|argument| &argument.ident).collect();
    let names = tensors.iter().map(|ident| ident.unraw().to_string());
    let replied = match &method.outcome {
        Outcome::Nothing | Outcome::Stream { .. } => quote!(#batch.value::<()>),
        Outcome::Value(ty) => {
            let (span, ty) = (first(ty), travelling(ty, private));
            quote_spanned!(span=> #batch.value::<#ty>)
        }
        Outcome::Result { ok, error, .. } => {
            let (span, ok) = (first(ok), travelling(ok, private));
            let error = travelling(error, private);
            quote_spanned!(span=> #batch.result::<#ok, #error>)
        }
    };
    // An idempotent method may run again for each caller alone, so its other arguments must be cloned.
    let (gather, again) = match method.options.idempotent {
        false => (quote!(gather), TokenStream::new()),
        true => {
            let service = local("service");
            let others = method
                .arguments()
                .filter(|argument| !method.gathers(argument));
            let others = others.map(|argument| {
                let (ident, ty) = (&argument.ident, argument.ty);
                quote_spanned!(ty.span()=> let #ident = ::core::clone::Clone::clone(&#ident);)
            });
            let again = quote! {
                let #service = ::std::sync::Arc::clone(&#service);
                #(#others)*
            };
            (quote!(gather_again), again)
        }
    };
    quote! {
        self.batches.#gather(
            #index,
            #context,
            #key,
            [#((#names, #tensors)),*],
            move |[#(#tensors),*], #batch| {
                #again
                ::std::boxed::Box::pin(async move {
                    let #context = ::core::clone::Clone::clone(#batch.context());
                    #replied(#handled.await)
                })
            },
        )
    }
}

/// The span at which rustc reports a type that cannot be cut into rows.
fn first(ty: &Type) -> Span {
    let mut tokens = ty.to_token_stream().into_iter();
    tokens
        .next()
        .map_or_else(|| ty.span(), |token| token.span())
}
