//! The choice at every border, and in words.

use super::*;
use crate::device::DeviceKind;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

const CPU: Device = Device::CPU;
const GPU: Device = Device::new(DeviceKind::CUDA, 0);

const FRAME: FrameRoom = FrameRoom {
    part: 64 * KIB,
    message: 256 * KIB,
};

/// What serves main memory at both ends.
const MAIN: &[(Device, Device)] = &[(CPU, CPU)];

fn served(name: &'static str, thresholds: Vec<Threshold>) -> Served<'static> {
    Served {
        name,
        pairs: MAIN,
        thresholds,
        moves_bytes: Box::new(|_| true),
        degraded: Degraded::default(),
    }
}

fn lends() -> Served<'static> {
    let pays = Threshold::new(Pays::From(4 * KIB + 1));
    let kinds = [MemoryKind::Pool, MemoryKind::Borrowed];
    Served {
        moves_bytes: Box::new(|_| false),
        ..served("lends", kinds.map(|kind| pays.clone().of(kind)).to_vec())
    }
}

/// Not over the rings, where it never wins.
fn reads() -> Served<'static> {
    let entries = vec![
        Threshold::new(Pays::LastResort).over("rings"),
        Threshold::new(Pays::From(4 * MIB)),
    ];
    served("reads", entries)
}

fn streams() -> Served<'static> {
    served("streams", vec![Threshold::new(Pays::BeyondFrame)])
}

