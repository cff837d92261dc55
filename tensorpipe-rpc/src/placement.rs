//! Where the tensors of a call land, decided before their bytes move.
//!
//! | who says so | arguments | results |
//! |---|---|---|
//! | `#[tensor(device = "…")]` in the trait | both ends know it | both ends know it |
//! | the caller's [`DeviceMap`] | the caller alone needs it | travels behind the call's header |
//! | nobody | the receiver's choice | the receiver's choice |
//!
//! The sender names each tensor's target ([`Placement::name_targets`]), and the pipe chooses a channel for it. The receiver asks
//! for the same place ([`ReceivePlacement::allocation`]), and checks where the tensor has arrived ([`ReceivePlacement::check`]).
//! Invariant: a tensor is where it was asked to be, or there is an error.
//!
//! - Both ends know an attribute from the method's signature, so it does not travel. A client's map for results travels behind the
//!   call's header: no extra round trip, and no state to keep in step.
//! - A peer's claim about a device is not believed. A device that the peer names and this end lacks is an error.
//! - The end that asked gets the error. `FailureCode::NoPlace` is about arguments: the method has not run. `NoPlaceForResult` is
//!   about a result.
//! - A call without placements costs one test of an `Option` at each step.

use std::fmt;
use std::sync::{Arc, Mutex};

use rustc_hash::FxHashMap;
use tensorpipe::{
    Allocation, Descriptor, Device, DeviceKind, Error, Incoming, Message, Misuse, Place, Route,
    Tensor,
};

use crate::codec::Encoded;
use crate::lock::lock;
use crate::schema::Method;

/// Pairs of devices, the client's and the server's. A tensor of the arguments on the client's device lands on the server's, and a
/// tensor of the result the other way round. Given to a generated client's `with_device_map`.
///
/// Each device occurs once on its side. A tensor on a device outside the map lands where its receiver wants it, as without a map. A
/// method's own `#[tensor(device = "…")]` overrides the map.
///
/// If a tensor cannot land there, the call fails with [`CallError::NoPlace`](crate::CallError::NoPlace): before the method runs for
/// an argument, afterwards for a result.
///
/// ```
/// use tensorpipe::{Device, DeviceKind};
/// use tensorpipe_rpc::DeviceMap;
///
/// let gpu = |index| Device::new(DeviceKind::CUDA, index);
/// let map = DeviceMap::new([(gpu(0), gpu(1)), (gpu(1), gpu(0))])?;
/// assert_eq!(map.to_string(), "cuda:0 = cuda:1, cuda:1 = cuda:0");
/// assert!(DeviceMap::new([(gpu(0), gpu(1)), (gpu(2), gpu(1))]).is_err());
/// # Ok::<(), tensorpipe::Misuse>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceMap {
    /// Client device, server device.
    pairs: Arc<[(Device, Device)]>,
    /// Server device, client device.
    back: Arc<[(Device, Device)]>,
}

impl DeviceMap {
    /// How many devices a map may name: a map travels with each call.
    pub const MAX: usize = 64;

    /// Makes a map of pairs: a device of the client's, and the server's device for it.
    ///
    /// # Errors
    /// [`Misuse::Config`] if one side names a device twice, or there are more than [`DeviceMap::MAX`] pairs.
    pub fn new(pairs: impl IntoIterator<Item = (Device, Device)>) -> Result<Self, Misuse> {
        let pairs: Arc<[_]> = pairs.into_iter().collect();
        let wrong = |wanted: &str, found: String| Misuse::Config {
            what: "a device map",
            wanted: wanted.to_owned(),
            found,
        };
        if pairs.len() > Self::MAX {
            let found = format!("{} pairs", pairs.len());
            return Err(wrong("at most 64 pairs long", found));
        }
        for (i, (here, there)) in pairs.iter().enumerate() {
            let mut before = pairs[..i].iter();
            if let Some((a, b)) = before.find(|(a, b)| a == here || b == there) {
                let (device, side) = match a == here {
                    true => (a, "client"),
                    false => (b, "server"),
                };
                let found = format!("{device} of the {side} twice");
                return Err(wrong("one-to-one", found));
            }
        }
        let back = pairs.iter().map(|(here, there)| (*there, *here)).collect();
        Ok(Self { pairs, back })
    }

