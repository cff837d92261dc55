//! Shows training progress: a bar on a terminal, elsewhere at most one line a second, and only if something is new.

use std::io::{IsTerminal as _, Write as _, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How often a plain line is written.
const PLAIN_EVERY: Duration = Duration::from_secs(1);

/// The display of one training.
#[derive(Debug)]
pub struct Progress {
    voice: Voice,
    /// The last state, and the last plain line with its time.
    state: String,
    said: Option<(String, Instant)>,
}

/// Prints lines without breaking the bar. Clones share one bar.
#[derive(Clone, Debug)]
pub struct Voice(ProgressBar);

impl Voice {
    /// Writes one line.
    pub fn say(&self, line: impl AsRef<str>) {
        self.0.suspend(|| {
            let _ = writeln!(stderr(), "{}", line.as_ref());
        });
    }
}

impl Progress {
    /// A display for a training of `steps` steps.
    pub fn new(steps: u64) -> Self {
        let look = ProgressStyle::with_template("{bar:32} {pos}/{len} steps, {msg}, {elapsed}");
        // Hidden where there is no terminal.
        let target = ProgressDrawTarget::stderr_with_hz(10);
        let bar = ProgressBar::with_draw_target(Some(steps), target);
        Self {
            voice: Voice(bar.with_style(look.expect("a constant template"))),
            state: String::new(),
            said: None,
        }
    }

    /// A handle with which other tasks print lines.
    pub fn voice(&self) -> Voice {
        self.voice.clone()
    }

    /// Writes one line.
    pub fn say(&self, line: impl AsRef<str>) {
        self.voice.say(line);
    }

    /// Shows where the training is.
    pub fn show(&mut self, done: u64, loss: Option<f32>, accuracy: Option<f64>) {
        let Some(loss) = loss else { return };
        let accuracy =
            accuracy.map(|accuracy| format!(", test accuracy {:.1} %", 100.0 * accuracy));
        let message = format!("loss {loss:.3}{}", accuracy.unwrap_or_default());
        let bar = &self.voice.0;
        self.state = format!("step {done}/{}, {message}", bar.length().unwrap_or(done));
        bar.set_position(done);
        bar.set_message(message);
        let is_due = self
            .said
            .as_ref()
            .is_none_or(|(_, at)| at.elapsed() >= PLAIN_EVERY);
        if is_due && !stderr().is_terminal() {
            self.say_state();
        }
    }

    /// Replaces the bar by a line about the last state.
    pub fn end(&mut self) {
        self.voice.0.finish_and_clear();
        self.say_state();
    }

    /// Prints the last state, unless it was printed already.
    fn say_state(&mut self) {
        let is_new = self
            .said
            .as_ref()
            .is_none_or(|(said, _)| *said != self.state);
        if is_new && !self.state.is_empty() {
            self.voice.say(&self.state);
            self.said = Some((self.state.clone(), Instant::now()));
        }
    }
}
