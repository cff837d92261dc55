//! The settings of a context. Every one has a default that works; settings that make no sense are reported before there is a context.

use std::sync::Arc;

use super::{Context, Inner};
use crate::channels::{self, Channel};
use crate::config::{ConnectPolicy, Limits, Timeouts};
#[cfg(feature = "cuda")]
use crate::device::cuda::{CudaDevices, Unavailable};
use crate::device::{Allocator, Allocators, DeviceKind, Pool};
use crate::error::Misuse;
use crate::keys::{Nonce, Secret, Tokens};
use crate::pipe::{Budget, CreditAhead};
use crate::process::random_nonce;
use crate::route::{Refusal, Requirement, Threshold};
use crate::sync::{AtomicBool, Mutex};
use crate::sys::fork::Owner;
use crate::transports::{self, Transport};

/// Makes a [`Context`]. Every setting has a default that works.
#[derive(Default)]
pub struct ContextBuilder {
    name: Option<String>,
    transports: Option<Vec<Arc<dyn Transport>>>,
    channels: Option<Vec<Arc<dyn Channel>>>,
    /// `Some`: puts the channels of GPUs before the others, for these devices if there are any. `None`: only if the channels are the
    /// defaults.
    #[cfg(feature = "cuda")]
    cuda: Option<Option<CudaDevices>>,
    /// The program has named all channels itself, by `channels`.
    chosen: bool,
    thresholds: Vec<(String, Threshold)>,
    unavailable: Vec<Refusal>,
    required: Vec<Requirement>,
    limits: Limits,
    timeouts: Timeouts,
    connect: ConnectPolicy,
    pool: Option<Pool>,
    allocators: Vec<Arc<dyn Allocator>>,
    tokens: Vec<Result<Secret, Misuse>>,
}

