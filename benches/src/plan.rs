//! One row's plan: what to measure and how. It travels to the second process as one line of JSON.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use tokio::runtime::{self, Runtime};

use crate::host::{self, Cores};
use crate::size::Size;

/// Everything that both processes must agree on.
#[derive(Clone, Debug, Serialize, Deserialize)]
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
    /// At most this many bytes a second leave through each socket.
    #[serde(default)]
    pub(crate) pace: Option<u64>,
    pub(crate) alloc: Alloc,
    pub(crate) runtime: Flavor,
    /// Bytes of a round's tensor.
    pub(crate) bytes: u64,
    /// Wall-clock length of the measurement, warm-up not counted.
    pub(crate) seconds: f64,
    /// The server's runtime also computes for this many microseconds at a time, again and again.
    #[serde(default)]
    pub(crate) busy_us: u64,
    /// Threads of either runtime compute for this many microseconds whenever they wake up.
    #[serde(default)]
    pub(crate) wake_us: u64,
    /// Microseconds of rest before a call of `paced`.
    #[serde(default)]
    pub(crate) pause_us: u64,
    /// Microseconds of one run of the model in `batch`.
    #[serde(default)]
    pub(crate) cost_us: u64,
    /// The receiver of a tensor reads all of it, within the timed part.
    #[serde(default)]
    pub(crate) sum: bool,
    /// State of both ends at the begin of a round, unless the case sets it.
    #[serde(default)]
    pub(crate) begin: Begin,
    /// Core of the measuring process and core of the server, when pinned.
    pub(crate) cores: Option<Cores>,
    /// Certificate of a server over tls. [`over`](Self::over) makes it.
    #[serde(default)]
    pub(crate) own: Option<Own>,
}

/// A self-signed certificate and its key, as PEM.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Own {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Own {
    /// The certificate for all plans of this process.
    fn here() -> Result<Self> {
        static OWN: OnceLock<Result<Own, String>> = OnceLock::new();
        let make = || {
            let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]);
            let made = made.map_err(|error| error.to_string())?;
            Ok(Self {
                certificate: made.cert.pem(),
                key: made.signing_key.serialize_pem(),
            })
        };
        let made = OWN.get_or_init(make).clone();
        made.map_err(|error| anyhow!("there is no certificate for tls: {error}"))
    }
}

impl Plan {
    /// An empty echo over tcp, with every option at its default.
    pub(crate) fn new(runtime: Flavor, seconds: f64) -> Self {
        Self {
            system: String::new(),
            case: Case::Echo,
            transport: Transport::Tcp,
            channel: None,
            lanes: None,
            pace: None,
            alloc: Alloc::Heap,
            runtime,
            bytes: 0,
            seconds,
            busy_us: 0,
            wake_us: 0,
            pause_us: PAUSE_US,
            cost_us: 0,
            sum: false,
            begin: Begin::AsTheyAre,
            cores: None,
            own: None,
        }
    }

    /// The same plan over `transport`. For tls, both ends get the certificate.
    pub(crate) fn over(self, transport: Transport) -> Result<Self> {
        let own = match transport {
            Transport::Tls => Some(Own::here()?),
            _ => None,
        };
        Ok(Self {
            transport,
            own,
            ..self
        })
    }

