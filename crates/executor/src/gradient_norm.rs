//! The sum of squares of gradients whose sums over the replicas are divided among them, on CPUs. On GPUs, where NCCL adds gradients in its
//! own order, each replica counts its shard.
//!
//! A sum over the whole buffer adds the sums of its tasks, each of consecutive elements. To get the same bits, replicas exchange the sums of
//! the tasks that lie in their shards, and the elements of those that a boundary between shards cuts.

use std::ops::Range;

use candle_core::{DType, Device, Tensor};

use super::error::ExecError;
use super::rank_context::RankContext;
use runner_compute::kernels::{bytes, on_host, optimizer};

/// A shard's part of the sum.
#[derive(Debug)]
struct ShardSquares {
    /// Elements before the first task that begins in the shard, as bytes in the machine's own order.
    head: Vec<u8>,
    /// The sums of the tasks that the shard holds whole.
    tasks: Vec<f64>,
    /// Elements after them.
    tail: Vec<u8>,
}

/// The elements of `shard` before its first task, those of whole tasks, and those after them.
fn cut_at_tasks(shard: &Range<usize>) -> [Range<usize>; 3] {
    const TASK: usize = optimizer::SQUARES_TASK;
    let first = shard.start.next_multiple_of(TASK).min(shard.end);
    let last = (shard.end - shard.end % TASK).max(first);
    [shard.start..first, first..last, last..shard.end]
}

impl ShardSquares {
    fn new(sums: &Tensor, shard: &Range<usize>) -> Result<Self, ExecError> {
        let of = |range: &Range<usize>| sums.narrow(0, range.start - shard.start, range.len());
        let raw = |range: &Range<usize>| bytes::read(&on_host(&of(range)?)?, <[u8]>::to_vec);
        let [head, whole, tail] = cut_at_tasks(shard);
        Ok(Self { head: raw(&head)?, tasks: optimizer::squares_by_task(&of(&whole)?)?, tail: raw(&tail)? })
    }

    fn encode(&self) -> Vec<u8> {
        let lengths = [self.head.len(), self.tasks.len()].map(|length| (length as u64).to_le_bytes());
        let tasks = self.tasks.iter().flat_map(|sum| sum.to_le_bytes());
        lengths.as_flattened().iter().chain(&self.head).copied().chain(tasks).chain(self.tail.iter().copied()).collect()
    }

    /// `None` if the bytes are too few.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (head_length, rest) = bytes.split_first_chunk::<8>()?;
        let (task_count, rest) = rest.split_first_chunk::<8>()?;
        let (head, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*head_length)).ok()?)?;
        let task_bytes = usize::try_from(u64::from_le_bytes(*task_count)).ok()?.checked_mul(8)?;
        let (tasks, tail) = rest.split_at_checked(task_bytes)?;
        let tasks = tasks.as_chunks::<8>().0.iter().map(|sum| f64::from_le_bytes(*sum)).collect();
        Some(Self { head: head.to_vec(), tasks, tail: tail.to_vec() })
    }
}

/// The sum of squares of all gradients; `sums` are those of this rank's shard.
///
/// # Errors
/// Those of the communication.
pub(super) fn sum_of_squares(context: RankContext<'_>, sums: &Tensor) -> Result<f64, ExecError> {
    let program = context.program;
    let no_shard = || ExecError::Program("gradients are divided, but the rank has no shard".to_owned());
    let own = ShardSquares::new(sums, &program.shard().ok_or_else(no_shard)?)?;
    let all = context.comm.all_gather(context.replica_group(), &own.encode())?;
    let malformed = || ExecError::Program("a rank sent no sums of squares".to_owned());
    let all = all.iter().map(|bytes| ShardSquares::decode(bytes).ok_or_else(malformed));
    let all = all.collect::<Result<Vec<_>, _>>()?;
    Ok(add_shards(&program.shards, all, sums.dtype())?.iter().sum())
}

/// The sums of all tasks in their order, of gradients of type `dtype`.
fn add_shards(shards: &[Range<usize>], all: Vec<ShardSquares>, dtype: DType) -> candle_core::Result<Vec<f64>> {
    let (mut tasks, mut cut) = (Vec::new(), Vec::new());
    for (shard, squares) in shards.iter().zip(all) {
        cut.extend(squares.head);
        if cut_at_tasks(shard)[1].start.is_multiple_of(optimizer::SQUARES_TASK) {
            tasks.extend(squares_of_bytes(&std::mem::take(&mut cut), dtype)?);
        }
        tasks.extend(squares.tasks);
        cut.extend(squares.tail);
    }
    tasks.extend(squares_of_bytes(&cut, dtype)?);
    Ok(tasks)
}

/// The sums of the tasks of elements that are given as bytes.
fn squares_of_bytes(bytes: &[u8], dtype: DType) -> candle_core::Result<Vec<f64>> {
    let length = bytes.len() / dtype.size_in_bytes();
    optimizer::squares_by_task(&Tensor::from_raw_buffer(bytes, dtype, &[length], &Device::Cpu)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASK: usize = optimizer::SQUARES_TASK;

    /// Shards that end within a task, several in one task, on a boundary, and with whole tasks.
    #[test]
    fn shards_add_up_to_the_bits_of_the_whole() {
        let total = 5 * TASK + 77;
        let values: Vec<f32> = (0..total).map(|i| ((i * 37 % 1001) as f32 - 500.0) * 0.001).collect();
        let ends: [&[usize]; 4] =
            [&[TASK / 2, total], &[10, 20, 30, total], &[TASK, 3 * TASK, total], &[2 * TASK + 5, 4 * TASK, total]];
        for dtype in [DType::F32, DType::BF16] {
            let whole = Tensor::new(values.as_slice(), &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
            let expected = optimizer::sum_of_squares(&whole).unwrap().read().unwrap();
            for ends in ends {
                let starts = std::iter::once(0).chain(ends.iter().copied());
                let shards: Vec<Range<usize>> = starts.zip(ends).map(|(start, end)| start..*end).collect();
                let all = shards.iter().map(|shard| {
                    let own = whole.narrow(0, shard.start, shard.len()).unwrap();
                    ShardSquares::decode(&ShardSquares::new(&own, shard).unwrap().encode()).unwrap()
                });
                let tasks = add_shards(&shards, all.collect(), dtype).unwrap();
                assert_eq!(tasks.iter().sum::<f64>().to_bits(), expected.to_bits(), "{ends:?}");
            }
        }
    }
}
