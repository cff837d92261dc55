//! Reading and writing of integers, strings and lists, with every length checked before it is believed.

use super::frame::Kind;
use crate::device::{Device, DeviceKind};
use crate::error::{PeerFault, legible};

/// Reads from the front of a body. Every method fails with [`PeerFault::Truncated`] rather than read past the end.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    /// The frame's, for errors.
    pub(super) kind: Kind,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(body: &'a [u8], kind: Kind) -> Self {
        Self { rest: body, kind }
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'a [u8], PeerFault> {
        let Some((head, rest)) = self.rest.split_at_checked(len) else {
            return Err(self.kind.truncated());
        };
        self.rest = rest;
        Ok(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], PeerFault> {
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(N)?);
        Ok(out)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, PeerFault> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub(crate) fn u16(&mut self) -> Result<u16, PeerFault> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, PeerFault> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, PeerFault> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// `count` things. Takes memory as they come: a peer may announce more than it sends.
    pub(crate) fn list<T, L: FromIterator<T>>(
        &mut self,
        count: usize,
        mut take: impl FnMut(&mut Self) -> Result<T, PeerFault>,
    ) -> Result<L, PeerFault> {
        (0..count).map(|_| take(self)).collect()
    }

    /// A `u16` length and that many bytes.
    pub(crate) fn blob(&mut self) -> Result<&'a [u8], PeerFault> {
        let len = self.u16()?;
        self.bytes(usize::from(len))
    }

    /// A `u16` length and that much UTF-8.
    pub(crate) fn text(&mut self) -> Result<&'a str, PeerFault> {
        std::str::from_utf8(self.blob()?).map_err(|_| self.malformed("text that is not UTF-8"))
    }

    /// The same for people to read, in errors and logs.
    pub(crate) fn legible(&mut self) -> Result<String, PeerFault> {
        Ok(legible(self.text()?))
    }

    /// The same for what is used as it is, and told in errors and logs, too: a control character in it is a fault.
    pub(crate) fn printable(&mut self) -> Result<&'a str, PeerFault> {
        match self.text()? {
            text if text.contains(char::is_control) => {
                Err(self.malformed("text with a control character"))
            }
            text => Ok(text),
        }
    }

    /// A `u8` length, the kind's name, a `u32` index. Length 0 stands for `cpu:0` and has no index.
    pub(crate) fn device(&mut self) -> Result<Device, PeerFault> {
        let len = self.u8()?;
        if len == 0 {
            return Ok(Device::CPU);
        }
        let name = self.bytes(usize::from(len))?;
        let kind = std::str::from_utf8(name)
            .ok()
            .and_then(|name| DeviceKind::parse(name).ok());
        let kind = kind.ok_or_else(|| self.malformed("a device kind that is not a name"))?;
        Ok(Device::new(kind, self.u32()?))
    }

    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }

    pub(crate) fn malformed(&self, what: &'static str) -> PeerFault {
        self.kind.malformed(what)
    }
}

/// Appends to a buffer of outgoing bytes.
pub(crate) trait Put {
    fn put_bytes(&mut self, bytes: &[u8]);

    fn put_u8(&mut self, value: u8) {
        self.put_bytes(&[value]);
    }

    fn put_u16(&mut self, value: u16) {
        self.put_bytes(&value.to_le_bytes());
    }

    fn put_u32(&mut self, value: u32) {
        self.put_bytes(&value.to_le_bytes());
    }

    fn put_u64(&mut self, value: u64) {
        self.put_bytes(&value.to_le_bytes());
    }

    /// A `u16` length and the bytes. What is longer is cut: only this side's own names come here, checked when set.
    fn put_blob(&mut self, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(usize::from(u16::MAX))];
        self.put_u16(bytes.len() as u16);
        self.put_bytes(bytes);
    }

    /// The same for text, cut between characters.
    fn put_text(&mut self, text: &str) {
        self.put_blob(&text.as_bytes()[..text.floor_char_boundary(usize::from(u16::MAX))]);
    }

    fn put_device(&mut self, device: Device) {
        if device == Device::CPU {
            return self.put_u8(0);
        }
        let name = device.kind.as_str().as_bytes();
        self.put_u8(name.len() as u8);
        self.put_bytes(name);
        self.put_u32(device.index);
    }
}

impl Put for Vec<u8> {
    fn put_bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}
