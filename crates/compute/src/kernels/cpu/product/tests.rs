use super::panels::MAX_QUERIES;
use super::*;
use crate::kernels::cpu::simd::instruction_set;

/// Numbers of both signs that differ in size, as weights and activations do.
fn numbers(seed: u32, len: usize) -> Vec<bf16> {
    let mut x = seed.wrapping_mul(0x9E37_79B9) | 1;
    let mut next = || {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (x >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| bf16::store(next() * next())).collect()
}

/// The matrix of these numbers, stored by rows or by columns.
fn matrix(numbers: &[bf16], rows: usize, cols: usize, by_columns: bool) -> Mat<'_, bf16> {
    if by_columns { Mat::new(numbers, cols, rows).t() } else { Mat::new(numbers, rows, cols) }
}

/// Every method that this machine has.
fn methods() -> impl Iterator<Item = Bf16Products> {
    Bf16Products::ALL.into_iter().filter(|method| method.is_available())
}

/// The error that a sum in f32 may have: below the number of its terms times half a unit in the last place of the sum of magnitudes.
fn error_of_sum(terms: usize, size: f64) -> f64 {
    size * (terms + 2) as f64 * 2_f64.powi(-24)
}

#[test]
fn the_vendor_decides_about_avx512_bf16() {
    use Bf16Products::{AmxBf16, Avx512Bf16, F32};
    let method = |has: &[Bf16Products], is_amd| Bf16Products::for_instructions(|method| has.contains(&method), is_amd);
    assert_eq!(method(&[F32, Avx512Bf16, AmxBf16], false), AmxBf16);
    assert_eq!(method(&[F32, Avx512Bf16], true), Avx512Bf16);
    assert_eq!(method(&[F32, Avx512Bf16], false), F32);
    assert_eq!(method(&[F32], true), F32);
}

/// Shapes with odd sizes, remainders of tiles, several blocks, and depths of more than one block.
const SHAPES: [[usize; 3]; 14] = [
    [1, 1, 1],
    [5, 3, 7],
    [14, 2, 32],
    [15, 17, 33],
    [29, 64, 31],
    [28, 768, 70],
    [3, 4099, 40],
    [70, 8192, 33],
    [30, 2048, 45],
    [9, 5000, 2100],
    [2100, 40, 9],
    [40, 33, 2100],
    [1100, 4096, 3],
    [2100, 4098, 3],
];

/// Elements behind an output, which products must leave as they are.
const BEHIND: usize = 64;

/// Each element beside its sum in f64. Elements in bf16 are sums in f32, plus a bias, rounded.
#[test]
fn products_are_sums_of_products() {
    for [rows, inner, cols] in SHAPES {
        for stored in 0..4 {
            let (a, b) = (numbers(1, rows * inner), numbers(2, inner * cols));
            let (a, b) = (matrix(&a, rows, inner, stored % 2 == 1), matrix(&b, inner, cols, stored / 2 == 1));
            let at =
                |m: Mat<bf16>, i: usize, j: usize| f64::from(m.data()[i * m.row_stride() + j * m.col_stride()].load());
            let bias = numbers(3, cols);
            for method in methods() {
                let mut rounded = vec![bf16::NAN; rows * cols + BEHIND];
                let mut sums = vec![0.0; rows * cols];
                let mut total = vec![1.0_f32; rows * cols];
                // SAFETY: all have a row of `cols` elements for each row.
                unsafe {
                    multiply_with(method, a, b, Destination::Rounded(Shared::new(&mut rounded), Some(&bias)));
                    multiply_with(method, a, b, Destination::Added(Shared::new(&mut sums)));
                    multiply_with(method, a, b, Destination::Added(Shared::new(&mut total)));
                }
                assert!(
                    rounded[rows * cols..].iter().all(|number| number.is_nan()),
                    "{method:?}: writes behind its output"
                );
                for (element, &sum) in sums.iter().enumerate() {
                    let expected = bf16::store(sum + bias[element % cols].load());
                    assert_eq!(rounded[element].to_bits(), expected.to_bits(), "{method:?}: {sum} with a bias");
                }
                for element in (0..rows * cols).step_by(1 + rows * cols / 997) {
                    let (i, j) = (element / cols, element % cols);
                    let terms = || (0..inner).map(|k| at(a, i, k) * at(b, k, j));
                    let (sum, size) = (terms().sum::<f64>(), terms().map(f64::abs).sum::<f64>() + 1.0);
                    let error = error_of_sum(inner, size);
                    let what = format!("{method:?}, {rows} x {inner} x {cols}, stored {stored}, element {i}, {j}");
                    let off = f64::from(total[element]) - (sum + 1.0);
                    assert!(off.abs() <= error, "{what}: off by {off:e}, {error:e} is allowed");
                }
            }
        }
    }
}

