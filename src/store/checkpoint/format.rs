//! What the files of a checkpoint hold: safetensors headers, and `state.json`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::exec::Best;
use crate::model::ParamLayout;

/// The weights, under their names.
pub const MODEL: &str = "model.safetensors";
/// The moments, under `<name>.m` and `<name>.v`.
pub const OPTIMIZER: &str = "optimizer.safetensors";
pub const STATE: &str = "state.json";

/// Version of the checkpoint's own layout.
pub(super) const FORMAT: u32 = 1;

/// Suffix of each section's tensors: the weights, the first moment (momentum), the second.
const SUFFIXES: [&str; 3] = ["", ".m", ".v"];

/// `state.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct StateFile {
    pub(super) format: u32,
    pub(super) step: u64,
    pub(super) tokens: u64,
    /// The lowest validation loss of the run so far.
    pub(super) best: Option<BestFile>,
    /// The validation loss of these very weights, where it was measured.
    pub(super) val_loss: Option<Float>,
    pub(super) plan_hash: String,
    pub(super) moments: usize,
    pub(super) state_hash: String,
    pub(super) weights_hash: String,
    pub(super) files: BTreeMap<String, FileRecord>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct FileRecord {
    pub(super) bytes: u64,
    pub(super) blake3: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct BestFile {
    pub(super) step: u64,
    pub(super) val_loss: Float,
}

impl From<Best> for BestFile {
    fn from(best: Best) -> Self {
        Self { step: best.step, val_loss: Float(best.val_loss) }
    }
}

impl From<BestFile> for Best {
    fn from(best: BestFile) -> Self {
        Self { step: best.step, val_loss: best.val_loss.0 }
    }
}

/// A number that survives JSON even if it is not finite: then it is written as a string.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Float(pub(super) f64);

impl Serialize for Float {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_finite() { serializer.serialize_f64(self.0) } else { serializer.collect_str(&self.0) }
    }
}

impl<'de> Deserialize<'de> for Float {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        let number = match &value {
            serde_json::Value::Number(n) => n.as_f64(),
            serde_json::Value::String(s) => s.parse().ok(),
            _ => None,
        };
        number.map(Self).ok_or_else(|| serde::de::Error::custom(format!("{value} is no number")))
    }
}

/// A tensor in a safetensors header.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct TensorInfo {
    pub(super) dtype: String,
    pub(super) shape: Vec<usize>,
    /// Begin and end in the data, in bytes.
    pub(super) data_offsets: [u64; 2],
}

/// The tensors of `sections` of a flat buffer laid out by `layout`, in the order of their bytes: section after section,
/// each in buffer order, without gaps. A file's data is thus the buffer itself.
pub(super) fn tensors(layout: &ParamLayout, sections: std::ops::Range<usize>) -> Vec<(String, TensorInfo)> {
    let mut out = Vec::with_capacity(layout.entries.len() * sections.len());
    for (position, section) in sections.enumerate() {
        let base = position * layout.total;
        let suffix = SUFFIXES.get(section).map_or_else(|| format!(".{section}"), ToString::to_string);
        out.extend(layout.entries.iter().map(|entry| {
            let range = entry.range();
            let data_offsets = [range.start, range.end].map(|element| 4 * (base + element) as u64);
            let info = TensorInfo { dtype: "F32".into(), shape: entry.spec.shape.clone(), data_offsets };
            (format!("{}{suffix}", entry.spec.name), info)
        }));
    }
    out
}

/// A safetensors file up to its data: the length of the header, and the header, padded with blanks to a multiple of
/// eight bytes.
pub(super) fn header(tensors: &[(String, TensorInfo)]) -> serde_json::Result<Vec<u8>> {
    let mut json = String::from("{\"__metadata__\":{\"matrices\":\"[out, in]\"}");
    for (name, info) in tensors {
        json.push(',');
        json.push_str(&serde_json::to_string(name)?);
        json.push(':');
        json.push_str(&serde_json::to_string(info)?);
    }
    json.push('}');
    let padded = json.len().next_multiple_of(8);
    let mut out = Vec::with_capacity(8 + padded);
    out.extend_from_slice(&(padded as u64).to_le_bytes());
    out.extend_from_slice(json.as_bytes());
    out.resize(8 + padded, b' ');
    Ok(out)
}

/// Compares a header's JSON with what it must be; the first difference, in words.
pub(super) fn compare(json: &[u8], expected: &[(String, TensorInfo)]) -> Result<(), String> {
    let value: BTreeMap<String, serde_json::Value> =
        serde_json::from_slice(json).map_err(|e| format!("its header is not safetensors JSON: {e}"))?;
    let mut found = BTreeMap::new();
    for (name, value) in value.into_iter().filter(|(name, _)| name != "__metadata__") {
        let info: TensorInfo = serde_json::from_value(value).map_err(|e| format!("tensor {name}: {e}"))?;
        found.insert(name, info);
    }
    for (name, want) in expected {
        let Some(have) = found.remove(name) else { return Err(format!("it lacks tensor {name}")) };
        if have.dtype != want.dtype || have.shape != want.shape {
            let [h, w] = [&have, want].map(|t| format!("{} {:?}", t.dtype, t.shape));
            return Err(format!("tensor {name} is {h}, this model's is {w}"));
        }
        if have.data_offsets != want.data_offsets {
            return Err(format!("tensor {name} is not where this version writes it"));
        }
    }
    match found.keys().next() {
        Some(name) => Err(format!("it holds tensor {name}, which this model does not have")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_not_finite_survive() {
        for x in [1.25, f64::INFINITY, f64::NEG_INFINITY, 0.1 + 0.2] {
            let text = serde_json::to_string(&Float(x)).unwrap();
            assert_eq!(serde_json::from_str::<Float>(&text).unwrap().0.to_bits(), x.to_bits(), "{text}");
        }
        assert!(serde_json::from_str::<Float>(&serde_json::to_string(&Float(f64::NAN)).unwrap()).unwrap().0.is_nan());
        assert!(serde_json::from_str::<Float>("null").is_err());
    }
}
