//! TensorBoard's event files: records framed with lengths and checksums, each a protobuf `Event`, written by hand since they
//! need ten fields of it.
//!
//! Record: length (u64), masked CRC-32C of the length (u32), bytes, masked CRC-32C of the bytes (u32), all little-endian.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use super::error::ExportError;
use super::place::{self, Draft};
use super::record::{Record, Row, Sample};
use runner_store::MetricLine;

/// What the first event says that the others are.
const FILE_VERSION: &str = "brain.Event:2";

/// `DataType` of strings.
const DT_STRING: u64 = 7;
/// `DataClass` of tensors.
const TENSOR: u64 = 2;

/// The event file of a run's folder. Its name depends on the run alone, so that another export replaces it.
#[must_use]
pub fn event_file(dir: &Path, run: &Record) -> PathBuf {
    let started = run.started().max(0.0) as u64;
    dir.join(&run.id).join(format!("events.out.tfevents.{started:010}.runner"))
}

/// Writes `run` to an event file in a folder of its own under `dir`; the file, its events and its bytes.
///
/// # Errors
/// `Exists` if the folder holds an event file, unless `force`, which replaces an earlier export; if the run cannot be read or
/// the file not be written. Then there is no new file.
pub fn tensorboard(run: &Record, dir: &Path, force: bool) -> Result<(PathBuf, u64, u64), ExportError> {
    let path = event_file(dir, run);
    let folder = dir.join(&run.id);
    fs::create_dir_all(&folder).map_err(ExportError::io(&folder))?;
    // TensorBoard shows all event files of a folder as one run.
    let others = fs::read_dir(&folder).map_err(ExportError::io(&folder))?.filter_map(Result::ok);
    let other =
        others.map(|e| e.path()).find(|p| p.file_name().is_some_and(|n| n.to_string_lossy().contains("tfevents")));
    if let Some(path) = other.filter(|_| !force) {
        return Err(ExportError::Exists { path });
    }
    let mut file = Events { draft: place::begin(&path, force)?, count: 0, path: &path };
    file.write(&event(run.started(), 0, |e| e.text(3, FILE_VERSION)))?;
    if let Some(yaml) = run.resolved() {
        file.write(&summary(run.started(), 0, |s| s.message(1, &text_value("experiment", &code(&yaml)))))?;
    }
    let mut times: Vec<(u64, f64)> = Vec::new();
    run.rows(&mut |Row { step, wall_time, line }| {
        times.push((step, wall_time));
        let scalars = scalars(&line);
        if scalars.is_empty() {
            return Ok(());
        }
        file.write(&summary(wall_time, step, |s| {
            for (tag, value) in &scalars {
                s.message(1, &scalar_value(tag, *value));
            }
        }))
    })?;
    let mut prompts: BTreeMap<String, usize> = BTreeMap::new();
    let mut failed = Ok(());
    run.samples(&times, &mut |when, sample| {
        let next = prompts.len() + 1;
        let prompt = *prompts.entry(sample.prompt.clone()).or_insert(next);
        let tag = format!("samples/prompt {prompt}, {}", sample.index + 1);
        let Sample { step, prompt, text, .. } = sample;
        if failed.is_ok() {
            let value = text_value(&tag, &code(&format!("{prompt}{text}")));
            failed = file.write(&summary(when, step, |s| s.message(1, &value)));
        }
    })?;
    failed?;
    let Events { draft, count, .. } = file;
    let bytes = place::finish(draft, &path, force)?;
    Ok((path, count, bytes))
}

/// The scalars of a line that are numbers.
fn scalars(line: &MetricLine) -> Vec<(&'static str, f64)> {
    let all = match line {
        MetricLine::Train(t) => vec![
            ("train/loss", t.loss),
            ("train/lr", t.lr),
            ("train/grad_norm", t.grad_norm),
            ("train/tokens", Some(t.tokens as f64)),
            ("train/tokens_per_second", t.tokens_per_second),
            ("train/mfu", t.mfu),
            ("time/step_ms", t.step_ms),
            ("time/data_ms", t.data_ms),
            ("time/forward_ms", t.forward_ms),
            ("time/backward_ms", t.backward_ms),
            ("time/optimizer_ms", t.optimizer_ms),
            ("time/comm_ms", t.comm_ms),
        ],
        MetricLine::Eval(e) => vec![
            ("eval/val_loss", e.val_loss),
            ("eval/val_perplexity", e.val_perplexity),
            ("eval/hellaswag_acc", e.hellaswag_acc),
            ("eval/hellaswag_acc_norm", e.hellaswag_acc_norm),
            ("eval/hellaswag_n", e.hellaswag_n.map(|n| n as f64)),
        ],
    };
    all.into_iter().filter_map(|(tag, x)| Some((tag, x.filter(|x| x.is_finite())?))).collect()
}

