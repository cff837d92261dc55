//! What two ends prove to each other: that they have the same secret, which is never sent.
//!
//! An application gives its context a *token*: a name and a secret. Both ends of a pipe derive the [`PipeKey`] from the secret and
//! from all that the handshake has said, with a number of each end's that never comes again. Where no token is configured, a
//! transport that has keys of its own (TLS) gives one. Whoever has the pipe's key is one of its two ends.
//!
//! Invariant: a secret or a key is used by HMAC-SHA-256 alone, under a label that says what for and by which end. So what one end has
//! said proves nothing when it is said again elsewhere, by the other end, or about something else. Proofs are compared in constant
//! time. WIRE.md has the bytes.

use std::fmt;
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::error::Misuse;

/// The shortest secret, in bytes: no fewer than what guessing is hopeless with.
const SECRET_MIN: usize = 16;

/// HMAC-SHA-256 takes a key of up to so many bytes as it is, and hashes a longer one (RFC 2104).
const HMAC_BLOCK: usize = 64;

/// The longest name of a token, in bytes.
pub(crate) const NAME_MAX: usize = 64;

/// An HMAC-SHA-256.
pub(crate) type Proof = [u8; 32];

/// Random, and never used twice.
pub(crate) type Nonce = [u8; 32];

/// What only the two ends of one connection know: [`Connection::exporter_secret`](crate::transports::Connection::exporter_secret).
pub(crate) type Binding = [u8; 32];

/// A token: a name, and what both ends know.
#[derive(Clone)]
pub(crate) struct Secret {
    name: Arc<str>,
    bytes: Arc<Zeroizing<Vec<u8>>>,
}

impl Secret {
    pub(crate) fn new(name: String, secret: Vec<u8>) -> Result<Self, Misuse> {
        let bytes = Zeroizing::new(secret);
        let config = |what, wanted: String, found: String| Misuse::Config {
            what,
            wanted,
            found,
        };
        if name.is_empty() || name.len() > NAME_MAX || name.chars().any(char::is_control) {
            let wanted = format!("of 1 to {NAME_MAX} bytes, without control characters");
            return Err(config("a token's name", wanted, format!("{name:?}")));
        }
        if bytes.len() < SECRET_MIN {
            let wanted = format!("at least {SECRET_MIN} random bytes long");
            let found = format!("{} for `{name}`", bytes.len());
            return Err(config("a token's secret", wanted, found));
        }
        // HMAC would hash a key that is longer than a block each time, and so tell by its time which names exist.
        let bytes = match bytes.len() > HMAC_BLOCK {
            true => Zeroizing::new(Sha256::digest(&*bytes).to_vec()),
            false => bytes,
        };
        Ok(Self {
            name: name.into(),
            bytes: Arc::new(bytes),
        })
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }
}

/// The secret is nobody's to read.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Secret").field(&self.name).finish()
    }
}

/// The tokens of a context.
#[derive(Debug)]
pub(crate) struct Tokens {
    /// A listener takes each of them; a connector proves the first.
    all: Vec<Secret>,
    /// Nobody has it. Who names a token that there is not gets the same answers, at the same cost, as who guesses its secret.
    decoy: Secret,
}

impl Tokens {
    /// `decoy` is random.
    pub(crate) fn new(all: Vec<Secret>, decoy: Nonce) -> Result<Self, Misuse> {
        for (at, secret) in all.iter().enumerate() {
            if all[..at].iter().any(|other| other.name == secret.name) {
                return Err(Misuse::Config {
                    what: "tokens' names",
                    wanted: "different from each other: a new secret gets a new name".to_owned(),
                    found: format!("`{}` twice", secret.name),
                });
            }
        }
        let decoy = Secret::new("-".to_owned(), decoy.to_vec())?;
        Ok(Self { all, decoy })
    }

    /// What a connector proves.
    pub(crate) fn first(&self) -> Option<&Secret> {
        self.all.first()
    }

    /// Whether a listener asks for one.
    pub(crate) fn are_required(&self) -> bool {
        !self.all.is_empty()
    }

    /// The one of this name, or one that nobody has.
    pub(crate) fn named(&self, name: &str) -> &Secret {
        let found = self.all.iter().find(|secret| *secret.name == *name);
        found.unwrap_or(&self.decoy)
    }
}

/// All that the two ends have said, hashed as it is said.
#[derive(Clone)]
pub(crate) struct Transcript(Sha256);

impl Transcript {
    /// On a connection that has keys of its own, whose number is the same at both of its ends and at no others.
    pub(crate) fn new(binding: Option<&Binding>) -> Self {
        let mut begun = Self(Sha256::new());
        begun.add(binding.map_or(&[][..], |binding| binding));
        begun
    }

