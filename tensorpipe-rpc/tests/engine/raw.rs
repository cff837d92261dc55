//! Messages of calls, written by hand: of peers that do not follow the rules.

use tensorpipe::{Message, Pipe};
use tensorpipe_rpc::{Connection, service::Service};

use crate::lab::{Bench, LabService, tcp};

pub(crate) const CALL: u8 = 1;
pub(crate) const VALUE: u8 = 2;
pub(crate) const FAILURE: u8 = 4;
pub(crate) const BIND: u8 = 5;

/// A message of this kind with the header of a reply; `code` is its byte 3, as WIRE.md counts.
pub(crate) fn message(kind: u8, code: u8, call: u64, body: &[u8]) -> Message {
    let mut metadata = vec![kind, 12, 0, code];
    metadata.extend_from_slice(&call.to_le_bytes());
    metadata.extend_from_slice(body);
    Message::new(metadata)
}

/// The call that a message is about.
pub(crate) fn call_id(metadata: &[u8]) -> u64 {
    u64::from_le_bytes(metadata[4..12].try_into().unwrap())
}

/// A call of a method of the lab, or of none.
pub(crate) fn raw_call(method: &str, call: u64, arguments: &[u8]) -> Message {
    raw_call_of(&LabService::new(Bench::default()), method, call, arguments)
}

/// The same of the first service of a server.
pub(crate) fn raw_call_of(
    service: &impl Service,
    method: &str,
    call: u64,
    arguments: &[u8],
) -> Message {
    let method = service.schema().methods.iter().find(|m| m.name == method);
    let id = method.map_or(0, |method| method.id);
    let mut metadata = vec![CALL, 28, 0, 0];
    metadata.extend_from_slice(&call.to_le_bytes());
    metadata.extend_from_slice(&0u32.to_le_bytes());
    metadata.extend_from_slice(&id.to_le_bytes());
    metadata.extend_from_slice(&0u64.to_le_bytes());
    metadata.extend_from_slice(arguments);
    Message::new(metadata)
}

/// A client's connection to a server that is written by hand: the pipe's other end.
pub(crate) async fn by_hand() -> (Connection, Pipe) {
    let context = tcp().build().unwrap();
    let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    let url = listener.url().to_string();
    let (near, far) = tokio::join!(context.connect(url), listener.accept());
    (Connection::over(near.unwrap()).unwrap(), far.unwrap())
}

/// Such a server takes a client's bind.
pub(crate) async fn take_bind(pipe: &Pipe) {
    let bind = pipe.read().await.unwrap();
    assert_eq!(bind.metadata[0], BIND);
    pipe.send(message(VALUE, 0, call_id(&bind.metadata), &[0]))
        .unwrap();
}