    /// The pairs: a device of the client's, and the server's device for it.
    pub fn pairs(&self) -> &[(Device, Device)] {
        &self.pairs
    }
}

impl fmt::Display for DeviceMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (here, there)) in self.pairs.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{here} = {there}")?;
        }
        Ok(())
    }
}

/// Where the tensors of one direction are to land.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// All of them.
    All(Device),
    /// By the tensor's device: the sender's, and the receiver's for it.
    Each(Arc<[(Device, Device)]>),
}

impl Placement {
    /// Where a tensor on device `source` lands; `None` leaves it to the receiver.
    fn of(&self, source: Device) -> Option<Device> {
        match self {
            Self::All(device) => Some(*device),
            Self::Each(pairs) => {
                let found = pairs.iter().find(|(from, _)| *from == source);
                found.map(|(_, to)| *to)
            }
        }
    }

    /// Names the target of each tensor that has none yet.
    pub(crate) fn name_targets(&self, encoded: &mut Encoded) {
        let Encoded {
            tensors, targets, ..
        } = encoded;
        targets.resize(tensors.len(), None);
        for (target, tensor) in targets.iter_mut().zip(tensors) {
            *target = target.or_else(|| self.of(tensor.device()));
        }
    }
}

/// The placements of one call.
#[derive(Clone, Debug)]
pub(crate) struct CallPlacement {
    /// For its arguments, besides their attributes.
    pub(crate) arguments: Option<Placement>,
    /// For its stream argument.
    pub(crate) stream: Option<Placement>,
    /// For its results.
    pub(crate) results: Option<Arc<ReceivePlacement>>,
    /// Whether the server must be told about `results`. It knows its methods' attributes.
    sends_results: bool,
}

impl CallPlacement {
    /// The placements of a call of `method` through a client with this map. `None` for nearly all calls.
    pub(crate) fn of(method: &Method, map: Option<&DeviceMap>) -> Option<Arc<Self>> {
        let (stream, result) = (method.places.stream, method.places.result);
        if map.is_none() && stream.is_none() && result.is_none() {
            return None;
        }
        let there = map.map(|map| Placement::Each(map.pairs.clone()));
        let here = map.map(|map| Placement::Each(map.back.clone()));
        let results = result.map(Placement::All).or(here);
        Some(Arc::new(Self {
            stream: stream.map(Placement::All).or_else(|| there.clone()),
            arguments: there,
            sends_results: map.is_some() && result.is_none(),
            results: results.map(ReceivePlacement::new),
        }))
    }

    /// The placements of a value that is fetched.
    pub(crate) fn of_fetched(device: Device) -> Arc<Self> {
        Arc::new(Self {
            arguments: None,
            stream: None,
            results: Some(ReceivePlacement::new(Placement::All(device))),
            sends_results: true,
        })
    }

    /// A copy for another attempt, which reads other messages.
    pub(crate) fn of_attempt(&self) -> Arc<Self> {
        let results = self.results.as_ref();
        let results = results.map(|results| ReceivePlacement::new(results.placement.clone()));
        Arc::new(Self {
            results,
            ..self.clone()
        })
    }

    /// Encodes where results are to land, for the bytes behind the call's header. `None` if the server knows.
    pub(crate) fn encode_results(&self) -> Option<Vec<u8>> {
        let results = self.results.as_ref().filter(|_| self.sends_results)?;
        let mut out = vec![0; 2];
        match &results.placement {
            Placement::All(device) => put_device(&mut out, *device),
            Placement::Each(pairs) => {
                for (from, to) in pairs.iter() {
                    put_device(&mut out, *from);
                    put_device(&mut out, *to);
                }
            }
        }
        let len = (out.len() - 2) as u16;
        out[..2].copy_from_slice(&len.to_le_bytes());
        Some(out)
    }

