//! The invariant of every test here: the victim's memory grows only in proportion to the bytes that hostile peers really sent.
//!
//! `growth <= BESIDE + sum over the peers at one time of (PEER + min(FACTOR * sent, MOST))`
//!
//! Growth is measured by the kernel's peak of resident memory (`VmHWM`), so no short peak is missed. A process has one peak, so each test
//! has a victim process of its own: that of its [`Target`](super::server::Target), or one in which the whole test runs ([`story!`]). In the
//! latter case the hostile peer's own memory counts, too. Other tests run in parallel without disturbing the figures. Victims over tcp have
//! huge pages, also for their heap; victims over shm have none; a test in its own process runs with and without them. A test that allows
//! more growth, or has an honest peer in the victim's process, declares that ([`Account::allow`]). `waiting`, and the tests of two hundred
//! peers in `tokens`, use their own, tighter bounds.

use std::collections::HashMap;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use nix::libc;
use tensorpipe_tests::{forget_peak, is_sanitized, make_code_resident, peak_resident, resident};

use super::stream::Way;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Growth of the victim itself: honest peers that it serves, its threads' stacks, memory that its allocator keeps.
const BESIDE: u64 = 4 * MIB;

/// For each hostile peer that is there, as SECURITY.md says of hostile peers. An open pipe takes no more.
const PEER: u64 = 64 * KIB;

/// For each byte that it sent. Calls of 66 bytes that wait for their tensors take most: 25 to 30 times that, in tables and tasks.
const FACTOR: u64 = 40;

/// The most for all bytes of a peer together: the bytes that a pipe may have in flight.
const MOST: u64 = 16 * MIB;

const STORY: &str = "TEST_STORY";
const HUGE_PAGES: &str = "TEST_HUGE_PAGES";

/// The account of one victim: its memory before, and the growth that its hostile peers have paid for.
#[derive(Debug)]
pub(crate) struct Account {
    process: u32,
    before: u64,
    paid: Mutex<Paid>,
}

#[derive(Debug)]
struct Paid {
    beside: u64,
    /// By those that are there.
    now: u64,
    most: u64,
}

impl Account {
    /// Of the victim that hostile peers reach at these URLs.
    pub(crate) fn open(process: u32, urls: &[&str]) -> Arc<Self> {
        forget_peak(process);
        let account = Arc::new(Self {
            process,
            before: resident(process),
            paid: Mutex::new(Paid {
                beside: BESIDE,
                now: 0,
                most: 0,
            }),
        });
        let mut accounts = accounts();
        for url in urls {
            accounts.insert((*url).to_owned(), Arc::downgrade(&account));
        }
        account
    }

    /// More, in a story that says why.
    pub(crate) fn allow(&self, bytes: u64) {
        self.paid().beside += bytes;
    }

    fn paid(&self) -> MutexGuard<'_, Paid> {
        self.paid.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks the invariant.
    #[track_caller]
    pub(crate) fn check(&self) {
        // A sanitizer keeps what is freed.
        if is_sanitized() {
            return;
        }
        let grown = peak_resident(self.process).saturating_sub(self.before);
        let paid = self.paid();
        let paid = paid.beside + paid.most;
        println!("memory: {} KiB of {} KiB", grown / KIB, paid / KIB);
        assert!(
            grown <= paid,
            "the victim grew by {} KiB; hostile peers have paid for {} KiB",
            grown / KIB,
            paid / KIB
        );
    }
}

/// Those of victims in processes of their own, by URL.
fn accounts() -> MutexGuard<'static, HashMap<String, Weak<Account>>> {
    static ACCOUNTS: OnceLock<Mutex<HashMap<String, Weak<Account>>>> = OnceLock::new();
    let accounts = ACCOUNTS.get_or_init(Mutex::default);
    accounts.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Of this process, if it runs one story.
static OWN: OnceLock<Arc<Account>> = OnceLock::new();

/// What one hostile peer pays, for as long as it is there.
#[derive(Debug)]
pub(crate) struct Purse {
    account: Option<Arc<Account>>,
    sent: u64,
}

