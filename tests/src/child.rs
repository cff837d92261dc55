//! A second process: the test binary itself, running its test `child` in a role.
//!
//! The child reports lines `@KEY VALUE` on its output; the test harness prints all other lines. Every wait for a line is
//! bounded, and dropping a [`Child`] kills its process.

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const ROLE: &str = "TENSORPIPE_TEST_ROLE";

/// The longest that a child takes for one step of its own, on a busy machine.
const BOUND: Duration = Duration::from_secs(30);

/// Command that runs a program as user `nobody`, for [`Child::start_by`].
pub const NOBODY: [&str; 4] = [
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
];

/// Whether the launcher `by`, such as [`NOBODY`], works here and may run this test binary. Prints a line if not.
///
/// # Panics
/// When this program has no path.
pub fn can_start_by(by: &[&str]) -> bool {
    let program = std::env::current_exe().expect("this program has a path");
    let mut words = by.iter().map(OsString::from).chain([program.into()]);
    let mut process = Command::new(words.next().expect("at least this program"));
    let done = process.args(words).arg("--list").output();
    let can = done.is_ok_and(|done| done.status.success());
    if !can {
        println!("skipped: {} runs nothing here", by.join(" "));
    }
    can
}

/// The role of this process, if it is a child.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// The test `child` of a binary: does what belongs to the role in which [`Child::start`] started it.
#[macro_export]
macro_rules! child {
    ($($role:literal => $play:expr,)*) => {
        #[test]
        fn child() {
            match $crate::role().as_deref() {
                None => {}
                $(Some($role) => $play,)*
                Some(other) => panic!("no role {other}"),
            }
        }
    };
}

/// Reports a line to the parent. It starts on a new line, since the harness may have printed part of one.
pub fn say(key: &str, value: impl Display) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "\n@{key} {value}");
    let _ = out.flush();
}

/// How a child ended within a time bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It exited with this code.
    Code(i32),
    /// This signal killed it.
    Signal(i32),
    /// It did not end in time, so the test killed it.
    Hang,
}

/// A process that a test drives.
#[derive(Debug)]
pub struct Child {
    process: std::process::Child,
    said: Receiver<(String, String)>,
    complaints: Arc<Mutex<String>>,
}

impl Child {
    /// Starts this test binary again with a role and environment variables. The binary's test `child` plays the role.
    ///
    /// # Panics
    /// When the system refuses.
    pub fn start(role: &str, variables: &[(&str, &str)]) -> Self {
        Self::start_by(&[], role, variables)
    }

