//! The channel's end on one pipe: the control frames about each tensor, and when connections are opened.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::arriving::Arriving;
use super::connection::run;
use super::frame::ControlMessage;
use super::stripes::{ConnectionState, Stripes};
use super::{
    Buffer, ChannelFault, ConnectionSource, Expected, JoinToken, Lane, LaneIo, Link, OpId, Want,
};
use crate::device::{Destination, Pool};
use crate::error::Misuse;
use crate::sync::AtomicU64;

/// How long tensors wait for a connection, before they travel on the pipe's own.
pub(super) const OPEN_WITHIN: Duration = Duration::from_secs(15);

pub(super) struct MptLane {
    pool: Pool,
    stripes: Arc<Stripes>,
    further: ConnectionSource,
    connections: u8,
    /// The tokens that this end has given out.
    tokens: Option<Vec<JoinToken>>,
    /// Whether this end has begun to join.
    has_joined: bool,
    /// The lane's tasks end when this is dropped.
    over: watch::Sender<()>,
}

impl MptLane {
    pub(super) fn new(link: Link, connections: u8, sent: Arc<Vec<AtomicU64>>) -> Self {
        Self {
            pool: link.pool,
            stripes: Arc::new(Stripes::new(link.handle, link.degraded, sent)),
            further: link.further,
            connections,
            tokens: None,
            has_joined: false,
            over: watch::Sender::new(()),
        }
    }

    /// Tokens for the peer to join with; none if it has joined or cannot come.
    fn offer(&mut self, io: &LaneIo<'_>) -> Vec<JoinToken> {
        let ConnectionSource::Expects(expect) = &self.further else {
            return Vec::new();
        };
        match self.stripes.state().connection_state {
            ConnectionState::Unused | ConnectionState::Opening => {}
            ConnectionState::Open | ConnectionState::Closed => return Vec::new(),
        }
        // Every tensor carries the same tokens until the peer joins: any of these frames may belong to a tensor that is given up.
        if let Some(tokens) = &self.tokens {
            return tokens.clone();
        }
        let expected: Vec<_> = (0..self.connections).map_while(|_| expect()).collect();
        if !expected.is_empty() {
            self.begin_opening(expected.len(), io);
        }
        let mut tokens = Vec::with_capacity(expected.len());
        for (number, Expected { token, connection }) in expected.into_iter().enumerate() {
            tokens.push(token);
            self.spawn_for(io, move |stripes, over| async move {
                // The peer may never join. Nothing reports that.
                match connection.await {
                    Ok(connection) => run(connection, number, stripes, over).await,
                    Err(_) => stripes.not_joined(),
                }
            });
        }
        self.tokens.insert(tokens).clone()
    }

    /// Joins with the first tokens that the peer sent; later ones are ignored.
    fn join(&mut self, tokens: Vec<JoinToken>, io: &LaneIo<'_>) -> Result<(), ChannelFault> {
        let ConnectionSource::Joins(join) = self.further.clone() else {
            return Err(ChannelFault(
                "tokens from the end that has connected".to_owned(),
            ));
        };
        if std::mem::replace(&mut self.has_joined, true) {
            return Ok(());
        }
        // This end, not the peer, bounds how many connections it makes.
        let tokens = tokens.into_iter().take(usize::from(self.connections));
        self.begin_opening(tokens.len(), io);
        for (number, token) in tokens.enumerate() {
            let joining = join(token);
            self.spawn_for(io, move |stripes, over| async move {
                match joining.await {
                    Ok(connection) => run(connection, number, stripes, over).await,
                    Err(error) => {
                        tracing::warn!(%error, "channel mpt has a connection less");
                        stripes.not_joined();
                    }
                }
            });
        }
        Ok(())
    }

    fn begin_opening(&self, connections: usize, io: &LaneIo<'_>) {
        {
            let mut state = self.stripes.state();
            state.connection_state = ConnectionState::Opening;
            state.coming = connections;
        }
        self.spawn_for(io, |stripes, _| async move {
            tokio::time::sleep(OPEN_WITHIN).await;
            stripes.give_up();
        });
    }

