//! `tp-bench baseline`: the peers, measured as strictly as ourselves.

use anyhow::Result;

use super::{choose, plan, rows};
use crate::args::Baseline;
use crate::plan::Case;
use crate::size::Size;
use crate::system::{AnySystem, Kind};

/// Measures and prints.
///
/// # Errors
/// When a measurement fails; what was measured before it is printed all the same.
pub(crate) fn run(arguments: &Baseline) -> Result<()> {
    let options = &arguments.options;
    let base = plan(options)?;
    let mut plans = Vec::new();
    for (case, bytes) in cells(&arguments.case, &options.size) {
        let baseline = |system: &dyn AnySystem| system.kind() == Kind::Baseline;
        for choice in choose(&arguments.system, baseline, case, base.transport)? {
            plans.push(rows::cell(choice, &base, case, bytes));
        }
    }
    rows::run("baselines", options, &base, &plans)
}

/// Cases and sizes in the order of the table.
fn cells(cases: &[Case], sizes: &[Size]) -> Vec<(Case, u64)> {
    let sizes = if sizes.is_empty() { SIZES } else { sizes };
    if cases.is_empty() {
        let case = |size: &Size| {
            if *size <= SMALL {
                Case::Echo
            } else {
                Case::Upload
            }
        };
        return sizes.iter().map(|size| (case(size), size.0)).collect();
    }
    let of = |case: &Case| {
        let case = *case;
        sizes.iter().map(move |size| (case, size.0))
    };
    cases.iter().flat_map(of).collect()
}

/// The largest size that is called small: such calls are measured by their echo.
const SMALL: Size = Size(4 * Size::KIB);
const SIZES: &[Size] = &[
    Size(0),
    SMALL,
    Size(Size::MIB),
    Size(16 * Size::MIB),
    Size(256 * Size::MIB),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_case_small_sizes_are_echoed_and_large_ones_uploaded() {
        let sizes = [Size(0), Size(4096), Size(4097)];
        let expected = [(Case::Echo, 0), (Case::Echo, 4096), (Case::Upload, 4097)];
        assert_eq!(cells(&[], &sizes), expected);
        assert_eq!(cells(&[], &[]).len(), SIZES.len());
    }

    #[test]
    fn with_cases_every_size_is_measured_in_each() {
        let found = cells(&[Case::Upload, Case::Echo], &[Size(1), Size(2)]);
        let expected = [
            (Case::Upload, 1),
            (Case::Upload, 2),
            (Case::Echo, 1),
            (Case::Echo, 2),
        ];
        assert_eq!(found, expected);
    }
}
