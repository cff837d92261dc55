//! The thief: replays bytes that were handed to somebody else, and reports the answer.

use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr, accept, bind, connect, listen,
    recv, send, setsockopt, socket, sockopt::ReceiveTimeout,
};
use nix::sys::time::TimeVal;
use tensorpipe_tests::{Child, NOBODY, can_start_by, say};

use super::CHALLENGE;
use super::raw::{ANSWER, Frame, JOINED, MESSAGE, REJECT, Raw, SOON, hello, message};
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

/// What somebody gets for these bytes there: `shm://` and `tcp://`, one packet after another at `exchange://`, one message after another in
/// front of `calls+`.
pub(super) fn replayed(who: Who, at: &str, says: &[&[u8]]) -> Option<String> {
    let by: &[&str] = match who {
        Who::Itself | Who::Later => return Some(says_at(at, says)),
        Who::Again => {
            says_at(at, says);
            return Some(says_at(at, says));
        }
        Who::Process => &[],
        Who::User => another_user()?,
    };
    let says: Vec<_> = says.iter().map(|says| hex(says)).collect();
    let variables = [("TEST_AT", at), ("TEST_SAYS", &says.join(","))];
    Some(Child::start_by(by, "thief", &variables).hear("got"))
}

/// By whom to start a program of another user, where that can be.
fn another_user() -> Option<&'static [&'static str]> {
    if !(nix::unistd::geteuid().is_root() && can_start_by(&NOBODY)) {
        println!("skipped: only root can run a program as another user");
        return None;
    }
    Some(&NOBODY)
}

/// A process of another user that waits under an abstract name, for connections of this type. What the first one says to it, it tells.
pub(super) fn waits_in_its_place(packets: bool, name: &str) -> Option<Child> {
    let kind = if packets { "packets" } else { "stream" };
    let at = format!("{kind}-here://{name}");
    let thief = Child::start_by(another_user()?, "thief", &[("TEST_AT", &at)]);
    thief.hear("waits");
    Some(thief)
}

/// Says what it is given, and tells what it gets.
pub(crate) fn play_thief() {
    let at = std::env::var("TEST_AT").unwrap();
    if let Some((kind, name)) = at.split_once("-here://") {
        return say("got", hears(kind == "packets", name));
    }
    let says = std::env::var("TEST_SAYS").unwrap();
    let says: Vec<_> = says.split(',').map(unhex).collect();
    let says: Vec<_> = says.iter().map(|says| &says[..]).collect();
    say("got", says_at(&at, &says));
}

fn says_at(at: &str, says: &[&[u8]]) -> String {
    match (at.strip_prefix("exchange://"), at.strip_prefix("calls+")) {
        (Some(name), _) => exchange_says(name, says),
        (_, Some(url)) => calls(url, says),
        _ => gets(at, &says.concat()),
    }
}

/// What a connection that says these bytes to this URL gets.
pub(crate) fn gets(url: &str, says: &[u8]) -> String {
    let mut raw = match begins(url, says) {
        Ok(raw) => raw,
        Err(words) => return words.to_owned(),
    };
    // A challenge is nothing that one gets by a proof.
    let answer = std::iter::from_fn(|| raw.frame()).find(|frame| frame.kind != CHALLENGE);
    match answer {
        None => "the end".to_owned(),
        Some(Frame { kind: JOINED, .. }) => "JOINED".to_owned(),
        Some(Frame { kind: REJECT, body }) => String::from_utf8_lossy(&body[3..]).into_owned(),
        Some(frame) => format!("a frame of kind {}", frame.kind),
    }
}

/// A connection that has said this, and to which somebody says something.
fn begins(url: &str, says: &[u8]) -> Result<Raw, &'static str> {
    let mut raw = Raw(Stream::try_connect(url).ok_or("no connection")?);
    raw.send(says);
    raw.0.set_read_timeout(SOON);
    let found = std::io::Read::read_exact(&mut raw.0, &mut [0; 12]);
    found.map(|()| raw).map_err(|_| "not a byte")
}

/// What the last of these messages is answered, over a pipe of its own.
fn calls(url: &str, messages: &[&[u8]]) -> String {
    let mut raw = match begins(url, &hello()) {
        Ok(raw) => raw,
        Err(words) => return words.to_owned(),
    };
    let answer = raw.frame();
    if answer.is_none_or(|answer| answer.kind != ANSWER) {
        return "no pipe".to_owned();
    }
    let mut words = String::new();
    for metadata in messages {
        raw.send(&message(metadata, &[], b""));
        words = reply(&raw.frame_of(MESSAGE));
    }
    words
}

/// What a reply says: its kind, and its body, as words where it is a failure.
fn reply(reply: &Frame) -> String {
    let number = |at: usize| u32::from_le_bytes(reply.body[at..at + 4].try_into().unwrap());
    let at = 4 + number(0) as usize;
    let metadata = &reply.body[at..at + number(4) as usize];
    let (header, body) = metadata.split_at(12);
    match header[0] {
        4 => format!("failure {}: {}", header[3], String::from_utf8_lossy(body)),
        kind => format!("a reply of kind {kind}: {}", hex(body)),
    }
}

fn abstract_socket(packets: bool, name: &str) -> (OwnedFd, UnixAddr) {
    let kind = match packets {
        true => SockType::SeqPacket,
        false => SockType::Stream,
    };
    let flags = SockFlag::SOCK_CLOEXEC;
    let made = socket(AddressFamily::Unix, kind, flags, None).unwrap();
    let bound = TimeVal::new(SOON.as_secs() as i64, 0);
    setsockopt(&made, ReceiveTimeout, &bound).unwrap();
    (made, UnixAddr::new_abstract(name.as_bytes()).unwrap())
}

/// What an exchange answers to the last of these packets: its kind.
fn exchange_says(name: &str, packets: &[&[u8]]) -> String {
    let (made, address) = abstract_socket(true, name);
    if connect(made.as_raw_fd(), &address).is_err() {
        return "no connection".to_owned();
    }
    let mut words = String::new();
    for packet in packets {
        let _ = send(made.as_raw_fd(), packet, MsgFlags::MSG_NOSIGNAL);
        let mut bytes = [0; 256];
        words = match recv(made.as_raw_fd(), &mut bytes, MsgFlags::empty()) {
            Ok(0) | Err(Errno::ECONNRESET) => return "not a byte".to_owned(),
            Ok(_) => format!("a packet of kind {}", bytes[0]),
            Err(errno) => return errno.to_string(),
        };
    }
    words
}

/// What whoever connects to this name says first.
fn hears(packets: bool, name: &str) -> String {
    let (made, address) = abstract_socket(packets, name);
    bind(made.as_raw_fd(), &address).unwrap();
    listen(&made, Backlog::new(8).unwrap()).unwrap();
    say("waits", "");
    let bound = PollTimeout::try_from(SOON).unwrap();
    let mut fds = [PollFd::new(
        std::os::fd::AsFd::as_fd(&made),
        PollFlags::POLLIN,
    )];
    if poll(&mut fds, bound) != Ok(1) {
        return "nobody".to_owned();
    }
    let came = accept(made.as_raw_fd()).unwrap();
    let mut bytes = [0; 256];
    match recv(came, &mut bytes, MsgFlags::empty()) {
        Ok(0) | Err(Errno::ECONNRESET) => "not a byte".to_owned(),
        Ok(len) => format!("{len} bytes"),
        Err(errno) => errno.to_string(),
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn unhex(digits: &str) -> Vec<u8> {
    let pairs = digits.as_bytes().chunks(2);
    let byte = |pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
    pairs.map(byte).collect()
}
