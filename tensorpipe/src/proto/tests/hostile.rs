//! Every fault that a peer's frames can be, made by hand; and floods, which cost bounded memory.

use bytes::Bytes;

use crate::descriptor::{Descriptor, PayloadDescriptor, TensorDescriptor};
use crate::device::Device;
use crate::error::{PeerFault, ResetCode};
use crate::proto::OpId;
use crate::proto::sim::{Pair, limits, message};
use crate::proto::wire::descriptor::{Carriage, Head};
use crate::proto::wire::frame::{Control, Kind, OPTIONAL};
use crate::tensor::DType;

/// `b` reads message 1, a tensor of 5000 bytes, has not decided on 2, another, and has refused 3. It has sent one message
/// itself. Nothing of `a` is on its way any more.
pub(super) fn scene() -> Pair {
    let mut pair = Pair::new();
    pair.b.eager_reader = false;
    pair.a.eager_reader = false;
    pair.a.write(&message("eager").payload(10));
    for _ in 0..3 {
        pair.a.write(&message("bulk").tensor(5000));
    }
    pair.b.write(&message("answer").tensor(5000));
    pair.run();
    pair.b.read(1);
    pair.b.refuse(3, ResetCode::Refused);
    pair
}

pub(super) fn frame(kind: u8, flags: u8, body: &[u8]) -> Vec<u8> {
    let mut out = (body.len() as u32).to_le_bytes().to_vec();
    out.extend_from_slice(&[kind, flags, 0, 0]);
    out.extend_from_slice(body);
    out
}

pub(super) fn control(frames: &[Control]) -> Vec<u8> {
    let mut out = Vec::new();
    frames.iter().for_each(|frame| frame.put(&mut out));
    out
}

pub(super) fn data(message: u64, part: u16, len: usize) -> Vec<u8> {
    data_of(OpId::incoming(message, part), len)
}

pub(super) fn data_of(op: OpId, len: usize) -> Vec<u8> {
    let mut body = op.key().to_vec();
    body.resize(body.len() + len, 7);
    frame(Kind::Data as u8, 0, &body)
}

pub(super) fn head(payloads: &[(u64, Carriage)]) -> Vec<u8> {
    let mut out = Vec::new();
    let head = Head::with(
        Descriptor {
            payloads: payloads
                .iter()
                .map(|(len, _)| PayloadDescriptor {
                    len: *len,
                    metadata: Bytes::new(),
                })
                .collect(),
            ..Descriptor::default()
        },
        payloads.iter().map(|(_, carriage)| *carriage).collect(),
    );
    head.put(&mut out);
    out
}

pub(super) const fn bulk(channel: u8, ahead: bool) -> Carriage {
    Carriage::Bulk { channel, ahead }
}

pub(super) fn reason(message: u64, answer: bool) -> Control {
    Control::Reset {
        message,
        code: ResetCode::Cancelled,
        text: String::new(),
        answer,
    }
}

pub(super) fn refuse(message: u64) -> Control {
    Control::Refuse {
        message,
        code: ResetCode::Refused,
        text: "no".repeat(500),
    }
}

/// What the pipe says of `bytes`, whole and byte by byte.
fn fault(bytes: &[u8]) -> Option<PeerFault> {
    let faults = [usize::MAX, 1].map(|split| {
        let mut pair = scene();
        pair.b.split = split;
        pair.b.receive(bytes, pair.now);
        pair.b.fault
    });
    assert_eq!(faults[0], faults[1]);
    let [fault, _] = faults;
    fault
}

#[track_caller]
fn unknown(bytes: &[u8], frame: &'static str, message: u64) {
    let expected = PeerFault::UnknownMessage { frame, message };
    assert_eq!(fault(bytes), Some(expected));
}

#[track_caller]
fn unexpected(bytes: &[u8], frame: &'static str) {
    match fault(bytes) {
        Some(PeerFault::Unexpected { frame: found, .. }) => assert_eq!(found, frame),
        other => panic!("{other:?}"),
    }
}

#[test]
fn messages_that_were_never_sent_are_named() {
    let (grant, skip) = (1, Vec::new());
    let named = |frame: Control| control(&[frame]);
    unknown(
        &named(Control::Grant {
            message: grant,
            skip,
        }),
        "GRANT",
        1,
    );
    unknown(&named(refuse(1)), "REFUSE", 1);
    unknown(&named(Control::Flushed { message: 9 }), "FLUSHED", 9);
    unknown(&named(Control::Flush { message: 4 }), "FLUSH", 4);
    unknown(&named(reason(5, false)), "RESET", 5);
    let text = String::new();
    unknown(&named(Control::GoAway { next: 2, text }), "GOAWAY", 2);
    for (message, part, yours) in [(1, 0, true), (4, 0, false), (0, 0, false), (1, 1, false)] {
        let body = Default::default();
        let frame = Control::Channel {
            op: OpId::incoming(message, part).key(),
            yours,
            body,
        };
        unknown(&named(frame), "CHANNEL", message);
    }
}

