//! Every control frame comes back as it was; a short one is refused, a longer one is a later version's.

use crate::error::{PeerFault, ResetCode};
use crate::proto::OpId;
use crate::proto::wire::frame::{Control, Header, Kind, OPTIONAL};

#[test]
fn control_frames_come_back() {
    let all = [
        Control::Grant {
            message: 7,
            skip: vec![1, 3],
        },
        Control::Window {
            messages: 1,
            bytes: 2,
            ahead: 3,
        },
        Control::Reset {
            message: 1,
            code: ResetCode::Cancelled,
            text: "enough".into(),
            answer: false,
        },
        Control::Reset {
            message: 1,
            code: ResetCode::Refused,
            text: String::new(),
            answer: true,
        },
        Control::Refuse {
            message: 2,
            code: ResetCode::Skipped,
            text: String::new(),
        },
        Control::Flush { message: 9 },
        Control::Flushed { message: 9 },
        Control::Ping { nonce: 1 },
        Control::Pong { nonce: 1 },
        Control::GoAway {
            next: 4,
            text: "bye".into(),
        },
        Control::Fin,
        Control::FinAck,
        Control::Channel {
            op: OpId::incoming(3, 1).key(),
            yours: true,
            body: vec![1, 2, 3].into(),
        },
    ];
    for control in all {
        let mut out = Vec::new();
        control.put(&mut out);
        let (head, body) = out.split_first_chunk().unwrap();
        let header = Header::decode(head).unwrap();
        assert_eq!(header.len as usize, body.len());
        let kind = header.kind.unwrap();
        assert_eq!(Control::decode(kind, header.flags, body).unwrap(), control);
        // Every shorter body is refused, none panics.
        if !matches!(kind, Kind::Channel) {
            for cut in 0..body.len() {
                assert!(
                    Control::decode(kind, header.flags, &body[..cut]).is_err(),
                    "{kind:?} cut at {cut}"
                );
            }
        }
        // A longer one is a later version's.
        let longer = [body, &[0xff; 9]].concat();
        assert!(Control::decode(kind, header.flags, &longer).is_ok());
    }
}

#[test]
fn an_unknown_frame_is_skipped_only_if_it_says_so() {
    let mut bytes = [5, 0, 0, 0, 200, OPTIONAL, 0, 0];
    assert_eq!(
        Header::decode(&bytes).unwrap(),
        Header {
            len: 5,
            kind: None,
            flags: OPTIONAL
        }
    );
    bytes[5] = 0;
    assert_eq!(
        Header::decode(&bytes),
        Err(PeerFault::UnknownFrame { kind: 200 })
    );
}