    pub(crate) fn duration(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    pub(crate) fn len(&self) -> Result<usize> {
        Size(self.bytes).len()
    }

    /// Builds the plan's runtime. With `wake_us`, its threads take longer to wake up.
    pub(crate) fn build_runtime(&self) -> Result<Runtime> {
        self.runtime.waking(Duration::from_micros(self.wake_us))
    }

    /// Whether client and server live in one process.
    pub(crate) fn in_process(&self) -> bool {
        self.transport == Transport::Memory
    }

    /// Whether tensors are lent, so that the receiver reads them in place.
    pub(crate) fn is_leased(&self) -> bool {
        self.alloc == Alloc::Pool && self.channel.as_deref() == Some("lease")
    }

    /// In which state both ends begin a round.
    pub(crate) fn begin(&self) -> Begin {
        match self.case {
            Case::Paced => Begin::Asleep(self.pause_us),
            // The first calls of such a round wake both ends for the others.
            Case::Pipeline | Case::Stream => Begin::AsTheyAre,
            _ => self.begin,
        }
    }
}

/// Options of every measurement of systems.
#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    /// Sizes of the tensor, for example 0,4KiB,1MiB; without it a choice that suits the case.
    #[arg(long, value_delimiter = ',')]
    pub(crate) size: Vec<Size>,
    /// Length of each measurement in seconds, after a warm-up.
    #[arg(long, default_value_t = 2.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// What carries the bytes, where a system's name does not say it. Without it compare, idle, rendezvous and chain have
    /// a choice of several, and every other command tcp.
    #[arg(long, value_enum)]
    pub(crate) transport: Option<Transport>,
    /// The channel for tensors, for systems that have channels: xth, lease, cma, mpt, basic, ring (basic over shm), or
    /// default, with which a context chooses. Without it basic over tcp, which stands for a network, else default.
    #[arg(long)]
    pub(crate) channel: Option<String>,
    /// Connections that channel mpt has for a tensor; without it as many as it takes by itself.
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) lanes: Option<u8>,
    /// At most so many bytes a second leave by each socket (SO_MAX_PACING_RATE), for example 50MiB; ours over tcp.
    #[arg(long, value_parser = pace)]
    pub(crate) pace: Option<Size>,
    /// Where the sender's tensor lies, for systems that have pools.
    #[arg(long, value_enum, default_value_t = Alloc::Heap)]
    pub(crate) alloc: Alloc,
    /// The kind of tokio runtime on both sides.
    #[arg(long, value_enum, default_value_t = Flavor::Current)]
    pub(crate) runtime: Flavor,
    /// Which rounds begin with both ends awake: once the tensor is written, calls without one go there and back, untimed,
    /// until they are short.
    #[arg(long, value_enum, default_value_t = Warm::Leased)]
    pub(crate) warm: Warm,
    /// The server's runtime has something else to do, too: it computes for so many microseconds at a time, again and again.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    pub(crate) busy_us: u64,
    /// Every thread of both runtimes takes so many microseconds longer to wake up, as on cores that sleep deeply.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    pub(crate) wake_us: u64,
    /// How long both ends rest before each call of case paced, in microseconds.
    #[arg(long, default_value_t = PAUSE_US, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) pause_us: u64,
    /// Measure once more with every byte of a tensor read by whoever receives it.
    #[arg(long)]
    pub(crate) sum: bool,
    /// Measure beside each row what the machine takes for a bare round with the same bytes.
    #[arg(long)]
    pub(crate) limits: bool,
    /// Put each process on a core of its own.
    #[arg(long)]
    pub(crate) pin: bool,
    /// Print one JSON object per line instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

impl Options {
    /// Pins the calling thread when that was asked for, so call it once, before anything else is started.
    pub(crate) fn plan(&self) -> Result<Plan> {
        let cores = self.pin.then(host::pair).transpose()?;
        if let Some((core, _)) = cores {
            host::pin(core)?;
        }
        Ok(Plan {
            transport: self.transport.unwrap_or(Transport::Tcp),
            channel: self.channel.clone(),
            lanes: self.lanes,
            pace: self.pace.map(|pace| pace.0),
            alloc: self.alloc,
            busy_us: self.busy_us,
            wake_us: self.wake_us,
            pause_us: self.pause_us,
            cores,
            ..Plan::new(self.runtime, self.seconds)
        })
    }
}

/// Which rounds begin with both ends awake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Warm {
    /// Those of leased tensors, which take less time than waking somebody.
    Leased,
    /// The same, and the trips carry a small leased tensor: its way is in the caches again, which writing a large one has emptied.
    Hot,
    /// All but those of paced and pipeline.
    Always,
    /// None: they begin as writing the tensor has left both ends.
    Never,
}

