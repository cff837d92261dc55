//! Choosing transport and channels: a pure function of two brochures.
//!
//! The listener's order decides. Every candidate of either side that is not chosen gets a reason in words.

use crate::device::{Device, DeviceOffer};
use crate::proto::wire::hello::{Brochure, CHANNEL_DEVICES_MAX};

/// The most refusals in an answer, and the most bytes of them: even with a peer's long names the answer must be one that the peer takes.
const REFUSALS_MAX: usize = 64;
const REFUSALS_BYTES: usize = 16 << 10;

const NOT_THEIRS: &str = "the connecting side does not have it";
const NOT_OURS: &str = "the listening side does not have it";

/// Whether another side's domain or device descriptor can be reached, or why not.
pub(crate) type Verdict = Result<(), String>;

/// A transport of the listener's context.
pub(crate) struct LocalTransport<'a> {
    pub(crate) name: &'a str,
    /// Judges the other side's domain descriptor.
    pub(crate) reaches: &'a dyn Fn(&[u8]) -> Verdict,
    /// Where the connector finds it; the reason if this listener cannot be reached over it.
    pub(crate) address: Result<String, String>,
}

/// A channel of the listener's context.
pub(crate) struct LocalChannel<'a> {
    pub(crate) name: &'a str,
    pub(crate) connections: u8,
    pub(crate) devices: &'a [(Device, Vec<u8>)],
    /// Judges a device of ours and one of theirs, on a pipe over a transport.
    pub(crate) reaches: &'a dyn Fn(&str, DeviceOffer<'_>, DeviceOffer<'_>) -> Verdict,
}

/// A channel that was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SelectedChannel {
    /// Position in the listener's list.
    pub(crate) index: usize,
    pub(crate) name: String,
    pub(crate) connections: u8,
    /// How many devices the connector has offered for it.
    pub(crate) offered: u8,
    /// (listener's device, connector's device): their positions.
    pub(crate) pairs: Vec<(u8, u8)>,
}

/// The outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Selection {
    /// Name and address of the transport to upgrade to; `None` stays.
    pub(crate) upgrade: Option<(String, String)>,
    /// In the listener's order.
    pub(crate) channels: Vec<SelectedChannel>,
    /// (candidate, reason).
    pub(crate) refusals: Vec<(String, String)>,
}

