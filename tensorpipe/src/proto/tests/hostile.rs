//! Every fault that a peer's frames can be, made by hand; and floods, which cost bounded memory.

use crate::descriptor::{Descriptor, TensorDescriptor};
use crate::device::Device;
use crate::error::ResetCode;
use crate::proto::OpId;
use crate::proto::sim::frames::{
    bulk, chunk, control, frame, front, head, refuse, reset, told, whole,
};
use crate::proto::sim::{Pair, limits, message};
use crate::proto::wire::descriptor::{Carriage, Carriages, Head};
use crate::proto::wire::frame::{Control, Kind, OPTIONAL};
use crate::tensor::DType;

/// `b` reads message 1, a tensor of 5000 bytes, has not decided on 2, another, and has refused 3. It has sent one message
/// itself. Nothing of `a` is on its way any more.
pub(super) fn scene() -> Pair {
    let mut pair = Pair::lazy();
    pair.a.lazy = true;
    pair.a.write(&message("eager").payload(10));
    pair.a.write_times(3, &message("bulk").tensor(5000));
    pair.b.write(&message("answer").tensor(5000));
    pair.run();
    pair.b.read(1);
    pair.b.refuse(3, ResetCode::Refused);
    pair
}

/// What the pipe says of `bytes`, whole and byte by byte: it begins like this, or there is no fault.
#[track_caller]
fn says(bytes: &[u8], expected: &str) {
    let complaints = [usize::MAX, 1].map(|split| {
        let mut pair = scene();
        pair.b.split = split;
        pair.tell(bytes);
        pair.b.complaint()
    });
    assert_eq!(complaints[0], complaints[1]);
    let said = &complaints[0];
    assert!(said.starts_with(expected), "{said}");
    assert_eq!(said.is_empty(), expected.is_empty(), "{said}");
}

#[track_caller]
fn unknown(bytes: &[u8], frame: &str, message: u64) {
    says(bytes, &format!("a {frame} frame names message {message}, "));
}

#[test]
fn messages_that_were_never_sent_are_named() {
    let skip = Vec::new();
    let grant = Control::Grant { message: 1, skip };
    unknown(&control([grant]), "GRANT", 1);
    unknown(&control([refuse(1)]), "REFUSE", 1);
    unknown(&control([Control::Flushed(9)]), "FLUSHED", 9);
    unknown(&control([Control::Flush(4)]), "FLUSH", 4);
    unknown(&control([reset(5, false)]), "RESET", 5);
    let last = u64::MAX;
    unknown(&control([refuse(last)]), "REFUSE", last);
    unknown(&control([Control::Flush(last)]), "FLUSH", last);
    unknown(&control([reset(last, false)]), "RESET", last);
    let text = String::new();
    unknown(&control([Control::GoAway { next: 2, text }]), "GOAWAY", 2);
    for (message, part) in [(4, 0), (0, 0), (1, 1)] {
        unknown(&control([told(message, part, b"")]), "CHANNEL", message);
    }
    let of_ours = Control::channel(OpId::incoming(1, 0), &[]);
    unknown(&control([of_ours]), "CHANNEL", 1);
}

#[test]
fn data_comes_that_was_not_asked_for() {
    for (message, part) in [(9, 0), (2, 0), (1, 1), (0, 0), (3, 1), (u64::MAX, 0)] {
        unknown(&chunk(message, part, 10), "DATA", message);
    }
    // A chunk may still be on its way when its message is refused, but not behind the writer's answer to that.
    says(&chunk(3, 0, 10), "");
    let confirmed = [control([reset(3, true)]), chunk(3, 0, 10)].concat();
    unknown(&confirmed, "DATA", 3);
}

#[test]
fn data_is_longer_than_its_part() {
    let four = chunk(1, 0, 1000).repeat(4);
    says(&four, "");
    let more = [four, chunk(1, 0, 1001)].concat();
    says(&more, "a part of 5001 exceeds this side's limit of 5000");
    says(&chunk(1, 0, 1025), "a DATA frame of 1037 bytes exceeds");
    let short = frame(Kind::Data as u8, 0, &[0; 11]);
    says(&short, "a DATA frame is cut short");
}

