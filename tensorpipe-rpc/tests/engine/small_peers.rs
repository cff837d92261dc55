//! Peers that take less than we would send: what fits in another shape is sent so, what does not is an error that names the
//! limit.

use std::collections::BTreeMap;

use futures_util::StreamExt;
use tensorpipe::{Buffer, ContextBuilder, Error, Limits, Misuse, Payload, Tensor};
use tensorpipe_rpc::{CallError, ConnectError, Server, ServerLimits, tensor_service};

use super::common::soon;
use super::lab::{Bench, LabClient, LabService, both, serve, tcp, tensor};
use super::streams::flow::Banks;

fn small(change: impl FnOnce(&mut Limits)) -> ContextBuilder {
    let mut limits = Limits::default();
    change(&mut limits);
    tcp().limits(limits)
}

fn text(len: usize) -> String {
    (0..len)
        .map(|i| char::from(b'a' + (i % 23) as u8))
        .collect()
}

/// The name of the limit of the peer's that was in the way.
fn limit<E>(error: &CallError<E>) -> &'static str {
    match error {
        CallError::Connection {
            error: Error::Misuse(Misuse::TooLarge { field, .. }),
            may_have_run: false,
        } => field,
        _ => "",
    }
}

#[tokio::test]
async fn a_body_beyond_the_peers_metadata_travels_as_a_payload() {
    // From what holds the headers and nothing else.
    for metadata in [52, 200, 4096, 40_000] {
        let near = || small(|limits| limits.metadata = metadata);
        for (near, far) in [(near(), tcp()), (tcp(), near()), (near(), near())] {
            let both = both(near, far, ServerLimits::default()).await;
            for len in [0, 10, 150, 4000, 5000, 32_000, 39_990, 100_000] {
                let text = text(len);
                let back = both.client.echo(&text).await.unwrap();
                assert!(back == text, "{len} bytes, {metadata} bytes of metadata");
            }
            let sent = tensor(300_000, 3);
            let back = both.client.bounce(&sent).await.unwrap();
            assert!(back.as_bytes().unwrap() == sent.as_bytes().unwrap());
        }
    }
}

#[tokio::test]
async fn a_body_that_only_fits_the_metadata_travels_there() {
    let near = || small(|limits| limits.message = 1000);
    for (near, far) in [(near(), tcp()), (tcp(), near())] {
        let both = both(near, far, ServerLimits::default()).await;
        let text = text(40_000);
        assert!(both.client.echo(&text).await.unwrap() == text);
    }
    // Alone it would fit beside, but not with the tensor.
    let far = small(|limits| limits.message = 1 << 20).build().unwrap();
    let server = serve(&far, CrowdService::new(Counter)).await;
    let near = tcp().build().unwrap();
    let client = CrowdClient::connect_with(&near, server.url())
        .await
        .unwrap();
    let tensors = BTreeMap::from([(text(40_000), tensor((1 << 20) - 10_000, 1))]);
    assert_eq!(client.names(tensors).await.unwrap(), 40_000);
}

#[tokio::test]
async fn the_reason_of_a_failure_reaches_a_caller_that_takes_little() {
    for (metadata, parts) in [(100, 4096), (100, 0), (12, 1), (13, 0)] {
        let near = small(|limits| (limits.metadata, limits.parts) = (metadata, parts));
        let both = both(near, tcp(), ServerLimits::default()).await;
        let refused = both.client.refuse(text(500)).await;
        let Err(CallError::Panicked {
            message: reason, ..
        }) = refused
        else {
            panic!("{refused:?}");
        };
        // All of it as a payload, else what fits.
        let whole = if parts > 0 {
            500
        } else {
            metadata as usize - 12
        };
        assert_eq!(reason.len(), whole);
    }
}

#[tokio::test]
async fn what_a_peer_takes_in_no_shape_is_an_error_that_names_its_limit() {
    let far = small(|limits| (limits.metadata, limits.parts) = (400, 0));
    match LabClient::connect_with(&tcp().build().unwrap(), lab(far).await.url().to_string()).await {
        Err(ConnectError::Pipe(Error::Misuse(Misuse::TooLarge { field, .. }))) => {
            assert_eq!(field, "metadata");
        }
        other => panic!("{other:?}"),
    }
    let far = small(|limits| (limits.metadata, limits.payload) = (400, 10_000));
    let both = both(tcp(), far, ServerLimits::default()).await;
    assert_eq!(both.client.echo(text(9000)).await.unwrap().len(), 9000);
    for (len, field) in [(20_000, "metadata"), (50_000, "payload")] {
        let error = both.client.echo(text(len)).await.unwrap_err();
        assert_eq!(limit(&error), field, "{error}");
        assert!(error.to_string().contains("400") || error.to_string().contains("10000"));
    }
    assert_eq!(both.client.echo("still here").await.unwrap(), "still here");
}

