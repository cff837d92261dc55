//! The measuring loop: prepare, **round**, check, again and again; only the round is timed.
//!
//! Generic over the client, so that nothing but the client's own work lies between the two looks at the clock.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;

use crate::awake::Rouser;
use crate::plan::Begin;
use crate::system::{Client, Trip};

/// Warms up, then measures for `length` (wall clock, preparing and checking included), and at least
/// [`FEWEST_ROUNDS`] rounds. Before each one, when it is prepared, both ends are brought into the state `begin`.
///
/// # Errors
/// The client's own, with the round in which it happened.
pub(crate) async fn drive<C: Client>(
    client: &mut C,
    length: Duration,
    begin: Begin,
) -> Result<Samples> {
    let mut rouser = Rouser::new();
    let mut round = 0;
    let mut samples = Samples::new();
    let warm_up = (length / 5).min(LONGEST_WARM_UP);
    let start = Instant::now();
    while round < WARM_UP_ROUNDS || start.elapsed() < warm_up {
        one(client, round, begin, &mut rouser).await?;
        round += 1;
    }
    let warm = round;
    let start = Instant::now();
    while round - warm < FEWEST_ROUNDS || start.elapsed() < length {
        let took = one(client, round, begin, &mut rouser).await?;
        samples.record(took, client.calls_per_round());
        round += 1;
    }
    Ok(samples)
}

async fn one<C: Client>(
    client: &mut C,
    round: u64,
    begin: Begin,
    rouser: &mut Rouser,
) -> Result<Duration> {
    client
        .prepare(round)
        .await
        .with_context(|| format!("preparing round {round}"))?;
    match begin {
        Begin::AsTheyAre => {}
        Begin::Asleep => tokio::time::sleep(PAUSE).await,
        Begin::Awake | Begin::Hot => {
            let trip = if begin == Begin::Hot {
                Trip::Leased
            } else {
                Trip::Bare
            };
            let roused = rouser.rouse(client, trip).await;
            roused.with_context(|| format!("before round {round}"))?;
        }
    }
    let start = Instant::now();
    let done = client.round().await;
    let took = start.elapsed();
    done.with_context(|| format!("round {round}"))?;
    client
        .check(round)
        .await
        .with_context(|| format!("checking round {round}"))?;
    Ok(took)
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
        Self {
            nanos: Histogram::new_with_bounds(1, LONGEST_NANOS, PRECISION)
                .expect("bounds and digits are valid"),
            calls: 0,
            timed: Duration::ZERO,
        }
    }

    /// Adds a round of `calls` calls that took `took` together.
    pub(crate) fn record(&mut self, took: Duration, calls: u64) {
        let each = took.as_nanos() / u128::from(calls.max(1));
        self.nanos
            .saturating_record(u64::try_from(each).unwrap_or(u64::MAX));
        self.calls += calls;
        self.timed += took;
    }

    /// Microseconds that a call took at `quantile` (0.5 is the median).
    pub(crate) fn micros(&self, quantile: f64) -> f64 {
        self.nanos.value_at_quantile(quantile) as f64 / 1e3
    }

    /// Number of calls.
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
    let upper = sorted.get(middle).copied()?;
    Some(if sorted.len() % 2 == 1 {
        upper
    } else {
        (sorted[middle - 1] + upper) / 2.0
    })
}