impl std::fmt::Debug for ContextBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ContextBuilder")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl ContextBuilder {
    /// The name under which peers see this context, in errors and logs; at most 256 bytes. Default `PROGRAM:PID`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The transports, most preferred first. Default: `memory`, `shm`, `tcp`.
    pub fn transports(mut self, transports: impl IntoIterator<Item = Arc<dyn Transport>>) -> Self {
        self.transports = Some(transports.into_iter().collect());
        self
    }

    /// Puts a transport before the others, and in the place of the one that has its name: so one of the defaults gets settings
    /// of its own, as by `prefer_transport(ShmTransport::new().any_user())`.
    pub fn prefer_transport(mut self, transport: impl Transport) -> Self {
        let all = self.transports.get_or_insert_with(transports::builtin);
        all.retain(|known| known.name() != transport.name());
        all.insert(0, Arc::new(transport));
        self
    }

    /// The channels, most preferred first. Default: `xth`, `lease`, `cma`, `basic`, and with feature `cuda` those that stage over them for
    /// GPUs of peers.
    pub fn channels(mut self, channels: impl IntoIterator<Item = Arc<dyn Channel>>) -> Self {
        self.channels = Some(channels.into_iter().collect());
        self.chosen = true;
        self
    }

    /// Puts a channel before the others, and in the place of the one that has its name, as by
    /// `prefer_channel(CmaChannel::readable_by_all())`. Channels that [move no bytes](Channel::moves_bytes) still carry what they can,
    /// unless this channel has a [`threshold`](ContextBuilder::threshold) for just [that kind of memory](Threshold::of).
    pub fn prefer_channel(mut self, channel: impl Channel) -> Self {
        let all = self.channels.get_or_insert_with(channels::builtin);
        all.retain(|known| known.name() != channel.name());
        all.insert(0, Arc::new(channel));
        self
    }

    /// Replaces the size from which on `channel` [pays](crate::channels::Pays). Only the sender uses it; the reader knows nothing of it. If
    /// several entries fit, the last one counts. A pipe's [`Route`](crate::Route) shows the result.
    pub fn threshold(mut self, channel: impl Into<String>, threshold: Threshold) -> Self {
        self.thresholds.push((channel.into(), threshold));
        self
    }

    /// Parts that this context sends from or to devices of a kind go over one of these channels, or the write fails with
    /// [`Misuse::NotAsRequired`] before a byte of them moves. It also fails if such a channel finds out only then that the two ends cannot
    /// do better. For main memory this is about parts that go from there to there and are not in the frame. Received parts are their
    /// writer's affair.
    ///
    /// A program whose GPUs share a machine would rather fail than stage through main memory:
    ///
    /// ```
    /// # use tensorpipe::{Context, DeviceKind};
    /// let builder = Context::builder().require(DeviceKind::CUDA, ["cuda_xth", "cuda_ipc"]);
    /// ```
    pub fn require(
        mut self,
        kind: DeviceKind,
        channels: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        let channels = channels.into_iter().map(Into::into).collect();
        self.required.retain(|known| known.kind != kind);
        self.required.push(Requirement { kind, channels });
        self
    }

    /// A secret that both ends of each pipe have to prove that they have. It is never sent; the name is.
    ///
    /// - A listener of this context accepts only connectors that prove one of its tokens, and answers nobody else. Both ends then know the
    ///   other by the token's name ([`Route::identity`](crate::Route::identity)).
    /// - A connector proves the first token, and goes to no listener that does not prove the same.
    /// - To change a secret, give listeners the new one behind the old, under another name; then connectors the new one; then take the
    ///   old one from the listeners. Each step is another context; pipes that are open go on.
    /// - It is the secret of a group: everybody who has it can connect, and can listen in the place of the real listener.
    /// - Each further connection of the pipe proves that it is the pipe's, and so does the process that lends memory or is read.
    ///
    /// Make the secret of at least 16 random bytes: a word can be guessed after a single connection. Over plain `tcp` a token says who
    /// takes part in the handshake, and no more. An attacker who relays it can speak for either end afterwards, and everybody on the way
    /// can read. TLS prevents that.
    ///
    /// ```
    /// # fn main() -> Result<(), tensorpipe::Misuse> {
    /// # let secret = [7; 32];
    /// let context = tensorpipe::Context::builder().token("trainers-2026", secret).build()?;
    /// # Ok(()) }
    /// ```
    pub fn token(mut self, name: impl Into<String>, secret: impl Into<Vec<u8>>) -> Self {
        self.tokens.push(Secret::new(name.into(), secret.into()));
        self
    }

    /// What is received, and how much of it at once.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Bounds on waiting.
    pub fn timeouts(mut self, timeouts: Timeouts) -> Self {
        self.timeouts = timeouts;
        self
    }

    /// How `connect` waits for a listener that is not there yet.
    pub fn connect_policy(mut self, policy: ConnectPolicy) -> Self {
        self.connect = policy;
        self
    }

    /// The pool of memory for received tensors. Default: one of the context's own.
    pub fn pool(mut self, pool: Pool) -> Self {
        self.pool = Some(pool);
        self
    }

    /// Memory of a kind of device, for [`Context::allocator`] and for channels that receive there. Of several for one device the
    /// last one counts.
    pub fn allocator(mut self, allocator: Arc<dyn Allocator>) -> Self {
        self.allocators.push(allocator);
        self
    }

    /// CUDA devices: their memory, and the channels that move it, before the others. Channels that go by way of main memory use those of
    /// `xth`, `lease` and `basic` that this context has, with their settings.
    #[cfg(feature = "cuda")]
    pub fn cuda(mut self, devices: &CudaDevices) -> Self {
        self.cuda = Some(Some(devices.clone()));
        let (missing, reason) = channels::cuda::missing(devices);
        let builder = self.unavailable(missing, reason);
        builder.allocator(Arc::new(devices.clone()))
    }

    /// As `cuda`, for a program that also runs where there are no such devices: then pipes' [routes](crate::Route) say why.
    ///
    /// ```
    /// use tensorpipe::device::cuda::CudaDevices;
    /// # fn main() -> Result<(), tensorpipe::Misuse> {
    /// let cuda = CudaDevices::open();
    /// let context = tensorpipe::Context::builder().try_cuda(&cuda).build()?;
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "cuda")]
    pub fn try_cuda(mut self, devices: &Result<CudaDevices, Unavailable>) -> Self {
        let reason = match devices {
            Ok(devices) => return self.cuda(devices),
            Err(reason) => reason,
        };
        self.cuda.get_or_insert(None);
        let reason: Arc<str> = reason.to_string().into();
        let names = channels::cuda::OF_DEVICES.iter();
        names.fold(self, |builder, name| {
            builder.unavailable(*name, reason.clone())
        })
    }

    /// Why a channel that this context would have is missing: for pipes' [routes](crate::Route). The last of several reasons counts, and
    /// none if the channel is there.
    pub fn unavailable(mut self, channel: impl AsRef<str>, reason: impl Into<Arc<str>>) -> Self {
        let candidate = format!("channel {}", channel.as_ref());
        self.unavailable
            .retain(|known| known.candidate != candidate);
        self.unavailable.push(Refusal {
            candidate,
            reason: reason.into(),
        });
        self
    }

    /// The context.
    ///
    /// # Errors
    /// [`Misuse::Config`] for settings that make no sense.
    pub fn build(self) -> Result<Context, Misuse> {
        self.limits.check()?;
        let tokens = self.tokens.into_iter().collect::<Result<Vec<_>, _>>()?;
        let decoy = match tokens.is_empty() {
            true => Ok(Nonce::default()),
            false => random_nonce(),
        };
        let decoy = decoy.map_err(|error| Misuse::Other(error.to_string()))?;
        let tokens = Tokens::new(tokens, decoy)?;
        let name = self.name.unwrap_or_else(default_name);
        let config = |what, wanted: &str, found: String| Misuse::Config {
            what,
            wanted: wanted.to_owned(),
            found,
        };
        if name.len() > 256 {
            return Err(config(
                "the context's name",
                "at most 256 bytes long",
                format!("{} bytes", name.len()),
            ));
        }
        let transports = self.transports.unwrap_or_else(transports::builtin);
        let channels = self.channels.unwrap_or_else(channels::builtin);
        #[cfg(feature = "cuda")]
        let channels = match &self.cuda {
            None if self.chosen => channels,
            devices => channels::cuda::before(devices.as_ref().and_then(Option::as_ref), channels),
        };
        unique(
            "transport names",
            transports.iter().map(|transport| transport.name()),
        )?;
        unique(
            "channel names",
            channels.iter().map(|channel| channel.name()),
        )?;
        if transports.is_empty() || transports.len() > 32 || channels.len() > 32 {
            let found = format!("{} and {}", transports.len(), channels.len());
            return Err(config(
                "the number of transports and channels",
                "1 to 32 and 0 to 32",
                found,
            ));
        }
        for (channel, threshold) in &self.thresholds {
            let names: Vec<_> = channels.iter().map(|channel| channel.name()).collect();
            known("the channel of a threshold", channel, &names)?;
            let names: Vec<_> = transports.iter().map(|known| known.name()).collect();
            if let Some(transport) = &threshold.transport {
                known("the transport of a threshold", transport, &names)?;
            }
        }
        let names = channels.iter().map(|channel| channel.name());
        let names: Vec<_> = names.collect();
        let mut unavailable = self.unavailable;
        #[cfg(feature = "cuda")]
        if self.cuda.is_none() && !self.chosen {
            let reason: Arc<str> = channels::cuda::UNASKED.into();
            let unasked = channels::cuda::OF_DEVICES.iter().map(|name| Refusal {
                candidate: format!("channel {name}"),
                reason: reason.clone(),
            });
            // The reasons that the program has given come first.
            let is_new = |one: &Refusal| {
                unavailable
                    .iter()
                    .all(|known| known.candidate != one.candidate)
            };
            let unasked: Vec<_> = unasked.filter(is_new).collect();
            unavailable.extend(unasked);
        }
        unavailable.retain(|one| names.iter().all(|name| !one.is_of(name)));
        let missing = unavailable.iter();
        let missing = missing.filter_map(|one| one.candidate.strip_prefix("channel "));
        let names: Vec<_> = names.into_iter().chain(missing).collect();
        for required in &self.required {
            if required.channels.is_empty() {
                let found = format!("none for {}", required.kind);
                return Err(config("channels that are required", "one at least", found));
            }
            for channel in &required.channels {
                known("a channel that is required", channel, &names)?;
            }
        }
        let beside_cpu = |channel: &Arc<dyn Channel>| {
            let devices = channel.devices();
            devices.iter().any(|(device, _)| !device.is_cpu())
        };
        let has_devices = !self.allocators.is_empty() || channels.iter().any(beside_cpu);
        let inner = Inner {
            name: name.into(),
            transports,
            channels,
            thresholds: self.thresholds,
            unavailable,
            required: self.required,
            tokens,
            budget: Budget::new(self.limits.receive_budget),
            credit_ahead: CreditAhead::new(&self.limits, has_devices),
            limits: self.limits,
            timeouts: self.timeouts,
            connect: self.connect,
            allocators: Allocators::new(self.pool.unwrap_or_default(), self.allocators),
            pipes: Mutex::new(Vec::new()),
            listeners: Mutex::new(Vec::new()),
            closed: AtomicBool::new(false),
            owner: Owner::here(),
        };
        Ok(Context {
            inner: Arc::new(inner),
        })
    }
}

