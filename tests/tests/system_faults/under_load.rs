//! Two processes that call each other without a pause, over each means of the scene. One of them is struck at random moments: it is
//! stopped and goes on, it forks, and in the end it is killed or stopped for good. The other one survives.
//!
//! - Before the end, each call is answered with the right bytes, or its own deadline has passed.
//! - After it, each call ends in a typed error: never later than [`LATE`] after its deadline.
//! - Then the survivor serves a new peer, and calls it; of those that were, nothing is left.
//!
//! The moments follow from a seed, which is printed. `TEST_SEED` takes one again.

#![allow(unsafe_code, reason = "a process is forked")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant, SystemTime};

use fastrand::Rng;
use nix::errno::Errno;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
use tensorpipe::conformance::pattern;
use tensorpipe::{Context, Error, Tensor};
use tensorpipe_rpc::{CallError, Connection, Server};
use tensorpipe_tests::{Child, End, Judged, descriptors, eventually, judge, runtime, say, soon};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::scene::{
    EchoClient, EchoService, Echoes, LARGE, PARTS, SMALL, context, pooled_of, timeouts,
};

/// By how much a call may end after its deadline, beside what the machine was late meanwhile to run a thread that was due ([`LAG`]).
/// Where two processors had 15 threads to run, the latest was late by 0.3 s.
const LATE: Duration = Duration::from_secs(1);

/// What calls have, by turns at random. The shortest passes while a peer is stopped.
const DEADLINES: [Duration; 3] = [
    Duration::from_millis(40),
    Duration::from_millis(400),
    Duration::from_secs(4),
];

/// After this a peer that says nothing is given up.
const SILENCE: Duration = Duration::from_secs(3);

/// Calls that are under way at once, of each client.
const AT_ONCE: usize = 2;

/// Connecting fails by then where the peer is killed meanwhile: far below [`Timeouts::handshake`](tensorpipe::Timeouts::handshake), which
/// only silent ones come to.
const CONNECTING: Duration = Duration::from_secs(5);

/// Far above what a call takes that is not stuck, and what a survivor does.
const BOUND: Duration = Duration::from_secs(20);
const WHOLE: Duration = Duration::from_secs(100);

struct Row {
    name: &'static str,
    /// What happens to the peer, in words of [`Strikes`].
    strikes: &'static str,
    rounds: usize,
}

/// What happens to a peer until its end.
#[derive(Clone, Copy)]
struct Strikes {
    stops: bool,
    /// The survivor forks, too.
    forks: bool,
    /// It is not killed, but stopped.
    for_good: bool,
    /// It is killed before it has served anybody.
    is_early: bool,
}

impl Strikes {
    fn of(words: &str) -> Self {
        let has = |word| words.split(' ').any(|one| one == word);
        Self {
            stops: has("stops"),
            forks: has("forks"),
            for_good: has("for-good"),
            is_early: has("early"),
        }
    }
}

fn up_to(millis: u64, dice: &mut Rng) -> Duration {
    Duration::from_micros(dice.u64(..1000 * millis))
}

/// What calls carry: made once, since it takes long.
static CONTENTS: LazyLock<Vec<Vec<u8>>> =
    LazyLock::new(|| (1..=2).map(|seed| pattern(LARGE, seed)).collect());

/// By how much a thread of this process that does nothing but sleep was late, in all, in microseconds.
static LAG: AtomicU64 = AtomicU64::new(0);

fn lag() -> Duration {
    Duration::from_micros(LAG.load(Ordering::Relaxed))
}

fn measure_lag() {
    const STEP: Duration = Duration::from_millis(5);
    std::thread::spawn(|| {
        loop {
            let begun = Instant::now();
            std::thread::sleep(STEP);
            let late = begun.elapsed().saturating_sub(STEP);
            LAG.fetch_add(late.as_micros() as u64, Ordering::Relaxed);
        }
    });
}

/// How calls ended.
#[derive(Default)]
struct Account {
    answered: AtomicU64,
    passed: AtomicU64,
    /// By how much a call ended after its deadline at most, in microseconds.
    late: AtomicU64,
    /// The peer is at its end: calls may fail.
    is_over: AtomicBool,
    wrong: Mutex<Vec<String>>,
}

impl Account {
    fn wrong(&self, what: String) {
        self.wrong.lock().unwrap().push(what);
    }
}

