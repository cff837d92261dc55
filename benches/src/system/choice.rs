//! A system as people name it, with what carries it: `rpc`, `rpc@shm`, `rpc@shm+lease:pool`, `tarpc@unix`.
//!
//! ```text
//! NAME [@TRANSPORT] [+CHANNEL[/LANES]] [:ALLOC]
//! ```
//! `rpc@tcp+mpt/2` has two connections for a tensor. What is left out is as the command's options say. So one table can hold a system several times, each its own way.

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use super::{AnySystem, by_name};
use crate::plan::{Alloc, Case, Plan, Transport};

/// A system, and what its row differs in from the others.
#[derive(Clone)]
pub(crate) struct Choice {
    /// As it was asked for.
    pub(crate) name: String,
    pub(crate) system: &'static dyn AnySystem,
    pub(crate) transport: Option<Transport>,
    pub(crate) channel: Option<String>,
    pub(crate) lanes: Option<u8>,
    pub(crate) alloc: Option<Alloc>,
}

impl Choice {
    /// A system by its name alone.
    pub(crate) fn of(system: &'static dyn AnySystem) -> Self {
        Self {
            name: system.name().to_owned(),
            system,
            transport: None,
            channel: None,
            lanes: None,
            alloc: None,
        }
    }

    /// The same over this transport, and named so.
    pub(crate) fn over(mut self, transport: Transport) -> Self {
        self.name = format!("{}@{}", self.system.name(), transport.name());
        self.transport = Some(transport);
        self
    }

    /// Understands what people write.
    ///
    /// # Errors
    /// When there is no such system, transport or kind of memory. Channels are known to whoever makes contexts.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let (rest, alloc) = cut(text, ':');
        let (rest, channel) = cut(rest, '+');
        let (name, transport) = cut(rest, '@');
        let (channel, lanes) = match channel.map(|channel| cut(channel, '/')) {
            Some((channel, lanes)) => (Some(channel), lanes),
            None => (None, None),
        };
        let lanes = lanes.map(|lanes| lanes.parse().with_context(|| format!("`{lanes}` lanes")));
        Ok(Self {
            name: text.to_owned(),
            system: by_name(name)?,
            transport: transport.map(value).transpose()?,
            channel: channel.map(str::to_owned),
            lanes: lanes.transpose()?,
            alloc: alloc.map(value).transpose()?,
        })
    }

    /// Whether the system can do `case` this way, where nothing else is said over `usual`.
    pub(crate) fn check(&self, case: Case, usual: Transport) -> Result<()> {
        let transport = self.transport.unwrap_or(usual);
        if self.system.cases().contains(&case) && self.system.transports().contains(&transport) {
            return Ok(());
        }
        bail!(
            "`{}` has no `{}` over {}, choose another case or transport",
            self.system.name(),
            case.name(),
            transport.name()
        )
    }

    /// `base` as this choice has it.
    pub(crate) fn plan(&self, base: &Plan) -> Plan {
        Plan {
            system: self.system.name().to_owned(),
            transport: self.transport.unwrap_or(base.transport),
            channel: self.channel.clone().or_else(|| base.channel.clone()),
            lanes: self.lanes.or(base.lanes),
            alloc: self.alloc.unwrap_or(base.alloc),
            ..base.clone()
        }
    }
}

fn cut(text: &str, at: char) -> (&str, Option<&str>) {
    match text.split_once(at) {
        Some((left, right)) => (left, Some(right)),
        None => (text, None),
    }
}

fn value<T: ValueEnum>(text: &str) -> Result<T> {
    if let Ok(value) = T::from_str(text, true) {
        return Ok(value);
    }
    let known = T::value_variants().iter();
    let names = known.filter_map(|value| Some(value.to_possible_value()?.get_name().to_owned()));
    let names: Vec<_> = names.collect();
    bail!("`{text}` is not known, choose of: {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::plan;

    #[test]
    fn what_is_not_said_is_as_the_options_say() -> Result<()> {
        let mut base = plan("", Case::Echo, 64);
        base.channel = Some("basic".to_owned());
        let found = |text: &str| -> Result<_> {
            let plan = Choice::parse(text)?.plan(&base);
            Ok((plan.system, plan.transport, plan.channel, plan.alloc))
        };
        let basic = Some("basic".to_owned());
        assert_eq!(
            found("rpc")?,
            ("rpc".to_owned(), Transport::Tcp, basic.clone(), Alloc::Heap)
        );
        assert_eq!(
            found("pipe@shm:pool")?,
            ("pipe".to_owned(), Transport::Shm, basic, Alloc::Pool)
        );
        assert_eq!(
            found("rpc@shm+lease:pool")?,
            (
                "rpc".to_owned(),
                Transport::Shm,
                Some("lease".to_owned()),
                Alloc::Pool
            )
        );
        base.lanes = Some(4);
        let lanes = |text: &str| anyhow::Ok(Choice::parse(text)?.plan(&base).lanes);
        assert_eq!(lanes("rpc@tcp+mpt")?, Some(4));
        assert_eq!(lanes("rpc@tcp+mpt/2:pool")?, Some(2));
        Ok(())
    }

    #[test]
    fn what_is_not_known_is_said() {
        for (text, expected) in [
            ("grpc@tcp", "there is no system `grpc`"),
            (
                "rpc@smoke",
                "`smoke` is not known, choose of: tcp, unix, shm",
            ),
            ("rpc@shm:attic", "choose of: heap, pool"),
            ("rpc@tcp+mpt/many", "`many` lanes"),
        ] {
            let error = Choice::parse(text).err().map(|error| error.to_string());
            let error = error.unwrap_or_default();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn a_case_over_a_transport_is_there_or_not() -> Result<()> {
        let tarpc = Choice::parse("tarpc@unix")?;
        assert!(tarpc.check(Case::Echo, Transport::Memory).is_ok());
        let rpc = Choice::of(by_name("rpc")?);
        assert!(rpc.check(Case::Echo, Transport::Shm).is_ok());
        let error = rpc.over(Transport::Unix).check(Case::Echo, Transport::Shm);
        let error = error.expect_err("ours have no Unix sockets").to_string();
        assert!(error.contains("`rpc` has no `echo` over unix"), "{error}");
        Ok(())
    }
}
