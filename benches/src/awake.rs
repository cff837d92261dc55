//! Both ends awake: a trip without the round's tensor, there and back, again and again until trips are short.
//!
//! A large tensor takes tens of milliseconds to write. Meanwhile the peer falls asleep, and waking it costs more than
//! moving a leased tensor. So where it is the transfer that counts, trips come between the writing and the timed round:
//! the tensor is as fresh as before, and nobody sleeps.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::system::{Client, Trip};

/// What is known of the trips of one client.
#[derive(Debug)]
pub(crate) struct Rouser {
    shortest: Duration,
}

impl Rouser {
    pub(crate) fn new() -> Self {
        Self {
            shortest: Duration::MAX,
        }
    }

    /// Returns when a few of these trips in a row were short, or after [`MOST`].
    ///
    /// # Errors
    /// The client's own.
    pub(crate) async fn rouse<C: Client>(&mut self, client: &mut C, trip: Trip) -> Result<()> {
        let mut short = 0;
        for _ in 0..MOST {
            let start = Instant::now();
            client.touch(trip).await?;
            short = if self.is_short(start.elapsed()) {
                short + 1
            } else {
                0
            };
            if short == IN_A_ROW {
                break;
            }
        }
        Ok(())
    }

    /// Whether nobody slept in a trip of that length: the shortest one ever tells how long those take.
    fn is_short(&mut self, took: Duration) -> bool {
        self.shortest = self.shortest.min(took);
        took <= 2 * self.shortest
    }
}

const IN_A_ROW: u32 = 3;
/// Trips at most: some machines are never quiet.
const MOST: u32 = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trip_is_short_by_the_shortest_one_so_far() {
        let mut rouser = Rouser::new();
        let trips = [70, 60, 5, 11, 6, 4, 8, 9];
        let short = trips.map(|micros| rouser.is_short(Duration::from_micros(micros)));
        assert_eq!(
            short,
            [true, true, true, false, true, true, true, false],
            "of {trips:?} µs"
        );
    }
}
