//! Releases that several threads make, and that the next call of any of them takes along.

use loom::thread;

use super::collected::{Added, Collected};
use crate::check;
use crate::sync::{Arc, Mutex, lock};

struct Model {
    collected: Collected<u32>,
    queue: Mutex<Queue>,
}

/// Stand-in for the pipe's queue.
#[derive(Default)]
struct Queue {
    sent: Vec<u32>,
    /// So many times it has no room.
    full: usize,
    /// Somebody comes to send what is collected.
    asked: bool,
}

impl Model {
    fn new(full: usize) -> Arc<Self> {
        let queue = Queue {
            full,
            ..Queue::default()
        };
        Arc::new(Self {
            collected: Collected::default(),
            queue: Mutex::new(queue),
        })
    }

    fn send(&self, releases: &[u32]) -> bool {
        let mut queue = lock(&self.queue);
        let has_room = queue.full == 0;
        match has_room {
            true => queue.sent.extend(releases),
            false => queue.full -= 1,
        }
        has_room
    }

    fn ask(&self) {
        lock(&self.queue).asked = true;
    }

    fn release(&self, release: u32) {
        match self.collected.add(release) {
            Added::SendNow if self.send(&[release]) => {}
            Added::SendNow => {
                self.collected.keep(release);
                self.ask();
            }
            Added::Ask => self.ask(),
            Added::Asked => {}
        }
    }

    /// What a call does first.
    fn send_releases(&self) {
        if self.collected.has_some() && !self.send_collected() {
            self.ask();
        }
    }

    fn send_collected(&self) -> bool {
        loop {
            let mut first = Vec::new();
            let removed = self.collected.first(1, &mut first);
            if first.is_empty() {
                return true;
            }
            if !self.send(&first) {
                return false;
            }
            self.collected.remove(first.len(), removed);
        }
    }

    fn has_sent(&self, release: u32) -> bool {
        lock(&self.queue).sent.contains(&release)
    }
}

/// A sender that finds no room, beside one that finds nothing to send.
pub fn none_is_lost_where_there_is_no_room() {
    check(3, || {
        let model = Model::new(2);
        let releasing = [1, 2].map(|release| {
            let model = model.clone();
            thread::spawn(move || model.release(release))
        });
        model.send_releases();
        for thread in releasing {
            thread.join().unwrap();
        }
        if lock(&model.queue).asked {
            lock(&model.queue).full = 0;
            assert!(model.send_collected());
        }
        assert!(model.has_sent(1) && model.has_sent(2));
    });
}

/// Another thread sends what is collected, too.
pub fn a_call_overtakes_no_release_that_its_thread_has_made() {
    for (full, releases) in [(0, 2), (0, 3), (1, 1)] {
        check(3, move || {
            let model = Model::new(full);
            let of_caller = model.clone();
            let caller = thread::spawn(move || {
                for release in 1..=releases {
                    of_caller.release(release);
                }
                of_caller.send_releases();
                let is_full = lock(&of_caller.queue).full > 0;
                assert!(is_full || (1..=releases).all(|release| of_caller.has_sent(release)));
            });
            model.send_releases();
            caller.join().unwrap();
        });
    }
}
