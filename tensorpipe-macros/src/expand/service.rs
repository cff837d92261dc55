//! The server side: an adapter from the user's implementation to the runtime's `Service`.

use super::schema::Index;
use super::{allow_generated, answers, batch, travelling};
use crate::args::Args;
use crate::model::{Argument, Input, Method, Service};
use crate::names::{implementor, local};
use proc_macro2::{Ident, TokenStream};
use quote::quote;
use syn::ext::IdentExt;

/// Writes the adapter of one service.
pub(crate) struct Adapter<'a> {
    service: &'a Service<'a>,
    private: &'a TokenStream,
    /// The implementation's type.
    implementor: Ident,
}

impl<'a> Adapter<'a> {
    pub(crate) fn new(service: &'a Service<'a>, args: &'a Args) -> Self {
        Self {
            service,
            private: &args.private,
            implementor: implementor(),
        }
    }

    // Input:
    //     pub trait Embedder {
    //         async fn embed(&self, text: String, context: &CallContext) -> Result<Tensor, Refused>;
    //     }
    //
    // Output:
    //     pub struct EmbedderService<S> { service: Arc<S> }
    //     impl<S: Embedder> Service for EmbedderService<S> {
    //         fn schema(&self) -> &'static Schema { EmbedderClient::SCHEMA }
    //         fn call(&self, method: usize, mut arguments: Arguments, context: &CallContext) -> HandlerFuture {
    //             match method {
    //                 0 => {
    //                     let text = match arguments.take::<String>("text") {
    //                         Ok(value) => value,
    //                         Err(error) => return bad_arguments(error, ()),
    //                     };
    //                     if let Err(error) = arguments.finish() { return bad_arguments(error, (text,)); }
    //                     let context = CallContext::clone(context);
    //                     let service = Arc::clone(&self.service);
    //                     Box::pin(async move {
    //                         Reply::result::<Tensor, Refused>(S::embed(&*service, text, &context).await)
    //                     })
    //                 }
    //                 _ => unknown_method(method),
    //             }
    //         }
    //     }
    pub(super) fn expand(&self) -> TokenStream {
        let private = self.private;
        let (method, arguments, context) = (local("method"), local("arguments"), local("context"));
        let arms = self.service.methods.iter().zip(Index::all(self.service));
        let arms = arms.map(|(method, index)| self.arm(method, &index));
        let trait_ident = &self.service.syntax.ident;
        self.item(
            &quote!(#trait_ident),
            &quote! {
                fn call(
                    &self,
                    #method: ::core::primitive::usize,
                    mut #arguments: #private::Arguments,
                    #context: &#private::CallContext,
                ) -> #private::HandlerFuture {
                    match #method {
                        #(#arms)*
                        _ => #private::unknown_method(#method),
                    }
                }
            },
        )
    }

    /// The struct and its impls. `bound` is the bound on the implementation, `call` the method of the runtime's trait that makes a
    /// call.
    pub(crate) fn item(&self, bound: &TokenStream, call: &TokenStream) -> TokenStream {
        let (private, implementor) = (self.private, &self.implementor);
        let vis = &self.service.syntax.vis;
        let (adapter, client) = (&self.service.names.service, &self.service.names.client);
        let attrs = self.service.shared_attrs();
        let cfgs = self.service.cfgs();
        let allow = allow_generated();
        let trait_ident = self.service.syntax.ident.unraw();
        let docs = format!(" Serves an implementation of [`{trait_ident}`]: give it to a server.");
        let name = adapter.to_string();
        let batches = batch::Parts::of(self.service, private);
        let batch::Parts {
            field,
            make,
            copy,
            reader,
        } = batches;
        quote! {
            #(#attrs)*
            #[doc = #docs]
            ///
            /// Cheap to clone; clones share the implementation.
            #allow
            #vis struct #adapter<S> {
                service: ::std::sync::Arc<S>,
                #field
            }

            #(#cfgs)*
            #allow
            impl<#implementor: #bound> #adapter<#implementor> {
                /// Serves `service`.
                #[must_use]
                #vis fn new(service: #implementor) -> Self {
                    Self::from_arc(::std::sync::Arc::new(service))
                }

                /// Serves an implementation that others hold too.
                #[must_use]
                #vis fn from_arc(service: ::std::sync::Arc<#implementor>) -> Self {
                    Self { service, #make }
                }

                #reader
            }

            #(#cfgs)*
            #allow
            #[automatically_derived]
            impl<#implementor> ::core::clone::Clone for #adapter<#implementor> {
                fn clone(&self) -> Self {
                    Self { service: ::std::sync::Arc::clone(&self.service), #copy }
                }
            }

            #(#cfgs)*
            #allow
            #[automatically_derived]
            impl<#implementor> ::core::fmt::Debug for #adapter<#implementor> {
                fn fmt(&self, formatter: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                    formatter.write_str(#name)
                }
            }

            #(#cfgs)*
            #allow
            #[automatically_derived]
            impl<#implementor: #bound> #private::Service for #adapter<#implementor> {
                fn schema(&self) -> &'static #private::Schema {
                    #client::SCHEMA
                }

                #call
            }
        }
    }

    fn arm(&self, method: &Method<'_>, index: &Index) -> TokenStream {
        let (private, implementor) = (self.private, &self.implementor);
        let [arguments, context, service, value, error, key] =
            ["arguments", "context", "service", "value", "error", "key"].map(local);
        let batched = method.options.batch.is_some();
        let pattern = index.pattern();
        let cfgs = method.cfgs();
        let trait_ident = &self.service.syntax.ident;
        let ident = method.ident();
        let mut taken = Vec::new();
        let takes: Vec<_> = method
            .arguments()
            .map(|argument| {
                let Argument { ident, ty, placed } = argument;
                let name = ident.unraw().to_string();
                let ty = travelling(ty, private);
                let before = taken.clone();
                taken.push(ident);
                let take = match placed {
                    _ if batched && !method.gathers(argument) => {
                        quote!(#key.take::<#ty>(&mut #arguments, #name))
                    }
                    None => quote!(#arguments.take::<#ty>(#name)),
                    Some(placed) => {
                        let device = placed.place.expression(private);
                        quote!(#arguments.take_on::<#ty>(#name, #device))
                    }
                };
                quote! {
                    let #ident = match #take {
                        ::core::result::Result::Ok(#value) => #value,
                        ::core::result::Result::Err(#error) => {
                            return #private::bad_arguments(#error, (#(#before,)*));
                        }
                    };
                }
            })
            .collect();
        let inputs = method.inputs.iter().map(|input| match input {
            Input::Argument(Argument { ident, .. }) => quote!(#ident),
            Input::Stream { item, .. } => {
                let item = travelling(item, private);
                quote!(#private::Streaming::<#item>::of(&#context))
            }
            Input::Context {
                by_reference: true, ..
            } => quote!(&#context),
            // The context may be needed again, so clone it.
            Input::Context { .. } if method.streams() => {
                quote!(::core::clone::Clone::clone(&#context))
            }
            Input::Context {
                by_reference: false,
                ..
            } => quote!(#context),
        });
        let types = answers(&method.outcome, private);
        let handled = quote!(<#implementor as #trait_ident>::#ident(&*#service, #(#inputs),*));
        let stream = quote!(::core::clone::Clone::clone(&#context), #handled);
        let replied = match (method.outcome.is_stream(), types.len()) {
            (false, 2) => quote!(#private::Reply::result::<#(#types),*>(#handled.await)),
            (false, _) => quote!(#private::Reply::value::<#(#types),*>(#handled.await)),
            (true, 2) => quote!(#private::reply_results::<#(#types),*, _>(#stream).await),
            (true, _) => quote!(#private::reply_values::<#(#types),*, _>(#stream).await),
        };
        let handled = match batched {
            true => batch::gathered(method, index, &handled, private),
            false => quote! {
                ::std::boxed::Box::pin(async move {
                    #replied
                })
            },
        };
        let key = batched.then(|| quote!(let mut #key = #private::BatchKey::default();));
        let owned = (batched || method.takes_context())
            .then(|| quote!(let #context = ::core::clone::Clone::clone(#context);));
        quote! {
            #(#cfgs)*
            #pattern => {
                #key
                #(#takes)*
                if let ::core::result::Result::Err(#error) = #arguments.finish() {
                    return #private::bad_arguments(#error, (#(#taken,)*));
                }
                #owned
                let #service = ::std::sync::Arc::clone(&self.service);
                #handled
            }
        }
    }
}
