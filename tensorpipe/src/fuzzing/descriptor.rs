//! Heads of messages and control frames: what is decoded is encoded again, and decoded to the same.

use super::OURS;
use crate::proto::wire::descriptor::Head;
use crate::proto::wire::frame::{Control, HEADER_LEN, Header, Kind};

/// Channels that were negotiated.
const CHANNELS: usize = 2;

/// `data` is a frame header and a body; the length in the header stands for the whole body, which may go on.
pub fn descriptor(data: &[u8]) {
    let Some((header, body)) = data.split_first_chunk::<HEADER_LEN>() else {
        return;
    };
    let Ok(Header {
        len,
        kind: Some(kind),
        flags,
    }) = Header::decode(header)
    else {
        return;
    };
    match kind {
        Kind::Message => head(body, len),
        kind => control(kind, flags, body),
    }
}

fn head(body: &[u8], len: u32) {
    let body = &body[..body.len().min(len as usize)];
    match Head::decode(body, len, CHANNELS, &OURS) {
        Err(_) => {}
        Ok(Err(need)) => {
            assert!(
                need > body.len(),
                "it has the {need} bytes that it asks for"
            );
            assert!(need <= len as usize, "it asks for more than the frame has");
        }
        Ok(Ok((head, used))) => {
            assert!(used <= body.len());
            let mut out = Vec::new();
            head.put(&mut out);
            let again = u32::from_le_bytes([out[0], out[1], out[2], out[3]]);
            let body = &out[HEADER_LEN..];
            let decoded = Head::decode(body, again, CHANNELS, &OURS);
            // Equal, and nothing but the eager parts is behind it.
            assert_eq!(decoded, Ok(Ok((head.clone(), body.len()))));
            assert_eq!(u64::from(again), body.len() as u64 + head.eager_len());
        }
    }
}

fn control(kind: Kind, flags: u8, body: &[u8]) {
    let Ok(frame) = Control::decode(kind, flags, body) else {
        return;
    };
    let mut out = Vec::new();
    frame.put(&mut out);
    let Some((header, body)) = out.split_first_chunk::<HEADER_LEN>() else {
        panic!("no header");
    };
    let header = Header::decode(header).unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!((header.kind, header.len as usize), (Some(kind), body.len()));
    assert_eq!(Control::decode(kind, header.flags, body), Ok(frame));
}
