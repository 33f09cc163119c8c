//! Attention's kernels against softmax(q·kᵀ/√head_dim)·v by its definition, for each mask and each type of numbers.

use candle_core::{DType, Device, Tensor};
use runner_compute::kernels::attention::{
    AttentionMasks, AttentionShape, Documents, ValidLengths, attend_with_cache, attention, attention_backward,
    new_cache,
};
use runner_spec::model::{Heads, Mask};

use crate::common::{random, values};

/// 70 positions are a tile of queries and a part of one. The samples are full, padded, and without any token.
const SHAPE: AttentionShape = AttentionShape {
    batch: 3,
    seq: 70,
    heads: Heads { queries: 4, kv: 2, width: 6 },
    mask: Mask::Causal,
    scale: 0.408_248_290_463_863,
};
const LENGTHS: [usize; 3] = [70, 23, 0];

/// Windows of one key, less than a panel of 32 keys, one, more, a tile of queries, and more than a row of 70.
const WINDOWS: [u32; 6] = [1, 5, 32, 40, 64, 100];

/// Lengths of documents, again and again: less than a panel of keys, one, more, one token, and more than a tile of queries. Each sample begins
/// with another, whose first tokens are in the row before it.
const DOCUMENTS: [usize; 6] = [20, 32, 41, 1, 90, 7];

/// For each position, the position of the first token of its document.
fn starts(s: AttentionShape) -> Vec<u32> {
    (0..s.batch)
        .flat_map(|sample| {
            let lengths = DOCUMENTS.into_iter().cycle().skip(sample);
            let mut row: Vec<u32> = Vec::new();
            for (n, length) in lengths.enumerate() {
                if row.len() >= s.seq {
                    break;
                }
                let (start, length) = (row.len() as u32, if n == 0 { length.div_ceil(2) } else { length });
                row.extend(vec![start; length]);
            }
            row.truncate(s.seq);
            row
        })
        .collect()
}

/// Outputs, then log-sum-exps. An empty sample's queries see its first key if it is in their window. A query that sees no key has zeros.
fn by_definition(
    qkv: &[f64],
    s: AttentionShape,
    lengths: Option<[usize; 3]>,
    starts: Option<&[u32]>,
) -> (Vec<f64>, Vec<f64>) {
    let (hd, width) = (s.heads.width, s.qkv_width());
    let mut out = vec![0.0; s.batch * s.seq * s.heads.queries * hd];
    let mut lse = vec![0.0; s.batch * s.heads.queries * s.seq];
    for (sample, head, query) in
        (0..s.batch).flat_map(|b| (0..s.heads.queries).flat_map(move |h| (0..s.seq).map(move |q| (b, h, q))))
    {
        let kv = head / (s.heads.group());
        let at = |position: usize, head: usize| &qkv[(sample * s.seq + position) * width + head * hd..][..hd];
        let end = lengths.map_or(s.seq, |lengths| lengths[sample].max(1));
        let start = starts.map_or(0, |starts| starts[sample * s.seq + query] as usize);
        let seen = s.mask.keys(query, s.seq).filter(|&key| key >= start && key < end);
        let score = |key: usize| {
            let products = at(query, head).iter().zip(at(key, s.heads.queries + kv)).map(|(q, k)| q * k);
            products.sum::<f64>() * s.scale
        };
        let total: f64 = seen.clone().map(|key| score(key).exp()).sum();
        if seen.clone().next().is_none() {
            continue;
        }
        lse[(sample * s.heads.queries + head) * s.seq + query] = total.ln();
        let row = &mut out[((sample * s.seq + query) * s.heads.queries + head) * hd..][..hd];
        for key in seen {
            let p = score(key).exp() / total;
            row.iter_mut().zip(at(key, s.heads.queries + s.heads.kv + kv)).for_each(|(out, v)| *out += p * v);
        }
    }
    (out, lse)
}

/// Scores are of order 1, and so are outputs: their errors are some units of the type's last place. Gradients sum up to 90 such terms.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-13,
        DType::F32 => 6e-6,
        _ => 0.05,
    }
}

fn assert_near(what: &str, ours: &Tensor, expected: &[f64], dtype: DType) {
    let ours = values(ours);
    assert_eq!(ours.len(), expected.len());
    // Where 64 queries see only one key, its gradient is about 30.
    let worst = ours.iter().zip(expected).map(|(a, b)| (a - b).abs() / (b.abs() / 8.0).max(1.0)).fold(0.0, f64::max);
    assert!(worst <= tolerance(dtype), "{what}: {worst:e} off");
}

