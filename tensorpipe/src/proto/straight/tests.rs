//! Messages that leave straight, and such that are found whole with their channel's word, beside the long way.

use std::time::Instant;

use bytes::Bytes;

use super::*;
use crate::descriptor::{Descriptor, TensorDescriptor};
use crate::device::Device;
use crate::proto::sim::{Pair, message};
use crate::proto::wire::hello::WireLimits;
use crate::proto::{AtOnce, Event, Input, KeepAlive, OutgoingPart, Written};
use crate::tensor::DType;

type State = PipeState<Vec<u8>, Vec<u8>>;

/// Metadata, and tensors of so many bytes with their channels.
type Case<'a> = (&'a [u8], &'a [(u64, Option<u8>)]);

/// Channel 1 sends at once.
fn state() -> State {
    let limits = crate::proto::sim::limits();
    let mut state = State::new(limits, limits, 2, KeepAlive::new(None, Instant::now()));
    state.set_at_once(AtOnce::new([false, true]));
    state
}

/// Tensors of so many bytes, and their channels.
fn descriptor(metadata: &[u8], tensors: &[(u64, Option<u8>)]) -> Descriptor {
    let tensors = tensors.iter().map(|(len, _)| TensorDescriptor {
        dtype: DType::U8,
        shape: [*len].into(),
        source: Device::CPU,
        target: (len % 2 == 0).then_some(Device::CPU),
        metadata: Bytes::from(vec![9; *len as usize % 5]),
    });
    Descriptor {
        metadata: Bytes::copy_from_slice(metadata),
        payloads: Vec::new(),
        tensors: tensors.collect(),
    }
}

fn straight(state: &mut State, metadata: &[u8], tensors: &[(u64, Option<u8>)]) -> Option<Vec<u8>> {
    let descriptor = descriptor(metadata, tensors);
    let leaving = descriptor.tensors.iter().zip(tensors);
    let leaving: Vec<_> = leaving
        .map(|(tensor, (len, channel))| Leaving {
            fields: TensorFields {
                dtype: tensor.dtype,
                shape: &tensor.shape,
                source: tensor.source,
                target: tensor.target,
                metadata: &tensor.metadata,
            },
            len: *len,
            channel: *channel,
        })
        .collect();
    let mut out = Vec::new();
    let written = state.write_straight(metadata, &leaving, &mut out);
    assert!(written.is_some() || out.is_empty(), "nothing is done");
    written.map(|_| out)
}

fn long_way(state: &mut State, metadata: &[u8], tensors: &[(u64, Option<u8>)]) -> Option<Vec<u8>> {
    let parts = tensors.iter().map(|(len, channel)| OutgoingPart {
        source: vec![0; *len as usize],
        channel: channel.unwrap_or_default(),
        ride_up_to: if channel.is_none() { u64::MAX } else { 0 },
    });
    let mut out = Vec::new();
    let written = state.write_through(descriptor(metadata, tensors), parts, &mut out);
    matches!(written, Ok(Written::Through(_))).then_some(out)
}

#[test]
fn its_frame_and_credit_are_those_of_the_long_way() {
    let messages: [Case<'_>; 6] = [
        (b"", &[(64, None)]),
        (b"meta", &[(3, None), (0, None), (17, None)]),
        (b"lent", &[(1 << 20, Some(1))]),
        (b"both", &[(40, None), (5000, Some(1)), (6, None)]),
        (b"two", &[(5001, Some(1)), (5002, Some(1))]),
        (&[7; 300], &[]),
    ];
    for (metadata, tensors) in messages {
        let (mut one, mut other) = (state(), state());
        let mut written = 0;
        // Until the credit is used up, for both at once.
        while let Some(frame) = straight(&mut one, metadata, tensors) {
            assert_eq!(Some(frame), long_way(&mut other, metadata, tensors));
            written += 1;
        }
        assert!(written > 0, "{tensors:?}");
        assert_eq!(long_way(&mut other, metadata, tensors), None);
        assert_eq!(
            one.unwritten(),
            other.unwritten() - 1,
            "the last one is queued there"
        );
    }
}

#[test]
fn what_is_not_as_usual_takes_the_long_way() {
    let limits: WireLimits = crate::proto::sim::limits();
    let many = vec![(1, None); limits.parts as usize + 1];
    let messages: [Case<'_>; 8] = [
        (&vec![0; limits.metadata as usize + 1], &[(1, None)]),
        // It does not ride, it is more than the frame takes, its channel waits for a go-ahead, it is empty.
        (b"", &[(65, None)]),
        (
            b"",
            &[(64, None), (64, None), (64, None), (64, None), (1, None)],
        ),
        (b"", &[(100, Some(0))]),
        (b"", &[(0, Some(1))]),
        (b"", &[((1 << 20) + 1, Some(1))]),
        (b"", &[(1 << 20, Some(1)), (1 << 20, Some(1)), (1, Some(1))]),
        (b"", &many),
    ];
    let mut state = state();
    for (metadata, tensors) in messages {
        assert_eq!(straight(&mut state, metadata, tensors), None, "{tensors:?}");
    }
    state.channel(OpId::incoming(0, 0), vec![1]);
    assert_eq!(straight(&mut state, b"overtakes", &[(1, None)]), None);
    assert_eq!(state.unwritten(), 0);
}

/// A message with one part of 5 bytes on channel 1, 3 that ride, and the word.
fn offer() -> Vec<u8> {
    let mut writer = state();
    let mut frames = straight(&mut writer, b"offer", &[(3, None), (5, Some(1))]).unwrap();
    frames.extend_from_slice(b"abc");
    word(0, 1, false).put(&mut frames);
    frames
}

