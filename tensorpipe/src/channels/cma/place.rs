//! Where a process is, as it tells its peers: who is at the same place may be able to read its memory.
//!
//! A device descriptor of channel `cma` is a byte 1, the [`machine::Place`], the namespace of process numbers, the process's
//! random id, and the name of its exchange. A process that cannot read others' memory says 0 and why.

use crate::process::Token;
use crate::sys::{machine, process_memory};

const CANNOT: u8 = 0;
const CAN: u8 = 1;

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    machine: machine::Place,
    /// Device and inode of the namespace that its number belongs to.
    numbers: (u64, u64),
    pub(super) process: Token,
    pub(super) exchange: String,
}

impl Place {
    /// Of this process, whose exchange has this name; or why it reads no memory.
    pub(super) fn here(process: Token, exchange: &str) -> Result<Self, String> {
        process_memory::probe().map_err(process_memory::why)?;
        Ok(Self {
            machine: machine::Place::here()?,
            numbers: machine::pid_namespace()?,
            process,
            exchange: exchange.to_owned(),
        })
    }

    /// As a device descriptor.
    pub(super) fn describe(place: Result<&Self, &str>) -> Vec<u8> {
        match place {
            Ok(place) => {
                let mut bytes = vec![CAN];
                bytes.extend(place.machine.encode());
                bytes.extend(place.numbers.0.to_le_bytes());
                bytes.extend(place.numbers.1.to_le_bytes());
                bytes.extend(place.process);
                bytes.extend(place.exchange.as_bytes());
                bytes
            }
            Err(reason) => {
                let end = reason.floor_char_boundary(500);
                [&[CANNOT], &reason.as_bytes()[..end]].concat()
            }
        }
    }

    /// From a device descriptor; why there is none, in words.
    pub(super) fn parse(descriptor: &[u8]) -> Result<Self, String> {
        match descriptor.split_first() {
            Some((&CAN, rest)) => Self::decode(rest),
            Some((&CANNOT, reason)) => {
                let reason = String::from_utf8_lossy(reason);
                return Err(format!(
                    "it cannot read memory of other processes: {reason}"
                ));
            }
            _ => None,
        }
        .ok_or_else(|| "its description of where it is makes no sense here".to_owned())
    }

    fn decode(rest: &[u8]) -> Option<Self> {
        let (machine, rest) = rest.split_at_checked(machine::Place::LEN)?;
        let (device, rest) = rest.split_first_chunk()?;
        let (inode, rest) = rest.split_first_chunk()?;
        let (process, exchange) = rest.split_first_chunk()?;
        Some(Self {
            machine: machine::Place::decode(machine)?,
            numbers: (u64::from_le_bytes(*device), u64::from_le_bytes(*inode)),
            process: *process,
            exchange: String::from_utf8(exchange.to_vec()).ok()?,
        })
    }

    /// Whether memory of one may be readable at the other, or why not.
    pub(super) fn reaches(&self, other: &Self, within_process: bool) -> Result<(), String> {
        self.machine.meets(&other.machine, false)?;
        if self.numbers != other.numbers {
            return Err(
                "the peer is in another pid namespace (another container) of this machine; share it to read its memory"
                    .to_owned(),
            );
        }
        if self.process == other.process && !within_process {
            return Err("the peer is in this process, where xth hands memory over".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> Place {
        Place::here([0xa5; 16], "an exchange").unwrap()
    }

    #[test]
    fn a_place_is_told_and_understood() {
        let here = place();
        let told = Place::describe(Ok(&here));
        assert!(told.len() < 1024);
        assert_eq!(Place::parse(&told), Ok(here));
        let cannot = Place::describe(Err("a filter"));
        assert!(Place::parse(&cannot).unwrap_err().contains("a filter"));
        assert!(Place::describe(Err(&"ü".repeat(2000))).len() < 1024);
    }

    #[test]
    fn nonsense_is_refused_in_words() {
        let told = Place::describe(Ok(&place()));
        for bad in [
            &[][..],
            &[2],
            &told[..told.len() / 2],
            &[&told, &[0xff][..]].concat(),
        ] {
            let reason = Place::parse(bad).unwrap_err();
            assert!(reason.contains("no sense"), "{reason}");
        }
    }

    #[test]
    fn every_difference_has_its_reason() {
        let here = place();
        let there = Place {
            process: [1; 16],
            ..place()
        };
        assert_eq!(here.reaches(&there, false), Ok(()));
        let elsewhere = Place {
            numbers: (0, 0),
            ..there.clone()
        };
        let other_user = Place {
            machine: machine::Place {
                user: there.machine.user + 1,
                ..there.machine
            },
            ..there
        };
        for (other, word) in [
            (&elsewhere, "pid namespace"),
            (&other_user, "user"),
            (&here, "xth"),
        ] {
            let reason = here.reaches(other, false).unwrap_err();
            assert!(reason.contains(word), "{reason}");
        }
        assert_eq!(here.reaches(&here, true), Ok(()));
    }
}
