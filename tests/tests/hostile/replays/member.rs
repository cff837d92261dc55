//! A connector by hand, which has the secret.

use tensorpipe::transports::{ShmTransport, Transport};

use super::borrowed_names::upgrade;
use super::proofs::{Handshake, Proof};
use super::raw::{
    ANSWER, Frame, HELLO, PING, PONG, Raw, STAY, frame, limits, noise, preface, text,
};
use super::victim::Victim;
use super::{CHALLENGE, KEY, NAME, PROOF, SECRET};

/// A connector by hand, which the victim has told to upgrade.
pub(super) struct Member {
    pub(super) raw: Raw,
    pub(super) handshake: Option<Handshake>,
    /// All that it said until its answer came.
    pub(super) said: Vec<u8>,
    /// The listener's challenge, as it came.
    pub(super) challenge: Vec<u8>,
    /// What it is to upgrade to, and as who.
    pub(super) address: String,
    pub(super) token: Vec<u8>,
}

/// A HELLO of one that offers `shm` and `tcp`.
fn brochure() -> Vec<u8> {
    let mut body = vec![0];
    body.extend(text(b"member"));
    body.extend([0x11; 16]);
    body.extend(limits());
    body.push(2);
    for (name, domain) in [
        ("shm", ShmTransport::new().domain()),
        ("tcp", b"ip".to_vec()),
    ] {
        body.extend(text(name.as_bytes()));
        body.extend(text(&domain));
    }
    body.push(1);
    body.extend(text(b"basic"));
    body.extend([0, 1, 0]);
    body.extend(text(b"any"));
    frame(HELLO, &body)
}

impl Member {
    pub(super) fn of(victim: &Victim) -> Self {
        let mut raw = Raw::connect(&victim.pipes);
        let hello = brochure();
        let mut said = preface();
        if victim.asks {
            let nonce = noise(u64::from(std::process::id()), 32);
            said.extend(frame(KEY, &[text(NAME.as_bytes()), nonce].concat()));
            raw.send(&said);
            raw.expect_preface();
            let body = raw.frame_of(CHALLENGE).body;
            let mut made = Handshake::new(&SECRET, &said, &preface(), &body[..32]);
            assert_eq!(body[32..], made.prove("challenge"), "WIRE.md");
            let challenge = [preface(), frame(CHALLENGE, &body)].concat();
            let proof = frame(PROOF, &made.next("hello", &hello));
            raw.send(&[&proof[..], &hello].concat());
            said.extend([proof, hello].concat());
            let proof = raw.frame_of(PROOF).body;
            let answer = raw.frame_of(ANSWER);
            let wanted = made.next("answer", &frame(ANSWER, &answer.body));
            assert_eq!(proof, wanted, "WIRE.md");
            return Self::told(raw, Some(made), said, challenge, &answer);
        }
        said.extend(hello);
        raw.send(&said);
        raw.expect_preface();
        let answer = raw.frame_of(ANSWER);
        Self::told(raw, None, said, Vec::new(), &answer)
    }

    fn told(
        raw: Raw,
        handshake: Option<Handshake>,
        said: Vec<u8>,
        challenge: Vec<u8>,
        answer: &Frame,
    ) -> Self {
        let (transport, address, token) = upgrade(answer);
        assert_eq!(transport, "shm");
        Self {
            raw,
            handshake,
            said,
            challenge,
            address,
            token,
        }
    }

    /// What lets a connection join over shm.
    pub(super) fn joins(&self) -> Vec<u8> {
        let made = self.handshake.as_ref();
        self.joins_by(made.map(|made| made.about_move("join", "shm", &self.token)))
    }

    pub(super) fn joins_by(&self, proof: Option<Proof>) -> Vec<u8> {
        let body = match proof {
            None => [&[1][..], &self.token].concat(),
            Some(proof) => [&[2][..], &self.token, &proof].concat(),
        };
        [preface(), frame(HELLO, &body)].concat()
    }

    pub(super) fn stay(&self, proof: Option<Proof>) -> Vec<u8> {
        let proof = proof.map_or(Vec::new(), |proof| proof.to_vec());
        frame(STAY, &[text(b"nobody is there"), proof].concat())
    }

    /// Whether its pipe stands.
    pub(super) fn is_open(&mut self) -> bool {
        self.raw.send(&frame(PING, &[1; 8]));
        std::iter::from_fn(|| self.raw.frame()).any(|frame| frame.kind == PONG)
    }
}
