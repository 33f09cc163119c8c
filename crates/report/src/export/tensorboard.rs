//! TensorBoard's event files: records framed with lengths and checksums, each holding a protobuf `Event`. They are written by
//! hand because they need only ten fields of that message.
//!
//! A record is its length (u64), the masked CRC-32C of the length (u32), the bytes, and the masked CRC-32C of the bytes (u32),
//! all little-endian.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use super::columns::{FLOATS, INTEGERS, MetricValues};
use super::error::ExportError;
use super::new_file::write_new_file;
use super::timed_record::{TimedLine, TimedRecord};

/// The format version that the first event of a file states.
const FILE_VERSION: &str = "brain.Event:2";

/// `DataType` of strings.
const DT_STRING: u64 = 7;
/// `DataClass` of tensors.
const TENSOR: u64 = 2;

/// Writes `run` to an event file in the folder `dir/ID`. Returns the file, its events and its bytes. The file's name depends on
/// the run alone, so that another export replaces it.
///
/// # Errors
/// `Exists` if the folder holds an event file, unless `force`; if the run cannot be read or the file cannot be written. Then
/// there is no new file.
pub fn export_tensorboard(run: &TimedRecord, dir: &Path, force: bool) -> Result<(PathBuf, u64, u64), ExportError> {
    let folder = dir.join(&run.id);
    runner_files::create_dir_all(&folder).map_err(ExportError::io(&folder))?;
    // TensorBoard shows all event files of a folder as one run.
    for entry in fs::read_dir(&folder).map_err(ExportError::io(&folder))? {
        let entry = entry.map_err(ExportError::io(&folder))?;
        if !force && entry.file_name().to_string_lossy().contains("tfevents") {
            return Err(ExportError::Exists { path: entry.path() });
        }
    }
    let path = folder.join(format!("events.out.tfevents.{:010}.runner", run.started().max(0.0) as u64));
    let (count, bytes) = write_new_file(&path, force, |out| {
        let mut events = EventWriter { out, count: 0, path: &path };
        write_events(run, &mut events)?;
        Ok(events.count)
    })?;
    Ok((path, count, bytes))
}

fn write_events(run: &TimedRecord, events: &mut EventWriter<'_>) -> Result<(), ExportError> {
    events.write(&event(run.started(), 0, |e| e.bytes(3, FILE_VERSION)))?;
    let yaml = run.resolved()?;
    events.write(&summary(run.started(), 0, |s| s.bytes(1, text_value("experiment", &code_block(&yaml)).0)))?;
    let mut times: Vec<(u64, f64)> = Vec::new();
    run.for_each_line(&mut |TimedLine { step, wall_time, values }| {
        times.push((step, wall_time));
        let scalars = scalars(&values);
        if scalars.is_empty() {
            return Ok(());
        }
        events.write(&summary(wall_time, step, |s| {
            for (tag, value) in &scalars {
                s.bytes(1, scalar_value(tag, *value).0);
            }
        }))
    })?;
    let mut prompts: BTreeMap<String, usize> = BTreeMap::new();
    let mut result = Ok(());
    run.for_each_sample(&times, &mut |wall_time, sample| {
        let next = prompts.len() + 1;
        let prompt = *prompts.entry(sample.prompt.clone()).or_insert(next);
        let tag = format!("samples/prompt {prompt}, {}", sample.index + 1);
        if result.is_ok() {
            let value = text_value(&tag, &code_block(&format!("{}{}", sample.prompt, sample.text)));
            result = events.write(&summary(wall_time, sample.step, |s| s.bytes(1, value.0)));
        }
    })?;
    result
}

/// The tags and values of a line.
fn scalars(values: &MetricValues) -> Vec<(String, f64)> {
    let columns = INTEGERS.iter().chain(&FLOATS);
    columns.filter_map(|c| Some((format!("{}/{}", c.group, c.name), values.float(c)?))).collect()
}

/// `text` as a block of code. TensorBoard shows texts as Markdown, which would lose line ends and special characters.
fn code_block(text: &str) -> String {
    text.lines().flat_map(|line| ["    ", line, "\n"]).collect()
}

struct EventWriter<'a> {
    out: &'a mut BufWriter<File>,
    count: u64,
    path: &'a Path,
}

impl EventWriter<'_> {
    fn write(&mut self, event: &Message) -> Result<(), ExportError> {
        let length = (event.0.len() as u64).to_le_bytes();
        let parts: [&[u8]; 4] = [&length, &masked_crc(&length), &event.0, &masked_crc(&event.0)];
        self.count += 1;
        self.out.write_all(&parts.concat()).map_err(ExportError::io(self.path))
    }
}

/// CRC-32C, rotated and shifted, because the CRC of data that contains its own CRC is trivial.
fn masked_crc(bytes: &[u8]) -> [u8; 4] {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xA282_EAD8).to_le_bytes()
}

/// An encoded protobuf message: fields, each with a number and a wire type.
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

    fn integer(&mut self, field: u64, n: u64) {
        self.varint(field << 3);
        self.varint(n);
    }

    fn double(&mut self, field: u64, x: f64) {
        self.varint(field << 3 | 1);
        self.0.extend(x.to_le_bytes());
    }

    fn float(&mut self, field: u64, x: f32) {
        self.varint(field << 3 | 5);
        self.0.extend(x.to_le_bytes());
    }

    /// Adds a text, or an inner message.
    fn bytes(&mut self, field: u64, bytes: impl AsRef<[u8]>) {
        self.varint(field << 3 | 2);
        self.varint(bytes.as_ref().len() as u64);
        self.0.extend(bytes.as_ref());
    }
}

fn message(fill: impl FnOnce(&mut Message)) -> Message {
    let mut message = Message::default();
    fill(&mut message);
    message
}

/// An `Event`: wall_time 1, step 2, file_version 3 or summary 5.
fn event(wall_time: f64, step: u64, content: impl FnOnce(&mut Message)) -> Message {
    message(|e| {
        e.double(1, wall_time);
        e.integer(2, step);
        content(e);
    })
}

/// An `Event` with a `Summary` of `values`.
fn summary(wall_time: f64, step: u64, values: impl FnOnce(&mut Message)) -> Message {
    let values = message(values);
    event(wall_time, step, |e| e.bytes(5, values.0))
}

/// A `Summary.Value`: tag 1, simple_value 2.
fn scalar_value(tag: &str, x: f64) -> Message {
    message(|v| {
        v.bytes(1, tag);
        v.float(2, x as f32);
    })
}

/// A `Summary.Value`: tag 1, tensor 8 (dtype 1, tensor_shape 2, string_val 8), metadata 9 (plugin_data 1 of plugin_name 1,
/// data_class 4).
fn text_value(tag: &str, text: &str) -> Message {
    let tensor = message(|t| {
        t.integer(1, DT_STRING);
        t.bytes(2, []);
        t.bytes(8, text);
    });
    let metadata = message(|m| {
        m.bytes(1, message(|p| p.bytes(1, "text")).0);
        m.integer(4, TENSOR);
    });
    message(|v| {
        v.bytes(1, tag);
        v.bytes(8, tensor.0);
        v.bytes(9, metadata.0);
    })
}

#[cfg(test)]
mod tests;
