//! What stands on calls: several servers, and definitions that differ.

use std::collections::HashMap;
use std::sync::Arc;

use tensorpipe::{Device, Tensor};
use tensorpipe_rpc::{ConnectError, DeviceMap, Replicas, Server, tensor_service};

use super::scene::{BenchClient, Scene, names, soon, toy};

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
        assert_eq!(found.await.unwrap(), ["test:0", "test:1"]);
        let tensors = soon(mapped.plain(len, names(&[toy(0), toy(1)])))
            .await
            .unwrap();
        assert_eq!(scene.here.found(&tensors[0], len, 0), "test:1");
        assert_eq!(scene.here.found(&tensors[1], len, 1), "cpu:0");
        let tensors = soon(client.placed(len, names(&[Device::CPU])))
            .await
            .unwrap();
        assert_eq!(scene.here.found(&tensors[0], len, 0), "test:0");
    }
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
