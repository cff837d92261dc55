//! The form of a schema that travels: owned text.

use serde::{Deserialize, Serialize};

use super::{Schema, Tracer};

/// Before the signature of a method whose calls may be retried although they may have run.
pub(super) const IDEMPOTENT: &str = "#[rpc(idempotent)] ";

/// A service as one end knows it. It may come from a peer, so nothing in it is trusted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// The service's name.
    pub service: String,
    /// Its methods.
    pub methods: Vec<MethodDescription>,
    /// The first method with a type that no call can carry, and why. It does not travel: each end finds its own.
    #[serde(skip)]
    pub(crate) unsuitable: Option<String>,
}

/// A method as one end knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MethodDescription {
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: u32,
    /// Its declaration, behind `#[rpc(idempotent)]` if it is that.
    pub signature: String,
    /// The structure of its types, with one line for each argument, result, type and field.
    pub structure: String,
    /// Types that could not be traced, and why. If there are some, only signatures are compared.
    pub untraced: Vec<String>,
}

impl Description {
    pub(super) fn of(schema: &Schema) -> Self {
        let mut unsuitable = None;
        let methods = schema.methods.iter().map(|method| {
            let mut tracer = Tracer::new();
            (method.structure)(&mut tracer);
            if let (None, Some(why)) = (&unsuitable, &tracer.unsuitable) {
                unsuitable = Some(format!("method `{}`, {why}", method.name));
            }
            let (structure, untraced) = tracer.finish();
            let idempotent = if method.idempotent { IDEMPOTENT } else { "" };
            MethodDescription {
                name: method.name.to_owned(),
                id: method.id,
                signature: format!("{idempotent}{}", method.signature),
                structure,
                untraced,
            }
        });
        Self {
            service: schema.service.to_owned(),
            methods: methods.collect(),
            unsuitable,
        }
    }
}
