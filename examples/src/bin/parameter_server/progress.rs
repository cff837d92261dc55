//! What a person sees while the training runs: a bar on a terminal, a plain line now and then elsewhere (a log file, a
//! CI job). All of it goes to standard error, and a standard error that is gone stops nothing.

use std::io::{IsTerminal as _, Write as _, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How often a plain line is written.
const PLAIN_EVERY: Duration = Duration::from_secs(1);

/// The display of one training.
#[derive(Debug)]
pub(crate) struct Progress {
    voice: Voice,
    style: Style,
    /// What no plain line has told yet.
    unsaid: Option<String>,
    /// When the last plain line was written.
    written: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    Bar,
    Plain,
    Silent,
}

/// Says lines without breaking the bar; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Voice(ProgressBar);

impl Voice {
    /// Writes one line.
    pub(crate) fn say(&self, line: impl AsRef<str>) {
        self.0.suspend(|| {
            let _ = writeln!(stderr(), "{}", line.as_ref());
        });
    }
}

impl Progress {
    /// A display for a training of `steps` steps.
    pub(crate) fn new(steps: u64) -> Self {
        if !stderr().is_terminal() {
            return Self::with(
                ProgressBar::with_draw_target(Some(steps), hidden()),
                Style::Plain,
            );
        }
        let look = ProgressStyle::with_template("{bar:32} {pos}/{len} steps, {msg}, {elapsed}")
            .expect("a constant template");
        let target = ProgressDrawTarget::stderr_with_hz(10);
        let bar = ProgressBar::with_draw_target(Some(steps), target).with_style(look);
        Self::with(bar, Style::Bar)
    }

    /// A display that shows only what is said.
    pub(crate) fn silent() -> Self {
        Self::with(ProgressBar::with_draw_target(None, hidden()), Style::Silent)
    }

    fn with(bar: ProgressBar, style: Style) -> Self {
        Self {
            voice: Voice(bar),
            style,
            unsaid: None,
            written: None,
        }
    }

    /// What other tasks speak with.
    pub(crate) fn voice(&self) -> Voice {
        self.voice.clone()
    }

    /// Writes one line.
    pub(crate) fn say(&self, line: impl AsRef<str>) {
        self.voice.say(line);
    }

    /// Shows where the training is.
    pub(crate) fn show(&mut self, done: u64, loss: Option<f32>, accuracy: Option<f64>) {
        let bar = &self.voice.0;
        let message = describe(loss, accuracy);
        let line = format!("step {done}/{}, {message}", bar.length().unwrap_or(done));
        bar.set_position(done);
        bar.set_message(message);
        let due = self
            .written
            .is_none_or(|written| written.elapsed() >= PLAIN_EVERY);
        if self.style == Style::Plain && due && done > 0 {
            self.voice.say(&line);
            self.written = Some(Instant::now());
            self.unsaid = None;
        } else {
            self.unsaid = Some(line);
        }
    }

    /// Replaces the bar by a line about the last state.
    pub(crate) fn end(&mut self) {
        self.voice.0.finish_and_clear();
        if let (Some(line), Style::Bar | Style::Plain) = (self.unsaid.take(), self.style) {
            self.voice.say(line);
        }
    }
}

fn hidden() -> ProgressDrawTarget {
    ProgressDrawTarget::hidden()
}

fn describe(loss: Option<f32>, accuracy: Option<f64>) -> String {
    let loss = loss.map(|loss| format!("loss {loss:.3}"));
    let accuracy = accuracy.map(|accuracy| format!("test accuracy {:.1} %", 100.0 * accuracy));
    let known: Vec<String> = loss.into_iter().chain(accuracy).collect();
    if known.is_empty() {
        "starting".to_owned()
    } else {
        known.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_only_what_is_known() {
        assert_eq!(describe(None, None), "starting");
        assert_eq!(describe(Some(0.25), None), "loss 0.250");
        let both = describe(Some(0.25), Some(0.5));
        assert_eq!(both, "loss 0.250, test accuracy 50.0 %");
    }
}
