//! Anything that two applications may do, in any order, over any link, against a simple account of what must come of it.

use std::collections::BTreeSet;

use proptest::prelude::*;

use crate::error::ResetCode;
use crate::proto::AtOnce;
use crate::proto::sim::frames::{bulk, chunk, control, frame, refuse, reset, whole};
use crate::proto::sim::{End, Msg, Pair, limits, message};
use crate::proto::wire::descriptor::Carriage;
use crate::proto::wire::frame::{CHANNEL_MAX, Control};

#[derive(Clone, Debug)]
enum Op {
    Write(Vec<(usize, u8)>),
    /// Picks one of those on offer, and skips the parts whose bit is set.
    Read(usize, u16),
    /// Picks one on offer or being read.
    Refuse(usize, bool),
    Finish(usize),
    /// Picks one ever written.
    Reset(usize),
    Flush,
    GoAway,
    /// Lets the other one send so much ahead.
    Ahead(u64),
    Run(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let len = prop_oneof![Just(0), 1usize..65, 65usize..3000, 3000usize..20_000];
    prop_oneof![
        6 => prop::collection::vec((len, 0u8..3), 0..4).prop_map(Op::Write),
        5 => (0usize..8, prop_oneof![3 => Just(0u16), 1 => 0u16..16]).prop_map(|(i, skip)| Op::Read(i, skip)),
        1 => (0usize..8, any::<bool>()).prop_map(|(i, skip)| Op::Refuse(i, skip)),
        1 => (0usize..8).prop_map(Op::Finish),
        2 => (0usize..20).prop_map(Op::Reset),
        1 => Just(Op::Flush),
        1 => prop_oneof![9 => Just(Op::Flush), 1 => Just(Op::GoAway)],
        2 => (0u64..40_000).prop_map(Op::Ahead),
        8 => (0u64..12).prop_map(Op::Run),
    ]
}

/// What one side wrote, and what was then decided about it.
#[derive(Debug, Default)]
struct Account {
    written: Vec<Msg>,
    reset: BTreeSet<u64>,
    /// By its reader.
    refused: BTreeSet<u64>,
    skipped: BTreeSet<(u64, u16)>,
    /// The reader takes nothing from here on.
    ignored_from: Option<u64>,
}

fn act(op: &Op, ours: &mut Account, theirs: &mut Account, end: &mut End) {
    let pick = |from: &[u64], i: usize| from.get(i % from.len().max(1)).copied();
    match op {
        Op::Write(parts) => {
            let text = ours.written.len().to_string();
            let add = |message: Msg, (len, kind): &(usize, u8)| match kind {
                0 => message.payload(*len),
                1 => message.tensor(*len),
                _ => message.tensor_on(1, *len % CHANNEL_MAX),
            };
            let sent = parts.iter().fold(message(&text), add);
            assert_eq!(end.write(&sent), ours.written.len() as u64);
            ours.written.push(sent);
        }
        Op::Read(i, skip) => {
            if let Some(message) = pick(&end.ready, *i) {
                let skip: Vec<u16> = (0..16).filter(|part| skip & (1 << part) != 0).collect();
                theirs
                    .skipped
                    .extend(skip.iter().map(|part| (message, *part)));
                end.read_but(message, &skip);
            }
        }
        Op::Refuse(i, skip) => {
            let candidates = [end.ready.clone(), end.under_way()].concat();
            if let Some(message) = pick(&candidates, *i) {
                theirs.refused.insert(message);
                let code = [ResetCode::Refused, ResetCode::Skipped][usize::from(*skip)];
                end.refuse(message, code);
            }
        }
        Op::Finish(i) => {
            if let Some(message) = pick(&end.under_way(), *i) {
                theirs.refused.insert(message);
                end.forget(message);
            }
        }
        Op::Reset(i) => {
            if *i < ours.written.len() {
                ours.reset.insert(*i as u64);
                end.reset(*i as u64);
            }
        }
        Op::Flush => {
            if let Some(last) = end.pipe.last_written() {
                end.pipe.flush(last);
            }
        }
        Op::GoAway => theirs.ignored_from = Some(end.pipe.go_away("bye")),
        Op::Ahead(bytes) => {
            end.pipe.widen_ahead(*bytes);
            end.pipe.narrow_ahead(*bytes);
        }
        Op::Run(_) => {}
    }
}

fn check(account: &Account, writer: &End, reader: &End) {
    let delivered = reader.in_order();
    for got in &delivered {
        let sent = &account.written[got.message as usize];
        assert_eq!(got.metadata, sent.metadata);
        for (i, (got_part, part)) in got.parts.iter().zip(sent.parts()).enumerate() {
            let skipped = account.skipped.contains(&(got.message, i as u16));
            let as_sent = *got_part == part || (skipped && got_part.is_none());
            assert!(as_sent, "{}", got.message);
        }
    }
    let unique: BTreeSet<_> = writer.written.iter().collect();
    assert_eq!(unique.len(), writer.written.len());
    let got: BTreeSet<_> = delivered.iter().map(|got| got.message).collect();
    for number in 0..account.written.len() as u64 {
        let ignored = account.ignored_from.is_some_and(|from| number >= from);
        if account.reset.contains(&number) || account.refused.contains(&number) || ignored {
            continue;
        }
        assert!(got.contains(&number), "{number} is lost");
        assert!(unique.contains(&number), "{number} hangs");
    }
    if let Some(last) = writer.pipe.last_written() {
        assert!(writer.flushed.iter().any(|flushed| *flushed >= last));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn everything_arrives_once_and_nothing_is_left(
        ops in prop::collection::vec((any::<bool>(), op()), 1..60),
        latency in 0u64..4,
        rates in (1000usize..6000, 1000usize..6000),
        splits in (1usize..3000, prop_oneof![1usize..3000, 3000usize..40_000]),
        through in any::<(bool, bool)>(),
        at_once in any::<bool>(),
        own_lanes in prop::option::of(0u64..8),
        ahead in prop_oneof![Just(0u64), 1000u64..40_000],
    ) {
        let mut wide = limits();
        wide.window_ahead = ahead;
        let mut pair = Pair::with(wide, wide, None).told().latency(latency).rate(rates.0);
        if let Some(latency) = own_lanes {
            pair = pair.own_lanes(latency);
        }
        pair.a.split = splits.0;
        pair.b.split = splits.1;
        (pair.a.through, pair.b.through) = through;
        for end in [&mut pair.a, &mut pair.b] {
            end.pipe.set_at_once(AtOnce::new([false, at_once]));
        }
        pair.a.lazy = true;
        pair.b_to_a.bytes_per_tick = Some(rates.1);
        let (mut from_a, mut from_b) = (Account::default(), Account::default());
        for (at_a, op) in &ops {
            match op {
                Op::Run(ticks) => pair.run_for(*ticks),
                op if *at_a => act(op, &mut from_a, &mut from_b, &mut pair.a),
                op => act(op, &mut from_b, &mut from_a, &mut pair.b),
            }
        }
        // In the end both read whatever is there, and close.
        for end in [&mut pair.a, &mut pair.b] {
            end.lazy = false;
            for message in end.ready.clone() {
                end.read(message);
            }
            act(&Op::Flush, &mut Account::default(), &mut Account::default(), end);
            end.pipe.close();
        }
        pair.settle();
        check(&from_a, &pair.a, &pair.b);
        check(&from_b, &pair.b, &pair.a);
        prop_assert!(pair.a.fin_ack && pair.b.fin_ack);
    }
}

// Frames that make no sense together are acted on or refused, never a panic. The tests of `fuzzing` flip bytes of true ones.

/// Frames that a careless or malicious peer might send, in a pipe whose application takes everything.
fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let number = || 0u64..6;
    let carriage = prop_oneof![
        Just(Carriage::Eager),
        Just(bulk(0, false)),
        Just(bulk(1, true)),
        Just(bulk(2, false)),
    ];
    let skip = vec![0];
    prop_oneof![
        (0u8..32, 0u8..8, prop::collection::vec(0u8.., 0..40))
            .prop_map(|(kind, flags, body)| frame(kind, flags, &body)),
        (number(), 0u16..3, 0usize..600).prop_map(|(m, part, len)| chunk(m, part, len)),
        (number(), any::<bool>()).prop_map(|(m, answer)| control([reset(m, answer)])),
        number().prop_map(|message| control([refuse(message)])),
        number().prop_map(|message| control([Control::Flush(message)])),
        number().prop_map(move |message| {
            let skip = skip.clone();
            control([Control::Grant { message, skip }])
        }),
        prop::collection::vec((0u64..300, carriage), 0..4).prop_map(|parts| whole(&parts)),
    ]
}

proptest! {
    #[test]
    fn any_frames_are_acted_on_or_refused(
        frames in prop::collection::vec(any_frame(), 1..40),
        split in 1usize..200,
        lazy: bool,
    ) {
        let mut pair = Pair::reader(|limits| limits.window_ahead = 1000);
        pair.b.split = split;
        pair.b.lazy = lazy;
        pair.b.write_times(3, &message("m").tensor(3000));
        // `a` says what we make up; `b`'s answers go nowhere.
        for bytes in frames {
            pair.step();
            pair.tell(&bytes);
            prop_assert!(pair.b.pipe.incoming.messages.len() <= 8);
        }
    }
}