#[test]
fn things_are_said_twice_or_at_the_wrong_time() {
    let (message, skip) = (0, Vec::new());
    let grant = Control::Grant { message, skip };
    says(
        &control([grant.clone(), grant]),
        "it sent a GRANT frame twice",
    );
    let fin = || Control::Fin;
    says(&control([fin(), fin()]), "it sent a FIN frame twice");
    says(
        &control([Control::FinAck]),
        "it sent a FIN_ACK frame without",
    );
    let late = [control([fin()]), head(&[])].concat();
    says(&late, "it sent a MESSAGE frame after its FIN");
    let after = "it sent a RESET frame of a message after its FIN";
    says(&control([fin(), reset(4, false)]), after);
    let no_answer = "it sent a RESET frame in answer to no REFUSE";
    says(&control([reset(2, true)]), no_answer);
    says(&control([reset(3, true), reset(3, true)]), no_answer);
    for (kind, name) in [(1, "HELLO"), (2, "ANSWER"), (3, "REJECT"), (4, "STAY")] {
        let expected = format!("it sent a {name} frame on an open pipe");
        says(&frame(kind, 0, &[0; 40]), &expected);
    }
    says(&frame(77, 0, &[]), "it sent a frame of the unknown kind 77");
}

#[test]
fn credit_is_exceeded() {
    says(
        &head(&[]).repeat(5),
        "it sent messages beyond its credit of 8",
    );
    let ahead = head(&[(1, bulk(0, true))]);
    says(&ahead, "it sent bytes ahead beyond its credit of 0");
    // However small parts are.
    let mut pair = Pair::reader(|limits| limits.window_ahead = 300).told();
    pair.tell(&head(&[(1, bulk(0, true)); 2]));
    let expected = "it sent bytes ahead beyond its credit of 300";
    assert_eq!(pair.b.complaint(), expected);

    let limit = u64::from(limits().frame_max());
    let mut pair = Pair::reader(|limits| {
        limits.window_messages = 100;
        limits.window_bytes = limit;
    })
    .told();
    let large = whole(&[(64, Carriage::Eager), (64, Carriage::Eager)]);
    (0..40).for_each(|_| pair.tell(&large));
    let expected = format!("it sent message bytes beyond its credit of {limit}");
    assert_eq!(pair.b.complaint(), expected);
}

#[test]
fn messages_are_larger_than_allowed() {
    says(&head(&[(1 << 21, bulk(0, false))]), "a payload of 2097152");
    says(
        &head(&[(1 << 20, bulk(0, false)); 3]),
        "a message of 3145728",
    );
    says(&head(&[(65, Carriage::Eager)]), "an eager part of 65");
    let five = head(&[(64, Carriage::Eager); 5]);
    says(&five, "a message's eager parts of 320");
    let many = head(&[(0, Carriage::Eager); 17]);
    says(&many, "payloads and tensors of 17");
    let mut counts = head(&[]);
    counts[16..20].fill(0xff);
    says(&counts, "payloads and tensors of 131070");
    let mut metadata = head(&[]);
    metadata[12..16].copy_from_slice(&5000u32.to_le_bytes());
    says(&metadata, "metadata of 5000");

    let length = |len: u32, kind: u8, flags, name: &str| {
        let mut bytes = frame(kind, flags, &[]);
        bytes[..4].copy_from_slice(&len.to_le_bytes());
        says(&bytes, &format!("a {name} frame of {len} bytes exceeds"));
    };
    let frame_max = limits().frame_max();
    length(frame_max + 1, Kind::Message as u8, 0, "MESSAGE");
    length((16 << 10) + 1, Kind::Ping as u8, 0, "PING");
    length(u32::MAX, Kind::Data as u8, 0, "DATA");
    let all_skipped = 10 + 2 * u32::from(u16::MAX);
    length(all_skipped + 1, Kind::Grant as u8, 0, "GRANT");
    length(u32::MAX, Kind::Grant as u8, 0, "GRANT");
    length(u32::MAX, 99, OPTIONAL, "skipped");
}

