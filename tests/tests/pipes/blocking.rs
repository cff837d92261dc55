//! Blocking contexts where the system refuses what they need: an error says so, and later calls try again.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tensorpipe::blocking::Context;
use tensorpipe_tests::{Child, Fate, forbid, say};

const FILES: Resource = Resource::RLIMIT_NOFILE;

pub(crate) fn play_without_files() {
    let context = Context::new();
    let (soft, hard) = getrlimit(FILES).unwrap();
    setrlimit(FILES, 3, hard).unwrap();
    let refused = context.listen(["tcp://127.0.0.1:0"]).map(drop);
    setrlimit(FILES, soft, hard).unwrap();
    say("refused", refused.unwrap_err());
    let listens = context.listen(["tcp://127.0.0.1:0"]).map(drop);
    say("later", format!("{listens:?}"));
}

#[test]
fn a_context_without_files_works_once_there_are_some() {
    let child = Child::start("without files", &[]);
    let refused = child.hear("refused");
    assert!(refused.contains("`ulimit -n`"), "{refused}");
    assert_eq!(child.hear("later"), "Ok(())");
}

pub(crate) fn play_without_threads() {
    for call in [libc::SYS_clone, libc::SYS_clone3] {
        forbid(call, None, Fate::Fails(libc::EAGAIN));
    }
    let refused = Context::new().connect("tcp://127.0.0.1:1");
    say("refused", refused.unwrap_err());
}

#[test]
fn a_context_without_threads_says_so() {
    let child = Child::start("without threads", &[]);
    let refused = child.hear("refused");
    assert!(refused.contains("a thread for blocking pipes"), "{refused}");
}
