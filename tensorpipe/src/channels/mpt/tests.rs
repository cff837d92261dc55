//! A channel's own settings, the examples of WIRE.md, and a chunk that two connections carry.

use std::time::Duration;

use super::arriving::Arriving;
use super::arriving::tests::{claim, of, read};
use super::frame::{CHUNK, ChunkHead, ControlMessage, Frame, HEADER_LEN};
use super::line::Line;
use super::sending::Sending;
use super::stripes::State;
use super::*;
use crate::wire_md::examples;

#[test]
fn the_examples_are_what_is_sent() {
    let examples = examples("mpt");
    assert_eq!(examples.len(), 3);
    let tokens = ControlMessage::Tokens(vec![[0x11; 16]]);
    assert_eq!(tokens.encode(), examples["TOKENS"]);
    let chunk = Frame::Chunk(ChunkHead {
        op: OpId::incoming(5, 2),
        offset: 512 << 10,
        len: 3,
    });
    for (frame, name) in [(chunk, "CHUNK"), (Frame::Taken(4), "TAKEN")] {
        let bytes: [u8; HEADER_LEN] = examples[name][..].try_into().unwrap();
        assert_eq!(frame.encode(), bytes, "{name}");
        assert_eq!(Frame::decode(&bytes), Ok(frame), "{name}");
    }
}

#[test]
fn silly_numbers_are_refused() {
    for wrong in [0, CONNECTIONS_MAX + 1, 255] {
        assert!(MptChannel::new().connections(wrong).is_err());
    }
    let two = MptChannel::new().connections(2).unwrap();
    assert_eq!(two.chunks_sent(), [0, 0]);
}

/// Both ends may have many tensors under way: what each says about each must not grow with the others.
#[test]
fn a_lane_without_connections_says_so_once_for_each_tensor() {
    const TENSORS: u64 = 50;
    let mut state = State::default();
    for message in 0..TENSORS {
        let arriving = Arc::new(of(WHOLE));
        state.arriving.insert(OpId::incoming(message, 0), arriving);
        let outgoing = OpId::outgoing(message, 0);
        state
            .sending
            .hold(outgoing, Buffer::from_vec(vec![1u8; WHOLE]));
    }
    let mut said = Vec::new();
    for message in 0..TENSORS {
        state.sending.go(OpId::outgoing(message, 0)).unwrap();
        said.extend(state.fall_back_to_pipe("a go-ahead has come"));
        said.extend(state.fall_back_to_pipe("the peer says so"));
    }
    let mut ops: Vec<_> = said.iter().map(|(op, _)| *op).collect();
    ops.sort_unstable();
    ops.dedup();
    assert_eq!(ops.len() as u64, 2 * TENSORS);
    assert_eq!(said.len(), ops.len(), "each of them once");
}

const WHOLE: usize = CHUNK as usize;

const HALF: usize = WHOLE / 2;

/// A tensor of one chunk, about to be pulled.
fn one_chunk() -> Sending {
    let (op, mut sending) = (OpId::outgoing(0, 0), Sending::default());
    sending.hold(op, Buffer::from_vec(vec![1u8; WHOLE]));
    sending.go(op).unwrap();
    sending.stripe();
    sending
}

/// The chunk goes over `line` now.
fn pull(sending: &mut Sending, line: &Line) {
    let chunk = sending.pull().expect("it travels");
    line.sends(chunk.id);
}

/// The chunk becomes late on `line`.
async fn becomes_late(line: &Line, sending: &mut Sending) {
    tokio::time::sleep(Duration::from_secs(2)).await;
    sending.send_again(line.take_late(None));
}

/// All of the chunk comes by one connection, and nothing of what others brought is left.
async fn comes_whole(arriving: &Arriving, by: u8) {
    let place = claim(arriving, 0, by);
    read(arriving, place, 1, by).await.unwrap();
    let memory = arriving.filled(0, by).unwrap().freeze();
    assert!(memory.as_bytes().unwrap().iter().all(|byte| *byte == 1));
}

#[tokio::test(start_paused = true)]
async fn a_chunk_that_stalls_on_two_connections_travels_again_by_the_first_that_recovers() {
    let (a, b) = (Line::new(), Line::new());
    let (mut sending, arriving) = (one_chunk(), of(WHOLE));
    for (line, by) in [(&a, 0), (&b, 1)] {
        pull(&mut sending, line);
        claim(&arriving, 0, by);
        read(&arriving, 0..HALF, 7, by).await.unwrap();
        becomes_late(line, &mut sending).await;
    }
    let rest = read(&arriving, HALF..WHOLE, 7, 0).await;
    assert!(rest.is_none(), "the other has claimed it");
    a.confirmed(1).unwrap();
    assert!(!a.is_late() && b.is_late());
    pull(&mut sending, &a);
    comes_whole(&arriving, 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_chunk_of_a_connection_that_ends_travels_again_though_another_has_carried_it() {
    let (a, b) = (Line::new(), Line::new());
    let (mut sending, arriving) = (one_chunk(), of(WHOLE));
    pull(&mut sending, &a);
    becomes_late(&a, &mut sending).await;
    pull(&mut sending, &b);
    claim(&arriving, 0, 1);
    read(&arriving, 0..HALF, 7, 1).await.unwrap();
    // What was late comes: from here on connection 0 has the chunk.
    claim(&arriving, 0, 0);
    assert!(read(&arriving, HALF..WHOLE, 7, 1).await.is_none());
    b.confirmed(1).unwrap();
    assert!(sending.pull().is_none());
    sending.send_again(a.unconfirmed());
    pull(&mut sending, &b);
    comes_whole(&arriving, 1).await;
}
