//! Columns that are there only if somebody asked for them: the time with every byte read, the ratio to the limit, and the pages of
//! a pool. And a word on rounds that began with both ends awake, where there are any.

use super::{Align, Row, time};

/// Which of them a table has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extras {
    sum: bool,
    limit: bool,
    warm: bool,
    pages: bool,
}

impl Extras {
    /// Those that any of the rows has.
    pub(crate) fn of<'a>(rows: impl Iterator<Item = &'a Row> + Clone) -> Self {
        Self {
            sum: rows.clone().any(|row| row.p50_sum_us.is_some()),
            limit: rows.clone().any(|row| row.limit_us.is_some()),
            warm: rows.clone().any(|row| row.warm),
            pages: rows.clone().any(|row| row.pages.is_some()),
        }
    }

    /// Their heads.
    pub(crate) fn columns(self) -> Vec<(&'static str, Align)> {
        let mut columns = Vec::new();
        if self.sum {
            columns.push(("p50 + sum", Align::Right));
        }
        if self.limit {
            columns.push(("limit", Align::Right));
            columns.push(("of limit", Align::Right));
        }
        if self.pages {
            columns.push(("pages", Align::Left));
        }
        columns
    }

    /// What `row` has to say in them.
    pub(crate) fn cells(self, row: &Row) -> Vec<String> {
        let mut cells = Vec::new();
        if self.sum {
            cells.push(row.p50_sum_us.map(time).unwrap_or_default());
        }
        if self.limit {
            cells.push(row.limit_us.map(time).unwrap_or_default());
            let ratio = row.limit_us.filter(|limit| *limit > 0.0);
            let ratio = ratio.map(|limit| format!("{:.2}×", row.p50_us / limit));
            cells.push(ratio.unwrap_or_default());
        }
        if self.pages {
            cells.push(row.pages.clone().unwrap_or_default());
        }
        cells
    }

    /// What they mean, for below the table.
    pub(crate) fn legend(self) -> String {
        let mut legend = String::new();
        if self.sum {
            legend.push_str("  p50 + sum: whoever receives a tensor reads every byte of it, too\n");
        }
        if self.limit {
            legend.push_str(
                "  limit: a bare round with the same bytes over the same medium just after, both ends spinning (paced without \
                 bytes: both asleep)\n",
            );
        }
        if self.warm {
            legend.push_str(
                "  rounds of leased tensors, with --warm always all rounds, begin with both ends awake once the tensor is written\n",
            );
        }
        if self.pages {
            legend.push_str(
                "  pages: of the memory that the client's pool lends: set aside (hugetlb), huge, small; ordinary memory is not lent\n",
            );
        }
        legend
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Samples;
    use crate::plan::Case;
    use crate::plan::tests::plan;
    use crate::system::Route;

    #[test]
    fn columns_are_there_if_a_row_has_them() {
        let plain = Row::new(
            &plan("tokio", Case::Echo, 8),
            &Samples::new(),
            Route::plain("tcp"),
        );
        let mut full = plain.clone();
        full.p50_us = 30.0;
        full.p50_sum_us = Some(40.0);
        full.limit_us = Some(20.0);
        full.warm = true;
        full.pages = Some("huge".to_owned());
        let without = Extras::of([&plain].into_iter());
        assert!(without.columns().is_empty() && without.cells(&full).is_empty());
        let with = Extras::of([&plain, &full].into_iter());
        assert_eq!(with.columns().len(), 4);
        assert_eq!(with.cells(&full), ["40.0 µs", "20.0 µs", "1.50×", "huge"]);
        assert_eq!(with.cells(&plain), ["", "", "", ""]);
        assert_eq!(with.legend().lines().count(), 4);
    }
}