impl Purse {
    /// Of a peer that connects to this URL.
    pub(crate) fn at(url: &str) -> Self {
        let victim = accounts().get(url).and_then(Weak::upgrade);
        Self::of(victim.or_else(|| OWN.get().cloned()))
    }

    /// Of one to which a victim in this process connects.
    pub(crate) fn here() -> Self {
        Self::of(OWN.get().cloned())
    }

    fn of(account: Option<Arc<Account>>) -> Self {
        let purse = Self { account, sent: 0 };
        purse.change(0, PEER);
        purse
    }

    /// It has sent so many bytes more.
    pub(crate) fn pays(&mut self, bytes: usize) {
        let before = self.worth();
        self.sent += bytes as u64;
        self.change(before, self.worth());
    }

    fn worth(&self) -> u64 {
        PEER + (FACTOR * self.sent).min(MOST)
    }

    fn change(&self, before: u64, after: u64) {
        if let Some(account) = &self.account {
            let mut paid = account.paid();
            paid.now = paid.now + after - before;
            paid.most = paid.most.max(paid.now);
        }
    }
}

impl Drop for Purse {
    fn drop(&mut self) {
        self.change(self.worth(), 0);
    }
}

/// Variables of a victim that is reached that way.
pub(crate) fn variables(way: Way) -> [(&'static str, &'static str); 2] {
    match way {
        Way::Tcp => with_huge_pages(true),
        Way::Shm => with_huge_pages(false),
    }
}

pub(crate) fn with_huge_pages(on: bool) -> [(&'static str, &'static str); 2] {
    match on {
        true => [
            (HUGE_PAGES, "on"),
            ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"),
        ],
        false => [(HUGE_PAGES, "off"), ("GLIBC_TUNABLES", "")],
    }
}

/// What a victim does first: from now on only data makes its memory grow.
#[allow(unsafe_code, reason = "huge pages are forbidden by a system call")]
pub(crate) fn victim() {
    if std::env::var(HUGE_PAGES).is_ok_and(|huge| huge == "off") {
        // SAFETY: the call takes numbers, and touches no memory.
        let set = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
        assert_eq!(set, 0);
    }
    make_code_resident();
}

/// The end of a story in a process of its own checks the invariant.
#[derive(Debug)]
pub(crate) struct Story(Arc<Account>);

impl Story {
    /// In such a process the story, otherwise none, and it has run there. `place` is the name of something in its function.
    pub(crate) fn begin(place: &str) -> Option<Self> {
        let parts = place
            .split("::")
            .filter(|part| !part.contains(['{', '}', '<']));
        let parts: Vec<_> = parts.collect();
        // Without the crate, and what is in the function.
        let name = parts[1..parts.len() - 1].join("::");
        if std::env::var(STORY).is_ok_and(|running| running == name) {
            victim();
            let account = Account::open(std::process::id(), &[]);
            return Some(Self(OWN.get_or_init(|| account).clone()));
        }
        let tell = |huge| {
            Command::new(std::env::current_exe().expect("this program has a path"))
                .args([&*name, "--exact", "--nocapture", "--test-threads=1"])
                .env(STORY, &name)
                .envs(with_huge_pages(huge))
                .output()
                .expect("the test binary starts again")
        };
        let [with, without] = std::thread::scope(|scope| {
            let told = [true, false].map(|huge| scope.spawn(move || tell(huge)));
            told.map(|told| told.join().expect("it ends"))
        });
        for (huge, done) in [(true, with), (false, without)] {
            let said = String::from_utf8_lossy(&done.stdout);
            let complaints = String::from_utf8_lossy(&done.stderr);
            println!("huge pages: {huge}\n{said}");
            assert!(done.status.success(), "{said}\n{complaints}");
            assert!(said.contains("1 passed"), "{name} does not run: {said}");
        }
        None
    }

    /// More, in a story that says why.
    pub(crate) fn allow(&self, bytes: u64) {
        self.0.allow(bytes);
    }
}

impl Drop for Story {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.0.check();
        }
    }
}

/// Runs the rest of the function, a test without arguments, in a process of its own.
macro_rules! story {
    () => {{
        fn here() {}
        match $crate::memory::Story::begin(std::any::type_name_of_val(&here)) {
            Some(story) => story,
            None => return,
        }
    }};
}
pub(crate) use story;