    /// Fails if no channel of this route can bring results to the wanted device.
    pub(crate) fn check(&self, route: &Route) -> Result<(), Misuse> {
        let Some(Placement::All(device)) = self.results.as_ref().map(|results| &results.placement)
        else {
            return Ok(());
        };
        let mut pairs = route.channels.iter().flat_map(|channel| &channel.pairs);
        if *device == Device::CPU || pairs.any(|(ours, _)| ours == device) {
            return Ok(());
        }
        Err(Misuse::OutOfReach {
            what: "the result".to_owned(),
            device: *device,
            reason: "no channel of this pipe brings tensors there; `Pipe::route` says which there are and why not others"
                .to_owned(),
        })
    }
}

/// Where incoming tensors are to land, and the check that they did.
#[derive(Debug)]
pub(crate) struct ReceivePlacement {
    placement: Placement,
    /// Messages being read, by number, with the wanted device of each tensor.
    reading: Mutex<FxHashMap<u64, Box<[Option<Device>]>>>,
}

impl ReceivePlacement {
    pub(crate) fn new(placement: Placement) -> Arc<Self> {
        Arc::new(Self {
            placement,
            reading: Mutex::default(),
        })
    }

    /// Where the tensors of message number `message` are read to.
    fn allocation(&self, message: u64, descriptor: &Descriptor) -> Allocation {
        let tensors = descriptor.tensors.iter();
        let wanted: Box<[_]> = tensors
            .map(|tensor| self.placement.of(tensor.source))
            .collect();
        let places = wanted.iter().map(|device| match device {
            Some(device) => Place::On(*device),
            None => Place::Pool,
        });
        let allocation = Allocation {
            payloads: Vec::new(),
            tensors: places.collect(),
        };
        if wanted.iter().any(Option::is_some) {
            lock(&self.reading).insert(message, wanted);
        }
        allocation
    }

    /// Reads a message, with its tensors where they are to land, if somebody said so.
    pub(crate) fn accept(
        this: Option<&Self>,
        incoming: Incoming,
    ) -> Option<Result<Message, Error>> {
        match this {
            None => incoming.accept(),
            Some(this) => {
                let allocation = this.allocation(incoming.id(), incoming.descriptor());
                incoming.accept_into(allocation)
            }
        }
    }

    /// Checks where a message's tensors are: a peer may have sent them elsewhere than it said. `whole` names them in errors.
    pub(crate) fn check(
        &self,
        number: u64,
        message: Result<Message, Error>,
        whole: &str,
    ) -> Result<Message, Error> {
        let Some(wanted) = lock(&self.reading).remove(&number) else {
            return message;
        };
        let name = |tensor| tensor_of(whole, tensor, wanted.len());
        let message = message.map_err(|error| naming(error, |tensor| Some(name(tensor))))?;
        let tensors = message.tensors.iter().zip(&wanted).enumerate();
        for (number, (part, wanted)) in tensors {
            if let Some(wanted) = wanted {
                check_device(&part.tensor, *wanted, || name(number))?;
            }
        }
        Ok(message)
    }
}

/// The name of tensor number `tensor` of `count` in a value.
pub(crate) fn tensor_of(whole: &str, tensor: usize, count: usize) -> String {
    match count {
        1 => whole.to_owned(),
        _ => format!("tensor {tensor} of {whole}"),
    }
}

/// Replaces a tensor's number, as the pipe's errors have it, by a name.
pub(crate) fn naming(mut error: Error, name: impl FnOnce(usize) -> Option<String>) -> Error {
    let named = |what: &str| {
        let numbered = what.strip_prefix("tensor ")?;
        let end = numbered.find(' ').unwrap_or(numbered.len());
        let (number, rest) = numbered.split_at(end);
        Some(name(number.parse().ok()?)? + rest)
    };
    match &mut error {
        Error::Misuse(Misuse::OutOfReach { what, .. }) => {
            if let Some(named) = named(what) {
                *what = named;
            }
        }
        Error::Misuse(Misuse::NotAsRequired { what, .. }) => {
            if let Some(named) = named(what) {
                *what = named.into();
            }
        }
        Error::Unsent { what, .. } => {
            if let Some(named) = named(what) {
                *what = named.into();
            }
        }
        _ => {}
    }
    error
}

