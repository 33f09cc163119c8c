//! Nonlinear least squares with the Huber loss: Levenberg (1944) and Marquardt (1963), with weights that are computed again in each step
//! (Holland and Welsch 1977, "Robust regression using iteratively reweighted least-squares"), and bounds of the parameters.

/// Residuals as functions of parameters.
pub(crate) trait Residuals {
    fn count(&self) -> usize;
    /// Residual `i`; writes its derivative by each parameter.
    fn residual(&self, i: usize, parameters: &[f64], derivatives: &mut [f64]) -> f64;
    /// The smallest and the largest value of a parameter.
    fn bounds(&self, parameter: usize) -> (f64, f64);
}

/// A minimum.
#[derive(Debug, Clone)]
pub(crate) struct Minimum {
    pub(crate) parameters: Vec<f64>,
    pub(crate) cost: f64,
}

const MAX_STEPS: usize = 1000;
/// The relative decrease of the cost below which a step counts as small.
const TOLERANCE: f64 = 1e-12;
/// The number of small steps in a row after which the search ends. A single one may be small because it is strongly damped.
const LAST_STEPS: usize = 4;

/// Minimizes the sum of the Huber losses of the residuals, quadratic up to `delta`, from `start`.
pub(crate) fn minimize(residuals: &impl Residuals, delta: f64, start: &[f64]) -> Minimum {
    let n = start.len();
    let bounds: Vec<(f64, f64)> = (0..n).map(|i| residuals.bounds(i)).collect();
    let mut derivatives = vec![0.0; n];
    let huber = |r: f64| if r.abs() <= delta { r * r / 2.0 } else { delta * (r.abs() - delta / 2.0) };
    let mut at: Vec<f64> = start.iter().zip(&bounds).map(|(value, (low, high))| value.clamp(*low, *high)).collect();
    let mut cost: f64 = (0..residuals.count()).map(|i| huber(residuals.residual(i, &at, &mut derivatives))).sum();
    let (mut damping, mut small_steps) = (1e-3, 0);
    for _ in 0..MAX_STEPS {
        let (mut hessian, mut descent) = (vec![vec![0.0; n]; n], vec![0.0; n]);
        for i in 0..residuals.count() {
            let r = residuals.residual(i, &at, &mut derivatives);
            let weight = (delta / r.abs()).min(1.0);
            for a in 0..n {
                descent[a] -= weight * derivatives[a] * r;
                for b in 0..n {
                    hessian[a][b] += weight * derivatives[a] * derivatives[b];
                }
            }
        }
        for (a, row) in hessian.iter_mut().enumerate() {
            row[a] += damping * row[a].max(1e-12);
        }
        let next = step_within_bounds(&hessian, &descent, &at, &bounds).unwrap_or_else(|| at.clone());
        let found: f64 = (0..residuals.count()).map(|i| huber(residuals.residual(i, &next, &mut derivatives))).sum();
        if found < cost {
            small_steps = if cost - found <= TOLERANCE * cost { small_steps + 1 } else { 0 };
            (at, cost, damping) = (next, found, (damping / 5.0).max(1e-12));
            if small_steps == LAST_STEPS {
                break;
            }
        } else {
            damping *= 4.0;
            if damping > 1e10 {
                break;
            }
        }
    }
    Minimum { parameters: at, cost }
}

/// The parameters after a step from `at` that minimizes the quadratic model of `hessian` and `descent` (the negative gradient) within
/// `bounds`. A parameter at a bound stays there if it would descend beyond it, and one whose step would cross a bound stops there. Both
/// leave the system, and the step of the others is solved for again: a step that was solved for all of them would not descend once it is cut
/// off. `None` if the system has no single solution.
fn step_within_bounds(hessian: &[Vec<f64>], descent: &[f64], at: &[f64], bounds: &[(f64, f64)]) -> Option<Vec<f64>> {
    let is_held = |i: usize| at[i] <= bounds[i].0 && descent[i] <= 0.0 || at[i] >= bounds[i].1 && descent[i] >= 0.0;
    let mut fixed: Vec<Option<f64>> = (0..at.len()).map(|i| is_held(i).then_some(at[i])).collect();
    loop {
        let free: Vec<usize> = (0..at.len()).filter(|&i| fixed[i].is_none()).collect();
        let moved = |i: usize| fixed[i].map_or(0.0, |value| value - at[i]);
        let matrix = free.iter().map(|&a| free.iter().map(|&b| hessian[a][b]).collect()).collect();
        let right =
            free.iter().map(|&a| descent[a] - (0..at.len()).map(|b| hessian[a][b] * moved(b)).sum::<f64>()).collect();
        let step = solve(matrix, right)?;
        let mut next: Vec<f64> = (0..at.len()).map(|i| at[i] + moved(i)).collect();
        free.iter().zip(step).for_each(|(&i, step)| next[i] += step);
        let mut has_crossed = false;
        for i in free {
            let within = next[i].clamp(bounds[i].0, bounds[i].1);
            if within != next[i] {
                (fixed[i], has_crossed) = (Some(within), true);
            }
        }
        if !has_crossed {
            return Some(next);
        }
    }
}

/// Solves a system of linear equations by elimination with pivots; `None` if it has no single solution.
pub(crate) fn solve(mut matrix: Vec<Vec<f64>>, mut right: Vec<f64>) -> Option<Vec<f64>> {
    let n = right.len();
    for column in 0..n {
        let pivot = (column..n).max_by(|a, b| matrix[*a][column].abs().total_cmp(&matrix[*b][column].abs()))?;
        if matrix[pivot][column].abs() < 1e-300 {
            return None;
        }
        matrix.swap(column, pivot);
        right.swap(column, pivot);
        let (above, below) = matrix.split_at_mut(column + 1);
        let pivot_row = &above[column];
        for (i, row) in below.iter_mut().enumerate() {
            let factor = row[column] / pivot_row[column];
            row.iter_mut().zip(pivot_row).skip(column).for_each(|(value, pivot)| *value -= factor * pivot);
            right[column + 1 + i] -= factor * right[column];
        }
    }
    for row in (0..n).rev() {
        let known: f64 = (row + 1..n).map(|k| matrix[row][k] * right[k]).sum();
        right[row] = (right[row] - known) / matrix[row][row];
    }
    Some(right)
}