/// True if products with multiply-adds of f32 round once for each product: with AVX2, AVX-512 and NEON.
fn has_fused_multiply_adds() -> bool {
    instruction_set() != "baseline"
}

/// The sums of the instructions, as their manuals define them: each product is added with one rounding.
#[test]
fn instructions_sum_in_their_order() {
    /// The sum of the products of the pairs, the second numbers' product first.
    fn sum_of_pairs(pairs: &[([f32; 2], [f32; 2])]) -> f32 {
        pairs.iter().fold(0.0, |sum, (a, b)| a[0].mul_add(b[0], a[1].mul_add(b[1], sum)))
    }
    /// The products of the even and of the odd numbers of 16 pairs are summed apart.
    fn sum_of_tiles(pairs: &[([f32; 2], [f32; 2])]) -> f32 {
        pairs.chunks(16).fold(0.0, |sum, pairs| {
            let [even, odd] = [0, 1].map(|i| pairs.iter().fold(0.0_f32, |sum, (a, b)| a[i].mul_add(b[i], sum)));
            sum + (even + odd)
        })
    }
    /// Each product is added to the sum of those before.
    fn sum_in_order(pairs: &[([f32; 2], [f32; 2])]) -> f32 {
        pairs.iter().fold(0.0, |sum, (a, b)| a[1].mul_add(b[1], a[0].mul_add(b[0], sum)))
    }
    type Sum = fn(&[([f32; 2], [f32; 2])]) -> f32;
    for method in methods() {
        let expected: Sum = match method {
            Bf16Products::Avx512Bf16 => sum_of_pairs,
            Bf16Products::AmxBf16 => sum_of_tiles,
            Bf16Products::F32 if has_fused_multiply_adds() => sum_in_order,
            Bf16Products::F32 => continue,
        };
        for [rows, inner, cols] in [[1, 2, 1], [40, 100, 50], [33, 768, 65], [64, 31, 32]] {
            let (a, b) = (numbers(11, rows * inner), numbers(12, inner * cols));
            let mut sums = vec![0.0; rows * cols];
            let destination = Destination::Added(Shared::new(&mut sums));
            // SAFETY: it has a row of `cols` elements for each row.
            unsafe { multiply_with(method, Mat::new(&a, rows, inner), Mat::new(&b, inner, cols), destination) };
            for (element, sum) in sums.iter().enumerate() {
                let (i, j) = (element / cols, element % cols);
                let number = |numbers: &[bf16], k: usize, at: usize| if k < inner { numbers[at].load() } else { 0.0 };
                let pairs = (0..inner.div_ceil(2)).map(|p| {
                    let [low, high] = [2 * p, 2 * p + 1];
                    let left = [low, high].map(|k| number(&a, k, i * inner + k));
                    (left, [low, high].map(|k| number(&b, k, k * cols + j)))
                });
                let expected = expected(&pairs.collect::<Vec<_>>());
                assert_eq!(*sum, expected, "{method:?}, {rows} x {inner} x {cols}, element {i}, {j}");
            }
        }
    }
}

/// No element depends on the number of threads, on the rows and columns beside it, or on what the buffers held before.
#[test]
fn parts_have_the_bits_of_the_whole() {
    // Rows of a multiple of 32 numbers are read in place by all methods.
    let (rows, inner, cols) = (61, 4512, 77);
    let (a, b) = (numbers(4, rows * inner), numbers(5, inner * cols));
    for method in methods() {
        let product = |a: Mat<bf16>, b: Mat<bf16>, threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let mut out = vec![0.0_f32; a.rows() * b.cols()];
            let destination = Destination::Added(Shared::new(&mut out));
            // SAFETY: it has a row of b.cols elements for each row.
            pool.install(|| unsafe { multiply_with(method, a, b, destination) });
            out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        let (a, b) = (Mat::new(&a, rows, inner), Mat::new(&b, inner, cols));
        let whole = product(a, b, 1);
        assert_eq!(product(a, b, 3), whole, "{method:?}: threads");
        for (first, n) in [(0, 1), (7, 20), (60, 1)] {
            let part = Mat::new(&a.data()[first * inner..], n, inner);
            assert_eq!(product(part, b, 2), whole[first * cols..][..n * cols], "{method:?}: rows from {first} on");
        }
        // Rows that are a page apart are copied.
        let mut apart = vec![bf16::ZERO; rows * 2 * inner.next_multiple_of(2048)];
        let stride = apart.len() / rows;
        apart.chunks_mut(stride).zip(a.data().chunks(inner)).for_each(|(to, row)| to[..inner].copy_from_slice(row));
        assert_eq!(product(Mat::strided(&apart, rows, inner, stride), b, 2), whole, "{method:?}: rows that are copied");
        let narrow = product(a, Mat::strided(&b.data()[40..], inner, 30, cols), 2);
        for (narrow, whole) in narrow.chunks(30).zip(whole.chunks(cols)) {
            assert_eq!(narrow, &whole[40..70], "{method:?}: columns");
        }
    }
}

