//! A system as people name it, with what carries it: `rpc`, `rpc@shm`, `rpc@shm+lease:pool`, `tarpc@unix`.
//!
//! ```text
//! NAME [@TRANSPORT] [+CHANNEL[/LANES]] [:ALLOC]
//! ```
//! `rpc@tcp+mpt/2` has two connections for a tensor. The command's options fill in the parts that are left out. So one
//! table can hold a system several times, with different settings.

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use super::{AnySystem, by_name};
use crate::plan::{Alloc, Case, Plan, Transport, name};

/// A system, and the settings of its row.
#[derive(Clone)]
pub(crate) struct Choice {
    /// The text as the user wrote it.
    pub(crate) name: String,
    pub(crate) system: &'static dyn AnySystem,
    transport: Option<Transport>,
    channel: Option<String>,
    lanes: Option<u8>,
    alloc: Option<Alloc>,
}

impl Choice {
    /// Parses the text. Channel names are checked later, where contexts are made.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let (rest, alloc) = cut(text, ':');
        let (rest, channel) = cut(rest, '+');
        let (system, transport) = cut(rest, '@');
        let (channel, lanes) = match channel.map(|channel| cut(channel, '/')) {
            Some((channel, lanes)) => (Some(channel.to_owned()), lanes),
            None => (None, None),
        };
        let lanes = lanes.map(|lanes| lanes.parse().with_context(|| format!("`{lanes}` lanes")));
        Ok(Self {
            name: text.to_owned(),
            system: by_name(system)?,
            transport: transport.map(value).transpose()?,
            channel,
            lanes: lanes.transpose()?,
            alloc: alloc.map(value).transpose()?,
        })
    }

    /// Whether the system supports `case` with these settings. `usual` is the transport if the choice has none.
    pub(crate) fn check(&self, case: Case, usual: Transport) -> Result<()> {
        let transport = self.transport.unwrap_or(usual);
        let about = self.system.about();
        if about.cases.contains(&case) && about.transports.contains(&transport) {
            return Ok(());
        }
        bail!(
            "`{}` has no `{}` over {}, choose another case or transport",
            about.name,
            name(case),
            name(transport)
        )
    }

    /// `base` with the settings of this choice.
    pub(crate) fn plan(&self, base: &Plan) -> Result<Plan> {
        let plan = Plan {
            system: self.system.about().name.to_owned(),
            channel: self.channel.clone().or_else(|| base.channel.clone()),
            lanes: self.lanes.or(base.lanes),
            alloc: self.alloc.unwrap_or(base.alloc),
            ..base.clone()
        };
        plan.over(self.transport.unwrap_or(base.transport))
    }
}

fn cut(text: &str, at: char) -> (&str, Option<&str>) {
    match text.split_once(at) {
        Some((left, right)) => (left, Some(right)),
        None => (text, None),
    }
}

/// A value by its name on the command line.
pub(crate) fn value<T: ValueEnum>(text: &str) -> Result<T> {
    if let Ok(value) = T::from_str(text, true) {
        return Ok(value);
    }
    let names: Vec<_> = T::value_variants().iter().cloned().map(name).collect();
    bail!("`{text}` is not known, choose of: {}", names.join(", "))
}