/// Checks that a tensor that has arrived is on the wanted device.
pub(crate) fn check_device(
    tensor: &Tensor,
    wanted: Device,
    what: impl FnOnce() -> String,
) -> Result<(), Misuse> {
    if tensor.device() == wanted {
        return Ok(());
    }
    Err(Misuse::OutOfReach {
        what: what(),
        device: wanted,
        reason: format!(
            "the other end has sent it to {}, and not where it was asked to; see which version it is of",
            tensor.device()
        ),
    })
}

/// As in the pipe's own frames: the length of the kind's name, the name, the index; one zero for main memory.
fn put_device(out: &mut Vec<u8>, device: Device) {
    if device == Device::CPU {
        return out.push(0);
    }
    let kind = device.kind.as_str().as_bytes();
    out.push(kind.len() as u8);
    out.extend_from_slice(kind);
    out.extend_from_slice(&device.index.to_le_bytes());
}

fn take_device(bytes: &mut &[u8]) -> Option<Device> {
    let (len, rest) = bytes.split_first()?;
    if *len == 0 {
        *bytes = rest;
        return Some(Device::CPU);
    }
    let (kind, rest) = rest.split_at_checked(usize::from(*len))?;
    let (index, rest) = rest.split_first_chunk()?;
    *bytes = rest;
    let kind = DeviceKind::parse(std::str::from_utf8(kind).ok()?).ok()?;
    Some(Device::new(kind, u32::from_le_bytes(*index)))
}

