//! Writers that look for room instead of sleeping: how much of a large ring they take.

use proptest::prelude::*;

use super::*;
use crate::transports::Connection;

/// Two ends of which both look, and which know of a large ring.
async fn both_look() -> (ShmConnection, ShmConnection) {
    let (mut near, mut far) = pair().await;
    near.set_hot(true);
    far.set_hot(true);
    let bytes = pattern(1 << 20);
    // The reader makes room while the writer looks: the large ring is offered, and nobody waits for it.
    for at_most in [64 << 10, 64 << 10] {
        let wrote = fill(&mut near, &bytes);
        assert!(wrote <= at_most, "{wrote}");
        assert_eq!(read(&mut far, wrote).await, bytes[..wrote]);
        assert!(near.look());
    }
    (near, far)
}

fn looks_in_vain(writer: &mut ShmConnection) {
    for _ in 0..10_000 {
        if writer.look() {
            return;
        }
    }
    panic!("the reader is away, and nobody notices");
}

/// A byte more, which is read, and then nothing.
pub(super) async fn comes_home(near: &mut ShmConnection, far: &mut ShmConnection) {
    assert_eq!(fill(near, &[9]), 1);
    assert_eq!(read(far, 1).await, [9]);
    look_for_bytes(near);
    assert_eq!(near.rings().large_out.lent(), 0);
}

#[tokio::test]
async fn a_reader_that_keeps_up_gets_what_stays_in_the_caches() {
    let (mut near, mut far) = both_look().await;
    let bytes = pattern(4 << 20);
    let wrote = fill(&mut near, &bytes);
    assert_eq!(wrote, MEDIUM, "from the first byte on");
    assert_eq!(near.rings().large_out.lent(), 1);
    assert_eq!(read(&mut far, wrote).await, bytes[..wrote]);
    // It stays so as long as there is more.
    let more = fill(&mut near, &bytes[wrote..]);
    assert_eq!(more, MEDIUM);
    assert_eq!(read(&mut far, more).await, bytes[wrote..wrote + more]);
    comes_home(&mut near, &mut far).await;
    // What the small one holds goes through the small one.
    assert_eq!(fill(&mut near, &bytes[..1000]), 1000);
    assert_eq!(near.rings().large_out.lent(), 0);
    assert_eq!(read(&mut far, 1000).await, bytes[..1000]);
}

#[tokio::test]
async fn a_reader_that_goes_away_finds_all_of_it_full() {
    let (mut near, mut far) = both_look().await;
    let bytes = pattern(4 << 20);
    let mut at = fill(&mut near, &bytes);
    assert_eq!(at, MEDIUM);
    let mut got = read(&mut far, 1000).await;
    // Some room, for which it comes, and then it sees nobody.
    at += fill(&mut near, &bytes[at..]);
    looks_in_vain(&mut near);
    let more = fill(&mut near, &bytes[at..]);
    assert_eq!(more, LARGE, "beside what lies in the other part");
    at += more;
    got.extend(read(&mut far, at - 1000).await);
    assert!(got == bytes[..at]);
    // And sees it again.
    let wrote = fill(&mut near, &bytes);
    assert_eq!(wrote, MEDIUM);
    assert!(read(&mut far, wrote).await == bytes[..wrote]);
    comes_home(&mut near, &mut far).await;
}

#[derive(Clone, Debug)]
enum Act {
    Write(usize),
    Read(usize),
    /// So often, for room.
    Look(u32),
    /// Whether the writer, or the reader, looks instead of sleeping.
    Heat(bool, bool),
    /// The writer looks for bytes, too.
    Turn,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (1usize..2_000_000).prop_map(Act::Write),
        2 => (1usize..100_000).prop_map(Act::Read),
        2 => (100_000usize..2_000_000).prop_map(Act::Read),
        2 => prop::sample::select(vec![1, 600]).prop_map(Act::Look),
        1 => (any::<bool>(), prop::bool::weighted(0.8)).prop_map(|(far, hot)| Act::Heat(far, hot)),
        1 => Just(Act::Turn),
    ]
}

async fn story(acts: Vec<Act>) {
    let (mut near, mut far) = pair().await;
    near.set_hot(true);
    let cx = &mut Context::from_waker(Waker::noop());
    let bytes = pattern(251 * 20_000);
    let (mut written, mut got) = (0, 0);
    let mut buffer = vec![0; 2_000_000];
    for act in acts {
        match act {
            Act::Write(len) => {
                let from = written % 251;
                written += fill(&mut near, &bytes[from..from + len]);
            }
            Act::Read(len) => {
                let mut buf = ReadBuf::new(&mut buffer[..len]);
                let _ = Pin::new(&mut far).poll_read(cx, &mut buf);
                let from = got % 251;
                let len = buf.filled().len();
                assert!(buf.filled() == &bytes[from..from + len], "behind {got}");
                got += len;
            }
            Act::Look(times) => {
                for _ in 0..times {
                    near.look();
                }
            }
            Act::Heat(true, hot) => far.set_hot(hot),
            Act::Heat(false, hot) => near.set_hot(hot),
            Act::Turn => look_for_bytes(&mut near),
        }
        assert!(written - got <= LARGE + MEDIUM + (64 << 10));
    }
    let rest = read(&mut far, written - got).await;
    assert!(rest == bytes[got % 251..][..rest.len()]);
    comes_home(&mut near, &mut far).await;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn bytes_keep_their_order_whichever_places_they_go_through(acts in prop::collection::vec(act(), 1..60)) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        runtime.block_on(story(acts));
    }
}
