//! Who says what was handed to somebody, and what that gets.

use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, send, setsockopt, socket,
    sockopt::ReceiveTimeout,
};
use nix::sys::time::TimeVal;
use tensorpipe_tests::{Child, NOBODY, can_start_by, say};

use super::CHALLENGE;
use super::raw::{Frame, JOINED, REJECT, Raw, SOON};
use super::stream::Stream;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    /// The process that it was meant for.
    Itself,
    /// Another one of this user.
    Process,
    User,
    /// The one that it was meant for, a second time.
    Again,
    /// That one; the victim was started again.
    Later,
}

/// What somebody gets for these bytes there.
pub(super) fn replayed(who: Who, at: &str, says: &[u8]) -> Option<String> {
    let got = || match at.strip_prefix("exchange://") {
        Some(name) => exchange_says(name, says),
        None => gets(at, says),
    };
    let by: &[&str] = match who {
        Who::Itself | Who::Later => return Some(got()),
        Who::Again => {
            got();
            return Some(got());
        }
        Who::Process => &[],
        Who::User => &NOBODY,
    };
    if who == Who::User && !(nix::unistd::geteuid().is_root() && can_start_by(by)) {
        println!("skipped: only root can run a program as another user");
        return None;
    }
    let variables = [("TEST_AT", at), ("TEST_SAYS", &hex(says))];
    Some(Child::start_by(by, "thief", &variables).hear("got"))
}

/// What a connection that says these bytes to this URL gets.
pub(crate) fn gets(url: &str, says: &[u8]) -> String {
    let Some(stream) = Stream::try_connect(url) else {
        return "no connection".to_owned();
    };
    let mut raw = Raw(stream);
    raw.send(says);
    raw.0.set_read_timeout(SOON);
    let mut found = [0; 12];
    if std::io::Read::read_exact(&mut raw.0, &mut found).is_err() {
        return "not a byte".to_owned();
    }
    // A challenge is nothing that one gets by a proof.
    let answer = std::iter::from_fn(|| raw.frame()).find(|frame| frame.kind != CHALLENGE);
    match answer {
        None => "the end".to_owned(),
        Some(Frame { kind: JOINED, .. }) => "JOINED".to_owned(),
        Some(Frame { kind: REJECT, body }) => String::from_utf8_lossy(&body[3..]).into_owned(),
        Some(frame) => format!("a frame of kind {}", frame.kind),
    }
}

/// What an exchange answers to a packet: its kind.
fn exchange_says(name: &str, packet: &[u8]) -> String {
    let flags = SockFlag::SOCK_CLOEXEC;
    let made: OwnedFd = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
    let address = UnixAddr::new_abstract(name.as_bytes()).unwrap();
    if connect(made.as_raw_fd(), &address).is_err() {
        return "no connection".to_owned();
    }
    let bound = TimeVal::new(SOON.as_secs() as i64, 0);
    setsockopt(&made, ReceiveTimeout, &bound).unwrap();
    let _ = send(made.as_raw_fd(), packet, MsgFlags::MSG_NOSIGNAL);
    let mut bytes = [0; 256];
    match recv(made.as_raw_fd(), &mut bytes, MsgFlags::empty()) {
        Ok(0) | Err(Errno::ECONNRESET) => "not a byte".to_owned(),
        Ok(_) => format!("a packet of kind {}", bytes[0]),
        Err(errno) => errno.to_string(),
    }
}

/// Says what it is given, and tells what it gets.
pub(crate) fn play_thief() {
    let says = unhex(&std::env::var("TEST_SAYS").unwrap());
    let at = std::env::var("TEST_AT").unwrap();
    let got = match at.strip_prefix("exchange://") {
        Some(name) => exchange_says(name, &says),
        None => gets(&at, &says),
    };
    say("got", got);
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn unhex(digits: &str) -> Vec<u8> {
    let pairs = digits.as_bytes().chunks(2);
    let byte = |pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
    pairs.map(byte).collect()
}
