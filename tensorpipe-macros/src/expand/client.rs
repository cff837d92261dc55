//! The client: one method per call, which starts the call at once and returns its future.

use super::schema::{self, Index};
use super::{allow_generated, answers, travelling};
use crate::args::Args;
use crate::model::{Argument, Input, Method, Service};
use crate::names::local;
use proc_macro2::{Ident, TokenStream};
use quote::quote;
use syn::ext::IdentExt;

/// Writes the client of one service.
pub(crate) struct Client<'a> {
    service: &'a Service<'a>,
    private: &'a TokenStream,
}

impl<'a> Client<'a> {
    pub(crate) fn new(service: &'a Service<'a>, args: &'a Args) -> Self {
        let private = &args.private;
        Self { service, private }
    }

    // Input:
    //     pub trait Embedder {
    //         /// Docs.
    //         async fn embed(&self, text: String) -> Result<Tensor, Refused>;
    //     }
    //
    // Output:
    //     pub struct EmbedderClient { handle: ClientHandle }
    //     impl EmbedderClient {
    //         pub const SCHEMA: &'static Schema = ..;
    //         pub async fn connect(url: impl AsRef<str>) -> Result<Self, ConnectError> { .. }
    //         ..
    //         /// Docs.
    //         pub fn embed(&self, text: impl Argument<String>) -> Call<Tensor, Refused> {
    //             self.handle.call_result(&Self::SCHEMA.methods[0], |arguments| {
    //                 arguments.push("text", &text)?;
    //                 Ok(())
    //             })
    //         }
    //     }
    pub(super) fn expand(&self) -> TokenStream {
        let schema = schema::expand(self.service, self.private);
        let methods = self.service.methods.iter().zip(Index::all(self.service));
        let methods = methods.map(|(method, index)| {
            let body = self.call(method, &index);
            self.method(method, &body)
        });
        self.item(&quote!(#schema #(#methods)*))
    }

    /// The struct and its `impl`: how to connect, then `members`.
    pub(crate) fn item(&self, members: &TokenStream) -> TokenStream {
        let private = self.private;
        let vis = &self.service.syntax.vis;
        let client = &self.service.names.client;
        let attrs = self.service.shared_attrs();
        let cfgs = self.service.cfgs();
        let allow = allow_generated();
        let docs = self.docs();
        let connect = self.connect();
        quote! {
            #(#attrs)*
            #docs
            #allow
            #[derive(::core::clone::Clone, ::core::fmt::Debug)]
            #vis struct #client {
                handle: #private::ClientHandle,
            }

            #(#cfgs)*
            #allow
            impl #client {
                #connect
                #members
            }
        }
    }

