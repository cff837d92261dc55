//! The handshake's frames: HELLO (who I am, what I have), ANSWER (what was chosen), REJECT, STAY, JOINED. By KEY, CHALLENGE and PROOF the
//! two ends prove that they have the same secret.

use super::codec::{Put, Reader};
use super::frame::{HEADER_LEN, Kind, put_frame};
pub(crate) use super::limits::{Amount, FRAME_SHARE_MAX, WireLimits};
use crate::device::Device;
use crate::error::PeerFault;
use crate::keys::{NAME_MAX, Nonce, Proof};

/// The longest handshake frame, in bytes; with the preface it bounds what a connection costs before it is known.
pub(crate) const HANDSHAKE_MAX: u32 = 32 << 10;

/// The most transports, and the most channels, that a HELLO or ANSWER may name.
pub(crate) const OFFERS_MAX: usize = 64;

/// The most devices that a HELLO or ANSWER may name, those of all channels together. In memory each of these takes
/// many times its bytes, and an unproven peer must not cost more than its connection is allowed to.
pub(crate) const DEVICES_MAX: usize = 512;

/// The most devices of one channel; further ones are not named.
pub(crate) const CHANNEL_DEVICES_MAX: usize = u8::MAX as usize;

/// The longest body of KEY, in bytes.
pub(crate) const KEY_MAX: u32 = 2 + NAME_MAX as u32 + 32;

/// The body of CHALLENGE, in bytes.
pub(crate) const CHALLENGE_LEN: u32 = 64;

/// The body of PROOF, in bytes.
pub(crate) const PROOF_LEN: u32 = 32;

/// A random 128-bit number, sent where guessing must fail.
pub(crate) type Token = [u8; 16];

/// A transport on offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TransportOffer {
    pub(crate) name: String,
    pub(crate) domain: Vec<u8>,
}

/// A channel on offer, with a descriptor for each device it serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChannelOffer {
    pub(crate) name: String,
    pub(crate) connections: u8,
    pub(crate) devices: Vec<(Device, Vec<u8>)>,
}

/// Everything that a context has, in order of preference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Brochure {
    pub(crate) transports: Vec<TransportOffer>,
    pub(crate) channels: Vec<ChannelOffer>,
}

/// What a connection is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A new pipe.
    Pipe {
        name: String,
        process: Token,
        limits: WireLimits,
        brochure: Brochure,
    },
    /// One more connection of a pipe.
    Join {
        token: Token,
        /// Proves that it comes from the pipe's other end, if the pipe has a key.
        proof: Option<Proof>,
    },
}

/// One channel that may carry tensors, and over which extra connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChosenChannel {
    pub(crate) name: String,
    /// One token for each connection of its own.
    pub(crate) tokens: Vec<Token>,
    /// The listener's descriptors.
    pub(crate) devices: Vec<(Device, Vec<u8>)>,
    /// How many devices the connector has offered for it.
    pub(crate) offered: u8,
    /// Between which of `devices`, and of the connector's, it may be used: their positions.
    pub(crate) pairs: Vec<(u8, u8)>,
}

/// The listener's choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) name: String,
    pub(crate) process: Token,
    pub(crate) limits: WireLimits,
    /// Transport, address and token to upgrade to; `None` stays on this connection.
    pub(crate) upgrade: Option<(String, String, Token)>,
    /// In order of preference; a tensor's descriptor names one by its position.
    pub(crate) channels: Vec<ChosenChannel>,
    /// What was not chosen, and why: (`transport`/`channel` name, reason).
    pub(crate) refusals: Vec<(String, String)>,
}

fn put_devices(out: &mut Vec<u8>, devices: &[(Device, Vec<u8>)]) {
    let devices = &devices[..devices.len().min(CHANNEL_DEVICES_MAX)];
    out.put_u8(devices.len() as u8);
    for (device, descriptor) in devices {
        out.put_device(*device);
        out.put_blob(descriptor);
    }
}

/// Pairs of devices as a bit for each of the connector's, in a row for each of the listener's: a machine with many has some thousand.
fn put_pairs(out: &mut Vec<u8>, chosen: &ChosenChannel) {
    out.put_u8(chosen.offered);
    let (start, row_len) = (out.len(), usize::from(chosen.offered).div_ceil(8));
    let rows = chosen.devices.len().min(CHANNEL_DEVICES_MAX);
    out.resize(start + rows * row_len, 0);
    for &(ours, theirs) in &chosen.pairs {
        let row = start + usize::from(ours) * row_len;
        out[row + usize::from(theirs / 8)] |= 1 << (theirs % 8);
    }
}

