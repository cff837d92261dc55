//! The measuring loop: prepare, **round**, check, again and again; only the round is timed.
//!
//! The loop is generic over the client, so that only the client's own work lies between the two readings of the clock.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;

use crate::plan::Begin;
use crate::system::{Client, Trip};

/// Warms up, then measures for `length` (wall clock, preparing and checking included), and at least
/// [`FEWEST_ROUNDS`] rounds. Before each one, when it is prepared, both ends are brought into the state `begin`.
pub(crate) async fn drive<C: Client>(
    client: &mut C,
    length: Duration,
    begin: Begin,
) -> Result<Samples> {
    let mut shortest = Duration::MAX;
    let mut round = 0;
    let mut samples = Samples::new();
    let warm_up = (length / 5).min(LONGEST_WARM_UP);
    let start = Instant::now();
    while round < WARM_UP_ROUNDS || start.elapsed() < warm_up {
        one(client, round, begin, &mut shortest).await?;
        round += 1;
    }
    let warm = round;
    let start = Instant::now();
    while round - warm < FEWEST_ROUNDS || start.elapsed() < length {
        let took = one(client, round, begin, &mut shortest).await?;
        samples.record(took, client.calls_per_round());
        round += 1;
    }
    Ok(samples)
}

async fn one<C: Client>(
    client: &mut C,
    round: u64,
    begin: Begin,
    shortest: &mut Duration,
) -> Result<Duration> {
    let prepared = client.prepare(round).await;
    prepared.with_context(|| format!("preparing round {round}"))?;
    let roused = match begin {
        Begin::AsTheyAre => Ok(()),
        Begin::Asleep(pause_us) => {
            tokio::time::sleep(Duration::from_micros(pause_us)).await;
            Ok(())
        }
        Begin::Awake => rouse(client, Trip::Bare, shortest).await,
        Begin::Hot => rouse(client, Trip::Leased, shortest).await,
    };
    roused.with_context(|| format!("before round {round}"))?;
    let start = Instant::now();
    let done = client.round().await;
    let took = start.elapsed();
    done.with_context(|| format!("round {round}"))?;
    let checked = client.check(round).await;
    checked.with_context(|| format!("checking round {round}"))?;
    Ok(took)
}

/// Wakes both ends: trips without the round's tensor, until a few in a row were short, or after [`MOST_TRIPS`].
///
/// A large tensor takes tens of milliseconds to write. Meanwhile the peer falls asleep, and waking it costs more than
/// moving a leased tensor. The trips leave the tensor unchanged and both ends awake. A trip is short if it takes at most
/// twice as long as the shortest trip so far.
async fn rouse<C: Client>(client: &mut C, trip: Trip, shortest: &mut Duration) -> Result<()> {
    let mut short = 0;
    for _ in 0..MOST_TRIPS {
        let start = Instant::now();
        client.touch(trip).await?;
        let took = start.elapsed();
        *shortest = took.min(*shortest);
        short = if took <= 2 * *shortest { short + 1 } else { 0 };
        if short == SHORT_IN_A_ROW {
            break;
        }
    }
    Ok(())
}

/// Times of all rounds of one measurement.
#[derive(Debug)]
pub(crate) struct Samples {
    nanos: Histogram<u64>,
    calls: u64,
    timed: Duration,
}

impl Samples {
    pub(crate) fn new() -> Self {
        let nanos = Histogram::new_with_bounds(1, LONGEST_NANOS, PRECISION);
        Self {
            nanos: nanos.expect("bounds and digits are valid"),
            calls: 0,
            timed: Duration::ZERO,
        }
    }

    /// Adds a round of `calls` calls that took `took` together.
    pub(crate) fn record(&mut self, took: Duration, calls: u64) {
        let each = took.as_nanos() / u128::from(calls.max(1));
        let each = u64::try_from(each).unwrap_or(u64::MAX);
        self.nanos.saturating_record(each);
        self.calls += calls;
        self.timed += took;
    }

    /// Adds the samples of another measurement.
    pub(crate) fn add(&mut self, other: &Self) {
        self.nanos += &other.nanos;
        self.calls += other.calls;
        self.timed += other.timed;
    }

