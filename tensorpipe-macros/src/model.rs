//! The model of a service, read from the trait's syntax and borrowing from it.
//!
//! Reading is lenient. Syntax that the model cannot express is reported, and replaced by the nearest thing that it can. So `check`
//! sees every method, and `fallback` can write a placeholder for each.

use crate::names::Names;
use crate::options::Options;
use crate::place::{DeviceName, Placed, is_tensor_attr};
use crate::report::Errors;
use crate::types::{
    call_context, is_reference, is_tensor, result_arguments, stream_item, streaming, ungrouped,
};
use proc_macro2::{Ident, TokenStream};
use quote::{ToTokens, format_ident, quote};
use syn::ext::IdentExt;
use syn::{
    Attribute, FnArg, ItemTrait, Pat, PatIdent, PatType, ReturnType, TraitItem, TraitItemFn, Type,
};

/// A trait of calls.
pub(crate) struct Service<'a> {
    pub(crate) syntax: &'a ItemTrait,
    pub(crate) names: Names,
    pub(crate) methods: Vec<Method<'a>>,
}

/// One call.
pub(crate) struct Method<'a> {
    pub(crate) syntax: &'a TraitItemFn,
    pub(crate) inputs: Vec<Input<'a>>,
    pub(crate) outcome: Outcome<'a>,
    pub(crate) options: Options,
    /// The device where tensors of its result land.
    pub(crate) placed: Option<Placed>,
    /// Whether no check found a mistake in it. Set by `check`.
    pub(crate) valid: bool,
    /// Whether no check found a mistake in its return type.
    pub(crate) valid_output: bool,
}

/// A parameter after `&self`.
pub(crate) enum Input<'a> {
    Argument(Argument<'a>),
    /// `Streaming<T>`: a stream of items of that type.
    Stream {
        ident: Ident,
        item: &'a Type,
        placed: Option<Placed>,
    },
    /// `CallContext` or `&CallContext`: filled in by the server.
    Context {
        syntax: &'a PatType,
        by_reference: bool,
    },
}

/// An argument that travels.
pub(crate) struct Argument<'a> {
    pub(crate) ident: Ident,
    pub(crate) ty: &'a Type,
    /// The device where its tensors land.
    pub(crate) placed: Option<Placed>,
}

/// The return type of a method.
pub(crate) enum Outcome<'a> {
    Nothing,
    Value(&'a Type),
    Result {
        ok: &'a Type,
        error: &'a Type,
        /// Both types as the user wrote them, for example `anyhow::Result<T, E>`.
        written: &'a Type,
    },
    /// `impl Stream<Item = T>`, or `impl Stream<Item = Result<T, E>>`.
    Stream {
        item: &'a Type,
        /// The two types of the `Result`, if an item is one.
        result: Option<(&'a Type, &'a Type)>,
        written: &'a Type,
    },
}

impl<'a> Service<'a> {
    pub(crate) fn read(syntax: &'a ItemTrait, errors: &mut Errors) -> Self {
        let mut methods = Vec::new();
        for item in &syntax.items {
            match item {
                TraitItem::Fn(method) => methods.push(Method::read(method, errors)),
                TraitItem::Const(item) => errors.at(item, only_methods("an associated constant")),
                TraitItem::Type(item) => errors.at(item, only_methods("an associated type")),
                TraitItem::Macro(item) => errors.at(item, only_methods("a macro call")),
                item => errors.at(item, only_methods("this item")),
            }
        }
        Self {
            syntax,
            names: Names::of(&syntax.ident),
            methods,
        }
    }

    /// The trait's `#[cfg]`s: generated items exist only where the trait does.
    pub(crate) fn cfgs(&self) -> Vec<&'a Attribute> {
        of_kind(&self.syntax.attrs, &["cfg"])
    }

    /// The attributes of the trait that every item named after it shares.
    pub(crate) fn shared_attrs(&self) -> Vec<&'a Attribute> {
        of_kind(&self.syntax.attrs, &["cfg", "deprecated"])
    }
}

