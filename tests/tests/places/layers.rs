//! Device placement in features on top of calls: several servers, a rendezvous, and differing definitions.

use std::collections::HashMap;
use std::sync::Arc;

use tensorpipe::{Device, Tensor};
use tensorpipe_rpc::rendezvous::Rendezvous;
use tensorpipe_rpc::{
    CallContext, ConnectError, Connection, DeviceMap, Replicas, Server, tensor_service,
};

use super::kind::{ONE, ZERO, toy};
use super::scene::{BenchClient, BenchService, Bencher, LENGTHS, Scene, Side, USUAL, names, soon};

#[tokio::test]
async fn calls_over_replicas_land_where_they_are_asked_to() {
    let scene = Scene::over("tcp").await;
    let replicas = Replicas::builder()
        .context(&scene.here.context)
        .url(scene.server.url())
        .connect()
        .await
        .unwrap();
    let client = BenchClient::on(&replicas).await.unwrap();
    let map = DeviceMap::new([(toy(1), toy(0))]).unwrap();
    let mapped = client.with_device_map(map);
    for len in [10, 300_000] {
        let x = scene.here.tensor(toy(1), len, 1);
        let found = soon(mapped.found(
            len,
            &x,
            HashMap::from([("x".to_owned(), vec![x.clone()])]),
            None,
        ));
        assert_eq!(found.await.unwrap(), [ZERO, ONE]);
        let tensors = soon(mapped.plain(len, names(&[toy(0), toy(1)])))
            .await
            .unwrap();
        assert_eq!(scene.here.found(&tensors[0], len, 0), ONE);
        assert_eq!(scene.here.found(&tensors[1], len, 1), "cpu:0");
        let tensors = soon(client.placed(len, names(&[Device::CPU])))
            .await
            .unwrap();
        assert_eq!(scene.here.found(&tensors[0], len, 0), ZERO);
    }
}

/// Both calls leave before one is answered: the second finds the tensor where the first has put it.
#[tokio::test]
async fn an_unanswered_call_with_a_tensor_on_a_device_is_an_argument() {
    for over in ["tcp", "shm", "memory"] {
        let scene = Scene::over(over).await;
        let map = DeviceMap::new([(toy(0), toy(0))]).unwrap();
        for client in [scene.client.clone(), scene.client.with_device_map(map)] {
            for len in LENGTHS {
                for from in [Device::CPU, toy(0), toy(1)] {
                    let kept = client.keep(scene.here.tensor(from, len, 1));
                    let found = [client.kept(len, &kept), client.kept(len, &kept)];
                    drop(kept);
                    for found in found {
                        assert_eq!(
                            soon(found).await.unwrap(),
                            ONE,
                            "{len} of {from} over {over}"
                        );
                    }
                }
            }
        }
    }
}

/// Values by name: within a process they stay where they are, from another one they land where the receiver's map says.
#[tokio::test]
async fn values_of_a_rendezvous_land_where_their_receiver_wants_them() {
    let (front_side, back_side) = (Side::new("shm", USUAL), Side::new("shm", USUAL));
    let front = Rendezvous::builder("front").context(&front_side.context);
    let front = front.build().unwrap();
    let server = Server::builder().context(&front_side.context);
    let server = server.service(front.service());
    let server = server.listen("tcp://127.0.0.1:0").await.unwrap();
    let back = Rendezvous::builder("back").context(&back_side.context);
    let map = DeviceMap::new([(toy(1), toy(0))]).unwrap();
    let back = back.device_map(map).peer("front", server.url());
    let back = back.build().unwrap();
    for (len, step) in [(0, 0), (100, 1), (300_000, 2)] {
        for (name, from, lands) in [("a", toy(0), ONE), ("b", toy(1), "cpu:0")] {
            let x = front_side.tensor(from, len, 1);
            front
                .send(&front.key_to("back", name, step).unwrap(), &x)
                .unwrap();
            let key = soon(back.key_from("front", name, step)).await.unwrap();
            let value = soon(back.recv(&key)).await.unwrap();
            assert_eq!(back_side.found(&value.tensor, len, 1), lands, "{len} bytes");
            let own = front.key_to("front", name, step).unwrap();
            front.send(&own, &x).unwrap();
            let value = soon(front.recv(&own)).await.unwrap();
            assert_eq!(
                front_side.found(&value.tensor, len, 1),
                x.device().to_string()
            );
        }
    }
}

#[tensor_service]
trait Asks {
    /// Where tensors were that went back and forth, by a call of the server's.
    async fn back(&self, cx: &CallContext) -> Vec<String>;
}

struct Asker(Side);

impl Asks for Asker {
    async fn back(&self, cx: &CallContext) -> Vec<String> {
        let client = BenchClient::on(&cx.connection().unwrap()).await.unwrap();
        let map = DeviceMap::new([(toy(0), toy(1))]).unwrap();
        let mapped = client.with_device_map(map);
        let x = self.0.tensor(toy(0), 70_000, 1);
        let mut found = mapped.found(70_000, x, HashMap::new(), None).await.unwrap();
        let tensors = mapped.plain(70_000, names(&[toy(1)])).await.unwrap();
        found.push(self.0.found(&tensors[0], 70_000, 0));
        let tensors = client.placed(70_000, names(&[Device::CPU])).await.unwrap();
        found.push(self.0.found(&tensors[0], 70_000, 0));
        found
    }
}

/// Whoever makes a call is its client, also a server.
#[tokio::test]
async fn calls_back_land_where_their_caller_asks() {
    let (here, there) = (Side::new("shm", USUAL), Side::new("shm", USUAL));
    let server = Server::builder()
        .context(&there.context)
        .service(AsksService::new(Asker(there.clone())))
        .listen("tcp://127.0.0.1:0")
        .await
        .unwrap();
    let connection = Connection::builder()
        .context(&here.context)
        .service(BenchService::new(Bencher::new(&here)))
        .connect(server.url())
        .await
        .unwrap();
    let client = AsksClient::on(&connection).await.unwrap();
    let found = soon(client.back()).await.unwrap();
    assert_eq!(found, [ONE, ZERO, ZERO]);
}

mod elsewhere {
    use super::*;

    #[tensor_service]
    pub(super) trait Place {
        async fn take(&self, #[tensor(device = "test:0")] x: Tensor);
    }
}

mod nowhere {
    use super::*;

    #[tensor_service]
    pub(super) trait Place {
        async fn take(&self, x: Tensor);
    }
}

struct Takes;

impl elsewhere::Place for Takes {
    async fn take(&self, x: Tensor) {
        drop(x);
    }
}

/// Where tensors land is part of what both ends must agree on.
#[tokio::test]
async fn a_client_of_another_definition_is_told_where_it_differs() {
    let service = elsewhere::PlaceService::from_arc(Arc::new(Takes));
    let server = Server::builder()
        .service(service)
        .listen("tcp://127.0.0.1:0")
        .await
        .unwrap();
    let error = nowhere::PlaceClient::connect(server.url())
        .await
        .unwrap_err();
    let ConnectError::Mismatch(words) = &error else {
        panic!("{error:?}");
    };
    assert!(
        words.contains("#[tensor(device = \"test:0\")] x: Tensor"),
        "{words}"
    );
}