/// Significant digits of the histogram: an error of 0.1 %.
const PRECISION: u8 = 3;
/// An hour; what takes longer counts as an hour.
const LONGEST_NANOS: u64 = 3_600_000_000_000;
const WARM_UP_ROUNDS: u64 = 3;
const FEWEST_ROUNDS: u64 = 5;
const LONGEST_WARM_UP: Duration = Duration::from_secs(1);
/// After it everybody sleeps.
const PAUSE: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;
    use crate::system::Route;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 5.0]), Some(5.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 9.0]), Some(3.0));
    }

    #[test]
    fn samples_know_their_quantiles_and_rates() {
        let mut samples = Samples::new();
        for micros in 1..=100 {
            samples.record(Duration::from_micros(micros), 1);
        }
        assert!(
            (samples.micros(0.5) - 50.0).abs() < 0.1,
            "{}",
            samples.micros(0.5)
        );
        assert!(
            (samples.micros(0.99) - 99.0).abs() < 0.2,
            "{}",
            samples.micros(0.99)
        );
        assert_eq!(samples.calls(), 100);
        // 5050 µs in all.
        assert!((samples.per_second() - 100.0 / 5.05e-3).abs() < 1.0);
        assert_eq!(Samples::new().per_second(), 0.0);
    }

    #[test]
    fn a_round_of_many_calls_counts_each() {
        let mut samples = Samples::new();
        samples.record(Duration::from_micros(1000), 500);
        assert_eq!(samples.calls(), 500);
        assert!((samples.micros(0.5) - 2.0).abs() < 0.01);
        assert!((samples.per_second() - 500_000.0).abs() < 1.0);
    }

    /// Counts what is asked of it and fails in the check of one round.
    struct Clockwork {
        prepared: u64,
        rounds: u64,
        /// Trips since a round was prepared.
        trips: u64,
        expected_trip: Trip,
        bad: Option<u64>,
    }

    fn clockwork(bad: Option<u64>) -> Clockwork {
        Clockwork {
            prepared: 0,
            rounds: 0,
            trips: 0,
            expected_trip: Trip::Bare,
            bad,
        }
    }

    impl Client for Clockwork {
        async fn prepare(&mut self, round: u64) -> Result<()> {
            assert_eq!(round, self.prepared);
            self.prepared += 1;
            self.trips = 0;
            // Slow, and outside the timed part.
            tokio::time::sleep(Duration::from_millis(2)).await;
            Ok(())
        }
        async fn touch(&mut self, trip: Trip) -> Result<()> {
            assert_eq!(trip, self.expected_trip);
            // A round is prepared before, and runs after.
            assert_eq!(self.prepared, self.rounds + 1);
            self.trips += 1;
            Ok(())
        }
        async fn round(&mut self) -> Result<()> {
            self.rounds += 1;
            Ok(())
        }
        async fn check(&mut self, round: u64) -> Result<()> {
            assert_eq!(self.rounds, round + 1);
            match self.bad {
                Some(bad) if bad == round => bail!("byte 17 is wrong"),
                _ => Ok(()),
            }
        }
        fn route(&self) -> Route {
            Route::plain("tcp")
        }
    }

    #[tokio::test]
    async fn only_the_round_is_timed_and_warm_up_is_not_counted() -> Result<()> {
        let mut client = clockwork(None);
        let samples = drive(&mut client, Duration::from_millis(1), Begin::Asleep).await?;
        assert_eq!(samples.calls(), FEWEST_ROUNDS);
        assert_eq!(client.rounds, FEWEST_ROUNDS + WARM_UP_ROUNDS);
        assert!(
            samples.micros(0.5) < 1000.0,
            "the sleep of prepare, or the pause, was timed"
        );
        Ok(())
    }

    #[tokio::test]
    async fn trips_wake_everybody_only_where_that_is_wanted() -> Result<()> {
        for (begin, expected) in [
            (Begin::AsTheyAre, false),
            (Begin::Asleep, false),
            (Begin::Awake, true),
            (Begin::Hot, true),
        ] {
            let mut client = clockwork(None);
            if begin == Begin::Hot {
                client.expected_trip = Trip::Leased;
            }
            drive(&mut client, Duration::from_millis(1), begin).await?;
            assert_eq!(client.trips >= 3, expected, "{begin:?}: {}", client.trips);
        }
        Ok(())
    }

    #[tokio::test]
    async fn a_wrong_byte_ends_the_measurement_and_says_where() {
        let mut client = clockwork(Some(4));
        let error = drive(&mut client, Duration::from_millis(1), Begin::AsTheyAre)
            .await
            .expect_err("round 4 is bad");
        assert_eq!(format!("{error:#}"), "checking round 4: byte 17 is wrong");
    }
}
