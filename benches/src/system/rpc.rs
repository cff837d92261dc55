//! Our calls: a service of `#[tensor_service]`, its client and its server.
//!
//! An echo of zero bytes sends an empty string in the metadata; any other echo sends a tensor.

use std::collections::VecDeque;
use std::future::{pending, ready};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Result, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};
use tensorpipe::{Context, Tensor};
use tensorpipe_rpc::{CallError, Remote, Server, Stream, tensor_service};

use super::ours;
use crate::pattern;
use crate::plan::{Case, IN_FLIGHT, Plan, Transport};
use crate::system::{About, Client, Ready, Route, System, Trip};

/// Number of stream items that are kept to be checked.
const KEPT: u64 = 8;

/// How many uploads a server keeps, and how many bytes at most.
const PAST: usize = 256;
const PAST_BYTES: u64 = 1 << 30;

/// The system `rpc`.
pub(crate) struct Rpc;

impl System for Rpc {
    type Client = Caller;

    const ABOUT: About = About {
        name: "rpc",
        words: "tensorpipe-rpc: a #[tensor_service], its tensors received in the context's pool",
        is_ours: true,
        cases: &[
            Case::Echo,
            Case::Paced,
            Case::Upload,
            Case::Download,
            Case::Pipeline,
            Case::Stream,
            Case::Exchange,
            Case::Mutate,
            Case::Keep,
        ],
        transports: Transport::OURS,
    };

    async fn serve(plan: Plan, ready: Ready) -> Result<()> {
        let context = ours::context(&plan)?;
        let store = Store {
            plan: plan.clone(),
            context: context.clone(),
            kept: Mutex::default(),
            past: Mutex::default(),
            device: tokio::sync::Mutex::default(),
        };
        let server = Server::builder()
            .context(&context)
            .service(BenchService::new(store))
            .listen(ours::url(&plan))
            .await?;
        ready.announce(server.url());
        server.wait().await;
        Ok(())
    }

    async fn connect(plan: Plan, address: String) -> Result<Caller> {
        let context = ours::context(&plan)?;
        let client = BenchClient::connect_with(&context, &address).await?;
        let len = match plan.case {
            Case::Download | Case::Stream => 0,
            _ => plan.len()?,
        };
        Ok(Caller {
            client,
            case: plan.case,
            bytes: plan.bytes,
            sum: plan.sum,
            sent: ours::tensor(&plan, len, &context)?,
            received: Vec::new(),
            routing: ours::Routing::new(&plan, &context),
            small: ours::Small::new(context),
        })
    }
}

#[tensor_service]
pub(crate) trait Bench {
    /// An echo whose bytes ride in the metadata.
    async fn ping(&self, text: String) -> String;
    /// Never ends.
    async fn park(&self);
    async fn echo(&self, data: Tensor) -> Tensor;
    async fn upload(&self, data: Tensor);
    /// The first place where the last uploaded tensor differs from that of `round`.
    async fn verify(&self, round: u64) -> Result<Option<u64>, String>;
    /// Prepares the tensor of `round` for downloads.
    async fn stage(&self, round: u64) -> Result<(), String>;
    async fn download(&self) -> Result<Tensor, String>;
    /// Answers with the prepared tensor.
    async fn exchange(&self, data: Tensor) -> Result<Tensor, String>;
    /// Answers with the same bytes, each of them inverted.
    async fn mutate(&self, data: Tensor) -> Result<Tensor, String>;
    /// Keeps the tensor; the server holds the last [`PAST`] of them.
    async fn hoard(&self, data: Tensor);
    /// The tensor stays here.
    async fn keep(&self, data: Tensor) -> Remote<Tensor>;
    /// A link of a chain: returns its argument.
    async fn pass(&self, data: Remote<Tensor>) -> Remote<Tensor>;
    /// Returns each row with one added to its values. A run of the device takes a fixed time, however many rows it has.
    #[rpc(batch(max_size = 32, max_wait = "2ms"))]
    async fn batched(&self, rows: Tensor) -> Result<Tensor, String>;
    /// Like `batched`, with a run for each call.
    async fn single(&self, rows: Tensor) -> Result<Tensor, String>;
    /// How often the device has run.
    async fn runs(&self) -> u64;
    /// Streams the prepared tensor `many` times.
    fn items(&self, many: u64) -> impl Stream<Item = Result<Tensor, String>>;
    /// Items whose bytes ride in the metadata.
    fn numbers(&self, many: u64) -> impl Stream<Item = u64>;
}

