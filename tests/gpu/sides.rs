//! One way to run a kernel on both devices: the same numbers go in, what comes out is compared, and a second run must give the same
//! bits.
//!
//! Both store bf16 tensors in bf16 and compute in f32, so both compute the same numbers up to the order of sums and the last digits of
//! exponentials.

use std::cell::RefCell;

use candle_core::{DType, Device, Result, Tensor};
use half::bf16;
use runner_spec::philox::Philox;

use crate::device::gpus;

/// Elements before and behind a tensor that a kernel must not touch, and their value.
const MARGIN: usize = 8;
const UNTOUCHED: f32 = 77.0;

/// Half a unit in the last place of 1: the error of one f32 operation.
const F32: f64 = 5.96e-8;
/// A unit in the last place of bf16, relative: f32 results that differ by nothing much may round to neighbours.
const BF16: f64 = 1.0 / 128.0;

/// The device and the number format of a case.
pub(crate) struct Side {
    device: Device,
    pub(crate) bf16: bool,
    /// The offset of tensors from an aligned address, in elements.
    offset: usize,
    margins: RefCell<Vec<(Tensor, usize, usize)>>,
}

impl Side {
    /// True if tensors begin at addresses that vector loads can use.
    pub(crate) fn is_aligned(&self) -> bool {
        self.offset == 0
    }

    pub(crate) fn is_gpu(&self) -> bool {
        self.device.is_cuda()
    }

    /// Normal numbers, as activations are stored: bf16 values in bf16 runs.
    pub(crate) fn activations(&self, seed: u64, shape: &[usize]) -> Tensor {
        let values = normals(seed, shape.iter().product());
        let values = if self.bf16 { values.iter().map(|&v| bf16::from_f32(v).to_f32()).collect() } else { values };
        self.stored(&values, shape)
    }

    /// A tensor of these activations. In bf16 runs they must be bf16 values.
    pub(crate) fn stored(&self, values: &[f32], shape: &[usize]) -> Tensor {
        self.place(values, shape, self.bf16)
    }

    /// Normal numbers that are f32 on both devices: gains, gradients of weights, master weights.
    pub(crate) fn numbers(&self, seed: u64, shape: &[usize]) -> Tensor {
        self.place(&normals(seed, shape.iter().product()), shape, false)
    }

    /// A tensor of these numbers, f32 on both devices.
    pub(crate) fn exactly(&self, values: &[f32], shape: &[usize]) -> Tensor {
        self.place(values, shape, false)
    }

    /// A flat buffer of these numbers: bf16 on both devices in bf16 runs.
    pub(crate) fn flat_buffer(&self, values: &[f32]) -> Tensor {
        self.place(values, &[values.len()], self.bf16)
    }

    pub(crate) fn ids(&self, ids: &[u32]) -> Tensor {
        Tensor::from_slice(ids, ids.len(), &self.device).unwrap()
    }

    fn place(&self, values: &[f32], shape: &[usize], as_bf16: bool) -> Tensor {
        let start = MARGIN + self.offset;
        let mut all = vec![UNTOUCHED; start + values.len() + MARGIN];
        all[start..][..values.len()].copy_from_slice(values);
        let len = all.len();
        let all = Tensor::from_vec(all, len, &Device::Cpu).unwrap();
        let all = if as_bf16 { all.to_dtype(DType::BF16).unwrap() } else { all };
        let all = all.to_device(&self.device).unwrap();
        self.margins.borrow_mut().push((all.clone(), start, values.len()));
        all.narrow(0, start, values.len()).unwrap().reshape(shape).unwrap()
    }

    fn check_margins(&self, name: &str) {
        for (all, start, len) in self.margins.borrow().iter() {
            let values = read(all);
            let around = values[..*start].iter().chain(&values[start + len..]);
            assert!(around.clone().all(|&v| v == UNTOUCHED), "{name} wrote beyond a tensor of {len}");
        }
    }
}

/// A tensor that the kernel wrote, and the largest allowed difference between the devices.
pub(crate) struct Out {
    name: &'static str,
    tensor: Tensor,
    rule: Rule,
}

enum Rule {
    Equal,
    /// Sums of `terms` numbers; `size` is that of the sums of absolute values where it is not the largest result. Rounded to
    /// what the run stores `roundings` times, of which all but the last are of numbers of that size.
    Near {
        terms: usize,
        size: f64,
        roundings: usize,
    },
}

