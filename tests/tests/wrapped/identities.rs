//! The peer's identity that a wrapping connection proves: both ends report it, and handlers see it.

use std::sync::Arc;

use tensorpipe::transports::{MemoryTransport, Transport};
use tensorpipe::{Context, Identity};
use tensorpipe_rpc::{CallContext, Server, tensor_service};

use crate::veil::{Manners, veiled};
use crate::{builder_with, context_with, pair, pair_of};

fn alice() -> Manners {
    Manners {
        identity: Some(Identity::Subject("alice".into())),
        ..Manners::default()
    }
}

#[tokio::test]
async fn who_the_peer_has_proved_to_be_is_in_the_route_of_both_ends() {
    let (_context, client, server) = pair(&alice()).await;
    for pipe in [&client, &server] {
        assert_eq!(pipe.route().identity, alice().identity);
        assert!(
            pipe.route()
                .to_string()
                .contains("\n  peer subject \"alice\"\n")
        );
    }
    let (_context, client, server) = pair(&Manners::default()).await;
    assert_eq!(
        (&client.route().identity, &server.route().identity),
        (&None, &None)
    );
}

/// The transport that it is upgraded to proves nothing; who upgrades has a secret of the connection that does.
#[tokio::test]
async fn an_upgraded_pipe_keeps_the_identity_of_its_first_connection() {
    let transports: [Arc<dyn Transport>; 2] =
        [Arc::new(MemoryTransport::new()), Arc::new(veiled(alice()))];
    let context = Context::builder().transports(transports).build().unwrap();
    let listener = context.listen(["veiled://127.0.0.1:0", "memory://upgrades"]);
    let listener = listener.await.unwrap();
    let url = listener.urls()[0].clone();
    let (client, server) = tokio::join!(context.connect(url), listener.accept());
    for pipe in [client.unwrap(), server.unwrap()] {
        assert_eq!(pipe.route().upgraded_from.as_deref(), Some("veiled"));
        assert_eq!(pipe.route().identity, alice().identity);
    }
}

/// A transport that has no keys and does not say where its peer is.
#[tokio::test]
async fn a_token_over_a_network_says_that_nothing_protects_what_follows() {
    let context = builder_with(&Manners::default()).token("trainers", [7; 16]);
    let (_context, client, server) = pair_of(context.build().unwrap()).await;
    for pipe in [client, server] {
        let route = pipe.route();
        assert!(route.exposed);
        let words = "\n  peer token trainers when it connected; tls would protect what follows";
        assert!(route.to_string().contains(words), "{route}");
    }
}

#[tensor_service]
pub(crate) trait Door {
    async fn knock(&self, cx: CallContext) -> String;
}

pub(crate) struct Porter;

impl Door for Porter {
    async fn knock(&self, cx: CallContext) -> String {
        match &cx.route().identity {
            Some(Identity::Subject(name)) => format!("come in, {name}"),
            _ => "who is there?".to_owned(),
        }
    }
}

#[tokio::test]
async fn a_handler_knows_who_calls() {
    for (manners, answer) in [
        (alice(), "come in, alice"),
        (Manners::default(), "who is there?"),
    ] {
        let context = context_with(&manners);
        let server = Server::builder()
            .context(&context)
            .service(DoorService::new(Porter));
        let server = server.listen("veiled://127.0.0.1:0").await.unwrap();
        let client = DoorClient::connect_with(&context, server.url())
            .await
            .unwrap();
        assert_eq!(client.knock().await.unwrap(), answer);
    }
}