/// Keeps the last upload until it is verified, or what is to be downloaded.
struct Store {
    plan: Plan,
    context: Context,
    kept: Mutex<Option<Tensor>>,
    /// Uploads that are kept.
    past: Mutex<VecDeque<Tensor>>,
    /// The device, which runs one batch at a time. Holds the number of runs.
    device: tokio::sync::Mutex<u64>,
}

impl Store {
    fn kept(&self) -> MutexGuard<'_, Option<Tensor>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn past(&self) -> MutexGuard<'_, VecDeque<Tensor>> {
        self.past.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads all bytes if the plan asks for it. Memory that the CPU cannot read is only checked by `verify`.
    fn read_all(&self, data: &Tensor) {
        if self.plan.sum {
            let _ = ours::read_all(data);
        }
    }

    fn lay_ready(&self, round: u64) -> Result<()> {
        let mut tensor = match self.kept().take() {
            Some(tensor) => tensor,
            None => ours::tensor(&self.plan, self.plan.len()?, &self.context)?,
        };
        ours::fill(&mut tensor, round)?;
        *self.kept() = Some(tensor);
        Ok(())
    }
}

impl Bench for Store {
    async fn ping(&self, text: String) -> String {
        text
    }

    async fn park(&self) {
        pending().await
    }

    async fn echo(&self, data: Tensor) -> Tensor {
        self.read_all(&data);
        data
    }

    async fn upload(&self, data: Tensor) {
        self.read_all(&data);
        *self.kept() = Some(data);
    }

    async fn verify(&self, round: u64) -> Result<Option<u64>, String> {
        let last = || self.past().front().cloned();
        let tensor = self.kept().take().or_else(last);
        let tensor = tensor.ok_or("nothing was uploaded")?;
        let bytes = tensor.as_bytes().map_err(|error| error.to_string())?;
        Ok(pattern::mismatch(bytes, round))
    }

    async fn stage(&self, round: u64) -> Result<(), String> {
        self.lay_ready(round).map_err(|error| error.to_string())
    }

    async fn download(&self) -> Result<Tensor, String> {
        let staged = self.kept().clone();
        staged.ok_or_else(|| "nothing was laid ready".to_owned())
    }

    async fn exchange(&self, data: Tensor) -> Result<Tensor, String> {
        self.read_all(&data);
        drop(data);
        self.download().await
    }

    async fn mutate(&self, mut data: Tensor) -> Result<Tensor, String> {
        let bytes = data.make_mut::<u8>().map_err(|error| error.to_string())?;
        bytes.iter_mut().for_each(|byte| *byte = !*byte);
        Ok(data)
    }

    async fn hoard(&self, data: Tensor) {
        self.read_all(&data);
        let many = PAST.min((PAST_BYTES / self.plan.bytes.max(1)) as usize);
        let mut past = self.past();
        past.truncate(many.saturating_sub(1));
        past.push_front(data);
    }

    async fn keep(&self, data: Tensor) -> Remote<Tensor> {
        Remote::new(data)
    }

    async fn pass(&self, data: Remote<Tensor>) -> Remote<Tensor> {
        data
    }

    async fn batched(&self, mut rows: Tensor) -> Result<Tensor, String> {
        let mut runs = self.device.lock().await;
        *runs += 1;
        let cost = Duration::from_micros(self.plan.cost_us);
        // Not tokio's sleep, whose resolution is a millisecond.
        let slept = tokio::task::spawn_blocking(move || std::thread::sleep(cost));
        slept.await.map_err(|error| error.to_string())?;
        let values = rows.make_mut::<f32>().map_err(|error| error.to_string())?;
        values.iter_mut().for_each(|value| *value += 1.0);
        Ok(rows)
    }

    async fn single(&self, rows: Tensor) -> Result<Tensor, String> {
        self.batched(rows).await
    }

    async fn runs(&self) -> u64 {
        *self.device.lock().await
    }

    fn items(&self, many: u64) -> impl Stream<Item = Result<Tensor, String>> {
        let staged = self.kept().clone();
        let item = staged.ok_or_else(|| "nothing was laid ready".to_owned());
        stream::iter((0..many).map(move |_| item.clone()))
    }

