//! Every way that bytes can take: a transport and a channel each, and whatever a default context chooses.

use std::sync::Arc;

use anyhow::Result;
use tensorpipe::channels::{BasicChannel, Channel, CmaChannel, LeaseChannel, MptChannel};
use tensorpipe::transports::{MemoryTransport, ShmTransport, TcpTransport, Transport};
use tensorpipe::{ConnectPolicy, Context, Listener, Pays, Threshold};

use crate::system::ours;

/// A way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    transport: &'static str,
    /// `None`: what the negotiation chooses, on any transport.
    pub(super) channel: Option<&'static str>,
}

/// All of them: each channel over each transport that leads from process to process, those that stay within one, and
/// a context with every default.
pub(super) fn all() -> Vec<Way> {
    let names: Vec<_> = channels(false)
        .iter()
        .map(|channel| channel.name())
        .collect();
    let mut ways = vec![Way {
        transport: "tcp",
        channel: None,
    }];
    for transport in ["shm", "tcp", "memory"] {
        // Hands memory over within a process.
        let has = |name: &&str| *name != "xth" || transport == "memory";
        ways.extend(names.iter().copied().filter(has).map(|name| Way {
            transport,
            channel: Some(name),
        }));
    }
    ways
}

impl Way {
    /// For people: `shm + basic`.
    pub(super) fn name(self) -> String {
        match self.channel {
            Some(channel) => format!("{} + {channel}", self.transport),
            None => "default".to_owned(),
        }
    }

    /// Whether both ends are in one process.
    pub(super) fn is_within(self) -> bool {
        self.transport == "memory"
    }

    /// A context that has this way alone; `basic` for what the channel does not carry.
    pub(super) fn context(self) -> Result<Context> {
        let builder = Context::builder().connect_policy(ConnectPolicy::once());
        let Some(wanted) = self.channel else {
            return Ok(builder.build()?);
        };
        let transport: Arc<dyn Transport> = match self.transport {
            "shm" => Arc::new(ShmTransport::new()),
            "memory" => Arc::new(MemoryTransport::new()),
            _ => Arc::new(TcpTransport::new()),
        };
        let mut channels = channels(self.is_within());
        channels.retain(|channel| channel.name() == wanted);
        let basic: Arc<dyn Channel> = Arc::new(BasicChannel::new());
        if wanted != basic.name() {
            channels.push(basic);
        }
        let mut builder = builder.transports([transport]).channels(channels);
        if ["cma", "mpt"].contains(&wanted) {
            // Of any length, and over any transport: not only what is so long that it pays.
            builder = builder.threshold(wanted, Threshold::new(Pays::BeyondFrame));
        }
        Ok(builder.build()?)
    }

    /// Listens on it.
    pub(super) async fn listen(self, context: &Context) -> Result<Listener> {
        let url = match self.transport {
            "tcp" => "tcp://127.0.0.1:0".to_owned(),
            other => {
                let channel = self.channel.unwrap_or("any");
                format!("{other}://soak-{}-{channel}", std::process::id())
            }
        };
        Ok(context.listen([url]).await?)
    }
}

/// Every channel there is. `within` one process also those that are better off between two.
fn channels(within: bool) -> Vec<Arc<dyn Channel>> {
    let mut channels = ours::channels(MptChannel::new());
    for channel in channels.iter_mut().filter(|_| within) {
        match channel.name() {
            "cma" => *channel = Arc::new(CmaChannel::also_within_process()),
            "lease" => *channel = Arc::new(LeaseChannel::also_within_process()),
            _ => {}
        }
    }
    channels
}

#[cfg(test)]
mod tests {
    use tensorpipe::{Carrier, Device, MemoryKind};

    use super::*;

    #[tokio::test]
    async fn every_way_leads_somewhere_and_is_what_it_says() -> Result<()> {
        for way in all() {
            let context = way.context()?;
            let listener = way.listen(&context).await?;
            let url = listener.url().to_string();
            let (pipe, _other) = tokio::try_join!(context.connect(url), listener.accept())?;
            let route = pipe.route();
            if let Some(channel) = way.channel {
                assert_eq!(route.transport, way.transport);
                // A channel may be refused for a reason of this machine: `basic` carries then.
                let candidate = format!("channel {channel}");
                let mut refused = route.refused.iter();
                let refused = refused.find(|refusal| refusal.candidate == candidate);
                match refused {
                    Some(refused) => println!("{}: {}", way.name(), refused.reason),
                    None => assert_eq!(way.carrier(&pipe, 100 << 10), channel, "{route}"),
                }
            }
            context.close().await?;
        }
        Ok(())
    }

    impl Way {
        /// What carries a tensor of so many bytes, of the memory that its channel is for.
        fn carrier(self, pipe: &tensorpipe::Pipe, len: u64) -> &'static str {
            let memory = match self.channel {
                Some("lease") => MemoryKind::Pool,
                _ => MemoryKind::Heap,
            };
            let choice = &pipe.route().choice;
            match choice.carrier(Device::CPU, memory, Device::CPU, len) {
                Carrier::Channel(name) => name,
                _ => "none",
            }
        }
    }

    #[test]
    fn ways_have_names_of_their_own() {
        let names: Vec<_> = all().into_iter().map(Way::name).collect();
        let unique: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(unique.len(), names.len(), "{names:?}");
        for name in [
            "default",
            "shm + basic",
            "tcp + basic",
            "tcp + mpt",
            "memory + xth",
        ] {
            assert!(names.iter().any(|found| found == name), "{name}");
        }
    }
}