impl<'a> Method<'a> {
    fn read(syntax: &'a TraitItemFn, errors: &mut Errors) -> Self {
        let before = errors.len();
        let inputs = syntax.sig.inputs.iter().filter_map(|input| match input {
            FnArg::Receiver(receiver) => {
                for attr in receiver.attrs.iter().filter(|attr| is_tensor_attr(attr)) {
                    errors.at(
                        attr,
                        "`&self` is no tensor: put it on an argument, or on the method",
                    );
                }
                None
            }
            FnArg::Typed(input) => Some(input),
        });
        let inputs: Vec<_> = inputs.collect();
        let inputs = inputs
            .into_iter()
            .enumerate()
            .map(|(index, input)| Input::read(index, input, errors))
            .collect();
        Self {
            syntax,
            inputs,
            outcome: Outcome::read(&syntax.sig.output),
            options: Options::read(&syntax.attrs, errors),
            placed: Placed::read(&syntax.attrs, errors),
            valid: errors.len() == before,
            valid_output: syntax.sig.generics.params.is_empty(),
        }
    }

    pub(crate) fn ident(&self) -> &'a Ident {
        &self.syntax.sig.ident
    }

    /// The name on the wire.
    pub(crate) fn name(&self) -> String {
        self.ident().unraw().to_string()
    }

    /// The arguments that travel.
    pub(crate) fn arguments(&self) -> impl Iterator<Item = &Argument<'a>> {
        self.inputs.iter().filter_map(|input| match input {
            Input::Argument(argument) => Some(argument),
            Input::Stream { .. } | Input::Context { .. } => None,
        })
    }

    /// Whether the method is batched, and this argument is joined.
    pub(crate) fn gathers(&self, argument: &Argument<'_>) -> bool {
        self.options.batch.is_some() && is_tensor(argument.ty)
    }

    /// The stream among its arguments.
    pub(crate) fn stream(&self) -> Option<(&Ident, &'a Type)> {
        self.inputs.iter().find_map(|input| match input {
            Input::Stream { ident, item, .. } => Some((ident, *item)),
            Input::Argument(_) | Input::Context { .. } => None,
        })
    }

    /// The device where the tensors of that stream land.
    pub(crate) fn stream_place(&self) -> Option<&DeviceName> {
        self.inputs.iter().find_map(|input| match input {
            Input::Stream { placed, .. } => placed.as_ref().map(|placed| &placed.place),
            Input::Argument(_) | Input::Context { .. } => None,
        })
    }

    /// The device where tensors of the result land.
    pub(crate) fn result_place(&self) -> Option<&DeviceName> {
        self.placed.as_ref().map(|placed| &placed.place)
    }

    /// The types with a `#[tensor(..)]`.
    pub(crate) fn placed_types(&self) -> impl Iterator<Item = &'a Type> {
        let inputs = self.inputs.iter().filter_map(|input| match input {
            Input::Argument(Argument { ty, placed, .. }) => placed.as_ref().map(|_| *ty),
            Input::Stream { item, placed, .. } => placed.as_ref().map(|_| *item),
            Input::Context { .. } => None,
        });
        let result = match self.outcome {
            Outcome::Value(ty)
            | Outcome::Result { written: ty, .. }
            | Outcome::Stream { item: ty, .. } => Some(ty),
            Outcome::Nothing => None,
        };
        inputs.chain(result.filter(|_| self.placed.is_some()))
    }

    /// Whether an argument or the result is a stream.
    pub(crate) fn streams(&self) -> bool {
        self.stream().is_some() || self.outcome.is_stream()
    }

    /// Whether the handler needs the call's context.
    pub(crate) fn takes_context(&self) -> bool {
        let is_context = |input: &Input<'_>| matches!(input, Input::Context { .. });
        self.streams() || self.inputs.iter().any(is_context)
    }

    /// All attributes but our own `#[rpc]` and `#[tensor]`.
    pub(crate) fn attrs(&self) -> Vec<&'a Attribute> {
        let attrs = self.syntax.attrs.iter();
        let ours = |attr: &Attribute| attr.path().is_ident("rpc") || is_tensor_attr(attr);
        attrs.filter(|attr| !ours(attr)).collect()
    }

    pub(crate) fn cfgs(&self) -> Vec<&'a Attribute> {
        of_kind(&self.syntax.attrs, &["cfg"])
    }

    pub(crate) fn docs(&self) -> Vec<&'a Attribute> {
        of_kind(&self.syntax.attrs, &["doc"])
    }

    /// The attributes that the client's method takes over, besides the docs.
    pub(crate) fn client_attrs(&self) -> Vec<&'a Attribute> {
        of_kind(&self.syntax.attrs, &["cfg", "deprecated", "must_use"])
    }
}

