//! The input of `tarpc_stub!`, a macro_rules of the runtime. Only the runtime knows its own features: without its feature `tarpc`
//! the macro expands to nothing.

use crate::args::Args;
use crate::model::{Argument, Outcome, Service};
use crate::names;
use proc_macro2::TokenStream;
use quote::quote;
use syn::ext::IdentExt;

// Input:
//     pub trait Embedder {
//         async fn embed(&self, text: String) -> Result<Tensor, Refused>;
//         async fn size(&self) -> u64;
//     }
//
// Output:
//     tarpc_stub! {
//         client: EmbedderClient,
//         visibility: (pub),
//         request: EmbedderClientRequest,
//         response: EmbedderClientResponse,
//         methods: [
//             { attributes: (), variant: Embed, method: embed, name: "Embedder.embed", arguments: (text: String), result: (Result<Tensor, Refused>) }
//             { attributes: (), variant: Size, method: size, name: "Embedder.size", arguments: (), value: (u64) }
//         ],
//         travelling: [String],
//     }
pub(super) fn expand(service: &Service<'_>, args: &Args) -> TokenStream {
    let private = &args.private;
    let vis = &service.syntax.vis;
    let cfgs = service.cfgs();
    let names::Names {
        client,
        request,
        response,
        ..
    } = &service.names;
    let methods = service
        .methods
        .iter()
        .zip(names::variants(&service.methods));
    // tarpc has no streams.
    let methods = methods.filter(|(method, _)| !method.streams());
    let methods = methods.map(|(method, variant)| {
        let cfgs = method.cfgs();
        let ident = method.ident();
        let name = format!("{}.{}", service.syntax.ident.unraw(), method.name());
        let arguments = method
            .arguments()
            .map(|Argument { ident, ty, .. }| quote!(#ident: #ty));
        let written = method.outcome.written();
        let kind = match &method.outcome {
            Outcome::Result { .. } => quote!(result),
            Outcome::Nothing | Outcome::Value(_) | Outcome::Stream { .. } => quote!(value),
        };
        quote! {
            {
                attributes: (#(#cfgs)*),
                variant: #variant,
                method: #ident,
                name: #name,
                arguments: (#(#arguments),*),
                #kind: (#written)
            }
        }
    });
    // Types of methods under `#[cfg]` are left out: they may not exist, and a bound takes no attribute.
    let travelling = service.methods.iter();
    let travelling = travelling.filter(|method| method.cfgs().is_empty() && !method.streams());
    let travelling = travelling.flat_map(|method| method.arguments().map(|argument| argument.ty));
    quote! {
        #private::tarpc_stub! {
            attributes: (#(#cfgs)*),
            client: #client,
            visibility: (#vis),
            request: #request,
            response: #response,
            methods: [#(#methods)*],
            travelling: [#(#travelling),*],
        }
    }
}