/// The left matrix has more rows than a block whose sums are kept from depth to depth.
#[test]
fn blocks_of_rows_have_the_bits_of_the_whole() {
    let (rows, inner, cols) = (7800, 4128, 544);
    let (a, b) = (numbers(13, rows * inner), numbers(14, inner * cols));
    for method in methods() {
        let product = |rows: Range<usize>| {
            let mut out = vec![bf16::NAN; rows.len() * cols];
            let a = Mat::new(&a[rows.start * inner..], rows.len(), inner);
            let destination = Destination::Rounded(Shared::new(&mut out), None);
            // SAFETY: it has a row of `cols` elements for each row.
            unsafe { multiply_with(method, a, Mat::new(&b, inner, cols), destination) };
            out
        };
        let whole = product(0..rows);
        for part in [0..40, 7690..rows] {
            assert_eq!(product(part.clone()), whole[part.start * cols..part.end * cols], "{method:?}");
        }
    }
}

/// Numbers beyond a matrix must make no difference, and rows may end with a number without a partner. A NaN may be beyond.
#[test]
fn numbers_beyond_a_matrix_make_no_difference() {
    let (rows, inner, cols) = (20, 33, 40);
    let with_end = |seed: u32, len: usize| [numbers(seed, len), vec![bf16::NAN; 4 * (rows + inner + cols)]].concat();
    let (a, b) = (with_end(6, rows * inner), with_end(7, inner * cols));
    for stored in 0..4 {
        for method in methods() {
            let mut out = vec![bf16::NAN; rows * cols];
            let (a, b) = (matrix(&a, rows, inner, stored % 2 == 1), matrix(&b, inner, cols, stored / 2 == 1));
            // SAFETY: it has a row of `cols` elements for each row.
            unsafe { multiply_with(method, a, b, Destination::Rounded(Shared::new(&mut out), None)) };
            assert!(out.iter().all(|number| !number.is_nan()), "{method:?}, stored {stored}");
        }
    }
    let (mut a, b) = (numbers(6, rows * inner), numbers(7, inner * cols));
    a[inner..][..inner].fill(bf16::NAN);
    for method in methods() {
        let mut out = vec![bf16::ZERO; rows * cols];
        let destination = Destination::Rounded(Shared::new(&mut out), None);
        // SAFETY: it has a row of `cols` elements for each row.
        unsafe { multiply_with(method, Mat::new(&a, rows, inner), Mat::new(&b, inner, cols), destination) };
        for (i, row) in out.chunks(cols).enumerate() {
            assert!(row.iter().all(|v| v.is_nan() == (i == 1)), "{method:?}: row {i}");
        }
    }
}

/// Ties, infinities, and sums that are smaller than a normal number.
#[test]
fn sums_are_rounded_to_the_nearest_number() {
    let smallest = f32::MIN_POSITIVE;
    let terms = [
        (1.0, 2_f32.powi(-8)),
        (1.0 + 2_f32.powi(-7), 2_f32.powi(-8)),
        (-1.0, -2_f32.powi(-8)),
        (1.0, 2_f32.powi(-8) + 2_f32.powi(-15)),
        (f32::MAX, 1.0),
        (f32::INFINITY, -1.0),
        (f32::NEG_INFINITY, 1.0),
        (1.5 * smallest, -smallest),
        (0.0, -0.0),
    ];
    let (b, bias): (Vec<bf16>, Vec<bf16>) = terms.iter().map(|&(b, bias)| (bf16::store(b), bf16::store(bias))).unzip();
    let cols = terms.len();
    for method in methods() {
        let mut out = vec![bf16::NAN; cols];
        let destination = Destination::Rounded(Shared::new(&mut out), Some(&bias));
        // SAFETY: it has a row of `cols` elements.
        unsafe { multiply_with(method, Mat::new(&[bf16::ONE], 1, 1), Mat::new(&b, 1, cols), destination) };
        for ((out, b), bias) in out.iter().zip(&b).zip(&bias) {
            let sum = b.load() + bias.load();
            let is_flushed = method != Bf16Products::F32 && sum.abs() < smallest;
            let expected = if is_flushed { bf16::ZERO } else { bf16::store(sum) };
            assert_eq!(out.to_bits(), expected.to_bits(), "{method:?}: {out} for {sum:e}");
        }
    }
}

