//! Event files read by a separate reader: frames, checksums bit by bit, protobuf fields.

use std::fs;

use super::*;
use crate::lines::{LineFile, cut_after_step};
use crate::run_dir::METRICS;
use crate::testing::{eval, timed_run, train};
use runner_plan::testing::{compiled, experiment};
use runner_spec::event::{Evaluation, StepMetrics};

/// CRC-32C by its definition: the reflected polynomial 0x82F63B78, a bit at a time.
fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0x82F6_3B78 } else { crc >> 1 })
    })
}

fn unmasked(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes.try_into().unwrap()).wrapping_sub(0xA282_EAD8).rotate_left(15)
}

#[derive(Debug, Clone, PartialEq)]
enum Field {
    Integer(u64),
    Fixed64([u8; 8]),
    Bytes(Vec<u8>),
    Fixed32([u8; 4]),
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut n = 0;
    for shift in (0..).step_by(7) {
        let (first, rest) = bytes.split_first().unwrap();
        *bytes = rest;
        n |= u64::from(first & 0x7F) << shift;
        if first & 0x80 == 0 {
            break;
        }
    }
    n
}

fn fields(mut bytes: &[u8]) -> Vec<(u64, Field)> {
    let mut out = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let mut take = |n: usize| {
            let (head, rest) = bytes.split_at(n);
            bytes = rest;
            head.to_vec()
        };
        let field = match tag & 7 {
            0 => Field::Integer(varint(&mut bytes)),
            1 => Field::Fixed64(take(8).try_into().unwrap()),
            5 => Field::Fixed32(take(4).try_into().unwrap()),
            2 => {
                let length = varint(&mut bytes) as usize;
                let (head, rest) = bytes.split_at(length);
                bytes = rest;
                Field::Bytes(head.to_vec())
            }
            other => panic!("wire type {other}"),
        };
        out.push((tag >> 3, field));
    }
    out
}

fn get(fields: &[(u64, Field)], number: u64) -> Option<Field> {
    fields.iter().find(|(n, _)| *n == number).map(|(_, field)| field.clone())
}

fn inner(fields: &[(u64, Field)], number: u64) -> Vec<u8> {
    let Some(Field::Bytes(bytes)) = get(fields, number) else { panic!("field {number} of {fields:?}") };
    bytes
}

/// The events of a file, its frames checked.
fn events(bytes: &[u8]) -> Vec<Vec<(u64, Field)>> {
    let (mut rest, mut out) = (bytes, Vec::new());
    while !rest.is_empty() {
        let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
        assert_eq!(unmasked(&rest[8..12]), crc(&rest[..8]));
        let data = &rest[12..12 + length];
        assert_eq!(unmasked(&rest[12 + length..16 + length]), crc(data));
        out.push(fields(data));
        rest = &rest[16 + length..];
    }
    out
}

#[test]
fn checksums_are_the_standard_s() {
    assert_eq!(crc(b"123456789"), 0xE306_9283);
    assert_eq!(crc32c::crc32c(b"123456789"), 0xE306_9283);
    // RFC 3720, B.4: 32 bytes of zeros, of ones.
    assert_eq!((crc32c::crc32c(&[0; 32]), crc32c::crc32c(&[0xFF; 32])), (0x8A91_36AA, 0x62A8_AB43));
    assert_eq!(unmasked(&masked_crc(b"123456789")), 0xE306_9283);
}

#[test]
fn an_event_file_has_the_numbers_of_the_record() {
    let dir = tempfile::tempdir().unwrap();
    let lines = [train(1, "2.5"), train(300, "null"), eval(300, "1.25")].concat();
    let path = timed_run(dir.path(), &compiled(&experiment()), &[(0, "2026-01-01T00:00:01.000Z")], &lines);
    let record = TimedRecord::open(&path).unwrap();
    let mut bytes = Vec::new();
    let count = EventFileWriter::write_record(&mut bytes, Path::new("events"), &record).unwrap().count();
    let events = events(&bytes);
    assert_eq!(events.len() as u64, count);
    assert_eq!(inner(&events[0], 3), b"brain.Event:2");
    let mut scalars = Vec::new();
    for event in &events[1..] {
        let Some(Field::Fixed64(when)) = get(event, 1) else { panic!("a time") };
        let Some(Field::Integer(step)) = get(event, 2) else { panic!("a step") };
        for (_, value) in fields(&inner(event, 5)) {
            let Field::Bytes(value) = value else { panic!("a value") };
            let value = fields(&value);
            let tag = String::from_utf8(inner(&value, 1)).unwrap();
            let Some(Field::Fixed32(x)) = get(&value, 2) else { panic!("a number") };
            scalars.push((tag, step, f64::from_le_bytes(when), f32::from_le_bytes(x)));
        }
    }
    let start = 1_767_225_601.0;
    let loss: Vec<_> = scalars.iter().filter(|s| s.0.ends_with("loss")).cloned().collect();
    let expected =
        [("train/loss".to_owned(), 1, start + 0.5, 2.5), ("eval/val_loss".to_owned(), 300, start + 1.0, 1.25)];
    assert_eq!(loss, expected, "a loss that is not finite has no point");
    assert_eq!(scalars.iter().filter(|s| s.0 == "train/lr").count(), 2);
    let perplexity: Vec<_> = scalars.iter().filter(|s| s.0 == "train/perplexity").map(|s| (s.1, s.3)).collect();
    assert_eq!(perplexity, [(1, 2.5_f64.exp() as f32)]);
}

/// A training that is a pure function of the step: its events, given to the record and to the event file.
fn train_live(path: &Path, from: u64, through: u64) -> LiveEventFile {
    let mut live = LiveEventFile::open(path).unwrap();
    let mut metrics = LineFile::append(&path.join(METRICS)).unwrap();
    for step in from + 1..=through {
        let step_metrics = StepMetrics { step, loss: 5.0 / step as f64, step_ms: 500.0, ..StepMetrics::default() };
        metrics.write(&MetricLine::from(&step_metrics)).unwrap();
        live.add(&Event::Step(step_metrics)).unwrap();
        if step.is_multiple_of(2) {
            let eval = Evaluation::of_loss(step, 1.0);
            metrics.write(&MetricLine::from(&eval)).unwrap();
            live.add(&Event::Eval(eval)).unwrap();
        }
    }
    live
}

#[test]
fn a_live_file_equals_an_export_also_after_a_kill_and_a_resume() {
    let dir = tempfile::tempdir().unwrap();
    let sessions = [(0, "2026-01-01T00:00:00.000Z"), (4, "2026-01-01T01:00:00.000Z")];
    let path = timed_run(dir.path(), &compiled(&experiment()), &sessions, "");
    let record = || TimedRecord::open(&path).unwrap();
    let file = path.join(TENSORBOARD).join(event_file_name(&record()));
    let exported = || {
        let mut bytes = Vec::new();
        EventFileWriter::write_record(&mut bytes, Path::new("events"), &record()).unwrap();
        bytes
    };
    // A kill: what was not flushed is lost, and the last event is torn.
    let live = train_live(&path, 0, 7);
    std::mem::forget(live);
    fs::OpenOptions::new().append(true).open(&file).unwrap().write_all(b"torn").unwrap();
    cut_after_step(&path.join(METRICS), Some(4)).unwrap();
    let mut live = train_live(&path, 4, 9);
    live.flush().unwrap();
    assert_eq!(fs::read(&file).unwrap(), exported());
    assert_eq!(events(&exported()).len(), 1 + 9 + 4, "no step twice");
    assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
}