#[tokio::test]
async fn credit_beyond_the_callers_metadata_travels_as_a_payload() {
    for metadata in [12, 20, 27, 28] {
        let near = small(|limits| limits.metadata = metadata);
        let (near, far) = (near.build().unwrap(), tcp().build().unwrap());
        let banks = Banks::new(near, far, ServerLimits::default()).await;
        let numbers = futures_util::stream::iter(0..3000);
        let sum = soon(banks.client.sum(numbers)).await.unwrap();
        assert_eq!(sum, 2999 * 1500, "{metadata} bytes of metadata");
    }
}

#[tokio::test]
async fn a_caller_without_room_for_credit_hears_so_at_once() {
    let near = small(|limits| (limits.metadata, limits.parts) = (27, 0));
    let (near, far) = (near.build().unwrap(), tcp().build().unwrap());
    let banks = Banks::new(near, far, ServerLimits::default()).await;
    let sum = banks.client.sum(futures_util::stream::iter(0..3000));
    let error = soon(sum).await.unwrap_err();
    assert!(error.to_string().contains("`Limits::metadata`"), "{error}");
    assert!(!error.may_have_run());
}

#[tokio::test]
async fn a_caller_without_room_for_an_answer_hears_so_at_once() {
    let server = lab(tcp()).await;
    let near = small(|limits| limits.metadata = 11).build().unwrap();
    let error = LabClient::connect_with(&near, server.url())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("`Limits::metadata`"), "{error}");
}

async fn lab(context: ContextBuilder) -> Server {
    serve(&context.build().unwrap(), LabService::new(Bench::default())).await
}

#[tensor_service]
trait Crowd {
    async fn names(&self, tensors: BTreeMap<String, Tensor>) -> u64;
    async fn labels(&self, payloads: Vec<Payload>) -> u64;
}

struct Counter;

impl Crowd for Counter {
    async fn names(&self, tensors: BTreeMap<String, Tensor>) -> u64 {
        tensors.keys().map(|name| name.len() as u64).sum()
    }

    async fn labels(&self, payloads: Vec<Payload>) -> u64 {
        payloads.iter().map(|one| one.metadata.len() as u64).sum()
    }
}

/// As many tensors as the peer takes leave no part for a body of their names: it stays in the metadata. And metadata of
/// payloads takes its share of the room.
#[tokio::test]
async fn what_travels_beside_the_body_is_counted_too() {
    let context = small(|limits| (limits.parts, limits.metadata) = (64, 100_000));
    let context = context.build().unwrap();
    let server = serve(&context, CrowdService::new(Counter)).await;
    let client = CrowdClient::connect_with(&context, server.url())
        .await
        .unwrap();
    let tensors: BTreeMap<_, _> = (0..64)
        .map(|i| (format!("{i:0900}"), tensor(8, i)))
        .collect();
    assert_eq!(client.names(tensors).await.unwrap(), 64 * 900);
    let labelled = |len| {
        let payload = Payload {
            metadata: vec![7; len].into(),
            ..Payload::from(Buffer::from_vec(vec![1u8]))
        };
        vec![payload; 33]
    };
    assert_eq!(client.labels(labelled(3000)).await.unwrap(), 99_000);
    let error = client.labels(labelled(3100)).await.unwrap_err();
    assert_eq!(limit(&error), "metadata", "{error}");
}

#[tokio::test]
async fn items_that_are_too_much_together_travel_apart() {
    // Uneven on purpose: what one item needs says little of the next.
    let sizes: Vec<u64> = [1, 1, 1, 1, 1, 30, 2, 28, 1, 0, 0, 31, 12, 20].repeat(3);
    for (parts, metadata, payload) in [(32, 1 << 20, 8 << 30), (32, 1100, 100), (32, 300, 1100)] {
        let near = small(|limits| {
            (limits.parts, limits.metadata, limits.payload) = (parts, metadata, payload);
        });
        let (near, far) = (near.build().unwrap(), tcp().build().unwrap());
        let banks = Banks::new(near, far, ServerLimits::default()).await;
        let groups: Vec<_> = banks.client.groups(&sizes).collect().await;
        let groups = groups.into_iter().map(|group| {
            let (tensors, text) = group.unwrap();
            assert_eq!(tensors.len(), text.len());
            tensors.len() as u64
        });
        assert_eq!(groups.collect::<Vec<_>>(), sizes, "{parts} {metadata}");
    }
}
