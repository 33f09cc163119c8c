//! TensorBoard's event files: records framed with lengths and checksums, each holding a protobuf `Event`. They are written by
//! hand because they need only six fields of that message.
//!
//! A record is its length (u64), the masked CRC-32C of the length (u32), the bytes, and the masked CRC-32C of the bytes (u32),
//! all little-endian.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use super::timed_record::{Clock, TimedLine, TimedRecord};
use crate::error::RecordError;
use crate::metrics::MetricLine;
use crate::run_dir::TENSORBOARD;
use runner_files::{create_owned_dir, put_in_place, temporary_file};
use runner_spec::event::Event;

/// The format version that the first event of a file states.
const FILE_VERSION: &str = "brain.Event:2";

/// The name of the event file of `run`. It depends on the run alone, so that another file of the run replaces it.
pub fn event_file_name(run: &TimedRecord) -> String {
    format!("events.out.tfevents.{:010}.runner", run.started().max(0.0) as u64)
}

/// Writes an event file: the metrics in the order of a run.
#[derive(Debug)]
pub struct EventFileWriter<W> {
    out: W,
    path: PathBuf,
    /// Events that were written.
    count: u64,
}

impl<W: Write> EventFileWriter<W> {
    /// Writes what is recorded of `run` to `out`, the file `path`.
    ///
    /// # Errors
    /// If the run cannot be read or the file cannot be written.
    pub fn write_record(out: W, path: &Path, run: &TimedRecord) -> Result<Self, RecordError> {
        Ok(Self::begin(out, path, run)?.0)
    }

    /// Does the work of `write_record`, and also returns the clock after the last line.
    fn begin(out: W, path: &Path, run: &TimedRecord) -> Result<(Self, Clock), RecordError> {
        let mut writer = Self { out, path: path.to_owned(), count: 0 };
        writer.write(&event(run.started(), 0, |e| e.bytes(3, FILE_VERSION)))?;
        let mut clock = run.clock();
        run.read_lines(&mut clock, &mut |line: TimedLine| writer.write_line(&line))?;
        Ok((writer, clock))
    }

    /// The number of events that were written.
    pub fn count(&self) -> u64 {
        self.count
    }

    fn write_line(&mut self, line: &TimedLine) -> Result<(), RecordError> {
        let scalars = line.values.scalars();
        if scalars.is_empty() {
            return Ok(());
        }
        // A `Summary` of values.
        let values = message(|s| {
            for (tag, value) in &scalars {
                s.bytes(1, scalar_value(tag, *value).0);
            }
        });
        self.write(&event(line.wall_time, line.step, |e| e.bytes(5, values.0)))
    }

    fn write(&mut self, event: &Message) -> Result<(), RecordError> {
        let length = (event.0.len() as u64).to_le_bytes();
        let parts: [&[u8]; 4] = [&length, &masked_crc(&length), &event.0, &masked_crc(&event.0)];
        self.count += 1;
        self.out.write_all(&parts.concat()).map_err(RecordError::io("writing", &self.path))
    }

    /// Passes on what is buffered.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn flush(&mut self) -> Result<(), RecordError> {
        self.out.flush().map_err(RecordError::io("writing", &self.path))
    }
}

/// The event file of a run that trains. It always has the events that an export of the record would have.
#[derive(Debug)]
pub struct LiveEventFile {
    writer: EventFileWriter<BufWriter<File>>,
    clock: Clock,
}

impl LiveEventFile {
    /// Writes the record of the run directory `run` to its event file, in place of the file of an earlier session: the record may
    /// have been cut back to a checkpoint since.
    ///
    /// # Errors
    /// If the record cannot be read or the file cannot be written.
    pub fn open(run: &Path) -> Result<Self, RecordError> {
        let record = TimedRecord::open(run)?;
        let folder = run.join(TENSORBOARD);
        let path = folder.join(event_file_name(&record));
        let io = |source| RecordError::io("writing", &path)(source);
        create_owned_dir(&folder).map_err(io)?;
        // Leftovers of a killed process are removed from the run directory alone.
        let temporary = temporary_file(run).map_err(io)?;
        let out = BufWriter::new(File::create(&temporary).map_err(io)?);
        let (mut writer, clock) = EventFileWriter::begin(out, &path, &record)?;
        writer.flush()?;
        put_in_place(temporary, &path, true).map_err(io)?;
        Ok(Self { writer, clock })
    }

    /// Adds `event`, if it has metrics.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn add(&mut self, event: &Event) -> Result<(), RecordError> {
        let line = match event {
            Event::Step(metrics) => MetricLine::from(metrics),
            Event::Eval(metrics) => MetricLine::from(metrics),
            _ => return Ok(()),
        };
        self.writer.write_line(&self.clock.advance(&line))
    }

    /// Makes what was added visible to readers.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn flush(&mut self) -> Result<(), RecordError> {
        self.writer.flush()
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

/// A `Summary.Value`: tag 1, simple_value 2.
fn scalar_value(tag: &str, x: f64) -> Message {
    message(|v| {
        v.bytes(1, tag);
        v.float(2, x as f32);
    })
}

#[cfg(test)]
mod tests;
