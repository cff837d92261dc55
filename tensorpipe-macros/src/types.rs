//! Types with a meaning in the signature of a call, recognised by spelling: a macro sees nothing else.

use syn::visit::{self, Visit};
use syn::{GenericArgument, Path, PathArguments, TraitBound, Type, TypeParamBound};

/// The type arguments if `ty` is a path that ends in `Result`.
pub(crate) fn result_arguments(ty: &Type) -> Option<Vec<&Type>> {
    let last = as_path(ty)?.segments.last()?;
    if last.ident != "Result" {
        return None;
    }
    let PathArguments::AngleBracketed(arguments) = &last.arguments else {
        return Some(Vec::new());
    };
    let types = arguments.args.iter().filter_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    });
    Some(types.collect())
}

/// Whether the type is written `Tensor`, by whatever path.
pub(crate) fn is_tensor(ty: &Type) -> bool {
    let last = as_path(ty).and_then(|path| path.segments.last());
    last.is_some_and(|last| last.ident == "Tensor" && last.arguments.is_none())
}

/// Whether the type is written `Remote<..>`, by whatever path.
pub(crate) fn is_reference(ty: &Type) -> bool {
    let last = as_path(ty).and_then(|path| path.segments.last());
    last.is_some_and(|last| last.ident == "Remote")
}

/// The `T` of a `Streaming<T>`.
pub(crate) fn streaming(ty: &Type) -> Option<&Type> {
    let last = as_path(ty)?.segments.last()?;
    let PathArguments::AngleBracketed(arguments) = &last.arguments else {
        return None;
    };
    match arguments.args.iter().collect::<Vec<_>>().as_slice() {
        [GenericArgument::Type(item)] if last.ident == "Streaming" => Some(item),
        _ => None,
    }
}

/// The `T` of an `impl Stream<Item = T>`, whatever other bounds it has.
pub(crate) fn stream_item(ty: &Type) -> Option<&Type> {
    let Type::ImplTrait(ty) = ungrouped(ty) else {
        return None;
    };
    ty.bounds.iter().find_map(|bound| {
        let TypeParamBound::Trait(bound) = bound else {
            return None;
        };
        let last = bound.path.segments.last()?;
        let item = || associated(&bound.path, "Item");
        (last.ident == "Stream").then(item).flatten()
    })
}

/// A future or stream without a name of its own: `impl Future<Output = T>`, `Pin<Box<dyn Stream<Item = T>>>`, `BoxStream<'_, T>`.
#[derive(Clone, Copy)]
pub(crate) enum Opaque<'a> {
    /// With the `T`, if it is written.
    Future(Option<&'a Type>),
    Stream(Option<&'a Type>),
}

/// The first such type in a type.
pub(crate) fn opaque(ty: &Type) -> Option<Opaque<'_>> {
    struct Find<'a>(Option<Opaque<'a>>);

    impl<'a> Visit<'a> for Find<'a> {
        fn visit_trait_bound(&mut self, bound: &'a TraitBound) {
            let path = &bound.path;
            let found = match path.segments.last() {
                Some(last) if last.ident == "Future" => Opaque::Future(associated(path, "Output")),
                Some(last) if last.ident == "Stream" => Opaque::Stream(associated(path, "Item")),
                _ => return visit::visit_trait_bound(self, bound),
            };
            self.0 = self.0.or(Some(found));
        }

        fn visit_path(&mut self, path: &'a Path) {
            let found = match path.segments.last() {
                Some(last) if last.ident == "BoxFuture" => Opaque::Future(last_argument(path)),
                Some(last) if last.ident == "BoxStream" => Opaque::Stream(last_argument(path)),
                _ => return visit::visit_path(self, path),
            };
            self.0 = self.0.or(Some(found));
        }
    }

    let mut find = Find(None);
    find.visit_type(ty);
    find.0
}

/// The `T` of a `Trait<output = T>`.
fn associated<'a>(path: &'a Path, output: &str) -> Option<&'a Type> {
    arguments(path).find_map(|argument| match argument {
        GenericArgument::AssocType(item) if item.ident == output => Some(&item.ty),
        _ => None,
    })
}

fn last_argument(path: &Path) -> Option<&Type> {
    let types = arguments(path).filter_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    });
    types.last()
}

/// The generic arguments of the path's last segment.
fn arguments(path: &Path) -> impl Iterator<Item = &GenericArgument> {
    let arguments = path.segments.last().map(|last| &last.arguments);
    let arguments = match arguments {
        Some(PathArguments::AngleBracketed(arguments)) => Some(arguments.args.iter()),
        _ => None,
    };
    arguments.into_iter().flatten()
}

/// `Some(by_reference)` if the type is `CallContext` or `&CallContext`.
pub(crate) fn call_context(ty: &Type) -> Option<bool> {
    match ungrouped(ty) {
        Type::Reference(reference)
            if reference.mutability.is_none() && reference.lifetime.is_none() =>
        {
            call_context(&reference.elem)
                .filter(|by_reference| !by_reference)
                .map(|_| true)
        }
        ty => {
            let last = as_path(ty)?.segments.last()?;
            (last.ident == "CallContext" && last.arguments.is_none()).then_some(false)
        }
    }
}

pub(crate) fn as_path(ty: &Type) -> Option<&Path> {
    match ungrouped(ty) {
        Type::Path(path) if path.qself.is_none() => Some(&path.path),
        _ => None,
    }
}

/// Without parentheses and without the invisible group that macro_rules puts around `$ty`.
pub(crate) fn ungrouped(ty: &Type) -> &Type {
    match ty {
        Type::Group(group) => ungrouped(&group.elem),
        Type::Paren(paren) => ungrouped(&paren.elem),
        ty => ty,
    }
}
