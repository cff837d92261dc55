//! Stand-in for the generated client and the RPC server: one JSON line a message over TCP, with the same surface.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use tensorpipe::Tensor;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::model::Tensors;
use crate::service::{ParameterServer, PushError, Status, Welcome};
use crate::store::Store;

#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError<E> {
    #[error("{0}")]
    Service(E),
    #[error("the connection ended: {0}")]
    Closed(String),
}

type Plain = HashMap<String, (Vec<u64>, Vec<f32>)>;

fn plain(tensors: &Tensors) -> Plain {
    let row = |(name, tensor): (&String, &Tensor)| {
        let elements = tensor.as_slice::<f32>().unwrap_or_default().to_vec();
        (name.clone(), (tensor.shape().to_vec(), elements))
    };
    tensors.iter().map(row).collect()
}

fn tensors(plain: Plain) -> Tensors {
    let row =
        |(name, (shape, elements))| Some((name, Tensor::from_vec::<f32>(elements, shape).ok()?));
    plain.into_iter().filter_map(row).collect()
}

#[derive(Serialize, Deserialize)]
enum Request {
    Join,
    Pull(Vec<String>),
    Push(Plain, f32),
    Status,
}

pub(crate) struct Server {
    url: String,
    task: JoinHandle<()>,
}

impl Server {
    pub(crate) async fn listen(store: Arc<Store>, url: &str) -> Result<Self> {
        let address = url.strip_prefix("tcp://").with_context(|| {
            format!("`{url}` is not an address; write for example tcp://127.0.0.1:5000")
        })?;
        let listener = TcpListener::bind(address).await?;
        let url = format!("tcp://{}", listener.local_addr()?);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(Arc::clone(&store), stream));
            }
        });
        Ok(Self { url, task })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) async fn shutdown(self) {
        self.task.abort();
    }
}

async fn answer(store: Arc<Store>, stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read).lines();
    while let Some(line) = lines.next_line().await? {
        let reply = match serde_json::from_str(&line)? {
            Request::Join => serde_json::to_string(&store.join().await),
            Request::Pull(names) => serde_json::to_string(&plain(&store.pull(names).await)),
            Request::Push(gradients, loss) => {
                serde_json::to_string(&store.push(tensors(gradients), loss).await)
            }
            Request::Status => serde_json::to_string(&store.status().await),
        }?;
        write.write_all(format!("{reply}\n").as_bytes()).await?;
    }
    Ok(())
}

type Pending = Arc<Mutex<VecDeque<oneshot::Sender<String>>>>;

#[derive(Clone, Debug)]
pub(crate) struct ParameterServerClient {
    requests: mpsc::UnboundedSender<String>,
    pending: Pending,
}

impl ParameterServerClient {
    pub(crate) async fn connect(url: impl AsRef<str>) -> Result<Self> {
        let address = url
            .as_ref()
            .strip_prefix("tcp://")
            .context("not an address; write for example tcp://127.0.0.1:5000")?;
        let mut tries = 0;
        let stream = loop {
            match TcpStream::connect(address).await {
                Ok(stream) => break stream,
                Err(error) if tries == 20 => return Err(error).context("waited 2 s"),
                Err(_) => tries += 1,
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        stream.set_nodelay(true)?;
        let (read, mut write) = stream.into_split();
        let (requests, mut queue) = mpsc::unbounded_channel::<String>();
        let pending = Pending::default();
        let waiting = Arc::clone(&pending);
        tokio::spawn(async move {
            while let Some(line) = queue.recv().await {
                if write.write_all(line.as_bytes()).await.is_err() {
                    break;
                }
            }
        });
        tokio::spawn(async move {
            let mut lines = BufReader::new(read).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let first = waiting.lock().map(|mut queue| queue.pop_front());
                if let Ok(Some(waiter)) = first {
                    let _ = waiter.send(line);
                }
            }
            waiting.lock().map(|mut queue| queue.clear()).ok();
        });
        Ok(Self { requests, pending })
    }

    pub(crate) fn join(
        &self,
    ) -> impl Future<Output = Result<Welcome, CallError<Infallible>>> + use<> {
        self.call(&Request::Join)
    }

    pub(crate) fn pull(
        &self,
        names: Vec<String>,
    ) -> impl Future<Output = Result<Tensors, CallError<Infallible>>> + use<> {
        let call = self.call(&Request::Pull(names));
        async { call.await.map(tensors) }
    }

    pub(crate) fn push(
        &self,
        gradients: &Tensors,
        loss: f32,
    ) -> impl Future<Output = Result<u64, CallError<PushError>>> + use<> {
        let call =
            self.call::<Result<u64, PushError>, PushError>(&Request::Push(plain(gradients), loss));
        async { call.await?.map_err(CallError::Service) }
    }

    pub(crate) fn status(
        &self,
    ) -> impl Future<Output = Result<Status, CallError<Infallible>>> + use<> {
        self.call(&Request::Status)
    }

    pub(crate) fn transport(&self) -> String {
        "tcp".to_owned()
    }

    pub(crate) fn route(&self) -> String {
        "tcp".to_owned()
    }

    fn call<T: DeserializeOwned, E>(
        &self,
        request: &Request,
    ) -> impl Future<Output = Result<T, CallError<E>>> + use<T, E> {
        let (sender, reply) = oneshot::channel();
        let line = serde_json::to_value(request).map(|value: Value| format!("{value}\n"));
        if let (Ok(mut queue), Ok(line)) = (self.pending.lock(), line) {
            queue.push_back(sender);
            let _ = self.requests.send(line);
        }
        async move {
            let line = reply
                .await
                .map_err(|_| CallError::Closed("the server is gone".to_owned()))?;
            serde_json::from_str(&line).map_err(|error| CallError::Closed(error.to_string()))
        }
    }
}
