//! Which machine, namespace and user this process belongs to.

#![allow(unsafe_code, reason = "geteuid has no safe form in std")]

use std::os::unix::fs::MetadataExt;

use super::fork::OnceBox;

/// Where a process is: two processes that agree in this can meet at an abstract Unix socket and trust each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IpcDomain {
    /// Random, made by the kernel at boot.
    pub(crate) boot: [u8; 16],
    /// Device and inode of the network namespace, to which abstract sockets belong.
    pub(crate) network: (u64, u64),
    /// The effective user.
    pub(crate) user: u32,
}

impl IpcDomain {
    /// Of what [`IpcDomain::encode`] makes, in bytes.
    pub(crate) const LEN: usize = 36;

    /// Where this process is.
    ///
    /// # Errors
    /// In words, if `/proc` does not tell.
    pub(crate) fn here() -> Result<Self, String> {
        const NETWORK: &str = "/proc/self/ns/net";
        let boot = boot()?;
        let network = std::fs::metadata(NETWORK).map_err(|error| format!("{NETWORK}: {error}"))?;
        Ok(Self {
            boot,
            network: (network.dev(), network.ino()),
            user: user(),
        })
    }

    /// 36 bytes that say the same.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = self.boot.to_vec();
        bytes.extend(self.network.0.to_le_bytes());
        bytes.extend(self.network.1.to_le_bytes());
        bytes.extend(self.user.to_le_bytes());
        bytes
    }

    /// The opposite of [`IpcDomain::encode`].
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (boot, rest) = bytes.split_first_chunk::<16>()?;
        let (device, rest) = rest.split_first_chunk::<8>()?;
        let (inode, rest) = rest.split_first_chunk::<8>()?;
        let user: [u8; 4] = rest.try_into().ok()?;
        Some(Self {
            boot: *boot,
            network: (u64::from_le_bytes(*device), u64::from_le_bytes(*inode)),
            user: u32::from_le_bytes(user),
        })
    }

    /// Whether a process there can be reached from here, or why not. `any_user`: do not compare users.
    pub(crate) fn meets(&self, theirs: &Self, any_user: bool) -> Result<(), String> {
        if self.boot != theirs.boot {
            Err("the peer is on another machine".to_owned())
        } else if self.network != theirs.network {
            Err("the peer is in another network namespace (another container) of this machine; share it to use shared memory".to_owned())
        } else if self.user != theirs.user && !any_user {
            Err(format!(
                "the peer runs as another user (uid {}, here {})",
                theirs.user, self.user
            ))
        } else {
            Ok(())
        }
    }
}

/// See [`IpcDomain::boot`]. Read once, since each pipe needs it several times.
fn boot() -> Result<[u8; 16], String> {
    const PATH: &str = "/proc/sys/kernel/random/boot_id";
    static KNOWN: OnceBox<[u8; 16]> = OnceBox::new();
    if let Some(known) = KNOWN.get() {
        return Ok(*known);
    }
    let read = std::fs::read_to_string(PATH).map_err(|error| format!("{PATH}: {error}"))?;
    let boot = parse(&read).ok_or_else(|| format!("{PATH} is no id"))?;
    Ok(*KNOWN.get_or_init(|| boot))
}

/// Device and inode of this process's pid namespace.
///
/// # Errors
/// In words, if `/proc` does not tell.
pub(crate) fn pid_namespace() -> Result<(u64, u64), String> {
    const PID: &str = "/proc/self/ns/pid";
    let found = std::fs::metadata(PID).map_err(|error| format!("{PID}: {error}"))?;
    Ok((found.dev(), found.ino()))
}

/// The effective user of this process.
pub(crate) fn user() -> u32 {
    // SAFETY: takes nothing, always succeeds.
    unsafe { libc::geteuid() }
}

