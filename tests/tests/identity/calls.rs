//! A handler learns the identity of its caller, and `authorize` decides which calls pass.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tensorpipe::transports::{TcpTransport, Transport};
use tensorpipe::{Context, Tensor};
use tensorpipe_rpc::{CallContext, CallError, Connection, Server, tensor_service};
use tensorpipe_tests::{eventually, runtime, soon};

use super::tokens::SECRET;

#[tensor_service]
trait Store {
    async fn whoami(&self, cx: &CallContext) -> String;
    async fn put(&self, value: Tensor) -> u64;
    async fn panics(&self) -> u64;
}

#[derive(Default)]
struct Here(Arc<AtomicUsize>);

impl Store for Here {
    async fn whoami(&self, cx: &CallContext) -> String {
        let caller = cx.caller();
        assert_eq!(caller.identity, cx.route().identity);
        caller.to_string()
    }

    async fn put(&self, value: Tensor) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst);
        value.byte_len() as u64
    }

    async fn panics(&self) -> u64 {
        0
    }
}

fn context(name: &str, secret: [u8; 16]) -> Context {
    let tcp = Arc::new(TcpTransport::new()) as Arc<dyn Transport>;
    let builder = Context::builder().transports([tcp]);
    builder.token(name, secret).build().unwrap()
}

#[test]
fn a_handler_and_a_client_know_who_is_there() {
    runtime().block_on(async {
        let context = context("trainers", SECRET);
        let server = Server::builder().context(&context);
        let server = server.service(StoreService::new(Here::default()));
        let server = server.listen("tcp://127.0.0.1:0").await.unwrap();
        let connection = Connection::connect_with(&context, server.url())
            .await
            .unwrap();
        let peer = connection.peer();
        assert_eq!(
            peer.identity.as_ref().and_then(|known| known.token()),
            Some("trainers")
        );
        assert_eq!(&*peer.name, context.name());
        let client = StoreClient::on(&connection).await.unwrap();
        let said = soon("an answer", client.whoami()).await.unwrap();
        assert!(said.starts_with("token trainers at 127.0.0.1:"), "{said}");
    });
}

#[tensor_service]
trait Adder {
    #[rpc(batch(max_size = 4, max_wait = "3s"))]
    async fn who(&self, cx: &CallContext, rows: Tensor) -> Result<Tensor, String>;
}

struct Batching(Arc<Mutex<Vec<String>>>);

impl Adder for Batching {
    async fn who(&self, cx: &CallContext, rows: Tensor) -> Result<Tensor, String> {
        let said = format!(
            "{} rows of {}",
            rows.shape()[0],
            cx.caller().identity.as_ref().unwrap()
        );
        self.0.lock().unwrap().push(said);
        Ok(rows)
    }
}

/// What is gathered is of one caller, as its handler takes it to be.
#[test]
fn callers_that_have_proved_to_be_others_share_no_batch() {
    runtime().block_on(async {
        let (one, other) = ([1; 16], [2; 16]);
        let here = Context::builder().token("one", one).token("other", other);
        let here = here.build().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let server = Server::builder().context(&here);
        let server = server.service(AdderService::new(Batching(seen.clone())));
        let server = server.listen("tcp://127.0.0.1:0").await.unwrap();
        let mut clients = Vec::new();
        for (name, secret) in [("one", one), ("other", other), ("one", one)] {
            let context = context(name, secret);
            let client = AdderClient::connect_with(&context, server.url())
                .await
                .unwrap();
            clients.push((client, context));
        }
        let rows = Tensor::from_vec(vec![1f32; 4], [2, 2]).unwrap();
        let calls = clients.iter().map(|(client, _)| client.who(&rows));
        let answers = futures_util::future::join_all(calls);
        for answer in soon("answers", answers).await {
            assert_eq!(answer.unwrap().shape(), [2, 2]);
        }
        let mut seen = seen.lock().unwrap().clone();
        seen.sort();
        assert_eq!(seen, ["2 rows of token other", "4 rows of token one"]);
    });
}