/// Chooses for a connection that came over `bootstrap`.
pub(crate) fn select(
    bootstrap: &str,
    transports: &[LocalTransport<'_>],
    channels: &[LocalChannel<'_>],
    theirs: &Brochure,
) -> Selection {
    let mut refusals = Vec::new();
    let upgrade = select_transport(bootstrap, transports, theirs, &mut refusals);
    let over = upgrade.as_ref().map_or(bootstrap, |(name, _)| name);
    let channels = select_channels(over, channels, theirs, &mut refusals);
    let mut room = REFUSALS_BYTES;
    refusals.truncate(REFUSALS_MAX);
    refusals.retain(|(candidate, reason)| {
        let left = room.checked_sub(candidate.len() + reason.len());
        room = left.unwrap_or(room);
        left.is_some()
    });
    Selection {
        upgrade,
        channels,
        refusals,
    }
}

fn select_transport(
    bootstrap: &str,
    ours: &[LocalTransport<'_>],
    theirs: &Brochure,
    refusals: &mut Vec<(String, String)>,
) -> Option<(String, String)> {
    let mut chosen: Option<(&str, Option<&str>)> = None;
    for transport in ours {
        let mut refuse =
            |reason: String| refusals.push((format!("transport {}", transport.name), reason));
        if let Some((better, _)) = chosen {
            refuse(format!("{better} is preferred"));
            continue;
        }
        if transport.name == bootstrap {
            chosen = Some((transport.name, None));
            continue;
        }
        let mut offers = theirs.transports.iter();
        let Some(offer) = offers.find(|offer| offer.name == transport.name) else {
            refuse(NOT_THEIRS.to_owned());
            continue;
        };
        match (&transport.address, (transport.reaches)(&offer.domain)) {
            (_, Err(reason)) => refuse(reason),
            (Err(reason), _) => refuse(reason.clone()),
            (Ok(address), Ok(())) => chosen = Some((transport.name, Some(address))),
        }
    }
    for offer in &theirs.transports {
        if !ours.iter().any(|transport| transport.name == offer.name) {
            refusals.push((format!("transport {}", offer.name), NOT_OURS.to_owned()));
        }
    }
    let (name, address) = chosen?;
    Some((name.to_owned(), address?.to_owned()))
}

fn select_channels(
    over: &str,
    ours: &[LocalChannel<'_>],
    theirs: &Brochure,
    refusals: &mut Vec<(String, String)>,
) -> Vec<SelectedChannel> {
    let mut selected = Vec::new();
    for (index, channel) in ours.iter().enumerate() {
        let mut refuse =
            |reason: String| refusals.push((format!("channel {}", channel.name), reason));
        let mut offers = theirs.channels.iter();
        let Some(offer) = offers.find(|offer| offer.name == channel.name) else {
            refuse(NOT_THEIRS.to_owned());
            continue;
        };
        // A peer does not decide how many descriptors are held here.
        if offer.connections != channel.connections {
            refuse(format!(
                "it takes {} connections of its own here, {} at the connecting side",
                channel.connections, offer.connections
            ));
            continue;
        }
        let mut pairs = Vec::new();
        // The first pair of each reason, and how many there are.
        let mut reasons: Vec<(String, Device, Device, u32)> = Vec::new();
        let known = channel.devices.iter().take(CHANNEL_DEVICES_MAX);
        // Up to 255 of either: an open range would overflow behind the last one.
        for (our_at, (ours, our_descriptor)) in (0..=u8::MAX).zip(known) {
            for (their_at, (theirs, their_descriptor)) in (0..=u8::MAX).zip(&offer.devices) {
                match (channel.reaches)(
                    over,
                    DeviceOffer::new(*ours, our_descriptor),
                    DeviceOffer::new(*theirs, their_descriptor),
                ) {
                    Ok(()) => pairs.push((our_at, their_at)),
                    Err(reason) => match reasons.iter_mut().find(|(known, ..)| *known == reason) {
                        Some((.., count)) => *count += 1,
                        None => reasons.push((reason, *ours, *theirs, 1)),
                    },
                }
            }
        }
        if pairs.is_empty() && reasons.is_empty() {
            refuse("it serves no device".to_owned());
        }
        reasons.retain(|(reason, ..)| !reason.is_empty());
        for (reason, ours, theirs, count) in reasons {
            let more = match count - 1 {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            refuse(format!("{ours} to {theirs}{more}: {reason}"));
        }
        if !pairs.is_empty() {
            selected.push(SelectedChannel {
                index,
                name: channel.name.to_owned(),
                connections: channel.connections,
                offered: offer.devices.len() as u8,
                pairs,
            });
        }
    }
    for offer in &theirs.channels {
        if !ours.iter().any(|channel| channel.name == offer.name) {
            refusals.push((format!("channel {}", offer.name), NOT_OURS.to_owned()));
        }
    }
    selected
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::sim::choose;
    use crate::proto::wire::hello::{ChannelOffer, TransportOffer};

    /// Transports and channels, each with its domain or descriptor.
    fn brochure(transports: &[(&str, &str)], channels: &[(&str, &str)]) -> Brochure {
        let transport = |(name, domain): &(&str, &str)| TransportOffer {
            name: (*name).into(),
            domain: domain.as_bytes().to_vec(),
        };
        let channel = |(name, descriptor): &(&str, &str)| ChannelOffer {
            name: (*name).into(),
            connections: 0,
            devices: vec![(Device::CPU, descriptor.as_bytes().to_vec())],
        };
        Brochure {
            transports: transports.iter().map(transport).collect(),
            channels: channels.iter().map(channel).collect(),
        }
    }

    /// All reasons, while they are short; of long ones as many as have room.
    #[test]
    fn a_peer_with_many_names_hears_as_much_as_it_takes() {
        let told = |len: usize| {
            let names: Vec<_> = (0..60).map(|i| format!("{i:0len$}")).collect();
            let offers: Vec<_> = names.iter().map(|name| (&**name, "")).collect();
            let told = choose(&brochure(&[], &offers)).refusals;
            let of_theirs = told.iter().filter(|(_, reason)| reason == NOT_OURS);
            let bytes = told.iter().map(|(name, reason)| name.len() + reason.len());
            assert!(bytes.sum::<usize>() <= REFUSALS_BYTES);
            of_theirs.count()
        };
        assert_eq!(told(2), 60);
        assert!((30..40).contains(&told(400)), "{}", told(400));
    }

    /// One reason for several pairs of devices is told once, for as many devices as can be named, too.
    #[test]
    fn the_same_reason_is_told_once_with_how_often() {
        let mut brochure = brochure(&[], &[("xth", "there")]);
        for more in [1, 2, CHANNEL_DEVICES_MAX - 1] {
            let devices = &mut brochure.channels[0].devices;
            devices.resize(1 + more, (Device::CPU, b"there".to_vec()));
            let refused = choose(&brochure).refusals;
            let (_, reason) = refused
                .iter()
                .find(|(name, _)| name == "channel xth")
                .unwrap();
            assert_eq!(
                *reason,
                format!("cpu:0 to cpu:0 and {more} more: another process")
            );
        }
    }

    /// What is chosen for each pair of offers; every other candidate has a reason.
    #[test]
    fn the_table() {
        type Offers<'a> = &'a [(&'a str, &'a str)];
        let cases: [(Offers<'_>, Offers<'_>, Option<&str>, &[&str]); 5] = [
            (
                &[("memory", "here"), ("tcp", "")],
                &[("xth", "here"), ("basic", "")],
                Some("memory"),
                &["xth", "basic"],
            ),
            (
                &[("memory", "there"), ("tcp", "")],
                &[("xth", "there"), ("basic", "")],
                None,
                &["basic"],
            ),
            (&[("tcp", "")], &[("basic", "")], None, &["basic"]),
            (&[("tcp", ""), ("smoke", "")], &[("mirrors", "")], None, &[]),
            (&[], &[], None, &[]),
        ];
        for (transports, channels, upgrade, chosen) in cases {
            let selection = choose(&brochure(transports, channels));
            let to = selection.upgrade.as_ref().map(|(name, _)| name.as_str());
            let names = selection.channels.iter().map(|channel| &*channel.name);
            assert_eq!((to, names.collect::<Vec<_>>()), (upgrade, chosen.to_vec()));
            let of = |kind: &'static str, offers: Offers<'_>, ours: [&'static str; 2]| {
                let theirs = offers.iter().map(|(name, _)| *name);
                let all = theirs.chain(ours).map(move |name| format!("{kind} {name}"));
                all.collect::<Vec<_>>()
            };
            let mut used = vec![format!("transport {}", upgrade.unwrap_or("tcp"))];
            used.extend(chosen.iter().map(|name| format!("channel {name}")));
            let transports = of("transport", transports, ["memory", "tcp"]);
            for candidate in [transports, of("channel", channels, ["xth", "basic"])].concat() {
                let refused = selection.refusals.iter();
                let refused = refused.map(|(name, _)| name).any(|name| *name == candidate);
                let used = used.contains(&candidate);
                assert!(used != refused, "{candidate}: {selection:?}");
            }
        }
    }
}