/// Contexts that listen, one for each part of the scene.
struct Ends(Vec<(&'static str, Context, Server)>);

impl Ends {
    async fn open() -> Self {
        let mut ends = Vec::new();
        for part in PARTS {
            let mut timeouts = timeouts();
            timeouts.silence = Some(SILENCE);
            let (context, url) = context(part, timeouts).unwrap();
            let server = Server::builder().context(&context);
            let server = server.service(EchoService::new(Echoes)).listen(url).await;
            ends.push((part, context, server.unwrap()));
        }
        Self(ends)
    }

    fn urls(&self) -> String {
        let urls = self.0.iter().map(|(.., server)| server.url().to_string());
        urls.collect::<Vec<_>>().join("|")
    }

    /// Connects to a peer. Each caller has had an answer.
    async fn callers(
        &self,
        urls: &str,
        dice: &mut Rng,
        account: &Arc<Account>,
    ) -> Result<Vec<Caller>, String> {
        let mut callers = Vec::new();
        for ((part, context, _), url) in self.0.iter().zip(urls.split('|')) {
            let connection = Connection::builder().context(context).connect(url);
            let connection = soon("a connection", connection).await;
            let connection = connection.map_err(|error| error.to_string())?;
            let client = soon("a client", EchoClient::on(&connection)).await;
            let client = client.map_err(|error| error.to_string())?;
            for _ in 0..AT_ONCE {
                let caller = Caller {
                    part,
                    context: context.clone(),
                    client: client.clone(),
                    dice: dice.fork(),
                    account: account.clone(),
                };
                caller.has_an_answer().await?;
                callers.push(caller);
            }
        }
        Ok(callers)
    }

    /// Waits until nothing is left of peers that were.
    async fn rest(&self) {
        for (part, context, server) in &self.0 {
            let left = || {
                let pool = context.pool().stats();
                let in_use = pool.outstanding_bytes + pool.lendable.outstanding_bytes;
                (server.pipes().len(), server.calls_in_flight(), in_use)
            };
            eventually(&format!("{part} rests"), || left() == (0, 0, 0)).await;
        }
    }
}

struct Caller {
    part: &'static str,
    context: Context,
    client: EchoClient,
    dice: Rng,
    account: Arc<Account>,
}

impl Caller {
    async fn has_an_answer(&self) -> Result<(), String> {
        let content = &CONTENTS[0][..SMALL];
        let tensor = Tensor::from_vec(content.to_vec(), [SMALL as u64]).unwrap();
        let answer = soon("an answer", self.client.echo(&tensor).into_future()).await;
        let answer = answer.map_err(|error| error.to_string())?;
        assert!(answer.as_bytes().unwrap() == content);
        Ok(())
    }

    /// Begins to call without a pause, until the connection ends: each tells how that was.
    fn start(callers: Vec<Self>) -> JoinSet<Error> {
        let calls = callers.into_iter().map(|mut caller| async move {
            loop {
                if let Some(end) = caller.call_once().await {
                    return end;
                }
            }
        });
        calls.collect()
    }

    /// How the connection has ended, if so.
    async fn call_once(&mut self) -> Option<Error> {
        let content = self.dice.choice(&*CONTENTS).unwrap();
        let tensor = match self.dice.u8(..3) {
            0 => pooled_of(&self.context, content).unwrap(),
            1 => Tensor::from_vec(content.clone(), [LARGE as u64]).unwrap(),
            _ => Tensor::from_vec(content[..SMALL].to_vec(), [SMALL as u64]).unwrap(),
        };
        let deadline = self.dice.choice(DEADLINES).unwrap();
        let client = self.client.with_deadline(deadline);
        let (begun, lag_before, account) = (Instant::now(), lag(), &self.account);
        let ended = timeout(BOUND, client.echo(&tensor).into_future()).await;
        let took = begun.elapsed();
        let late = took.saturating_sub(deadline);
        if late > LATE {
            // The thread that measures it may not have had its turn yet.
            sleep(Duration::from_millis(100)).await;
        }
        let lag = lag() - lag_before;
        account
            .late
            .fetch_max(late.as_micros() as u64, Ordering::Relaxed);
        match ended {
            ended if late > LATE + lag => {
                account.wrong(format!(
                    "{}: HANG for {took:?} with {deadline:?}, {lag:?} of it the machine's: {ended:?}",
                    self.part
                ));
                None
            }
            Ok(Ok(answer)) => {
                account.answered.fetch_add(1, Ordering::Relaxed);
                if answer.as_bytes().unwrap() != &content[..tensor.byte_len()] {
                    account.wrong(format!("{}: other bytes came back", self.part));
                }
                None
            }
            Ok(Err(CallError::Deadline { .. })) if took >= deadline => {
                account.passed.fetch_add(1, Ordering::Relaxed);
                None
            }
            Ok(Err(CallError::Connection { error, .. })) if error.ends_pipe() => {
                if !account.is_over.load(Ordering::SeqCst) {
                    account.wrong(format!("{}, before the end: {error}", self.part));
                }
                Some(error)
            }
            other => {
                account.wrong(format!("{}: {other:?}", self.part));
                None
            }
        }
    }
}

/// Forks at random moments while it lives. Children do nothing, and some of them live on for a while.
struct Forking {
    is_over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Forking {
    fn start(mut dice: Rng) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let until = is_over.clone();
        let fork = move || {
            let mut children: Vec<Pid> = Vec::new();
            while !until.load(Ordering::Relaxed) {
                std::thread::sleep(up_to(60, &mut dice));
                let lives = if dice.bool() {
                    up_to(300, &mut dice)
                } else {
                    Duration::ZERO
                };
                children.push(fork_once(lives));
                children.retain(|child| !has_ended(*child, Some(WaitPidFlag::WNOHANG)));
            }
            assert!(children.into_iter().all(|child| has_ended(child, None)));
        };
        Self {
            is_over,
            thread: Some(std::thread::spawn(fork)),
        }
    }
}

impl Drop for Forking {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(std::thread::JoinHandle::join);
        assert!(
            ended.is_none_or(|ended| ended.is_ok()) || std::thread::panicking(),
            "a forked child ended badly"
        );
    }
}

/// Whether a forked child has ended, which must be well.
fn has_ended(child: Pid, flags: Option<WaitPidFlag>) -> bool {
    match waitpid(child, flags).unwrap() {
        WaitStatus::StillAlive => false,
        WaitStatus::Exited(_, 0) => true,
        other => panic!("{other:?}"),
    }
}

fn fork_once(lives: Duration) -> Pid {
    let lives = libc::timespec {
        tv_sec: 0,
        tv_nsec: lives.subsec_nanos().into(),
    };
    // SAFETY: the child makes two system calls, and runs nothing else of this process.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            // SAFETY: the time is read during the call, and what is left of it is not asked for.
            unsafe { libc::nanosleep(&raw const lives, std::ptr::null_mut()) };
            // SAFETY: ends the child without running what the parent has registered.
            unsafe { libc::_exit(0) }
        }
        ForkResult::Parent { child } => child,
    }
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap()
}

