//! Records the messages of a victim's lane about lent memory: by a lane that then behaves correctly, or by one that never comes.

use std::sync::{Arc, Mutex};

use tensorpipe::channels::{BasicChannel, Channel, ChannelFault, Lane, LaneIo, LeaseChannel, OpId};
use tensorpipe::transports::{TcpTransport, Transport};
use tensorpipe::{Buffer, BufferMut, Context, Message, Pipe, Tensor};
use tensorpipe_tests::{Double, Says, eventually, soon};

use super::victim::Victim;
use super::{NAME, SECRET};

/// The bodies that lanes hear.
type Heard = Arc<Mutex<Vec<Vec<u8>>>>;

/// As WIRE.md has them, without the bit that says that somebody waits.
const OFFER: u8 = 1;
const CANNOT: [u8; 1] = [2];
const INVITE: u8 = 4;
const COPY: u8 = 5;

/// The 16 bytes of the first one of these kinds: a segment, or an invitation.
async fn heard(heard: &Heard, kinds: &[u8]) -> Vec<u8> {
    let found = || {
        let heard = heard.lock().unwrap();
        let mut said = heard.iter().filter_map(|body| {
            let (kind, rest) = body.split_first()?;
            let is_one = kinds.contains(&(kind & 0x7f));
            is_one.then(|| rest.get(..16)).flatten()
        });
        said.next().map(<[u8]>::to_vec)
    };
    eventually("what is lent", || found().is_some()).await;
    found().unwrap()
}

/// Over tcp: over shm the kernel says which process it is, and one that is known is not invited.
fn context(victim: &Victim, channels: Vec<Arc<dyn Channel>>) -> Context {
    let tcp: Arc<dyn Transport> = Arc::new(TcpTransport::new());
    let builder = Context::builder().transports([tcp]).channels(channels);
    let builder = match victim.asks {
        true => builder.token(NAME, SECRET),
        false => builder,
    };
    builder.build().unwrap()
}

async fn sends(context: &Context, victim: &Victim) -> Pipe {
    let pipe = soon("a pipe", context.connect(&victim.pipes)).await;
    let pipe = pipe.unwrap();
    let tensor = Tensor::from(vec![7u8; 300_000]);
    pipe.send(Message::new("m").tensor(tensor)).unwrap();
    pipe
}

/// An honest end, to which something is lent.
pub(super) struct Lent {
    /// Where that lies.
    pub(super) segment: Vec<u8>,
    _held: (Context, Pipe, Message),
}

/// Its lane. It lends nothing itself: what a victim was lent it would give back, instead of memory of its own.
struct Listens {
    honest: Box<dyn Lane>,
    heard: Heard,
    source: Option<Buffer>,
}

impl Says for Listens {
    fn honest(&mut self) -> Option<&mut dyn Lane> {
        Some(&mut *self.honest)
    }

    fn send(&mut self, op: OpId, source: Buffer, io: &mut LaneIo<'_>) {
        self.source = Some(source);
        io.control(op, CANNOT);
    }

    fn control(&mut self, op: OpId, body: &[u8], io: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        if let (true, Some(source)) = (op.outgoing, self.source.take()) {
            io.stream(op, source);
            return Ok(());
        }
        self.heard.lock().unwrap().push(body.to_vec());
        self.honest.control(op, body, io)
    }

    fn streamed(&mut self, op: OpId, dest: Option<BufferMut>, io: &mut LaneIo<'_>) {
        match op.outgoing {
            true => io.sent(op),
            false => self.honest.streamed(op, dest, io),
        }
    }
}

impl Lent {
    pub(super) async fn by(victim: &Victim) -> Self {
        let said = Heard::default();
        let tape = said.clone();
        let lease = Double::of(Arc::new(LeaseChannel::new())).with_lanes(move |link| Listens {
            honest: LeaseChannel::new().open(link).unwrap(),
            heard: tape.clone(),
            source: None,
        });
        let context = context(victim, vec![lease.channel(), Arc::new(BasicChannel::new())]);
        let pipe = sends(&context, victim).await;
        let echo = soon("an echo", pipe.read()).await.unwrap();
        assert!(pipe.stats().bytes_borrowed > 0, "{}", pipe.route());
        Self {
            segment: heard(&said, &[OFFER, COPY]).await,
            _held: (context, pipe, echo),
        }
    }
}

/// The lane of an end that is invited and does not come.
pub(super) struct Told {
    heard: Heard,
    source: Option<Buffer>,
}

impl Says for Told {
    /// "It cannot be lent": the bytes are sent when they are asked for.
    fn send(&mut self, op: OpId, source: Buffer, io: &mut LaneIo<'_>) {
        self.source = Some(source);
        io.control(op, CANNOT);
    }

    fn control(&mut self, op: OpId, body: &[u8], io: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        match op.outgoing.then(|| self.source.take()).flatten() {
            Some(source) => io.stream(op, source),
            None => self.heard.lock().unwrap().push(body.to_vec()),
        }
        Ok(())
    }
}

impl Told {
    /// The invitation that it has from a victim, whose pipe stays for as long as this process runs.
    pub(super) async fn by(victim: &Victim) -> Vec<u8> {
        static KEPT: Mutex<Vec<(Context, Pipe)>> = Mutex::new(Vec::new());
        let said = Heard::default();
        let tape = said.clone();
        let lane = move |_| Self {
            heard: tape.clone(),
            source: None,
        };
        let liar = Double::liar(LeaseChannel::new(), lane);
        let context = context(victim, vec![liar.channel()]);
        let pipe = sends(&context, victim).await;
        // The victim's writer waits for its reader.
        let reads = pipe.clone();
        tokio::spawn(async move { reads.read().await.map(drop) });
        let invitation = heard(&said, &[INVITE]).await;
        KEPT.lock().unwrap().push((context, pipe));
        invitation
    }
}