impl Warm {
    /// In which state rounds of `plan` begin.
    pub(crate) fn begin(self, plan: &Plan) -> Begin {
        match self {
            Self::Always => Begin::Awake,
            Self::Leased if plan.is_leased() => Begin::Awake,
            Self::Hot if plan.is_leased() => Begin::Hot,
            Self::Leased | Self::Hot | Self::Never => Begin::AsTheyAre,
        }
    }
}

fn pace(text: &str) -> Result<Size, String> {
    match text.parse() {
        Ok(Size(0)) => Err("write more than 0 bytes a second".to_owned()),
        Ok(pace) => Ok(pace),
        Err(error) => Err(error.to_string()),
    }
}

pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.0..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("write a number of seconds from 0 to 3600".to_owned()),
    }
}

/// What a round does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Case {
    /// A call that gets its bytes back.
    Echo,
    /// The same with a pause before each call, of 1 ms unless --pause-us says otherwise: everybody has fallen asleep.
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

impl Case {
    /// The cases of systems whose calls carry their bytes at once.
    pub(crate) const CALLS: &'static [Self] = &[
        Self::Echo,
        Self::Paced,
        Self::Upload,
        Self::Download,
        Self::Pipeline,
    ];

    /// Calls, or items, of one round, each of `bytes` bytes. All answers of a pipeline are kept until they are checked, so
    /// their total size is bounded.
    pub(crate) fn calls_per_round(self, bytes: u64) -> u64 {
        match self {
            Self::Pipeline => ((256 << 20) / bytes.max(1)).clamp(8, 1024),
            Self::Stream => ((64 << 20) / bytes.max(1)).clamp(8, 16384),
            _ => 1,
        }
    }
}

/// Calls under way at any time in [`Case::Pipeline`].
pub(crate) const IN_FLIGHT: usize = 64;

/// In which state both ends begin a timed round, once its tensor lies written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Begin {
    /// As they are after the tensor was written. Writing a large tensor takes so long that both ends fall asleep.
    #[default]
    AsTheyAre,
    /// Awake: calls without a tensor have just gone there and back, untimed.
    Awake,
    /// Like `Awake`, but the trips carried a small leased tensor. This warms the caches of its path, which writing a large
    /// tensor has evicted.
    Hot,
    /// Asleep: nothing happened for so many microseconds.
    Asleep(u64),
}

/// After so long both ends are asleep.
pub(crate) const PAUSE_US: u64 = 1000;

/// What carries the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Transport {
    /// TCP over the loopback, two processes.
    Tcp,
    /// The same encrypted. Ours only.
    Tls,
    /// A Unix socket, two processes. Peers only: ours have shared memory there.
    Unix,
    /// Shared memory, two processes.
    Shm,
    /// Client and server in one process, on one runtime.
    Memory,
}

impl Transport {
    /// What ours run over.
    pub(crate) const OURS: &'static [Self] = &[Self::Tcp, Self::Tls, Self::Shm, Self::Memory];
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
    pub(crate) fn build(self) -> Result<Runtime> {
        self.waking(Duration::ZERO)
    }

    /// Like [`build`](Self::build), but each thread computes for `time` whenever it wakes up.
    fn waking(self, time: Duration) -> Result<Runtime> {
        let mut builder = match self {
            Self::Current => runtime::Builder::new_current_thread(),
            Self::Multi => runtime::Builder::new_multi_thread(),
        };
        if !time.is_zero() {
            builder.on_thread_unpark(move || spin(time));
        }
        let built = builder.enable_all().build();
        built.context("tokio could not start a runtime")
    }

    /// The name in the table's head.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Current => "current_thread",
            Self::Multi => "multi_thread",
        }
    }
}

/// Computes for `time`.
pub(crate) fn spin(time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// A value's name on the command line, which is its name in JSON, too.
pub(crate) fn name(value: impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}
