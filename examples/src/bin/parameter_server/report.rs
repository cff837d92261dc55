//! The outcome of a training: for people one line and how the calls travelled, for programs one line of JSON.

use std::fmt;
use std::io::{Write as _, stdout};

use anyhow::{Context as _, Result};
use serde::Serialize;
use tensorpipe::Route;

use crate::service::Status;

/// What a training came to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Report {
    /// Share of the test images that is recognised, from 0 to 1.
    accuracy: f64,
    /// Steps taken, all workers together.
    steps: u64,
    /// Workers that took part.
    workers: u32,
    /// Calls that the server answered.
    calls: u64,
    /// Bytes of tensors in these calls, both ways.
    bytes: u64,
    /// Of these, bytes that were not copied.
    #[serde(skip)]
    lent: u64,
    /// From the first worker's arrival to the last step.
    seconds: f64,
    /// What carried them; several are separated by commas.
    transport: String,
    /// The same in detail.
    #[serde(skip)]
    routes: Vec<String>,
}

impl Report {
    /// Of a training that ended in `status`, whose calls travelled by `routes`, or by some route over `listened` if
    /// nobody saw it.
    pub(crate) fn new(status: &Status, accuracy: f64, listened: &str, routes: &[Route]) -> Self {
        let transports: Vec<&str> = match routes {
            [] => vec![listened],
            routes => routes.iter().map(|route| &*route.transport).collect(),
        };
        Self {
            accuracy: rounded(accuracy, 4),
            steps: status.done,
            workers: status.workers,
            calls: status.calls,
            bytes: status.bytes,
            lent: status.lent,
            seconds: rounded(status.elapsed.as_secs_f64(), 3),
            transport: transports.join(", "),
            routes: routes.iter().map(Route::to_string).collect(),
        }
    }

    /// Writes it to standard output, as JSON too if that is wanted; the JSON is the last line.
    pub(crate) fn print(&self, json: bool) -> Result<()> {
        let mut text = format!("{self}\n");
        if json {
            text += &serde_json::to_string(self)?;
            text.push('\n');
        }
        stdout()
            .write_all(text.as_bytes())
            .context("cannot write the results to standard output")
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.workers == 1 { "" } else { "s" };
        write!(
            f,
            "test accuracy {:.2} % after {} steps of {} worker{plural} in {:.1} s; {} calls moved {:.1} MB of tensors over {}",
            100.0 * self.accuracy,
            self.steps,
            self.workers,
            self.seconds,
            self.calls,
            self.bytes as f64 / 1e6,
            self.transport,
        )?;
        if self.lent > 0 {
            write!(
                f,
                ", {:.1} MB of them without a copy",
                self.lent as f64 / 1e6
            )?;
        }
        self.routes
            .iter()
            .try_for_each(|route| write!(f, "\n{route}"))
    }
}

fn rounded(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn both_forms_say_the_same() {
        let status = Status {
            done: 1500,
            steps: 1500,
            workers: 2,
            calls: 3005,
            bytes: 115_123_456,
            elapsed: Duration::from_micros(1_234_567),
            ..Status::default()
        };
        let mut report = Report::new(&status, 0.981_234, "tcp", &[]);
        let line = "test accuracy 98.12 % after 1500 steps of 2 workers in 1.2 s; 3005 calls moved 115.1 MB of tensors over tcp";
        assert_eq!(report.to_string(), line);
        report.routes = vec!["transport shm (a <-> b)".to_owned()];
        report.lent = 38_000_000;
        assert_eq!(
            report.to_string(),
            format!("{line}, 38.0 MB of them without a copy\ntransport shm (a <-> b)")
        );
        assert_eq!(
            serde_json::to_string(&report).unwrap(),
            r#"{"accuracy":0.9812,"steps":1500,"workers":2,"calls":3005,"bytes":115123456,"seconds":1.235,"transport":"tcp"}"#
        );
    }
}
