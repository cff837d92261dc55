//! Values by name, in one process and between two.

use crate::run::{bench, number, rows, text};

#[test]
fn a_rendezvous_is_measured_in_one_process_and_between_two() {
    let output = bench("rendezvous --size 0,70KiB --in-flight 4 --seconds 0.05 --json");
    let rows = rows(&output);
    let cells: Vec<_> = rows
        .iter()
        .map(|row| (text(row, "case"), text(row, "over"), number(row, "bytes")))
        .collect();
    let expected = ["in process", "shm"].into_iter().flat_map(|over| {
        ["round", "stream"].into_iter().flat_map(move |case| {
            [0.0, 71680.0].map(|bytes| (case.to_owned(), over.to_owned(), bytes))
        })
    });
    assert_eq!(cells, expected.collect::<Vec<_>>());
    for row in &rows {
        assert!(
            number(row, "n") >= 5.0 && number(row, "values_per_s") > 1.0,
            "{row}"
        );
        if text(row, "over") == "in process" {
            assert_eq!(number(row, "copied"), 0.0, "{row}");
        }
    }
    // The other process ended in good order.
    assert!(
        output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn a_leased_value_is_not_copied() {
    let line =
        "rendezvous --size 300KiB --transport shm --channel lease --alloc pool --in-flight 1";
    for row in rows(&bench(&format!("{line} --seconds 0.05 --json"))) {
        assert_eq!(
            (&*text(&row, "channel"), number(&row, "copied")),
            ("lease", 0.0)
        );
    }
}
