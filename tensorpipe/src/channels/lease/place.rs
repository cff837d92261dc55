//! Where a process is, as it tells its peers: who is at the same place can be lent memory.
//!
//! A device descriptor of channel `lease` is six lines of text: `1`, the boot id, the network namespace (names of abstract Unix
//! sockets live there), the user's number, the process's random id in hexadecimal digits, and the name of its exchange. A
//! process that cannot lend says `0` and why.

use crate::process::Token;
use crate::sys::peer;

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) boot: String,
    pub(super) network: String,
    pub(super) user: u32,
    pub(super) process: Token,
    pub(super) exchange: String,
}

impl Place {
    /// Of this process, whose exchange has this name; or why it cannot lend.
    pub(super) fn here(process: Token, exchange: &str) -> Result<Self, String> {
        let words = |error: crate::error::SystemError| error.to_string();
        crate::sys::fork::Origin::here().map_err(words)?;
        Ok(Self {
            boot: peer::boot_id().map_err(words)?,
            network: peer::namespace("net").map_err(words)?,
            user: peer::user(),
            process,
            exchange: exchange.to_owned(),
        })
    }

    /// As a device descriptor.
    pub(super) fn describe(place: Result<&Self, &str>) -> Vec<u8> {
        let text = match place {
            Ok(place) => {
                let process: String = place.process.iter().map(|b| format!("{b:02x}")).collect();
                format!(
                    "1\n{}\n{}\n{}\n{process}\n{}",
                    place.boot, place.network, place.user, place.exchange
                )
            }
            Err(reason) => {
                let end = reason.floor_char_boundary(500);
                format!("0\n{}", &reason[..end])
            }
        };
        text.into_bytes()
    }

    /// From a device descriptor; why there is none, in words.
    pub(super) fn parse(descriptor: &[u8]) -> Result<Self, String> {
        let nonsense = || "its description of where it is makes no sense here".to_owned();
        let text = std::str::from_utf8(descriptor).map_err(|_| nonsense())?;
        if let Some(reason) = text.strip_prefix("0\n") {
            return Err(format!("it cannot lend memory: {reason}"));
        }
        let lines: Vec<&str> = text.split('\n').collect();
        let ["1", boot, network, user, process, exchange] = lines[..] else {
            return Err(nonsense());
        };
        Ok(Self {
            boot: boot.to_owned(),
            network: network.to_owned(),
            user: user.parse().map_err(|_| nonsense())?,
            process: token(process).ok_or_else(nonsense)?,
            exchange: exchange.to_owned(),
        })
    }

    /// Whether memory of one can be read at the other, or why not.
    pub(super) fn reaches(&self, other: &Self, within_process: bool) -> Result<(), String> {
        if self.boot != other.boot {
            return Err("the peer is on another machine".to_owned());
        }
        if self.network != other.network {
            return Err("the peer is in another network namespace; run both in one".to_owned());
        }
        if self.user != other.user {
            return Err(format!(
                "one end runs as user {}, the other as {}; memory is lent within one user only",
                self.user, other.user
            ));
        }
        if self.process == other.process && !within_process {
            return Err("the peer is in this process, where xth hands memory over".to_owned());
        }
        Ok(())
    }
}

fn token(hex: &str) -> Option<Token> {
    let mut token = Token::default();
    if hex.len() != 2 * token.len() || !hex.is_ascii() {
        return None;
    }
    for (i, byte) in token.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(token)
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
        short.truncate(short.len() / 2);
        let odd = b"1\nb\nn\n1000\nzz\nname".as_slice();
        let long = b"1\nb\nn\n-1\n00112233445566778899aabbccddeeff\nname".as_slice();
        for bad in [&b""[..], &[0xff; 40], &short, odd, long] {
            assert!(Place::parse(bad).unwrap_err().contains("no sense"));
        }
    }

    #[test]
    fn every_difference_has_its_reason() {
        let here = place();
        let with = |change: fn(&mut Place)| {
            let mut there = Place {
                process: [1; 16],
                ..place()
            };
            change(&mut there);
            here.reaches(&there, false)
        };
        assert_eq!(with(|_| ()), Ok(()));
        for (change, word) in [
            ((|place| place.boot.push('x')) as fn(&mut Place), "machine"),
            (|place| place.network.push('x'), "namespace"),
            (|place| place.user += 1, "user"),
            (|place| place.process = [0xa5; 16], "xth"),
        ] {
            let reason = with(change).unwrap_err();
            assert!(reason.contains(word), "{reason}");
        }
        assert_eq!(here.reaches(&here, true), Ok(()));
    }
}
