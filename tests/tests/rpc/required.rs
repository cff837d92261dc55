//! Channels that a caller requires: for arguments by its client, for results by the server's context.

use std::sync::atomic::Ordering;

use futures_util::{StreamExt, stream};
use tensorpipe::{Context, DeviceKind, Error, Misuse, Tensor};
use tensorpipe_rpc::{CallError, Connection, Server, Streaming, tensor_service};
use tensorpipe_tests::{alone, soon};

use super::unsent::{AT_ONCE, Faulty, HEAVY, LATER, LENGTHS, OTHERWISE, context};

#[tensor_service]
trait Twice {
    async fn twice(&self, tensor: Tensor, times: u64) -> Tensor;
    /// Bytes of all of them.
    async fn total(&self, tensors: Streaming<Tensor>) -> u64;
}

struct Doubles;

impl Twice for Doubles {
    async fn twice(&self, tensor: Tensor, times: u64) -> Tensor {
        let len = tensor.byte_len() as u64 * times;
        Tensor::from_vec(vec![1u8; len as usize], [len]).unwrap()
    }

    async fn total(&self, tensors: Streaming<Tensor>) -> u64 {
        let add = async |sum, tensor: Tensor| sum + tensor.byte_len() as u64;
        tensors.values().fold(0, add).await
    }
}

const LEN: usize = 300_000;

fn tensor(len: usize) -> Tensor {
    Tensor::from_vec(vec![1u8; len], [len as u64]).unwrap()
}

async fn served(context: &Context) -> (TwiceClient, Server) {
    served_to(&Context::new(), context).await
}

async fn served_to(client: &Context, context: &Context) -> (TwiceClient, Server) {
    let server = Server::builder()
        .context(context)
        .service(TwiceService::new(Doubles));
    let server = server.listen("tcp://127.0.0.1:0").await.unwrap();
    let connection = Connection::builder().context(client);
    let connection = connection.connect(server.url().to_string()).await.unwrap();
    (TwiceClient::on(&connection).await.unwrap(), server)
}

/// What did not go as required, what was, what would have carried it, and why that was not.
fn not_as_required(failed: &CallError) -> [&str; 4] {
    let CallError::Connection {
        error:
            Error::Misuse(Misuse::NotAsRequired {
                what,
                required,
                instead,
                reason,
            }),
        ..
    } = failed
    else {
        panic!("{failed:?}");
    };
    [what, required, instead, reason].map(|words| &**words)
}

#[test]
fn a_call_goes_as_its_caller_requires_or_fails_before_a_byte_moves() {
    alone(async || {
        let (client, _server) = served(&Context::new()).await;
        let strict = client.with_requirement(["lease"]);
        let before = client.connection().pipe().stats().bytes_out;
        let failed = soon("an error", strict.twice(tensor(LEN), 1))
            .await
            .unwrap_err();
        assert!(!failed.may_have_run(), "{failed}");
        let [what, required, instead, reason] = not_as_required(&failed);
        assert_eq!(what, "argument `tensor` from cpu:0 to cpu:0");
        assert_eq!((required, instead), ("lease", "xth"));
        assert!(reason.starts_with("lease: "), "{reason}");
        assert_eq!(client.connection().pipe().stats().bytes_out, before);
        // What rides in the message's frame may, and so may the others of the client.
        soon("a small call", strict.twice(tensor(100), 1))
            .await
            .unwrap();
        soon("a call", client.twice(tensor(LEN), 1)).await.unwrap();
        soon(
            "a call",
            client
                .with_requirement(["lease", "xth"])
                .twice(tensor(LEN), 1),
        )
        .await
        .unwrap();
    });
}

#[test]
fn items_of_a_stream_go_as_their_caller_requires_or_end_the_call() {
    alone(async || {
        let (client, _server) = served(&Context::new()).await;
        let items = || stream::iter([tensor(100), tensor(LEN), tensor(LEN)]);
        let strict = client.with_requirement(["lease"]);
        let failed = soon("an error", strict.total(items())).await.unwrap_err();
        assert!(failed.may_have_run(), "{failed}");
        let [what, required, instead, _] = not_as_required(&failed);
        assert_eq!(what, "the stream's items from cpu:0 to cpu:0");
        assert_eq!((required, instead), ("lease", "xth"));
        let wide = client.with_requirement(["xth"]);
        let total = soon("a call", wide.total(items())).await.unwrap();
        assert_eq!(total, 100 + 2 * LEN as u64);
    });
}

/// The channel finds out when the item has long left its stream.
#[test]
fn an_item_that_turns_out_not_to_go_as_required_ends_the_call_with_the_reason() {
    alone(async || {
        let faulty = Faulty::default();
        let (client, _server) = served_to(&context(&faulty), &context(&Faulty::default())).await;
        let strict = client.with_requirement(["faulty"]);
        for len in LENGTHS {
            let heavy = || Tensor::from_vec(vec![HEAVY; len], [len as u64]).unwrap();
            let items = || stream::iter([tensor(100), heavy(), tensor(LEN)]);
            for how in [AT_ONCE, LATER, OTHERWISE] {
                faulty.0.store(how, Ordering::SeqCst);
                let failed = soon("an error", strict.total(items())).await.unwrap_err();
                assert!(failed.may_have_run(), "{failed}");
                match &failed {
                    CallError::Connection {
                        error: error @ Error::Unsent { .. },
                        ..
                    } if how != OTHERWISE => {
                        let words = "the stream's items was not sent over channel `faulty`: the cable is cut";
                        assert_eq!(error.to_string(), words);
                    }
                    failed => assert_eq!(
                        not_as_required(failed),
                        ["the stream's items", "faulty", "basic", "the cable is cut"]
                    ),
                }
            }
            faulty.0.store(0, Ordering::SeqCst);
            let total = soon("a call", strict.total(items())).await.unwrap();
            assert_eq!(total, (100 + len + LEN) as u64);
        }
    });
}

#[test]
fn what_the_context_leaves_out_no_call_can_require() {
    alone(async || {
        let (_client, server) = served(&Context::new()).await;
        let strict = Context::builder().require(DeviceKind::CPU, ["lease", "xth"]);
        let client = TwiceClient::connect_with(&strict.build().unwrap(), server.url()).await;
        let client = client.unwrap().with_requirement(["basic"]);
        let failed = soon("an error", client.twice(tensor(LEN), 1)).await;
        let failed = failed.unwrap_err().to_string();
        let words = "only over xth: basic: this context leaves it out, it requires lease or xth";
        assert!(failed.contains(words), "{failed}");
    });
}

#[test]
fn a_result_goes_as_its_servers_context_requires() {
    alone(async || {
        let strict = Context::builder().require(DeviceKind::CPU, ["lease"]);
        let (client, _server) = served(&strict.build().unwrap()).await;
        let failed = soon("an error", client.twice(tensor(100), 3000))
            .await
            .unwrap_err();
        let CallError::BadReply(words) = &failed else {
            panic!("{failed:?}");
        };
        assert!(
            words.contains("cannot go over lease, which is required, only over xth: lease: "),
            "{words}"
        );
        let small = soon("a small call", client.twice(tensor(LEN), 0))
            .await
            .unwrap();
        assert_eq!(small.byte_len(), 0);
    });
}
