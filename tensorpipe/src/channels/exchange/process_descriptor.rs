//! A process's description of where it is. Processes at the same place can lend memory to each other, and may be able to read each other's.
//!
//! A device descriptor begins with a byte: 1, or 2 for a process that lends but does not borrow. Then come the [`machine::IpcDomain`], for
//! [`Access::Read`] also what a [`Reader`] needs, the process's random id, and the name of its exchange. A process that can offer no such
//! access sends 0 and the reason.

use super::Exchange;
use crate::channels::Link;
use crate::device::Device;
use crate::error::{Error, Misuse, SystemError, legible};
use crate::process::{Token, random_name};
use crate::sys::processors::Processors;
use crate::sys::{fork, machine, memfd, peer, process_memory};

const CANNOT: u8 = 0;
const CAN: u8 = 1;
const LENDS_ONLY: u8 = 2;

/// How two processes of one machine reach each other's memory. It decides what a descriptor contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::channels) enum Access {
    /// The memory is lent, and mapped by the borrower.
    Lend,
    /// The reader copies the memory out of the other process.
    Read,
}

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::channels) struct ProcessDescriptor {
    machine: machine::IpcDomain,
    /// Whether it takes what is lent to it.
    pub(in crate::channels) borrows: bool,
    /// For [`Access::Read`].
    pub(in crate::channels) reader: Option<Reader>,
    pub(in crate::channels) process: Token,
    pub(in crate::channels) exchange: String,
}

/// What a process adds if it reads other processes' memory and lets them read its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::channels) struct Reader {
    /// Device and inode of the pid namespace of the process.
    numbers: (u64, u64),
    /// A process that may use more than one processor copies faster.
    pub(in crate::channels) processors: Processors,
}

impl Access {
    /// The device descriptors of this process, which has this exchange.
    pub(in crate::channels) fn devices(
        self,
        exchange: &Exchange,
        borrows: bool,
    ) -> Vec<(Device, Vec<u8>)> {
        let place = ProcessDescriptor::here(self, exchange.process(), exchange.name());
        let listens = |place| match exchange.listen() {
            Ok(_) => Ok(place),
            Err(error) => Err(error.to_string()),
        };
        let mut place = place.and_then(listens);
        if let Ok(place) = &mut place {
            place.borrows = borrows;
        }
        let place = place.as_ref().map_err(String::as_str);
        vec![(Device::CPU, ProcessDescriptor::describe(place))]
    }

    /// Whether two descriptors say that it works between them, or why not.
    pub(in crate::channels) fn reaches(
        self,
        ours: &[u8],
        theirs: &[u8],
        within_process: bool,
    ) -> Result<(), String> {
        let ours =
            ProcessDescriptor::parse(self, ours).map_err(|reason| format!("this end: {reason}"))?;
        let theirs = ProcessDescriptor::parse(self, theirs)
            .map_err(|reason| format!("the peer: {reason}"))?;
        ours.reaches(&theirs, within_process)
    }

    /// The descriptor of a pipe's peer, for the channel of this name.
    pub(in crate::channels) fn peer(
        self,
        channel: &str,
        link: &Link,
    ) -> Result<ProcessDescriptor, Error> {
        self.place(&link.peer_devices).map_err(|reason| {
            Misuse::Other(format!("channel {channel}: the peer: {reason}")).into()
        })
    }

    /// The descriptor of the process that describes its devices so; if there is none, the reason in words.
    pub(in crate::channels) fn place(
        self,
        devices: &[(Device, Vec<u8>)],
    ) -> Result<ProcessDescriptor, String> {
        let descriptor = devices.iter().find(|(device, _)| device.is_cpu());
        let descriptor = descriptor.map_or(&[][..], |(_, descriptor)| descriptor);
        ProcessDescriptor::parse(self, descriptor)
    }

    fn cannot(self) -> &'static str {
        match self {
            Self::Lend => "it cannot lend memory",
            Self::Read => "it cannot read memory of other processes",
        }
    }
}

