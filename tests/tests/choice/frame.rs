//! A message that rides in its frame needs no channel.

use std::sync::Arc;

use tensorpipe::channels::{Channel, LeaseChannel};
use tensorpipe::{
    ContextBuilder, Error, Limits, Message, Misuse, Payload, Tensor, device::MemoryKind,
    route::Carrier,
};

use super::scene::{Scene, check, lends_no_copies, soon};

const KIB: u64 = 1 << 10;

fn none() -> Vec<Arc<dyn Channel>> {
    Vec::new()
}

fn lease_alone() -> Vec<Arc<dyn Channel>> {
    vec![Arc::new(LeaseChannel::also_within_process())]
}

#[tokio::test]
async fn small_tensors_arrive_where_no_channel_carries_them() {
    for (channels, words) in [
        (
            none as fn() -> Vec<_>,
            "\n  heap, pool, borrowed: in the frame <= 64 KiB, nothing above",
        ),
        (
            lease_alone,
            "\n  heap: in the frame <= 64 KiB, lease above\n  pool, borrowed: in the frame <= 4 KiB, lease above",
        ),
    ] {
        let wishes: fn(ContextBuilder) -> ContextBuilder = match channels().is_empty() {
            true => |builder| builder,
            false => lends_no_copies,
        };
        let scene = Scene::with("tcp", channels, Limits::default(), wishes).await;
        let route = scene.client.route().to_string();
        assert!(route.contains(words), "{route}");
        for len in [0, 1, 4 * KIB, 64 * KIB] {
            let carrier = scene.sends(MemoryKind::Heap, len).await;
            assert_eq!(carrier, Carrier::Frame);
        }
        // Payloads, too, and several of them.
        let message = Message::new("m")
            .payload(Payload::new(vec![7; 64 << 10]))
            .tensor(scene.tensor(MemoryKind::Heap, 64 * KIB));
        let written = scene.client.write(message);
        let read = soon("a message", scene.server.read()).await.unwrap();
        assert_eq!(read.payloads[0].data.as_bytes().unwrap(), [7; 64 << 10]);
        check(&read.tensors[0].tensor, 64 * KIB);
        written.await.unwrap();
    }
}

#[tokio::test]
async fn what_does_not_ride_is_refused_and_the_pipe_goes_on() {
    let scene = Scene::over("tcp", none).await;
    let tensor = |len: u64| Tensor::from_vec(vec![1u8; len as usize], [len]).unwrap();
    let too_long = Message::new("m").tensor(tensor(64 * KIB + 1));
    // Each would ride, but not all of them in one frame.
    let too_many = (0..5).fold(Message::new("m"), |message, _| {
        message.tensor(tensor(60 * KIB))
    });
    for message in [too_long, too_many] {
        let error = scene.client.write(message).await.unwrap_err();
        let Error::Misuse(Misuse::OutOfReach { reason: words, .. }) = &error else {
            panic!("{error:?}");
        };
        assert!(words.contains("no channel of this pipe moves"), "{words}");
        assert!(words.contains("`Pipe::route`"), "{words}");
    }
    assert_eq!(
        scene.sends(MemoryKind::Heap, 60 * KIB).await,
        Carrier::Frame
    );
}

#[tokio::test]
async fn a_full_frame_leaves_the_rest_to_the_channel_that_would_pay_soonest() {
    let channels = super::scene::between_processes;
    let scene = Scene::with("tcp", channels, Limits::default(), lends_no_copies).await;
    let parts = 10;
    let message = (0..parts).fold(Message::new("m"), |message, _| {
        message.tensor(scene.tensor(MemoryKind::Heap, 60 * KIB))
    });
    let written = scene.client.write(message);
    let read = soon("a message", scene.server.read()).await.unwrap();
    written.await.unwrap();
    assert_eq!(read.tensors.len(), parts);
    read.tensors
        .iter()
        .for_each(|part| check(&part.tensor, 60 * KIB));
    let carried = |name: &str| {
        let mut channels = scene.client.route().channels.iter();
        let channel = channels.find(|channel| channel.name == name);
        channel.map(|channel| (channel.carried.parts(), channel.carried.bytes()))
    };
    // 4 times 60 KiB are in the frame, whose room is 256 KiB.
    assert_eq!(carried("basic"), Some((6, 6 * 60 * KIB)));
    assert_eq!(
        (carried("cma"), carried("lease")),
        (Some((0, 0)), Some((0, 0)))
    );
}
