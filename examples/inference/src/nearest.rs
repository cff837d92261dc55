//! Finds the sentences that mean nearly the same.

/// Two sentences, by index, and their similarity: 1 is the same, 0 is unrelated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// The one that comes first.
    pub first: usize,
    /// The other one.
    pub second: usize,
    /// The cosine of the angle between their embeddings.
    pub similarity: f64,
}

/// The `count` nearest pairs among `embeddings`, nearest first.
pub fn nearest(embeddings: &[Vec<f32>], count: usize) -> Vec<Pair> {
    let mut pairs: Vec<Pair> = Vec::new();
    for (first, one) in embeddings.iter().enumerate() {
        for (second, other) in embeddings.iter().enumerate().skip(first + 1) {
            let similarity = 1.0 - cosine_distance(one, other);
            pairs.push(Pair {
                first,
                second,
                similarity,
            });
        }
        // With thousands of sentences, all pairs at once would take too much memory.
        if pairs.len() > 2 * count + embeddings.len() {
            keep(&mut pairs, count);
        }
    }
    keep(&mut pairs, count);
    pairs
}

fn keep(pairs: &mut Vec<Pair>, count: usize) {
    pairs.sort_by(|one, other| other.similarity.total_cmp(&one.similarity));
    pairs.truncate(count);
}

/// 1 minus the cosine of the angle between two vectors; 1 if one of them is zero.
pub fn cosine_distance(one: &[f32], other: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        let products = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b));
        products.sum()
    };
    let lengths = (dot(one, one) * dot(other, other)).sqrt();
    if lengths == 0.0 {
        return 1.0;
    }
    1.0 - dot(one, other) / lengths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_come_by_their_angle() {
        let embeddings = [[1.0, 0.0], [0.0, 2.0], [3.0, 0.3], [-1.0, 0.0]].map(|row| row.to_vec());
        let pairs = nearest(&embeddings, 3);
        let places: Vec<_> = pairs.iter().map(|pair| (pair.first, pair.second)).collect();
        assert_eq!(places, [(0, 2), (1, 2), (0, 1)]);
        assert!((pairs[0].similarity - 0.995).abs() < 1e-3, "{pairs:?}");
        assert_eq!(pairs[2].similarity, 0.0);
        assert_eq!(nearest(&embeddings, 100).len(), 6);
        assert_eq!(nearest(&embeddings[..1], 100), []);
    }

    #[test]
    fn the_nearest_of_many_are_found_without_keeping_all() {
        let many: Vec<_> = (0..200)
            .map(|i| {
                vec![
                    (f64::from(i) / 150.0).cos() as f32,
                    (f64::from(i) / 150.0).sin() as f32,
                ]
            })
            .collect();
        let mut last = many.clone();
        last.push(many[7].clone());
        let best = nearest(&last, 1)[0];
        assert_eq!((best.first, best.second), (7, 200));
    }

    #[test]
    fn distance_does_not_depend_on_length() {
        assert!(cosine_distance(&[1.0, 2.0], &[3.0, 6.0]).abs() < 1e-12);
        assert_eq!(cosine_distance(&[1.0, 0.0], &[0.0, 5.0]), 1.0);
        assert_eq!(cosine_distance(&[0.0, 0.0], &[0.0, 5.0]), 1.0);
    }
}
