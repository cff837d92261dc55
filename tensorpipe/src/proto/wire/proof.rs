//! The frames by which two ends prove that they have the same secret: KEY, CHALLENGE, PROOF.

use super::codec::{Put, Reader};
use super::frame::{Kind, put_frame};
use crate::error::PeerFault;
use crate::keys::{NAME_MAX, Nonce, Proof};

/// The longest body of KEY, in bytes.
pub(crate) const KEY_MAX: u32 = 2 + NAME_MAX as u32 + 32;

/// The body of CHALLENGE, in bytes.
pub(crate) const CHALLENGE_LEN: u32 = 64;

/// The body of PROOF, in bytes.
pub(crate) const PROOF_LEN: u32 = 32;

/// The connector says which token it has.
pub(crate) fn put_key(out: &mut Vec<u8>, name: &str, nonce: &Nonce) {
    put_frame(out, Kind::Key, 0, |out| {
        out.put_text(name);
        out.put_bytes(nonce);
    });
}

/// The token's name and the connector's number.
pub(crate) fn decode_key(body: &[u8]) -> Result<(String, Nonce), PeerFault> {
    let mut r = Reader::new(body, Kind::Key);
    let name = r.legible()?;
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(r.malformed("a name that no token has"));
    }
    Ok((name, r.array()?))
}

/// The listener proves that it has it, too.
pub(crate) fn put_challenge(out: &mut Vec<u8>, nonce: &Nonce, proof: &Proof) {
    put_frame(out, Kind::Challenge, 0, |out| {
        out.put_bytes(nonce);
        out.put_bytes(proof);
    });
}

/// The listener's number and its proof.
pub(crate) fn decode_challenge(body: &[u8]) -> Result<(Nonce, Proof), PeerFault> {
    let mut r = Reader::new(body, Kind::Challenge);
    Ok((r.array()?, r.array()?))
}

/// Of the frame that follows, and of all before.
pub(crate) fn put_proof(out: &mut Vec<u8>, proof: &Proof) {
    put_frame(out, Kind::Proof, 0, |out| out.put_bytes(proof));
}

pub(crate) fn decode_proof(body: &[u8]) -> Result<Proof, PeerFault> {
    Reader::new(body, Kind::Proof).array()
}
