//! Every rule for a service trait that can be decided from syntax alone.
//!
//! Invariant: if a service passes, rustc can find fault with the expansion only because of the user's own types (unknown, not
//! serializable, not `Send`).

use crate::model::{Input, Method, Outcome, Service};
use crate::names;
use crate::place::is_tensor_attr;
use crate::report::Errors;
use crate::signature;
use crate::types::{Opaque, is_reference, opaque, result_arguments};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use syn::ext::IdentExt;
use syn::visit::{self, Visit};
use syn::{
    Ident, Lifetime, Path, ReceiverKind, ReturnType, Safety, Type, TypeImplTrait, TypeParamBound,
    TypeReference, TypeTraitObject,
};

/// Reports every mistake, and marks the methods that have one.
pub(crate) fn check(service: &mut Service<'_>, errors: &mut Errors) {
    the_trait(service, errors);
    let mut ids = HashMap::new();
    for method in &mut service.methods {
        let before = errors.len();
        qualifiers(method, errors);
        receiver(method, errors);
        generics(method, errors);
        arguments(method, errors);
        let before_output = errors.len();
        output(method, errors);
        batch(method, errors);
        places(method, errors);
        method.valid_output &= errors.len() == before_output;
        cfg_attrs(&method.syntax.attrs, errors);
        name(method, &mut ids, errors);
        method.valid &= errors.len() == before;
    }
}

fn the_trait(service: &Service<'_>, errors: &mut Errors) {
    let syntax = service.syntax;
    if let Some(unsafety) = &syntax.unsafety {
        errors.at(unsafety, "a service trait is safe: remove `unsafe`");
    }
    if let Some(auto) = &syntax.modifiers.auto_token {
        errors.at(auto, "a service trait has methods: remove `auto`");
    }
    if !syntax.generics.params.is_empty() {
        let message =
            "a service trait has no generics, since one schema describes it: write the types out";
        errors.at(&syntax.generics.params, message);
    }
    if let Some(clause) = &syntax.generics.where_clause {
        errors.at(
            clause,
            "write bounds of a service trait as supertraits instead",
        );
    }
    for attr in syntax.attrs.iter().filter(|attr| is_tensor_attr(attr)) {
        errors.at(
            attr,
            "say it of an argument, or of a method for what it answers with",
        );
    }
    cfg_attrs(&syntax.attrs, errors);
}

fn qualifiers(method: &Method<'_>, errors: &mut Errors) {
    let sig = &method.syntax.sig;
    if let Some(constness) = &sig.constness {
        errors.at(constness, "a call cannot be `const`: remove it");
    }
    if let Safety::Unsafe(token) = &sig.safety {
        errors.at(token, "a call cannot be `unsafe`: remove it");
    }
    if let Some(abi) = &sig.abi {
        errors.at(abi, "a call has no ABI: remove `extern`");
    }
    if let Some(variadic) = &sig.variadic {
        errors.at(
            variadic,
            "a call has a fixed number of arguments: use a `Vec<T>`",
        );
    }
    match (&method.outcome, &sig.asyncness) {
        (Outcome::Stream { .. }, Some(asyncness)) => errors.at(
            asyncness,
            "a stream waits item by item: remove `async`, and await inside the stream",
        ),
        (Outcome::Stream { .. }, None) | (_, Some(_)) => {}
        // The mistake is reported at the type.
        (Outcome::Value(ty), None) if opaque(ty).is_some() => {}
        (Outcome::Value(ty), None) if names_streaming(ty) => errors.at(
            ty,
            "`Streaming` is for arguments: return `impl Stream<Item = T>`",
        ),
        (_, None) => errors.at(
            sig.fn_token,
            "a call waits for another process: write `async fn`",
        ),
    }
}

fn names_streaming(ty: &Type) -> bool {
    let Type::Path(path) = ty else {
        return false;
    };
    let last = path.path.segments.last();
    last.is_some_and(|last| last.ident == "Streaming")
}

fn receiver(method: &Method<'_>, errors: &mut Errors) {
    let sig = &method.syntax.sig;
    let Some(receiver) = sig.receiver() else {
        return errors.at(
            &sig.ident,
            "a call is made on a service: make `&self` the first argument",
        );
    };
    match &receiver.kind {
        ReceiverKind::Reference(_, None, None) => {}
        ReceiverKind::Reference(_, Some(lifetime), None) => errors.at(lifetime, "remove the lifetime: write `&self`"),
        ReceiverKind::Reference(_, _, Some(_)) => errors.at(
            receiver,
            "calls run at the same time and share the service: write `&self`, and keep what changes behind a lock",
        ),
        _ => errors.at(
            receiver,
            "the service outlives the call: write `&self`",
        ),
    }
}

