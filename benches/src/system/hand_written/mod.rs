//! The strongest honest hand-written competitor: one stream, frames with a length, buffers that are reused.
//!
//! Calls go one after another ([`in_turns`]), or 64 at a time ([`pipelined`]).

mod frame;
mod in_turns;
mod pipelined;

use anyhow::Result;

use self::in_turns::InTurns;
use self::pipelined::Pipelined;
use super::socket::{Listener, Socket};
use crate::plan::{Case, Plan, Transport};
use crate::system::{Client, Kind, Ready, Route, System, Trip};

/// The system `tokio`.
pub(crate) struct Tokio;

impl System for Tokio {
    type Client = Caller;

    const NAME: &'static str = "tokio";
    const ABOUT: &'static str = "hand-written frames with a length over a stream of tokio's, reused buffers on both sides, in a pipeline one \
         write for all that a read brought";
    const KIND: Kind = Kind::Baseline;
    const CASES: &'static [Case] = Case::CALLS;
    const TRANSPORTS: &'static [Transport] = &[Transport::Tcp, Transport::Unix];

    async fn serve(plan: Plan, ready: Ready) -> Result<()> {
        let (listener, address) = Listener::bind(plan.transport).await?;
        ready.announce(address);
        let len = plan.len()?;
        loop {
            let stream = listener.accept().await?;
            stream.enlarge()?;
            tokio::spawn(async move {
                let answered = match plan.case {
                    Case::Pipeline => pipelined::answer(stream, len, plan.sum).await,
                    _ => in_turns::answer(stream, len, plan.sum).await,
                };
                if let Err(error) = answered {
                    eprintln!("tp-bench: tokio's server: {error:#}");
                }
            });
        }
    }

    async fn connect(plan: Plan, address: String) -> Result<Caller> {
        let stream = Socket::connect(plan.transport, &address).await?;
        stream.enlarge()?;
        Ok(match plan.case {
            Case::Pipeline => Caller::Pipelined(Pipelined::new(stream, &plan)?),
            _ => Caller::InTurns(InTurns::new(stream, &plan)?),
        })
    }
}

/// The client's side of one connection.
pub(crate) enum Caller {
    InTurns(InTurns),
    Pipelined(Pipelined),
}

impl Client for Caller {
    async fn prepare(&mut self, round: u64) -> Result<()> {
        match self {
            Self::InTurns(client) => client.prepare(round).await,
            Self::Pipelined(client) => client.prepare(round).await,
        }
    }

    async fn touch(&mut self, trip: Trip) -> Result<()> {
        match self {
            Self::InTurns(client) => client.touch(trip).await,
            Self::Pipelined(client) => client.touch(trip).await,
        }
    }

    async fn round(&mut self) -> Result<()> {
        match self {
            Self::InTurns(client) => client.round().await,
            Self::Pipelined(client) => client.round().await,
        }
    }

    async fn check(&mut self, round: u64) -> Result<()> {
        match self {
            Self::InTurns(client) => client.check(round).await,
            Self::Pipelined(client) => client.check(round).await,
        }
    }

    fn calls_per_round(&self) -> u64 {
        match self {
            Self::InTurns(client) => client.calls_per_round(),
            Self::Pipelined(client) => client.calls_per_round(),
        }
    }

    fn route(&self) -> Route {
        match self {
            Self::InTurns(client) => client.route(),
            Self::Pipelined(client) => client.route(),
        }
    }
}

const GONE: &str = "the server ended the connection";
