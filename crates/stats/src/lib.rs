//! Statistics of runs that differ in their seed: means with their intervals, comparisons of settings over seeds and over rows, the rule that
//! decides which one is the best, and how many seeds a difference needs. Scaling laws of ladders.
//!
//! Plain numbers in, plain numbers out. Every function is pure: random draws come from [`Philox`](runner_spec::philox::Philox).

#![forbid(unsafe_code)]

mod contrast;
mod decision;
mod holm;
mod levenberg_marquardt;
mod noise;
mod paired;
mod polynomial;
mod power;
mod quantile;
mod rows;
mod sample;
mod scaling_law;
mod students_t;
mod trend;

pub use contrast::{Contrast, Detectable, MAX_NEW_SEEDS, POWER, Test};
pub use decision::{Compared, Decision, Outcome, Rule, Standing, decide};
pub use noise::one_sided_p;
pub use paired::{MONTE_CARLO_DRAWS, PairedComparison, PermutationMethod, PermutationTest, TTest};
pub use polynomial::{NoVertex, ParabolaFit};
pub use power::{paired_t_power, seeds_needed, smallest_detectable_difference};
pub use rows::{RowComparison, RowLosses};
pub use sample::{Interval, Sample};
pub use scaling_law::{
    ExponentBound, LawFit, NoFit, PowerTerm, Prediction, ScaleMultiple, ScaledLoss, ScalingLaw, rungs_needed,
};
pub use trend::{Trend, trend};
