//! A table of text: columns as wide as their widest cell, numbers to the right.

use std::fmt;

/// Rows under a head.
#[derive(Debug)]
pub(crate) struct Table {
    align: Vec<Align>,
    rows: Vec<Vec<String>>,
}

/// To which side the cells of a column move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

impl Table {
    /// A table with these columns.
    pub(crate) fn new(columns: &[(&str, Align)]) -> Self {
        Self {
            align: columns.iter().map(|(_, align)| *align).collect(),
            rows: vec![columns.iter().map(|(name, _)| (*name).to_owned()).collect()],
        }
    }

    /// Adds a row. Cells that are missing stay empty.
    pub(crate) fn push(&mut self, mut row: Vec<String>) {
        row.resize(self.align.len(), String::new());
        self.rows.push(row);
    }

    /// Adds columns behind the others, before the first row.
    pub(crate) fn widen(&mut self, columns: &[(&str, Align)]) {
        self.align.extend(columns.iter().map(|(_, align)| *align));
        let heads = columns.iter().map(|(name, _)| (*name).to_owned());
        self.rows[0].extend(heads);
    }

    /// Adds an empty line, if there is a row before it.
    pub(crate) fn gap(&mut self) {
        if self.rows.len() > 1 {
            self.push(Vec::new());
        }
    }

    /// The same as Markdown, to be pasted into a document.
    pub(crate) fn markdown(&self) -> String {
        let line = |cells: &[String]| {
            let cells: Vec<_> = cells
                .iter()
                .map(|cell| cell.trim().replace('|', "\\|"))
                .collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let sides = self.align.iter().map(|align| match align {
            Align::Left => "---",
            Align::Right => "---:",
        });
        let sides: Vec<_> = sides.collect();
        let (head, rows) = self.rows.split_at(1);
        let head: String = head.iter().map(|cells| line(cells)).collect();
        let rows: String = rows.iter().map(|cells| line(cells)).collect();
        format!("{head}|{}|\n{rows}", sides.join("|"))
    }

    fn widths(&self) -> Vec<usize> {
        let width = |column: usize| {
            self.rows
                .iter()
                .map(|row| row[column].chars().count())
                .max()
                .unwrap_or(0)
        };
        (0..self.align.len()).map(width).collect()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        for (index, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for ((cell, width), align) in row.iter().zip(&widths).zip(&self.align) {
                let padded = match align {
                    Align::Left => format!("{cell:<width$}"),
                    Align::Right => format!("{cell:>width$}"),
                };
                line.push_str("  ");
                line.push_str(&padded);
            }
            writeln!(f, "{}", line.trim_end())?;
            if index == 0 {
                let length = widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1);
                writeln!(f, "  {}", "─".repeat(length))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&[
            ("system", Align::Left),
            ("p50", Align::Right),
            ("n", Align::Right),
        ]);
        table.push(vec![
            "tokio".to_owned(),
            "51.2 µs".to_owned(),
            "9".to_owned(),
        ]);
        table.gap();
        table.push(vec![
            "a longer name".to_owned(),
            "2.45 ms".to_owned(),
            "12345".to_owned(),
        ]);
        let expected = "  \
  system             p50      n
  ─────────────────────────────
  tokio          51.2 µs      9

  a longer name  2.45 ms  12345
";
        assert_eq!(table.to_string(), expected.trim_start_matches("  \n"));
    }

    #[test]
    fn markdown_has_a_line_for_each_row_and_a_side_for_each_column() {
        let mut table = Table::new(&[("work", Align::Left), ("p50", Align::Right)]);
        table.push(vec!["a|b".to_owned(), "1.50 s ".to_owned()]);
        let expected = "| work | p50 |\n|---|---:|\n| a\\|b | 1.50 s |\n";
        assert_eq!(table.markdown(), expected);
    }

    #[test]
    fn a_wider_table_has_more_heads() {
        let mut table = Table::new(&[("system", Align::Left)]);
        table.widen(&[("p50", Align::Right)]);
        table.push(vec!["tokio".to_owned(), "9".to_owned()]);
        assert!(table.to_string().starts_with("  system  p50\n"), "{table}");
        assert!(table.to_string().ends_with("  tokio     9\n"), "{table}");
    }

    #[test]
    fn a_table_without_rows_has_its_head_and_no_gap() {
        let mut table = Table::new(&[("system", Align::Left)]);
        table.gap();
        assert_eq!(table.to_string().lines().count(), 2);
    }
}