    /// Like [`start`](Self::start), but through the launcher `by`, e.g. `setpriv`.
    ///
    /// # Panics
    /// When the system refuses.
    pub fn start_by(by: &[&str], role: &str, variables: &[(&str, &str)]) -> Self {
        let program = std::env::current_exe().expect("this program has a path");
        let mut words = by.iter().map(OsString::from).chain([program.into()]);
        let mut process = Command::new(words.next().expect("at least this program"))
            .args(words)
            .args(["child", "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the test binary starts again");
        let (sender, said) = mpsc::channel();
        let out = BufReader::new(process.stdout.take().expect("it is piped"));
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if let Some(line) = line.strip_prefix('@') {
                    let (key, value) = line.split_once(' ').unwrap_or((line, ""));
                    let _ = sender.send((key.to_owned(), value.to_owned()));
                }
            }
        });
        let complaints = Arc::new(Mutex::new(String::new()));
        let (mut err, kept) = (
            process.stderr.take().expect("it is piped"),
            complaints.clone(),
        );
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(len @ 1..) = err.read(&mut piece) {
                kept.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push_str(&String::from_utf8_lossy(&piece[..len]));
            }
        });
        Self {
            process,
            said,
            complaints,
        }
    }

    /// Waits until the child reports `key`, and drops earlier lines.
    ///
    /// # Panics
    /// When it does not within half a minute.
    pub fn hear(&self, key: &str) -> String {
        self.hears(key).unwrap_or_else(|| {
            panic!(
                "the child ended without saying `{key}`; its errors:\n{}",
                self.complaints()
            )
        })
    }

    /// Like [`hear`](Self::hear), but `None` if the child ends without reporting `key`.
    ///
    /// # Panics
    /// When it does neither within half a minute.
    pub fn hears(&self, key: &str) -> Option<String> {
        self.hears_within(key, BOUND)
    }

    /// Like [`hears`](Self::hears), with another bound.
    ///
    /// # Panics
    /// When it does neither within this bound.
    pub fn hears_within(&self, key: &str, bound: Duration) -> Option<String> {
        let until = Instant::now() + bound;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.said.recv_timeout(left) {
                Ok((said, value)) if said == key => return Some(value),
                Ok((said, value)) => eprintln!("the child says {said} {value}"),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => panic!(
                    "the child went on without saying `{key}`; its errors:\n{}",
                    self.complaints()
                ),
            }
        }
    }

    /// Everything that the child reports until it reports `key`.
    ///
    /// # Panics
    /// When it does not within half a minute.
    pub fn until(&self, key: &str) -> Vec<(String, String)> {
        let until = Instant::now() + BOUND;
        let mut lines = Vec::new();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.said.recv_timeout(left) {
                Ok((said, _)) if said == key => return lines,
                Ok(line) => lines.push(line),
                Err(_) => panic!("no `{key}` after {lines:?}; {}", self.complaints()),
            }
        }
    }

    /// Everything that the child reports until it ends. Kills it after `bound`.
    pub fn until_end(&mut self, bound: Duration) -> (Vec<(String, String)>, End) {
        let until = Instant::now() + bound;
        let mut said = Vec::new();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.said.recv_timeout(left) {
                Ok(line) => said.push(line),
                Err(RecvTimeoutError::Timeout) => {
                    self.kill();
                    return (said, End::Hang);
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        // The child's output is closed, so the child is about to end.
        while self.is_alive() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        let end = match self.process.try_wait().ok().flatten() {
            None => End::Hang,
            Some(status) => match (status.code(), status.signal()) {
                (Some(code), _) => End::Code(code),
                (None, signal) => End::Signal(signal.unwrap_or(0)),
            },
        };
        self.kill();
        (said, end)
    }

    /// Kills the child (SIGKILL) and waits until it is gone.
    pub fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Stops the child (SIGSTOP): its sockets stay open and silent. The child has stopped when this returns.
    ///
    /// # Panics
    /// When it does not stop.
    pub fn suspend(&self) {
        let _ = kill(self.pid(), Signal::SIGSTOP);
        self.has_stopped();
    }

    /// Continues the child (SIGCONT) once it has stopped. A signal sent earlier would be lost, and the child would stop for ever.
    ///
    /// # Panics
    /// When it does not stop.
    pub fn resume(&self) {
        self.has_stopped();
        let _ = kill(self.pid(), Signal::SIGCONT);
    }

    /// Waits until the child has stopped.
    fn has_stopped(&self) {
        let until = Instant::now() + BOUND;
        while !self.is_stopped() {
            assert!(Instant::now() < until, "the child does not stop");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether the child has stopped. `stat` has the state as a letter behind the name in parentheses.
    fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id()));
        let stat = stat.unwrap_or_default();
        let state = stat.rsplit(')').next().unwrap_or_default().trim_start();
        state.starts_with('T')
    }

    /// Whether it still runs.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(None))
    }

    /// Waits until the child ends. Returns the signal that ended it, if one did.
    pub fn signal(&mut self) -> Option<i32> {
        let until = Instant::now() + BOUND;
        while self.is_alive() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        let ended = self.process.try_wait().ok().flatten()?;
        ended.signal()
    }

    /// The child's standard error so far.
    pub fn complaints(&self) -> String {
        self.complaints
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The child's process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.process.id().cast_signed())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}