/// `text` as a block of code: TensorBoard shows texts as Markdown, which would eat line ends and marks.
fn code(text: &str) -> String {
    text.lines().flat_map(|line| ["    ", line, "\n"]).collect()
}

/// An event file in the making.
struct Events<'a> {
    draft: Draft,
    count: u64,
    path: &'a Path,
}

impl Events<'_> {
    fn write(&mut self, event: &Message) -> Result<(), ExportError> {
        let length = (event.0.len() as u64).to_le_bytes();
        let parts: [&[u8]; 4] = [&length, &masked(&length), &event.0, &masked(&event.0)];
        self.count += 1;
        self.draft.write_all(&parts.concat()).map_err(ExportError::io(self.path))
    }
}

/// CRC-32C, turned and shifted so that a checksum of data that holds checksums is no trivial one.
fn masked(bytes: &[u8]) -> [u8; 4] {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xA282_EAD8).to_le_bytes()
}

/// A protobuf message as it is written: fields of a number and a wire type.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut n: u64) {
        while n >= 0x80 {
            self.0.push(n as u8 | 0x80);
            n >>= 7;
        }
        self.0.push(n as u8);
    }

    fn tag(&mut self, field: u64, wire: u64) {
        self.varint(field << 3 | wire);
    }

    fn integer(&mut self, field: u64, n: u64) {
        self.tag(field, 0);
        self.varint(n);
    }

    fn double(&mut self, field: u64, x: f64) {
        self.tag(field, 1);
        self.0.extend(x.to_le_bytes());
    }

    fn float(&mut self, field: u64, x: f32) {
        self.tag(field, 5);
        self.0.extend(x.to_le_bytes());
    }

    fn text(&mut self, field: u64, text: &str) {
        self.tag(field, 2);
        self.varint(text.len() as u64);
        self.0.extend(text.as_bytes());
    }

    fn message(&mut self, field: u64, inner: &Self) {
        self.tag(field, 2);
        self.varint(inner.0.len() as u64);
        self.0.extend(&inner.0);
    }
}

fn made(fill: impl FnOnce(&mut Message)) -> Message {
    let mut message = Message::default();
    fill(&mut message);
    message
}

/// `Event`: wall_time 1, step 2, file_version 3 or summary 5.
fn event(wall_time: f64, step: u64, what: impl FnOnce(&mut Message)) -> Message {
    made(|e| {
        e.double(1, wall_time);
        e.integer(2, step);
        what(e);
    })
}

fn summary(wall_time: f64, step: u64, values: impl FnOnce(&mut Message)) -> Message {
    let values = made(values);
    event(wall_time, step, |e| e.message(5, &values))
}

/// `Summary.Value`: tag 1, simple_value 2.
fn scalar_value(tag: &str, x: f64) -> Message {
    made(|v| {
        v.text(1, tag);
        v.float(2, x as f32);
    })
}

/// `Summary.Value`: tag 1, tensor 8 (dtype 1, tensor_shape 2, string_val 8), metadata 9 (plugin_data 1 of plugin_name 1,
/// data_class 4).
fn text_value(tag: &str, text: &str) -> Message {
    made(|v| {
        v.text(1, tag);
        v.message(
            8,
            &made(|t| {
                t.integer(1, DT_STRING);
                t.message(2, &Message::default());
                t.text(8, text);
            }),
        );
        v.message(
            9,
            &made(|m| {
                m.message(1, &made(|p| p.text(1, "text")));
                m.integer(4, TENSOR);
            }),
        );
    })
}

#[cfg(test)]
#[path = "tensorboard_tests.rs"]
mod tests;