fn word(message: u64, part: u16, yours: bool) -> Control {
    let body = b"there"[..].into();
    Control::Channel {
        message,
        part,
        yours,
        body,
    }
}

fn offered(state: &mut State, frames: &[u8]) -> Option<(usize, Offered)> {
    match state.handle(frames, Instant::now()) {
        Ok((used, Input::Offered(offered))) => Some((used, offered)),
        _ => None,
    }
}

#[test]
fn what_its_channel_has_is_here_whole() {
    let mut reader = state();
    let frames = offer();
    let more = [&frames[..], b"next frame"].concat();
    let (used, offered) = offered(&mut reader, &more).unwrap();
    assert_eq!(&frames[used..][offered.body.clone()], b"there");
    assert_eq!(
        (used + offered.len, offered.part, offered.channel),
        (frames.len(), 1, 1)
    );
    // Its word was used up: there is no other.
    let mut again = Vec::new();
    word(offered.message, 1, false).put(&mut again);
    assert!(reader.handle(&again, Instant::now()).is_err());
    reader.take_whole(offered.message);
    assert_eq!(reader.receive_window.outstanding(), Default::default());
}

#[test]
fn what_it_does_not_have_comes_as_any_other_does() {
    let mut reader = state();
    let frames = offer();
    let (used, offered) = offered(&mut reader, &frames).unwrap();
    let message = offered.message;
    reader.decline(message, offered.head);
    let eager: Vec<_> = reader.eager_parts(message).collect();
    assert_eq!(eager, [(0, 3)]);
    reader.start_eager(message);
    let now = Instant::now();
    let rest = &frames[used..];
    assert!(matches!(
        reader.handle(rest, now),
        Ok((0, Input::Bulk { len: 3, .. }))
    ));
    reader.bulk_received(3, None);
    let (used, _) = reader.handle(&rest[3..], now).unwrap();
    assert_eq!(used, rest.len() - 3);
    let events: Vec<_> = std::iter::from_fn(|| reader.poll_event()).collect();
    let [
        Event::Ready { .. },
        Event::Channel {
            op,
            channel: 1,
            body,
        },
    ] = &events[..]
    else {
        panic!("{events:?}");
    };
    assert_eq!(
        (op, &body[..]),
        (&OpId::incoming(message, 1), &b"there"[..])
    );
}

#[test]
fn what_is_not_all_here_or_not_as_usual_is_not_offered() {
    let frames = offer();
    for cut in 0..frames.len() {
        assert!(offered(&mut state(), &frames[..cut]).is_none(), "{cut}");
    }
    let at = frames.len() - 23;
    for other in [
        word(1, 1, false),
        word(0, 0, false),
        word(0, 1, true),
        Control::Fin,
    ] {
        let mut frames = frames[..at].to_vec();
        other.put(&mut frames);
        assert!(offered(&mut state(), &frames).is_none(), "{other:?}");
    }
    // Two parts that channels send; a channel that waits for a go-ahead.
    for tensors in [
        &[(5, Some(1)), (6, Some(1))],
        &[(5, Some(1)), (65, Some(0))],
    ] {
        let mut frames = Vec::new();
        let head = Head {
            descriptor: descriptor(b"", tensors),
            carriages: (tensors.iter())
                .map(|(_, channel)| Carriage::Bulk {
                    channel: channel.unwrap_or_default(),
                    ahead: *channel == Some(1),
                })
                .collect(),
        };
        head.put(&mut frames);
        word(0, 0, false).put(&mut frames);
        assert!(offered(&mut state(), &frames).is_none(), "{tensors:?}");
    }
    let mut going = state();
    going.go_away("enough");
    assert!(offered(&mut going, &frames).is_none());
}

#[test]
fn more_than_its_credit_is_a_fault_there_too() {
    let mut reader = state();
    let frames = offer();
    let at = frames.len() - 15;
    for message in 0..8u64 {
        let mut frames = frames.clone();
        frames[at..at + 8].copy_from_slice(&message.to_le_bytes());
        assert!(offered(&mut reader, &frames).is_some());
    }
    let mut frames = frames.clone();
    frames[at..at + 8].copy_from_slice(&8u64.to_le_bytes());
    let fault = reader.handle(&frames, Instant::now());
    assert!(
        matches!(fault, Err(PeerFault::CreditExceeded { .. })),
        "{fault:?}"
    );
}

#[test]
fn what_nobody_waits_for_leaves_when_there_is_time() {
    let mut state = state();
    state.channel_late(OpId::incoming(0, 0), vec![1]);
    let (mut out, mut segments) = (Vec::new(), Vec::new());
    assert!(!state.poll_transmit(&mut out, &mut segments));
    assert!(
        straight(&mut state, b"first", &[(1, None)]).is_some(),
        "it is in nobody's way"
    );
    state.send_late();
    assert!(state.poll_transmit(&mut out, &mut segments));
    assert_eq!(out[4], Kind::Channel as u8);
}

#[test]
fn two_ends_agree() {
    let mut pair = Pair::with(
        crate::proto::sim::limits(),
        crate::proto::sim::limits(),
        None,
    );
    for end in [&mut pair.a, &mut pair.b] {
        end.pipe.set_at_once(AtOnce::new([false, true]));
    }
    let sent = message("at once").tensor(20).tensor_on(1, 100).tensor(7);
    for _ in 0..50 {
        pair.a.write(&sent);
        pair.run();
    }
    assert!(pair.b.adopted.len() > 10, "{:?}", pair.b.adopted);
    assert_eq!(pair.b.delivered.len(), 50);
    assert!(
        pair.b
            .delivered
            .iter()
            .all(|delivered| delivered.parts == sent.parts())
    );
    pair.assert_clean();
}