#[test]
fn a_listener_can_end_the_pipes_of_whom_it_trusts_no_longer() {
    runtime().block_on(async {
        let (one, other) = ([1; 16], [2; 16]);
        let here = Context::builder().token("one", one).token("other", other);
        let here = here.build().unwrap();
        let server = Server::builder().context(&here);
        let server = server.service(StoreService::new(Here::default()));
        let server = server.listen("tcp://127.0.0.1:0").await.unwrap();
        let url = server.url().to_string();
        let client = async |name, secret| {
            let context = context(name, secret);
            let client = StoreClient::connect_with(&context, &url).await.unwrap();
            soon("an answer", client.whoami()).await.unwrap();
            (client, context)
        };
        let (stays, _kept) = client("one", one).await;
        let (goes, _kept) = client("other", other).await;
        // A pipe may answer before it is among them.
        let are_all = async || {
            while server.pipes().len() < 2 {
                tokio::task::yield_now().await;
            }
        };
        soon("both", are_all()).await;
        let mut ended = 0;
        for pipe in server.pipes() {
            let identity = pipe.peer().identity.unwrap();
            if identity.token() == Some("other") {
                soon("an end", pipe.close()).await.unwrap();
                ended += 1;
            }
        }
        assert_eq!(ended, 1);
        let error = soon("an error", goes.whoami()).await.unwrap_err();
        assert!(!error.may_have_run(), "{error}");
        soon("an answer", stays.whoami()).await.unwrap();
        assert_eq!(server.pipes().len(), 1);
    });
}

#[test]
fn a_call_that_is_not_allowed_moves_nothing_and_runs_nothing() {
    runtime().block_on(async {
        let (reader, writer) = ([1; 16], [2; 16]);
        let builder = Context::builder().token("reader", reader);
        let here = builder.token("writer", writer).build().unwrap();
        let ran = Arc::new(AtomicUsize::new(0));
        let server = Server::builder().context(&here);
        let server = server.service(StoreService::new(Here(ran.clone())));
        let server = server.authorize(|caller, service, method| {
            assert!(method != "panics", "by design");
            let token = caller.identity.as_ref().and_then(|known| known.token());
            match (service, method, token) {
                ("Store", "put", Some("reader")) => Err("it only reads".to_owned()),
                _ => Ok(()),
            }
        });
        let server = server.listen("tcp://127.0.0.1:0").await.unwrap();
        let url = server.url().to_string();
        let client = async |name, secret| {
            let context = context(name, secret);
            let client = StoreClient::connect_with(&context, &url).await.unwrap();
            (client, context)
        };
        let (reads, _kept) = client("reader", reader).await;
        let (writes, _kept) = client("writer", writer).await;
        let large = Tensor::from(vec![7u8; 16 << 20]);
        for tensor in [Tensor::from(vec![7u8; 10]), large.clone()] {
            let error = soon("an error", reads.put(&tensor)).await.unwrap_err();
            assert!(!error.may_have_run());
            let CallError::Denied(said) = &error else {
                panic!("{error:?}");
            };
            println!("{error}");
            assert!(said.starts_with("token reader at 127.0.0.1:"), "{said}");
            assert!(
                said.ends_with("may not call `Store::put`: it only reads"),
                "{said}"
            );
        }
        assert_eq!(ran.load(Ordering::SeqCst), 0);
        let moved = reads.connection().pipe().stats().bytes_out;
        assert!(moved < 1 << 20, "{moved} bytes moved");
        // Others are, and what the reader may it may still.
        assert_eq!(soon("a sum", writes.put(&large)).await.unwrap(), 16 << 20);
        soon("an answer", reads.whoami()).await.unwrap();
        // Who cannot say yes says no, and harms nobody.
        let error = soon("an error", writes.panics()).await.unwrap_err();
        assert!(matches!(error, CallError::Denied(_)), "{error:?}");
        assert!(!error.to_string().contains("by design"), "{error}");
        soon("an answer", writes.whoami()).await.unwrap();
        eventually("no call", || server.calls_in_flight() == 0).await;
    });
}
