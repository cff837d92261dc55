//! Several services and clients, and services that do not match their clients.

use serde::{Deserialize, Serialize};
use tensorpipe::Tensor;
use tensorpipe_rpc::{CallError, ConnectError, Connection, Remote, Server, tensor_service};

use super::lab::{Bench, LabClient, LabService, over_each, serve, tcp, tensor};

#[tensor_service]
trait Adder {
    async fn add(&self, a: u64, b: u64) -> u64;
}

struct Sum;

impl Adder for Sum {
    async fn add(&self, a: u64, b: u64) -> u64 {
        a + b
    }
}

mod older {
    use super::*;

    /// The same service before a method was added.
    #[tensor_service]
    pub(super) trait Growing {
        async fn old(&self) -> u64;
    }

    /// The same name, another argument.
    #[tensor_service]
    pub(super) trait Adder {
        async fn add(&self, a: u64, b: f32) -> u64;
    }

    #[tensor_service]
    pub(super) trait Absent {
        async fn nothing(&self);
    }
}

#[tensor_service]
trait Growing {
    async fn brand_new(&self, tensor: Tensor) -> u64;
    async fn old(&self) -> u64;
}

struct Old;

impl older::Growing for Old {
    async fn old(&self) -> u64 {
        1
    }
}

async fn server() -> (Server, Connection) {
    let context = tcp().build().unwrap();
    let server = Server::builder()
        .context(&context)
        .service(LabService::new(Bench::default()))
        .service(AdderService::new(Sum))
        .service(older::GrowingService::new(Old))
        .listen("tcp://127.0.0.1:0")
        .await
        .unwrap();
    let connection = Connection::connect_with(&context, server.url())
        .await
        .unwrap();
    (server, connection)
}

#[tokio::test]
async fn several_services_and_clients_share_a_connection() {
    let (_server, connection) = server().await;
    let lab = LabClient::on(&connection).await.unwrap();
    let adder = AdderClient::on(&connection).await.unwrap();
    let again = AdderClient::on(&connection).await.unwrap();
    let (text, sum, other) = tokio::join!(lab.echo("x"), adder.add(1, 2), again.add(3, 4));
    assert_eq!(
        (text.unwrap().as_str(), sum.unwrap(), other.unwrap()),
        ("x", 3, 7)
    );
}

#[tokio::test]
async fn a_method_that_the_server_lacks_is_unimplemented_whatever_its_size() {
    let (_server, connection) = server().await;
    let client = GrowingClient::on(&connection).await.unwrap();
    for len in [1, 10 << 20] {
        let error = client.brand_new(tensor(len, 0)).await.unwrap_err();
        assert!(matches!(error, CallError::Unimplemented(_)), "{error}");
        let said = error.to_string();
        assert!(!error.may_have_run(), "{said}");
        assert!(
            said.contains("no method `Growing::brand_new`; it was built"),
            "{said}"
        );
    }
    assert_eq!(client.old().await.unwrap(), 1);
}

/// Whoever fetches it would read one field as the other.
#[tokio::test]
async fn another_definition_of_what_a_reference_is_to_is_refused() {
    let context = tcp().build().unwrap();
    let server = serve(&context, kept::ShelfService::new(kept::Box2 { w: 1, h: 2 })).await;
    let kept = kept::ShelfClient::connect_with(&context, server.url()).await;
    let found = kept.unwrap().find().await.unwrap().fetch().await;
    assert_eq!(found.unwrap().h, 2);
    let turned = turned::ShelfClient::connect_with(&context, server.url()).await;
    let said = turned.unwrap_err().to_string();
    assert!(
        said.contains("struct Box2: the client has `h: u32`, the server has `w: u32`"),
        "{said}"
    );
}

mod kept {
    use super::*;

    #[derive(Clone, Debug, Serialize, Deserialize)]
    pub(super) struct Box2 {
        pub(super) w: u32,
        pub(super) h: u32,
    }

    #[tensor_service]
    pub(super) trait Shelf {
        async fn find(&self) -> Remote<Box2>;
    }

    impl Shelf for Box2 {
        async fn find(&self) -> Remote<Self> {
            Remote::new(self.clone())
        }
    }
}

mod turned {
    use super::*;

    #[derive(Debug, Serialize, Deserialize)]
    pub(super) struct Box2 {
        h: u32,
        w: u32,
    }

    #[tensor_service]
    pub(super) trait Shelf {
        async fn find(&self) -> Remote<Box2>;
    }
}

#[tokio::test]
async fn another_definition_is_refused_with_the_difference() {
    let (_server, connection) = server().await;
    match older::AdderClient::on(&connection).await {
        Err(error @ ConnectError::Mismatch(_)) => {
            assert_eq!(
                error.to_string().matches("build both").count(),
                1,
                "{error}"
            );
            let text = error.to_string();
            assert!(text.contains("f32") && text.contains("u64"), "{text}");
        }
        other => panic!("{other:?}"),
    }
    match older::AbsentClient::on(&connection).await {
        Err(error @ ConnectError::NoService { .. }) => {
            let text = error.to_string();
            assert!(
                text.contains("`Absent`") && text.contains("`Adder`"),
                "{text}"
            );
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(
        AdderClient::on(&connection)
            .await
            .unwrap()
            .add(1, 1)
            .await
            .unwrap(),
        2
    );
}

#[tokio::test]
async fn a_server_without_services_says_so() {
    let context = tcp().build().unwrap();
    let server = Server::builder()
        .context(&context)
        .listen("tcp://127.0.0.1:0")
        .await
        .unwrap();
    match LabClient::connect_with(&context, server.url()).await {
        Err(error @ ConnectError::NoService { .. }) => {
            let text = error.to_string();
            assert!(text.contains("`Lab`") && text.contains("none"), "{text}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn two_ends_that_both_only_call_tell_each_other() {
    let context = tcp().build().unwrap();
    let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    let url = listener.url().to_string();
    let (a, b) = tokio::join!(context.connect(&url), listener.accept());
    let (a, _b) = (
        Connection::over(a.unwrap()).unwrap(),
        Connection::over(b.unwrap()).unwrap(),
    );
    match LabClient::on(&a).await {
        Err(error @ ConnectError::NoService { .. }) => {
            assert!(error.to_string().contains("client"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn many_clients_at_once() {
    over_each(async |both| {
        let clients = (0..32).map(|_| LabClient::connect_with(&both.near, both.server.url()));
        let mut connected = Vec::new();
        for client in clients {
            connected.push(client.await.unwrap());
        }
        assert_eq!(both.server.pipes().len(), 33);
        let calls: Vec<_> = connected.iter().map(|client| client.sleep(20)).collect();
        for call in calls {
            assert_eq!(call.await.unwrap(), 20);
        }
        drop(connected);
        super::lab::until(|| both.server.pipes().len() == 1).await;
        both.is_clean().await;
    })
    .await;
}
