//! Where a process is, as it tells its peers: who is at the same place can be lent memory.
//!
//! A device descriptor of channel `lease` is a byte 1, the [`machine::Place`], the process's random id, and the name of its
//! exchange. A process that cannot lend says 0 and why.

use crate::process::Token;
use crate::sys::machine;

const CANNOT: u8 = 0;
const CAN: u8 = 1;

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) machine: machine::Place,
    pub(super) process: Token,
    pub(super) exchange: String,
}

impl Place {
    /// Of this process, whose exchange has this name; or why it cannot lend.
    pub(super) fn here(process: Token, exchange: &str) -> Result<Self, String> {
        crate::sys::fork::Origin::here().map_err(|error| error.to_string())?;
        Ok(Self {
            machine: machine::Place::here()?,
            process,
            exchange: exchange.to_owned(),
        })
    }

    /// As a device descriptor.
    pub(super) fn describe(place: Result<&Self, &str>) -> Vec<u8> {
        match place {
            Ok(place) => {
                let machine = place.machine.encode();
                let parts = [&machine[..], &place.process, place.exchange.as_bytes()];
                [&[CAN][..], &parts.concat()].concat()
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
                return Err(format!("it cannot lend memory: {reason}"));
            }
            _ => None,
        }
        .ok_or_else(|| "its description of where it is makes no sense here".to_owned())
    }

    fn decode(rest: &[u8]) -> Option<Self> {
        let (machine, rest) = rest.split_at_checked(machine::Place::LEN)?;
        let (process, exchange) = rest.split_first_chunk()?;
        Some(Self {
            machine: machine::Place::decode(machine)?,
            process: *process,
            exchange: String::from_utf8(exchange.to_vec()).ok()?,
        })
    }

    /// Whether memory of one can be read at the other, or why not.
    pub(super) fn reaches(&self, other: &Self, within_process: bool) -> Result<(), String> {
        self.machine.meets(&other.machine, false)?;
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
        let cannot = Place::describe(Err("no memfd"));
        assert!(Place::parse(&cannot).unwrap_err().contains("no memfd"));
        assert!(Place::describe(Err(&"ü".repeat(2000))).len() < 1024);
    }

    #[test]
    fn nonsense_is_refused_in_words() {
        let mut short = Place::describe(Ok(&place()));
        short.truncate(50);
        let mut odd = Place::describe(Ok(&place()));
        odd.push(0xff);
        for bad in [&b""[..], &[0xff; 40], &[1; 20], &short, &odd] {
            assert!(Place::parse(bad).unwrap_err().contains("no sense"));
        }
    }

    #[test]
    fn every_difference_has_its_reason() {
        let here = place();
        let mut there = Place {
            process: [1; 16],
            ..place()
        };
        assert_eq!(here.reaches(&there, false), Ok(()));
        there.machine.user += 1;
        assert!(here.reaches(&there, false).unwrap_err().contains("user"));
        assert!(here.reaches(&here, false).unwrap_err().contains("xth"));
        assert_eq!(here.reaches(&here, true), Ok(()));
    }
}