/// The same numbers in `dtype`; bf16 holds them exactly.
fn inputs(name: &str, s: AttentionShape, width: usize, dtype: DType) -> Tensor {
    let numbers = random(name, (s.batch * s.seq, width), 1.0);
    numbers.to_dtype(DType::BF16).unwrap().to_dtype(dtype).unwrap()
}

#[test]
fn follows_the_definition_for_each_mask_and_type() {
    for mask in [Mask::Causal, Mask::Full] {
        follows_the_definition(AttentionShape { mask, ..SHAPE }, None);
    }
}

/// Rows of 200 have tiles of queries that see no key of the row's first tiles.
#[test]
fn windows_follow_the_definition_for_each_type() {
    for (mask, seq) in WINDOWS.into_iter().flat_map(|keys| [70, 200].map(|seq| (Mask::Window(keys), seq))) {
        follows_the_definition(AttentionShape { mask, seq, ..SHAPE }, None);
    }
}

#[test]
fn documents_follow_the_definition_for_each_type() {
    for (mask, seq) in [(Mask::Causal, 70), (Mask::Causal, 200), (Mask::Window(40), 200), (Mask::Window(5), 70)] {
        let s = AttentionShape { mask, seq, ..SHAPE };
        follows_the_definition(s, Some(&Documents::new(&starts(s), seq, &Device::Cpu).unwrap()));
    }
}

fn follows_the_definition(s: AttentionShape, documents: Option<&Documents>) {
    for lengths in [None, Some(LENGTHS)] {
        let valid_lengths = lengths.map(|lengths| ValidLengths::new(&lengths, &Device::Cpu).unwrap());
        let masks = AttentionMasks { valid_lengths: valid_lengths.as_ref(), documents, ..AttentionMasks::default() };
        let [exact, exact_dout] =
            [("qkv", s.qkv_width()), ("dout", s.out_width())].map(|(name, n)| inputs(name, s, n, DType::F64));
        let (out, lse) =
            by_definition(&values(&exact), s, lengths, documents.map(|documents| documents.host.as_slice()));
        let (exact_out, exact_lse) = attention(&exact, s, masks).unwrap();
        let gradient = attention_backward(&exact, &exact_out, &exact_lse, &exact_dout, s, masks, false).unwrap().tensor;
        check_differences(&exact, &exact_dout, &values(&gradient), s, masks);
        for dtype in [DType::F64, DType::F32, DType::BF16] {
            let name = format!("{dtype:?}, {:?} of {}, {lengths:?}, {}", s.mask, s.seq, documents.is_some());
            let (qkv, dout) = (exact.to_dtype(dtype).unwrap(), exact_dout.to_dtype(dtype).unwrap());
            let (ours, our_lse) = attention(&qkv, s, masks).unwrap();
            assert_near(&format!("{name}: output"), &ours, &out, dtype);
            let statistics = if dtype == DType::BF16 { DType::F32 } else { dtype };
            assert_near(&format!("{name}: log-sum-exp"), &our_lse, &lse, statistics);
            let ours = attention_backward(&qkv, &ours, &our_lse, &dout, s, masks, false).unwrap().tensor;
            assert_near(&format!("{name}: gradient"), &ours, &values(&gradient), dtype);
        }
    }
}