/// Whether the kernel tells this process's user from all others. In a user namespace, it reports all unmapped users under one number. If
/// this process has that number as well, other users look like its own.
///
/// # Errors
/// In words, if it does not.
pub(crate) fn knows_users() -> Result<(), String> {
    let map = || std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    static UNMAPPED: OnceBox<u32> = OnceBox::new();
    if user() != unmapped(&UNMAPPED) || maps_all(&map()) {
        return Ok(());
    }
    Err(format!(
        "users cannot be told apart: this process runs as uid {}, by which its user namespace calls whomever it does not map; run it as a user that has another one there",
        user()
    ))
}

/// The kernel's number for unmapped users. Read once: an administrator sets it rarely, and then for the whole life of the machine.
fn unmapped(known: &OnceBox<u32>) -> u32 {
    if let Some(known) = known.get() {
        return *known;
    }
    let read = std::fs::read_to_string("/proc/sys/kernel/overflowuid");
    let read = read.ok().and_then(|text| text.trim().parse().ok());
    read.map_or(OVERFLOW, |number| *known.get_or_init(|| number))
}

/// The kernel's number for unmapped users, unless the administrator has changed it.
const OVERFLOW: u32 = 65534;

/// Whether a user map contains all users. Its lines hold the first number inside, the first outside, and the count.
fn maps_all(map: &str) -> bool {
    let counts = map
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2));
    let counts = counts.filter_map(|count| count.parse::<u64>().ok());
    counts.sum::<u64>() >= u64::from(u32::MAX)
}

fn parse(boot: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = boot
        .trim()
        .bytes()
        .filter(|byte| *byte != b'-')
        .map(|digit| (digit as char).to_digit(16).map(|digit| digit as u8))
        .collect::<Option<_>>()?;
    let bytes: Vec<u8> = digits
        .chunks_exact(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect();
    bytes.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::fork::tests::{in_a_child, open_at_most, opens_files_anyway};

    #[test]
    fn a_place_is_told_and_compared() {
        let here = IpcDomain::here().unwrap();
        assert_eq!(IpcDomain::decode(&here.encode()), Some(here));
        assert_eq!(IpcDomain::decode(&here.encode()[1..]), None);
        assert_eq!(here.meets(&here, false), Ok(()));
        assert_eq!(pid_namespace().unwrap(), pid_namespace().unwrap());
        let says = |theirs: IpcDomain, word: &str| {
            let reason = here.meets(&theirs, false).unwrap_err();
            assert!(reason.contains(word), "{reason}");
        };
        let user = here.user + 1;
        says(IpcDomain { user, ..here }, "another user");
        assert_eq!(here.meets(&IpcDomain { user, ..here }, true), Ok(()));
        says(
            IpcDomain {
                network: (0, 0),
                ..here
            },
            "namespace",
        );
        says(
            IpcDomain {
                boot: [0; 16],
                ..here
            },
            "another machine",
        );
    }

    #[test]
    fn a_map_has_all_users_or_not() {
        assert!(maps_all("         0          0 4294967295\n"));
        assert!(maps_all("0 1000 1\n1 100000 4294967294\n"));
        for some in ["", "0 1000 1\n", "0 1000 1\n1 100000 65536\n"] {
            assert!(!maps_all(some), "{some}");
        }
    }

    #[test]
    fn a_number_for_unmapped_users_that_was_not_read_is_not_kept() {
        if opens_files_anyway() {
            return;
        }
        let known = OnceBox::new();
        assert!(in_a_child(|| {
            open_at_most(0);
            unmapped(&known) == OVERFLOW && known.get().is_none()
        }));
        let read = unmapped(&known);
        assert_eq!(known.get(), Some(&read));
    }

    #[test]
    fn a_boot_id_is_sixteen_bytes() {
        let id = parse("0123abcd-0000-0000-0000-0000000000ff\n").unwrap();
        assert_eq!((id[0], id[3], id[15]), (0x01, 0xcd, 0xff));
        assert_eq!(parse("0123"), None);
        assert_eq!(parse("x123abcd-0000-0000-0000-0000000000ff"), None);
    }
}
