//! Converts training states, which are tensors, to the bytes of checkpoints and back. The crate `checkpoint` writes, hashes and chooses the
//! files.

use std::collections::TryReserveError;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use half::bf16;

use runner_checkpoint::{
    ByteSink, CheckpointChoice, NumberSink, NumberType, RecordError, SavedPosition, StateReader, send_chunks,
    stream_state, stream_weights,
};
use runner_compute::kernels::cpu::Stored;
use runner_compute::kernels::{bytes, on_host};
use runner_compute::state::TrainState;
use runner_spec::model::layout::ParamLayout;

#[cfg(test)]
mod tests;

/// The bytes of `state`, f32 or bf16. A CPU's tensors are not copied.
pub(super) fn state_reader(state: &TrainState) -> StateReader<'_> {
    let TrainState { step, tokens, best, moments, .. } = *state;
    let number_type = if state.buffer.dtype() == DType::BF16 { NumberType::Bf16 } else { NumberType::F32 };
    StateReader {
        step,
        tokens,
        best,
        layout: &state.layout,
        moments,
        number_type,
        read: Box::new(|section, range, sink| {
            let first = state.layout.first_in_section(section);
            let elements = state.section(section).and_then(|flat| flat.narrow(0, range.start - first, range.len()));
            let elements = elements.and_then(|elements| on_host(&elements)).map_err(tensor_error)?;
            bytes::read(&elements, |bytes| send_chunks(bytes, sink)).map_err(tensor_error)?
        }),
    }
}

/// The bytes of the numbers of `state`, for [`reader_of_copy`].
///
/// # Errors
/// If memory is short.
pub(super) fn copy_bytes(state: &TrainState) -> Result<Vec<u8>, RecordError> {
    let host = on_host(&state.buffer).map_err(tensor_error)?;
    let copy = bytes::read(&host, |bytes| {
        let mut copy = Vec::new();
        copy.try_reserve_exact(bytes.len())?;
        copy.extend_from_slice(bytes);
        Ok(copy)
    });
    copy.map_err(tensor_error)?.map_err(|error: TryReserveError| RecordError::Tensor(Box::new(error)))
}

/// The bytes that [`copy_bytes`] copied from `state`, whose numbers may have changed since.
pub(super) fn reader_of_copy<'a>(state: &'a TrainState, copy: &'a [u8]) -> StateReader<'a> {
    let (layout, element) = (&state.layout, state.buffer.dtype().size_in_bytes());
    let read = move |section: usize, range: Range<usize>, sink: ByteSink<'_>| {
        let [start, end] = [range.start, range.end].map(|index| element * layout.place(section, index));
        send_chunks(&copy[start..end], sink)
    };
    StateReader { read: Box::new(read), ..state_reader(state) }
}

/// Reads a training state of `layout` and type `dtype` (bf16, or else f32) from the checkpoint at `path`, whatever layout and type wrote
/// it. With 0 `moments` only the weights are read; otherwise the checkpoint must have as many. With a `plan_hash` the checkpoint must be of
/// that plan. Changes nothing, so that all ranks may load at the same time.
///
/// # Errors
/// If the checkpoint cannot be used, lacks a tensor or has it in another shape, or the machine refuses.
pub fn load_state(
    path: &Path,
    plan_hash: Option<&str>,
    layout: &Arc<ParamLayout>,
    moments: usize,
    dtype: DType,
) -> Result<TrainState, RecordError> {
    let read = |sink: NumberSink<'_>| stream_state(path, plan_hash, layout, moments, sink);
    let len = layout.state_len(moments);
    let (buffer, SavedPosition { step, tokens, best, .. }) = match dtype {
        DType::BF16 => read_buffer::<bf16, _>(path, len, &Device::Cpu, read)?,
        _ => read_buffer::<f32, _>(path, len, &Device::Cpu, read)?,
    };
    Ok(TrainState { step, tokens, best, layout: layout.clone(), buffer, moments })
}

/// Reads the weights of a checkpoint in `folder`, flat `[layout.total]`, and the step after which they were saved. Changes nothing, so
/// that the run may be training.
///
/// # Errors
/// If there is no such checkpoint, or it cannot be used; then the error names the next good one.
pub fn load_weights(
    folder: &Path,
    which: CheckpointChoice,
    layout: &ParamLayout,
    device: &Device,
) -> Result<(Tensor, u64), RecordError> {
    read_buffer::<f32, _>(folder, layout.total, device, |sink| stream_weights(folder, which, layout, sink))
}

/// A flat buffer of `len` numbers of type `S`, which `read` sends, and what `read` returns. `path` is for errors.
fn read_buffer<S: Stored<Real = f32>, T>(
    path: &Path,
    len: usize,
    device: &Device,
    read: impl FnOnce(NumberSink<'_>) -> Result<T, RecordError>,
) -> Result<(Tensor, T), RecordError> {
    let mut values: Vec<S> = Vec::new();
    if values.try_reserve_exact(len).is_err() {
        let shortage = format!("no memory for {} bytes of it", size_of::<S>() * len);
        return Err(RecordError::io("reading", path)(io::Error::new(io::ErrorKind::OutOfMemory, shortage)));
    }
    values.resize(len, S::store(0.0));
    let result = read(&mut |place, bytes| {
        for (value, number) in values[place as usize..].iter_mut().zip(bytes.as_chunks::<4>().0) {
            *value = S::store(f32::from_le_bytes(*number));
        }
        Ok(())
    })?;
    Ok((Tensor::from_vec(values, len, device).map_err(tensor_error)?, result))
}

fn tensor_error(error: candle_core::Error) -> RecordError {
    RecordError::Tensor(Box::new(error))
}