    /// One method with the given body.
    pub(crate) fn method(&self, method: &Method<'_>, body: &TokenStream) -> TokenStream {
        let private = self.private;
        let vis = &self.service.syntax.vis;
        let attrs = method.client_attrs();
        let docs = self.method_docs(method);
        let ident = method.ident();
        let arguments = method.inputs.iter().filter_map(|input| match input {
            Input::Argument(Argument { ident, ty, .. }) => {
                Some(quote!(#ident: impl #private::Argument<#ty>))
            }
            Input::Stream { ident, item, .. } => Some(quote! {
                #ident: impl #private::Stream<Item = #item> + ::core::marker::Send + 'static
            }),
            Input::Context { .. } => None,
        });
        let call = self.call_type(method);
        quote! {
            #docs
            #(#attrs)*
            #vis fn #ident(&self, #(#arguments),*) -> #call {
                #body
            }
        }
    }

    /// The future that the client's method returns.
    pub(crate) fn call_type(&self, method: &Method<'_>) -> TokenStream {
        let private = self.private;
        let types = match method.outcome.types() {
            types if types.is_empty() => quote!(()),
            types => quote!(#(#types),*),
        };
        match method.outcome.is_stream() {
            false => quote!(#private::Call<#types>),
            true => quote!(#private::CallStream<#types>),
        }
    }

    fn call(&self, method: &Method<'_>, index: &Index) -> TokenStream {
        let index = index.expression();
        let encoder = local("arguments");
        let pushes: Vec<_> = method
            .arguments()
            .map(|Argument { ident, placed, .. }| {
                let name = ident.unraw().to_string();
                match placed {
                    None => quote!(#encoder.push(#name, &#ident)?;),
                    Some(placed) => {
                        let device = placed.place.expression(self.private);
                        quote!(#encoder.push_to(#name, &#ident, #device)?;)
                    }
                }
            })
            .collect();
        let types = answers(&method.outcome, self.private);
        // Separate functions, because the error of a call without one of its own cannot be deserialized.
        let start = match (method.outcome.is_stream(), types.len()) {
            (false, 2) => quote!(call_result),
            (false, _) => quote!(call_value),
            (true, 2) => quote!(stream_results),
            (true, _) => quote!(stream_values),
        };
        let sending = method.stream().map(|(ident, item)| {
            let item = travelling(item, self.private);
            quote!(.sending::<#item, _>(#ident))
        });
        let parameter = match pushes.as_slice() {
            [] => quote!(_),
            _ => quote!(#encoder),
        };
        quote! {
            self.handle.#start::<#(#types),*>(&Self::SCHEMA.methods[#index], |#parameter| {
                #(#pushes)*
                ::core::result::Result::Ok(())
            })
            #sending
        }
    }

    fn connect(&self) -> TokenStream {
        let private = self.private;
        let vis = &self.service.syntax.vis;
        let result = quote!(::core::result::Result<Self, #private::ConnectError>);
        let url_type = quote!(impl ::core::convert::AsRef<::core::primitive::str>);
        let url = quote!(::core::convert::AsRef::<::core::primitive::str>::as_ref(
            &url
        ));
        let made = |handle: TokenStream| {
            quote! {
                let handle = #handle;
                ::core::result::Result::Ok(Self { handle })
            }
        };
        let connect = made(quote!(#private::ClientHandle::connect(Self::SCHEMA, #url).await?));
        let connect_with =
            made(quote!(#private::ClientHandle::connect_with(context, Self::SCHEMA, #url).await?));
        let on = made(quote!(#private::ClientHandle::on(target, Self::SCHEMA).await?));
        quote! {
            /// Connects to the server at `url` with the process's default context.
            ///
            /// # Errors
            ///
            /// When nobody answers there, the two sides share no transport, or the server has no such service.
            #vis async fn connect(url: #url_type) -> #result { #connect }

            /// Connects to the server at `url` with this context's backends, pools and limits.
            ///
            /// # Errors
            ///
            /// As [`connect`](Self::connect).
            #vis async fn connect_with(context: &#private::Context, url: #url_type) -> #result { #connect_with }

            /// Uses a `Connection` or `Replicas` that are there already: several clients may share them.
            ///
            /// # Errors
            ///
            /// When it is closed, or no server there has such a service.
            #vis async fn on(target: &dyn #private::Target) -> #result { #on }

            /// The connection that the calls are made on. Over `Replicas`, that of the first server found: it is not replaced after a
            /// reconnect. `Replicas::status` has the route to each.
            #[must_use]
            #vis fn connection(&self) -> &#private::Connection {
                self.handle.connection()
            }

            /// The same client; calls made through it fail when not answered after `deadline`.
            #[must_use]
            #vis fn with_deadline(&self, deadline: ::core::time::Duration) -> Self {
                Self { handle: self.handle.with_deadline(deadline) }
            }

            /// The same client, for calls whose tensors land where this map says. Those of arguments land on the server's
            /// device that goes with theirs, those of results the other way round.
            #[must_use]
            #vis fn with_device_map(&self, map: #private::DeviceMap) -> Self {
                Self { handle: self.handle.with_device_map(map) }
            }

            /// The same client, for calls whose arguments' tensors must go over one of these channels, or in the message's own
            /// frame. Else the call fails before a byte of them moves, as with `Message::require`. So do those of a stream
            /// among them. On what comes back the context of its sender decides (`ContextBuilder::require`).
            #[must_use]
            #vis fn with_requirement(
                &self,
                channels: impl ::core::iter::IntoIterator<Item = impl ::core::convert::Into<::std::string::String>>,
            ) -> Self {
                Self { handle: self.handle.with_requirement(channels) }
            }

            /// The same client; calls made through it, and calls that they cause, belong to this trace.
            #[must_use]
            #vis fn with_trace(&self, trace: #private::TraceContext) -> Self {
                Self { handle: self.handle.with_trace(trace) }
            }

            /// The same client; of calls made through it, `stats()` says what happened.
            #[must_use]
            #vis fn with_stats(&self) -> Self {
                Self { handle: self.handle.with_stats() }
            }
        }
    }

    fn docs(&self) -> TokenStream {
        let service: Ident = self.service.syntax.ident.unraw();
        let first =
            format!(" Client of [`{service}`]: each method makes the call of the same name.");
        quote! {
            #[doc = #first]
            ///
            /// Cheap to clone; clones share one connection. A call starts when its method is called, and
            /// dropping what the method returned cancels it.
        }
    }

    fn method_docs(&self, method: &Method<'_>) -> TokenStream {
        let docs = method.docs();
        if !docs.is_empty() {
            return quote!(#(#docs)*);
        }
        let service = self.service.syntax.ident.unraw();
        let line = format!(
            " Calls [`{service}::{}`] on the server.",
            method.ident().unraw()
        );
        quote!(#[doc = #line])
    }
}