    /// Microseconds that a call took at `quantile` (0.5 is the median).
    pub(crate) fn micros(&self, quantile: f64) -> f64 {
        self.nanos.value_at_quantile(quantile) as f64 / 1e3
    }

    pub(crate) fn calls(&self) -> u64 {
        self.calls
    }

    /// Calls a second, of the timed part alone.
    pub(crate) fn per_second(&self) -> f64 {
        if self.timed.is_zero() {
            return 0.0;
        }
        self.calls as f64 / self.timed.as_secs_f64()
    }
}

/// The middle one of `values`, the mean of the two middle ones of an even number; `None` of none.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    Some(match sorted.len() % 2 {
        1 => upper,
        _ => f64::midpoint(sorted[middle - 1], upper),
    })
}

/// Significant digits of the histogram: an error of 0.1 %.
const PRECISION: u8 = 3;
/// An hour; what takes longer counts as an hour.
const LONGEST_NANOS: u64 = 3_600_000_000_000;
const WARM_UP_ROUNDS: u64 = 3;
const FEWEST_ROUNDS: u64 = 5;
const LONGEST_WARM_UP: Duration = Duration::from_secs(1);
const SHORT_IN_A_ROW: u32 = 3;
/// Some machines are never quiet.
const MOST_TRIPS: u32 = 200;

#[cfg(test)]
mod tests {
    use anyhow::ensure;

    use super::*;
    use crate::system::Route;

    #[test]
    fn quantiles_are_of_calls_and_medians_of_an_even_number_lie_between() {
        let mut samples = Samples::new();
        samples.record(Duration::from_micros(1000), 500);
        assert_eq!(samples.calls(), 500);
        assert!((samples.micros(0.5) - 2.0).abs() < 0.01);
        assert!((samples.per_second() - 500_000.0).abs() < 1.0);
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[4.0, 1.0, 2.0, 9.0]), Some(3.0));
    }

    /// Counts what is asked of it and fails in the check of one round.
    struct Clockwork {
        rounds: u64,
        /// Trips since a round was prepared.
        trips: u64,
        bad: u64,
    }

    impl Client for Clockwork {
        async fn prepare(&mut self, round: u64) -> Result<()> {
            assert_eq!(round, self.rounds);
            self.trips = 0;
            // Slow, and outside the timed part.
            tokio::time::sleep(Duration::from_millis(2)).await;
            Ok(())
        }
        async fn touch(&mut self, _: Trip) -> Result<()> {
            self.trips += 1;
            Ok(())
        }
        async fn round(&mut self) -> Result<()> {
            self.rounds += 1;
            Ok(())
        }
        async fn check(&mut self, round: u64) -> Result<()> {
            ensure!(self.bad != round, "byte 17 is wrong");
            Ok(())
        }
        fn route(&self) -> Route {
            Route::plain("tcp".to_owned())
        }
    }

    #[tokio::test]
    async fn only_the_round_is_timed_and_warm_up_is_not_counted() -> Result<()> {
        for begin in [
            Begin::AsTheyAre,
            Begin::Asleep(1000),
            Begin::Awake,
            Begin::Hot,
        ] {
            let (rounds, trips, bad) = (0, 0, u64::MAX);
            let mut client = Clockwork { rounds, trips, bad };
            let samples = drive(&mut client, Duration::from_millis(1), begin).await?;
            assert_eq!(samples.calls(), FEWEST_ROUNDS);
            assert_eq!(client.rounds, FEWEST_ROUNDS + WARM_UP_ROUNDS);
            assert!(
                samples.micros(0.5) < 1000.0,
                "what is not the round was timed"
            );
            let is_roused = matches!(begin, Begin::Awake | Begin::Hot);
            assert_eq!(client.trips >= 3, is_roused, "{begin:?}: {}", client.trips);
        }
        let (rounds, trips, bad) = (0, 0, 4);
        let driven = drive(
            &mut Clockwork { rounds, trips, bad },
            Duration::from_millis(1),
            Begin::AsTheyAre,
        )
        .await;
        let error = driven.expect_err("round 4 is bad");
        assert_eq!(format!("{error:#}"), "checking round 4: byte 17 is wrong");
        Ok(())
    }
}
