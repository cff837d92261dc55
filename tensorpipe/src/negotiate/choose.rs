//! What a listener chooses from a connector's brochure: finds its context's candidates and runs [`select`].

use super::reaches;
use super::receive::ListenerState;
use crate::device::{Device, DeviceOffer};
use crate::proto::handshake::{LocalChannel, LocalTransport, Selection, select};
use crate::proto::wire::hello::Brochure;

/// For a connection that came over `bootstrap`. `devices` is what each channel of the context tells about its devices.
pub(super) fn choose(
    listener_state: &ListenerState,
    bootstrap: &str,
    brochure: &Brochure,
    devices: &[Vec<(Device, Vec<u8>)>],
) -> Selection {
    let context = &listener_state.context;
    type TransportVerdict<'a> = Box<dyn Fn(&[u8]) -> Result<(), String> + 'a>;
    type ChannelVerdict<'a> =
        Box<dyn Fn(&str, DeviceOffer<'_>, DeviceOffer<'_>) -> Result<(), String> + 'a>;
    let transports_reach: Vec<TransportVerdict<'_>> = context
        .transports
        .iter()
        .map(|transport| {
            Box::new(move |theirs: &[u8]| transport.reaches(theirs)) as TransportVerdict<'_>
        })
        .collect();
    let transports: Vec<LocalTransport<'_>> = context
        .transports
        .iter()
        .zip(&transports_reach)
        .map(|(transport, reaches)| {
            let side = listener_state
                .upgrade_addresses
                .iter()
                .find(|(name, _)| *name == transport.name());
            let address = side.map(|(_, address)| address.clone());
            let elsewhere =
                || Err("pipes that begin elsewhere cannot be upgraded to it".to_owned());
            let address = address.unwrap_or_else(elsewhere);
            LocalTransport {
                name: transport.name(),
                reaches,
                address,
            }
        })
        .collect();
    let channels_reach: Vec<ChannelVerdict<'_>> = context
        .channels
        .iter()
        .map(|channel| {
            Box::new(
                move |over: &str, ours: DeviceOffer<'_>, theirs: DeviceOffer<'_>| {
                    let over = context.transport(over).map_err(|error| error.to_string())?;
                    reaches(&**channel, &**over, ours, theirs)
                },
            ) as ChannelVerdict<'_>
        })
        .collect();
    let channels: Vec<LocalChannel<'_>> = context
        .channels
        .iter()
        .zip(devices)
        .zip(&channels_reach)
        .map(|((channel, devices), reaches)| LocalChannel {
            name: channel.name(),
            connections: channel.connections(),
            devices,
            reaches,
        })
        .collect();
    select(bootstrap, &transports, &channels, brochure)
}
