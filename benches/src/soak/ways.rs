//! Every way that bytes can take: a transport and a channel each, and whatever a default context chooses.

use std::sync::Arc;

use anyhow::Result;
use tensorpipe::channels::{BasicChannel, Channel, MptChannel};
use tensorpipe::transports::{MemoryTransport, ShmTransport, TcpTransport, Transport};
use tensorpipe::{ConnectPolicy, Context, Listener, Pays, Threshold};

use crate::system::ours;

/// A way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    transport: &'static str,
    /// `None`: what the negotiation chooses, on any transport.
    channel: Option<&'static str>,
}

/// All of them: each channel over each transport that leads from process to process, those that stay within one, and
/// a context with every default.
pub(super) fn all() -> Vec<Way> {
    let names: Vec<_> = channels().iter().map(|channel| channel.name()).collect();
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
        let mut channels = channels();
        channels.retain(|channel| channel.name() == wanted);
        let basic: Arc<dyn Channel> = Arc::new(BasicChannel::new());
        if wanted != basic.name() {
            channels.push(basic);
        }
        let mut builder = builder.transports([transport]).channels(channels);
        if wanted == "mpt" {
            // So that each of its pipes opens its connections, and not only those with long tensors.
            builder = builder.threshold("mpt", Threshold::new(Pays::BeyondFrame));
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

/// Every channel there is.
fn channels() -> Vec<Arc<dyn Channel>> {
    ours::channels(MptChannel::new())
}

#[cfg(test)]
mod tests {
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
                let first = route.channels.first().map(|channel| channel.name.as_str());
                assert!([Some(channel), Some("basic")].contains(&first), "{route}");
            }
            context.close().await?;
        }
        Ok(())
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
