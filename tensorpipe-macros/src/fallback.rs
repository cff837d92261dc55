//! The expansion of a trait with mistakes: the errors, and placeholders for every generated item. With these, rustc does not also
//! blame code that uses the trait, the client or the server.

use crate::args::Args;
use crate::expand::{Adapter, Client, trait_method};
use crate::model::{Input, Method, Service};
use crate::names::is_reserved;
use crate::place::is_tensor_attr;
use crate::report::Errors;
use proc_macro2::TokenStream;
use quote::quote;
use std::collections::HashSet;
use syn::{FnArg, ItemTrait, Pat, PatIdent, PatWild, Token, parse_quote};

// Input:
//     pub trait Embedder {
//         fn embed(&self, text: String) -> Tensor;
//         async fn size(&self) -> u64;
//     }
//
// Output:
//     compile_error! { .. }
//     pub trait Embedder: Send + Sync + 'static {
//         fn embed(&self, text: String) -> Tensor;
//         fn size(&self) -> impl Future<Output = u64> + Send;
//     }
//     pub struct EmbedderClient { .. }
//     impl EmbedderClient {
//         ..
//         pub fn embed(&self, _: impl Sized) -> Call<Tensor> { unreachable!() }
//         pub fn size(&self) -> Call<u64> { unreachable!() }
//     }
//     pub struct EmbedderService<S> { .. }
//     ..
pub(crate) fn expand(service: &Service<'_>, args: &Args, errors: Errors) -> TokenStream {
    let errors = errors.into_compile_errors();
    let trait_item = trait_item(service);
    let client = client(service, args);
    let adapter = adapter(service, args);
    quote!(#errors #trait_item #client #adapter)
}

fn trait_item(service: &Service<'_>) -> TokenStream {
    let ItemTrait {
        attrs,
        vis,
        trait_token,
        ident,
        generics,
        supertraits,
        ..
    } = service.syntax;
    let where_clause = &generics.where_clause;
    let attrs = attrs.iter().filter(|attr| !is_tensor_attr(attr));
    let supertraits = supertraits.iter();
    let methods = without_duplicates(service).map(|method| {
        if method.valid {
            trait_method(method)
        } else {
            as_written(method)
        }
    });
    quote! {
        #(#attrs)*
        #[allow(async_fn_in_trait, reason = "this trait has errors already")]
        #vis #trait_token #ident #generics: ::core::marker::Send + ::core::marker::Sync + 'static #(+ #supertraits)*
        #where_clause
        {
            #(#methods)*
        }
    }
}

/// The first method of each name.
fn without_duplicates<'a>(service: &'a Service<'a>) -> impl Iterator<Item = &'a Method<'a>> {
    let mut seen = HashSet::new();
    let methods = service.methods.iter();
    methods.filter(move |method| seen.insert(method.name()))
}

/// The method as the user wrote it, without the parts that rustc would report a second time.
fn as_written(method: &Method<'_>) -> TokenStream {
    let mut syntax = method.syntax.clone();
    syntax.attrs = method.attrs().into_iter().cloned().collect();
    for input in &mut syntax.sig.inputs {
        match input {
            FnArg::Receiver(input) => input.attrs.retain(|attr| !is_tensor_attr(attr)),
            FnArg::Typed(input) => input.attrs.retain(|attr| !is_tensor_attr(attr)),
        }
    }
    syntax.sig.variadic = None;
    syntax.sig.abi = None;
    syntax.sig.constness = None;
    if syntax.default.is_none() {
        for input in &mut syntax.sig.inputs {
            if let FnArg::Typed(input) = input
                && !matches!(
                    &*input.pat,
                    Pat::Ident(PatIdent {
                        mutability: None,
                        subpat: None,
                        ..
                    })
                )
            {
                *input.pat = Pat::Wild(PatWild {
                    attrs: Vec::new(),
                    underscore_token: <Token![_]>::default(),
                });
            }
        }
    }
    let bound = parse_quote!(Self: ::core::marker::Sized);
    syntax
        .sig
        .generics
        .make_where_clause()
        .predicates
        .push(bound);
    quote!(#syntax)
}

fn client(service: &Service<'_>, args: &Args) -> TokenStream {
    let private = &args.private;
    let vis = &service.syntax.vis;
    let client = Client::new(service, args);
    let generic = !service.syntax.generics.params.is_empty();
    // A method with a reserved name would be a second error, because the client already has an item of that name.
    let methods = without_duplicates(service).filter(|method| !is_reserved(&method.name()));
    let methods = methods.map(|method| {
        if method.valid && !generic {
            return client.method(method, &quote!(::core::unreachable!()));
        }
        let ident = method.ident();
        let arguments = method.inputs.iter().filter_map(|input| match input {
            Input::Context { .. } => None,
            _ => Some(quote!(_: impl ::core::marker::Sized)),
        });
        let call = if method.valid_output && !generic {
            client.call_type(method)
        } else {
            quote!(#private::Call<()>)
        };
        quote! {
            #vis fn #ident(&self, #(#arguments),*) -> #call {
                ::core::unreachable!()
            }
        }
    });
    client.item(&quote! {
        #vis const SCHEMA: &'static #private::Schema = &#private::Schema {
            service: "",
            methods: &[],
        };
        #(#methods)*
    })
}

fn adapter(service: &Service<'_>, args: &Args) -> TokenStream {
    let private = &args.private;
    let ident = &service.syntax.ident;
    let bound = if service.syntax.generics.params.is_empty() {
        quote!(#ident)
    } else {
        quote!(::core::marker::Send + ::core::marker::Sync + 'static)
    };
    Adapter::new(service, args).item(
        &bound,
        &quote! {
            fn call(
                &self,
                _: ::core::primitive::usize,
                _: #private::Arguments,
                _: &#private::CallContext,
            ) -> #private::HandlerFuture {
                ::core::unreachable!()
            }
        },
    )
}
