//! Guests that come, go, and are slow.

use super::super::{Packet, meet};
use super::*;
use crate::device::{Pool, PoolOptions};
use crate::process::Token;
use crate::sys::fork::tests::{in_a_child, open_at_most, opens_files_anyway};
use crate::sys::ledger::Debts;

/// Descriptors of processes that this one has open.
fn watches() -> usize {
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    let names = all.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    names
        .filter(|name| name.to_string_lossy().contains("pidfd"))
        .count()
}

/// A borrower comes, and is welcome.
fn enter(exchange: &Exchange, from: Token) -> PacketSocket {
    let socket = meet(exchange.name()).unwrap();
    let to = exchange.process();
    socket
        .send(&Packet::Hello { from, to }.encode(), None)
        .unwrap();
    let welcomed = std::iter::repeat_with(|| {
        std::thread::sleep(Duration::from_millis(1));
        socket.recv(&mut [0; PACKET_MAX])
    });
    let welcomed = welcomed.take(5000).find_map(Result::ok);
    assert!(welcomed.unwrap().fd.is_some());
    socket
}

/// With each connection it comes as a guest, and goes as one that still has something.
#[test]
fn a_borrower_that_comes_and_goes_is_watched_once() {
    let pool = Pool::new(PoolOptions::default());
    let buffer = pool.try_take_lendable(100_000).unwrap().freeze();
    let (exchange, from) = (Exchange::here(), [0x77; 16]);
    let borrower = exchange.borrower(from);
    let (offer, _) = borrower.lend(&buffer).unwrap();
    let ledger = borrower.ledger().unwrap();
    assert!(Debts::map(ledger.fd()).unwrap().take(offer.entry));
    let before = watches();
    for _ in 0..100 {
        enter(&exchange, from);
    }
    let after = watches();
    assert!(after < before + 20, "{before}, then {after}");
}

/// One that has much else to do hears of all of them: it would keep what it did not hear of.
#[test]
fn a_borrower_that_reads_late_hears_of_every_segment_that_is_gone() {
    const MANY: usize = 600;
    let (exchange, from) = (Exchange::here(), [0x78; 16]);
    let borrower = exchange.borrower(from);
    let pool = Pool::new(PoolOptions::default());
    let buffer = pool.try_take_lendable(100_000).unwrap().freeze();
    borrower.lend(&buffer).unwrap();
    let socket = enter(&exchange, from);
    for number in 0..MANY as u128 {
        exchange.ask(Command::Retire {
            borrower: borrower.clone(),
            segment: number.to_le_bytes(),
        });
    }
    std::thread::sleep(Duration::from_millis(200));
    let mut told = std::collections::BTreeSet::new();
    let until = Instant::now() + PATIENCE;
    while told.len() < MANY && Instant::now() < until {
        let mut bytes = [0; PACKET_MAX];
        match socket.recv(&mut bytes).map(|packet| packet.len) {
            Ok(len) => match Packet::decode(&bytes[..len]) {
                Some(Packet::Retired(segment)) => told.insert(segment),
                other => panic!("{other:?}"),
            },
            Err(_) => {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
        };
    }
    assert_eq!(told.len(), MANY);
}

/// The limit may be lowered at any time, e.g. by a library: what is open stays open.
#[test]
fn a_process_that_may_open_nothing_more_still_answers_its_borrowers() {
    if opens_files_anyway() {
        return;
    }
    assert!(in_a_child(|| {
        let (exchange, from) = (Exchange::here(), [0x79; 16]);
        let borrower = exchange.borrower(from);
        let pool = Pool::new(PoolOptions::default());
        let buffer = pool.try_take_lendable(100_000).unwrap().freeze();
        borrower.lend(&buffer).unwrap();
        let sockets = [(); 3].map(|()| enter(&exchange, from));
        // Fewer than are waited for.
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
        // The first one ends a wait that had begun before.
        sockets.iter().chain(&sockets).all(answers)
    }));
}

/// Whoever knows a borrower's token gets nothing by it, and does not end in its place.
#[test]
fn nobody_comes_in_the_name_of_another() {
    let (exchange, from) = (Exchange::here(), [0x7b; 16]);
    let borrower = exchange.borrower(from);
    let pool = Pool::new(PoolOptions::default());
    let buffer = pool.try_take_lendable(100_000).unwrap().freeze();
    let (offer, _) = borrower.lend(&buffer).unwrap();
    let _honest = enter(&exchange, from);
    let to = exchange.process();
    let hello = Packet::Hello { from, to }.encode();
    assert!(in_a_child(|| {
        let socket = meet(exchange.name()).unwrap();
        socket.send(&hello, None).unwrap();
        let heard = std::iter::repeat_with(|| {
            std::thread::sleep(Duration::from_millis(1));
            socket.recv(&mut [0; PACKET_MAX]).ok()
        });
        // Nothing, and the connection is closed.
        heard.take(5000).flatten().next().unwrap().len == 0
    }));
    std::thread::sleep(Duration::from_millis(50));
    let debts = Debts::map(borrower.ledger().unwrap().fd()).unwrap();
    assert!(debts.take(offer.entry));
    assert!(borrower.has_loans(), "that process's end is not its own");
}

/// In a child, since this process has borrowers of other tests.
#[test]
fn strangers_are_few_and_keep_nobody_out() {
    assert!(in_a_child(|| {
        let (exchange, from) = (Exchange::here(), [0x7a; 16]);
        let borrower = exchange.borrower(from);
        let pool = Pool::new(PoolOptions::default());
        let buffer = pool.try_take_lendable(100_000).unwrap().freeze();
        borrower.lend(&buffer).unwrap();
        let before = watches();
        let strangers = [(); 100].map(|()| meet(exchange.name()).unwrap());
        let honest = enter(&exchange, from);
        let most = watches() - before;
        drop((strangers, honest));
        most <= STRANGERS + 1
    }));
}