#[test]
fn data_comes_that_was_not_asked_for() {
    unknown(&data(9, 0, 10), "DATA", 9);
    unknown(&data(2, 0, 10), "DATA", 2);
    unknown(&data(1, 1, 10), "DATA", 1);
    unknown(&data(0, 0, 10), "DATA", 0);
    unknown(&data(3, 1, 10), "DATA", 3);
    assert_eq!(
        fault(&data(3, 0, 10)),
        None,
        "still on its way when it was refused"
    );
    let confirmed = [control(&[reason(3, true)]), data(3, 0, 10)].concat();
    unknown(&confirmed, "DATA", 3);
}

#[test]
fn data_is_longer_than_its_part() {
    let mut bytes: Vec<u8> = (0..4).flat_map(|_| data(1, 0, 1000)).collect();
    assert_eq!(fault(&bytes), None);
    bytes.extend(data(1, 0, 1001));
    let found = Some(PeerFault::LimitExceeded {
        what: "a part",
        found: 5001,
        limit: 5000,
    });
    assert_eq!(fault(&bytes), found);
    let long = fault(&data(1, 0, 1025));
    assert!(matches!(
        long,
        Some(PeerFault::FrameTooLarge { frame: "DATA", .. })
    ));
    let short = fault(&frame(Kind::Data as u8, 0, &[0; 11]));
    assert_eq!(short, Some(PeerFault::Truncated { frame: "DATA" }));
}

#[test]
fn things_are_said_twice_or_at_the_wrong_time() {
    let skip = Vec::new;
    let grant = || Control::Grant {
        message: 0,
        skip: skip(),
    };
    unexpected(&control(&[grant(), grant()]), "GRANT");
    unexpected(&control(&[Control::Fin, Control::Fin]), "FIN");
    unexpected(&control(&[Control::FinAck]), "FIN_ACK");
    unexpected(&[control(&[Control::Fin]), head(&[])].concat(), "MESSAGE");
    unexpected(&control(&[Control::Fin, reason(4, false)]), "RESET");
    unexpected(&control(&[reason(2, true)]), "RESET");
    unexpected(&control(&[reason(3, true), reason(3, true)]), "RESET");
    for kind in 1..=4 {
        let found = fault(&frame(kind, 0, &[0; 40]));
        assert!(matches!(found, Some(PeerFault::Unexpected { .. })));
    }
    let unknown = fault(&frame(77, 0, &[]));
    assert_eq!(unknown, Some(PeerFault::UnknownFrame { kind: 77 }));
}

#[test]
fn credit_is_exceeded() {
    let many: Vec<u8> = (0..5).flat_map(|_| head(&[])).collect();
    let messages = Some(PeerFault::CreditExceeded {
        what: "messages",
        limit: 8,
    });
    assert_eq!(fault(&many), messages);

    let mut large = head(&[(64, Carriage::Eager), (64, Carriage::Eager)]);
    large.extend_from_slice(&[0; 128]);
    let mut pair = Pair::with(limits(), small_window(), None);
    pair.b.eager_reader = false;
    for _ in 0..40 {
        pair.b.receive(&large, pair.now);
    }
    let bytes = Some(PeerFault::CreditExceeded {
        what: "message bytes",
        limit: small_window().window_bytes,
    });
    assert_eq!(pair.b.fault, bytes);

    let ahead = Some(PeerFault::CreditExceeded {
        what: "bytes ahead",
        limit: 0,
    });
    assert_eq!(fault(&head(&[(1, bulk(0, true))])), ahead);
}

fn small_window() -> crate::proto::wire::hello::WireLimits {
    let mut limits = limits();
    limits.window_messages = 100;
    limits.window_bytes = u64::from(limits.frame_max());
    limits
}

#[test]
fn messages_are_larger_than_allowed() {
    let exceeded = |bytes: &[u8], expected: &'static str| match fault(bytes) {
        Some(PeerFault::LimitExceeded { what, .. }) => assert_eq!(what, expected),
        other => panic!("{other:?}"),
    };
    exceeded(&head(&[(1 << 21, bulk(0, false))]), "a payload");
    exceeded(&head(&[(1 << 20, bulk(0, false)); 3]), "a message");
    exceeded(&head(&[(65, Carriage::Eager)]), "an eager part");
    exceeded(
        &head(&[(64, Carriage::Eager); 5]),
        "a message's eager parts",
    );
    exceeded(&head(&[(0, Carriage::Eager); 17]), "payloads and tensors");
    let mut metadata = head(&[]);
    metadata[12..16].copy_from_slice(&5000u32.to_le_bytes());
    exceeded(&metadata, "metadata");

    let length = |len: u32, kind: u8, flags| {
        let mut bytes = len.to_le_bytes().to_vec();
        bytes.extend_from_slice(&[kind, flags, 0, 0]);
        let found = fault(&bytes);
        assert!(
            matches!(found, Some(PeerFault::FrameTooLarge { .. })),
            "{found:?}"
        );
    };
    length(limits().frame_max() + 1, Kind::Message as u8, 0);
    length((16 << 10) + 1, Kind::Ping as u8, 0);
    length(u32::MAX, Kind::Data as u8, 0);
    length(u32::MAX, Kind::Grant as u8, 0);
    length(u32::MAX, 99, OPTIONAL);
}