impl<'a> Input<'a> {
    fn read(index: usize, syntax: &'a PatType, errors: &mut Errors) -> Self {
        for attr in syntax.attrs.iter().filter(|attr| !is_tensor_attr(attr)) {
            errors.at(
                attr,
                "of attributes on arguments only `#[tensor(device = \"..\")]` is supported: remove it",
            );
        }
        let placed = Placed::read(&syntax.attrs, errors);
        if let Some(by_reference) = call_context(&syntax.ty) {
            if let Some(placed) = &placed {
                let message = "the call's context does not travel: put `#[tensor(..)]` on an argument that holds tensors";
                errors.at(&placed.attr, message);
            }
            return Self::Context {
                syntax,
                by_reference,
            };
        }
        let ident = match &*syntax.pat {
            Pat::Ident(PatIdent {
                by_ref: None,
                mutability: None,
                subpat: None,
                ident,
                ..
            }) => ident.clone(),
            pat => {
                let message = "the name of an argument is sent with the call: write `name: Type`";
                errors.at(pat, message);
                format_ident!("argument_{index}")
            }
        };
        let ty = &syntax.ty;
        match streaming(ty) {
            Some(item) => Self::Stream {
                ident,
                item,
                placed,
            },
            None => Self::Argument(Argument { ident, ty, placed }),
        }
    }
}

impl<'a> Outcome<'a> {
    fn read(output: &'a ReturnType) -> Self {
        let ReturnType::Type(_, ty) = output else {
            return Self::Nothing;
        };
        if let Some(item) = stream_item(ty) {
            let result = match result_arguments(item).as_deref() {
                Some([ok, error]) => Some((*ok, *error)),
                _ => None,
            };
            return Self::Stream {
                item,
                result,
                // The expansion adds a bound, which cannot follow parentheses.
                written: ungrouped(ty),
            };
        }
        match result_arguments(ty).as_deref() {
            Some([ok, error]) => Self::Result {
                ok,
                error,
                written: ty,
            },
            _ => Self::Value(ty),
        }
    }

    /// Whether it is a `Remote`, which other calls may take as an argument before the call has returned.
    pub(crate) fn is_reference(&self) -> bool {
        let ty = match self {
            Self::Value(ty) => ty,
            Self::Result { ok, .. } => ok,
            Self::Nothing | Self::Stream { .. } => return false,
        };
        is_reference(ty)
    }

    /// The types of a value or of an item: two if it is a `Result`, none if there is no value.
    pub(crate) fn types(&self) -> Vec<&'a Type> {
        match self {
            Self::Nothing => Vec::new(),
            Self::Value(ty)
            | Self::Stream {
                item: ty,
                result: None,
                ..
            } => vec![ty],
            Self::Result { ok, error, .. }
            | Self::Stream {
                result: Some((ok, error)),
                ..
            } => vec![ok, error],
        }
    }

    pub(crate) fn is_stream(&self) -> bool {
        matches!(self, Self::Stream { .. })
    }

    /// The handler's whole return type.
    pub(crate) fn written(&self) -> TokenStream {
        match self {
            Self::Nothing => quote!(()),
            Self::Value(written) | Self::Result { written, .. } | Self::Stream { written, .. } => {
                written.to_token_stream()
            }
        }
    }
}

