//! Clients that come, go, and are slow.

use super::super::borrower::Borrower;
use super::super::{Invitation, PACKET_MAX, Packet, connect};
use super::*;
use crate::device::{Pool, PoolOptions};
use crate::keys::PipeKey;
use crate::sys::fork::tests::{in_a_child, open_at_most, opens_files_anyway};
use crate::sys::ledger::Debts;

/// How many pidfds this process has open.
fn watches() -> usize {
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    let names = all.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    names
        .filter(|name| name.to_string_lossy().contains("pidfd"))
        .count()
}

/// A borrower that has come with an invitation; it is this process itself.
struct Entered {
    invitation: Arc<Invitation>,
    socket: PacketSocket,
}

impl Entered {
    fn borrower(&self) -> &Arc<Borrower> {
        self.invitation.borrower().unwrap()
    }
}

/// A borrower comes and is welcomed.
fn enter(exchange: &Arc<Exchange>) -> Entered {
    let invitation = exchange.invite(None).unwrap();
    let socket = enter_by(exchange, &invitation);
    Entered { invitation, socket }
}

fn enter_by(exchange: &Exchange, invitation: &Invitation) -> PacketSocket {
    let (socket, _) = connect(exchange.name()).unwrap();
    let hello = Packet::Hello(invitation.number());
    socket.send(&hello.encode(), None).unwrap();
    let welcomed = std::iter::repeat_with(|| {
        std::thread::sleep(Duration::from_millis(1));
        socket.recv(&mut [0; PACKET_MAX])
    });
    let welcomed = welcomed.take(5000).find_map(Result::ok);
    assert!(welcomed.unwrap().fd.is_some());
    socket
}

/// Each connection makes it a client, and when that is turned away, a process that still holds a loan.
#[test]
fn a_borrower_that_comes_and_is_turned_away_is_watched_once() {
    let pool = Pool::new(PoolOptions::default());
    let buffer = pool.try_take_lendable(100_000).unwrap().freeze();
    let exchange = Exchange::here();
    let entered = enter(&exchange);
    let (offer, _) = entered.borrower().lend(&buffer).unwrap();
    let ledger = entered.borrower().ledger().unwrap();
    assert!(Debts::map(ledger.fd()).unwrap().take(offer.entry));
    let before = watches();
    for _ in 0..100 {
        let socket = enter_by(&exchange, &entered.invitation);
        socket.send(b"nonsense", None).unwrap();
    }
    let after = watches();
    assert!(after < before + 20, "{before}, then {after}");
}

/// Its program is gone: the process executes another one. In a child, since this process has other connections.
#[test]
fn a_borrower_that_leaves_with_a_loan_is_another_one_when_it_comes_back() {
    let pool = Pool::new(PoolOptions::default());
    assert!(in_a_child(|| {
        let buffer = pool.try_take_lendable(100_000).unwrap().freeze();
        let exchange = Exchange::here();
        let Entered { invitation, socket } = enter(&exchange);
        let borrower = invitation.borrower().unwrap();
        let (offer, _) = borrower.lend(&buffer).unwrap();
        let debts = Debts::map(borrower.ledger().unwrap().fd()).unwrap();
        assert!(debts.take(offer.entry));
        let other = enter_by(&exchange, &invitation);
        drop(socket);
        std::thread::sleep(Duration::from_millis(50));
        assert!(borrower.has_loans(), "it has another connection");
        drop(other);
        let until = Instant::now() + ANSWER_TIMEOUT;
        while borrower.has_loans() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!borrower.has_loans());
        let back = enter(&exchange);
        !Arc::ptr_eq(back.borrower(), borrower)
    }));
}

