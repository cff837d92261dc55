//! A service with one method for each feature of calls, and counters of its work in progress.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{Stream, stream};
use tensorpipe::{Context, DType, Tensor};
use tensorpipe_rpc::remote::Shared;
use tensorpipe_rpc::{
    CallContext, CallError, Connection, Remote, Server, Streaming, tensor_service,
};
use tensorpipe_tests::{runtime, say};

/// What a reference is to: it does not travel, and is counted.
pub(crate) struct Part {
    pub(crate) size: u64,
    _counted: Counted,
}

#[tensor_service]
pub(crate) trait Works {
    /// So many tensors of so many bytes, number `i` full of `i`s; without end if `many` is 0.
    fn tensors(&self, many: u64, bytes: u64) -> impl Stream<Item = Tensor>;
    /// Bytes of all, each full of its number.
    async fn measure(&self, tensors: Streaming<Tensor>) -> Result<u64, String>;
    async fn part(&self, size: u64) -> Remote<Part>;
    async fn parts(&self, many: u64) -> Vec<Remote<Part>>;
    async fn join(&self, left: Remote<Part>, right: Remote<Part>) -> Remote<Part>;
    /// As `part`, after a while.
    async fn late_part(&self, size: u64, ms: u64) -> Remote<Part>;
    async fn size(&self, part: Remote<Part>) -> u64;
    async fn keep(&self, tensor: Tensor) -> Remote<Tensor>;
    /// A tensor of so many bytes.
    async fn make(&self, bytes: u64) -> Remote<Tensor>;
    /// One of twice as many.
    async fn double(&self, tensor: Remote<Tensor>) -> Remote<Tensor>;
    async fn bytes(&self, tensor: Remote<Tensor>) -> u64;
    /// Opens a reference to a tensor of another process, and fetches it: its first byte.
    async fn open(&self, tensor: Shared<Tensor>) -> Result<u8, String>;
    /// Keeps a tensor here, and passes a reference to it on to the next process, which opens it.
    async fn pass_on(&self, tensor: Tensor, next: String) -> Result<u8, String>;
    /// Opens one to a part, and holds it.
    async fn hold(&self, part: Shared<Part>) -> Result<(), String>;
    /// What is under way or held here: streams, parts.
    async fn under_way(&self) -> u64;
    /// Calls the caller's `wait`.
    async fn ask_back(&self, ms: u64, cx: &CallContext) -> Result<u64, String>;
    async fn wait(&self, ms: u64) -> u64;
}

/// Something that is there for a while.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[derive(Clone, Default)]
pub(crate) struct Hall {
    under_way: Arc<AtomicUsize>,
    pub(crate) made: Arc<AtomicUsize>,
    held: Arc<Mutex<Vec<Remote<Part>>>>,
}

impl Hall {
    pub(crate) fn under_way(&self) -> usize {
        self.under_way.load(Ordering::SeqCst)
    }

    fn part(&self, size: u64) -> Remote<Part> {
        self.made.fetch_add(1, Ordering::SeqCst);
        Remote::unfetchable(Part {
            size,
            _counted: Counted::new(&self.under_way),
        })
    }
}

/// Tensor number `i` of a stream.
pub(crate) fn numbered(bytes: u64, i: u64) -> Tensor {
    Tensor::from_vec(vec![i as u8; bytes as usize], [bytes]).unwrap()
}

/// Whether it is.
pub(crate) fn is_numbered(tensor: &Tensor, i: u64) -> bool {
    assert_eq!(tensor.dtype(), DType::U8);
    let bytes = tensor.as_slice::<u8>().unwrap();
    bytes.iter().all(|byte| *byte == i as u8)
}

impl Works for Hall {
    fn tensors(&self, many: u64, bytes: u64) -> impl Stream<Item = Tensor> {
        let counted = Counted::new(&self.under_way);
        let end = if many == 0 { u64::MAX } else { many };
        stream::iter((0..end).map(move |i| {
            let _counted = &counted;
            numbered(bytes, i)
        }))
    }

    async fn measure(&self, mut tensors: Streaming<Tensor>) -> Result<u64, String> {
        let _counted = Counted::new(&self.under_way);
        let (mut bytes, mut i) = (0, 0);
        while let Some(tensor) = tensors.next().await {
            let tensor = tensor.map_err(|error| error.to_string())?;
            if !is_numbered(&tensor, i) {
                return Err(format!("number {i} is another one"));
            }
            bytes += tensor.byte_len() as u64;
            i += 1;
        }
        Ok(bytes)
    }

