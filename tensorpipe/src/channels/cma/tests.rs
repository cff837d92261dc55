//! An export table that is read while it changes, exchanges that lie, and the examples of WIRE.md.

use nix::errno::Errno;

use super::copy::{Outcome, Reading};
use super::exports::{ExportTable, SLOTS};
use super::frame::{FromReader, FromWriter, Refusal, Ticket};
use super::peer_process::{PeerMemory, PeerProcess};
use super::*;
use crate::channels::exchange::{ANSWER_TIMEOUT, PACKET_MAX, Packet};
use crate::device::{Buffer, BufferMut, Destination, Pool};
use crate::sync::Arc;
use crate::sys::unix_fds::PacketSocket;
use crate::wire_md::examples;

/// This process, as a peer process of itself.
fn myself() -> Arc<PeerProcess> {
    let exchange = Exchange::here();
    exchange.publish_exports(ExportTable::here().address());
    exchange.open().unwrap();
    PeerProcess::of(exchange.process(), exchange.name())
}

fn shown(source: &Buffer) -> (exports::Export, Ticket) {
    let export = ExportTable::here().show(source).unwrap();
    let ticket = Ticket {
        slot: export.slot,
        number: export.number,
        len: source.len() as u64,
    };
    (export, ticket)
}

fn connect(peer_process: &Arc<PeerProcess>) -> Result<Arc<PeerMemory>, Refusal> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    runtime.unwrap().block_on(peer_process.connect())
}

fn try_fetch(peer_process: &Arc<PeerProcess>, ticket: Ticket) -> Outcome {
    let dest = Destination::pooled(ticket.len as usize);
    match connect(peer_process) {
        Ok(met) => Reading::new(met, ticket, dest, Pool::default()).read(),
        Err(refusal) => Outcome::Refused(dest, refusal),
    }
}