/// Reads pairs with so many of the listener's devices. Returns how many the connector has, and the pairs.
fn take_pairs(r: &mut Reader<'_>, devices: usize) -> Result<(u8, Vec<(u8, u8)>), PeerFault> {
    let offered = r.u8()?;
    let mut pairs = Vec::new();
    for ours in (0..u8::MAX).take(devices) {
        let row = r.bytes(usize::from(offered).div_ceil(8))?;
        let is_set = |theirs: &u8| row[usize::from(theirs / 8)] >> (theirs % 8) & 1 == 1;
        pairs.extend((0..offered).filter(is_set).map(|theirs| (ours, theirs)));
    }
    Ok((offered, pairs))
}

/// Reads a list of devices, and takes their number off `left`.
fn take_devices(r: &mut Reader<'_>, left: &mut usize) -> Result<Vec<(Device, Vec<u8>)>, PeerFault> {
    let count = usize::from(r.u8()?);
    *left = left
        .checked_sub(count)
        .ok_or_else(|| r.malformed("more devices than a process has"))?;
    r.list(count, |r| Ok((r.device()?, r.blob()?.to_vec())))
}

/// The length of a list of what is on offer.
fn take_count(r: &mut Reader<'_>) -> Result<usize, PeerFault> {
    let count = usize::from(r.u8()?);
    if count > OFFERS_MAX {
        return Err(r.malformed("more transports or channels than a process has"));
    }
    Ok(count)
}

/// Whether a peer takes a frame that names so many devices of each channel.
fn check_size(
    put: impl FnOnce(&mut Vec<u8>),
    devices: impl Iterator<Item = usize>,
) -> Result<(), String> {
    let mut frame = Vec::new();
    put(&mut frame);
    let len = frame.len() - HEADER_LEN;
    let devices: usize = devices.map(|count| count.min(CHANNEL_DEVICES_MAX)).sum();
    if len <= HANDSHAKE_MAX as usize && devices <= DEVICES_MAX {
        return Ok(());
    }
    Err(format!(
        "it has {len} bytes and names {devices} devices, and a peer reads {HANDSHAKE_MAX} and {DEVICES_MAX}; use fewer devices or channels"
    ))
}

impl Purpose {
    /// As [`Answer::check_size`], for who listens.
    pub(crate) fn check_size(&self) -> Result<(), String> {
        let devices = match self {
            Self::Pipe { brochure, .. } => &brochure.channels[..],
            Self::Join { .. } => &[],
        };
        let devices = devices.iter().map(|channel| channel.devices.len());
        check_size(|out| self.put(out), devices)
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        put_frame(out, Kind::Hello, 0, |out| match self {
            Self::Pipe {
                name,
                process,
                limits,
                brochure,
            } => {
                out.put_u8(0);
                out.put_text(name);
                out.put_bytes(process);
                limits.put(out);
                out.put_u8(brochure.transports.len() as u8);
                for transport in &brochure.transports {
                    out.put_text(&transport.name);
                    out.put_blob(&transport.domain);
                }
                out.put_u8(brochure.channels.len() as u8);
                for channel in &brochure.channels {
                    out.put_text(&channel.name);
                    out.put_u8(channel.connections);
                    put_devices(out, &channel.devices);
                }
            }
            Self::Join { token, proof } => {
                out.put_u8(if proof.is_some() { 2 } else { 1 });
                out.put_bytes(token);
                proof.iter().for_each(|proof| out.put_bytes(proof));
            }
        });
    }

    /// Whether the body of a HELLO asks for a new pipe. It is read before the connector has proved anything.
    pub(crate) fn is_pipe(body: &[u8]) -> bool {
        body.first() == Some(&0)
    }

    pub(crate) fn decode(body: &[u8]) -> Result<Self, PeerFault> {
        let mut r = Reader::new(body, Kind::Hello);
        match r.u8()? {
            0 => {
                let name = r.legible()?;
                let process = r.array()?;
                let limits = WireLimits::take(&mut r)?;
                let count = take_count(&mut r)?;
                let transports = r.list(count, |r| {
                    Ok(TransportOffer {
                        name: r.legible()?,
                        domain: r.blob()?.to_vec(),
                    })
                })?;
                let mut devices = DEVICES_MAX;
                let count = take_count(&mut r)?;
                let channels = r.list(count, |r| {
                    Ok(ChannelOffer {
                        name: r.legible()?,
                        connections: r.u8()?,
                        devices: take_devices(r, &mut devices)?,
                    })
                })?;
                Ok(Self::Pipe {
                    name,
                    process,
                    limits,
                    brochure: Brochure {
                        transports,
                        channels,
                    },
                })
            }
            1 => Ok(Self::Join {
                token: r.array()?,
                proof: None,
            }),
            2 => Ok(Self::Join {
                token: r.array()?,
                proof: Some(r.array()?),
            }),
            _ => Err(r.malformed("a purpose that is neither a new pipe nor a join")),
        }
    }
}

