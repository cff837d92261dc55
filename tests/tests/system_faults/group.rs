//! Processes in a control group (cgroup) with little memory: the scene, and a reader whose peer sends more than fits.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use tensorpipe::channels::{BasicChannel, Channel};
use tensorpipe::transports::{TcpTransport, Transport};
use tensorpipe::{Context, Error, Limits, Message};
use tensorpipe_tests::{Child, End, Judged, judge, runtime, say, soon, tidy};

use super::scene::{builder, heap, timeouts};

/// What a group may use.
pub(crate) const ROOM: usize = 96 << 20;

/// Runs a program in the group of [`Group::variable`].
pub(crate) const INSIDE: &[&str] = &[
    "sh",
    "-c",
    "echo $$ > \"$TEST_GROUP/cgroup.procs\" && exec \"$@\"",
    "sh",
];

/// A control group of this process's, with [`ROOM`]. It is removed when this is dropped, and has to be empty then.
pub(crate) struct Group(PathBuf);

const PREFIX: &str = "tensorpipe-faults-";

impl Group {
    /// `name` is of this process's own. Fails where control groups of that version have no hand in memory.
    pub(crate) fn new(version: u32, name: &str) -> io::Result<Self> {
        let (parent, file) = match version {
            1 => (
                PathBuf::from("/sys/fs/cgroup/memory"),
                "memory.limit_in_bytes",
            ),
            _ => (unified()?, "memory.max"),
        };
        remove_left(&parent);
        let path = parent.join(format!("{PREFIX}{}-{name}", std::process::id()));
        fs::create_dir(&path)?;
        let group = Self(path);
        fs::write(group.0.join(file), ROOM.to_string())?;
        // Where there is swap, memory would go there instead.
        let (swap, room) = match version {
            1 => ("memory.memsw.limit_in_bytes", ROOM),
            _ => ("memory.swap.max", 0),
        };
        let swap = group.0.join(swap);
        if swap.exists() {
            fs::write(swap, room.to_string())?;
        }
        Ok(group)
    }

    /// For the child that is to be in it.
    pub(crate) fn variable(&self) -> (&'static str, String) {
        ("TEST_GROUP", self.0.display().to_string())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let removed = fs::remove_dir(&self.0);
        assert!(
            removed.is_ok() || std::thread::panicking(),
            "{}: {removed:?}",
            self.0.display()
        );
    }
}

/// Where groups of version 2 limit memory.
fn unified() -> io::Result<PathBuf> {
    for root in ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"] {
        let controllers = fs::read_to_string(format!("{root}/cgroup.controllers"));
        if controllers.is_ok_and(|known| known.split_whitespace().any(|one| one == "memory")) {
            fs::write(format!("{root}/cgroup.subtree_control"), "+memory")?;
            return Ok(root.into());
        }
    }
    Err(io::Error::other("memory is not in its hands here"))
}

/// Removes what runs left that were aborted.
fn remove_left(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        let owner = owner.and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|owner| !Path::new("/proc").join(owner).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// More than a group has.
const TOO_MUCH: usize = 256 << 20;

struct Row {
    name: String,
    version: u32,
    /// The reader's own, in bytes.
    budget: Option<u64>,
}

/// As between machines: what the writer has is not the reader's.
fn context(limits: Limits) -> Context {
    let tcp: Arc<dyn Transport> = Arc::new(TcpTransport::new());
    let basic: Arc<dyn Channel> = Arc::new(BasicChannel::new());
    let context = builder(timeouts()).transports([tcp]).channels([basic]);
    context.limits(limits).build().unwrap()
}

/// The reader.
pub(crate) fn play() {
    runtime().block_on(async {
        let mut limits = Limits::default();
        if let Ok(budget) = std::env::var("TEST_BUDGET") {
            limits.receive_budget = budget.parse().unwrap();
        }
        let context = context(limits);
        let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
        say("url", listener.url());
        let pipe = listener.accept().await.unwrap();
        loop {
            match pipe.read().await {
                Ok(message) => say("read", message.byte_len()),
                Err(error) if error.ends_pipe() => break,
                Err(error) => say("refused", error),
            }
        }
    });
}

fn run(row: &Row) -> Judged {
    let name = if row.budget.is_some() {
        "set"
    } else {
        "default"
    };
    let group = Group::new(row.version, name).expect("one could be made");
    let (key, path) = group.variable();
    let budget = row.budget.map(|budget| budget.to_string());
    let mut variables = vec![(key, &*path)];
    variables.extend(budget.as_deref().map(|budget| ("TEST_BUDGET", budget)));
    let mut child = Child::start_by(INSIDE, "small", &variables);
    let url = child.hear("url");
    let (large, small) = runtime().block_on(async {
        let context = context(Limits::default());
        let pipe = soon("a pipe", context.connect(url)).await.unwrap();
        let large = Message::new("large").tensor(heap(TOO_MUCH));
        let large = soon("an end", pipe.write(large)).await;
        let small = Message::new("small").tensor(heap(1 << 20));
        let small = soon("an end", pipe.write(small)).await;
        // Until it is read, where somebody is left.
        let _ = soon("an end", pipe.close()).await;
        (large, small)
    });
    let (said, end) = child.until_end(Duration::from_secs(30));
    let told = |key: &str| said.iter().find(|(known, _)| known == key);
    let (holds, outcome) = match row.budget {
        None => {
            let refusal = told("refused").map_or("", |(_, words)| words);
            let holds = large.as_ref().is_err_and(|error| !error.ends_pipe())
                && refusal.contains("raise `Limits::receive_budget`")
                && small.is_ok()
                && told("read").is_some_and(|(_, len)| *len == (1 << 20).to_string())
                && end == End::Code(0);
            (holds, format!("refused, and the pipe goes on: {refusal}"))
        }
        Some(_) => {
            let holds = matches!(large, Err(Error::Lost { .. }))
                && small.is_err()
                && end == End::Signal(libc::SIGKILL);
            let knows = large.as_ref().err().map(ToString::to_string);
            let knows = knows.unwrap_or_default();
            let knows = knows.split_once(": ").map_or("", |(_, words)| words);
            (
                holds,
                format!("the system kills the reader, and its peer knows: {knows}"),
            )
        }
    };
    let wrong = format!("{large:?}, then {small:?}; {said:?}, {end:?}");
    Judged {
        outcome: tidy(&outcome),
        wrong: (!holds).then_some(wrong),
    }
}

#[test]
fn a_peer_that_sends_more_than_a_control_group_has() {
    for version in [1, 2] {
        if let Err(error) = Group::new(version, "tried") {
            // `tests/vm/run` boots a machine that has those of version 2.
            println!("skipped: no control group of version {version}: {error}");
            continue;
        }
        let row = |budget: Option<u64>, what| Row {
            name: format!("256 MiB for a control group of 96 MiB, {what}"),
            version,
            budget,
        };
        let rows = [
            row(None, "the default budget"),
            row(Some(1 << 30), "a budget of 1 GiB"),
        ];
        judge(
            &format!("Memory of a control group, version {version}"),
            &rows,
            |row| row.name.clone(),
            run,
        );
    }
}
