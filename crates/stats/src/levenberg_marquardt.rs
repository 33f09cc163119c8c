//! Nonlinear least squares with the Huber loss: Levenberg (1944) and Marquardt (1963), with weights that are computed again in each step
//! (Holland and Welsch 1977, "Robust regression using iteratively reweighted least-squares").

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

const MAX_STEPS: usize = 300;
/// The relative decrease of the cost below which a step counts as the last.
const TOLERANCE: f64 = 1e-12;

/// Minimizes the sum of the Huber losses of the residuals, quadratic up to `delta`, from `start`.
pub(crate) fn minimize(residuals: &impl Residuals, delta: f64, start: &[f64]) -> Minimum {
    let n = start.len();
    let clamp = |parameters: &mut [f64]| {
        for (i, value) in parameters.iter_mut().enumerate() {
            let (low, high) = residuals.bounds(i);
            *value = value.clamp(low, high);
        }
    };
    let mut derivatives = vec![0.0; n];
    let huber = |r: f64| if r.abs() <= delta { r * r / 2.0 } else { delta * (r.abs() - delta / 2.0) };
    let mut at = start.to_vec();
    clamp(&mut at);
    let mut cost: f64 = (0..residuals.count()).map(|i| huber(residuals.residual(i, &at, &mut derivatives))).sum();
    let mut damping = 1e-3;
    for _ in 0..MAX_STEPS {
        let (mut hessian, mut gradient) = (vec![vec![0.0; n]; n], vec![0.0; n]);
        for i in 0..residuals.count() {
            let r = residuals.residual(i, &at, &mut derivatives);
            let weight = (delta / r.abs()).min(1.0);
            for a in 0..n {
                gradient[a] -= weight * derivatives[a] * r;
                for b in 0..n {
                    hessian[a][b] += weight * derivatives[a] * derivatives[b];
                }
            }
        }
        for (a, row) in hessian.iter_mut().enumerate() {
            row[a] += damping * row[a].max(1e-12);
        }
        let mut next = at.clone();
        if let Some(step) = solve(hessian, gradient) {
            next.iter_mut().zip(step).for_each(|(value, step)| *value += step);
            clamp(&mut next);
        }
        let found: f64 = (0..residuals.count()).map(|i| huber(residuals.residual(i, &next, &mut derivatives))).sum();
        if found < cost {
            let is_last = cost - found <= TOLERANCE * cost;
            (at, cost, damping) = (next, found, (damping / 5.0).max(1e-12));
            if is_last {
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

/// Solves a system of linear equations by elimination with pivots; `None` if it has no single solution.
fn solve(mut matrix: Vec<Vec<f64>>, mut right: Vec<f64>) -> Option<Vec<f64>> {
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
