//! A channel whose lanes say what a test wants them to say.

use std::sync::Arc;

use tensorpipe::channels::{Channel, DeviceOffer, Lane, Link};
use tensorpipe::{
    Device, Error,
    channels::{Pays, Threshold},
};

/// A channel of a name that the other end knows: its devices are everywhere, it takes every tensor, and only its lanes are false.
pub struct Liar {
    name: &'static str,
    devices: Vec<(Device, Vec<u8>)>,
    sends_at_once: bool,
    lane: Box<dyn Fn(Link) -> Box<dyn Lane> + Send + Sync>,
}

impl Liar {
    /// In the place of `honest`, and like it but for the lanes.
    pub fn like<L: Lane + 'static>(
        honest: &impl Channel,
        lane: impl Fn(Link) -> L + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: honest.name(),
            devices: honest.devices(),
            sends_at_once: honest.sends_at_once(),
            lane: Box::new(move |link| Box::new(lane(link))),
        }
    }

    /// At another place: what it says of main memory.
    pub fn at(mut self, descriptor: Vec<u8>) -> Self {
        self.devices = vec![(Device::CPU, descriptor)];
        self
    }

    /// For [`tensorpipe::ContextBuilder::channels`].
    pub fn channel(self) -> Arc<dyn Channel> {
        Arc::new(self)
    }
}

impl std::fmt::Debug for Liar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct(self.name).finish_non_exhaustive()
    }
}

impl Channel for Liar {
    fn name(&self) -> &'static str {
        self.name
    }

    fn devices(&self) -> Vec<(Device, Vec<u8>)> {
        self.devices.clone()
    }

    fn reaches(&self, _: DeviceOffer<'_>, _: DeviceOffer<'_>) -> Result<(), String> {
        Ok(())
    }

    fn thresholds(&self, _: &[(Device, Vec<u8>)]) -> Vec<Threshold> {
        vec![Threshold::new(Pays::From(1))]
    }

    fn sends_at_once(&self) -> bool {
        self.sends_at_once
    }

    fn open(&self, link: Link) -> Result<Box<dyn Lane>, Error> {
        Ok((self.lane)(link))
    }
}