    pub(crate) fn add(&mut self, said: &[u8]) {
        self.0.update((said.len() as u32).to_le_bytes());
        self.0.update(said);
    }

    fn so_far(&self) -> [u8; 32] {
        self.0.clone().finalize().into()
    }
}

impl fmt::Debug for Transcript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Transcript")
    }
}

/// Who proves something of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// The listener, that it has the secret: before it knows whether the connector has.
    Challenge,
    /// The connector, that it has the secret and has said HELLO.
    Hello,
    /// The listener, that it has said ANSWER.
    Answer,
}

/// What a further connection of a pipe is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JoinKind {
    /// The pipe moves there.
    Upgrade,
    /// A channel has had it from the beginning.
    Channel,
    /// A channel has asked for it since.
    Further,
}

/// A connection that is to become one of a pipe's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Join<'a> {
    pub(crate) kind: JoinKind,
    /// The transport's name.
    pub(crate) over: &'a str,
    pub(crate) token: &'a [u8; 16],
    /// Of this connection.
    pub(crate) binding: Option<&'a Binding>,
}

/// What the two ends of one pipe have, and nobody else.
#[derive(Clone)]
pub(crate) struct PipeKey(Arc<Zeroizing<[u8; 32]>>);

impl PipeKey {
    /// Of a handshake whose two ends have the same secret.
    pub(crate) fn of_token(secret: &Secret, said: &Transcript) -> Self {
        let label = "tensorpipe 1 key of a token";
        Self::new(mac(&secret.bytes, &[label.as_bytes(), &said.so_far()]))
    }

    /// Of a pipe whose first connection has keys of its own.
    pub(crate) fn of_connection(binding: &Binding) -> Self {
        let label = "tensorpipe 1 key of a connection";
        Self::new(mac(binding, &[label.as_bytes()]))
    }

    fn new(key: [u8; 32]) -> Self {
        Self(Arc::new(Zeroizing::new(key)))
    }

    pub(crate) fn prove(&self, by: By, said: &Transcript) -> Proof {
        let label = match by {
            By::Challenge => "challenge",
            By::Hello => "hello",
            By::Answer => "answer",
        };
        self.mac(label, &[&said.so_far()])
    }

    /// What the connector says of a connection.
    pub(crate) fn join(&self, join: &Join<'_>) -> Proof {
        self.about("join", join)
    }

    /// What the listener says when it lets the connection join.
    pub(crate) fn joined(&self, join: &Join<'_>) -> Proof {
        self.about("joined", join)
    }

    /// What the connector says on the first connection, where it could not upgrade to the one with this token.
    pub(crate) fn stay(&self, token: &[u8; 16]) -> Proof {
        self.mac("stay", &[token])
    }

    fn about(&self, label: &str, join: &Join<'_>) -> Proof {
        let kind = match join.kind {
            JoinKind::Upgrade => 0u8,
            JoinKind::Channel => 1,
            JoinKind::Further => 2,
        };
        let binding = join.binding.map_or(&[][..], |binding| binding);
        self.mac(label, &[&[kind], join.over.as_bytes(), join.token, binding])
    }

    /// What a process brings to another one's exchange, whose name this is, where that has told it `number` over the pipe.
    pub(crate) fn invitation(&self, exchange: &str, number: &[u8; 16]) -> [u8; 16] {
        front(self.mac("invitation", &[exchange.as_bytes(), number]))
    }

    /// What an exchange of this name knows if its process is at an end of the pipe.
    pub(crate) fn pass(&self, exchange: &str) -> [u8; 16] {
        front(self.mac("exchange", &[exchange.as_bytes()]))
    }

    fn mac(&self, label: &str, fields: &[&[u8]]) -> Proof {
        let fields = std::iter::once(label.as_bytes()).chain(fields.iter().copied());
        mac(&**self.0, &fields.collect::<Vec<_>>())
    }
}

impl fmt::Debug for PipeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PipeKey")
    }
}

/// Whether two proofs are the same, in a time that does not tell where they differ.
pub(crate) fn is_same(one: &Proof, other: &Proof) -> bool {
    one.ct_eq(other).into()
}

/// Of fields that cannot be taken for others: each behind its length.
fn mac(key: &[u8], fields: &[&[u8]]) -> Proof {
    // HMAC takes a key of any length.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else {
        unreachable!("HMAC takes a key of any length");
    };
    for field in fields {
        mac.update(&(field.len() as u32).to_le_bytes());
        mac.update(field);
    }
    mac.finalize().into_bytes().into()
}