fn default_name() -> String {
    let program = std::env::current_exe()
        .ok()
        .and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    let mut program = program.unwrap_or_else(|| "process".to_owned());
    program.truncate(program.floor_char_boundary(200));
    format!("{program}:{}", std::process::id())
}

fn known(what: &'static str, name: &str, names: &[&str]) -> Result<(), Misuse> {
    if names.contains(&name) {
        return Ok(());
    }
    Err(Misuse::Config {
        what,
        wanted: format!("one of the context's: {}", names.join(", ")),
        found: format!("`{name}`"),
    })
}

fn unique(what: &'static str, names: impl Iterator<Item = &'static str>) -> Result<(), Misuse> {
    let mut seen = std::collections::HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(Misuse::Config {
                what,
                wanted: "different from each other".to_owned(),
                found: format!("`{name}` twice"),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::Pays;

    #[test]
    fn the_defaults_are_valid_and_bad_settings_are_named() {
        assert!(Context::new().name().contains(':'));
        let tiny = Limits {
            window_bytes: 5,
            ..Limits::default()
        };
        let error = Context::builder().limits(tiny).build().unwrap_err();
        assert!(error.to_string().contains("window_bytes"), "{error}");
        let basic = || Arc::new(channels::BasicChannel::new()) as Arc<dyn Channel>;
        let twice = Context::builder().channels([basic(), basic()]);
        let twice = twice.build().unwrap_err();
        assert!(twice.to_string().contains("`basic` twice"), "{twice}");
        for (channel, transport, what, all) in [
            (
                "cmma",
                "tcp",
                "channel",
                "xth, lease, cma, basic, got `cmma`",
            ),
            ("cma", "tpc", "transport", "memory, shm, tcp, got `tpc`"),
        ] {
            let threshold = Threshold::new(Pays::LastResort).over(transport);
            let unknown = Context::builder().threshold(channel, threshold).build();
            let unknown = unknown.unwrap_err().to_string();
            let words = format!("the {what} of a threshold must be one of the context's: ");
            assert!(
                unknown.starts_with(&words) && unknown.ends_with(all),
                "{unknown}"
            );
        }
    }

    #[test]
    fn what_is_preferred_takes_the_place_of_its_name() {
        let preferred = Context::builder()
            .prefer_transport(transports::ShmTransport::new().any_user())
            .prefer_channel(channels::CmaChannel::readable_by_all())
            .prefer_channel(channels::BasicChannel::new())
            .build()
            .unwrap();
        let names = |names: &[&str]| names.join(" ");
        let Inner {
            transports,
            channels,
            ..
        } = &*preferred.inner;
        let transports: Vec<_> = transports.iter().map(|known| known.name()).collect();
        let channels = channels.iter().map(|known| known.name());
        let channels: Vec<_> = channels.filter(|name| !name.contains("cuda")).collect();
        assert_eq!(names(&transports), "shm memory tcp");
        assert_eq!(names(&channels), "basic cma xth lease");
    }

    #[cfg(feature = "cuda")]
    fn names(context: &Context) -> Vec<&'static str> {
        let channels = context.inner.channels.iter();
        channels.map(|channel| channel.name()).collect()
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn channels_of_gpus_stage_over_those_that_the_context_has() {
        let basic = || [Arc::new(channels::BasicChannel::new()) as Arc<dyn Channel>];
        let none = || Err(Unavailable::NoDevice);
        let chosen = Context::builder().channels(basic());
        assert_eq!(names(&chosen.build().unwrap()), ["basic"]);
        for builder in [
            Context::builder().channels(basic()).try_cuda(&none()),
            Context::builder().try_cuda(&none()).channels(basic()),
        ] {
            assert_eq!(names(&builder.build().unwrap()), ["cuda_basic", "basic"]);
        }
        // What borrows nothing is not staged over: its reader would get memory of the peer's.
        let lends_only = || channels::LeaseChannel::lends_only();
        for builder in [
            Context::builder().prefer_channel(lends_only()),
            Context::builder()
                .try_cuda(&none())
                .prefer_channel(lends_only()),
        ] {
            let all = names(&builder.build().unwrap());
            assert_eq!(all[..3], ["cuda_basic+xth", "cuda_basic", "lease"]);
        }
        // One of a program's own stays where that has put it.
        let own = channels::CudaBasicChannel::without_devices(channels::BasicChannel::new());
        let own = Context::builder().prefer_channel(own).build().unwrap();
        let all = names(&own);
        assert_eq!(
            all[..3],
            ["cuda_basic+xth", "cuda_basic+lease", "cuda_basic"]
        );
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn a_context_that_was_never_asked_for_gpus_says_so() {
        let said = |builder: ContextBuilder| {
            let context = builder.build().unwrap();
            let said = context.inner.unavailable.iter();
            let said = said.map(|one| (one.candidate.clone(), one.reason.clone()));
            said.collect::<Vec<_>>()
        };
        let unasked = said(Context::builder());
        let names: Vec<_> = unasked.iter().map(|(candidate, _)| &**candidate).collect();
        assert_eq!(
            names,
            ["channel cuda_xth", "channel cuda_ipc", "channel cuda_gdr"]
        );
        let is_asked =
            |(_, reason): &(String, Arc<str>)| reason.contains("ContextBuilder::try_cuda");
        assert!(unasked.iter().all(is_asked), "{unasked:?}");
        let asked = said(Context::builder().try_cuda(&Err(Unavailable::NoDevice)));
        assert!(asked.len() == 3 && !asked.iter().any(is_asked), "{asked:?}");
        for all in [unasked, asked] {
            let is_shared = |(_, reason): &(String, Arc<str>)| Arc::ptr_eq(reason, &all[0].1);
            assert!(all.iter().all(is_shared), "each pipe has them");
        }
        // A program that chooses the channels misses none.
        let chosen = Context::builder().channels([Arc::new(channels::BasicChannel::new()) as _]);
        assert_eq!(said(chosen), []);
    }

    #[test]
    fn a_channel_that_is_there_is_not_unavailable() {
        let builder = Context::builder().unavailable("cma", "no reason");
        let builder = builder.unavailable("rocm", "an old one");
        let context = builder.unavailable("rocm", "no card").build().unwrap();
        let said = &context.inner.unavailable;
        let said: Vec<_> = said
            .iter()
            // Of those a context says so that was never asked for them.
            .filter(|one| !one.candidate.contains("cuda"))
            .map(|one| (&*one.candidate, &*one.reason))
            .collect();
        assert_eq!(said, [("channel rocm", "no card")]);
        let nothing = Context::builder().require(DeviceKind::CPU, [""; 0]).build();
        let nothing = nothing.unwrap_err().to_string();
        assert!(
            nothing.contains("one at least, got none for cpu"),
            "{nothing}"
        );
    }
}
