//! Compares the macro's documentation with its expansion.

use super::tensor_service;
use crate::names::RESERVED;
use quote::quote;
use syn::{ImplItem, Item, Type};

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
