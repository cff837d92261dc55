//! The handshake: one round trip.
//!
//! ```text
//! connector                              listener
//!   preface, HELLO (brochure)  ------->
//!                              <-------  preface, ANSWER (what was chosen)   or REJECT
//!   stay: MESSAGE …            ------->
//!   move: on the other transport
//!         preface, HELLO (join token), MESSAGE …  ------->
//!                              <-------  preface, JOINED, MESSAGE …          or REJECT
//!         or, where that fails, STAY, MESSAGE … on the first connection
//! ```

mod client;
mod select;
mod server;

pub(crate) use client::{ClientHandshake, Reply};
pub(crate) use select::{LocalChannel, LocalTransport, Selection, select};
pub(crate) use server::ServerHandshake;

use super::wire::frame::{HEADER_LEN, Header, Kind};
use super::wire::hello::HANDSHAKE_MAX;
use super::wire::{MAGIC, PREFACE_LEN, VERSION, VERSION_MIN};
use crate::error::PeerFault;

/// Checks the preface at the front of `input`, as far as it is there. `Ok(true)`: it is there whole and fits.
fn check_preface(input: &[u8]) -> Result<bool, PeerFault> {
    let magic = &input[..input.len().min(MAGIC.len())];
    if !MAGIC.starts_with(magic) {
        let first = input[..input.len().min(16)].escape_ascii().to_string();
        return Err(PeerFault::BadMagic {
            first,
            hint: hint(input),
        });
    }
    let Some(preface) = input.first_chunk::<PREFACE_LEN>() else {
        return Ok(false);
    };
    let high = u16::from_le_bytes([preface[8], preface[9]]);
    let low = u16::from_le_bytes([preface[10], preface[11]]);
    if low > VERSION || high < VERSION_MIN || low > high {
        return Err(PeerFault::Version {
            low,
            high,
            our_low: VERSION_MIN,
            our_high: VERSION,
        });
    }
    Ok(true)
}

fn hint(first: &[u8]) -> &'static str {
    const VERBS: [&[u8]; 6] = [b"GET", b"POST", b"HEAD", b"PUT", b"OPTIONS", b"PRI"];
    if VERBS.iter().any(|verb| first.starts_with(verb)) {
        ", that is an HTTP request; this port serves no HTTP"
    } else if first.starts_with(b"HTTP") {
        ", that is an HTTP server; connect to another port"
    } else if first.starts_with(&[0x16, 0x03]) {
        ", that is TLS, which this address does not expect"
    } else {
        ""
    }
}

/// The frame at the front of `input` if it is there whole: its kind, and its body's range.
fn whole_frame(input: &[u8]) -> Result<Option<(Kind, std::ops::Range<usize>)>, PeerFault> {
    let Some(header) = input.first_chunk::<HEADER_LEN>() else {
        return Ok(None);
    };
    let Header { len, kind, .. } = Header::decode(header)?;
    if len > HANDSHAKE_MAX {
        let frame = kind.map_or("skipped", Kind::name);
        return Err(PeerFault::FrameTooLarge {
            frame,
            len: u64::from(len),
            limit: u64::from(HANDSHAKE_MAX),
        });
    }
    let Some(kind) = kind else {
        return Err(PeerFault::Unexpected {
            frame: "skippable",
            when: "during the handshake",
        });
    };
    let body = HEADER_LEN..HEADER_LEN + len as usize;
    Ok((input.len() >= body.end).then_some((kind, body)))
}