impl Answer {
    /// Whether a connector takes it.
    ///
    /// # Errors
    /// In words: it is too long, or names too many devices.
    pub(crate) fn check_size(&self) -> Result<(), String> {
        let devices = self.channels.iter().map(|channel| channel.devices.len());
        check_size(|out| self.put(out), devices)
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        put_frame(out, Kind::Answer, 0, |out| {
            out.put_text(&self.name);
            out.put_bytes(&self.process);
            self.limits.put(out);
            match &self.upgrade {
                None => out.put_u8(0),
                Some((transport, address, token)) => {
                    out.put_u8(1);
                    out.put_text(transport);
                    out.put_text(address);
                    out.put_bytes(token);
                }
            }
            out.put_u8(self.channels.len() as u8);
            for channel in &self.channels {
                out.put_text(&channel.name);
                out.put_u8(channel.tokens.len() as u8);
                channel.tokens.iter().for_each(|token| out.put_bytes(token));
                put_devices(out, &channel.devices);
                put_pairs(out, channel);
            }
            out.put_u8(self.refusals.len() as u8);
            for (candidate, reason) in &self.refusals {
                out.put_text(candidate);
                out.put_text(reason);
            }
        });
    }

    pub(crate) fn decode(body: &[u8]) -> Result<Self, PeerFault> {
        let mut r = Reader::new(body, Kind::Answer);
        let name = r.legible()?;
        let process = r.array()?;
        let limits = WireLimits::take(&mut r)?;
        let upgrade = match r.u8()? {
            0 => None,
            1 => Some((r.legible()?, r.printable()?.to_owned(), r.array()?)),
            _ => return Err(r.malformed("a verdict that is neither stay nor upgrade")),
        };
        let mut devices = DEVICES_MAX;
        let count = take_count(&mut r)?;
        let channels = r.list(count, |r| {
            let (name, tokens) = (r.legible()?, r.u8()?);
            let tokens = r.list(tokens.into(), Reader::array)?;
            let devices = take_devices(r, &mut devices)?;
            let (offered, pairs) = take_pairs(r, devices.len())?;
            Ok(ChosenChannel {
                name,
                tokens,
                devices,
                offered,
                pairs,
            })
        })?;
        let refusals = r.u8()?;
        let refusals = r.list(refusals.into(), |r| Ok((r.legible()?, r.legible()?)))?;
        Ok(Self {
            name,
            process,
            limits,
            upgrade,
            channels,
            refusals,
        })
    }
}

/// The listener does not want this connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reject {
    /// Whether trying again later can help.
    pub(crate) transient: bool,
    pub(crate) reason: String,
}

impl Reject {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        put_frame(out, Kind::Reject, 0, |out| {
            out.put_u8(u8::from(self.transient));
            out.put_text(&self.reason);
        });
    }

    pub(crate) fn decode(body: &[u8]) -> Result<Self, PeerFault> {
        let mut r = Reader::new(body, Kind::Reject);
        Ok(Self {
            transient: r.u8()? != 0,
            reason: r.legible()?,
        })
    }
}

/// The connector could not upgrade, for this reason, and stays on the first connection. `proof`: that the connector says so, if the pipe
/// has a key.
pub(crate) fn put_stay(out: &mut Vec<u8>, reason: &str, proof: Option<&Proof>) {
    put_frame(out, Kind::Stay, 0, |out| {
        out.put_text(reason);
        proof.iter().for_each(|proof| out.put_bytes(*proof));
    });
}

/// The connection is one of its pipe's from now on. `proof`: that the listener has the pipe's key, if there is one.
pub(crate) fn put_joined(out: &mut Vec<u8>, proof: Option<&Proof>) {
    put_frame(out, Kind::Joined, 0, |out| {
        proof.iter().for_each(|proof| out.put_bytes(*proof));
    });
}

pub(crate) fn decode_joined(body: &[u8]) -> Result<Option<Proof>, PeerFault> {
    take_last(&mut Reader::new(body, Kind::Joined))
}

pub(crate) fn decode_stay(body: &[u8]) -> Result<(String, Option<Proof>), PeerFault> {
    let mut r = Reader::new(body, Kind::Stay);
    Ok((r.legible()?, take_last(&mut r)?))
}

/// The proof at the end of the body, if there is one.
fn take_last(r: &mut Reader<'_>) -> Result<Option<Proof>, PeerFault> {
    let has_one = r.remaining() >= size_of::<Proof>();
    has_one.then(|| r.array()).transpose()
}

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

/// The listener proves that it has the same secret.
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

/// Proves the frame that follows, and everything before it.
pub(crate) fn put_proof(out: &mut Vec<u8>, proof: &Proof) {
    put_frame(out, Kind::Proof, 0, |out| out.put_bytes(proof));
}

pub(crate) fn decode_proof(body: &[u8]) -> Result<Proof, PeerFault> {
    Reader::new(body, Kind::Proof).array()
}
