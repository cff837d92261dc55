//! A connector shows the TLS session of one listener to another: to one with another certificate, to a restarted one, and to one that asks
//! for certificates. The outcome is the same as without a session.

use std::sync::Arc;

use tensorpipe::transports::{TlsConfig, TlsTransport, Transport};
use tensorpipe::{ConnectPolicy, Context, Error, Listener, Pipe};
use tensorpipe_tests::{runtime, soon};

use super::tls::{Ca, shows};
use super::tokens::works;

/// A listener of a transport of its own, as one in another process has it: nothing of sessions is shared.
async fn listens(config: TlsConfig, at: &str) -> (Context, Listener) {
    let tls: Arc<dyn Transport> = Arc::new(TlsTransport::new(config).unwrap());
    let context = Context::builder().transports([tls]).build().unwrap();
    let listener = context.listen([at]).await.unwrap();
    (context, listener)
}

/// Who has one transport for all that it connects to, and so the sessions of before.
struct Connector(Context);

impl Connector {
    fn new(config: TlsConfig) -> Self {
        let tls: Arc<dyn Transport> = Arc::new(TlsTransport::new(config).unwrap());
        let builder = Context::builder().transports([tls]);
        let builder = builder.connect_policy(ConnectPolicy::once());
        Self(builder.build().unwrap())
    }

    async fn connects(&self, listener: &Listener) -> Result<(Pipe, Pipe), Error> {
        let pipes = async {
            let client = self.0.connect(listener.url()).await?;
            Ok((client, listener.accept().await.unwrap()))
        };
        soon("a pipe or an error", pipes).await
    }

    /// Twice: the second time by a session of the first.
    async fn knows(&self, listener: &Listener) {
        for _ in 0..2 {
            let (client, server) = self.connects(listener).await.unwrap();
            // Sessions come behind the handshake.
            works(&client, &server).await;
        }
    }
}

#[test]
fn a_session_is_worth_nothing_at_another_listener() {
    runtime().block_on(async {
        let (ca, other) = (Ca::new("a CA"), Ca::new("another"));
        let server = ca.names(&["127.0.0.1"]);
        let plain = || shows(TlsConfig::new(), &server);
        let (first, listener) = listens(plain(), "tls://127.0.0.1:0").await;
        let at = listener.url().to_string();
        let connector = Connector::new(TlsConfig::new().trust(ca.pem()));
        connector.knows(&listener).await;
        drop((listener, first));
        for (who, config, expected) in [
            // Of another user, say, who got the port.
            (
                "an impostor",
                shows(TlsConfig::new(), &other.names(&["127.0.0.1"])),
                Some("UnknownIssuer"),
            ),
            // What the connector has shown to none of them before it does not show now.
            (
                "one that asks for certificates",
                plain().clients(ca.pem()),
                Some("it asks for a certificate"),
            ),
            ("the same, started again", plain(), None),
        ] {
            let (_context, listener) = listens(config, &at).await;
            match (connector.connects(&listener).await, expected) {
                (Ok((client, server)), None) => works(&client, &server).await,
                (Err(error), Some(words)) => {
                    println!("{who}: {error}");
                    assert!(error.to_string().contains(words), "{who}: {error}");
                }
                (met, _) => panic!("{who}: {met:?}"),
            }
        }
    });
}
