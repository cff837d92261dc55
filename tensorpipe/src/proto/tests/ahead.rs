//! A reader that grants credit ahead gets its bulk without a round trip.

use crate::error::ResetCode;
use crate::proto::OpId;
use crate::proto::sim::frames::control;
use crate::proto::sim::{Pair, message};
use crate::proto::wire::frame::{Control, Kind};

fn pair(window_ahead: u64) -> Pair {
    Pair::reader(|limits| limits.window_ahead = window_ahead).told()
}

#[test]
fn bulk_comes_before_it_is_read() {
    let mut pair = pair(10_000);
    let sent = message("ahead").tensor(5000).payload(3).tensor_on(1, 2000);
    pair.send(&sent);
    assert_eq!(pair.a.written, [0], "without a word from the reader");
    assert!(pair.b.frames.is_empty());
    let again = pair.b.pipe.expect(OpId::incoming(0, 1), Vec::new(), 5000);
    assert!(!again, "all of it is here");
    pair.b.read(0);
    pair.settle();
    assert_eq!(pair.b.contents(), [sent.parts()]);
    assert_eq!(pair.b.sent(Kind::Grant), 0);
}

/// All of the credit can be used. Credit of read messages comes back in halves of the window, or when it is asked for.
#[test]
fn all_of_the_credit_is_used_and_comes_back_in_halves() {
    let mut pair = pair(4 * SENT);
    let send = |pair: &mut Pair, number| {
        assert_eq!(pair.send(&message("4k").tensor(4000)), number);
        assert_eq!(pair.a.written.last(), Some(&number), "it went ahead");
    };
    (0..4).for_each(|number| send(&mut pair, number));
    assert_eq!(pair.b.pipe.ahead().unfinished, 4 * SENT);
    for (number, windows) in [(0, 0), (1, 1), (2, 1)] {
        pair.read(number);
        assert_eq!(pair.b.sent(Kind::Window), windows, "{number} was read");
    }
    for _ in 0..2 {
        pair.b.pipe.announce_ahead();
        pair.run();
        assert_eq!(pair.b.sent(Kind::Window), 2, "there is news once");
    }
    (4..7).for_each(|number| send(&mut pair, number));
    (3..7).for_each(|number| pair.read(number));
    pair.settle();
}

/// While the reader waits for RECALLED it goes on reading. What becomes free then is announced behind the answer, if there is any.
#[test]
fn what_was_read_until_the_answer_came_is_told_behind_it() {
    for read in [0, 1] {
        let mut pair = pair(10_000);
        (0..2).for_each(|_| _ = pair.send(&message("ahead").tensor(4000)));
        narrow(&mut pair, 2 * SENT);
        (0..read).for_each(|message| pair.b.read(message));
        assert_eq!(pair.b.sent(Kind::Window), 0);
        pair.run();
        assert_eq!(pair.b.sent(Kind::Window), read as usize);
        assert_eq!(pair.b.pipe.ahead().promised, 2 * SENT);
        (read..2).for_each(|message| pair.b.read(message));
        pair.settle();
    }
}

#[test]
fn what_is_skipped_or_refused_is_thrown_away_as_it_comes() {
    let mut pair = pair(100_000).rate(1000);
    let sent = message("one").tensor(20_000).tensor(3000);
    pair.a.write(&sent);
    pair.a.write(&message("two").tensor(20_000));
    pair.run_for(10);
    pair.b.read_but(0, &[0]);
    pair.b.refuse(1, ResetCode::Refused);
    pair.settle();
    let mut parts = sent.parts();
    parts[0] = None;
    assert_eq!(pair.b.contents(), [parts]);
    assert_eq!(pair.b.cancelled, [OpId::incoming(1, 0)]);
    assert_eq!(pair.a.refused, [(1, ResetCode::Refused)]);
}

/// All of a tensor of 5000 bytes is handed over, and half of it is here.
fn half() -> Pair {
    let mut pair = pair(10_000).rate(4000).latency(5);
    pair.a.write(&message("ahead").tensor(5000));
    pair.run_for(6);
    assert_eq!((&pair.a.written, &pair.b.ready), (&vec![0], &vec![0]));
    pair
}

#[test]
fn where_there_is_no_memory_it_is_thrown_away_as_it_comes() {
    let mut pair = half();
    pair.b.pipe.discard_parts(0);
    pair.read(0);
    pair.settle();
    assert_eq!(pair.b.contents(), [[None]]);
    assert_eq!(pair.b.pipe.dropped(), 5000);
    assert_eq!(pair.a.refused, [], "all has come: it is simply done with");
}

/// It comes before this end has said so.
#[test]
fn the_writer_is_not_blamed_for_what_comes_where_there_is_no_memory() {
    let mut pair = pair(10_000);
    (pair.b.is_full, pair.b.lazy) = (true, true);
    pair.send(&message("ahead").tensor(5000));
    assert_eq!(pair.b.complaint(), "");
    pair.b.pipe.discard_parts(0);
    pair.read(0);
    pair.settle();
    assert_eq!(pair.b.contents(), [[None]]);
}

/// Half of the part has come and was read by nobody, and the other half still comes.
#[test]
fn a_part_that_is_skipped_while_it_comes_is_thrown_away() {
    let mut pair = half();
    pair.b.read_but(0, &[0]);
    pair.settle();
    assert_eq!(pair.b.pipe.dropped(), 5000);
}

#[test]
fn to_skip_what_was_handed_over_is_no_news_to_the_writer() {
    let mut pair = half();
    pair.b.refuse(0, ResetCode::Skipped);
    pair.settle();
    assert_eq!(pair.a.refused, []);
    assert_eq!(pair.b.cancelled, [OpId::incoming(0, 0)]);
}

