//! The names that the expansion makes up.
//!
//! Items are named after the trait (`FooClient`, `FooService`, `FooClientRequest`). Local variables come from [`local`], so they
//! never clash with an argument of the same spelling.

use crate::model::Method;
use proc_macro2::{Ident, Span};
use quote::format_ident;
use std::collections::HashSet;
use syn::ext::IdentExt;

/// The items generated for one trait.
pub(crate) struct Names {
    pub(crate) client: Ident,
    pub(crate) service: Ident,
    /// A call as a value, for tarpc's stubs. It is not named `FooRequest`, because users often name argument types so.
    pub(crate) request: Ident,
    pub(crate) response: Ident,
}

impl Names {
    pub(crate) fn of(service: &Ident) -> Self {
        Self {
            client: format_ident!("{service}Client"),
            service: format_ident!("{service}Service"),
            request: format_ident!("{service}ClientRequest"),
            response: format_ident!("{service}ClientResponse"),
        }
    }
}

/// A local variable of the expansion, invisible to the user's tokens.
pub(crate) fn local(name: &str) -> Ident {
    Ident::new(name, Span::mixed_site())
}

/// The type parameter of the generated service. Type parameters have no hygiene, and its `impl` names the user's types: a plain `S`
/// would capture a user's type `S`.
pub(crate) fn implementor() -> Ident {
    Ident::new("__Service", Span::mixed_site())
}

/// The items of each generated client besides the methods of its trait, in order. The macro's documentation lists them.
pub(crate) const RESERVED: [&str; 11] = [
    "SCHEMA",
    "clone",
    "connect",
    "connect_with",
    "connection",
    "on",
    "with_deadline",
    "with_device_map",
    "with_requirement",
    "with_stats",
    "with_trace",
];

/// Whether the generated client has an item of this name already.
pub(crate) fn is_reserved(method: &str) -> bool {
    RESERVED.contains(&method)
}

/// A method's number on the wire: FNV-1a, 32 bits, of its name. Must stay equal to the runtime's `method_id`.
pub(crate) fn method_id(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |hash: u32, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

/// One enum variant for each method: its name in camel case, unique among all of them.
pub(crate) fn variants(methods: &[Method<'_>]) -> Vec<Ident> {
    let mut taken = HashSet::new();
    methods
        .iter()
        .map(|method| {
            let ident = &method.syntax.sig.ident;
            let mut variant = camel_case(&ident.unraw().to_string());
            while !taken.insert(variant.clone()) {
                variant.push('_');
            }
            Ident::new(&variant, ident.span())
        })
        .collect()
}

/// `add_one` becomes `AddOne`. A result that is no identifier (`Self`, a leading digit) gets a prefix.
fn camel_case(name: &str) -> String {
    let mut camel = String::with_capacity(name.len());
    for word in name.split('_') {
        let mut letters = word.chars();
        camel.extend(letters.next().into_iter().flat_map(char::to_uppercase));
        camel.push_str(letters.as_str());
    }
    match syn::parse_str::<Ident>(&camel) {
        Ok(_) => camel,
        Err(_) => format!("Method{camel}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{camel_case, method_id};

    #[test]
    fn camel_case_is_always_an_identifier() {
        assert_eq!(camel_case("add_one"), "AddOne");
        assert_eq!(camel_case("Push"), "Push");
        assert_eq!(camel_case("self_"), "MethodSelf");
        assert_eq!(camel_case("_1"), "Method1");
        assert_eq!(camel_case("__"), "Method");
        assert_eq!(camel_case("match"), "Match");
    }

    #[test]
    fn method_id_is_fnv_1a() {
        // From the reference vectors of the FNV authors.
        assert_eq!(method_id(""), 0x811c_9dc5);
        assert_eq!(method_id("a"), 0xe40c_292c);
        assert_eq!(method_id("foobar"), 0xbf9c_f968);
    }
}
