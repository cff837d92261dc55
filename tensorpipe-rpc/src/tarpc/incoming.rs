//! The pipes of a listener as a stream of transports.

use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::Stream;
use futures_util::stream::unfold;
use tensorpipe::{Error, Listener, Pipe};

use super::transport::{PipeTransport, transport};
use super::wire::TarpcMessage;

/// Makes a listener a stream of transports, one for each accepted pipe: for `BaseChannel`, and for tarpc's combinators on many
/// channels.
///
/// [`Limits::pipes`](tensorpipe::Limits::pipes) of the listener's context bounds how many pipes there are at once, accepted or
/// waiting. A failed handshake is logged and yields no item. The last item is the error that the listener's context was closed.
pub fn incoming<Item, SinkItem>(listener: Listener) -> Incoming<Item, SinkItem>
where
    Item: TarpcMessage,
    SinkItem: TarpcMessage,
{
    let listener = Arc::new(listener);
    let accepting = unfold(Some(listener.clone()), |listener| async move {
        let listener = listener?;
        let accepted = listener.accept().await;
        let goes_on = accepted.is_ok();
        Some((accepted, goes_on.then_some(listener)))
    });
    Incoming {
        listener,
        pipes: Box::pin(accepting),
        items: PhantomData,
    }
}

/// A stream of [`PipeTransport`]s: see [`incoming`].
pub struct Incoming<Item, SinkItem> {
    listener: Arc<Listener>,
    pipes: Pin<Box<dyn Stream<Item = Result<Pipe, Error>> + Send + Sync>>,
    items: PhantomData<fn(SinkItem) -> Item>,
}

impl<Item, SinkItem> Incoming<Item, SinkItem> {
    /// The listener, for its URLs.
    pub fn listener(&self) -> &Listener {
        &self.listener
    }
}

impl<Item, SinkItem> fmt::Debug for Incoming<Item, SinkItem> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming")
            .field("listener", &self.listener)
            .finish_non_exhaustive()
    }
}

impl<Item: TarpcMessage, SinkItem: TarpcMessage> Stream for Incoming<Item, SinkItem> {
    type Item = Result<PipeTransport<Item, SinkItem>, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let accepted = self.pipes.as_mut().poll_next(cx);
        accepted.map(|accepted| accepted.map(|pipe| pipe.map(transport)))
    }
}