impl Out {
    pub(crate) fn equal(name: &'static str, tensor: &Tensor) -> Self {
        Self { name, tensor: tensor.clone(), rule: Rule::Equal }
    }

    /// Rounded once to the run's type.
    pub(crate) fn stored(name: &'static str, tensor: &Tensor, terms: usize) -> Self {
        Self { name, tensor: tensor.clone(), rule: Rule::Near { terms, size: 0.0, roundings: 1 } }
    }

    pub(crate) fn rounded_twice(name: &'static str, tensor: &Tensor, terms: usize) -> Self {
        Self { name, tensor: tensor.clone(), rule: Rule::Near { terms, size: 0.0, roundings: 2 } }
    }

    /// Kept in f32.
    pub(crate) fn f32(name: &'static str, tensor: &Tensor, terms: usize, size: f64) -> Self {
        Self { name, tensor: tensor.clone(), rule: Rule::Near { terms, size, roundings: 0 } }
    }
}

pub(crate) fn normals(seed: u64, len: usize) -> Vec<f32> {
    let stream = Philox::new(seed, "kernel tests");
    let mut values: Vec<f32> = (0..len.div_ceil(4)).flat_map(|i| stream.normals(i as u64)).map(|v| v as f32).collect();
    values.truncate(len);
    values
}

/// The elements of a tensor of any type, as f32 on the host.
pub(crate) fn read(tensor: &Tensor) -> Vec<f32> {
    let there = tensor.to_device(&Device::Cpu).unwrap().to_dtype(DType::F32).unwrap();
    there.flatten_all().unwrap().to_vec1().unwrap()
}

/// Runs `case` on the CPU and on a GPU: in f32 and bf16, aligned and not. Without a GPU it skips the case.
pub(crate) fn compare(name: &str, case: impl Fn(&Side) -> Result<Vec<Out>>) {
    if gpus(1).is_none() {
        return;
    }
    let gpu = runner_compute::gpu::open(0).unwrap();
    for bf16 in [false, true] {
        let side = |device: &Device, offset| Side { device: device.clone(), bf16, offset, margins: RefCell::default() };
        let expected = case(&side(&Device::Cpu, 0)).unwrap();
        // Aligned to 16 bytes, and to one element.
        for offset in [0, 1] {
            let name = format!("{name}, {}, offset {offset}", if bf16 { "bf16" } else { "f32" });
            let (first, second) = (side(&gpu, offset), side(&gpu, offset));
            let found = case(&first).unwrap_or_else(|e| panic!("{name}: {e}"));
            first.check_margins(&name);
            let again = case(&second).unwrap();
            assert_eq!(found.len(), expected.len());
            for ((expected, found), again) in expected.iter().zip(&found).zip(&again) {
                let values = read(&found.tensor);
                let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                assert!(bits(&values) == bits(&read(&again.tensor)), "{name}: {} is another each time", found.name);
                near(&format!("{name}: {}", found.name), &read(&expected.tensor), &values, &found.rule, bf16);
            }
        }
    }
}

fn near(name: &str, expected: &[f32], found: &[f32], rule: &Rule, bf16: bool) {
    assert_eq!(expected.len(), found.len(), "{name}");
    let largest = expected.iter().filter(|v| v.is_finite()).fold(0.0_f64, |a, &v| a.max(f64::from(v.abs())));
    for (i, (&e, &f)) in expected.iter().zip(found).enumerate() {
        let allowed = match *rule {
            Rule::Equal => 0.0,
            Rule::Near { terms, size, roundings } => {
                let size = size.max(largest);
                // Random errors of a sum grow with the root of its length; each term takes a few operations.
                let sums = F32 * size * (16.0 + 4.0 * (terms as f64).sqrt());
                let rounding = if bf16 && roundings > 0 { BF16 * f64::from(e.abs()) } else { 0.0 };
                let before = if bf16 && roundings > 1 { BF16 * size } else { 0.0 };
                sums + rounding + before
            }
        };
        let same = (e.is_nan() && f.is_nan()) || e == f || f64::from((e - f).abs()) <= allowed;
        assert!(same, "{name}, element {i} of {}: {f:e}, not {e:e} (within {allowed:e})", expected.len());
    }
}
