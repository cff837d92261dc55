//! A line through samples, by least squares: what grows, and how fast.

/// The slope of the line `y = a + slope * x` for which the sum of the squares of what it misses is least; `None` for less than
/// three points, or points at one moment.
pub(super) fn slope(points: &[(f64, f64)]) -> Option<f64> {
    if points.len() < 3 {
        return None;
    }
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let spread: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    let together: f64 = points
        .iter()
        .map(|point| (point.0 - x) * (point.1 - y))
        .sum();
    (spread > 0.0).then_some(together / spread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_its_own_slope_and_what_swings_around_it_does_not_count() {
        let line: Vec<_> = (0..40)
            .map(|x| (f64::from(x), 7.0 + 0.5 * f64::from(x)))
            .collect();
        assert!((slope(&line).unwrap() - 0.5).abs() < 1e-12);
        // As much above as below, at each moment twice.
        let swings = line
            .iter()
            .flat_map(|(x, y)| [(*x, y + 3.0), (*x, y - 3.0)]);
        let swings: Vec<_> = swings.collect();
        assert!((slope(&swings).unwrap() - 0.5).abs() < 1e-12);
    }

    #[test]
    fn no_line_is_drawn_through_too_little() {
        assert_eq!(slope(&[(0.0, 1.0), (1.0, 2.0)]), None);
        assert_eq!(slope(&[(1.0, 1.0), (1.0, 2.0), (1.0, 3.0)]), None);
    }
}
