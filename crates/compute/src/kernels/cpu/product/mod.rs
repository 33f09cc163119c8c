//! Products of bf16 matrices, summed in f32; and, in any type, products of a few rows and those inside attention.
//!
//! Sums over the inner dimension have a fixed order, so that no element depends on how rows and columns are divided among threads.

#[cfg(target_arch = "x86_64")]
mod amx_bf16;
#[cfg(target_arch = "x86_64")]
mod avx512_bf16;
mod fma;
#[cfg(target_arch = "x86_64")]
mod packing;
mod panel_row;
pub mod panels;
#[cfg(target_arch = "x86_64")]
mod tiles;

use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::OnceLock;

use half::bf16;
use parking_lot::Mutex;
use rayon::prelude::*;

use panels::{Left, PanelProduct, Panels, TileKeys};

use super::elementwise::written;
use super::gemm::Mat;
use super::pieces::Pieces;
use super::simd::{Shared, TASK, dot, inlined, instruction_set, vectorize};
use super::{Real, Stored};

/// Columns of a panel, the unit in which the right matrix is packed.
pub(super) const PANEL_COLUMNS: usize = 32;

/// The most bytes that a product holds of each matrix, in the order in which it reads them, and of f32 sums.
pub(crate) const OPERAND_BYTES: usize = 8 << 20;
pub(crate) const SUM_BYTES: usize = 16 << 20;

/// Tasks of a product are made smaller until a block has this many for each thread of a pool: enough to balance them. Larger tasks use
/// what they have packed more often.
const TASKS_PER_THREAD: usize = 4;

/// Products of at most this many rows read the other matrix in place: reading it once takes longer than the arithmetic. They sum in
/// another order than products of more rows.
const FEW_ROWS: usize = 4;

/// A method of multiplying bf16 matrices. The methods round sums differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bf16Products {
    /// With the tile instruction TDPBF16PS.
    AmxBf16,
    /// With the instruction VDPBF16PS.
    Avx512Bf16,
    /// With multiply-adds of f32.
    F32,
}

static CHOSEN: OnceLock<Bf16Products> = OnceLock::new();

impl Bf16Products {
    /// The methods in the order in which processors are given them: the first that is available, and fast on processors of this vendor.
    const ALL: [Self; 3] = [Self::AmxBf16, Self::Avx512Bf16, Self::F32];

    /// The method for this processor, of those that it has. It follows from measurements (docs/cpu-speed.md), not from what is newest:
    ///
    /// | method | processors |
    /// |---|---|
    /// | [`Self::AmxBf16`] | all that have it |
    /// | [`Self::Avx512Bf16`] | AMD's; on Intel's Xeons a step takes 1.4 to 1.8 times as long as in fp32 |
    /// | [`Self::F32`] | all others |
    ///
    /// The vendor decides, not the model: virtual machines show models that are not those of their instructions.
    pub fn for_processor() -> Self {
        Self::for_instructions(Self::is_available, is_amd())
    }

    fn for_instructions(is_available: impl Fn(Self) -> bool, is_amd: bool) -> Self {
        let is_fast = |method| method != Self::Avx512Bf16 || is_amd;
        Self::ALL.into_iter().find(|method| is_available(*method) && is_fast(*method)).unwrap_or(Self::F32)
    }

    /// The method that this process uses: the one that [`Self::choose`] was given, otherwise that of the processor.
    pub fn in_use() -> Self {
        *CHOSEN.get_or_init(Self::for_processor)
    }

    /// The method that is called `name`.
    ///
    /// # Errors
    /// If there is none, or this machine lacks its instructions.
    pub fn parse_name(name: &str) -> Result<Self, String> {
        let available = || Self::ALL.into_iter().filter(|method| method.is_available());
        available().find(|method| method.name() == name).ok_or_else(|| {
            let available = available().map(Self::name).collect::<Vec<_>>().join(", ");
            format!("must be one of {available} on this processor, got {name:?}")
        })
    }

    /// Makes this process use this method. It has no effect after [`Self::in_use`].
    ///
    /// # Panics
    /// If this machine lacks the instructions, which [`Self::parse_name`] checks.
    pub fn choose(self) {
        assert!(self.is_available(), "instructions that are missing");
        CHOSEN.get_or_init(|| self);
    }

