//! The computation: tensor kernels on CPUs and NVIDIA GPUs, layers with explicit backward passes, models, optimizers, and the state
//! that training carries from step to step.

#[cfg(feature = "cuda")]
pub mod gpu;
pub mod kernels;
pub mod model;
pub mod nn;
pub mod optim;
pub mod state;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod workspace;

pub use workspace::kernel_workspace;
