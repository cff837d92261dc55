//! One line on a terminal's stderr that says what is being measured; nothing elsewhere.

use indicatif::{ProgressBar, ProgressStyle};

/// A bar over all measurements of a command. Without a terminal it is silent.
#[derive(Clone, Debug)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// `steps` measurements are to come.
    pub(crate) fn new(steps: usize) -> Self {
        // No steady tick: a thread that wakes up would be measured too.
        let bar = ProgressBar::new(steps as u64);
        let style = ProgressStyle::with_template("{bar:24} {pos}/{len} {msg}");
        Self(match style {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        })
    }

    /// `what` is measured from now on.
    pub(crate) fn begin(&self, what: String) {
        self.0.set_message(what);
    }

    /// That is done.
    pub(crate) fn end(&self) {
        self.0.inc(1);
    }

    /// Prints a line to stdout without disturbing the bar.
    pub(crate) fn print(&self, line: &str) {
        self.0.suspend(|| crate::report::say(line));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