fn front(proof: Proof) -> [u8; 16] {
    let mut front = [0; 16];
    front.copy_from_slice(&proof[..16]);
    front
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(name: &str) -> Secret {
        Secret::new(name.to_owned(), b"sixteen bytes or more".to_vec()).unwrap()
    }

    #[test]
    fn a_secret_is_long_named_once_and_never_shown() {
        let bad = |name: &str, len: usize| Secret::new(name.to_owned(), vec![7; len]).unwrap_err();
        assert!(bad("a", 15).to_string().contains("at least 16"));
        for name in ["", "a\nb", &"a".repeat(65)] {
            assert!(matches!(bad(name, 16), Misuse::Config { .. }), "{name}");
        }
        let tokens = Tokens::new(vec![secret("old"), secret("new")], [1; 32]).unwrap();
        let shown = format!("{tokens:?}");
        assert!(
            shown.contains("old") && !shown.contains("sixteen"),
            "{shown}"
        );
        let twice = Tokens::new(vec![secret("a"), secret("a")], [1; 32]).unwrap_err();
        assert!(twice.to_string().contains("`a` twice"), "{twice}");
    }

    /// RFC 4231, test case 2, with the lengths that stand before the fields here counted in.
    #[test]
    fn it_is_hmac_sha_256() {
        let mut plain = Hmac::<Sha256>::new_from_slice(b"Jefe").unwrap();
        plain.update(b"what do ya want for nothing?");
        let known: [u8; 32] = plain.finalize().into_bytes().into();
        assert_eq!(known[..4], [0x5b, 0xdc, 0xc1, 0x46]);
        let mut by_hand = Hmac::<Sha256>::new_from_slice(b"Jefe").unwrap();
        by_hand.update(b"\x04\0\0\0what\x03\0\0\0 do");
        let by_hand: [u8; 32] = by_hand.finalize().into_bytes().into();
        assert_eq!(mac(b"Jefe", &[b"what", b" do"]), by_hand);
    }

    /// So that a name costs the same, whatever its secret.
    #[test]
    fn a_long_secret_is_hashed_once() {
        for (len, kept) in [(64, 64), (65, 32), (4096, 32)] {
            let bytes = vec![7; len];
            let secret = Secret::new("a".to_owned(), bytes.clone()).unwrap();
            assert_eq!(secret.bytes.len(), kept);
            assert_eq!(mac(&secret.bytes, &[b"said"]), mac(&bytes, &[b"said"]));
        }
    }

    /// Whatever differs, the proof does: secret, transcript, binding, direction, kind, transport, token, exchange.
    #[test]
    fn nothing_proves_anything_else() {
        let mut said = Transcript::new(None);
        said.add(b"hello");
        let key = PipeKey::of_token(&secret("a"), &said);
        let other = Secret::new("a".to_owned(), vec![8; 16]).unwrap();
        let mut parts = Transcript::new(None);
        parts.add(b"hel");
        parts.add(b"lo");
        let mut bound = Transcript::new(Some(&[9; 32]));
        bound.add(b"hello");
        let join = Join {
            kind: JoinKind::Upgrade,
            over: "shm",
            token: &[3; 16],
            binding: None,
        };
        let kind = JoinKind::Further;
        let all = [
            key.prove(By::Challenge, &said),
            key.prove(By::Hello, &said),
            key.prove(By::Answer, &said),
            key.prove(By::Hello, &parts),
            key.prove(By::Hello, &bound),
            PipeKey::of_token(&other, &said).prove(By::Hello, &said),
            PipeKey::of_token(&secret("a"), &bound).prove(By::Hello, &said),
            PipeKey::of_connection(&[9; 32]).prove(By::Hello, &said),
            key.stay(&[3; 16]),
            key.stay(&[4; 16]),
            key.join(&join),
            key.joined(&join),
            key.join(&Join { kind, ..join }),
            key.join(&Join {
                over: "tcp",
                ..join
            }),
            key.join(&Join {
                token: &[4; 16],
                ..join
            }),
            key.join(&Join {
                binding: Some(&[9; 32]),
                ..join
            }),
        ];
        for (at, proof) in all.iter().enumerate() {
            assert!(
                all[..at].iter().all(|before| !is_same(before, proof)),
                "{at}"
            );
        }
        assert_ne!(key.invitation("x", &[1; 16]), key.invitation("y", &[1; 16]));
        assert_ne!(key.invitation("x", &[1; 16]), key.invitation("x", &[2; 16]));
        assert_ne!(key.pass("x"), key.pass("y"));
    }
}
