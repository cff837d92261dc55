//! One row's plan: what to measure and how. It travels to the second process as one line of JSON.

use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Everything that both processes must agree on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// Name of the system, as in [`crate::system::ALL`].
    pub(crate) system: String,
    pub(crate) case: Case,
    pub(crate) transport: Transport,
    /// The channel asked for; `None` leaves it to the negotiation.
    pub(crate) channel: Option<String>,
    /// Connections of channel `mpt`; `None` leaves it to the channel.
    #[serde(default)]
    pub(crate) lanes: Option<u8>,
    /// At most so many bytes a second leave by each socket.
    #[serde(default)]
    pub(crate) pace: Option<u64>,
    pub(crate) alloc: Alloc,
    pub(crate) runtime: Flavor,
    /// Bytes of a round's tensor.
    pub(crate) bytes: u64,
    /// Wall-clock length of the measurement, warm-up not counted.
    pub(crate) seconds: f64,
    /// The server's runtime also computes for so many microseconds at a time, again and again.
    #[serde(default)]
    pub(crate) busy_us: u64,
    /// Whoever receives a tensor reads all of it, within the timed part.
    #[serde(default)]
    pub(crate) sum: bool,
    /// In which state both ends begin a round, unless the case says so itself.
    #[serde(default)]
    pub(crate) begin: Begin,
    /// Core of the measuring process and core of the server, when pinned.
    pub(crate) cores: Option<(usize, usize)>,
}

impl Plan {
    /// Length of the measurement.
    pub(crate) fn duration(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// Bytes of a round's tensor, as a length in memory.
    ///
    /// # Errors
    /// When this machine cannot address as much.
    pub(crate) fn len(&self) -> Result<usize> {
        usize::try_from(self.bytes).context("the size does not fit into this machine's memory")
    }

    /// Whether client and server live in one process.
    pub(crate) fn in_process(&self) -> bool {
        self.transport == Transport::Memory
    }

    /// Whether tensors are lent: they stay where they are.
    pub(crate) fn is_leased(&self) -> bool {
        self.alloc == Alloc::Pool && self.channel.as_deref() == Some("lease")
    }

    /// In which state both ends begin a round.
    pub(crate) fn begin(&self) -> Begin {
        match self.case {
            Case::Paced => Begin::Asleep,
            // Its first calls wake everybody for the others.
            Case::Pipeline | Case::Stream => Begin::AsTheyAre,
            Case::Echo
            | Case::Upload
            | Case::Download
            | Case::Exchange
            | Case::Mutate
            | Case::Keep => self.begin,
        }
    }
}

/// What a round does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Case {
    /// A call that gets its bytes back.
    Echo,
    /// The same with a pause of 1 ms before each call: everybody has fallen asleep.
    Paced,
    /// A call that carries the bytes to the server, which acknowledges them.
    Upload,
    /// A call whose answer carries bytes that lie ready at the server.
    Download,
    /// Many small calls, 64 of them under way at any time; of more than 4 MiB as many as are 256 MiB together.
    Pipeline,
    /// A call that answers with a stream: each item carries bytes that lie ready at the server.
    Stream,
    /// A call that carries the bytes to the server, which answers with as many of its own memory.
    Exchange,
    /// A call of which the server changes every byte and gives them back.
    Mutate,
    /// An upload after which the server keeps the last 256, of at most 1 GiB together.
    Keep,
}

/// Calls under way at any time in [`Case::Pipeline`].
pub(crate) const IN_FLIGHT: usize = 64;
/// Calls of one round of [`Case::Pipeline`], unless they would be more bytes than [`PIPELINED_BYTES`]: all answers of a
/// round are kept until they are checked.
const PIPELINED: u64 = 1024;
const PIPELINED_BYTES: u64 = 256 << 20;

/// Calls of one round of [`Case::Pipeline`], of so many bytes each.
pub(crate) fn pipelined(bytes: u64) -> u64 {
    (PIPELINED_BYTES / bytes.max(1)).clamp(8, PIPELINED)
}

/// Items of one round of [`Case::Stream`], unless they would be more bytes than [`STREAMED_BYTES`].
const STREAMED: u64 = 16384;
const STREAMED_BYTES: u64 = 64 << 20;

/// Items of one round of [`Case::Stream`], of so many bytes each.
pub(crate) fn streamed(bytes: u64) -> u64 {
    (STREAMED_BYTES / bytes.max(1)).clamp(8, STREAMED)
}

impl Case {
    /// What calls that carry their bytes at once can do.
    pub(crate) const CALLS: &'static [Self] = &[
        Self::Echo,
        Self::Paced,
        Self::Upload,
        Self::Download,
        Self::Pipeline,
    ];

    /// Calls, or items, of one round.
    pub(crate) fn calls_per_round(self, bytes: u64) -> u64 {
        match self {
            Self::Pipeline => pipelined(bytes),
            Self::Stream => streamed(bytes),
            _ => 1,
        }
    }

    /// The name in tables and in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Echo => "echo",
            Self::Paced => "paced",
            Self::Upload => "upload",
            Self::Download => "download",
            Self::Pipeline => "pipeline",
            Self::Stream => "stream",
            Self::Exchange => "exchange",
            Self::Mutate => "mutate",
            Self::Keep => "keep",
        }
    }
}