    fn numbers(&self, many: u64) -> impl Stream<Item = u64> {
        stream::iter(0..many)
    }
}

/// The client's side of one connection.
pub(crate) struct Caller {
    client: BenchClient,
    case: Case,
    bytes: u64,
    sum: bool,
    sent: Tensor,
    received: Vec<Tensor>,
    /// For trips that wake both ends.
    small: ours::Small,
    routing: ours::Routing,
}

impl Caller {
    /// Reads all items of a stream and keeps the last ones.
    async fn stream(&mut self) -> Result<()> {
        let many = self.calls_per_round();
        if self.bytes == 0 {
            let mut numbers = self.client.numbers(many);
            let mut seen = 0;
            while let Some(number) = numbers.next().await {
                ensure!(number? == seen, "out of order");
                seen += 1;
            }
            ensure!(seen == many, "{seen} items");
            return Ok(());
        }
        let mut items = self.client.items(many);
        let mut seen = 0;
        while let Some(item) = items.next().await {
            seen += 1;
            let item = item?;
            if many - seen < KEPT {
                self.received.push(item);
            } else if self.sum {
                ours::read_all(&item)?;
            }
        }
        ensure!(seen == many, "{seen} items");
        Ok(())
    }

    /// One echo call: a tensor, or an empty string if there are no bytes.
    async fn echo(&self) -> Result<Tensor, CallError> {
        if self.bytes > 0 {
            return self.client.echo(&self.sent).await;
        }
        let text = self.client.ping("").await?;
        debug_assert!(text.is_empty());
        Ok(self.sent.clone())
    }
}

impl Client for Caller {
    async fn prepare(&mut self, round: u64) -> Result<()> {
        self.received.clear();
        match self.case {
            Case::Download | Case::Stream => Ok(self.client.stage(round).await?),
            Case::Exchange => {
                self.client.stage(round).await?;
                ours::fill(&mut self.sent, round)
            }
            _ => ours::fill(&mut self.sent, round),
        }
    }

    async fn touch(&mut self, trip: Trip) -> Result<()> {
        match trip {
            Trip::Bare => drop(self.client.ping("").await?),
            Trip::Leased => drop(self.client.echo(self.small.tensor()?).await?),
        }
        Ok(())
    }

    async fn round(&mut self) -> Result<()> {
        match self.case {
            Case::Echo | Case::Paced => {
                let answer = self.echo().await?;
                self.received.push(answer);
            }
            Case::Upload => self.client.upload(&self.sent).await?,
            Case::Download => self.received.push(self.client.download().await?),
            Case::Pipeline => {
                // Reuses the vector of earlier rounds: a new one would cost a page fault for each page.
                let mut received = std::mem::take(&mut self.received);
                let caller = &*self;
                stream::iter(0..self.calls_per_round())
                    .map(|_| caller.echo())
                    .buffer_unordered(IN_FLIGHT)
                    .try_for_each(|answer| {
                        received.push(answer);
                        ready(Ok(()))
                    })
                    .await?;
                self.received = received;
            }
            Case::Stream => self.stream().await?,
            Case::Exchange => self.received.push(self.client.exchange(&self.sent).await?),
            Case::Mutate => self.received.push(self.client.mutate(&self.sent).await?),
            Case::Keep => self.client.hoard(&self.sent).await?,
        }
        for answer in self.received.iter().filter(|_| self.sum) {
            ours::read_all(answer)?;
        }
        Ok(())
    }

    async fn check(&mut self, round: u64) -> Result<()> {
        if matches!(self.case, Case::Upload | Case::Keep) {
            return ours::right(self.client.verify(round).await?);
        }
        let kept = match self.case {
            Case::Stream if self.bytes == 0 => 0,
            Case::Stream => KEPT.min(self.calls_per_round()),
            _ => self.calls_per_round(),
        };
        ensure!(
            self.received.len() as u64 == kept,
            "{} answers",
            self.received.len()
        );
        for answer in &mut self.received {
            if self.case == Case::Mutate {
                let bytes = answer.make_mut::<u8>()?;
                bytes.iter_mut().for_each(|byte| *byte = !*byte);
            }
            ours::check(answer, self.bytes, round)?;
        }
        Ok(())
    }

    fn calls_per_round(&self) -> u64 {
        self.case.calls_per_round(self.bytes)
    }

    fn route(&self) -> Route {
        self.routing.route(self.client.connection().route())
    }
}