#[track_caller]
fn refusal(outcome: Outcome) -> Refusal {
    match outcome {
        Outcome::Refused(_, refusal) => refusal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_an_export_names_is_read() {
    let peer_process = myself();
    for len in [1, 4096, (2 << 20) - 1, (9 << 20) + 5] {
        let bytes: Vec<u8> = (0..len).map(|i: usize| (i * 31 / 7) as u8).collect();
        let source = Buffer::from_vec(bytes.clone());
        let (export, ticket) = shown(&source);
        match try_fetch(&peer_process, ticket) {
            Outcome::Read(dest) => assert!(dest.freeze().as_bytes().unwrap() == bytes),
            other => panic!("{other:?}"),
        }
        drop(export);
        let refusal = refusal(try_fetch(&peer_process, ticket));
        assert!(refusal.reason.contains("export") && !refusal.lasting);
    }
}

#[test]
fn a_copy_that_is_refused_half_way_keeps_no_memory() {
    let (peer_process, pool) = (myself(), Pool::default());
    for len in [1 << 20, 9 << 20] {
        let source = Buffer::from_vec(vec![7; len]);
        let (export, ticket) = shown(&source);
        let dest = Destination::pooled(len);
        let met = connect(&peer_process).unwrap();
        let reading = Reading::new(met, ticket, dest, pool.clone());
        match reading.read_after(|| {
            assert_ne!(pool.stats().outstanding_bytes, 0);
            drop(export);
        }) {
            Outcome::Refused(dest, _) => assert_eq!(dest.len(), len),
            other => panic!("{other:?}"),
        }
        assert_eq!(pool.stats().outstanding_bytes, 0);
    }
}

#[test]
fn an_export_of_another_number_or_length_is_not_read() {
    let peer_process = myself();
    let source = Buffer::copy_from_slice(&[7; 1000]);
    let (_notice, ticket) = shown(&source);
    let number = Ticket {
        number: ticket.number ^ 2,
        ..ticket
    };
    let len = Ticket { len: 999, ..ticket };
    for other in [number, len] {
        assert!(!refusal(try_fetch(&peer_process, other)).lasting);
    }
}

#[test]
fn memory_that_changes_hands_while_it_is_read_is_not_taken() {
    let peer_process = myself();
    let (send, tickets) = std::sync::mpsc::sync_channel(0);
    let writer = std::thread::spawn(move || {
        let mut memory = BufferMut::zeroed(3 << 20);
        for round in 0..200u32 {
            memory.as_bytes_mut().unwrap().fill(round as u8);
            let mut source = memory.freeze();
            let (export, ticket) = shown(&source);
            if send.send((round as u8, ticket)).is_err() {
                return;
            }
            // Takes the export down at once, or up to about the time when the copy is done.
            (0..round * 200).for_each(|_| std::hint::spin_loop());
            drop(export);
            // The operation is over: its owner may write to the memory again.
            let bytes = source.as_bytes_mut().unwrap();
            bytes.fill(0xff);
            memory = BufferMut::zeroed(3 << 20);
        }
    });
    let mut taken = 0;
    for (round, ticket) in tickets {
        match try_fetch(&peer_process, ticket) {
            Outcome::Read(dest) => {
                let dest = dest.freeze();
                let bytes = dest.as_bytes().unwrap();
                assert!(bytes.iter().all(|byte| *byte == round), "round {round}");
                taken += 1;
            }
            Outcome::Refused(_, refusal) => assert!(!refusal.lasting),
            Outcome::Failed(error) => panic!("{error}"),
            Outcome::Ended => panic!("this process runs"),
        }
    }
    writer.join().unwrap();
    println!("{taken} of 200 were taken whole");
}

/// The refusal from a peer process whose exchange answers like this.
fn met_with(answer: Option<Vec<u8>>) -> Refusal {
    let name = format!("tensorpipe-test-{}", crate::process::random_name().unwrap());
    let listener = PacketSocket::listen(&name).unwrap();
    let peer_process = PeerProcess::of(crate::process::random_token().unwrap(), &name);
    let exchange = std::thread::spawn(move || {
        let socket = loop {
            match listener.accept() {
                Ok(socket) => break socket,
                Err(Errno::EAGAIN) => std::thread::yield_now(),
                Err(errno) => panic!("{errno}"),
            }
        };
        let mut bytes = [0; PACKET_MAX];
        while socket.recv(&mut bytes).is_err() {
            std::thread::yield_now();
        }
        if let Some(answer) = answer {
            socket.send(&answer, None).unwrap();
        }
    });
    let source = Buffer::copy_from_slice(&[7; 1000]);
    let (_notice, ticket) = shown(&source);
    let refusal = refusal(try_fetch(&peer_process, ticket));
    exchange.join().unwrap();
    refusal
}

#[test]
fn an_exchange_that_lies_is_not_believed() {
    let nonsense = met_with(Some(b"what?".to_vec()));
    assert!(nonsense.lasting && nonsense.reason.contains("no sense"));
    assert!(!met_with(None).lasting, "it hung up");
    // These addresses are not mapped, and reading beyond the end of the address space is refused.
    for wild in [8, u64::MAX, u64::MAX - 100, 1 << 47] {
        let refusal = met_with(Some(Packet::Here(wild).encode()));
        assert!(refusal.reason.contains("cannot be read"), "{refusal:?}");
    }
    let absent = PeerProcess::of([9; 16], "tensorpipe-nobody");
    assert!(!connect(&absent).unwrap_err().lasting, "it may come");
    // An exchange does not answer when another process is asked for.
    let other = PeerProcess::of([8; 16], Exchange::here().name());
    myself();
    assert!(connect(&other).is_err());
}

/// Many tensors of a process whose exchange is silent: all of them wait for one thread.
#[test]
fn a_silent_exchange_keeps_one_thread_busy() {
    let name = format!("tensorpipe-test-{}", crate::process::random_name().unwrap());
    let listener = PacketSocket::listen(&name).unwrap();
    let peer_process = PeerProcess::of(crate::process::random_token().unwrap(), &name);
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(1).enable_time().build();
    let runtime = runtime.unwrap();
    for _ in 0..16 {
        let peer_process = peer_process.clone();
        runtime.spawn(async move { peer_process.connect().await });
    }
    // The thread that meets it has connected.
    while listener.accept().is_err() {
        std::thread::yield_now();
    }
    std::thread::sleep(ANSWER_TIMEOUT / 20);
    let others = listener.accept();
    runtime.shutdown_background();
    assert_eq!(others.unwrap_err(), Errno::EAGAIN, "one meets for all");
}

/// Its process may be stopped, or busy: it is met later.
#[test]
fn an_exchange_that_says_nothing_in_time_is_asked_again_later() {
    let name = format!("tensorpipe-test-{}", crate::process::random_name().unwrap());
    let _listener = PacketSocket::listen(&name).unwrap();
    let peer_process = PeerProcess::of(crate::process::random_token().unwrap(), &name);
    let refusal = connect(&peer_process).unwrap_err();
    assert!(refusal.reason.contains("says nothing"), "{refusal:?}");
    assert!(!refusal.lasting, "{refusal:?}");
}

#[test]
fn a_meeting_that_failed_is_not_tried_at_once() {
    let name = format!("tensorpipe-test-{}", crate::process::random_name().unwrap());
    let peer_process = PeerProcess::of(crate::process::random_token().unwrap(), &name);
    assert!(!connect(&peer_process).unwrap_err().lasting);
    let listener = PacketSocket::listen(&name).unwrap();
    assert!(connect(&peer_process).is_err() && peer_process.known().is_some());
    assert_eq!(listener.accept().unwrap_err(), Errno::EAGAIN);
}

#[test]
fn the_examples_are_what_the_code_writes_and_reads() {
    let examples = examples("cma");
    let export = FromWriter::Export(Ticket {
        slot: 7,
        number: 0x8877_6655_4433_2211,
        len: 16 << 20,
    });
    assert_eq!(examples["EXPORT"], export.encode());
    let answer = FromReader::Bytes(Refusal {
        reason: "why".to_owned(),
        lasting: true,
    });
    assert_eq!(examples["BYTES"], answer.encode());
    let ask = Packet::Where { to: [0x33; 16] };
    assert_eq!(examples["WHERE"], ask.encode());
    assert_eq!(examples.len(), 3);
    assert_eq!(SLOTS, 1024, "as WIRE.md says");
}
