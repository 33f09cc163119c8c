//! The memory that kernels use while they work, as a fact for plans.

use crate::kernels::cpu::{attention, gemm, product};
use crate::nn::head;
use runner_spec::cluster::KernelWorkspace;

/// Bytes of scratch that cuBLASLt gets on GPUs older than Hopper, and on Hopper and newer: what NVIDIA's documentation recommends.
pub(crate) const GPU_SCRATCH_BYTES: [usize; 2] = [4 << 20, 32 << 20];

/// The workspace of this program's kernels.
pub fn kernel_workspace() -> KernelWorkspace {
    KernelWorkspace {
        attention_queries: attention::TILE_QUERIES as u64,
        attention_tiles: attention::TILES,
        attention_head_buffers: attention::HEAD_BUFFERS,
        packed_rows: gemm::PACKED_ROWS as u64,
        packed_depth: gemm::PACKED_DEPTH as u64,
        product_operand_bytes: product::OPERAND_BYTES as u64,
        product_sum_bytes: product::SUM_BYTES as u64,
        gpu_scratch_bytes: GPU_SCRATCH_BYTES.map(|bytes| bytes as u64),
        logit_rows: head::LOGIT_ROWS.map(|rows| rows as u64),
    }
}
