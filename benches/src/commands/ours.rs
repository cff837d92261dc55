//! `tp-bench pipe` and `tp-bench rpc`: our own systems.

use anyhow::Result;

use super::{choose, plan, rows};
use crate::args::{Options, PipeArguments, RpcArguments};
use crate::plan::Case;
use crate::size::Size;

/// The round trip of a message.
///
/// # Errors
/// When a measurement fails; what was measured before it is printed all the same.
pub(crate) fn pipe(arguments: &PipeArguments) -> Result<()> {
    run("pipe", &[Case::Echo], &arguments.options)
}

/// Calls.
///
/// # Errors
/// As [`pipe`].
pub(crate) fn rpc(arguments: &RpcArguments) -> Result<()> {
    run("rpc", &arguments.case, &arguments.options)
}

fn run(system: &str, cases: &[Case], options: &Options) -> Result<()> {
    let base = plan(options)?;
    let mut cells = Vec::new();
    for &case in cases {
        for choice in choose(&[system.to_owned()], |_| true, case, base.transport)? {
            for size in sizes(case, &options.size) {
                cells.push(rows::cell(choice.clone(), &base, case, size.0));
            }
        }
    }
    rows::run(system, options, &base, &cells)
}

/// The sizes asked for, else those that suit the case.
fn sizes(case: Case, asked: &[Size]) -> &[Size] {
    match case {
        _ if !asked.is_empty() => asked,
        Case::Echo | Case::Paced => &[Size(0), Size(4 * Size::KIB), Size(Size::MIB)],
        Case::Pipeline => &[Size(0), Size(4 * Size::KIB)],
        Case::Stream => &[Size(0), Size(4 * Size::KIB), Size(Size::MIB)],
        Case::Upload | Case::Download | Case::Exchange | Case::Mutate | Case::Keep => {
            &[Size(Size::MIB), Size(16 * Size::MIB), Size(256 * Size::MIB)]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_asked_for_or_suit_the_case() {
        assert_eq!(sizes(Case::Upload, &[Size(7)]), [Size(7)]);
        assert_eq!(sizes(Case::Pipeline, &[])[0], Size(0));
        assert!(sizes(Case::Download, &[]).iter().all(|size| size.0 > 0));
    }
}