/// More rows and columns than any matrix in [`ATTENTIONS`].
const LARGEST: usize = 400;

/// The products of a tile of an attention with such shapes: queries, keys that they see, columns of a head, keys before those of the
/// first query, and keys before all of these. The head has more keys than a tile sees.
const ATTENTIONS: [[usize; 5]; 11] = [
    [1, 1, 1, 0, 0],
    [5, 5, 3, 0, 0],
    [64, 64, 64, 0, 0],
    [64, 200, 70, 136, 0],
    [64, 200, 32, 64, 0],
    [37, 100, 33, 50, 0],
    [17, 40, 128, 39, 0],
    [MAX_QUERIES, 300, 96, 299, 0],
    [64, 96, 64, 32, 32],
    [64, 103, 70, 40, 224],
    [6, 37, 33, 31, 64],
];

/// Each product inside attention beside its sums in f64, at the elements that attention reads. Buffers hold NaN before.
#[test]
fn products_inside_attention_are_sums_of_products() {
    for method in methods() {
        let pack = |operand: &mut Bf16Operand, b: Mat<bf16>| {
            let nan = vec![bf16::NAN; LARGEST * LARGEST];
            // SAFETY: the machine has the method.
            unsafe {
                operand.pack(method, Mat::new(&nan, LARGEST, LARGEST));
                operand.pack(method, b);
            }
        };
        let multiply = |sums: &mut Panels<f32>, left: Left<'_, bf16>, right: &Bf16Operand, keys: TileKeys| {
            let mut buffer = Bf16Operand::default();
            pack(&mut buffer, Mat::new(&[bf16::NAN], 1, 1));
            // SAFETY: the machine has the method.
            unsafe { right.multiply(method, sums, left, keys, &mut buffer) };
        };
        check_products_inside_attention::<bf16>(&format!("{method:?}"), pack, multiply);
    }
    let pack = |operand: &mut Panels<f32>, b: Mat<f32>| {
        operand.pack(Mat::new(&vec![f32::NAN; LARGEST * LARGEST], LARGEST, LARGEST));
        operand.pack(b);
    };
    check_products_inside_attention::<f32>("fp32", pack, |sums, left, right, keys| {
        let mut buffer = Panels::default();
        pack(&mut buffer, Mat::new(&[f32::NAN], 1, 1));
        PanelProduct::new(sums, left, right, keys, &mut buffer).multiply();
    });
}