    /// Runs `work` until it ends or the lane is dropped.
    fn spawn_for<W: Future<Output = ()> + Send + 'static>(
        &self,
        io: &LaneIo<'_>,
        work: impl FnOnce(Arc<Stripes>, watch::Receiver<()>) -> W + Send + 'static,
    ) {
        let stripes = self.stripes.clone();
        let mut over = self.over.subscribe();
        let work = work(stripes, self.over.subscribe());
        io.spawn(async move {
            tokio::select! {
                biased;
                _ = over.changed() => {}
                () = work => {}
            }
        });
    }

    /// The reader of `op` has memory for it.
    fn go(&self, op: OpId, io: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        let mut state = self.stripes.state();
        state.sending.go(op)?;
        match state.connection_state {
            ConnectionState::Opening => {}
            ConnectionState::Open => {
                state.sending.stripe();
                drop(state);
                self.stripes.work.notify_waiters();
            }
            // The peer has no connections either.
            ConnectionState::Unused | ConnectionState::Closed => {
                let says = state.fall_back_to_pipe("the peer has no connections to go over");
                drop(state);
                say(says, io);
            }
        }
        Ok(())
    }

    fn expect(&mut self, op: OpId, dest: Destination, io: &mut LaneIo<'_>) {
        let arriving = Arc::new(Arriving::new(dest, self.pool.clone()));
        let is_closed = {
            let mut state = self.stripes.state();
            state.arriving.insert(op, arriving);
            state.connection_state == ConnectionState::Closed
        };
        let tokens = self.offer(io);
        io.control(op, ControlMessage::Go(tokens).encode());
        if is_closed {
            io.control(op, ControlMessage::CannotJoin.encode());
        }
    }
}

fn say(says: Vec<(OpId, ControlMessage)>, io: &mut LaneIo<'_>) {
    for (op, say) in says {
        io.control(op, say.encode());
    }
}

impl Lane for MptLane {
    fn send(&mut self, op: OpId, source: Buffer, io: &mut LaneIo<'_>) {
        self.stripes.state().sending.hold(op, source);
        let tokens = self.offer(io);
        if !tokens.is_empty() {
            io.control(op, ControlMessage::Tokens(tokens).encode());
        }
    }

    fn recv(&mut self, op: OpId, want: Want, io: &mut LaneIo<'_>) {
        let dest = match want {
            Want::Into(dest) if !dest.device().is_cpu() => {
                Err(Misuse::NotOnCpu(dest.device()).into())
            }
            Want::Into(dest) => Ok(dest.into()),
            Want::Adopt { len, .. } => io.reserve(op, len),
        };
        match dest {
            Ok(dest) => self.expect(op, dest, io),
            Err(error) => io.failed(op, error),
        }
    }

    fn control(&mut self, op: OpId, body: &[u8], io: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        let what = ControlMessage::decode(body)?;
        let by_writer = matches!(what, ControlMessage::Tokens(_) | ControlMessage::NotStriped);
        if by_writer == op.outgoing {
            return Err(ChannelFault(format!("{what:?} from the wrong end")));
        }
        match what {
            ControlMessage::Go(tokens) => {
                if !tokens.is_empty() {
                    self.join(tokens, io)?;
                }
                self.go(op, io)?;
            }
            // An end that cannot join says so once it expects the tensor.
            ControlMessage::Tokens(tokens) => self.join(tokens, io)?,
            ControlMessage::CannotJoin => {
                let reason = "the peer could make no connections";
                let says = self.stripes.state().give_up(reason);
                say(says, io);
            }
            ControlMessage::NotStriped => {
                let arriving = self.stripes.state().arriving.remove(&op);
                if let Some(arriving) = arriving
                    && let Some(dest) = arriving.take_untouched()?
                {
                    io.expect_in(op, dest);
                    io.control(op, ControlMessage::Stream.encode());
                }
            }
            ControlMessage::Stream => {
                let source = self.stripes.state().sending.stream(op)?;
                if let Some(source) = source {
                    let why = "there are no connections of its own";
                    if io.divert(op, "basic", source.len() as u64, why) {
                        io.stream(op, source);
                    }
                }
            }
            ControlMessage::Done => {
                if self.stripes.state().sending.done(op)? {
                    io.sent(op);
                }
            }
        }
        Ok(())
    }

    fn cancel(&mut self, op: OpId, _: &mut LaneIo<'_>) {
        let mut state = self.stripes.state();
        state.sending.cancel(op);
        let arriving = state.arriving.remove(&op);
        drop(state);
        if let Some(arriving) = arriving {
            arriving.let_go();
        }
    }
}

impl Drop for MptLane {
    fn drop(&mut self) {
        self.stripes.state().clear();
    }
}