#[test]
fn lengths_that_add_up_to_more_than_can_be_counted() {
    let mut pair = Pair::reader(|endless| {
        (endless.payload, endless.message) = (u64::MAX, u64::MAX);
        endless.window_ahead = u64::MAX;
    });
    pair.tell(&head(&[(1 << 63, bulk(0, true)); 2]));
    let said = pair.b.complaint();
    assert!(said.starts_with("a message of"), "{said}");
}

#[test]
fn fields_mean_nothing() {
    let malformed = |bytes: &[u8], what: &str| {
        says(bytes, &format!("a MESSAGE frame holds {what}"));
    };
    malformed(&head(&[(5, bulk(2, false))]), "a channel that was not");
    malformed(&head(&[(0, bulk(0, false))]), "an empty part that waits");
    let tensor = |dtype, shape: &[u64]| {
        let tensor = TensorDescriptor {
            dtype,
            shape: shape.into(),
            source: Device::CPU,
            target: None,
            metadata: Default::default(),
        };
        let descriptor = Descriptor {
            tensors: vec![tensor],
            ..Descriptor::default()
        };
        let carriages = Carriages::from_slice(&[Carriage::Eager]);
        front(&Head::with(descriptor, carriages))
    };
    let fields = 8 + 4 + 8;
    let mut dtype = tensor(DType::U8, &[0]);
    dtype[fields + 2] = 200;
    malformed(&dtype, "an unknown element type");
    says(&tensor(DType::U8, &[0; 32]), "");
    let dims = "a tensor of more than 32 dimensions";
    malformed(&tensor(DType::U8, &[0; 33]), dims);
    let mut overflow = tensor(DType::F32, &[0, 0]);
    overflow[fields + 4..][..16].fill(0xff);
    malformed(&overflow, "a shape whose size overflows");
    let mut large = tensor(DType::U8, &[0]);
    large[fields + 4..][..8].fill(0xff);
    says(&large, &format!("a tensor of {} exceeds", u64::MAX));
    let mut flags = tensor(DType::U8, &[0]);
    flags[fields] = 0xf8;
    malformed(&flags, "a part that travels in an unknown way");
    for len in [2, 4] {
        let mut other = head(&[(3, Carriage::Eager)]);
        other[0] = head(&[(len, Carriage::Eager)])[0];
        malformed(&other, "eager parts that do not fill the frame");
    }
    let mut longer = head(&[]);
    longer[8..12].fill(0xff);
    says(&longer, "a MESSAGE frame is cut short");
    let mut text = control([refuse(0)]);
    text[8 + 8 + 1 + 2] = 0xff;
    says(&text, "a REFUSE frame holds text that is not UTF-8");

    let cut = frame(Kind::Window as u8, 0, &[0; 23]);
    says(&cut, "a WINDOW frame is cut short");
    for len in 0..12 {
        let cut = frame(Kind::Message as u8, 0, &vec![0; len]);
        let more = [&cut[..], &[0; 100]].concat();
        says(&cut, "a MESSAGE frame is cut short");
        says(&more, "a MESSAGE frame is cut short");
    }
}

/// Frames behind it are read as ever.
#[test]
fn a_frame_of_a_later_version_is_skipped_if_it_says_so() {
    for len in [0, 1, 1000, 16 << 10] {
        let later = frame(200, OPTIONAL, &vec![0x55; len]);
        let frames = [later, control([Control::FinAck])].concat();
        says(&frames, "it sent a FIN_ACK frame without");
    }
}

#[test]
fn a_flood_of_pings_costs_one_answer() {
    let mut pair = scene();
    let before = pair.b.pipe.outbox.control.len();
    for nonce in 0..200_000 {
        pair.tell(&control([Control::Ping(nonce)]));
    }
    assert_eq!(pair.b.pipe.outbox.control.len(), before + 1);
    assert_eq!(pair.b.fault, None);
}