fn generics(method: &Method<'_>, errors: &mut Errors) {
    let generics = &method.syntax.sig.generics;
    let lifetimes_only = generics
        .params
        .iter()
        .all(|param| matches!(param, syn::GenericParam::Lifetime(_)));
    if !generics.params.is_empty() {
        let message = if lifetimes_only {
            "a call outlives its caller's borrows: remove the lifetimes and use owned types"
        } else {
            "a call cannot be generic, since both processes must know its types: write the types out"
        };
        errors.at(&generics.params, message);
    } else if let Some(clause) = &generics.where_clause {
        errors.at(
            clause,
            "a call has no generics to bound: remove the where clause",
        );
    }
}

fn arguments(method: &Method<'_>, errors: &mut Errors) {
    let mut seen = HashSet::new();
    let mut context = false;
    let mut stream = false;
    let lifetimes_declared = !method.syntax.sig.generics.params.is_empty();
    for input in &method.inputs {
        match input {
            Input::Context { syntax, .. } if std::mem::replace(&mut context, true) => {
                errors.at(&syntax.ty, "the call has one context: remove the second");
            }
            Input::Context { .. } => {}
            Input::Stream { ident, .. } if std::mem::replace(&mut stream, true) => {
                errors.at(
                    ident,
                    "a call has one stream as an argument: make its items an enum of both",
                );
            }
            Input::Stream { ident, item, .. } => {
                unique(ident, &mut seen, errors);
                Owned::check("argument", item, lifetimes_declared, errors);
            }
            Input::Argument(argument) => {
                unique(&argument.ident, &mut seen, errors);
                Owned::check("argument", argument.ty, lifetimes_declared, errors);
            }
        }
    }
}

fn unique(ident: &Ident, seen: &mut HashSet<String>, errors: &mut Errors) {
    if !seen.insert(ident.unraw().to_string()) {
        let message = format!("there is another argument `{ident}`: rename one");
        errors.at(ident, message);
    }
}

fn output(method: &Method<'_>, errors: &mut Errors) {
    let sig = &method.syntax.sig;
    let ReturnType::Type(_, ty) = &sig.output else {
        return;
    };
    let ty = match &method.outcome {
        Outcome::Stream { item, .. } => item,
        _ => &**ty,
    };
    if result_arguments(ty).is_some_and(|arguments| arguments.len() != 2) {
        let message = "the error type is hidden in this alias: write `Result<T, E>` out, with `ServiceError` for any error";
        return errors.at(ty, message);
    }
    Owned::check("result", ty, !sig.generics.params.is_empty(), errors);
}

fn batch(method: &Method<'_>, errors: &mut Errors) {
    let Some(batch) = &method.options.batch else {
        return;
    };
    if method.streams() {
        let message = "calls with streams cannot be gathered: remove `batch` or the stream";
        return errors.at_span(batch.span, message);
    }
    if !method.arguments().any(|argument| method.gathers(argument)) {
        let message = "calls are gathered along the first dimension of their tensors: give the method a `Tensor` argument, or remove `batch`";
        errors.at_span(batch.span, message);
    }
    for argument in method.arguments() {
        if !method.gathers(argument) && Parts::are_in(argument.ty) {
            let message = "calls are batched by the value of this argument, and tensors, payloads and references have none: make each tensor an argument of its own";
            errors.at(argument.ty, message);
        }
    }
}

/// Reports a `#[tensor(..)]` that applies to no tensor, or that cannot be honoured.
fn places(method: &Method<'_>, errors: &mut Errors) {
    for argument in method.arguments() {
        let Some(placed) = &argument.placed else {
            continue;
        };
        if is_reference(argument.ty) {
            let message = "a reference moves no tensor: remove `#[tensor(..)]`";
            errors.at(&placed.attr, message);
        }
    }
    let Some(placed) = &method.placed else { return };
    if matches!(method.outcome, Outcome::Nothing) {
        let message = "the method answers with nothing: put `#[tensor(..)]` on the argument that holds the tensors, or remove it";
        errors.at(&placed.attr, message);
    } else if method.outcome.is_reference() {
        let message = "the value of a reference stays where it is: remove `#[tensor(..)]`, and ask with `Remote::fetch_to`";
        errors.at(&placed.attr, message);
    }
}

fn cfg_attrs(attrs: &[syn::Attribute], errors: &mut Errors) {
    for attr in attrs.iter().filter(|attr| attr.path().is_ident("cfg_attr")) {
        let message = "cfg_attr hides from #[tensor_service] what it stands for: write the attribute itself, or #[cfg] on the whole item";
        errors.at(attr, message);
    }
}

