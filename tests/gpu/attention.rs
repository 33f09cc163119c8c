//! Attention on a GPU compared with the CPU in f64, over shapes, masks and precisions; new tokens over a cache.
//!
//! Errors are held against the numbers beside them: an element's row of its head, and with a part the whole tensor, as sums that
//! cancel keep the error of their terms. In units of the last place of what products and results are rounded to.

use candle_core::{DType, Device, Tensor};
use half::bf16;
use runner_compute::kernels::Gradient;
use runner_compute::kernels::attention::{
    AttentionMasks, AttentionShape, Documents, ValidLengths, attend_with_cache, attention, attention_backward,
    new_cache,
};
use runner_compute::kernels::cpu::dropout::DropoutMask;
use runner_spec::model::{Heads, Mask};
use runner_spec::philox::Philox;

use crate::device::gpus;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Precision {
    F32,
    Tf32,
    Bf16,
}

impl Precision {
    /// Half a unit in the last place of 1 of what goes into a product.
    fn unit(self) -> f64 {
        match self {
            Self::F32 => 2_f64.powi(-24),
            Self::Tf32 => 2_f64.powi(-11),
            Self::Bf16 => 2_f64.powi(-8),
        }
    }

    /// How many of these an element may be off. A score is a sum over the head and goes into an exponential: its error, a few units
    /// times the score, is a relative one of the probability. The gradients have two such factors. In f32 the sums themselves have
    /// an error of √n units; in the others sums are f32.
    fn units(self) -> f64 {
        match self {
            Self::F32 => 64.0,
            Self::Tf32 | Self::Bf16 => 8.0,
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Case {
    shape: [usize; 5],
    dropout: bool,
    filled: bool,
    /// True if tensors begin at addresses that vector loads cannot use.
    shifted: bool,
}

const fn case(shape: [usize; 5], dropout: bool, filled: bool, shifted: bool) -> Case {
    Case { shape, dropout, filled, shifted }
}

/// Batch, positions, heads, key-value heads, width of a head. Each is tried with each of [`MASKS`], and with [`WITHIN_DOCUMENTS`].
const CASES: [Case; 17] = [
    case([1, 1, 1, 1, 16], false, false, false),
    case([2, 1, 3, 1, 64], true, true, false),
    case([2, 7, 3, 3, 32], false, false, false),
    case([1, 7, 12, 4, 128], true, false, false),
    case([1, 64, 3, 1, 64], false, true, false),
    case([2, 64, 1, 1, 80], true, false, false),
    case([1, 65, 12, 4, 64], false, false, false),
    case([2, 65, 3, 3, 96], true, true, false),
    case([1, 100, 12, 3, 48], true, true, false),
    case([2, 100, 1, 1, 128], false, false, false),
    case([1, 257, 3, 1, 64], false, true, false),
    case([1, 257, 3, 3, 128], true, false, false),
    case([2, 65, 3, 1, 20], true, true, false),
    case([1, 65, 2, 1, 256], true, true, false),
    case([1, 130, 2, 2, 200], false, false, false),
    case([2, 40, 1, 1, 160], false, true, true),
    case([1, 100, 3, 1, 64], false, false, true),
];

/// Windows end inside of tiles, and leave out whole ones.
const MASKS: [Mask; 5] = [Mask::Causal, Mask::Full, Mask::Window(1), Mask::Window(40), Mask::Window(64)];
const WITHIN_DOCUMENTS: [Mask; 2] = [Mask::Causal, Mask::Window(40)];

/// Documents that end inside of tiles and leave out whole ones; each row begins with another.
fn documents(s: AttentionShape, device: &Device) -> Documents {
    let rows = (0..s.batch).flat_map(|row| {
        let lengths = [5, 30, 1, 64, 100].into_iter().cycle().skip(row).take(s.seq);
        let mut start = 0;
        let documents = lengths.flat_map(move |length: usize| {
            start += length;
            vec![(start - length) as u32; length]
        });
        documents.take(s.seq)
    });
    Documents::new(&rows.collect::<Vec<u32>>(), s.seq, device).unwrap()
}

impl Case {
    fn shape(self, mask: Mask) -> AttentionShape {
        let [batch, seq, queries, kv, width] = self.shape;
        AttentionShape { batch, seq, heads: Heads { queries, kv, width }, mask, scale: 1.0 / (width as f64).sqrt() }
    }

    fn dropout(self) -> Option<DropoutMask> {
        let stream = Philox::new(5, "attention");
        self.dropout.then_some(DropoutMask { stream, step: 3, first_sample: 6, sample_stride: 2, p: 0.2 })
    }

    /// One sample is nearly empty, one is a third full.
    fn filled(self, device: &Device) -> Option<ValidLengths> {
        let [batch, seq, ..] = self.shape;
        let lengths: Vec<usize> = (0..batch).map(|b| if b == 1 { 0 } else { seq.div_ceil(3) }).collect();
        self.filled.then(|| ValidLengths::new(&lengths, device).unwrap())
    }
}

fn normals(seed: u64, n: usize, precision: Precision) -> Vec<f32> {
    let stream = Philox::new(seed, "test");
    let values = (0..n.div_ceil(4) as u64).flat_map(|i| stream.normals(i)).take(n).map(|v| v as f32);
    match precision {
        Precision::Bf16 => values.map(|v| bf16::from_f32(v).to_f32()).collect(),
        _ => values.collect(),
    }
}

/// Copies a tensor to the GPU, in the run's element type.
fn there(values: &[f32], shape: (usize, usize), precision: Precision, device: &Device, shifted: bool) -> Tensor {
    let mut all = vec![0.0; usize::from(shifted)];
    all.extend_from_slice(values);
    let all = Tensor::new(all.as_slice(), &Device::Cpu).unwrap();
    let all = if precision == Precision::Bf16 { all.to_dtype(DType::BF16).unwrap() } else { all };
    let all = all.to_device(device).unwrap();
    all.narrow(0, usize::from(shifted), values.len()).unwrap().reshape(shape).unwrap()
}

fn in_f64(values: &[f32], shape: (usize, usize)) -> Tensor {
    Tensor::from_slice(values, shape, &Device::Cpu).unwrap().to_dtype(DType::F64).unwrap()
}

fn read(t: &Tensor) -> Vec<f64> {
    let t = t.to_device(&Device::Cpu).unwrap().to_dtype(DType::F64).unwrap();
    t.flatten_all().unwrap().to_vec1().unwrap()
}

fn bits(t: &Tensor) -> Vec<u64> {
    read(t).into_iter().map(f64::to_bits).collect()
}

/// The largest error, in units beside an element's group of `width` and the whole.
fn worst(got: &Tensor, right: &Tensor, width: usize, unit: f64) -> f64 {
    let (got, right) = (read(got), read(right));
    assert_eq!(got.len(), right.len());
    let mean = (right.iter().map(|v| v * v).sum::<f64>() / right.len() as f64).sqrt();
    let mut worst = 0.0_f64;
    for (got, right) in got.chunks(width).zip(right.chunks(width)) {
        let beside = right.iter().fold(mean, |m, v| m.max(v.abs()));
        for (a, b) in got.iter().zip(right) {
            assert!(a.is_finite(), "{a} instead of {b}");
            worst = worst.max((a - b).abs() / beside / unit);
        }
    }
    worst
}

fn device(precision: Precision) -> Option<Device> {
    gpus(1)?;
    let device = runner_compute::gpu::open(0).unwrap();
    runner_compute::gpu::Gpu::of_device(&device).unwrap().set_tf32(precision == Precision::Tf32);
    Some(device)
}

/// Sums of the rows of `gradient` are sums of the same numbers before they were rounded to what is stored.
fn check_row_sums(gradient: &Tensor, row_sums: &Tensor, name: &str) {
    let (rows, width) = gradient.dims2().unwrap();
    let column = |numbers: &[f64], c: usize| -> Vec<f64> { numbers.iter().skip(c).step_by(width).copied().collect() };
    let (stored, parts) = (read(gradient), read(row_sums));
    // Half of the last place of a stored number, which has eight digits; f32 for each sum of two.
    let unit = if gradient.dtype() == DType::BF16 { 2.0_f64.powi(-8) } else { 0.0 } + rows as f64 * 2.0_f64.powi(-24);
    for c in 0..width {
        let (numbers, sum) = (column(&stored, c), column(&parts, c).iter().sum::<f64>());
        let (right, size) = (numbers.iter().sum::<f64>(), numbers.iter().map(|x| x.abs()).sum::<f64>());
        assert!((sum - right).abs() <= unit * size + 1e-30, "{name}: column {c} has the sum {sum}, not {right}");
    }
}

fn follows_the_cpu(precision: Precision) {
    let Some(device) = device(precision) else { return };
    let masks = MASKS.map(|mask| (mask, false)).into_iter().chain(WITHIN_DOCUMENTS.map(|mask| (mask, true)));
    for (case, (mask, apart)) in CASES.into_iter().flat_map(|case| masks.clone().map(move |mask| (case, mask))) {
        let s = case.shape(mask);
        let name = format!("{precision:?} {case:?}, {mask:?}{}", if apart { " within documents" } else { "" });
        let (rows, widths) = (s.batch * s.seq, [s.qkv_width(), s.out_width()]);
        let qkv = normals(1, rows * widths[0], precision);
        let dout = normals(2, rows * widths[1], precision);
        let (dropout, filled) = (case.dropout(), case.filled(&device));
        let documents = apart.then(|| documents(s, &device));
        let masks =
            AttentionMasks { dropout: dropout.as_ref(), valid_lengths: filled.as_ref(), documents: documents.as_ref() };

        let (x, dy) = (in_f64(&qkv, (rows, widths[0])), in_f64(&dout, (rows, widths[1])));
        let (out, lse) = attention(&x, s, masks).unwrap();
        let dqkv = attention_backward(&x, &out, &lse, &dy, s, masks, false).unwrap().tensor;

        let dtype = if precision == Precision::Bf16 { DType::BF16 } else { DType::F32 };
        let (xf, dyf) = (x.to_dtype(dtype).unwrap(), dy.to_dtype(dtype).unwrap());
        let twin = attention(&xf, s, masks).unwrap();
        let twin_gradient = attention_backward(&xf, &twin.0, &twin.1, &dyf, s, masks, false).unwrap().tensor;

        let x = there(&qkv, (rows, widths[0]), precision, &device, case.shifted);
        let dy = there(&dout, (rows, widths[1]), precision, &device, case.shifted);
        let once = attention(&x, s, masks).unwrap();
        let Gradient { tensor: gradient, row_sums } =
            attention_backward(&x, &once.0, &once.1, &dy, s, masks, true).unwrap();
        let again = attention(&x, s, masks).unwrap();
        let gradient_again = attention_backward(&x, &again.0, &again.1, &dy, s, masks, false).unwrap().tensor;
        assert_eq!((once.0.dtype(), gradient.dtype(), once.1.dtype()), (x.dtype(), x.dtype(), DType::F32));
        assert_eq!(bits(&once.0), bits(&again.0), "{name}: outputs of two runs");
        assert_eq!(bits(&once.1), bits(&again.1), "{name}: log-sum-exps of two runs");
        assert_eq!(bits(&gradient), bits(&gradient_again), "{name}: gradients of two runs");

        check_row_sums(&gradient, &row_sums.unwrap(), &name);

        let unit = precision.unit();
        // Log-sum-exps are f32; of bf16 numbers their products are exact.
        let lse_unit = if precision == Precision::Bf16 { Precision::F32.unit() } else { unit };
        let lse_units = if precision == Precision::Tf32 { precision.units() } else { Precision::F32.units() };
        // Where a sample sees one key alone, dS is a difference of equal numbers: there the twin in f32 loses as many digits.
        // The twin of TF32 is one in f32: what it is off beside its own bound, this may be beside its bound.
        let (twin_unit, beside) = match precision {
            Precision::Tf32 => (Precision::F32.unit(), precision.units() / Precision::F32.units()),
            _ => (unit, 1.0),
        };
        let twin_out = beside * worst(&twin.0, &out, s.heads.width, twin_unit);
        let twin_dqkv = beside * worst(&twin_gradient, &dqkv, s.heads.width, twin_unit);
        let found = [
            ("out", worst(&once.0, &out, s.heads.width, unit), precision.units().max(3.0 * twin_out)),
            ("lse", worst(&once.1, &lse, 1, lse_unit), lse_units),
            ("dqkv", worst(&gradient, &dqkv, s.heads.width, unit), precision.units().max(3.0 * twin_dqkv)),
        ];
        println!("{name}: {found:.1?}");
        for (what, units, most) in found {
            assert!(units <= most, "{name}: {what} is {units} units off, {most} are allowed");
        }
    }
}

/// The masks of dropout are the CPU's: one element kept that is dropped there would be off by far more.
#[test]
fn f32_follows_the_cpu() {
    follows_the_cpu(Precision::F32);
}

#[test]
fn tf32_follows_the_cpu() {
    follows_the_cpu(Precision::Tf32);
}

#[test]
fn bf16_follows_the_cpu() {
    follows_the_cpu(Precision::Bf16);
}

/// Other tokens in one document change no bit of what the others' tokens get.
#[test]
fn documents_do_not_see_each_other() {
    for (precision, width) in
        [(Precision::F32, 64), (Precision::Tf32, 64), (Precision::Bf16, 64), (Precision::Bf16, 80)]
    {
        let Some(device) = device(precision) else { return };
        let s = AttentionShape {
            batch: 1,
            seq: 257,
            heads: Heads { queries: 2, kv: 1, width },
            mask: Mask::Causal,
            scale: 1.0 / (width as f64).sqrt(),
        };
        let documents = documents(s, &device);
        let masks = AttentionMasks { documents: Some(&documents), ..AttentionMasks::default() };
        let is_changed = |row: usize| documents.host[row] == 36;
        let run = |factor: f32| {
            let [qkv, dout] = [(1, s.qkv_width()), (2, s.out_width())].map(|(seed, width)| {
                let mut numbers = normals(seed, s.seq * width, precision);
                let changed = numbers.chunks_mut(width).enumerate().filter(|(row, _)| is_changed(*row));
                changed.for_each(|(_, row)| row.iter_mut().for_each(|v| *v *= factor));
                there(&numbers, (s.seq, width), precision, &device, false)
            });
            let (out, lse) = attention(&qkv, s, masks).unwrap();
            let gradient = attention_backward(&qkv, &out, &lse, &dout, s, masks, false).unwrap().tensor;
            [bits(&out), bits(&gradient)]
        };
        for (ours, others) in run(1.0).into_iter().zip(run(-4.0)) {
            let width = ours.len() / s.seq;
            for (row, (a, b)) in ours.chunks(width).zip(others.chunks(width)).enumerate() {
                assert_eq!(a != b, is_changed(row), "{precision:?}, heads of {}: row {row}", s.heads.width);
            }
        }
    }
}

/// What every tile of keys is scaled by is 1 as long as the highest score stays: else the sum drifts, tile after tile.
#[test]
fn long_rows_do_not_drift() {
    let Some(device) = device(Precision::F32) else { return };
    let s = AttentionShape {
        batch: 1,
        seq: 1024,
        heads: Heads { queries: 1, kv: 1, width: 64 },
        mask: Mask::Causal,
        scale: 0.125,
    };
    let mut qkv = normals(1, s.seq * s.qkv_width(), Precision::F32);
    // Scores of about 3.
    for row in qkv.chunks_mut(s.qkv_width()) {
        row[..s.heads.width].iter_mut().for_each(|q| *q *= 3.0);
    }
    let masks = AttentionMasks::default();
    let (_, right) = attention(&in_f64(&qkv, (s.seq, s.qkv_width())), s, masks).unwrap();
    let x = there(&qkv, (s.seq, s.qkv_width()), Precision::F32, &device, false);
    let (_, lse) = attention(&x, s, masks).unwrap();
    let errors = read(&lse).into_iter().zip(read(&right)).map(|(a, b)| (a - b).abs());
    let worst = errors.fold(0.0, f64::max);
    println!("{worst:e} of {}", read(&right).into_iter().fold(0.0, f64::max));
    // A score is a sum of 64 products, of about 3·8 before it is scaled: a few units of its last place.
    assert!(worst < 4e-6, "{worst:e}");
}

/// Token by token, or some at a time, gives the rows of the whole.
#[test]
fn new_tokens_over_a_cache_give_the_rows_of_the_whole() {
    for (shape, pieces, mask) in [
        ([2, 9, 3, 1, 64], &[1, 1, 3, 1, 1, 2][..], Mask::Causal),
        ([1, 70, 4, 2, 128], &[64, 1, 5][..], Mask::Causal),
        ([2, 33, 2, 2, 20], &[30, 1, 1, 1][..], Mask::Causal),
        ([1, 20, 2, 1, 256], &[17, 1, 2][..], Mask::Causal),
        ([2, 9, 3, 1, 64], &[1, 1, 3, 1, 1, 2][..], Mask::Window(4)),
        ([1, 70, 4, 2, 128], &[64, 1, 5][..], Mask::Window(40)),
        ([1, 20, 2, 1, 256], &[17, 1, 2][..], Mask::Window(1)),
    ] {
        for precision in [Precision::F32, Precision::Bf16] {
            let Some(device) = device(precision) else { return };
            let [batch, seq, queries, kv, width] = shape;
            let s = AttentionShape {
                batch,
                seq,
                heads: Heads { queries, kv, width },
                mask,
                scale: 1.0 / (width as f64).sqrt(),
            };
            let width = s.qkv_width();
            let qkv = normals(1, batch * seq * width, precision);
            let whole = in_f64(&qkv, (batch * seq, width));
            let (right, _) = attention(&whole, s, AttentionMasks::default()).unwrap();
            let right = right.reshape((batch, seq, s.out_width())).unwrap();

            let cache = new_cache(s, seq + 2, &there(&[0.0], (1, 1), precision, &device, false)).unwrap();
            let mut start = 0;
            for &n in pieces {
                let part: Vec<f32> =
                    (0..batch).flat_map(|b| qkv[(b * seq + start) * width..][..n * width].to_vec()).collect();
                let part = there(&part, (batch * n, width), precision, &device, false);
                let s = AttentionShape { seq: n, ..s };
                let got = attend_with_cache(&part, s, start, &cache).unwrap();
                let right = right.narrow(1, start, n).unwrap().contiguous().unwrap();
                let units = worst(&got, &right, s.heads.width, precision.unit());
                assert!(units <= precision.units(), "{precision:?} {shape:?}, {mask:?} at {start}: {units} units off");
                start += n;
            }
            assert_eq!(start, seq);
            let last = there(&vec![0.0; batch * 3 * width], (batch * 3, width), precision, &device, false);
            assert!(
                attend_with_cache(&last, AttentionShape { seq: 3, ..s }, start, &cache).is_err(),
                "beyond the cache"
            );
        }
    }
}