/// `gradient`, of the sum of outputs times `dout`, compared with central differences in f64 along a direction of the queries, of the keys and of
/// the values.
fn check_differences(qkv: &Tensor, dout: &Tensor, gradient: &[f64], s: AttentionShape, masks: AttentionMasks<'_>) {
    const H: f64 = 1e-4;
    let (numbers, weights) = (values(qkv), values(dout));
    let direction = values(&inputs("direction", s, s.qkv_width(), DType::F64));
    let heads = [0..s.heads.queries, 0..s.heads.kv, 0..s.heads.kv];
    let mut first = 0;
    for (what, heads) in ["queries", "keys", "values"].into_iter().zip(heads) {
        let columns = first..first + heads.len() * s.heads.width;
        first = columns.end;
        let step = |i: usize| if columns.contains(&(i % s.qkv_width())) { direction[i] } else { 0.0 };
        let loss = |h: f64| {
            let moved: Vec<f64> = numbers.iter().enumerate().map(|(i, v)| v + h * step(i)).collect();
            let (out, _) = attention(&Tensor::from_vec(moved, qkv.dims(), &Device::Cpu).unwrap(), s, masks).unwrap();
            values(&out).iter().zip(&weights).map(|(out, weight)| out * weight).sum::<f64>()
        };
        let analytic: f64 = gradient.iter().enumerate().map(|(i, g)| g * step(i)).sum();
        let numeric = (loss(H) - loss(-H)) / (2.0 * H);
        // Differences are off by h² times a third derivative, and by the rounding of a loss of some thousands of terms of order 1, over h.
        let size = gradient.iter().enumerate().map(|(i, g)| (g * step(i)).abs()).sum::<f64>() + 1.0;
        assert!((analytic - numeric).abs() <= 1e-7 * size, "{s:?}, {what}: {analytic:e}, {numeric:e} by differences");
    }
}

/// Without a causal mask as with one, what stands in a sample's padding changes no bit of what its tokens get, and its keys and values
/// get gradients of zero.
#[test]
fn padding_is_not_seen() {
    for (mask, dtype) in [
        (Mask::Causal, DType::F32),
        (Mask::Full, DType::F32),
        (Mask::Full, DType::BF16),
        (Mask::Window(40), DType::F32),
        (Mask::Window(5), DType::BF16),
    ] {
        let s = AttentionShape { mask, ..SHAPE };
        let valid_lengths = ValidLengths::new(&LENGTHS, &Device::Cpu).unwrap();
        let masks = AttentionMasks { valid_lengths: Some(&valid_lengths), ..AttentionMasks::default() };
        let dout = inputs("dout", s, s.out_width(), dtype);
        let run = |padding: f64| {
            let mut qkv = values(&inputs("qkv", s, s.qkv_width(), DType::F64));
            for (row, numbers) in qkv.chunks_mut(s.qkv_width()).enumerate() {
                if row % s.seq >= LENGTHS[row / s.seq].max(1) {
                    numbers[s.out_width()..].fill(padding);
                }
            }
            let qkv = Tensor::from_vec(qkv, dout.dims()[0] * s.qkv_width(), &Device::Cpu).unwrap();
            let qkv = qkv.reshape(((), s.qkv_width())).unwrap().to_dtype(dtype).unwrap();
            let (out, lse) = attention(&qkv, s, masks).unwrap();
            let gradient = attention_backward(&qkv, &out, &lse, &dout, s, masks, false).unwrap().tensor;
            [out, lse, gradient].map(|t| values(&t))
        };
        let (ones, others) = (run(1.0), run(-30.0));
        assert_eq!(ones, others, "{dtype:?}, {mask:?}");
        for (row, gradient) in ones[2].chunks(s.qkv_width()).enumerate() {
            let padding = row % s.seq >= LENGTHS[row / s.seq].max(1);
            assert_eq!(gradient[s.out_width()..].iter().all(|&g| g == 0.0), padding, "row {row}, {mask:?}");
        }
    }
}