/// Where a caller wants its results: one device for all of them, or pairs.
pub(crate) fn decode_results(mut bytes: &[u8]) -> Option<Placement> {
    let mut devices = Vec::new();
    while !bytes.is_empty() {
        if devices.len() == 2 * DeviceMap::MAX {
            return None;
        }
        devices.push(take_device(&mut bytes)?);
    }
    match devices.as_chunks::<2>() {
        ([], [device]) => Some(Placement::All(*device)),
        (pairs, []) => Some(Placement::Each(
            pairs.iter().map(|[from, to]| (*from, *to)).collect(),
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use tensorpipe::{DType, TensorDescriptor};

    use super::*;
    use crate::schema;

    const fn gpu(index: u32) -> Device {
        Device::new(DeviceKind::CUDA, index)
    }

    fn method(stream: Option<Device>, result: Option<Device>) -> Method {
        Method {
            places: schema::Places {
                stream,
                result,
                ..schema::Places::NOWHERE
            },
            ..crate::remote::FETCH
        }
    }

    #[test]
    fn a_map_is_one_to_one_and_says_which_device_is_not() {
        let twice_here = DeviceMap::new([(gpu(0), gpu(1)), (gpu(0), gpu(2))]).unwrap_err();
        assert!(
            twice_here
                .to_string()
                .contains("cuda:0 of the client twice"),
            "{twice_here}"
        );
        let twice_there = DeviceMap::new([(gpu(0), gpu(1)), (gpu(2), gpu(1))]).unwrap_err();
        assert!(
            twice_there
                .to_string()
                .contains("cuda:1 of the server twice"),
            "{twice_there}"
        );
        let many = |n| DeviceMap::new((0..n).map(|i| (gpu(i), gpu(i))));
        assert!(many(64).is_ok() && many(65).is_err());
    }

    #[test]
    fn a_call_without_any_wish_has_nothing_of_it() {
        assert!(CallPlacement::of(&method(None, None), None).is_none());
    }

    #[test]
    fn an_attribute_goes_before_the_map_and_is_not_told() {
        let map = DeviceMap::new([(gpu(0), gpu(1))]).unwrap();
        let places = CallPlacement::of(&method(Some(gpu(5)), Some(gpu(6))), Some(&map)).unwrap();
        let of = |placement: &Option<Placement>, device| {
            placement
                .as_ref()
                .and_then(|placement| placement.of(device))
        };
        assert_eq!(of(&places.arguments, gpu(0)), Some(gpu(1)));
        assert_eq!(of(&places.arguments, gpu(1)), None);
        assert_eq!(of(&places.stream, gpu(0)), Some(gpu(5)));
        assert_eq!(
            places.results.as_ref().unwrap().placement,
            Placement::All(gpu(6))
        );
        assert_eq!(places.encode_results(), None);
    }

    #[test]
    fn the_code_writes_what_the_examples_of_wire_md_show() {
        let examples = crate::header::examples::examples("places");
        let all = CallPlacement::of_fetched(gpu(3)).encode_results();
        assert_eq!(examples.get("All tensors of the result"), all.as_ref());
        let map = DeviceMap::new([(Device::CPU, gpu(1))]).unwrap();
        let pairs = CallPlacement::of(&method(None, None), Some(&map))
            .unwrap()
            .encode_results();
        assert_eq!(examples.get("Pairs"), pairs.as_ref());
        assert_eq!(examples.len(), 2);
    }

    /// A peer may claim any device: the check looks at the tensor itself.
    #[test]
    fn what_has_come_elsewhere_is_found() {
        let receive_placement = ReceivePlacement::new(Placement::Each([(gpu(1), gpu(0))].into()));
        let descriptor = |source| TensorDescriptor {
            dtype: DType::U8,
            shape: [1u64].into(),
            source,
            target: Some(gpu(0)),
            metadata: Default::default(),
        };
        let here = Descriptor {
            tensors: vec![descriptor(Device::CPU), descriptor(gpu(1))],
            ..Descriptor::default()
        };
        let places = receive_placement.allocation(5, &here).tensors;
        assert!(matches!(places[..], [Place::Pool, Place::On(device)] if device == gpu(0)));
        let message = || {
            let tensor = Tensor::from(vec![1u8]);
            Ok(Message::new("").tensor(tensor.clone()).tensor(tensor))
        };
        let error = receive_placement
            .check(5, message(), "the result")
            .unwrap_err();
        assert!(
            error
                .to_string()
                .contains("tensor 1 of the result cannot be put on cuda:0"),
            "{error}"
        );
        assert!(error.to_string().contains("sent it to cpu:0"), "{error}");
        // No device was asked for in this message.
        assert!(receive_placement.check(6, message(), "the result").is_ok());
    }

    #[test]
    fn what_is_told_comes_back_and_nonsense_is_refused() {
        let map = DeviceMap::new([(gpu(0), Device::CPU), (Device::CPU, gpu(7))]).unwrap();
        let places = CallPlacement::of(&method(None, None), Some(&map)).unwrap();
        let told = places.encode_results().unwrap();
        assert_eq!(
            usize::from(u16::from_le_bytes([told[0], told[1]])),
            told.len() - 2
        );
        let reversed = [(Device::CPU, gpu(0)), (gpu(7), Device::CPU)];
        assert_eq!(
            decode_results(&told[2..]),
            Some(Placement::Each(reversed.into()))
        );
        let fetched = CallPlacement::of_fetched(gpu(3)).encode_results().unwrap();
        assert_eq!(decode_results(&fetched[2..]), Some(Placement::All(gpu(3))));
        for cut in 3..told.len() {
            let found = decode_results(&told[2..cut]);
            assert!(
                !matches!(&found, Some(Placement::Each(pairs)) if pairs.len() == 2),
                "{found:?}"
            );
        }
        assert_eq!(decode_results(b"\x04CUDA\0\0\0\0"), None);
        assert_eq!(decode_results(&[0; 200]), None);
        // Three devices are neither one device nor pairs.
        assert_eq!(decode_results(&[0; 3]), None);
    }
}