    async fn part(&self, size: u64) -> Remote<Part> {
        Self::part(self, size)
    }

    async fn parts(&self, many: u64) -> Vec<Remote<Part>> {
        (0..many).map(|size| Self::part(self, size)).collect()
    }

    async fn join(&self, left: Remote<Part>, right: Remote<Part>) -> Remote<Part> {
        Self::part(
            self,
            left.local_value().unwrap().size + right.local_value().unwrap().size,
        )
    }

    async fn late_part(&self, size: u64, ms: u64) -> Remote<Part> {
        let _counted = Counted::new(&self.under_way);
        tokio::time::sleep(Duration::from_millis(ms)).await;
        Self::part(self, size)
    }

    async fn size(&self, part: Remote<Part>) -> u64 {
        part.local_value().unwrap().size
    }

    async fn keep(&self, tensor: Tensor) -> Remote<Tensor> {
        Remote::new(tensor)
    }

    async fn make(&self, bytes: u64) -> Remote<Tensor> {
        Remote::new(numbered(bytes, 1))
    }

    async fn double(&self, tensor: Remote<Tensor>) -> Remote<Tensor> {
        let bytes = tensor.local_value().unwrap().byte_len() as u64;
        Remote::new(numbered(2 * bytes, 1))
    }

    async fn bytes(&self, tensor: Remote<Tensor>) -> u64 {
        tensor.local_value().unwrap().byte_len() as u64
    }

    async fn open(&self, tensor: Shared<Tensor>) -> Result<u8, String> {
        let words = |error: CallError| error.to_string();
        let tensor = tensor.open(&Context::new()).await.map_err(words)?;
        let tensor = tensor.fetch().await.map_err(words)?;
        Ok(tensor.as_slice::<u8>().unwrap()[0])
    }

    async fn pass_on(&self, tensor: Tensor, next: String) -> Result<u8, String> {
        let words = |error: CallError| error.to_string();
        let shared = Remote::new(tensor).share().await.map_err(words)?;
        let next = WorksClient::connect(next).await;
        let next = next.map_err(|error| error.to_string())?;
        next.open(shared).await.map_err(|error| error.to_string())
    }

    async fn hold(&self, part: Shared<Part>) -> Result<(), String> {
        let opened = part.open(&Context::new()).await;
        let part = opened.map_err(|error| error.to_string())?;
        self.held.lock().unwrap().push(part);
        Ok(())
    }

    async fn under_way(&self) -> u64 {
        Self::under_way(self) as u64
    }

    async fn ask_back(&self, ms: u64, cx: &CallContext) -> Result<u64, String> {
        let _counted = Counted::new(&self.under_way);
        let caller = cx.connection().ok_or("the caller is gone")?;
        let caller = WorksClient::on(&caller).await;
        let caller = caller.map_err(|error| error.to_string())?;
        caller.wait(ms).await.map_err(|error| error.to_string())
    }

    async fn wait(&self, ms: u64) -> u64 {
        let _counted = Counted::new(&self.under_way);
        tokio::time::sleep(Duration::from_millis(ms)).await;
        ms
    }
}

/// The role of a server.
pub(crate) fn serve() {
    runtime().block_on(async {
        let (server, _) = here().await;
        say("url", server.url());
        server.wait().await;
    });
}

/// A server in this process.
pub(crate) async fn here() -> (Server, Hall) {
    let hall = Hall::default();
    let server = Server::builder()
        .context(&Context::new())
        .service(WorksService::new(hall.clone()))
        .listen("tcp://127.0.0.1:0")
        .await
        .unwrap();
    (server, hall)
}

/// A client in this process, that serves, too. To which transport its pipe is upgraded is none of its business.
pub(crate) async fn client(url: &str) -> (WorksClient, Hall) {
    let hall = Hall::default();
    let connection = Connection::builder()
        .context(&Context::new())
        .service(WorksService::new(hall.clone()))
        .connect(url)
        .await
        .unwrap();
    (WorksClient::on(&connection).await.unwrap(), hall)
}

/// Where the parent is.
pub(crate) fn parent() -> String {
    std::env::var("URL").unwrap()
}