    /// The name that [`Self::parse_name`] reads.
    pub fn name(self) -> &'static str {
        match self {
            Self::AmxBf16 => "amx_bf16",
            Self::Avx512Bf16 => "avx512_bf16",
            Self::F32 => "f32",
        }
    }

    fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::AmxBf16 => amx_bf16::is_available(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16 => avx512_bf16::is_available(),
            #[cfg(not(target_arch = "x86_64"))]
            Self::AmxBf16 | Self::Avx512Bf16 => false,
            Self::F32 => true,
        }
    }

    /// The instruction set of the products.
    pub fn instruction_set(self) -> &'static str {
        match self {
            Self::AmxBf16 => "AMX_BF16",
            Self::Avx512Bf16 => "AVX512_BF16",
            Self::F32 if instruction_set() == "baseline" => "baseline",
            // Its bits are the same for all widths of vectors.
            Self::F32 => "FMA",
        }
    }
}

/// True if the processor is one of AMD's.
fn is_amd() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        let leaf = std::arch::x86_64::__cpuid(0);
        [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes).as_flattened() == b"AuthenticAMD"
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// The destination of a product.
#[derive(Clone, Copy)]
enum Destination<'a> {
    /// Sums, plus a bias for each column if given, are rounded to these elements.
    Rounded(Shared<bf16>, Option<&'a [bf16]>),
    /// Sums are added to these elements.
    Added(Shared<f32>),
}

/// See [`Stored::product`].
pub fn product(a: Mat<bf16>, b: Mat<bf16>, bias: Option<&[bf16]>) -> Vec<bf16> {
    assert_eq!(a.cols(), b.rows(), "inner dimensions differ");
    assert_ne!(a.cols(), 0, "a product of nothing");
    assert!(bias.is_none_or(|bias| bias.len() == b.cols()), "a bias of another width");
    // SAFETY: there are a.rows rows of b.cols elements. The product writes them all, and reads none of them. Only methods are in use whose
    // instructions the machine has.
    unsafe {
        written(a.rows() * b.cols(), |out| {
            multiply_with(Bf16Products::in_use(), a, b, Destination::Rounded(Shared::unwritten(out), bias));
        })
    }
}

/// See [`Stored::add_product`].
pub fn add_product(sum: &mut [f32], a: Mat<bf16>, b: Mat<bf16>) {
    assert_eq!(a.cols(), b.rows(), "inner dimensions differ");
    assert_ne!(a.cols(), 0, "a product of nothing");
    assert!(a.rows() * b.cols() <= sum.len(), "product beyond its slice");
    // SAFETY: `sum` holds a.rows rows of b.cols elements, and the exclusive borrow keeps others out. Only methods are in use whose
    // instructions the machine has.
    unsafe { multiply_with(Bf16Products::in_use(), a, b, Destination::Added(Shared::new(sum))) }
}

/// # Safety
/// The machine must have the instructions of `method`. The destination must have a.rows rows of b.cols elements, which no other thread may
/// touch, and its bias b.cols elements.
unsafe fn multiply_with(method: Bf16Products, a: Mat<bf16>, b: Mat<bf16>, destination: Destination<'_>) {
    if a.rows() == 0 || b.cols() == 0 {
        return;
    }
    // SAFETY: the caller's promise.
    unsafe {
        match method {
            #[cfg(target_arch = "x86_64")]
            Bf16Products::AmxBf16 => tiles::multiply::<amx_bf16::AmxBf16>(a, b, destination),
            #[cfg(target_arch = "x86_64")]
            Bf16Products::Avx512Bf16 => tiles::multiply::<avx512_bf16::Avx512Bf16>(a, b, destination),
            _ => fma::multiply(a, b, destination),
        }
    }
}

/// The right matrix of a product inside attention, in the form that a method reads; and buffers for the left one.
#[derive(Default)]
pub struct Bf16Operand {
    panels: Panels<f32>,
    #[cfg(target_arch = "x86_64")]
    tiles: tiles::Operand,
}

