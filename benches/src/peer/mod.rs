//! The second process: this binary again, with a hidden command: `serve`, or `soak-peer` for a soak.
//!
//! ```text
//! parent                                      child
//!   plan or orders, a line of JSON  ->  stdin
//!                                stdout  ->    {"ready":"127.0.0.1:4711"} or {"failed":"why"}
//!   ... the measurement, over what the system uses ...
//!   closes stdin                    ->         ends itself
//! ```
//! The child ends when its stdin does, whatever else it is doing: so it never outlives its parent, however that
//! ends. The parent waits a bounded time for each step and kills a child that does not end.

mod process;
mod serve;

pub(crate) use process::Peer;
pub(crate) use serve::{greet, orders, serve};

use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

use crate::plan::Plan;
use crate::system::{Ready, by_name};

/// The child's one line.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Greeting {
    /// It accepts at this address.
    Ready(String),
    /// It does not, and why.
    Failed(String),
}

/// How long a new server may take until it accepts, and either process for its line.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// A running server: of a process of its own, or of this one for transports that do not leave it.
#[derive(Debug)]
pub(crate) enum Server {
    Process(Peer),
    Here(String),
}

impl Server {
    /// Starts the server that `plan` asks for; returns when it accepts.
    pub(crate) fn start(plan: &Plan, runtime: &Runtime) -> Result<Self> {
        if plan.in_process() {
            let address = runtime.block_on(here(plan.clone()))?;
            return Ok(Self::Here(address));
        }
        Ok(Self::Process(Peer::start("serve", plan)?))
    }

    pub(crate) fn address(&self) -> &str {
        match self {
            Self::Process(peer) => peer.address(),
            Self::Here(address) => address,
        }
    }

    /// The server's process.
    pub(crate) fn process_id(&self) -> u32 {
        match self {
            Self::Process(peer) => peer.id(),
            Self::Here(_) => std::process::id(),
        }
    }
}

/// Spawns the server on this runtime. It ends with it.
async fn here(plan: Plan) -> Result<String> {
    let system = by_name(&plan.system)?;
    let (ready, address) = Ready::new();
    let serving = tokio::spawn(system.serve(plan, ready));
    match tokio::time::timeout(HANDSHAKE, address).await? {
        Ok(address) => Ok(address),
        // It ended before it announced itself: its error says why.
        Err(_) => Err(match serving.await? {
            Err(error) => error,
            Ok(()) => anyhow::anyhow!("the server ended at once"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_are_what_the_drawing_says() -> Result<()> {
        let ready = Greeting::Ready("127.0.0.1:4711".to_owned());
        assert_eq!(
            serde_json::to_string(&ready)?,
            r#"{"ready":"127.0.0.1:4711"}"#
        );
        assert_eq!(
            serde_json::from_str::<Greeting>(r#"{"failed":"why"}"#)?,
            Greeting::Failed("why".to_owned())
        );
        Ok(())
    }
}
