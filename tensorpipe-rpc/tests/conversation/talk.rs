//! A service with a method of every kind, for hostile peers.
//!
//! Invariant: `held` counts values that the handlers hold, and is zero when no call is left.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::{Stream, StreamExt, stream};
use tensorpipe::Tensor;

use tensorpipe_rpc::{CallContext, Remote, Streaming, tensor_service};

#[tensor_service]
pub(crate) trait Talk {
    async fn echo(&self, text: String) -> String;
    async fn bounce(&self, tensor: Tensor) -> Result<Tensor, String>;
    async fn never(&self) -> ();
    async fn sum(&self, numbers: Streaming<u32>) -> u64;
    /// Drops its stream after one item, and goes on.
    async fn first(&self, tensors: Streaming<Tensor>) -> u64;
    fn count(&self, to: u8) -> impl Stream<Item = u32>;
    /// Tensors of so many bytes.
    fn forever(&self, bytes: u16) -> impl Stream<Item = Tensor>;
    fn pass(&self, tensors: Streaming<Tensor>) -> impl Stream<Item = Result<Tensor, String>>;
    async fn keep(&self, tensor: Tensor) -> Remote<Tensor>;
    async fn several(&self, many: u8) -> Vec<Remote<Held>>;
    async fn add(
        &self,
        left: Remote<Tensor>,
        right: Remote<Tensor>,
    ) -> Result<Remote<Tensor>, String>;
    #[rpc(batch(max_size = 4, max_wait = "1ms"))]
    async fn rows(&self, x: Tensor) -> Result<Tensor, String>;
    /// Asks its caller, who serves as well.
    async fn back(&self, text: String, cx: &CallContext) -> Result<String, String>;
}

pub(crate) struct Talker {
    pub(crate) held: Arc<AtomicUsize>,
}

/// Something that does not travel, and is counted.
pub(crate) struct Held(Arc<AtomicUsize>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Talker {
    fn hold(&self) -> Held {
        self.held.fetch_add(1, Ordering::SeqCst);
        Held(self.held.clone())
    }
}

impl Talk for Talker {
    async fn echo(&self, text: String) -> String {
        text
    }

    async fn bounce(&self, tensor: Tensor) -> Result<Tensor, String> {
        let _held = self.hold();
        tokio::task::yield_now().await;
        match tensor.byte_len() % 2 {
            0 => Ok(tensor),
            _ => Err("an odd one".to_owned()),
        }
    }

    async fn never(&self) {
        let _held = self.hold();
        std::future::pending().await
    }

    async fn sum(&self, mut numbers: Streaming<u32>) -> u64 {
        let _held = self.hold();
        let mut sum = 0;
        while let Some(Ok(number)) = numbers.next().await {
            sum += u64::from(number);
        }
        sum
    }

    async fn first(&self, mut tensors: Streaming<Tensor>) -> u64 {
        let _held = self.hold();
        let first = tensors.next().await;
        drop(tensors);
        tokio::task::yield_now().await;
        first.map_or(0, |first| first.map_or(1, |first| first.byte_len() as u64))
    }

    fn count(&self, to: u8) -> impl Stream<Item = u32> {
        let held = self.hold();
        stream::iter(0..u32::from(to)).inspect(move |_| {
            let _held = &held;
        })
    }

    fn forever(&self, bytes: u16) -> impl Stream<Item = Tensor> {
        let held = self.hold();
        let tensor = Tensor::from(vec![7u8; usize::from(bytes)]);
        stream::repeat_with(move || {
            let _held = &held;
            tensor.clone()
        })
    }

    fn pass(&self, tensors: Streaming<Tensor>) -> impl Stream<Item = Result<Tensor, String>> {
        let held = self.hold();
        tensors.map(move |tensor| {
            let _held = &held;
            tensor.map_err(|error| error.to_string())
        })
    }

    async fn keep(&self, tensor: Tensor) -> Remote<Tensor> {
        Remote::new(tensor)
    }

    async fn several(&self, many: u8) -> Vec<Remote<Held>> {
        (0..many)
            .map(|_| Remote::unfetchable(self.hold()))
            .collect()
    }

    async fn add(
        &self,
        left: Remote<Tensor>,
        right: Remote<Tensor>,
    ) -> Result<Remote<Tensor>, String> {
        let _held = self.hold();
        let left = left.local_value().map_err(|error| error.to_string())?;
        let right = right.local_value().map_err(|error| error.to_string())?;
        let bytes = left.byte_len() + right.byte_len();
        Ok(Remote::new(Tensor::from(vec![1u8; bytes.min(1 << 16)])))
    }

    async fn rows(&self, x: Tensor) -> Result<Tensor, String> {
        let _held = self.hold();
        tokio::task::yield_now().await;
        Ok(x)
    }

    async fn back(&self, text: String, cx: &CallContext) -> Result<String, String> {
        let _held = self.hold();
        let connection = cx.connection().ok_or("the caller is gone")?;
        let client = TalkClient::on(&connection).await;
        let client = client.map_err(|error| error.to_string())?;
        client.echo(text).await.map_err(|error| error.to_string())
    }
}