/// The credit that a tensor of 4000 bytes takes.
const SENT: u64 = 4000 + 256;

/// As by RECALL, `b` takes back what `a` has not used; a tensor of 4000 bytes waits then.
fn narrow(pair: &mut Pair, bytes: u64) {
    assert!(pair.b.pipe.narrow_ahead(bytes));
    assert!(!pair.b.pipe.narrow_ahead(0), "it has not answered");
}

#[test]
fn credit_that_was_earned_is_used_and_taken_back() {
    let mut pair = pair(1000);
    pair.send(&message("waits").tensor(4000));
    assert!(pair.a.written.is_empty());
    pair.b.read(0);
    pair.b.pipe.widen_ahead(5000);
    pair.run();
    pair.send(&message("ahead").tensor(4000));
    assert_eq!(pair.a.written, [0, 1]);
    pair.b.read(1);
    narrow(&mut pair, 2000);
    pair.run();
    let ahead = pair.b.pipe.ahead();
    assert_eq!((ahead.window, ahead.promised), (2000, 2000));
    assert_eq!((ahead.received, ahead.unfinished), (SENT, 0));
    pair.send(&message("waits").tensor(4000));
    pair.send(&message("ahead").tensor(1700));
    assert_eq!(pair.a.written, [0, 1, 3]);
    pair.b.read(2);
    pair.b.read(3);
    pair.settle();
    assert_eq!(pair.b.delivered.len(), 4);
}

/// Bytes that are under way when RECALL comes stay credit until they are read, whatever else is announced meanwhile.
#[test]
fn credit_that_is_being_used_is_taken_back_when_it_is_free() {
    for more in [0, 6000] {
        let mut pair = pair(10_000).latency(5);
        pair.a.write(&message("ahead").tensor(4000));
        narrow(&mut pair, 1000);
        if more > 0 {
            pair.b.pipe.widen_ahead(more);
        }
        pair.run();
        assert_eq!(pair.a.written, [0]);
        assert_eq!(pair.b.pipe.ahead().promised, more.max(SENT));
        pair.read(0);
        pair.send(&message("next").tensor(5500));
        assert_eq!(pair.a.written.len(), 1 + usize::from(more > 0));
        pair.b.read(1);
        pair.settle();
    }
}

#[test]
fn what_is_announced_behind_the_request_is_not_taken_back_by_it() {
    let mut pair = pair(10_000);
    pair.b.pipe.widen_ahead(20_000);
    narrow(&mut pair, 1000);
    pair.b.pipe.widen_ahead(6000);
    pair.run();
    pair.send(&message("ahead").tensor(5500));
    assert_eq!(pair.a.written, [0]);
    pair.b.read(0);
    pair.settle();
}

#[test]
fn an_answer_that_was_not_asked_for_or_is_none_is_a_fault() {
    let complaint = |asked: Option<u64>, ahead: u64| {
        let mut pair = pair(10_000);
        pair.send(&message("ahead").tensor(4000));
        if let Some(bytes) = asked {
            narrow(&mut pair, bytes);
        }
        pair.tell(&control([Control::Recalled(ahead)]));
        pair.b.complaint()
    };
    let unexpected = [
        (None, 10_000),
        (Some(1000), 1000),
        (Some(1000), 10_000),
        (Some(6000), SENT),
    ];
    for (asked, ahead) in unexpected {
        let said = complaint(asked, ahead);
        assert!(said.starts_with("it sent a RECALLED frame "), "{said}");
    }
    assert_eq!(complaint(Some(1000), SENT), "");
    assert_eq!(complaint(Some(6000), 6000), "");
}

/// There was no memory for the message, and its later reader refuses it for another reason: the writer hears that one.
#[test]
fn what_was_thrown_away_can_still_be_refused() {
    let mut pair = pair(10_000);
    pair.send(&message("lost").tensor(5000).tensor(3000));
    pair.b.pipe.discard_parts(0);
    assert_eq!(pair.b.pipe.dropped(), 8000);
    pair.b.refuse(0, ResetCode::Refused);
    pair.run();
    assert_eq!(pair.b.pipe.dropped(), 8000, "counted once");
    assert_eq!(pair.a.refused, [(0, ResetCode::Refused)]);
    pair.send(&message("next").tensor(9000));
    assert_eq!(pair.a.written.len(), 2, "its credit is back");
    pair.b.read(1);
    pair.settle();
}

/// Bulk that comes ahead needs no go-ahead: a GRANT of it is a fault.
#[test]
fn a_go_ahead_for_what_goes_ahead_is_a_fault() {
    let mut pair = pair(10_000).rate(1000);
    pair.a.write(&message("ahead").tensor(5000));
    pair.run_for(2);
    assert_eq!(pair.a.pipe.unwritten(), 1);
    let (message, skip) = (0, Vec::new());
    let grant = control([Control::Grant { message, skip }]);
    pair.a.receive(&grant, pair.now);
    assert_eq!(
        pair.a.complaint(),
        "it sent a GRANT frame twice for one message"
    );
}

/// However small a part is, it costs its reader memory.
#[test]
fn many_small_parts_take_as_much_credit_as_a_large_one() {
    let mut pair = pair(3000);
    let many = (0..15).fold(message("small"), |message, _| message.tensor(65));
    pair.send(&many);
    assert!(pair.a.written.is_empty(), "15 times 65 are 975");
    pair.b.read(0);
    pair.settle();
    assert_eq!(pair.a.written, [0]);
}
