//! Counts exactly what may be lost: groups that may each lose some, and rings that may not lose
//! this many in a row.
//!
//! How: among all ways to lose f of n, those that leave everything recoverable are a coefficient of
//! a product of polynomials. Such numbers have thousands of digits. Every loss is therefore
//! weighted by f/n, as if each unit failed independently with that probability, which turns the
//! coefficients into probabilities near their maximum; the weight is removed at the end.
//!
//! Invariants:
//! 1. All terms are positive, so that rounding costs only a few units in the last place for each
//!    unit counted.
//! 2. The omitted part of a polynomial is less than [`NOTHING`] of its largest coefficient.
//!
//! Not here: how each redundancy is counted (`survival.rs`).

use statrs::function::factorial::ln_binomial;

/// A negligible share of the largest coefficient: far below the probability of one loss in the age
/// of the universe.
const NOTHING: f64 = 1e-80;

/// The coefficients from some power of x on.
#[derive(Clone)]
struct Polynomial {
    first: usize,
    coefficients: Vec<f64>,
}

impl Polynomial {
    fn new(coefficients: Vec<f64>) -> Self {
        Self {
            first: 0,
            coefficients,
        }
        .trimmed()
    }

    fn times(&self, other: &Self, degree: usize) -> Self {
        let first = self.first + other.first;
        let len = (self.coefficients.len() + other.coefficients.len()).saturating_sub(1);
        let mut coefficients = vec![0.0; len.min((degree + 1).saturating_sub(first))];
        for (i, a) in self.coefficients.iter().enumerate() {
            for (sum, b) in coefficients.iter_mut().skip(i).zip(&other.coefficients) {
                *sum += a * b;
            }
        }
        Self {
            first,
            coefficients,
        }
        .trimmed()
    }

    fn trimmed(mut self) -> Self {
        let least = self.coefficients.iter().copied().fold(0.0, f64::max) * NOTHING;
        while self.coefficients.last().is_some_and(|&c| c <= least) {
            self.coefficients.pop();
        }
        let zeros = self
            .coefficients
            .iter()
            .take_while(|&&c| c <= least)
            .count();
        self.coefficients.drain(..zeros);
        self.first += zeros;
        self
    }

    /// The polynomial to this power, up to x to the `degree`.
    fn power(&self, mut times: u32, degree: usize) -> Self {
        let (mut result, mut square) = (Self::new(vec![1.0]), self.clone());
        while times > 0 {
            if times % 2 == 1 {
                result = result.times(&square, degree);
            }
            times /= 2;
            if times > 0 {
                square = square.times(&square, degree);
            }
        }
        result
    }

    fn coefficient(&self, power: usize) -> f64 {
        let at = power.checked_sub(self.first);
        at.and_then(|at| self.coefficients.get(at))
            .copied()
            .unwrap_or(0.0)
    }
}

/// Logarithm of q^a (1 − q)^b for a share q of losses, where 0 times anything is 0.
fn ln_weight(q: f64, a: u32, b: u32) -> f64 {
    let part = |count: u32, ln: f64| {
        if count == 0 {
            0.0
        } else {
            f64::from(count) * ln
        }
    };
    part(a, q.ln()) + part(b, (-q).ln_1p())
}

/// Share of the ways to lose `lost` of `units` in which none of `groups` groups, as equal as
/// possible, loses more than `most`.
pub(super) fn groups(units: u32, groups: u32, most: u32, lost: u32) -> f64 {
    if lost <= most {
        return 1.0;
    }
    let q = f64::from(lost) / f64::from(units);
    let degree = lost as usize;
    let group = |size: u32| {
        let term = |j: u32| (ln_binomial(size.into(), j.into()) + ln_weight(q, j, size - j)).exp();
        Polynomial::new((0..=most.min(size)).map(term).collect())
    };
    let (size, larger) = (units / groups, units % groups);
    let of_size = group(size).power(groups - larger, degree);
    let of_larger = group(size + 1).power(larger, degree);
    let all = ln_binomial(units.into(), lost.into()) + ln_weight(q, lost, units - lost);
    (of_size.times(&of_larger, degree).coefficient(degree) / all.exp()).min(super::ALMOST)
}

/// Share of the ways to lose `lost` of `units` in a ring in which no `row` neighbours are lost.
///
/// Between two remaining units there are 0 to `row` − 1 lost ones. Of all arrangements, (units −
/// lost) / units begin with a remaining unit, whatever the condition on the gaps.
pub(super) fn ring(units: u32, row: u32, lost: u32) -> f64 {
    if lost < row {
        return 1.0;
    }
    if lost >= units {
        return 0.0;
    }
    let q = f64::from(lost) / f64::from(units);
    let gap = |j: u32| ln_weight(q, j, 1).exp();
    let gaps = Polynomial::new((0..row.min(lost + 1)).map(gap).collect());
    let left = units - lost;
    let all = ln_binomial((units - 1).into(), lost.into()) + ln_weight(q, lost, left);
    (gaps.power(left, lost as usize).coefficient(lost as usize) / all.exp()).min(super::ALMOST)
}