/// Does what the broker closes its connection for.
fn is_cut_off(socket: &PacketSocket) {
    socket.send(b"nonsense", None).unwrap();
    while !matches!(socket.recv(&mut [0; PACKET_MAX]), Ok(packet) if packet.len == 0) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// In a child, since here other tests' copies are looked after.
#[test]
fn copies_for_a_borrower_that_was_cut_off_and_came_back_are_freed() {
    assert!(in_a_child(|| {
        let exchange = Exchange::here();
        let Entered { invitation, socket } = enter(&exchange);
        let borrower = invitation.borrower().unwrap();
        drop(borrower.take(100_000).unwrap());
        is_cut_off(&socket);
        // Meanwhile, nobody looks after it.
        std::thread::sleep(IDLE + IDLE / 2);
        assert!(borrower.copies().mapped() > 0);
        let _socket = enter_by(&exchange, &invitation);
        let until = Instant::now() + 5 * IDLE;
        while borrower.copies().mapped() > 0 && Instant::now() < until {
            std::thread::sleep(IDLE / 10);
        }
        borrower.copies().mapped() == 0
    }));
}

/// It takes an offer by the account of a connection that was cut off here, comes again, and leaves again.
#[test]
fn a_borrower_whose_connection_was_cut_off_has_its_loans_until_it_ends() {
    let pool = Pool::new(PoolOptions::default());
    assert!(in_a_child(|| {
        let buffer = pool.try_take_lendable(100_000).unwrap().freeze();
        let exchange = Exchange::here();
        let Entered { invitation, socket } = enter(&exchange);
        let borrower = invitation.borrower().unwrap();
        let (offer, _) = borrower.lend(&buffer).unwrap();
        let debts = Debts::map(borrower.ledger().unwrap().fd()).unwrap();
        is_cut_off(&socket);
        assert!(debts.take(offer.entry));
        drop(enter_by(&exchange, &invitation));
        std::thread::sleep(Duration::from_millis(100));
        borrower.has_loans()
    }));
}

/// A borrower that is slow to read still hears of every retired segment: it would keep mapped what it does not hear of.
#[test]
fn a_borrower_that_reads_late_hears_of_every_segment_that_is_gone() {
    const MANY: usize = 600;
    let exchange = Exchange::here();
    let entered = enter(&exchange);
    let socket = &entered.socket;
    for number in 0..MANY as u128 {
        exchange.ask(Command::Retire {
            borrower: entered.borrower().clone(),
            segment: number.to_le_bytes(),
        });
    }
    // It goes on as it was: before it reads, it asks for a segment that is there, and for one that is not.
    let pool = Pool::new(PoolOptions::default());
    let buffer = pool.try_take_lendable(100_000).unwrap().freeze();
    let (offer, _) = entered.borrower().lend(&buffer).unwrap();
    let unknown = [0xff; 16];
    std::thread::sleep(Duration::from_millis(200));
    for segment in [offer.segment, unknown] {
        let fetch = Packet::Fetch(segment).encode();
        socket.send(&fetch, None).unwrap();
    }
    std::thread::sleep(Duration::from_millis(200));
    let mut told = std::collections::BTreeSet::new();
    let mut answers = Vec::new();
    let until = Instant::now() + ANSWER_TIMEOUT;
    while (told.len() < MANY || answers.len() < 2) && Instant::now() < until {
        let mut bytes = [0; PACKET_MAX];
        let received = match socket.recv(&mut bytes) {
            Err(Errno::EAGAIN) => {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            received => received.unwrap(),
        };
        match Packet::decode(&bytes[..received.len]) {
            Some(Packet::Retired(segment)) => assert!(told.insert(segment)),
            other => answers.push((other, received.fd.is_some())),
        }
    }
    assert_eq!(told.len(), MANY);
    let (segment, none) = (Packet::Segment(offer.segment), Packet::None(unknown));
    assert_eq!(answers, [(Some(segment), true), (Some(none), false)]);
}

/// The limit may be lowered at any time, e.g. by a library. Open descriptors stay open.
#[test]
fn a_process_that_may_open_nothing_more_still_answers_its_borrowers() {
    if opens_files_anyway() {
        return;
    }
    assert!(in_a_child(|| {
        let exchange = Exchange::here();
        let entered = [(); 3].map(|()| enter(&exchange));
        let sockets = entered.each_ref().map(|entered| &entered.socket);
        // Fewer than the broker polls.
        open_at_most(3);
        let unknown = [0x79; 16];
        let answers = |socket: &PacketSocket| {
            let fetch = Packet::Fetch(unknown).encode();
            socket.send(&fetch, None).unwrap();
            let heard = std::iter::repeat_with(|| {
                std::thread::sleep(Duration::from_millis(1));
                let mut bytes = [0; PACKET_MAX];
                let len = socket.recv(&mut bytes).ok()?.len;
                Some(Packet::decode(&bytes[..len]))
            });
            heard.take(5000).flatten().next() == Some(Some(Packet::None(unknown)))
        };
        // The first question ends a `poll` that began before the limit was lowered.
        sockets.iter().chain(&sockets).all(|socket| answers(socket))
    }));
}

/// A process gets nothing with another process's invitation, or with one that does not exist.
#[test]
fn an_invitation_is_for_one_process() {
    let exchange = Exchange::here();
    let honest = enter(&exchange);
    let numbers = [honest.invitation.number(), [0x7b; 16]];
    assert!(in_a_child(|| {
        numbers.into_iter().all(|number| {
            let (socket, _) = connect(exchange.name()).unwrap();
            socket.send(&Packet::Hello(number).encode(), None).unwrap();
            let heard = std::iter::repeat_with(|| {
                std::thread::sleep(Duration::from_millis(1));
                let mut bytes = [0; PACKET_MAX];
                let len = socket.recv(&mut bytes).ok()?.len;
                Some(Packet::decode(&bytes[..len]))
            });
            heard.take(5000).flatten().next() == Some(Some(Packet::None(number)))
        })
    }));
    let pool = Pool::new(PoolOptions::default());
    let buffer = pool.try_take_lendable(100_000).unwrap().freeze();
    let (offer, _) = honest.borrower().lend(&buffer).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let debts = Debts::map(honest.borrower().ledger().unwrap().fd()).unwrap();
    assert!(debts.take(offer.entry));
    assert!(
        honest.borrower().has_loans(),
        "that process's end is not its own"
    );
}

/// What an exchange says to a packet.
fn answer(exchange: &Exchange, packet: &Packet) -> Option<Packet> {
    let (socket, _) = connect(exchange.name()).unwrap();
    socket.send(&packet.encode(), None).unwrap();
    let heard = std::iter::repeat_with(|| {
        std::thread::sleep(Duration::from_millis(1));
        let mut bytes = [0; PACKET_MAX];
        let received = socket.recv(&mut bytes);
        match received.map(|packet| packet.len) {
            Err(Errno::EAGAIN) => None,
            Ok(len) => Some(Packet::decode(&bytes[..len])),
            Err(_) => Some(None),
        }
    });
    heard.take(5000).flatten().next().flatten()
}

/// A process that has read the number on the pipe but lacks the pipe's key gets nothing.
#[test]
fn an_invitation_of_a_pipe_with_a_key_is_brought_by_who_has_that() {
    let exchange = Exchange::here();
    let (key, other) = ([1; 32], [2; 32]);
    let (key, other) = (PipeKey::of_connection(&key), PipeKey::of_connection(&other));
    let invitation = exchange.invite(Some(&key)).unwrap();
    let number = invitation.number();
    let lender = exchange.lender(exchange.name());
    for wrong in [number, lender.brings(&number, Some(&other))] {
        let answer = answer(&exchange, &Packet::Hello(wrong));
        assert_eq!(answer, Some(Packet::None(wrong)));
    }
    // For another exchange the value would differ.
    let elsewhere = exchange.lender("tensorpipe-elsewhere");
    let right = lender.brings(&number, Some(&key));
    assert_ne!(right, elsewhere.brings(&number, Some(&key)));
    assert!(invitation.borrower().is_none());
    let answer = answer(&exchange, &Packet::Hello(right));
    assert_eq!(answer, Some(Packet::Welcome(right)));
    assert!(invitation.borrower().is_some());
}

#[test]
fn who_has_the_key_of_a_pipe_is_told_where_there_is_something_to_read() {
    let exchange = Exchange::here();
    exchange.publish_exports(8);
    exchange.open().unwrap();
    let key = PipeKey::of_connection(&[3; 32]);
    let to = key.pass(exchange.name());
    let answered = || answer(&exchange, &Packet::Where { to });
    assert_eq!(answered(), None);
    let passes = [(); 2].map(|()| exchange.issue_pass(&key));
    assert!(matches!(answered(), Some(Packet::Here(_))));
    let elsewhere = key.pass("tensorpipe-elsewhere");
    let other = answer(&exchange, &Packet::Where { to: elsewhere });
    assert_eq!(other, None);
    drop(passes);
    assert_eq!(answered(), None);
}

/// Two pipes lead to one process: what it was lent over one counts for both.
#[test]
fn a_process_that_comes_twice_is_one_borrower() {
    let exchange = Exchange::here();
    let (one, two) = (enter(&exchange), enter(&exchange));
    assert!(Arc::ptr_eq(one.borrower(), two.borrower()));
    let number = one.invitation.number();
    drop(one.invitation);
    assert!(exchange.invitation(number).is_none(), "its pipe is gone");
}

/// In a child, since this process has borrowers of other tests.
#[test]
fn hostile_peers_are_few_and_keep_nobody_out() {
    assert!(in_a_child(|| {
        let exchange = Exchange::here();
        exchange.open().unwrap();
        let before = watches();
        let hostile = [(); 100].map(|()| connect(exchange.name()).unwrap().0);
        let honest = enter(&exchange);
        let most = watches() - before;
        drop((hostile, honest));
        most <= UNIDENTIFIED + 1
    }));
}

/// It would take all places, and the descriptors of this process. In a child, as above.
#[test]
fn a_borrower_that_comes_again_and_again_has_few_connections() {
    assert!(in_a_child(|| {
        let exchange = Exchange::here();
        let invitation = exchange.invite(None).unwrap();
        let before = watches();
        let all = [(); 4 * OF_ONE].map(|()| enter_by(&exchange, &invitation));
        let most = watches() - before;
        // Its last connection is good.
        let unknown = [0x79; 16];
        let fetch = Packet::Fetch(unknown).encode();
        all[4 * OF_ONE - 1].send(&fetch, None).unwrap();
        let heard = std::iter::repeat_with(|| {
            std::thread::sleep(Duration::from_millis(1));
            let mut bytes = [0; PACKET_MAX];
            let len = all[4 * OF_ONE - 1].recv(&mut bytes).ok()?.len;
            Some(Packet::decode(&bytes[..len]))
        });
        let heard = heard.take(5000).flatten().next();
        heard == Some(Some(Packet::None(unknown))) && most <= OF_ONE + 1
    }));
}

/// A subscriber that panics at each event.
struct Panics;

impl tracing::Subscriber for Panics {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        panic!("on purpose");
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// In a child, since a subscriber stays for the life of a process.
#[test]
fn a_log_that_panics_ends_nothing_for_others() {
    assert!(in_a_child(|| {
        let exchange = Exchange::here();
        let entered = enter(&exchange);
        tracing::subscriber::set_global_default(Panics).unwrap();
        // What the broker logs.
        let (stranger, _) = connect(exchange.name()).unwrap();
        let hello = Packet::Hello([0x7b; 16]);
        stranger.send(&hello.encode(), None).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let unknown = [0x79; 16];
        let fetch = Packet::Fetch(unknown).encode();
        entered.socket.send(&fetch, None).unwrap();
        let mut bytes = [0; PACKET_MAX];
        let heard = std::iter::repeat_with(|| {
            std::thread::sleep(Duration::from_millis(1));
            let len = entered.socket.recv(&mut bytes).ok()?.len;
            Some(Packet::decode(&bytes[..len]))
        });
        let heard = heard.take(5000).flatten().next();
        drop(enter(&exchange));
        heard == Some(Some(Packet::None(unknown)))
    }));
}