fn of_kind<'a>(attrs: &'a [Attribute], kinds: &[&str]) -> Vec<&'a Attribute> {
    let wanted = |attr: &&Attribute| kinds.iter().any(|kind| attr.path().is_ident(kind));
    attrs.iter().filter(wanted).collect()
}

fn only_methods(what: &str) -> String {
    format!(
        "{what} cannot be called from another process: a service trait holds only async methods"
    )
}

#[cfg(test)]
mod tests {
    use super::{Input, Method, Outcome, Service};
    use crate::report::Errors;
    use crate::signature::text;
    use quote::quote;
    use syn::{ItemTrait, parse_quote};

    /// Reads the first method of the trait, and shows it.
    fn with_method<R>(syntax: &ItemTrait, show: impl FnOnce(&Method<'_>) -> R) -> R {
        let mut errors = Errors::default();
        let service = Service::read(syntax, &mut errors);
        assert!(errors.is_empty(), "{}", errors.into_compile_errors());
        show(&service.methods[0])
    }

    #[test]
    fn only_a_written_out_result_is_a_result() {
        let outcome = |output| {
            with_method(
                &parse_quote!(trait T { async fn m(&self) #output; }),
                |method| match &method.outcome {
                    Outcome::Nothing => "nothing".to_owned(),
                    Outcome::Value(ty) => format!("value {}", text(ty)),
                    Outcome::Result { ok, error, .. } => format!("{} or {}", text(ok), text(error)),
                    Outcome::Stream { item, result, .. } => {
                        let kind = if result.is_some() {
                            "results"
                        } else {
                            "values"
                        };
                        format!("stream of {kind} {}", text(item))
                    }
                },
            )
        };
        assert_eq!(outcome(quote!()), "nothing");
        assert_eq!(outcome(quote!(-> u64)), "value u64");
        assert_eq!(outcome(quote!(-> Result<u64, Refused>)), "u64 or Refused");
        assert_eq!(
            outcome(quote!(-> (::std::result::Result<(), E>))),
            "() or E"
        );
        assert_eq!(outcome(quote!(-> io::Result<u64>)), "value io::Result<u64>");
        assert_eq!(
            outcome(quote!(-> impl Send + Stream<Item = Result<u8, E>>)),
            "stream of results Result<u8, E>"
        );
        assert_eq!(
            outcome(quote!(-> impl futures::Stream<Item = u8>)),
            "stream of values u8"
        );
        assert_eq!(
            outcome(quote!(-> Vec<Result<u8, E>>)),
            "value Vec<Result<u8, E>>"
        );
    }

    #[test]
    fn the_context_is_no_argument() {
        let inputs = |inputs| {
            with_method(
                &parse_quote!(trait T { async fn m(&self, #inputs); }),
                |method| {
                    let inputs = method.inputs.iter().map(|input| match input {
                        Input::Argument(argument) => argument.ident.to_string(),
                        Input::Stream { ident, item, .. } => format!("{ident} of {}", text(item)),
                        Input::Context { by_reference, .. } => format!("context {by_reference}"),
                    });
                    inputs.collect::<Vec<_>>().join(", ")
                },
            )
        };
        assert_eq!(inputs(quote!(a: u8, b: u8)), "a, b");
        assert_eq!(inputs(quote!(a: u8, cx: CallContext)), "a, context false");
        assert_eq!(
            inputs(quote!(cx: &rpc::CallContext, a: u8)),
            "context true, a"
        );
        assert_eq!(inputs(quote!(a: rpc::Streaming<Tensor>)), "a of Tensor");
        assert_eq!(inputs(quote!(a: Vec<Streaming<u8>>)), "a");
        assert_eq!(inputs(quote!(cx: &&CallContext)), "cx");
        assert_eq!(inputs(quote!(cx: Vec<CallContext>)), "cx");
    }
}
