//! The schema of a service: what it offers, in a form that both ends can compare before the first call.
//!
//! The macro writes a [`Schema`] as a constant: names, signatures, and for each method a function that visits its types.
//! [`Schema::describe`] traces them, once per process, into a [`Description`] that travels. [`compare`] says where two descriptions
//! disagree. A method that only one end has is no disagreement: calls of it are refused.

mod compare;
mod description;
mod probe;
mod shape;
mod trace;
mod tracer;

pub use compare::{Difference, Mismatch, compare};
pub use description::{Description, MethodDescription};
#[doc(hidden)]
pub use tracer::Tracer;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tensorpipe::fork::PerProcess;
use tensorpipe::{Device, Misuse};

use crate::lock::lock;

/// A service as its trait defines it.
#[derive(Debug)]
pub struct Schema {
    /// The trait's name.
    pub service: &'static str,
    /// Its methods, in order.
    pub methods: &'static [Method],
}

/// A method of a service.
#[derive(Debug)]
pub struct Method {
    /// The name of its service.
    pub service: &'static str,
    /// Its name.
    pub name: &'static str,
    /// Its identifier on the wire: a hash of its name.
    pub id: u32,
    /// Its declaration with normalised whitespace, without the call context.
    pub signature: &'static str,
    /// Whether a call may be retried although it may have run.
    pub idempotent: bool,
    /// Whether it returns a [`Remote`](crate::Remote), which other calls may take as an argument before it has returned.
    pub promises: bool,
    /// Which streams it has.
    #[doc(hidden)]
    pub streams: Streams,
    /// Where its attributes want tensors.
    #[doc(hidden)]
    pub places: Places,
    /// Shows the type of each argument and result to the tracer.
    #[doc(hidden)]
    pub structure: fn(&mut Tracer),
}

/// Which streams a method has.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Streams {
    /// One of its arguments is a stream.
    pub argument: bool,
    /// It answers with a stream.
    pub reply: bool,
}

/// Where the `#[tensor(device = "…")]`s of a method want tensors.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// Of plain arguments, by name: devices at the server.
    pub arguments: &'static [(&'static str, Device)],
    /// Of the stream argument: a device at the server.
    pub stream: Option<Device>,
    /// Of the result: a device at the client.
    pub result: Option<Device>,
}

impl Places {
    /// The places of a method without any.
    pub(crate) const NOWHERE: Self = Self {
        arguments: &[],
        stream: None,
        result: None,
    };

    /// The argument whose attribute names this device, if there is only one.
    pub(crate) fn name(&self, device: Device) -> Option<String> {
        let mut here = self.arguments.iter().filter(|(_, place)| *place == device);
        let (name, _) = here.next()?;
        here.next().is_none().then(|| format!("argument `{name}`"))
    }
}

impl Streams {
    pub(crate) fn any(self) -> bool {
        self.argument || self.reply
    }
}

impl Schema {
    /// The description of this service, with its types traced. Traced at the first call, remembered afterwards.
    pub fn describe(&'static self) -> Arc<Description> {
        // A constant has no room for a cache, so this one is keyed by its address, which never changes. It is per process, because
        // a forked child must not find it locked.
        static KNOWN: PerProcess<Mutex<BTreeMap<usize, Arc<Description>>>> = PerProcess::new();
        let key = std::ptr::from_ref(self).addr();
        let known = KNOWN.get(Mutex::default);
        if let Some(description) = lock(known).get(&key) {
            return Arc::clone(description);
        }
        // Not under the lock: tracing runs the `Deserialize` of the user's types.
        let description = Arc::new(Description::of(self));
        Arc::clone(lock(known).entry(key).or_insert(description))
    }

    /// Checks that calls can carry all types of the service. Otherwise each call of such a method would fail when it is decoded.
    ///
    /// # Errors
    /// Names the first type that calls cannot carry.
    pub(crate) fn check(&'static self) -> Result<(), Misuse> {
        match &self.describe().unsuitable {
            None => Ok(()),
            Some(why) => Err(Misuse::Other(format!("service `{}`, {why}", self.service))),
        }
    }
}

#[doc(hidden)]
/// The id of a method: FNV-1a, 32 bits, of its name.
pub const fn method_id(name: &str) -> u32 {
    let bytes = name.as_bytes();
    let mut hash = 0x811c_9dc5_u32;
    let mut i = 0;
    while i < bytes.len() {
        hash = (hash ^ bytes[i] as u32).wrapping_mul(0x0100_0193);
        i += 1;
    }
    hash
}

#[cfg(test)]
mod tests;
