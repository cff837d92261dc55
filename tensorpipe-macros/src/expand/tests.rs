//! The whole expansion of one trait, compared with a file that people read in review.
//!
//! `UPDATE_EXPANSION=1 cargo test -p tensorpipe-macros expansion` writes the file anew.

use super::tensor_service;
use crate::names::RESERVED;
use quote::quote;
use std::path::Path;
use syn::{ImplItem, Item, Type};

#[test]
fn expansion_is_what_was_reviewed() {
    let expanded = tensor_service(
        quote!(),
        quote! {
            /// Turns text into vectors.
            pub trait Embedder: Debug {
                /// Embeds one text.
                #[rpc(idempotent)]
                async fn embed(&self, text: String, context: &CallContext) -> Result<Tensor, Refused>;

                #[rpc(batch(max_size = 32, max_wait = "2ms"))]
                async fn encode(&self, ids: Tensor, layer: u32, context: &CallContext) -> Result<Tensor, Refused>;

                #[cfg(feature = "gpu")]
                #[deprecated]
                async fn size(&self, r#type: Vec<u8>, #[tensor(device = "cuda:1")] x: Tensor) -> u64 {
                    0
                }

                #[tensor(device = "cuda:0")]
                fn sample(&self, seed: u64, #[tensor(device = "cuda:1")] prompts: Streaming<Tensor>) -> impl Stream<Item = Result<Token, Refused>>;
            }
        },
    );
    let expanded = syn::parse2(expanded).expect("the expansion is a file of items");
    let expanded = prettyplease::unparse(&expanded);

    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/expansion/embedder.rs");
    if std::env::var_os("UPDATE_EXPANSION").is_some() {
        std::fs::write(&path, &expanded).unwrap();
    }
    let reviewed = std::fs::read_to_string(&path).unwrap();
    assert!(
        expanded == reviewed,
        "the expansion changed: run again with UPDATE_EXPANSION=1 and read the difference\n{expanded}"
    );
}

#[test]
fn the_macros_page_lists_what_each_client_has() {
    let expanded = tensor_service(
        quote!(),
        quote! {
            trait Plain {
                async fn own(&self);
            }
        },
    );
    let file: syn::File = syn::parse2(expanded).unwrap();
    let of_client = |item| match item {
        Item::Impl(item) if item.trait_.is_none() => match &*item.self_ty {
            Type::Path(path) if path.path.is_ident("PlainClient") => Some(item.items),
            _ => None,
        },
        _ => None,
    };
    let items = file.items.into_iter().filter_map(of_client).flatten();
    let mut names: Vec<String> = items
        .map(|item| match item {
            ImplItem::Fn(item) => item.sig.ident.to_string(),
            ImplItem::Const(item) => item.ident.to_string(),
            _ => panic!("neither a method nor a constant"),
        })
        .filter(|name| name != "own")
        .chain(["clone".to_owned()])
        .collect();
    names.sort();
    assert_eq!(names, RESERVED);

    let page = include_str!("../lib.rs").lines();
    let table = page.skip_while(|line| *line != "/// # The client").skip(1);
    let table: String = table
        .take_while(|line| !line.starts_with("/// # "))
        .collect();
    for name in RESERVED {
        let row = |end| table.contains(&format!("| `{name}{end}"));
        assert!(row("(") || row("`"), "the page does not list `{name}`");
    }
}