/// Other tokens in one document change no bit of what the others' tokens get.
#[test]
fn documents_do_not_see_each_other() {
    for (mask, dtype) in [
        (Mask::Causal, DType::F64),
        (Mask::Causal, DType::F32),
        (Mask::Causal, DType::BF16),
        (Mask::Window(40), DType::F32),
        (Mask::Window(40), DType::BF16),
    ] {
        let s = AttentionShape { mask, seq: 200, ..SHAPE };
        let starts = starts(s);
        let documents = Documents::new(&starts, s.seq, &Device::Cpu).unwrap();
        let masks = AttentionMasks { documents: Some(&documents), ..AttentionMasks::default() };
        // Of the first sample, one of 32 tokens within a tile of queries, and one of 90 across tiles.
        for changed in [10, 84] {
            let is_changed = |row: usize| row < s.seq && starts[row] == changed;
            assert!((0..s.seq).any(is_changed) && !(0..s.seq).all(is_changed), "no document at {changed}");
            let run = |factor: f64| {
                let tensors = [("qkv", s.qkv_width()), ("dout", s.out_width())].map(|(name, width)| {
                    let mut numbers = values(&inputs(name, s, width, DType::F64));
                    let changed = numbers.chunks_mut(width).enumerate().filter(|(row, _)| is_changed(*row));
                    changed.for_each(|(_, row)| row.iter_mut().for_each(|v| *v *= factor));
                    Tensor::from_vec(numbers, (s.batch * s.seq, width), &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
                });
                let [qkv, dout] = tensors;
                let (out, lse) = attention(&qkv, s, masks).unwrap();
                let gradient = attention_backward(&qkv, &out, &lse, &dout, s, masks, false).unwrap().tensor;
                [out, gradient].map(|t| values(&t).into_iter().map(f64::to_bits).collect::<Vec<u64>>())
            };
            for (what, ours, others) in
                run(1.0).into_iter().zip(run(-16.0)).zip(["output", "gradient"]).map(|((a, b), what)| (what, a, b))
            {
                let width = ours.len() / (s.batch * s.seq);
                for (row, (a, b)) in ours.chunks(width).zip(others.chunks(width)).enumerate() {
                    assert_eq!(a != b, is_changed(row), "{mask:?}, {dtype:?}: {what} of row {row}, document {changed}");
                }
            }
        }
    }
}

#[test]
fn documents_are_refused_where_they_make_no_sense() {
    let new = |starts: &[u32]| Documents::new(starts, 3, &Device::Cpu);
    assert!(new(&[0, 0, 2, 0, 1, 1]).is_ok());
    for (starts, reason) in [
        ([0, 0, 0, 1, 1, 1], "a document that the row lacks"),
        ([0, 1, 0, 0, 0, 0], "a document that has ended"),
        ([0, 2, 2, 0, 0, 0], "a document that has not begun"),
    ] {
        assert!(new(&starts).is_err(), "{reason}");
    }
    let documents = new(&[0, 0, 2]).unwrap();
    let masks = AttentionMasks { documents: Some(&documents), ..AttentionMasks::default() };
    let run = |batch: usize, mask: Mask| {
        let s = AttentionShape { batch, seq: 3, mask, ..SHAPE };
        attention(&inputs("qkv", s, s.qkv_width(), DType::F32), s, masks).is_ok()
    };
    assert!(run(1, Mask::Causal) && run(1, Mask::Window(2)));
    assert!(!run(1, Mask::Full), "all keys of a row");
    assert!(!run(2, Mask::Causal), "more rows");
}

#[test]
fn a_cache_needs_causal_attention() {
    for mask in [Mask::Causal, Mask::Full, Mask::Window(2)] {
        let s = AttentionShape { seq: 1, mask, ..SHAPE };
        let qkv = Tensor::zeros((s.batch, s.qkv_width()), DType::F32, &Device::Cpu).unwrap();
        let cache = new_cache(s, 4, &qkv).unwrap();
        assert_eq!(attend_with_cache(&qkv, s, 0, &cache).is_ok(), mask != Mask::Full);
    }
}

/// One by one, and in pieces.
#[test]
fn tokens_over_a_cache_give_the_rows_of_the_whole() {
    for (mask, dtype) in [Mask::Causal]
        .into_iter()
        .chain(WINDOWS.map(Mask::Window))
        .flat_map(|mask| [DType::F64, DType::F32, DType::BF16].map(|dtype| (mask, dtype)))
    {
        let s = AttentionShape { mask, ..SHAPE };
        let qkv = inputs("qkv", s, s.qkv_width(), dtype);
        let (whole, _) = attention(&qkv, s, AttentionMasks::default()).unwrap();
        let rows = |t: &Tensor, start: usize, n: usize| {
            let t = t.reshape((s.batch, s.seq, ())).unwrap().narrow(1, start, n).unwrap();
            t.contiguous().unwrap().reshape((s.batch * n, ())).unwrap()
        };
        for pieces in [[1; 70].as_slice(), &[40, 1, 17, 12]] {
            let cache = new_cache(s, s.seq, &qkv).unwrap();
            let mut start = 0;
            for &n in pieces {
                let some = AttentionShape { seq: n, ..s };
                let ours = attend_with_cache(&rows(&qkv, start, n), some, start, &cache).unwrap();
                let name = format!("{mask:?}, {dtype:?}, {n} from {start}");
                assert_near(&name, &ours, &values(&rows(&whole, start, n)), dtype);
                start += n;
            }
            assert_eq!(start, s.seq);
        }
    }
}