impl ProcessDescriptor {
    /// The descriptor of this process, whose exchange has this name; or why this access does not work here.
    fn here(access: Access, process: Token, exchange: &str) -> Result<Self, String> {
        machine::knows_users()?;
        if exchange.is_empty() {
            return Err("the system gives it no random numbers".to_owned());
        }
        let reader = match access {
            Access::Lend => {
                fork::Origin::here().map_err(|error| error.to_string())?;
                memfd::probe().map_err(|error| error.to_string())?;
                peer::probe().map_err(|error| error.to_string())?;
                None
            }
            Access::Read => {
                process_memory::probe().map_err(process_memory::why)?;
                Some(Reader {
                    numbers: machine::pid_namespace()?,
                    processors: Processors::here(),
                })
            }
        };
        Ok(Self {
            machine: machine::IpcDomain::here()?,
            borrows: true,
            reader,
            process,
            exchange: exchange.to_owned(),
        })
    }

    /// As a device descriptor.
    fn describe(place: Result<&Self, &str>) -> Vec<u8> {
        match place {
            Ok(place) => {
                let mut bytes = vec![if place.borrows { CAN } else { LENDS_ONLY }];
                bytes.extend(place.machine.encode());
                if let Some(reader) = place.reader {
                    let (device, inode) = reader.numbers;
                    bytes.extend(device.to_le_bytes());
                    bytes.extend(inode.to_le_bytes());
                    bytes.extend(reader.processors.encode());
                }
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

    /// Parses a device descriptor; if it does not hold a place, returns the reason in words.
    fn parse(access: Access, descriptor: &[u8]) -> Result<Self, String> {
        match descriptor.split_first() {
            Some((&CAN, rest)) => Self::decode(access, true, rest),
            Some((&LENDS_ONLY, rest)) if access == Access::Lend => {
                Self::decode(access, false, rest)
            }
            Some((&CANNOT, reason)) => {
                let reason = legible(&String::from_utf8_lossy(reason));
                return Err(format!("{}: {reason}", access.cannot()));
            }
            _ => None,
        }
        .ok_or_else(|| "its description of where it is makes no sense here".to_owned())
    }

    fn decode(access: Access, borrows: bool, rest: &[u8]) -> Option<Self> {
        let (machine, mut rest) = rest.split_at_checked(machine::IpcDomain::LEN)?;
        let mut reader = None;
        if access == Access::Read {
            let (device, inode, processors);
            (device, rest) = rest.split_first_chunk()?;
            (inode, rest) = rest.split_first_chunk()?;
            (processors, rest) = rest.split_first_chunk()?;
            reader = Some(Reader {
                numbers: (u64::from_le_bytes(*device), u64::from_le_bytes(*inode)),
                processors: Processors::decode(*processors),
            });
        }
        let (process, exchange) = rest.split_first_chunk()?;
        let exchange = String::from_utf8(exchange.to_vec()).ok()?;
        if !is_exchange(&exchange) {
            return None;
        }
        Some(Self {
            machine: machine::IpcDomain::decode(machine)?,
            borrows,
            reader,
            process: *process,
            exchange,
        })
    }

    /// Whether each process can reach the other's memory, or why not.
    fn reaches(&self, other: &Self, within_process: bool) -> Result<(), String> {
        self.machine.meets(&other.machine, false)?;
        let numbers = |place: &Self| place.reader.map(|reader| reader.numbers);
        if numbers(self) != numbers(other) {
            return Err(
                "the peer is in another pid namespace (another container) of this machine; share it to read its memory"
                    .to_owned(),
            );
        }
        let is_here = self.process == other.process || self.exchange == other.exchange;
        if is_here && !within_process {
            return Err("the peer is in this process, where xth hands memory over".to_owned());
        }
        Ok(())
    }
}

/// The prefix of all exchange names: a peer's descriptor cannot direct this process to an unrelated socket.
const NAMES: &str = "tensorpipe-";

/// A random name for an exchange.
pub(super) fn exchange_name() -> Result<String, SystemError> {
    Ok(format!("{NAMES}{}", random_name()?))
}

fn is_exchange(name: &str) -> bool {
    let digits = name.strip_prefix(NAMES).unwrap_or_default();
    digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: [Access; 2] = [Access::Lend, Access::Read];

    fn place(access: Access) -> ProcessDescriptor {
        ProcessDescriptor::here(access, [0xa5; 16], &exchange_name().unwrap()).unwrap()
    }

    #[test]
    fn a_place_is_told_and_understood() {
        for access in BOTH {
            let here = place(access);
            let told = ProcessDescriptor::describe(Ok(&here));
            assert!(told.len() < 1024);
            assert_eq!(ProcessDescriptor::parse(access, &told), Ok(here.clone()));
            let lends_only = ProcessDescriptor {
                borrows: false,
                ..here
            };
            let told = ProcessDescriptor::describe(Ok(&lends_only));
            assert_eq!(
                ProcessDescriptor::parse(access, &told).is_ok_and(|place| !place.borrows),
                access == Access::Lend
            );
            let cannot = ProcessDescriptor::describe(Err("a filter"));
            let reason = ProcessDescriptor::parse(access, &cannot).unwrap_err();
            assert_eq!(reason, format!("{}: a filter", access.cannot()));
            assert!(ProcessDescriptor::describe(Err(&"ü".repeat(2000))).len() < 1024);
        }
    }

    #[test]
    fn words_of_who_cannot_have_no_lines_of_their_own() {
        for access in BOTH {
            let told = ProcessDescriptor::describe(Err("no\n  channel cma: all well"));
            let reason = ProcessDescriptor::parse(access, &told).unwrap_err();
            assert!(!reason.contains(char::is_control), "{reason:?}");
        }
    }

    #[test]
    fn nonsense_is_refused_in_words() {
        for access in BOTH {
            let told = ProcessDescriptor::describe(Ok(&place(access)));
            for bad in [
                &[][..],
                &[2],
                &[0xff; 40],
                &[1; 20],
                &told[..told.len() / 2],
                &[&told, &[0xff][..]].concat(),
                // A socket that is no exchange.
                &[&told[..told.len() - 5], b"/dbus"].concat(),
                &[&told, &b"0"[..]].concat(),
            ] {
                let reason = ProcessDescriptor::parse(access, bad).unwrap_err();
                assert!(reason.contains("no sense"), "{reason}");
            }
        }
    }

    #[test]
    fn every_difference_has_its_reason() {
        for access in BOTH {
            let here = place(access);
            let there = ProcessDescriptor {
                process: [1; 16],
                ..place(access)
            };
            assert_eq!(here.reaches(&there, false), Ok(()));
            let other_user = ProcessDescriptor {
                machine: machine::IpcDomain {
                    user: there.machine.user + 1,
                    ..there.machine
                },
                ..there
            };
            for (other, word) in [(&other_user, "user"), (&here, "xth")] {
                let reason = here.reaches(other, false).unwrap_err();
                assert!(reason.contains(word), "{reason}");
            }
            assert_eq!(here.reaches(&here, true), Ok(()));
        }
    }

    #[test]
    fn numbers_of_processes_matter_to_who_reads() {
        let here = place(Access::Read);
        let there = |change: fn(&mut Reader)| {
            let mut place = place(Access::Read);
            place.process = [1; 16];
            change(place.reader.as_mut().unwrap());
            place
        };
        let elsewhere = there(|reader| reader.numbers = (0, 0));
        let reason = here.reaches(&elsewhere, false).unwrap_err();
        assert!(reason.contains("pid namespace"), "{reason}");
        let smaller = there(|reader| reader.processors.usable = 1);
        assert_eq!(here.reaches(&smaller, false), Ok(()));
        assert_eq!(place(Access::Lend).reader, None);
    }
}
