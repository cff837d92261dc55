//! A server of calls that is written by hand, as [WIRE.md](../../docs/WIRE.md) has it.

use tensorpipe::{Context, Message, Pipe};

const VALUE: u8 = 2;
const BIND: u8 = 5;

/// The URL of a server that has each service, and answers each call with this body.
///
/// # Panics
/// When the system refuses to listen.
pub async fn answers(body: &'static [u8]) -> String {
    let listener = Context::new().listen(["tcp://127.0.0.1:0"]).await;
    let listener = listener.expect("a listener");
    let url = listener.url().to_string();
    tokio::spawn(async move {
        while let Ok(pipe) = listener.accept().await {
            tokio::spawn(answer(pipe, body));
        }
    });
    url
}

async fn answer(pipe: Pipe, body: &'static [u8]) {
    while let Ok(call) = pipe.read().await {
        let body = match call.metadata[0] {
            BIND => &[0],
            _ => body,
        };
        let mut metadata = vec![VALUE, 12, 0, 0];
        metadata.extend_from_slice(&call.metadata[4..12]);
        metadata.extend_from_slice(body);
        if pipe.send(Message::new(metadata)).is_err() {
            return;
        }
    }
}
