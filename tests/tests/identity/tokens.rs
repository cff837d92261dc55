//! Contexts of one process with and without tokens: which get a pipe, and what the pipe says of its peer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorpipe::transports::{TcpTransport, Transport};
use tensorpipe::{
    Context, ContextBuilder, Error, Identity, Listener, Message, Misuse, PeerFault, Pipe, Tensor,
};
use tensorpipe_tests::{runtime, soon};

pub(crate) const SECRET: [u8; 16] = *b"nobody knows it.";
const OTHER: [u8; 16] = *b"nor knows any it";

const AT: [&str; 1] = ["tcp://127.0.0.1:0"];

fn named(name: &str, secret: [u8; 16]) -> ContextBuilder {
    Context::builder().token(name, secret)
}

fn built(builder: ContextBuilder) -> Context {
    builder.build().unwrap()
}

/// Over tcp from beginning to end.
fn stays(builder: ContextBuilder) -> ContextBuilder {
    builder.transports([Arc::new(TcpTransport::new()) as Arc<dyn Transport>])
}

async fn pair(listens: &Context, connects: &Context) -> (Listener, Pipe, Pipe) {
    let listener = listens.listen(AT).await.unwrap();
    let connected = async { tokio::join!(connects.connect(listener.url()), listener.accept()) };
    let (client, server) = soon("a pipe", connected).await;
    (listener, client.unwrap(), server.unwrap())
}

/// Fails at the first attempt, at once: trying again would not help.
async fn is_refused(listens: &Context, connects: &Context) -> Error {
    let listener = listens.listen(AT).await.unwrap();
    let begun = Instant::now();
    let error = soon("an error", connects.connect(listener.url())).await;
    assert!(begun.elapsed() < Duration::from_secs(10));
    match error.unwrap_err() {
        Error::Connect {
            source, attempts, ..
        } => {
            assert_eq!(attempts, 1, "{source}");
            println!("{source}");
            *source
        }
        other => panic!("{other:?}"),
    }
}

/// Something goes each way, small and large.
pub(crate) async fn works(client: &Pipe, server: &Pipe) {
    for (from, to) in [(client, server), (server, client)] {
        for len in [10, 1 << 20, 5 << 20] {
            let tensor = Tensor::from(vec![7u8; len]);
            from.send(Message::new("m").tensor(tensor)).unwrap();
            let mut message = soon("a message", to.read()).await.unwrap();
            let tensor = message.tensors.remove(0).tensor;
            assert!(tensor.as_slice::<u8>().unwrap() == vec![7; len]);
        }
    }
}

fn token_of(pipe: &Pipe) -> Option<String> {
    let identity = pipe.route().identity.clone();
    identity.and_then(|identity| identity.token().map(str::to_owned))
}

#[test]
fn whoever_has_the_secret_gets_a_pipe_that_says_so() {
    runtime().block_on(async {
        for (listens, connects) in [
            (named("trainers", SECRET), named("trainers", SECRET)),
            (
                stays(named("trainers", SECRET)),
                stays(named("trainers", SECRET)),
            ),
        ] {
            let (listens, connects) = (built(listens), built(connects));
            let (_listener, client, server) = pair(&listens, &connects).await;
            for pipe in [&client, &server] {
                assert_eq!(token_of(pipe).as_deref(), Some("trainers"));
                let route = pipe.route();
                assert!(route.to_string().contains("\n  peer token trainers"));
                // Within the machine the kernel says who is there.
                assert_eq!(route.exposed, route.transport == "tcp", "{route}");
                assert_eq!(pipe.peer().identity, pipe.route().identity);
            }
            works(&client, &server).await;
            println!("{}", client.route());
        }
    });
}

#[test]
fn whoever_has_not_is_told_why() {
    runtime().block_on(async {
        let with = |name, secret| built(named(name, secret));
        let trainers = with("trainers", SECRET);
        // The listener proves first, and cannot: this end finds out.
        for connects in [with("trainers", OTHER), with("strangers", SECRET)] {
            let error = is_refused(&trainers, &connects).await;
            let Error::Peer { fault, .. } = &error else {
                panic!("{error:?}");
            };
            assert!(matches!(fault, PeerFault::Unproven { .. }), "{error}");
        }
        for (listens, connects, words) in [
            (&trainers, Context::new(), "asks for a token"),
            (
                &Context::new(),
                with("trainers", SECRET),
                "has no token and can prove none",
            ),
        ] {
            let error = is_refused(listens, &connects).await;
            let Error::Rejected {
                reason, transient, ..
            } = &error
            else {
                panic!("{error:?}");
            };
            assert!(reason.contains(words) && !transient, "{error}");
        }
    });
}

#[test]
fn several_tokens_are_good_at_once_and_a_connector_proves_the_first() {
    runtime().block_on(async {
        let both = built(named("2025", SECRET).token("2026", OTHER));
        for (connects, name) in [
            (named("2025", SECRET), "2025"),
            (named("2026", OTHER), "2026"),
            (named("2026", OTHER).token("2025", SECRET), "2026"),
        ] {
            let (_listener, client, server) = pair(&both, &built(connects)).await;
            assert_eq!(token_of(&client).as_deref(), Some(name));
            assert_eq!(token_of(&server).as_deref(), Some(name));
        }
        // One that is good no more.
        let new = built(named("2026", OTHER));
        is_refused(&new, &built(named("2025", SECRET))).await;
    });
}

#[test]
fn a_token_that_is_none_is_named_before_there_is_a_context() {
    let misuse = |builder: ContextBuilder| builder.build().unwrap_err();
    let short = misuse(Context::builder().token("a", "password"));
    assert!(matches!(short, Misuse::Config { .. }), "{short}");
    assert!(!short.to_string().contains("password"), "{short}");
    let twice = misuse(named("a", SECRET).token("a", OTHER));
    assert!(twice.to_string().contains("`a` twice"), "{twice}");
    let shown = format!("{:?}", named("a", SECRET));
    assert!(!shown.contains("nobody"), "{shown}");
}

/// Channels with connections of their own, and such as come later.
#[test]
fn further_connections_join() {
    runtime().block_on(async {
        let mpt = || tensorpipe::channels::MptChannel::new();
        let context = || built(stays(named("trainers", SECRET)).prefer_channel(mpt()));
        let (_listener, client, server) = pair(&context(), &context()).await;
        let route = client.route();
        assert_eq!(route.channels[0].name, "mpt", "{route}");
        for (from, to) in [(&client, &server), (&server, &client)] {
            let tensor = Tensor::from(vec![7u8; 64 << 20]);
            from.send(Message::new("m").tensor(tensor)).unwrap();
            let mut message = soon("a message", to.read()).await.unwrap();
            let tensor = message.tensors.remove(0).tensor;
            assert!(
                tensor
                    .as_slice::<u8>()
                    .unwrap()
                    .iter()
                    .all(|byte| *byte == 7)
            );
        }
        for pipe in [&client, &server] {
            let mpt = &pipe.route().channels[0];
            assert!(mpt.degraded.sending().is_none(), "{}", pipe.route());
        }
    });
}

#[test]
fn an_identity_has_its_parts() {
    let over = Identity::Subject("alice".into());
    let both = Identity::Token {
        name: "trainers".into(),
        over: Some(Arc::new(over.clone())),
    };
    assert_eq!((both.token(), both.over()), (Some("trainers"), Some(&over)));
    assert_eq!((over.token(), over.over()), (None, Some(&over)));
    assert_eq!(both.to_string(), "token trainers, subject \"alice\"");
}
