//! Setup of every test here: child processes that have a rendezvous each and obey calls, and a rendezvous in the test.

use std::time::Duration;

use tensorpipe::conformance::pattern;
use tensorpipe::{Context, DType};
use tensorpipe_rpc::rendezvous::{Key, Rendezvous, Value};
use tensorpipe_rpc::{Server, tensor_service};
use tensorpipe_tests::{Child, runtime, say, soon};

/// What a child can be told.
#[tensor_service]
pub(crate) trait Stage {
    async fn peer(&self, name: String, url: String);
    /// Sends `len` bytes of the pattern of `seed`, from the pool; dead if `len` is 0.
    async fn send(&self, to: String, tensor: String, step: u64, len: u64) -> Result<(), String>;
    /// Receives and checks such a value; its length.
    async fn recv(&self, from: String, tensor: String, step: u64) -> Result<u64, String>;
    /// Receives from one and sends to the next, adding one to every byte.
    async fn relay(
        &self,
        from: String,
        to: String,
        tensor: String,
        step: u64,
    ) -> Result<(), String>;
    /// Bytes and values held, sends and receives that wait.
    async fn stats(&self) -> (u64, u64, u64, u64);
}

struct Worker {
    rendezvous: Rendezvous,
    context: Context,
}

/// Which pattern a value of this length and step has.
pub(crate) fn seed(len: u64, step: u64) -> u64 {
    len ^ (step << 32)
}

/// A value made in a pool, so that it can be lent; dead without bytes.
pub(crate) fn made(context: &Context, len: u64, step: u64) -> Value {
    if len == 0 {
        return Value::dead();
    }
    let mut tensor = context.pool().tensor(DType::U8, [len]).unwrap();
    let bytes = tensor.make_mut::<u8>().unwrap();
    bytes.copy_from_slice(&pattern(len as usize, seed(len, step)));
    tensor.into()
}

/// Compares with [`made`].
pub(crate) fn check(value: &Value, step: u64) -> u64 {
    let len = value.byte_len();
    assert_eq!(value.is_dead, len == 0);
    tensorpipe_tests::check(&value.tensor, seed(len, step));
    len
}

fn said<T, E: std::fmt::Display>(result: Result<T, E>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}

impl Stage for Worker {
    async fn peer(&self, name: String, url: String) {
        self.rendezvous.add_peer(&name, url).unwrap();
    }

    async fn send(&self, to: String, tensor: String, step: u64, len: u64) -> Result<(), String> {
        let key = self.rendezvous.key_to(&to, &tensor, step).unwrap();
        said(self.rendezvous.send(&key, made(&self.context, len, step)))
    }

    async fn recv(&self, from: String, tensor: String, step: u64) -> Result<u64, String> {
        let key = said(self.rendezvous.key_from(&from, &tensor, step).await)?;
        said(self.rendezvous.recv(&key).await).map(|value| check(&value, step))
    }

    async fn relay(
        &self,
        from: String,
        to: String,
        tensor: String,
        step: u64,
    ) -> Result<(), String> {
        let key = said(self.rendezvous.key_from(&from, &tensor, step).await)?;
        let mut value = said(self.rendezvous.recv(&key).await)?;
        let bytes = said(value.tensor.make_mut::<u8>())?;
        bytes
            .iter_mut()
            .for_each(|byte| *byte = byte.wrapping_add(1));
        let key = self.rendezvous.key_to(&to, &tensor, step).unwrap();
        said(self.rendezvous.send_or_wait(&key, value).await)
    }

    async fn stats(&self) -> (u64, u64, u64, u64) {
        let stats = self.rendezvous.stats();
        let [values, blocked, waiting] = [stats.values, stats.blocked, stats.waiting];
        (stats.bytes, values as u64, blocked as u64, waiting as u64)
    }
}

/// The child.
pub(crate) fn play() {
    runtime().block_on(async {
        let name = std::env::var("TEST_NAME").unwrap();
        let context = Context::builder().name(name.clone()).build().unwrap();
        let rendezvous = Rendezvous::builder(&name).context(&context);
        let rendezvous = rendezvous.build().unwrap();
        let server = Server::builder()
            .context(&context)
            .service(rendezvous.service())
            .service(StageService::new(Worker {
                rendezvous,
                context: context.clone(),
            }))
            .listen("tcp://127.0.0.1:0")
            .await
            .unwrap();
        say("url", server.url());
        server.wait().await;
    });
}

/// A process with a rendezvous, seen from the test.
pub(crate) struct Far {
    pub(crate) child: Child,
    pub(crate) url: String,
    pub(crate) stage: StageClient,
}

impl Far {
    pub(crate) async fn start(name: &str) -> Self {
        let child = Child::start("stage", &[("TEST_NAME", name)]);
        let url = child.hear("url");
        let stage = soon("a stage", StageClient::connect(&url)).await.unwrap();
        Self { child, url, stage }
    }

    pub(crate) async fn knows(&self, name: &str, url: &str) {
        soon("a call", self.stage.peer(name, url)).await.unwrap();
    }

    pub(crate) async fn send(
        &self,
        to: &str,
        tensor: &str,
        step: u64,
        len: u64,
    ) -> Result<(), String> {
        ran(soon("a send", self.stage.send(to, tensor, step, len)).await)
    }

    /// Waits until its rendezvous looks so.
    pub(crate) async fn is(&self, what: &str, reached: impl Fn((u64, u64, u64, u64)) -> bool) {
        let look = async {
            while !reached(self.stage.stats().await.unwrap()) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        soon(what, look).await;
    }
}

/// A call that was made ends as its method does.
pub(crate) fn ran<T>(called: Result<T, tensorpipe_rpc::CallError<String>>) -> Result<T, String> {
    match called {
        Ok(value) => Ok(value),
        Err(tensorpipe_rpc::CallError::Service(error)) => Err(error),
        Err(error) => panic!("{error}"),
    }
}

/// The test's own, served.
pub(crate) struct Near {
    pub(crate) rendezvous: Rendezvous,
    pub(crate) context: Context,
    pub(crate) server: Server,
}

impl Near {
    pub(crate) async fn start(name: &str) -> Self {
        let context = Context::builder().name(name).build().unwrap();
        let rendezvous = Rendezvous::builder(name).context(&context).build().unwrap();
        let server = Server::builder()
            .context(&context)
            .service(rendezvous.service())
            .listen("tcp://127.0.0.1:0")
            .await
            .unwrap();
        Self {
            rendezvous,
            context,
            server,
        }
    }

    pub(crate) fn url(&self) -> String {
        self.server.url().to_string()
    }

    pub(crate) async fn knows(&self, name: &str, far: &Far) {
        self.rendezvous.add_peer(name, &far.url).unwrap();
    }

    /// Names a value that comes here.
    pub(crate) async fn key(&self, producer: &str, tensor: &str, step: u64) -> Key {
        let key = self.rendezvous.key_from(producer, tensor, step);
        soon("a key", key).await.unwrap()
    }
}

/// One here, and one in a process of its own that it knows.
pub(crate) async fn near_and_far() -> (Near, Far) {
    let near = Near::start("near").await;
    let far = Far::start("far").await;
    near.knows("far", &far).await;
    (near, far)
}