fn name<'a>(method: &Method<'a>, ids: &mut HashMap<u32, &'a Ident>, errors: &mut Errors) {
    let (ident, name) = (method.ident(), method.name());
    if names::is_reserved(&name) {
        errors.at(
            ident,
            format!("the generated client has a `{name}` of its own: rename this method"),
        );
    }
    match ids.entry(names::method_id(&name)) {
        Entry::Vacant(place) => {
            place.insert(ident);
        }
        Entry::Occupied(other) => {
            let other = other.get().unraw();
            if other != name {
                let message = format!(
                    "`{name}` and `{other}` have the same number on the wire: rename one of them"
                );
                errors.at(ident, message);
            } else if method.cfgs().is_empty() {
                // With a `#[cfg]`, only one of them may exist: rustc knows.
                let message = format!("there is another method `{name}`: rename one of them");
                errors.at(ident, message);
            }
        }
    }
}

/// Whether a type, as written, holds tensors, payloads or references.
struct Parts(bool);

impl Parts {
    fn are_in(ty: &Type) -> bool {
        let mut parts = Self(false);
        parts.visit_type(ty);
        parts.0
    }
}

impl<'ast> Visit<'ast> for Parts {
    fn visit_path(&mut self, path: &'ast Path) {
        let last = path.segments.last();
        let parts = ["Tensor", "Payload", "Remote"];
        self.0 |= last.is_some_and(|last| parts.iter().any(|part| last.ident == part));
        visit::visit_path(self, path);
    }
}

/// What to write instead of an unnamed future or stream.
fn instead(role: &str, opaque: Opaque<'_>) -> Option<String> {
    let (Opaque::Future(ty) | Opaque::Stream(ty)) = opaque;
    let ty = ty.map_or_else(|| "T".to_owned(), signature::text);
    Some(match (role, opaque) {
        ("argument", Opaque::Stream(_)) => {
            format!("a stream is an argument of its own: write `Streaming<{ty}>`")
        }
        ("argument", Opaque::Future(_)) => return None,
        (_, Opaque::Stream(_)) => format!(
            "a stream is all that a call returns, as it is: write `fn`, and `-> impl Stream<Item = {ty}>`"
        ),
        (_, Opaque::Future(_)) => {
            format!("a call is a future without saying so: write `async fn`, and `-> {ty}`")
        }
    })
}

/// Reports the parts of a type that cannot travel to another process.
struct Owned<'e> {
    /// "argument" or "result".
    role: &'static str,
    /// The method was already told to drop its lifetimes. Reporting each use as well would not help.
    lifetimes_declared: bool,
    errors: &'e mut Errors,
}

impl<'e> Owned<'e> {
    fn check(role: &'static str, ty: &Type, lifetimes_declared: bool, errors: &'e mut Errors) {
        if let Some(message) = opaque(ty).and_then(|opaque| instead(role, opaque)) {
            return errors.at(ty, message);
        }
        Self {
            role,
            lifetimes_declared,
            errors,
        }
        .visit_type(ty);
    }
}

impl<'ast> Visit<'ast> for Owned<'_> {
    fn visit_type_reference(&mut self, reference: &'ast TypeReference) {
        let owned = match &*reference.elem {
            Type::Path(path) if path.path.is_ident("str") => "String".to_owned(),
            Type::Slice(slice) => format!("Vec<{}>", signature::text(&slice.elem)),
            elem => signature::text(elem),
        };
        let borrowed = signature::text(reference);
        let message = format!(
            "a call's {} is owned: use `{owned}` instead of `{borrowed}`",
            self.role
        );
        self.errors.at(reference, message);
    }

    fn visit_lifetime(&mut self, lifetime: &'ast Lifetime) {
        if lifetime.ident != "static" && !self.lifetimes_declared {
            let message = format!(
                "a call's {} is owned: use a type without a lifetime",
                self.role
            );
            self.errors.at(lifetime, message);
        }
    }

    fn visit_type_impl_trait(&mut self, ty: &'ast TypeImplTrait) {
        let message = format!(
            "both processes must know the type of a call's {}: name it instead of `impl Trait`",
            self.role
        );
        self.errors.at(ty, message);
    }

    fn visit_type_trait_object(&mut self, ty: &'ast TypeTraitObject) {
        let instead = match is_error(ty) {
            true => "an enum, or `ServiceError` for any error,",
            false => "an enum",
        };
        let message = format!(
            "both processes must know the type of a call's {}: use {instead} instead of `dyn Trait`",
            self.role
        );
        self.errors.at(ty, message);
    }

    fn visit_path(&mut self, path: &'ast Path) {
        match path.segments.first() {
            Some(first) if first.ident == "Self" => {
                let message = format!(
                    "the client does not know the service's type: name the {}'s type instead of `Self`",
                    self.role
                );
                self.errors.at(path, message);
            }
            _ => visit::visit_path(self, path),
        }
    }
}

/// Whether the type is written `dyn Error`, perhaps with a path and further bounds.
fn is_error(ty: &TypeTraitObject) -> bool {
    ty.bounds.iter().any(|bound| match bound {
        TypeParamBound::Trait(bound) => bound
            .path
            .segments
            .last()
            .is_some_and(|last| last.ident == "Error"),
        _ => false,
    })
}
