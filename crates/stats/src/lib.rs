//! Statistics of runs that differ in their seed: means with their intervals, paired comparisons, corrections for many of them, and how
//! many seeds a difference needs. Scaling laws of ladders.
//!
//! Plain numbers in, plain numbers out. Every function is pure: random draws come from [`Philox`](runner_spec::philox::Philox).

#![forbid(unsafe_code)]

mod holm;
mod levenberg_marquardt;
mod noise;
mod paired;
mod polynomial;
mod power;
mod quantile;
mod sample;
mod scaling_law;
mod students_t;
mod trend;

pub use holm::{holm, holm_of_leader, pairs_of};
pub use noise::one_sided_p;
pub use paired::{
    DecidingTest, MONTE_CARLO_DRAWS, PairedComparison, PermutationMethod, PermutationTest, TTest, deciding_test,
    smallest_permutation_p,
};
pub use polynomial::{NoVertex, ParabolaFit};
pub use power::{paired_t_power, seeds_needed, smallest_detectable_difference};
pub use sample::{Interval, Sample};
pub use scaling_law::{
    ExponentBound, LawFit, NoFit, PowerTerm, Prediction, ScaleMultiple, ScaledLoss, ScalingLaw, rungs_needed,
};
pub use trend::{Trend, trend};
