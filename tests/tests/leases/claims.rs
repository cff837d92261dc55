//! A hostile peer claims to be a process that was lent memory. The claim gets it nothing.

use std::collections::HashMap;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, bind, socket};
use tensorpipe::channels::{ChannelFault, LaneIo, LeaseChannel, OpId};
use tensorpipe::conformance::pattern;
use tensorpipe::{Buffer, Context, Message, Pipe, Tensor};
use tensorpipe_tests::{Double, Says};

use super::scene::{Keeps, Peer, alone, check, eventually, lendable, made, offer, over_tcp, soon};

const LEN: usize = 100_000;

/// What the hostile peer has heard: answers of the victim's lane.
type Heard = Arc<Mutex<Vec<Vec<u8>>>>;

/// Of a process that says of itself what another one does.
#[derive(Clone)]
struct Impostor {
    /// Of the first loan, which it sends "back".
    offset: u64,
    heard: Heard,
    sources: HashMap<OpId, Buffer>,
}

impl Impostor {
    fn new(offset: u64) -> Self {
        let (heard, sources) = (Heard::default(), HashMap::new());
        Self {
            offset,
            heard,
            sources,
        }
    }

    /// Its pipe to the victim, on which it has sent a tensor as if it were `peer`, and the victim's end.
    async fn meets(self, victim: &Context, peer: &Peer) -> (Pipe, Pipe) {
        let liar = Double::liar(LeaseChannel::new(), move |_| self.clone());
        let liar = liar.at(descriptor(peer).await).channel();
        let hostile = Context::builder().name("hostile peer").channels([liar]);
        let hostile = hostile.build().unwrap();
        let listener = victim.listen(["tcp://127.0.0.1:0"]).await.unwrap();
        let url = listener.url().to_string();
        let (theirs, ours) = tokio::join!(hostile.connect(&url), listener.accept());
        let theirs = theirs.unwrap();
        let tensor = Tensor::from_vec(pattern(LEN, 99), [LEN as u64]).unwrap();
        theirs.send(Message::new("m").tensor(tensor)).unwrap();
        (theirs, ours.unwrap())
    }
}

impl Says for Impostor {
    /// "It lies in what you have lent me."
    fn send(&mut self, op: OpId, source: Buffer, io: &mut LaneIo<'_>) {
        // Slots and generations are counted, so the first guess would hit.
        let yours = offer(3, [0; 16], self.offset, source.len() as u64, 0, 4);
        self.sources.insert(op, source);
        io.control(op, yours);
    }

    fn control(&mut self, op: OpId, body: &[u8], io: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        self.heard.lock().unwrap().push(body.to_vec());
        if !op.outgoing {
            // "I have come." It has not.
            io.control(op, [4]);
            return Ok(());
        }
        match (body, self.sources.remove(&op)) {
            ([2], Some(source)) => io.stream(op, source),
            _ => io.sent(op),
        }
        Ok(())
    }
}

/// What the victim reads of a hostile peer that claims to be `peer` and to send back a loan that begins there; and what the hostile peer heard.
async fn claimed(victim: &Context, peer: &Peer, offset: u64) -> (Message, Vec<u8>) {
    let impostor = Impostor::new(offset);
    let heard = impostor.heard.clone();
    let (_hostile_peer, pipe) = impostor.meets(victim, peer).await;
    let message = soon("a message", pipe.read()).await.unwrap();
    let heard = heard.lock().unwrap().first().cloned().unwrap_or_default();
    (message, heard)
}

/// How a process describes itself to its peers.
async fn descriptor(peer: &Peer) -> Vec<u8> {
    let hex = peer.told("descriptor").await;
    let digits = hex.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.map(byte).collect()
}

#[test]
fn whoever_claims_to_be_a_borrower_is_told_nothing_of_what_that_was_lent() {
    alone(async || {
        let victim = over_tcp("victim", 64 << 20);
        let peer = Peer::start(&victim, &[]).await;
        let lent = made(victim.pool(), LEN, 5);
        peer.keeps(&lent, 5).await;
        // Where pieces of this size begin.
        let offsets = (0..18).map(|piece| piece * (7 << 14));
        for offset in offsets {
            let (message, heard) = claimed(&victim, &peer, offset).await;
            assert_eq!(heard, [2], "its own bytes are asked for");
            check(&message.tensors[0].tensor, 99);
        }
        // The loan is what it was.
        assert_eq!(peer.told("check").await, "1 are the same");
        assert!(lendable(victim.pool()).outstanding_bytes > 0);
        let before = peer.pipe.stats().bytes_copied;
        check(&peer.echoes(&lent).await, 5);
        assert_eq!(peer.pipe.stats().bytes_copied, before);
    });
}

#[test]
fn whoever_claims_to_have_come_is_offered_nothing() {
    alone(async || {
        let victim = over_tcp("victim", 64 << 20);
        let peer = Peer::start(&victim, &[]).await;
        let impostor = Impostor::new(0);
        let heard = impostor.heard.clone();
        let (theirs, ours) = impostor.meets(&victim, &peer).await;
        let sent = ours.write(Message::new("m").tensor(made(victim.pool(), LEN, 7)));
        let reading = tokio::spawn(async move { theirs.read().await.map(drop) });
        let error = soon("an error", sent).await.unwrap_err();
        let ended = soon("the end", ours.ended()).await.to_string();
        assert!(ended.contains("says that it came"), "{ended}; {error}");
        reading.abort();
        // An invitation, and nothing of where memory lies.
        let heard = heard.lock().unwrap().clone();
        let [invitation] = &heard[..] else {
            panic!("{heard:?}");
        };
        assert_eq!((invitation[0], invitation.len()), (4, 17));
        drop(ours);
        let is_back = || lendable(victim.pool()).outstanding_bytes == 0;
        eventually("the memory is back", is_back).await;
    });
}

/// Whoever connects learns the name, also of a process that has not lent anything yet, and could be another user's.
#[test]
fn nobody_else_takes_the_name_under_which_a_process_lends() {
    alone(async || {
        let victim = over_tcp("victim", 64 << 20);
        let peer = Peer::start(&victim, &[]).await;
        let described = descriptor(&peer).await;
        let name = &described[described.len() - "tensorpipe-".len() - 32..];
        let family = AddressFamily::Unix;
        let thief = socket(family, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
        let taken = bind(thief.as_raw_fd(), &UnixAddr::new_abstract(name).unwrap());
        assert_eq!(taken, Err(Errno::EADDRINUSE));
        check(&peer.gives(LEN, 3).await, 3);
        assert_eq!(peer.pipe.stats().bytes_borrowed, LEN as u64);
    });
}