#[test]
fn a_flood_of_what_wants_an_answer_is_a_fault() {
    for frame in [refuse(0), Control::Flush(1)] {
        let mut pair = scene();
        pair.b.read(0);
        let _ = pair.b.pipe.grant(2, &[]);
        let bytes = control([frame]).repeat(100);
        for _ in 0..10_000 {
            pair.tell(&bytes);
        }
        let said = pair.b.complaint();
        assert!(said.contains("beyond its credit"), "{said}");
        assert!(pair.b.pipe.outbox.control.len() < 70_000);
    }
}

// A peer that has much to say: what it makes this side hold, and what it makes this side check, stays bounded.

#[test]
fn go_aheads_that_are_never_fetched_are_a_fault() {
    let mut pair = Pair::new();
    let one = head(&[(1, bulk(0, false))]);
    // Each is read at once, so that its credit comes back, in a WINDOW that is not fetched either.
    for sent in 0..100_000 {
        pair.tell(&one);
        pair.tell(&chunk(sent, 0, 1));
    }
    let said = pair.b.complaint();
    assert!(said.contains("beyond its credit"), "{said}");
    assert!(pair.b.pipe.outbox.control.len() < 70_000);
}

/// Delayed frames of channels count, too: here there is never time to send them.
#[test]
fn answers_that_wait_for_their_time_count() {
    let mut pair = Pair::lazy();
    pair.send(&message("bulk").tensor(5000));
    pair.b.read(0);
    for _ in 0..70_000 {
        pair.b.pipe.channel_delayed(OpId::incoming(0, 0), b"thanks");
    }
    pair.tell(&control([Control::Ping(1)]));
    let said = pair.b.complaint();
    assert!(said.contains("beyond its credit"), "{said}");
}

#[test]
fn however_many_ask_one_answer_is_for_all() {
    let mut pair = Pair::lazy();
    // Every second one was given up before it left.
    for message in (0..2000).step_by(2) {
        pair.tell(&head(&[]));
        let hole = message + 1;
        pair.tell(&control([reset(hole, false), Control::Flush(hole)]));
        // Everything but the first message is read at once.
        if message > 0 {
            pair.b.read(message);
        }
        assert_eq!(pair.b.fault, None);
        assert_eq!(pair.b.pipe.incoming.messages.len(), 1);
        pair.step();
    }
    pair.b.read(0);
    pair.b.record.clear();
    pair.run();
    let answer = control([Control::Flushed(1999)]);
    assert!(pair.b.record.starts_with(&answer), "{:?}", pair.b.record);
    assert_eq!(pair.b.sent(Kind::Flushed), 1);
}

#[test]
fn what_is_no_news_is_told_once() {
    let mut pair = Pair::new();
    pair.b.write_times(3, &message("m"));
    pair.run();
    for next in [3, 3, 2, 3] {
        let text = String::new();
        pair.tell(&control([Control::GoAway { next, text }]));
    }
    for message in [1, 1, 0, 2] {
        pair.tell(&control([Control::Flushed(message)]));
    }
    assert_eq!(pair.b.goaway, [3, 2]);
    assert_eq!(pair.b.flushed, [1, 2]);
}

#[test]
fn a_go_ahead_names_what_it_skips_in_any_order() {
    let mut pair = Pair::new();
    let parts = (0..5).fold(message("parts"), |message, _| message.tensor(3000));
    pair.b.write(&parts);
    pair.step();
    let skip = vec![0xffff, 17, 4, 4, 2, 0];
    pair.tell(&control([Control::Grant { message: 0, skip }]));
    assert_eq!(pair.b.parts_started(), [1, 3]);
    // And as many as a message can have.
    pair.b.write(&parts);
    pair.step();
    let skip = (0..u16::MAX).collect();
    pair.tell(&control([Control::Grant { message: 1, skip }]));
    assert_eq!(
        (pair.b.complaint(), pair.b.started.len()),
        (String::new(), 2)
    );
}
