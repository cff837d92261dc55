//! The arguments of the attribute itself: `#[tensor_service(crate = "path")]`.

use crate::report::Errors;
use proc_macro2::TokenStream;
use quote::quote;
use syn::meta::{self, ParseNestedMeta};
use syn::parse::Parser;
use syn::{LitStr, Path};

/// The attribute's arguments.
pub(crate) struct Args {
    /// Path of the runtime's private module; every generated path into the runtime begins with it.
    pub(crate) private: TokenStream,
}

impl Args {
    /// Reads the arguments. A wrong one is reported, and the default taken.
    pub(crate) fn parse(tokens: TokenStream, errors: &mut Errors) -> Self {
        let mut runtime = None;
        let parser = meta::parser(|meta| {
            if !meta.path.is_ident("crate") {
                return Err(meta.error("unknown argument: the only one is `crate = \"path\"`"));
            }
            if runtime.is_some() {
                return Err(meta.error("`crate` is given twice"));
            }
            runtime = Some(path(&meta)?);
            Ok(())
        });
        if let Err(error) = parser.parse2(tokens) {
            errors.push(error);
        }
        let private = match runtime {
            Some(path) => quote!(#path::__private),
            None => quote!(::tensorpipe_rpc::__private),
        };
        Self { private }
    }
}

fn path(meta: &ParseNestedMeta<'_>) -> syn::Result<Path> {
    let literal: LitStr = meta.value()?.parse()?;
    literal.parse_with(Path::parse_mod_style).map_err(|_| {
        let message = "this is not a path: write, for example, crate = \"::my_crate::rpc\"";
        syn::Error::new(literal.span(), message)
    })
}
