//! The schema, which both processes compare before the first call, as a constant of the client.

use super::{answers, travelling};
use crate::model::{Argument, Method, Service};
use crate::names::local;
use crate::place::optional;
use crate::signature;
use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Attribute, Type};

// Input:
//     pub trait Embedder {
//         async fn embed(&self, text: String) -> Result<Tensor, Refused>;
//     }
//
// Output:
//     pub const SCHEMA: &'static Schema = &Schema {
//         service: "Embedder",
//         methods: &[Method {
//             service: "Embedder",
//             name: "embed",
//             id: method_id("embed"),
//             signature: "async fn embed(&self, text: String) -> Result<Tensor, Refused>",
//             idempotent: false,
//             promises: false,
//             streams: Streams { argument: false, reply: false },
//             places: Places { arguments: &[], stream: None, result: None },
//             structure: |tracer| {
//                 tracer.argument::<String>("text");
//                 tracer.returns::<Tensor>();
//                 tracer.error::<Refused>();
//                 use Unknown as _;
//                 Known::<String>::REFERENT(tracer, "argument text");
//                 Known::<Tensor>::REFERENT(tracer, "returns");
//                 Known::<Refused>::REFERENT(tracer, "error");
//             },
//         }],
//     };
pub(super) fn expand(service: &Service<'_>, private: &TokenStream) -> TokenStream {
    let vis = &service.syntax.vis;
    let name = service.syntax.ident.unraw().to_string();
    let methods = service.methods.iter().map(|m| method(&name, m, private));
    let docs = format!(" What [`{name}`] looks like: both sides compare it when they connect.");
    quote! {
        #[doc = #docs]
        #vis const SCHEMA: &'static #private::Schema = &#private::Schema {
            service: #name,
            methods: &[#(#methods),*],
        };
    }
}

/// The index of a method in `SCHEMA.methods`: a number, plus one for each earlier method whose `#[cfg]` holds.
pub(super) struct Index {
    certain: usize,
    perhaps: Vec<TokenStream>,
}

impl Index {
    /// The indices of all methods, in order.
    pub(super) fn all(service: &Service<'_>) -> Vec<Self> {
        let mut certain = 0;
        let mut perhaps = Vec::new();
        let mut indices = Vec::with_capacity(service.methods.len());
        for method in &service.methods {
            indices.push(Self {
                certain,
                perhaps: perhaps.clone(),
            });
            match predicate(&method.cfgs()) {
                None => certain += 1,
                Some(predicate) => perhaps.push(quote!(::core::cfg!(#predicate))),
            }
        }
        indices
    }

    pub(super) fn expression(&self) -> TokenStream {
        let Self { certain, perhaps } = self;
        quote!(#certain #(+ #perhaps as ::core::primitive::usize)*)
    }

    /// The pattern before `=>`.
    pub(super) fn pattern(&self) -> TokenStream {
        if self.perhaps.is_empty() {
            return self.expression();
        }
        let (number, expression) = (local("number"), self.expression());
        quote!(#number if #number == #expression)
    }
}

fn method(service: &str, method: &Method<'_>, private: &TokenStream) -> TokenStream {
    let cfgs = method.cfgs();
    let name = method.name();
    let signature = signature::of(method);
    let idempotent = method.options.idempotent;
    let promises = method.outcome.is_reference();
    let tracer = local("tracer");
    let arguments = method.arguments().map(|Argument { ident, ty, .. }| {
        let name = ident.unraw().to_string();
        let ty = travelling(ty, private);
        quote!(#tracer.argument::<#ty>(#name);)
    });
    let stream = method.stream().map(|(ident, item)| {
        let name = ident.unraw().to_string();
        let item = travelling(item, private);
        quote!(#tracer.argument::<#item>(#name);)
    });
    let (argument, reply) = (stream.is_some(), method.outcome.is_stream());
    let argument_places = method.arguments().filter_map(|argument| {
        let name = argument.ident.unraw().to_string();
        let device = argument.placed.as_ref()?.place.expression(private);
        Some(quote!((#name, #device)))
    });
    let stream_place = optional(method.stream_place(), private);
    let result_place = optional(method.result_place(), private);
    let no_result = match &method.outcome.types()[..] {
        [ty] => Some(no_result(ty, private)),
        _ => None,
    };
    let placed = method.placed_types().map(|ty| holds_tensors(ty, private));
    let answers = answers(&method.outcome, private);
    let (returns, errors) = answers.split_at(1);
    let places = ["returns".to_owned(), "error".to_owned()];
    let answered = places.into_iter().zip(method.outcome.types());
    let given = method
        .arguments()
        .map(|Argument { ident, ty, .. }| (ident, *ty));
    let given = given.chain(method.stream());
    let given = given.map(|(ident, ty)| (format!("argument {}", ident.unraw()), ty));
    let referents = given
        .chain(answered)
        .map(|(place, ty)| quote!(#private::Known::<#ty>::REFERENT(#tracer, #place);));
    quote! {
        #(#cfgs)*
        #private::Method {
            service: #service,
            name: #name,
            id: #private::method_id(#name),
            signature: #signature,
            idempotent: #idempotent,
            promises: #promises,
            streams: #private::Streams { argument: #argument, reply: #reply },
            places: #private::Places {
                arguments: &[#(#argument_places),*],
                stream: #stream_place,
                result: #result_place,
            },
            structure: |#tracer| {
                #no_result
                #(#placed)*
                #(#arguments)*
                #stream
                #(#tracer.returns::<#returns>();)*
                #(#tracer.error::<#errors>();)*
                use #private::Unknown as _;
                #(#referents)*
            },
        }
    }
}

/// A check that fails to compile if a type that is not written `Result` is one. The macro sees only an alias's name, and the caller
/// would get the alias's error as a value.
fn no_result(ty: &Type, private: &TokenStream) -> TokenStream {
    let message = format!(
        "`{}` is a `Result` by another name: write `Result<T, E>` out",
        signature::text(ty)
    );
    unless(ty, &quote!(IS_RESULT), &message, private)
}

/// A check that fails to compile if a type with a device holds no tensor, as far as rustc knows.
fn holds_tensors(ty: &Type, private: &TokenStream) -> TokenStream {
    let message = format!(
        "`{}` holds no tensor: put `#[tensor(..)]` on what does, or remove it",
        signature::text(ty)
    );
    unless(ty, &quote!(HOLDS_NO_TENSOR), &message, private)
}

/// A check that fails to compile if `known` is true of the type.
fn unless(ty: &Type, known: &TokenStream, message: &str, private: &TokenStream) -> TokenStream {
    quote_spanned! {ty.span()=>
        const _: () = {
            use #private::Unknown as _;
            if #private::Known::<#ty>::#known {
                ::core::panic!("{}", #message);
            }
        };
    }
}

/// The predicates of all `#[cfg(..)]`s, joined into one.
fn predicate(cfgs: &[&Attribute]) -> Option<TokenStream> {
    let predicates = cfgs.iter().filter_map(|cfg| match &cfg.meta {
        syn::Meta::List(list) => Some(&list.tokens),
        _ => None,
    });
    let predicates: Vec<_> = predicates.collect();
    (!predicates.is_empty()).then(|| quote!(all(#(#predicates),*)))
}