fn check_products_inside_attention<S: Stored<Real = f32>>(
    method: &str,
    pack: impl Fn(&mut S::Operand, Mat<S>),
    multiply: impl Fn(&mut Panels<f32>, Left<'_, S>, &S::Operand, TileKeys),
) {
    let stored = |seed: u32, len: usize| numbers(seed, len).into_iter().map(|v| S::store(v.load())).collect::<Vec<S>>();
    for [queries, keys, width, before, first] in ATTENTIONS {
        let (sees, tile_keys) = (|i: usize, j: usize| j <= before + i, TileKeys { first, before });
        // The products of whole tiles leave the rows of other keys as they are.
        let all_keys = first + if keys.is_multiple_of(8) { keys + 50 } else { keys };
        let [q, k, p] =
            [(16, queries * width), (17, all_keys * width), (18, queries * keys)].map(|(seed, len)| stored(seed, len));
        // A sum of terms (left number, right number) beside a result.
        let check = |what: &str, i: usize, j: usize, result: f32, terms: &mut dyn Iterator<Item = (S, S)>| {
            let terms: Vec<f64> = terms.map(|(a, b)| f64::from(a.load()) * f64::from(b.load())).collect();
            let (sum, size) = (terms.iter().sum::<f64>(), terms.iter().map(|v| v.abs()).sum::<f64>() + 1.0);
            let (off, error) = (f64::from(result) - sum, error_of_sum(terms.len() + 1, size));
            assert!(
                off.abs() <= error,
                "{method}, {what}, {queries} x {keys} x {width}, element {i}, {j}: {off:e}, {error:e} is allowed"
            );
        };
        let (mut right, mut sums) = (S::Operand::default(), Panels::default());

        pack(&mut right, Mat::new(&k, all_keys, width).t());
        fill(&mut sums, queries, keys, |_, _| f32::NAN);
        multiply(&mut sums, Left::QueriesByFeatures(Mat::new(&q, queries, width)), &right, tile_keys);
        for_each_element(queries, keys, |i, j| {
            if sees(i, j) {
                check(
                    "scores",
                    i,
                    j,
                    at(&sums, i, j),
                    &mut (0..width).map(|c| (q[i * width + c], k[(first + j) * width + c])),
                );
            }
        });

        let mut scores = Panels::default();
        fill(&mut scores, LARGEST, LARGEST, |_, _| f32::NAN);
        fill(&mut scores, queries, keys, |i, j| if sees(i, j) { p[i * keys + j].load() } else { 0.0 });
        pack(&mut right, Mat::new(&k, all_keys, width));
        fill(&mut sums, queries, width, |_, _| f32::NAN);
        multiply(&mut sums, Left::QueriesByKeys(&scores), &right, tile_keys);
        for_each_element(queries, width, |i, c| {
            let seen = (0..keys).filter(|&j| sees(i, j));
            check("output", i, c, at(&sums, i, c), &mut seen.map(|j| (p[i * keys + j], k[(first + j) * width + c])));
        });

        pack(&mut right, Mat::new(&q, queries, width));
        fill(&mut sums, all_keys, width, |_, _| 1.0);
        multiply(&mut sums, Left::KeysByQueries(&scores), &right, tile_keys);
        for_each_element(keys, width, |j, c| {
            let seen = (0..queries).filter(|&i| sees(i, j));
            let terms = seen.map(|i| (p[i * keys + j], q[i * width + c]));
            check("gradient", j, c, at(&sums, first + j, c), &mut terms.chain([(S::store(1.0), S::store(1.0))]));
        });
        for_each_element(all_keys, width, |j, c| {
            let is_seen = (first..first + keys).contains(&j);
            assert!(is_seen || at(&sums, j, c) == 1.0, "{method}: the gradient of key {j}, which no query sees");
        });
    }
}

fn for_each_element(rows: usize, columns: usize, mut f: impl FnMut(usize, usize)) {
    (0..rows * columns).for_each(|element| f(element / columns, element % columns));
}

fn at(panels: &Panels<f32>, row: usize, column: usize) -> f32 {
    panels.row(column / PANEL_COLUMNS, row)[column % PANEL_COLUMNS]
}

/// Gives `panels` a shape and elements.
fn fill(panels: &mut Panels<f32>, rows: usize, columns: usize, element: impl Fn(usize, usize) -> f32) {
    panels.reshape(rows, columns);
    for_each_element(rows, columns, |i, j| panels.row_mut(j / PANEL_COLUMNS, i)[j % PANEL_COLUMNS] = element(i, j));
}

#[test]
fn products_without_rows_or_columns_are_empty() {
    let a = numbers(15, 6);
    assert!(product(Mat::new(&[], 0, 3), Mat::new(&a, 3, 2), None).is_empty(), "no rows");
    assert!(product(Mat::new(&a, 2, 3), Mat::new(&[], 3, 0), None).is_empty(), "no columns");
    add_product(&mut [], Mat::new(&[], 0, 3), Mat::new(&a, 3, 2));
    add_product(&mut [], Mat::new(&a, 2, 3), Mat::new(&[], 3, 0));
}

#[test]
fn few_rows_are_dot_products() {
    for [rows, inner, cols] in [[1, 1, 1], [1, 768, 100], [4, 33, 70]] {
        let (a, b, bias) = (numbers(8, rows * inner), numbers(9, inner * cols), numbers(10, cols));
        let (a, b) = (Mat::new(&a, rows, inner), matrix(&b, inner, cols, true));
        let few = multiply_few_rows(a, b, Some(&bias)).expect("few rows");
        let many = product(a, b, Some(&bias));
        for (few, many) in few.iter().zip(&many) {
            // Sums in another order may round to neighbours.
            assert!((few.load() - many.load()).abs() <= many.load().abs() / 128.0 + 1e-5, "{few} for {many}");
        }
    }
    let a = numbers(8, 5);
    assert!(multiply_few_rows(Mat::new(&a, 5, 1), Mat::new(&a, 5, 1).t(), None).is_none(), "five rows");
}