/// The peer: serves and calls the survivor, until its end.
pub(crate) fn play_struck() {
    let strikes = Strikes::of(&variable("TEST_STRIKES"));
    let mut dice = Rng::with_seed(variable("TEST_SEED").parse().unwrap());
    measure_lag();
    runtime().block_on(async {
        let (ends, account) = (Ends::open().await, Arc::new(Account::default()));
        say("urls", ends.urls());
        let _forking = strikes.forks.then(|| Forking::start(dice.fork()));
        let urls = variable("TEST_URLS");
        let callers = ends.callers(&urls, &mut dice, &account).await;
        say("served", "");
        let mut calls = Caller::start(callers.unwrap());
        let mut told = 0;
        loop {
            let ended = timeout(Duration::from_millis(20), calls.join_next()).await;
            match ended {
                Err(_) => {}
                Ok(Some(ended)) => say("wrong", format!("a caller ended: {ended:?}")),
                Ok(None) => std::future::pending().await,
            }
            let wrong = account.wrong.lock().unwrap();
            wrong[told..].iter().for_each(|what| say("wrong", what));
            told = wrong.len();
        }
    });
}

/// The survivor: has one peer after another, of which the last is not struck before its end.
pub(crate) fn play_survivor() {
    let strikes = Strikes::of(&variable("TEST_STRIKES"));
    let rounds: usize = variable("TEST_ROUNDS").parse().unwrap();
    let mut dice = Rng::with_seed(variable("TEST_SEED").parse().unwrap());
    measure_lag();
    // What a process keeps once it has done all of this.
    live(Strikes::of(""), 0, &mut dice);
    let before = at_rest();
    live(strikes, rounds, &mut dice);
    let until = Instant::now() + Duration::from_secs(20);
    while descriptors() > before || mapped() > 0 {
        assert!(
            Instant::now() < until,
            "{} descriptors after {before}, {} segments are mapped",
            descriptors(),
            mapped()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    // No child of its is left, either.
    let child = waitpid(None, Some(WaitPidFlag::WNOHANG));
    assert_eq!(child, Err(Errno::ECHILD));
    say("done", "");
}

/// Descriptors, once whoever listened to a child has closed what it listened on.
fn at_rest() -> usize {
    let counts = (0..20).map(|_| {
        std::thread::sleep(Duration::from_millis(10));
        descriptors()
    });
    counts.min().unwrap_or(0)
}

/// Segments of shared memory that are mapped.
fn mapped() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let segments = maps
        .lines()
        .filter(|line| line.contains("memfd:tensorpipe"));
    segments.count()
}

fn live(strikes: Strikes, rounds: usize, dice: &mut Rng) {
    runtime().block_on(async {
        let (ends, account) = (Ends::open().await, Arc::new(Account::default()));
        for _ in 0..rounds {
            round(&ends, strikes, dice, &account).await;
        }
        round(&ends, Strikes::of(""), dice, &account).await;
        for what in account.wrong.lock().unwrap().iter() {
            say("wrong", what);
        }
        let of = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let (answered, passed, late) = (&account.answered, &account.passed, &account.late);
        say(
            "calls",
            format!(
                "{} answered, {} past their deadline, at most {:?} late",
                of(answered),
                of(passed),
                Duration::from_micros(of(late))
            ),
        );
        for (_, _, server) in ends.0 {
            assert_eq!(server.shutdown().await, 0);
        }
    });
}

/// A peer from its beginning to its end.
async fn round(ends: &Ends, strikes: Strikes, dice: &mut Rng, account: &Arc<Account>) {
    account.is_over.store(false, Ordering::SeqCst);
    let words = if strikes.forks { "forks" } else { "" };
    let seed = dice.u64(..).to_string();
    let variables = [
        ("TEST_URLS", &*ends.urls()),
        ("TEST_STRIKES", words),
        ("TEST_SEED", &seed),
    ];
    let child = Child::start("struck", &variables);
    let (child, urls) = beside(move || {
        let urls = child.hear("urls");
        (child, urls)
    })
    .await;
    let forking = strikes.forks.then(|| Forking::start(dice.fork()));
    let mut child = if strikes.is_early {
        early_end(ends, &urls, child, dice, account).await
    } else {
        late_end(ends, &urls, child, strikes, dice, account).await
    };
    drop(forking);
    let complaints = beside(move || {
        child.kill();
        let (said, end) = child.until_end(Duration::from_secs(10));
        let wrong = said.into_iter().filter(|(key, _)| key == "wrong");
        let mut wrong: Vec<_> = wrong.map(|(_, what)| format!("the peer: {what}")).collect();
        if child.complaints().contains("panicked") || end != End::Signal(libc::SIGKILL) {
            wrong.push(format!("the peer: {end:?}, {}", child.complaints()));
        }
        wrong
    })
    .await;
    complaints.into_iter().for_each(|what| account.wrong(what));
    ends.rest().await;
}

/// The peer is killed while both connect: that works, or fails in good time.
async fn early_end(
    ends: &Ends,
    urls: &str,
    mut child: Child,
    dice: &mut Rng,
    account: &Arc<Account>,
) -> Child {
    // Half of them before there is a connection.
    let most = dice.choice([5, 100]).unwrap();
    let moment = up_to(most, dice);
    let killing = beside(move || {
        std::thread::sleep(moment);
        child.kill();
        child
    });
    let connecting = timeout(CONNECTING, ends.callers(urls, dice, account));
    let (child, ended) = tokio::join!(killing, connecting);
    let ended = ended.map(|ended| ended.err().unwrap_or_else(|| "connected first".to_owned()));
    if ended.is_err() {
        account.wrong("HANG while the peer is killed".to_owned());
    }
    say("round", ended.unwrap_or_default());
    child
}

/// The peer has served each caller, and comes to its end while both call.
async fn late_end(
    ends: &Ends,
    urls: &str,
    child: Child,
    strikes: Strikes,
    dice: &mut Rng,
    account: &Arc<Account>,
) -> Child {
    let callers = ends.callers(urls, dice, account).await.unwrap();
    let child = beside(move || {
        child.hear("served");
        child
    })
    .await;
    let mut calls = Caller::start(callers);
    let (mut moments, over) = (dice.fork(), account.clone());
    let child = beside(move || {
        let mut child = child;
        strike(&mut child, strikes, &mut moments, &over);
        child
    })
    .await;
    let mut ended = 0;
    while let Some(error) = soon("all calls end", calls.join_next()).await {
        let is_expected = match error.as_ref().unwrap() {
            Error::Lost { .. } => !strikes.for_good,
            Error::Silent { .. } => strikes.for_good,
            _ => false,
        };
        if !is_expected {
            account.wrong(format!("the end was {error:?}"));
        }
        ended += 1;
    }
    say("round", format!("{ended} callers have seen the end"));
    child
}

/// What blocks, on a thread of its own.
async fn beside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

/// Stops the peer and lets it go on a few times, then brings it to its end.
fn strike(child: &mut Child, strikes: Strikes, dice: &mut Rng, account: &Account) {
    let mut wait = |most| std::thread::sleep(up_to(most, dice));
    if strikes.stops {
        for _ in 0..3 {
            wait(100);
            child.suspend();
            wait(100);
            child.resume();
        }
    }
    wait(200);
    // Now and then it is killed while it stands still.
    if strikes.stops && dice.u8(..3) == 0 {
        child.suspend();
    }
    account.is_over.store(true, Ordering::SeqCst);
    match strikes.for_good {
        true => child.suspend(),
        false => child.kill(),
    }
}

fn run(row: &Row, seed: u64) -> Judged {
    let variables = [
        ("TEST_STRIKES", row.strikes),
        ("TEST_ROUNDS", &row.rounds.to_string()),
        ("TEST_SEED", &seed.to_string()),
    ];
    let mut survivor = Child::start("survivor", &variables);
    let (said, end) = survivor.until_end(WHOLE);
    let told = |key: &'static str| {
        let of_key = said.iter().filter(move |(known, _)| known == key);
        of_key.map(|(_, what)| &**what)
    };
    println!(
        "{}, seed {seed}: {}",
        row.name,
        told("calls").collect::<Vec<_>>().join("; ")
    );
    let is_whole = end == End::Code(0)
        && told("round").count() == row.rounds + 2
        && told("done").count() == 1
        && told("wrong").count() == 0;
    let wrong = || {
        format!(
            "with TEST_SEED={seed}: {end:?}, {said:?}; {}",
            survivor.complaints()
        )
    };
    let strikes = Strikes::of(row.strikes);
    let until = if strikes.is_early {
        "connecting works, or fails in good time"
    } else if strikes.for_good {
        "each call is answered, or ends at its deadline, until nothing is heard from the peer"
    } else {
        "each call is answered, or ends at its deadline, until the connection is lost"
    };
    Judged {
        outcome: format!("{until}; then a new peer is served, and nothing is left"),
        wrong: (!is_whole).then(wrong),
    }
}

#[test]
fn calls_while_a_process_stops_forks_and_dies_at_random() {
    let seed = std::env::var("TEST_SEED").map_or_else(
        |_| {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            now.unwrap().as_nanos() as u64
        },
        |seed| seed.parse().unwrap(),
    );
    let rows = [
        Row {
            name: "the peer stops and goes on, then stops for good (SIGSTOP)",
            strikes: "stops for-good",
            rounds: 2,
        },
        Row {
            name: "the peer stops and goes on, then is killed (SIGKILL)",
            strikes: "stops",
            rounds: 5,
        },
        Row {
            name: "the peer is killed while both connect",
            strikes: "early",
            rounds: 8,
        },
        Row {
            name: "both processes fork, the peer stops and goes on, then is killed",
            strikes: "stops forks",
            rounds: 5,
        },
    ];
    let name = |row: &Row| row.name.to_owned();
    judge("Signals and forks", &rows, name, |row| run(row, seed));
}
