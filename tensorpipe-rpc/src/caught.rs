//! Panics of the user's code, caught.
//!
//! Invariant: no panic passes [`catch_panic`], not even when the panic's payload panics while it is dropped.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Poll, Waker};

/// Runs `run`. A panic becomes an error with its text.
pub(crate) fn catch_panic<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(text)
}

/// Polls a future. A panic ends it, as an error with its text.
pub(crate) fn catch_panic_poll<T>(poll: impl FnOnce() -> Poll<T>) -> Poll<Result<T, String>> {
    match catch_panic(poll) {
        Ok(polled) => polled.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    }
}

/// Drops a value whose panic harms nobody else.
pub(crate) fn drop_quietly<T>(value: T, what: &str) {
    if let Err(panic) = catch_panic(|| drop(value)) {
        ignore_panic(|| tracing::warn!(panic, "{what} panicked while it was dropped"));
    }
}

/// Wakes a task. A waker that panics keeps nobody else asleep.
pub(crate) fn wake(waker: Waker) {
    if let Err(panic) = catch_panic(|| waker.wake()) {
        ignore_panic(|| tracing::warn!(panic, "a waker panicked; its task was not woken"));
    }
}

/// Runs code that may call a subscriber of `tracing`. A panic ends `run` alone. Nothing is logged, as that calls the subscriber again.
pub(crate) fn ignore_panic(run: impl FnOnce()) {
    let _ = catch_panic(run);
}

fn text(panic: Box<dyn Any + Send>) -> String {
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => match panic.downcast::<&str>() {
            Ok(text) => (*text).to_owned(),
            Err(panic) => {
                if let Err(next) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
                    // Each drop may panic anew, for ever: leak this one.
                    std::mem::forget(next);
                }
                "with no message".to_owned()
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::catch_panic;

    /// A payload whose drop panics with another one of these, for ever.
    struct Again(u32);

    impl Drop for Again {
        fn drop(&mut self) {
            std::panic::panic_any(Self(self.0 + 1));
        }
    }

    #[test]
    fn a_panic_is_its_text_and_nothing_of_it_goes_on() {
        assert_eq!(catch_panic(|| 1), Ok(1));
        assert_eq!(
            catch_panic(|| panic!("plain")),
            Err::<(), _>("plain".to_owned())
        );
        assert_eq!(
            catch_panic(|| panic!("{}", "made")),
            Err::<(), _>("made".to_owned())
        );
        let again = catch_panic(|| std::panic::panic_any(Again(0)));
        assert_eq!(again, Err::<(), _>("with no message".to_owned()));
    }
}
