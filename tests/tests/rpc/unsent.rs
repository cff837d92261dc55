//! A channel reports that it cannot send a tensor after the call or its answer has already left.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tensorpipe::channels::{BasicChannel, Channel, Lane, LaneHandle, LaneIo, OpId};
use tensorpipe::{
    Buffer, Context, Error, Misuse, ResetCode, Tensor,
    channels::{Pays, Threshold},
};
use tensorpipe_rpc::{CallError, Connection, Server, tensor_service};
use tensorpipe_tests::{Double, Says, alone, soon};

#[tensor_service]
trait Mirror {
    async fn mirror(&self, first: Tensor, second: Tensor) -> (Tensor, Tensor);
}

struct Mirrors;

impl Mirror for Mirrors {
    async fn mirror(&self, first: Tensor, second: Tensor) -> (Tensor, Tensor) {
        (first, second)
    }
}

/// How the channel fails: from its lane's method, or from elsewhere, later.
pub(super) const AT_ONCE: u8 = 1;
pub(super) const LATER: u8 = 2;
/// Or it would rather send it otherwise, and asks whether it may.
pub(super) const OTHERWISE: u8 = 3;

/// The first byte of a tensor that fails.
pub(super) const HEAVY: u8 = 9;

/// `basic`, until it is told to fail tensors.
#[derive(Clone, Default)]
pub(super) struct Faulty(pub(super) Arc<AtomicU8>);

struct FaultyLane(Box<dyn Lane>, Faulty, LaneHandle);

impl Says for FaultyLane {
    fn honest(&mut self) -> Option<&mut dyn Lane> {
        Some(&mut *self.0)
    }

    fn send(&mut self, op: OpId, source: Buffer, io: &mut LaneIo<'_>) {
        let how = self.1.0.load(Ordering::SeqCst);
        if how == 0 || source.as_bytes().unwrap()[0] != HEAVY {
            return self.0.send(op, source, io);
        }
        let error = Error::Channel {
            channel: "faulty",
            reason: "the cable is cut".into(),
        };
        if how == AT_ONCE {
            return io.failed(op, error);
        }
        if how == OTHERWISE {
            assert!(!io.divert(op, "basic", source.len() as u64, "the cable is cut"));
            return;
        }
        let handle = self.2.clone();
        io.spawn(async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            handle.failed(op, error);
        });
    }
}

/// One that has this channel, and no other.
pub(super) fn context(channel: &Faulty) -> Context {
    let faulty = channel.clone();
    let channel = Double::of(Arc::new(BasicChannel::new())).named("faulty");
    let channel = channel.with_threshold(Threshold::new(Pays::From(1000)));
    let channel = channel.with_lanes(move |link| {
        let handle = link.handle.clone();
        FaultyLane(
            BasicChannel::new().open(link).unwrap(),
            faulty.clone(),
            handle,
        )
    });
    let builder = Context::builder().channels([channel.channel()]);
    builder.build().unwrap()
}

/// A client of a server, and what makes the channel of either fail.
async fn mirror() -> (MirrorClient, [Faulty; 2], Server) {
    let faulty = [Faulty::default(), Faulty::default()];
    let server = Server::builder()
        .context(&context(&faulty[1]))
        .service(MirrorService::new(Mirrors))
        .listen("tcp://127.0.0.1:0")
        .await
        .unwrap();
    let connection = Connection::builder().context(&context(&faulty[0]));
    let connection = connection.connect(server.url().to_string()).await.unwrap();
    let client = MirrorClient::on(&connection).await.unwrap();
    (client, faulty, server)
}

fn call(
    client: &MirrorClient,
    len: usize,
) -> impl Future<Output = Result<(Tensor, Tensor), CallError>> {
    let tensor = |byte| Tensor::from_vec(vec![byte; len], [len as u64]).unwrap();
    client.mirror(tensor(1), tensor(HEAVY)).into_future()
}

/// Bytes that go ahead of the reader's go-ahead, and bytes that wait for it.
pub(super) const LENGTHS: [usize; 2] = [100_000, 9 << 20];

/// The channel fails the second of two tensors, in every way; `check` looks at the call's error, and the next call goes well.
async fn fails(client: &MirrorClient, channel: &Faulty, check: impl Fn(CallError)) {
    for len in LENGTHS {
        for how in [AT_ONCE, LATER] {
            channel.0.store(how, Ordering::SeqCst);
            let failed = soon("the call's end", call(client, len)).await;
            check(failed.unwrap_err());
            channel.0.store(0, Ordering::SeqCst);
            let (_, second) = soon("the next call", call(client, len)).await.unwrap();
            assert_eq!(second.byte_len(), len);
        }
    }
}

const CAUSE: &str = " was not sent over channel `faulty`: the cable is cut";

#[test]
fn a_call_ends_when_an_argument_cannot_be_sent() {
    alone(async || {
        let (client, [faulty, _], _server) = mirror().await;
        fails(&client, &faulty, |error| {
            let CallError::Connection {
                error: error @ Error::Unsent { .. },
                may_have_run,
            } = error
            else {
                panic!("{error:?}");
            };
            let words = format!("argument `second`{CAUSE}");
            assert_eq!((error.to_string(), may_have_run), (words, true));
        })
        .await;
    });
}

#[test]
fn an_argument_is_named_that_turns_out_not_to_go_as_required() {
    alone(async || {
        let (client, [faulty, _], _server) = mirror().await;
        let strict = client.with_requirement(["faulty"]);
        faulty.0.store(OTHERWISE, Ordering::SeqCst);
        for len in LENGTHS {
            let failed = soon("the call's end", call(&strict, len)).await;
            let CallError::Connection {
                error: Error::Misuse(Misuse::NotAsRequired { what, instead, .. }),
                may_have_run,
            } = failed.unwrap_err()
            else {
                panic!("{len} bytes");
            };
            let found = (&*what, &*instead, may_have_run);
            assert_eq!(found, ("argument `second`", "basic", false));
        }
    });
}

#[test]
fn a_call_ends_when_its_result_cannot_be_sent() {
    alone(async || {
        let (client, [_, faulty], _server) = mirror().await;
        fails(&client, &faulty, |error| {
            let CallError::Connection {
                error: Error::Reset { code, reason },
                may_have_run,
            } = error
            else {
                panic!("{error:?}");
            };
            let words = format!("tensor 1{CAUSE}");
            let found = (code, &*reason, may_have_run);
            assert_eq!(found, (ResetCode::Failed, &*words, true));
        })
        .await;
    });
}