#[test]
fn lengths_that_add_up_to_more_than_can_be_counted() {
    let mut endless = limits();
    endless.payload = u64::MAX;
    endless.message = u64::MAX;
    endless.window_ahead = u64::MAX;
    let mut pair = Pair::with(limits(), endless, None);
    let bytes = head(&[(1 << 63, bulk(0, true)); 2]);
    pair.b.receive(&bytes, pair.now);
    let found = pair.b.fault;
    assert!(
        matches!(
            found,
            Some(PeerFault::LimitExceeded {
                what: "a message",
                ..
            })
        ),
        "{found:?}"
    );
}

#[test]
fn fields_mean_nothing() {
    let malformed = |bytes: &[u8]| match fault(bytes) {
        Some(PeerFault::Malformed { .. }) => {}
        other => panic!("{other:?}"),
    };
    malformed(&head(&[(5, bulk(2, false))]));
    malformed(&head(&[(0, bulk(0, false))]));
    let tensor = |dtype: DType, shape: Vec<u64>| {
        let mut out = Vec::new();
        let tensor = TensorDescriptor {
            dtype,
            shape: shape.into(),
            source: Device::CPU,
            target: None,
            metadata: Bytes::new(),
        };
        let head = Head::with(
            Descriptor {
                tensors: vec![tensor],
                ..Descriptor::default()
            },
            [Carriage::Eager].into_iter().collect(),
        );
        head.put(&mut out);
        out
    };
    let mut dtype = tensor(DType::U8, vec![0]);
    dtype[8 + 4 + 8 + 2] = 200;
    malformed(&dtype);
    let mut overflow = tensor(DType::F32, vec![0, 0]);
    overflow[8 + 4 + 8 + 2 + 2..][..16].fill(0xff);
    malformed(&overflow);
    let mut text = control(&[refuse(0)]);
    text[8 + 8 + 1 + 2] = 0xff;
    malformed(&text);
    let mut longer = head(&[(3, Carriage::Eager)]);
    longer[0] += 1;
    malformed(&longer);

    let cut = frame(Kind::Window as u8, 0, &[0; 23]);
    assert_eq!(fault(&cut), Some(PeerFault::Truncated { frame: "WINDOW" }));
    for len in 0..12 {
        let cut = frame(Kind::Message as u8, 0, &vec![0; len]);
        let more = [&cut[..], &[0; 100]].concat();
        for bytes in [cut, more] {
            assert_eq!(
                fault(&bytes),
                Some(PeerFault::Truncated { frame: "MESSAGE" })
            );
        }
    }
}

#[test]
fn a_flood_of_pings_costs_one_answer() {
    let mut pair = scene();
    let before = pair.b.pipe.outbox.queued();
    for nonce in 0..200_000 {
        pair.b
            .receive(&control(&[Control::Ping { nonce }]), pair.now);
    }
    assert_eq!(pair.b.pipe.outbox.queued(), before + 1);
    assert_eq!(pair.b.fault, None);
}

#[test]
fn a_flood_of_what_wants_an_answer_is_a_fault() {
    for frame in [refuse(0), Control::Flush { message: 1 }] {
        let mut pair = scene();
        pair.b.read(0);
        let _ = pair.b.pipe.grant(2, &[]);
        let bytes = control(&vec![frame; 100]);
        let mut rounds = 0;
        while pair.b.fault.is_none() && rounds < 10_000 {
            pair.b.receive(&bytes, pair.now);
            rounds += 1;
        }
        assert!(matches!(
            pair.b.fault,
            Some(PeerFault::CreditExceeded { .. })
        ));
        assert!(pair.b.pipe.outbox.queued() < 70_000);
    }
}

#[test]
fn holes_and_questions_behind_an_unread_message_take_no_memory() {
    let mut pair = scene();
    for message in 4..100_000 {
        let frames = [reason(message, false), Control::Flush { message }];
        pair.b.receive(&control(&frames), pair.now);
    }
    assert_eq!(pair.b.fault, None);
    assert!(pair.b.pipe.incoming.messages.len() <= 4);
    assert!(pair.b.pipe.incoming.questions() <= 4);
}
