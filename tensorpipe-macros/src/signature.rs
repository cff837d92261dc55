//! Tokens as text with one fixed spacing, as a person would write them, independent of rustc's own printer. The text is part of the
//! schema, so equal tokens must give equal text.

use crate::model::{Argument, Input, Method, Outcome};
use crate::place::DeviceName;
use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};
use quote::ToTokens;
use syn::ext::IdentExt;

/// `async fn push(&self, name: String) -> u64`, without the call's context.
pub(crate) fn of(method: &Method<'_>) -> String {
    let sig = &method.syntax.sig;
    let asyncness = match &method.outcome {
        Outcome::Stream { .. } => "",
        _ => "async ",
    };
    let place =
        |placed: Option<&DeviceName>| placed.map(|place| place.text() + " ").unwrap_or_default();
    let mut out = place(method.result_place());
    out.push_str(&format!("{asyncness}fn {}(&self", sig.ident.unraw()));
    for input in &method.inputs {
        let (ident, ty, placed) = match input {
            Input::Argument(Argument { ident, ty, placed }) => (ident, text(ty), placed),
            Input::Stream {
                ident,
                item,
                placed,
            } => (ident, format!("Streaming<{}>", text(item)), placed),
            Input::Context { .. } => continue,
        };
        let placed = place(placed.as_ref().map(|placed| &placed.place));
        out.push_str(&format!(", {placed}{}: {ty}", ident.unraw()));
    }
    out.push(')');
    match (&method.outcome, &sig.output) {
        (Outcome::Stream { item, .. }, _) => {
            out.push_str(&format!(" -> impl Stream<Item = {}>", text(item)));
        }
        (_, syn::ReturnType::Type(_, ty)) => out.push_str(&format!(" -> {}", text(ty))),
        (_, syn::ReturnType::Default) => {}
    }
    out
}

/// The tokens with one fixed spacing.
pub(crate) fn text(tokens: impl ToTokens) -> String {
    let mut printer = Printer::default();
    printer.stream(tokens.to_token_stream());
    printer.out
}

#[derive(Default)]
struct Printer {
    out: String,
    /// The last token was a word, so a word that follows needs a space.
    after_word: bool,
    /// A comma was seen. It is written when something follows it.
    comma: bool,
}

impl Printer {
    fn stream(&mut self, stream: TokenStream) {
        let mut tokens = stream.into_iter();
        while let Some(token) = tokens.next() {
            match token {
                TokenTree::Ident(ident) => self.word(&ident.to_string()),
                TokenTree::Literal(literal) => self.word(&literal.to_string()),
                TokenTree::Group(group) => self.group(group.delimiter(), group.stream()),
                TokenTree::Punct(punct) => {
                    let mut sign = String::from(punct.as_char());
                    // `::` and `->` are one sign; `>>` are two.
                    if punct.spacing() == Spacing::Joint && matches!(punct.as_char(), ':' | '-') {
                        sign.extend(tokens.next().map(|token| token.to_string()));
                    }
                    self.sign(&sign);
                }
            }
        }
    }

    fn word(&mut self, word: &str) {
        self.pending_comma();
        if self.after_word || self.out.ends_with('>') {
            self.out.push(' ');
        }
        self.out.push_str(word);
        self.after_word = true;
    }

    fn sign(&mut self, sign: &str) {
        match sign {
            "," => {
                self.comma = true;
                return;
            }
            // A trailing comma has no meaning.
            ">" => self.comma = false,
            _ => self.pending_comma(),
        }
        match sign {
            "->" | "+" | "=" => self.out.push_str(&format!(" {sign} ")),
            ":" | ";" => self.out.push_str(&format!("{sign} ")),
            "'" | "&" | "*" if self.after_word => self.out.push_str(&format!(" {sign}")),
            _ => self.out.push_str(sign),
        }
        self.after_word = false;
    }

    fn group(&mut self, delimiter: Delimiter, stream: TokenStream) {
        self.pending_comma();
        let (open, close) = match delimiter {
            Delimiter::Parenthesis => ("(", ")"),
            Delimiter::Bracket => ("[", "]"),
            Delimiter::Brace => ("{", "}"),
            // A group that macro_rules leaves around `$ty`; it is not visible in the source.
            Delimiter::None => return self.stream(stream),
        };
        self.out.push_str(open);
        self.after_word = false;
        self.stream(stream);
        // A trailing comma is kept here, because it makes the tuple in `(u8,)`.
        if std::mem::take(&mut self.comma) {
            self.out.push(',');
        }
        self.out.push_str(close);
        self.after_word = false;
    }

    fn pending_comma(&mut self) {
        if std::mem::take(&mut self.comma) {
            self.out.push_str(", ");
            self.after_word = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::text;
    use proc_macro2::TokenStream;

    #[track_caller]
    fn prints(source: &str, expected: &str) {
        let tokens: TokenStream = source.parse().unwrap();
        assert_eq!(text(tokens), expected);
    }

    #[test]
    fn spacing_does_not_depend_on_the_source() {
        prints("Result < u64 ,PushError >", "Result<u64, PushError>");
        prints(
            "HashMap<String,Vec<Vec<u8>>,>",
            "HashMap<String, Vec<Vec<u8>>>",
        );
        prints(":: std::  vec ::Vec<u8>", "::std::vec::Vec<u8>");
        prints("[f32;4]", "[f32; 4]");
        prints("( u8,)", "(u8,)");
        prints("(u8 ,u16)", "(u8, u16)");
        prints("()", "()");
        prints("&   str", "&str");
        prints("Cow<'static,str>", "Cow<'static, str>");
        prints("<u8 as Tr>::Out", "<u8 as Tr>::Out");
        prints(
            "Box<dyn Fn(u8)->u16+Send+'static>",
            "Box<dyn Fn(u8) -> u16 + Send + 'static>",
        );
        prints("*const u8", "*const u8");
    }
}