fn over(transport: &str, served: &[Served<'_>], own: &[(String, Threshold)]) -> ChannelChoice {
    ChannelChoice::new(Table::new(served, own, &[], transport, FRAME), None, &[])
}

fn main_memory(choice: &ChannelChoice, memory: MemoryKind, len: u64) -> Carrier {
    choice.carrier(CPU, memory, CPU, len)
}

#[test]
fn the_words_are_those_of_the_choice() {
    let all = || [lends(), reads(), streams()];
    assert_eq!(
        over("socket", &all(), &[]).to_string(),
        "heap: in the frame <= 64 KiB, streams < 4 MiB, reads above\n\
         pool, borrowed: in the frame <= 4 KiB, lends above"
    );
    assert_eq!(
        over("rings", &all(), &[]).to_string(),
        "heap: in the frame <= 64 KiB, streams above\n\
         pool, borrowed: in the frame <= 4 KiB, lends above"
    );
    let own = [
        (
            "reads".to_owned(),
            Threshold::new(Pays::From(16 * MIB)).over("socket"),
        ),
        (
            "lends".to_owned(),
            Threshold::new(Pays::From(0)).of(MemoryKind::Pool),
        ),
        (
            "lends".to_owned(),
            Threshold::new(Pays::From(1001)).of(MemoryKind::Borrowed),
        ),
    ];
    assert_eq!(
        over("socket", &all(), &own).to_string(),
        "heap: in the frame <= 64 KiB, streams < 16 MiB, reads above\n\
         pool: lends\n\
         borrowed: in the frame <= 1000 B, lends above"
    );
    assert_eq!(
        over("socket", &[lends()], &[]).to_string(),
        "heap: in the frame <= 64 KiB, nothing above\n\
         pool, borrowed: in the frame <= 4 KiB, lends above"
    );
}

#[test]
fn every_band_is_what_is_chosen_at_both_its_ends() {
    let own = [(
        "reads".to_owned(),
        Threshold::new(Pays::From(2 * KIB)).of(MemoryKind::Borrowed),
    )];
    for transport in ["socket", "rings"] {
        for served in [
            vec![lends(), reads(), streams()],
            vec![reads()],
            vec![streams(), reads()],
            vec![lends()],
            vec![],
        ] {
            let choice = over(transport, &served, &own);
            let bands = choice.bands();
            let mut next = 1;
            for (i, band) in bands.iter().enumerate() {
                assert_eq!(*band.sizes.start(), next, "{bands:?}");
                for len in [*band.sizes.start(), *band.sizes.end()] {
                    let found = choice.carrier(band.source, band.memory, band.target, len);
                    assert_eq!(found, band.carrier, "{len} of {band:?}");
                }
                let last = bands
                    .get(i + 1)
                    .is_none_or(|after| after.memory != band.memory);
                next = match last {
                    true => {
                        assert_eq!(*band.sizes.end(), u64::MAX);
                        1
                    }
                    false => band.sizes.end() + 1,
                };
            }
        }
    }
}

#[test]
fn the_first_that_pays_is_chosen_and_else_the_one_that_would_pay_soonest() {
    let no_frame = FrameRoom { part: 0, ..FRAME };
    let from = |name, bytes| served(name, vec![Threshold::new(Pays::From(bytes))]);
    let all = [
        from("large", 4 * MIB),
        from("middle", MIB),
        from("small", 2 * MIB),
    ];
    let choice = ChannelChoice::new(Table::new(&all, &[], &[], "", no_frame), None, &[]);
    for (len, name) in [
        (1, "middle"),
        (MIB - 1, "middle"),
        (MIB, "middle"),
        (3 * MIB, "middle"),
        (4 * MIB, "large"),
        (u64::MAX, "large"),
    ] {
        let found = main_memory(&choice, MemoryKind::Heap, len);
        assert_eq!(found, Carrier::Channel(name), "{len}");
    }
    assert_eq!(main_memory(&choice, MemoryKind::Heap, 0), Carrier::Frame);
}

#[test]
fn what_moves_no_bytes_comes_first_unless_a_context_speaks_of_just_that_memory() {
    let stripes = || served("stripes", vec![Threshold::new(Pays::From(MIB))]);
    let all = [stripes(), streams(), lends()];
    let shown = |own: &[(String, Threshold)]| over("socket", &all, own).to_string();
    let lent = "heap: in the frame <= 64 KiB, streams < 1 MiB, stripes above\n\
                pool, borrowed: in the frame <= 4 KiB, lends above";
    assert_eq!(shown(&[]), lent);
    let own = |threshold| [("stripes".to_owned(), threshold)];
    // That is about what it carries, and not about what others do.
    assert_eq!(shown(&own(Threshold::new(Pays::From(MIB)))), lent);
    let elsewhere = Threshold::new(Pays::From(MIB)).of(MemoryKind::Pool);
    assert_eq!(shown(&own(elsewhere.clone().over("rings"))), lent);
    assert_eq!(
        shown(&own(elsewhere)),
        "heap: in the frame <= 64 KiB, streams < 1 MiB, stripes above\n\
         pool: in the frame <= 4 KiB, lends < 1 MiB, stripes above\n\
         borrowed: in the frame <= 4 KiB, lends above"
    );
}

#[test]
fn what_cannot_be_carried_goes_to_the_next() {
    let choice = over("socket", &[lends(), reads(), streams()], &[]);
    let memory = MemoryKind::Borrowed;
    let but_the_first = |channel| channel != 0;
    for (len, way) in [
        (KIB, PartRoute::Frame),
        (MIB, PartRoute::Channel(2)),
        (4 * MIB, PartRoute::Channel(1)),
    ] {
        let found = choice.choose(CPU, memory, CPU, len, 0, but_the_first);
        assert_eq!(found, Some(way));
    }
    assert_eq!(choice.choose(CPU, memory, CPU, MIB, 0, |_| false), None);
    let found = choice.choose(CPU, memory, CPU, KIB, 0, |_| false);
    assert_eq!(found, Some(PartRoute::Frame));
}

#[test]
fn a_full_frame_is_none() {
    let choice = over("socket", &[lends(), reads(), streams()], &[]);
    let chosen = |memory, len, riding| choice.choose(CPU, memory, CPU, len, riding, |_| true);
    let full = FRAME.message - KIB;
    for (memory, channel) in [(MemoryKind::Heap, 2), (MemoryKind::Pool, 0)] {
        assert_eq!(chosen(memory, KIB, full), Some(PartRoute::Frame));
        for (len, riding) in [(KIB + 1, full), (1, FRAME.message), (1, u64::MAX)] {
            assert_eq!(
                chosen(memory, len, riding),
                Some(PartRoute::Channel(channel))
            );
        }
        assert_eq!(
            chosen(memory, 0, u64::MAX),
            Some(PartRoute::Frame),
            "no bytes"
        );
    }
}

#[test]
fn a_channel_that_moves_nothing_any_more_is_the_last_resort() {
    let all = [reads(), streams()];
    let choice = over("socket", &all, &[]);
    assert_eq!(
        main_memory(&choice, MemoryKind::Heap, 8 * MIB),
        Carrier::Channel("reads")
    );
    all[0].degraded.cannot_send("a filter");
    assert_eq!(
        main_memory(&choice, MemoryKind::Heap, 8 * MIB),
        Carrier::Channel("streams")
    );
    assert_eq!(
        choice.to_string(),
        "heap, pool, borrowed: in the frame <= 64 KiB, streams above"
    );
    let alone = over("socket", &all[..1], &[]);
    assert_eq!(
        main_memory(&alone, MemoryKind::Heap, 8 * MIB),
        Carrier::Channel("reads")
    );
}

#[test]
fn a_pipe_that_stays_chooses_as_it_does_there() {
    let all = [reads(), streams()];
    let because = Arc::new(OnceLock::new());
    let table = |transport| Table::new(&all, &[], &[], transport, FRAME);
    let choice = ChannelChoice::new(
        table("rings"),
        Some((because.clone(), table("socket"))),
        &[],
    );
    let shown = choice.clone();
    assert_eq!(
        main_memory(&choice, MemoryKind::Heap, 4 * MIB),
        Carrier::Channel("streams")
    );
    because.set("it was not let in".to_owned()).unwrap();
    assert_eq!(
        main_memory(&choice, MemoryKind::Heap, 4 * MIB),
        Carrier::Channel("reads")
    );
    assert!(shown.to_string().contains("reads above"), "{shown}");
}

#[test]
fn devices_have_places_of_their_own() {
    let wire = Served {
        pairs: &[(GPU, GPU), (CPU, GPU)],
        ..served("wire", vec![Threshold::new(Pays::BeyondFrame)])
    };
    let peer = Served {
        pairs: &[(GPU, GPU)],
        ..served(
            "peer",
            vec![Threshold::new(Pays::From(MIB)).of(MemoryKind::Device(GPU.kind))],
        )
    };
    let choice = over("socket", &[peer, wire, streams()], &[]);
    assert_eq!(
        choice.to_string(),
        "heap, pool, borrowed: in the frame <= 64 KiB, streams above\n\
         cuda:0 -> cuda:0: wire < 1 MiB, peer above\n\
         cpu:0 -> cuda:0: wire"
    );
    let memory = MemoryKind::Device(GPU.kind);
    assert_eq!(choice.choose(GPU, memory, CPU, 1, 0, |_| true), None);
    let (way, target) = choice
        .alternative_target(GPU, memory, 2 * MIB, |_| true)
        .unwrap();
    assert_eq!((way, target), (PartRoute::Channel(0), GPU));
    assert_eq!(choice.carrier(GPU, memory, CPU, 1), Carrier::Nothing);
}

#[test]
fn what_is_required_is_no_last_resort() {
    let required = [Requirement {
        kind: GPU.kind,
        channels: vec!["peer".to_owned()],
    }];
    let (degraded, gpu) = (Degraded::default(), MemoryKind::Device(GPU.kind));
    let of_gpus = |name, degraded: &Degraded| Served {
        pairs: &[(GPU, GPU), (GPU, CPU)],
        degraded: degraded.clone(),
        ..served(name, vec![Threshold::new(Pays::From(1))])
    };
    let all = [
        of_gpus("wire", &Degraded::default()),
        of_gpus("peer", &degraded),
        streams(),
    ];
    let strict = Table::new(&all, &[], &required, "", FRAME);
    let choice = ChannelChoice::new(strict, None, &required);
    let peer = Carrier::Channel("peer");
    assert_eq!(choice.carrier(GPU, gpu, GPU, 1), peer);
    assert_eq!(choice.carrier(GPU, gpu, CPU, 1), peer);
    assert_eq!(
        main_memory(&choice, MemoryKind::Heap, 8 * MIB),
        Carrier::Channel("streams")
    );
    assert!(choice.required(CPU, GPU).is_some() && choice.required(CPU, CPU).is_none());
    degraded.cannot_send("it turned out not to work");
    assert_eq!(choice.carrier(GPU, gpu, GPU, 1), Carrier::Nothing);
    let lax = over("", &all[1..], &[]);
    assert_eq!(
        lax.carrier(GPU, gpu, GPU, 1),
        peer,
        "else it is the last resort"
    );
}
