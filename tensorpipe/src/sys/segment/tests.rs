//! Segments, their pieces, and readers in this process.

use super::*;
use crate::sync::{AtomicU64, Ordering};
use crate::sys::fork::tests::in_a_child;

/// Counts how often it was told.
struct Counts(AtomicU64);
impl SegmentObserver for Counts {
    fn gone(self: Arc<Self>, _: SegmentId) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn pieces_do_not_overlap_and_a_reader_sees_them() {
    let mut pieces = Segment::cut(1 << 20, 300_000).unwrap();
    assert_eq!(pieces.len(), 3);
    for (i, piece) in pieces.iter_mut().enumerate() {
        assert!(piece.bytes().iter().all(|byte| *byte == 0));
        piece.bytes_mut().fill(i as u8 + 1);
    }
    let segment = pieces[0].segment().clone();
    assert_eq!((segment.len(), segment.pages()), (1 << 20, Pages::Small));
    let foreign = Foreign::map(segment.fd()).unwrap();
    for (i, piece) in pieces.iter().enumerate() {
        let range = piece.offset()..piece.offset() + piece.len();
        let seen = foreign.bytes(range);
        assert!(seen.iter().all(|byte| *byte == i as u8 + 1));
    }
    drop((pieces, segment));
    assert_eq!(foreign.bytes(0..1), [1], "the reader keeps the memory");
}

#[test]
fn long_segments_are_whole_and_on_some_pages() {
    let pieces = Segment::cut(6 << 20, 6 << 20).unwrap();
    let segment = pieces[0].segment();
    println!("{segment:?}");
    assert!(pieces[0].bytes().iter().all(|byte| *byte == 0));
    let foreign = Foreign::map(segment.fd()).unwrap();
    assert!(foreign.bytes(0..6 << 20).iter().all(|byte| *byte == 0));
}

/// A system with huge pages set aside; ordinary pages stand in for them.
const PLENTY: System = System {
    set_aside: |len| memfd::create(c"test", len, false),
    fill: memfd::fill,
    collapse: |_| true,
};

const LEN: usize = 4 << 20;

fn refused(call: &'static str, errno: i32) -> SystemError {
    SystemError::new(call, "", std::io::Error::from_raw_os_error(errno))
}

fn whole(len: usize, system: &System) -> Pages {
    let mut pieces = Segment::cut_from(len, len, system).unwrap();
    let segment = pieces[0].segment().clone();
    let foreign = Foreign::map(segment.fd()).unwrap();
    assert!(foreign.bytes(0..len).iter().all(|byte| *byte == 0));
    pieces[0].bytes_mut()[len - 1] = 7;
    assert_eq!(foreign.bytes(len - 1..len), [7]);
    segment.pages()
}

#[test]
fn pages_that_were_set_aside_come_first() {
    assert_eq!(whole(LEN, &PLENTY), Pages::Reserved);
    assert_eq!(whole(LEN + 4096, &PLENTY), Pages::Huge, "no multiple");
}

/// In a control group without huge pages, they can be made and mapped, but touching them would kill the process.
#[test]
fn pages_that_were_set_aside_and_cannot_be_had_are_not_touched() {
    let none = System {
        fill: |_, _| Err(refused("fallocate", libc::ENOSPC)),
        ..PLENTY
    };
    assert_eq!(whole(LEN, &none), Pages::Huge);
}

#[test]
fn small_pages_come_last() {
    let old = System {
        set_aside: |_| Err(refused("memfd_create", libc::EINVAL)),
        collapse: |_| false,
        ..PLENTY
    };
    assert_eq!(whole(LEN, &old), Pages::Small);
    assert_eq!(whole(4096, &PLENTY), Pages::Small);
}

#[test]
fn who_wants_to_hear_of_the_end_is_told_with_the_last_piece() {
    let told = Arc::new(Counts(AtomicU64::new(0)));
    let mut pieces = Segment::cut(8192, 4096).unwrap();
    let weak = Arc::downgrade(&told);
    pieces[0].segment().add_observer(weak);
    pieces.pop();
    assert_eq!(told.0.load(Ordering::SeqCst), 0);
    pieces.pop();
    assert_eq!(told.0.load(Ordering::SeqCst), 1);
}

#[test]
fn a_forked_child_gives_nothing_back_and_unmaps_nothing() {
    use crate::sys::ledger::{Debts, Ledger};
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};
    let mut pieces = Segment::cut(1 << 20, 1 << 20).unwrap();
    pieces[0].bytes_mut().fill(3);
    let ledger = Ledger::new().unwrap();
    let debts = Debts::map(ledger.fd()).unwrap();
    let loan = ledger.offer(pieces[0].segment(), 0..1 << 20).unwrap();
    let entry = loan.entry();
    assert!(debts.take(entry));
    // SAFETY: the child only drops what it has inherited, and leaves at once.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            debts.give_back(entry);
            ledger.withdraw(entry);
            let is_out = !loan.is_back();
            drop((loan, debts, ledger, pieces));
            // SAFETY: ends the child without running what the parent has registered.
            unsafe { libc::_exit(i32::from(!is_out)) }
        }
        ForkResult::Parent { child } => {
            let status = waitpid(child, None).unwrap();
            assert!(matches!(status, WaitStatus::Exited(_, 0)), "{status:?}");
        }
    }
    assert!(!loan.is_back() && ledger.is_out());
    assert!(pieces[0].bytes().iter().all(|byte| *byte == 3));
    debts.give_back(entry);
    assert!(loan.is_back());
}

#[test]
fn what_is_not_sealed_is_not_mapped() {
    let open = memfd::create(c"open", 4096, false).unwrap();
    let refused = Foreign::map(open.as_fd()).unwrap_err();
    assert!(refused.contains("lacks the seals"), "{refused}");
    memfd::seal(&open, memfd::FIXED).unwrap();
    let refused = Foreign::map(open.as_fd()).unwrap_err();
    assert!(refused.contains("FUTURE_WRITE"), "{refused}");
}

#[test]
fn a_forked_child_tells_nobody_that_its_copy_is_gone() {
    let told = Arc::new(Counts(AtomicU64::new(0)));
    let mut pieces = Some(Segment::cut(8192, 8192).unwrap());
    let weak = Arc::downgrade(&told);
    pieces.as_ref().unwrap()[0].segment().add_observer(weak);
    assert!(in_a_child(|| {
        drop(pieces.take());
        told.0.load(Ordering::SeqCst) == 0
    }));
    drop(pieces);
    assert_eq!(told.0.load(Ordering::SeqCst), 1);
}
