//! A transport whose messages are wrapped, as tarpc's example of compression does it.

use std::io;

use futures_util::{Sink, SinkExt, Stream, StreamExt, TryStreamExt};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tarpc::server::{BaseChannel, Channel};
use tarpc::{client, context};
use tensorpipe_rpc::tarpc::{PipeTransport, TarpcMessage, TransportError, transport};

use super::over_each;

/// Runs of equal bytes, each with its length.
#[derive(Debug, Serialize, Deserialize)]
struct Packed(Vec<(u32, u8)>);

impl TarpcMessage for Packed {}

async fn pack<T: Serialize>(message: T) -> io::Result<Packed> {
    let bytes = serde_json::to_vec(&message).map_err(io::Error::other)?;
    let mut runs: Vec<(u32, u8)> = Vec::new();
    for byte in bytes {
        match runs.last_mut() {
            Some((len, last)) if *last == byte => *len += 1,
            _ => runs.push((1, byte)),
        }
    }
    Ok(Packed(runs))
}

async fn unpack<T: DeserializeOwned>(Packed(runs): Packed) -> io::Result<T> {
    let runs = runs.into_iter();
    let bytes: Vec<u8> = runs
        .flat_map(|(len, byte)| std::iter::repeat_n(byte, len as usize))
        .collect();
    serde_json::from_slice(&bytes).map_err(io::Error::other)
}

/// Written for any transport whose errors are tarpc's.
fn packed<In: DeserializeOwned, Out: Serialize>(
    transport: impl Stream<Item = io::Result<Packed>> + Sink<Packed, Error = io::Error>,
) -> impl Stream<Item = io::Result<In>> + Sink<Out, Error = io::Error> {
    transport.with(pack).and_then(unpack)
}

fn with_io_errors(
    transport: PipeTransport<Packed, Packed>,
) -> impl Stream<Item = io::Result<Packed>> + Sink<Packed, Error = io::Error> {
    transport
        .sink_map_err(io::Error::from)
        .map_err(io::Error::from)
}

#[tarpc::service]
pub(crate) trait World {
    async fn hello(name: String) -> String;
}

#[derive(Clone)]
struct Here;

impl World for Here {
    async fn hello(self, _: context::Context, name: String) -> String {
        format!("hello {name}")
    }
}

#[tokio::test]
async fn a_service_runs_over_a_wrapped_transport() {
    over_each(async |client, server| {
        let server = Box::pin(packed(with_io_errors(transport(server))));
        let requests = BaseChannel::with_defaults(server).execute(Here.serve());
        tokio::spawn(requests.for_each(|request| async move {
            tokio::spawn(request);
        }));
        let client = Box::pin(packed(with_io_errors(transport(client))));
        let client = WorldClient::new(client::Config::default(), client).spawn();
        for len in [1, 100_000] {
            let name = "o".repeat(len);
            let greeted = client.hello(context::current(), name.clone()).await;
            assert_eq!(greeted.unwrap(), format!("hello {name}"));
        }
    })
    .await;
}

#[tokio::test]
async fn wrapped_messages_keep_their_order_whatever_their_size() {
    over_each(async |client, server| {
        let mut client: PipeTransport<Packed, Packed> = transport(client);
        let mut server: PipeTransport<Packed, Packed> = transport(server);
        let lens = [1usize, 2_000_000, 3, 500_000, 5];
        let sent = async {
            for len in lens {
                client
                    .feed(Packed(vec![(len as u32, 0); len]))
                    .await
                    .unwrap();
            }
            client.close().await.unwrap();
        };
        let ((), came) = tokio::join!(sent, async {
            let came: Vec<Packed> = server.by_ref().try_collect().await.unwrap();
            came.iter()
                .map(|Packed(runs)| runs.len())
                .collect::<Vec<_>>()
        });
        assert_eq!(came, lens);
    })
    .await;
}

#[tokio::test]
async fn an_end_that_does_not_wrap_is_told() {
    over_each(async |client, server| {
        let mut client: PipeTransport<Packed, Packed> = transport(client);
        let mut server: PipeTransport<tarpc::ClientMessage<u32>, tarpc::Response<u32>> =
            transport(server);
        client.send(Packed(vec![(1, 1)])).await.unwrap();
        let error = server.next().await.unwrap().unwrap_err();
        assert!(matches!(error, TransportError::Foreign { .. }), "{error}");
        assert!(error.to_string().contains("wrap"), "{error}");
    })
    .await;
}
