//! The options in a method's `#[rpc(..)]`.

use crate::report::Errors;
use proc_macro2::Span;
use syn::meta::ParseNestedMeta;
use syn::parse::Parse;
use syn::spanned::Spanned;
use syn::{Attribute, LitInt, LitStr, Token};

/// The longest `max_wait`: an hour, in nanoseconds.
const LONGEST_WAIT: u64 = 3_600_000_000_000;

/// The options of a method.
#[derive(Default)]
pub(crate) struct Options {
    pub(crate) idempotent: bool,
    /// Set if its calls are batched.
    pub(crate) batch: Option<Batch>,
}

/// `batch(max_size = 32, max_wait = "2ms", concurrency = 1)`.
pub(crate) struct Batch {
    /// The span of the word `batch`.
    pub(crate) span: Span,
    pub(crate) max_size: u64,
    /// In nanoseconds.
    pub(crate) max_wait: u64,
    pub(crate) concurrency: usize,
}

impl Options {
    /// Reads every `#[rpc(..)]`.
    pub(crate) fn read(attrs: &[Attribute], errors: &mut Errors) -> Self {
        let mut options = Self::default();
        for attr in attrs.iter().filter(|attr| attr.path().is_ident("rpc")) {
            let read = attr.parse_nested_meta(|meta| {
                if meta.path.is_ident("idempotent") {
                    if !meta.input.is_empty() && !meta.input.peek(Token![,]) {
                        let message = "`idempotent` takes no value: write `#[rpc(idempotent)]`";
                        return Err(meta.error(message));
                    }
                    options.idempotent = true;
                    Ok(())
                } else if meta.path.is_ident("batch") {
                    if options.batch.is_some() {
                        return Err(meta.error("`batch` is given twice"));
                    }
                    options.batch = Some(Batch::read(&meta)?);
                    Ok(())
                } else {
                    Err(meta.error("unknown option: there are `idempotent` and `batch(..)`"))
                }
            });
            if let Err(error) = read {
                errors.push(error);
            }
        }
        options
    }
}

impl Batch {
    fn read(meta: &ParseNestedMeta<'_>) -> syn::Result<Self> {
        let example = "write `batch(max_size = 32, max_wait = \"2ms\")`";
        if !meta.input.peek(syn::token::Paren) {
            return Err(meta.error(format!(
                "how many rows, and how long a call waits: {example}"
            )));
        }
        let (mut max_size, mut max_wait, mut concurrency) = (None, None, None);
        meta.parse_nested_meta(|meta| {
            if meta.path.is_ident("max_size") {
                once(&meta, &mut max_size, |meta| {
                    number(meta, "the rows of a batch")
                })
            } else if meta.path.is_ident("max_wait") {
                once(&meta, &mut max_wait, wait)
            } else if meta.path.is_ident("concurrency") {
                once(&meta, &mut concurrency, |meta| {
                    number(meta, "the batches that run at once")
                })
            } else {
                let options = "there are `max_size`, `max_wait` and `concurrency`";
                Err(meta.error(format!("unknown option of `batch`: {options}")))
            }
        })?;
        let (Some(max_size), Some(max_wait)) = (max_size, max_wait) else {
            let missing = match max_size {
                None => "max_size",
                Some(_) => "max_wait",
            };
            return Err(meta.error(format!("`{missing}` is missing: {example}")));
        };
        Ok(Self {
            span: meta.path.span(),
            max_size: u64::from(max_size),
            max_wait,
            concurrency: concurrency.unwrap_or(1) as usize,
        })
    }
}

fn once<T>(
    meta: &ParseNestedMeta<'_>,
    place: &mut Option<T>,
    read: impl FnOnce(&ParseNestedMeta<'_>) -> syn::Result<T>,
) -> syn::Result<()> {
    if place.is_some() {
        return Err(meta.error("this option is given twice"));
    }
    *place = Some(read(meta)?);
    Ok(())
}

/// A number, at least 1.
fn number(meta: &ParseNestedMeta<'_>, what: &str) -> syn::Result<u32> {
    let message = format!("{what} are a number from 1 to {}", u32::MAX);
    let literal: LitInt = literal(meta, &message)?;
    match literal.base10_parse() {
        Ok(number @ 1..) => Ok(number),
        _ => Err(syn::Error::new(literal.span(), message)),
    }
}

fn wait(meta: &ParseNestedMeta<'_>) -> syn::Result<u64> {
    let message =
        "this is no time of at most an hour: write, for example, \"500us\", \"2ms\" or \"1s\"";
    let literal: LitStr = literal(meta, message)?;
    nanoseconds(&literal.value()).ok_or_else(|| syn::Error::new(literal.span(), message))
}

/// The value of an option. `message` says what it may be: syn would say "expected string literal" alone.
fn literal<L: Parse>(meta: &ParseNestedMeta<'_>, message: &str) -> syn::Result<L> {
    let parsed: syn::Result<L> = meta.value()?.parse();
    parsed.map_err(|error| syn::Error::new(error.span(), message))
}

/// `"2ms"` in nanoseconds.
fn nanoseconds(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let unit = match unit.trim_start() {
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return None,
    };
    let time = number.parse::<u64>().ok()?.checked_mul(unit)?;
    (time <= LONGEST_WAIT).then_some(time)
}

#[cfg(test)]
mod tests {
    use super::nanoseconds;

    #[test]
    fn a_wait_is_a_whole_number_and_a_unit() {
        assert_eq!(nanoseconds("2ms"), Some(2_000_000));
        assert_eq!(nanoseconds("500 us"), Some(500_000));
        assert_eq!(nanoseconds("0s"), Some(0));
        assert_eq!(nanoseconds("3600s"), Some(3_600_000_000_000));
        for wrong in [
            "",
            "2",
            "ms",
            "-1ms",
            "1.5ms",
            "2m",
            "3601s",
            "2ms ",
            "99999999999999999999s",
        ] {
            assert_eq!(nanoseconds(wrong), None, "{wrong}");
        }
    }
}