impl Bf16Operand {
    /// See [`Stored::pack`].
    ///
    /// # Safety
    /// The machine must have the instructions of `method`.
    pub(super) unsafe fn pack(&mut self, method: Bf16Products, b: Mat<bf16>) {
        // SAFETY: the caller's promise.
        unsafe {
            match method {
                #[cfg(target_arch = "x86_64")]
                Bf16Products::AmxBf16 => self.tiles.pack::<amx_bf16::AmxBf16>(b),
                #[cfg(target_arch = "x86_64")]
                Bf16Products::Avx512Bf16 => self.tiles.pack::<avx512_bf16::Avx512Bf16>(b),
                _ => self.panels.pack(b),
            }
        }
    }

    /// See [`Stored::multiply_panels`].
    ///
    /// # Safety
    /// The machine must have the instructions of `method`.
    pub(super) unsafe fn multiply(
        &self,
        method: Bf16Products,
        sums: &mut Panels<f32>,
        left: Left<'_, bf16>,
        keys: TileKeys,
        buffer: &mut Self,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            match method {
                #[cfg(target_arch = "x86_64")]
                Bf16Products::AmxBf16 => {
                    self.tiles.multiply::<amx_bf16::AmxBf16>(sums, left, keys.first, &mut buffer.tiles);
                }
                #[cfg(target_arch = "x86_64")]
                Bf16Products::Avx512Bf16 => {
                    self.tiles.multiply::<avx512_bf16::Avx512Bf16>(sums, left, keys.first, &mut buffer.tiles);
                }
                _ => PanelProduct::new(sums, left, &self.panels, keys, &mut buffer.panels).multiply(),
            }
        }
    }
}

/// Buffers that are used again: as many as were used at the same time.
pub(super) struct FreeBuffers<B>(Mutex<Vec<B>>);

impl<B: Default> FreeBuffers<B> {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// A free buffer, or a new one if there is none.
    pub(super) fn take(&self) -> B {
        self.0.lock().pop().unwrap_or_default()
    }

    pub(super) fn put_back(&self, buffer: B) {
        self.0.lock().push(buffer);
    }
}

/// The first `len` elements of the buffer, which grows to hold them. They may hold numbers of an earlier product.
pub(super) fn grow_to<T: Copy + Default>(buffer: &mut Vec<T>, len: usize) -> &mut [T] {
    if buffer.len() < len {
        buffer.resize(len, T::default());
    }
    &mut buffer[..len]
}

/// The parts of `0..len` that have `size` elements, and the rest.
fn split_range(len: usize, size: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(size).map(move |from| from..(from + size).min(len))
}

/// a·b + `bias` for an `a` of a few rows and a `b` whose columns are contiguous, each element by a dot product; `None` for other
/// matrices.
///
/// # Panics
/// If the shapes do not fit: an invariant of the callers.
pub fn multiply_few_rows<S: Stored>(a: Mat<S>, b: Mat<S>, bias: Option<&[S]>) -> Option<Vec<S>> {
    let (rows, inner, cols) = (a.rows(), a.cols(), b.cols());
    assert!(bias.is_none_or(|bias| bias.len() == cols), "a bias of another width");
    if rows > FEW_ROWS || inner == 0 || b.row_stride() != 1 || a.col_stride() != 1 {
        return None;
    }
    assert_eq!(inner, b.rows(), "inner dimensions differ");
    let columns = (TASK / inner).max(1);
    let write = |y: &mut [MaybeUninit<S>]| {
        let shared = Shared::unwritten(y);
        (0..cols.div_ceil(columns)).into_par_iter().for_each_piece(|task| {
            vectorize(inlined!(|| {
                for column in task * columns..((task + 1) * columns).min(cols) {
                    let weights = &b.data()[column * b.col_stride()..][..inner];
                    let bias = bias.map_or(Real::ZERO, |bias| bias[column].load());
                    for row in 0..rows {
                        let sum = dot(&a.data()[row * a.row_stride()..][..inner], weights);
                        // SAFETY: this column belongs to this task alone.
                        let y = unsafe { shared.uninitialized(row * cols + column, 1) };
                        y[0].write(S::store(sum + bias));
                    }
                }
            }));
        });
    };
    // SAFETY: the tasks write all columns of all rows.
    Some(unsafe { written(rows * cols, write) })
}

#[cfg(test)]
mod tests;
