//! The device in a `#[tensor(..)]`. On an argument, its tensors land there at the server. On a method, its result's tensors land
//! there at the client.

use crate::report::Errors;
use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::meta::ParseNestedMeta;
use syn::{Attribute, LitStr};

const EXAMPLE: &str = "write `#[tensor(device = \"cuda:0\")]`";

/// A device, as written in the attribute.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DeviceName {
    kind: String,
    index: u32,
}

/// A `#[tensor(..)]` attribute, and its device.
pub(crate) struct Placed {
    pub(crate) attr: Attribute,
    pub(crate) place: DeviceName,
}

/// Whether the attribute is `#[tensor]`.
pub(crate) fn is_tensor_attr(attr: &Attribute) -> bool {
    attr.path().is_ident("tensor")
}

impl Placed {
    /// Reads the `#[tensor(..)]` among `attrs`. More than one is an error.
    pub(crate) fn read(attrs: &[Attribute], errors: &mut Errors) -> Option<Self> {
        let mut found = None;
        for attr in attrs.iter().filter(|attr| is_tensor_attr(attr)) {
            match DeviceName::read(attr) {
                Err(error) => errors.push(error),
                Ok(_) if found.is_some() => {
                    errors.at(
                        attr,
                        "tensors land on one device: remove the second `#[tensor(..)]`",
                    );
                }
                Ok(place) => {
                    let attr = attr.clone();
                    found = Some(Self { attr, place });
                }
            }
        }
        found
    }
}

impl DeviceName {
    fn read(attr: &Attribute) -> syn::Result<Self> {
        if !matches!(attr.meta, syn::Meta::List(_)) {
            let message = format!("on which device: {EXAMPLE}");
            return Err(syn::Error::new_spanned(attr, message));
        }
        let mut place = None;
        attr.parse_nested_meta(|meta| {
            if !meta.path.is_ident("device") {
                return Err(meta.error("unknown option: there is `device = \"..\"`"));
            }
            if place.is_some() {
                return Err(meta.error("`device` is given twice"));
            }
            place = Some(device(&meta)?);
            Ok(())
        })?;
        place.ok_or_else(|| {
            let message = format!("`device` is missing: {EXAMPLE}");
            syn::Error::new_spanned(attr, message)
        })
    }

    /// Parses a device on which a tensor can be, in the runtime's `Device` syntax.
    fn parse(text: &str) -> Option<Self> {
        let (kind, index) = text.split_once(':')?;
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let starts = kind.starts_with(|c: char| c.is_ascii_lowercase());
        if !starts || kind.len() > 15 || !kind.chars().all(is_name) {
            return None;
        }
        let kind = kind.to_owned();
        let index = index.parse().ok()?;
        // There is only one main memory.
        (kind != "cpu" || index == 0).then_some(Self { kind, index })
    }

    /// The attribute, as a user writes it.
    pub(crate) fn text(&self) -> String {
        format!("#[tensor(device = \"{}:{}\")]", self.kind, self.index)
    }

    /// The device, as a constant expression.
    pub(crate) fn expression(&self, private: &TokenStream) -> TokenStream {
        let Self { kind, index } = self;
        quote!(#private::Device::new(#private::DeviceKind::new(#kind), #index))
    }
}

/// An `Option` of the device, as a constant expression.
pub(crate) fn optional(place: Option<&DeviceName>, private: &TokenStream) -> TokenStream {
    match place {
        Some(place) => {
            let device = place.expression(private);
            quote!(::core::option::Option::Some(#device))
        }
        None => quote!(::core::option::Option::None),
    }
}

fn device(meta: &ParseNestedMeta<'_>) -> syn::Result<DeviceName> {
    let value = meta
        .value()
        .map_err(|_| meta.error(format!("on which device: {EXAMPLE}")))?;
    let parsed: syn::Result<LitStr> = value.parse();
    let literal = parsed
        .map_err(|error| syn::Error::new(error.span(), format!("a device is a text: {EXAMPLE}")))?;
    DeviceName::parse(&literal.value()).ok_or_else(|| {
        let message = format!(
            "`{}` is not a device: write a lower-case kind of at most 15 characters and an index, as in \"cuda:0\"; main memory is \"cpu:0\"",
            literal.value()
        );
        syn::Error::new_spanned(literal.to_token_stream(), message)
    })
}

#[cfg(test)]
mod tests {
    use super::DeviceName;

    #[test]
    fn a_device_is_what_the_runtime_takes_for_one() {
        let parsed = |text| DeviceName::parse(text).map(|place| (place.kind, place.index));
        assert_eq!(parsed("cuda:3"), Some(("cuda".to_owned(), 3)));
        assert_eq!(parsed("cpu:0"), Some(("cpu".to_owned(), 0)));
        assert_eq!(parsed("my_npu2:0"), Some(("my_npu2".to_owned(), 0)));
        assert_eq!(parsed("abcdefghijklmno:0").map(|(_, index)| index), Some(0));
        for wrong in [
            "",
            "cuda",
            "Cuda:0",
            ":0",
            "cuda:",
            "cuda:-1",
            "cuda:4294967296",
            "cuda:0:0",
            "0cuda:0",
            "cu-da:0",
            "abcdefghijklmnop:0",
            "cpu:1",
        ] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
    }
}
