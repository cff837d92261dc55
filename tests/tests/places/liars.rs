//! A hostile server: a tensor that is not on the requested device is not accepted as a result.

use std::collections::HashMap;

use tensorpipe::{Context, Device, Message, MessageTensor, Misuse, Pipe};
use tensorpipe_rpc::{CallError, DeviceMap, PlaceError};

use super::kind::toy;
use super::scene::{BenchClient, Side, USUAL, repeat, soon};

const VALUE: u8 = 2;
const REPLY_ITEMS: u8 = 10;

/// `VALUE` for the call that a message is of.
fn value(call: &Message, body: &[u8]) -> Message {
    answer(VALUE, 0, call, body)
}

fn answer(kind: u8, count: u8, call: &Message, body: &[u8]) -> Message {
    let mut metadata = vec![kind, 12, 0, count];
    metadata.extend_from_slice(&call.metadata[4..12]);
    metadata.extend_from_slice(body);
    Message::new(metadata)
}

/// A client that believes to have the service, and the pipe of whoever it is connected to.
async fn connected(here: &Side, there: &Context) -> (BenchClient, Pipe) {
    let listener = there.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    let url = listener.url().to_string();
    let answers = async {
        let pipe = listener.accept().await.unwrap();
        let asked = pipe.read().await.unwrap();
        pipe.write(value(&asked, b"\x00")).await.unwrap();
        pipe
    };
    let client = BenchClient::connect_with(&here.context, url);
    let (client, pipe) = soon(async { tokio::join!(client, answers) }).await;
    (client.unwrap(), pipe)
}

/// Nothing of all this is in the message of a call that wants nothing, and of a map only what the server needs.
#[tokio::test]
async fn a_call_says_no_more_than_it_must() {
    const PLACES: u8 = 32;
    let (here, there) = (Side::new("tcp", USUAL), Side::new("tcp", USUAL));
    let (client, pipe) = connected(&here, &there.context).await;
    let map = DeviceMap::new([(toy(0), toy(1))]).unwrap();
    let mapped = client.with_device_map(map);
    let tensor = || here.tensor(toy(0), 300_000, 1);
    let body = b"\x03\0\0\0";
    for (call, flag, target) in [
        (client.found(3, tensor(), HashMap::new(), None), 0, None),
        (
            mapped.found(3, tensor(), HashMap::new(), None),
            PLACES,
            Some(toy(1)),
        ),
    ] {
        let asked = soon(pipe.read()).await.unwrap();
        assert_eq!(asked.metadata[2] & PLACES, flag);
        assert_eq!(asked.tensors[0].target, target);
        let told = &asked.metadata[28..asked.metadata.len() - body.len()];
        let pair = b"\x12\0\x04test\x01\0\0\0\x04test\0\0\0\0";
        assert_eq!(told, if flag == 0 { &b""[..] } else { &pair[..] });
        assert!(asked.metadata.ends_with(body), "{:?}", asked.metadata);
        drop(call);
    }
    // The attribute is known to both ends.
    let call = client.placed(3, Vec::new());
    let asked = soon(pipe.read()).await.unwrap();
    assert_eq!((asked.metadata[2], asked.metadata.len()), (0, 28 + 2));
    drop(call);
}

/// A list of one, the first tensor of the message.
const ONE: &[u8] = b"\x01\x00";

#[tokio::test]
async fn a_result_elsewhere_than_asked_is_no_result() {
    let (here, there) = (Side::new("tcp", USUAL), Side::new("tcp", USUAL));
    let (client, pipe) = connected(&here, &there.context).await;
    for (from, to) in [
        (Device::CPU, None),
        (Device::CPU, Some(Device::CPU)),
        (toy(0), Some(toy(1))),
        (toy(1), None),
    ] {
        for len in [0, 10, 300_000] {
            let call = client.placed(len, vec![from.to_string()]);
            let answer = async {
                let asked = pipe.read().await.unwrap();
                let tensor = MessageTensor {
                    target: to,
                    ..there.tensor(from, len, 0).into()
                };
                drop(pipe.write(value(&asked, ONE).tensor(tensor)).await);
            };
            let (called, ()) = soon(async { tokio::join!(call, answer) }).await;
            match called {
                // The channel that the server chose brings it here all the same.
                Ok(tensors) => {
                    let found = here.found(&tensors[0], len, 0);
                    assert_eq!(found, "test:0", "{len} of {from} to {to:?}");
                    assert!(!from.is_cpu() || len == 0, "{len} of {from} to {to:?}");
                }
                Err(CallError::NoPlace {
                    error: PlaceError::Here(Misuse::OutOfReach { device, reason, .. }),
                    may_have_run: true,
                }) => {
                    println!("{reason}");
                    assert_eq!((device, from), (toy(0), Device::CPU));
                }
                Err(error) => panic!("{error:?}"),
            }
        }
    }
    // The pipe goes on, and so does the client.
    let call = client.farther(here.tensor(Device::CPU, 10, 0));
    assert!(matches!(
        soon(call).await,
        Err(CallError::NoPlace {
            may_have_run: false,
            ..
        })
    ));
    let call = client.plain(10, Vec::new());
    let answer = async {
        let asked = pipe.read().await.unwrap();
        drop(pipe.write(value(&asked, b"\x00")).await);
    };
    let (called, ()) = soon(async { tokio::join!(call, answer) }).await;
    assert!(called.unwrap().is_empty());
}

/// The same of items: the first is on a device that the channel brings here from, the second is not.
#[tokio::test]
async fn an_item_elsewhere_than_asked_ends_its_stream() {
    let (here, there) = (Side::new("tcp", USUAL), Side::new("tcp", USUAL));
    for len in [10, 300_000] {
        let (client, pipe) = connected(&here, &there.context).await;
        let mut items = client.streams(len, repeat(&here.tensor(toy(0), 10, 1), 0));
        let asked = soon(pipe.read()).await.unwrap();
        for from in [toy(1), Device::CPU] {
            let item = answer(REPLY_ITEMS, 1, &asked, b"\x01x\x00");
            let write = pipe.write(item.tensor(there.tensor(from, len, 1)));
            let (item, _) = soon(async { tokio::join!(items.next(), write) }).await;
            match item.unwrap() {
                Ok((_, tensor)) => assert_eq!(
                    (from, &*here.found(&tensor, len, 1)),
                    (toy(1), "test:0"),
                    "{len}"
                ),
                Err(CallError::NoPlace {
                    error: PlaceError::Here(Misuse::OutOfReach { device, .. }),
                    may_have_run: true,
                }) => assert_eq!((device, from), (toy(0), Device::CPU)),
                Err(error) => panic!("{error:?}"),
            }
        }
    }
}
