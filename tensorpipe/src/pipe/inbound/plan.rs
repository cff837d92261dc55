//! Where the parts of a message go: an allocation, checked against the descriptor that it answers.

use smallvec::SmallVec;

use crate::device::Device;
use crate::error::Misuse;
use crate::message::{Allocation, Place};
use crate::proto::Head;

/// See the module's documentation.
pub(super) struct Plan {
    pub(super) places: SmallVec<[(u16, Place); 2]>,
    pub(super) skipped: Vec<u16>,
    /// Parts that the reader wants on another device than the writer named: which, from where, to where.
    pub(super) redirected: Vec<(u16, Device, Device)>,
    /// Every part goes where it would go without an allocation.
    pub(super) is_default: bool,
}

impl Plan {
    pub(super) fn new(head: &Head, allocation: Allocation) -> Result<Self, Misuse> {
        let misfit = |reason: String| Misuse::Allocation { reason };
        let (payloads, tensors) = (head.payloads().len(), head.tensors().len());
        if allocation.payloads.len() > payloads || allocation.tensors.len() > tensors {
            let (p, t) = (allocation.payloads.len(), allocation.tensors.len());
            return Err(misfit(format!(
                "{p} payloads and {t} tensors are placed, {payloads} and {tensors} come"
            )));
        }
        let mut plan = Self {
            places: SmallVec::with_capacity(payloads + tensors),
            skipped: Vec::new(),
            redirected: Vec::new(),
            is_default: true,
        };
        let pad = |places: Vec<Place>, len: usize| {
            let rest = std::iter::repeat_with(Place::default);
            places.into_iter().chain(rest).take(len)
        };
        let places = pad(allocation.payloads, payloads).chain(pad(allocation.tensors, tensors));
        for (part, place) in places.enumerate() {
            let part = part as u16;
            let wanted = match &place {
                Place::Into(dest) if dest.len() as u64 != head.part_len(part.into()) => {
                    let (what, len) = (name(head, part), head.part_len(part.into()));
                    return Err(misfit(format!(
                        "{what} has {len} bytes, its place {}",
                        dest.len()
                    )));
                }
                Place::Into(dest) => Some(dest.device()),
                Place::On(device) => Some(*device),
                Place::Skip => {
                    plan.skipped.push(part);
                    None
                }
                Place::Pool => None,
            };
            let said = head.device(part.into());
            if let Some(device) = wanted.filter(|device| *device != said) {
                let source = head.source(part.into()).ok_or_else(|| Misuse::OutOfReach {
                    what: name(head, part),
                    device,
                    reason: "payloads are main memory; send a tensor".to_owned(),
                })?;
                plan.redirected.push((part, source, device));
            }
            plan.is_default &= matches!(place, Place::Pool)
                || matches!(place, Place::On(device) if device == said);
            plan.places.push((part, place));
        }
        Ok(plan)
    }

    /// Asks `reaches` about each part that goes elsewhere than the writer said, or is still to come to a device: part, from, to. The
    /// writer may have named a device that its channel does not reach.
    pub(super) fn check_reach(
        &self,
        head: &Head,
        is_here: impl Fn(u16) -> bool,
        reaches: impl Fn(u16, Device, Device) -> Result<(), String>,
    ) -> Result<(), Misuse> {
        let to_come = self.places.iter().filter_map(|(part, place)| {
            let device = match place {
                Place::Into(dest) => dest.device(),
                Place::On(device) => *device,
                Place::Pool | Place::Skip => return None,
            };
            let is_asked = !device.is_cpu() && !is_here(*part);
            is_asked.then_some((*part, head.source((*part).into())?, device))
        });
        // An empty part can be on any device.
        let is_moved = |(part, ..): &(u16, Device, Device)| head.part_len((*part).into()) > 0;
        let redirected = self.redirected.iter().copied();
        let mut moved = redirected.chain(to_come).filter(is_moved);
        moved.try_for_each(|(part, source, device)| {
            reaches(part, source, device).map_err(|reason| Misuse::OutOfReach {
                what: name(head, part),
                device,
                reason,
            })
        })
    }

    /// Fails if a part that is here, or comes without being asked for, cannot be copied into its place.
    pub(super) fn check_copies(
        &mut self,
        head: &Head,
        is_here: impl Fn(u16) -> bool,
    ) -> Result<(), Misuse> {
        for (part, place) in &mut self.places {
            if let Place::Into(dest) = place
                && !dest.is_empty()
                && dest.as_bytes_mut().is_none()
                && is_here(*part)
            {
                return Err(Misuse::OutOfReach {
                    what: name(head, *part),
                    device: dest.device(),
                    reason: "it is here already, in memory of its own, and only main memory is copied; read it into `Place::Pool`"
                        .to_owned(),
                });
            }
        }
        Ok(())
    }
}

fn name(head: &Head, part: u16) -> String {
    let part = usize::from(part);
    match part.checked_sub(head.payloads().len()) {
        None => format!("payload {part}"),
        Some(tensor) => format!("tensor {tensor}"),
    }
}

#[cfg(test)]
mod tests {
    use std::any::Any;

    use super::*;
    use crate::descriptor::{Descriptor, PayloadDescriptor};
    use crate::device::{BufferMut, DeviceKind, Memory};
    use crate::proto::Carriage;
    use crate::sync::Arc;

    /// So many bytes where the CPU cannot write.
    struct Elsewhere(usize);

    impl Memory for Elsewhere {
        fn device(&self) -> Device {
            Device::new(DeviceKind::CUDA, 0)
        }
        fn len(&self) -> usize {
            self.0
        }
        fn as_bytes(&self) -> Option<&[u8]> {
            None
        }
        fn as_any(&self) -> &dyn Any {
            self
        }
        fn as_any_mut(&mut self) -> &mut dyn Any {
            self
        }
    }

    #[test]
    fn what_is_here_is_copied_into_main_memory_alone() {
        let checked = |len: usize, is_here| {
            let payload = PayloadDescriptor {
                len: len as u64,
                metadata: Default::default(),
            };
            let descriptor = Descriptor {
                payloads: vec![payload],
                ..Descriptor::default()
            };
            let head = Head::with(descriptor, [Carriage::Eager].into_iter().collect());
            let memory: Arc<dyn Memory> = Arc::new(Elsewhere(len));
            let memory = BufferMut::from_memory(memory, len).ok().unwrap();
            let mut plan = Plan {
                places: [(0, Place::Into(memory))].into_iter().collect(),
                skipped: Vec::new(),
                redirected: Vec::new(),
                is_default: false,
            };
            plan.check_copies(&head, |_| is_here).is_ok()
        };
        assert!(!checked(8, true));
        assert!(checked(8, false), "a channel brings it there");
        assert!(checked(0, true), "there is nothing to copy");
    }
}
