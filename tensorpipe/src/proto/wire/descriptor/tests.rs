//! Heads come back, and hostile ones are refused.

use super::*;
use crate::proto::wire::hello::tests::limits;

/// Of a payload that rides and a tensor of this shape and metadata that does not.
pub(in crate::proto) fn head(shape: [u64; 2], metadata: &'static [u8]) -> Head {
    Head::with(
        Descriptor {
            metadata: Bytes::from_static(b"meta"),
            payloads: vec![PayloadDescriptor {
                len: 3,
                metadata: Bytes::from_static(b"p"),
            }],
            tensors: vec![TensorDescriptor {
                dtype: DType::F32,
                shape: shape.into(),
                source: Device::CPU,
                target: Some("cuda:1".parse().unwrap()),
                metadata: Bytes::from_static(metadata),
            }],
        },
        Carriages::from_slice(&[
            Carriage::Eager,
            Carriage::Bulk {
                channel: 1,
                ahead: false,
            },
        ]),
    )
}

#[test]
fn a_head_comes_back_and_tells_how_much_it_needs() {
    let mut out = Vec::new();
    let head = head([1 << 20, 2], b"tt");
    let body_len = head.put(&mut out);
    let body = &out[8..];
    assert_eq!(body_len as usize, body.len() + 3);
    let (decoded, used) = Head::decode(body, body_len, 2, &limits()).unwrap().unwrap();
    assert_eq!((decoded, used), (head, body.len()));
    for cut in 0..body.len() {
        let need = Head::decode(&body[..cut], body_len, 2, &limits())
            .unwrap()
            .unwrap_err();
        assert!(need > cut && need <= body.len());
    }
    assert!(
        Head::decode(body, body_len, 1, &limits()).is_err(),
        "channel 1 was not negotiated"
    );
    assert!(
        Head::decode(body, body_len + 1, 2, &limits()).is_err(),
        "eager parts must fill the frame"
    );
}

proptest::proptest! {
    #[test]
    fn any_bytes_are_decoded_or_refused(body in proptest::collection::vec(0u8.., 0..200), len in 0u32..400) {
        let len = len.max(body.len() as u32);
        let _ = Head::decode(&body, len, 3, &limits());
    }

    #[test]
    fn a_flipped_byte_is_decoded_or_refused(at in 12usize..70, value in 0u8..) {
        let mut out = Vec::new();
        let body_len = head([1 << 20, 2], b"tt").put(&mut out);
        if let Some(byte) = out.get_mut(at) { *byte = value; }
        let _ = Head::decode(&out[8..], body_len, 2, &limits());
    }
}