/// In which state both ends begin a timed round, once its tensor lies written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Begin {
    /// As writing the tensor has left them: a large one takes so long that everybody has fallen asleep.
    #[default]
    AsTheyAre,
    /// Awake: calls without a tensor have just gone there and back, untimed.
    Awake,
    /// The same, and the trips carried a small leased tensor: what its way takes is in the caches, which writing a large one
    /// has emptied.
    Hot,
    /// Asleep: everybody was left alone for 1 ms.
    Asleep,
}

/// What carries the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Transport {
    /// TCP over the loopback, two processes.
    Tcp,
    /// A Unix socket, two processes. Peers only: ours have shared memory there.
    Unix,
    /// Shared memory, two processes.
    Shm,
    /// Client and server in one process, on one runtime.
    Memory,
}

impl Transport {
    /// The name in tables and in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Unix => "unix",
            Self::Shm => "shm",
            Self::Memory => "memory",
        }
    }
}

/// Where a sender's tensor lies. The baselines always use their own buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Alloc {
    /// Ordinary memory of the program.
    Heap,
    /// The context's pool.
    Pool,
}

impl Alloc {
    /// The name in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Heap => "heap",
            Self::Pool => "pool",
        }
    }
}

/// The kind of tokio runtime on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Flavor {
    /// `current_thread`.
    Current,
    /// `multi_thread`, one worker per core that the process may use.
    Multi,
}

impl Flavor {
    /// Builds the runtime. Its threads inherit the core that the caller is pinned to.
    pub(crate) fn build(self) -> Result<tokio::runtime::Runtime> {
        let mut builder = match self {
            Self::Current => tokio::runtime::Builder::new_current_thread(),
            Self::Multi => tokio::runtime::Builder::new_multi_thread(),
        };
        builder
            .enable_all()
            .build()
            .context("tokio could not start a runtime")
    }

    /// The name in the table's head.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Current => "current_thread",
            Self::Multi => "multi_thread",
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A plan for tests: a short echo of 64 bytes.
    pub(crate) fn plan(system: &str, case: Case, bytes: u64) -> Plan {
        Plan {
            system: system.to_owned(),
            case,
            transport: Transport::Tcp,
            channel: None,
            alloc: Alloc::Heap,
            runtime: Flavor::Current,
            lanes: None,
            pace: None,
            bytes,
            seconds: 0.05,
            busy_us: 0,
            sum: false,
            begin: Begin::AsTheyAre,
            cores: None,
        }
    }

    #[test]
    fn a_round_of_many_large_calls_fits_in_memory() {
        let calls = |bytes| Case::Pipeline.calls_per_round(bytes);
        assert_eq!([calls(0), calls(4096), calls(256 << 10)], [PIPELINED; 3]);
        assert_eq!(calls(16 << 20), 16);
        assert_eq!(calls(1 << 40), 8);
    }

    #[test]
    fn a_plan_travels_as_one_line() -> Result<()> {
        let mut sent = plan("tokio", Case::Upload, 1 << 40);
        sent.channel = Some("mpt".to_owned());
        sent.lanes = Some(2);
        sent.pace = Some(1 << 20);
        sent.begin = Begin::Awake;
        sent.cores = Some((0, 1));
        let line = serde_json::to_string(&sent)?;
        assert!(!line.contains('\n'));
        assert_eq!(serde_json::from_str::<Plan>(&line)?, sent);
        Ok(())
    }

    #[test]
    fn some_cases_say_themselves_how_they_begin() {
        for (case, expected) in [
            (Case::Echo, Begin::Awake),
            (Case::Upload, Begin::Awake),
            (Case::Paced, Begin::Asleep),
            (Case::Pipeline, Begin::AsTheyAre),
        ] {
            let mut plan = plan("rpc", case, 8);
            plan.begin = Begin::Awake;
            assert_eq!(plan.begin(), expected, "{case:?}");
        }
    }

    #[test]
    fn names_are_those_of_the_command_line_and_of_json() -> Result<()> {
        for case in Case::value_variants() {
            assert_eq!(serde_json::to_value(case)?, case.name());
            assert_eq!(Case::from_str(case.name(), false), Ok(*case));
        }
        for transport in Transport::value_variants() {
            assert_eq!(serde_json::to_value(transport)?, transport.name());
            assert_eq!(Transport::from_str(transport.name(), false), Ok(*transport));
        }
        for alloc in Alloc::value_variants() {
            assert_eq!(serde_json::to_value(alloc)?, alloc.name());
            assert_eq!(Alloc::from_str(alloc.name(), false), Ok(*alloc));
        }
        Ok(())
    }
}
