//! Proofs built by hand from WIRE.md, not by the code under test: a peer with the secret can compute them.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

pub(crate) type Proof = [u8; 32];

/// `mac` of WIRE.md.
pub(crate) fn mac(key: &[u8], fields: &[&[u8]]) -> Proof {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    for field in fields {
        mac.update(&(field.len() as u32).to_le_bytes());
        mac.update(field);
    }
    mac.finalize().into_bytes().into()
}

/// `said` of WIRE.md.
pub(crate) fn said(fields: &[&[u8]]) -> Proof {
    let mut all = Sha256::new();
    for field in fields {
        all.update((field.len() as u32).to_le_bytes());
        all.update(field);
    }
    all.finalize().into()
}

/// A handshake over a connection without keys of its own, whose ends have a secret.
pub(crate) struct Handshake {
    said: Vec<Vec<u8>>,
    key: Proof,
}

impl Handshake {
    /// `opening` is the connector's preface and KEY, `preface` and `nonce` the listener's.
    pub(crate) fn new(secret: &[u8], opening: &[u8], preface: &[u8], nonce: &[u8]) -> Self {
        let said = [&[][..], opening, preface, nonce]
            .map(<[u8]>::to_vec)
            .to_vec();
        let mut handshake = Self { said, key: [0; 32] };
        handshake.key = mac(
            secret,
            &[b"tensorpipe 1 key of a token", &handshake.so_far()],
        );
        handshake
    }

    fn so_far(&self) -> Proof {
        said(&self.said.iter().map(|said| &said[..]).collect::<Vec<_>>())
    }

    /// What proves the next frame, which is `label`.
    pub(crate) fn next(&mut self, label: &str, frame: &[u8]) -> Proof {
        self.said.push(frame.to_vec());
        self.prove(label)
    }

    pub(crate) fn prove(&self, label: &str) -> Proof {
        mac(&self.key, &[label.as_bytes(), &self.so_far()])
    }

    /// Of a connection to which the pipe is upgraded: `label` is `join` or `joined`.
    pub(crate) fn about_move(&self, label: &str, over: &str, token: &[u8]) -> Proof {
        let fields = [label.as_bytes(), &[0], over.as_bytes(), token, &[]];
        mac(&self.key, &fields)
    }

    pub(crate) fn stay(&self, token: &[u8]) -> Proof {
        mac(&self.key, &[b"stay", token])
    }
}
