//! The travelling form of a schema: owned text, hashed in a documented way.

use serde::{Deserialize, Serialize};

use super::{Schema, Tracer};

/// A service as one end knows it. May come from a peer: nothing in it is trusted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// The service's name.
    pub service: String,
    /// Its methods.
    pub methods: Vec<MethodDescription>,
    /// The first method with a type that no call can carry, and why. Each end finds its own.
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
    /// Its declaration.
    pub signature: String,
    /// What its types are made of, one line per argument, result, type and field.
    pub structure: String,
    /// Which of its types could not be traced and why; then only signatures are compared.
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
            MethodDescription {
                name: method.name.to_owned(),
                id: method.id,
                signature: method.signature.to_owned(),
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

    /// Equal for descriptions that agree in everything but the order of methods and the reasons in `untraced`.
    ///
    /// FNV-1a, 128 bits, over the service's name and then, sorted by name, each method's name, signature and
    /// structure; before each of these its length in bytes as a little-endian `u64`. No defence against a forger:
    /// it saves honest peers the exchange of descriptions.
    pub fn fingerprint(&self) -> u128 {
        let mut methods: Vec<_> = self.methods.iter().collect();
        methods.sort_by(|a, b| a.name.cmp(&b.name));
        let mut hash = Fnv128::new();
        hash.text(&self.service);
        for method in methods {
            hash.text(&method.name);
            hash.text(&method.signature);
            hash.text(&method.structure);
        }
        hash.0
    }
}

pub(super) struct Fnv128(pub(super) u128);

impl Fnv128 {
    pub(super) fn new() -> Self {
        Self(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u128::from(*byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013b);
        }
    }

    fn text(&mut self, text: &str) {
        self.bytes(&(text.len() as u64).to_le_bytes());
        self.bytes(text.as_bytes());
    }
}
