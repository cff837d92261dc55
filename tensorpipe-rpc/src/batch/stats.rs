//! Statistics of batching.

/// What one batched method has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BatchStats {
    /// Batches handed to the method.
    pub runs: u64,
    /// Calls of failed batches of an idempotent method that were handed to it once more, each alone. Not counted in `runs`.
    pub reruns: u64,
    /// Calls in the batches of `runs`.
    pub calls: u64,
    /// Rows in the batches of `runs`: the sum of the tensors' first dimensions.
    pub rows: u64,
    /// Calls that wait for their batch to run.
    pub waiting: usize,
    /// Batches that run.
    pub running: usize,
}

impl BatchStats {
    /// Calls of a batch, on average; 0 before the first.
    pub fn mean_calls(&self) -> f64 {
        self.per_run(self.calls)
    }

    /// Rows of a batch, on average; 0 before the first.
    pub fn mean_rows(&self) -> f64 {
        self.per_run(self.rows)
    }

    fn per_run(&self, count: u64) -> f64 {
        count as f64 / self.runs.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::BatchStats;

    #[test]
    fn means_are_of_runs_and_zero_before_the_first() {
        assert_eq!(BatchStats::default().mean_calls(), 0.0);
        let stats = BatchStats {
            runs: 4,
            calls: 10,
            rows: 30,
            ..BatchStats::default()
        };
        assert_eq!((stats.mean_calls(), stats.mean_rows()), (2.5, 7.5));
    }
}
