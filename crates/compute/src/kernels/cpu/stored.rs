//! The number types that tensors are stored in: those of [`Real`], and bf16, which kernels compute in f32.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, Result, WithDType, bail};
use half::bf16;

use super::Real;
use super::gemm::{self, Mat};
use super::product::panels::{Left, PanelProduct, Panels, TileKeys};
use super::product::{self, Bf16Operand, Bf16Products};

/// A number as a tensor stores it.
pub trait Stored: WithDType + Default {
    /// The type that kernels compute in.
    type Real: Real;

    /// The right matrix of a product inside attention, in the form in which the product reads it.
    type Operand: Default + Send;

    /// True if storing a number rounds it to bf16.
    const IS_BF16: bool;

    fn load(self) -> Self::Real;
    /// The nearest number that can be stored, ties to even.
    #[must_use]
    fn store(number: Self::Real) -> Self;
    /// Zeros.
    fn zeros(len: usize) -> Vec<Self>;
    /// a·b, with `bias` added to each row if given; row by row. Sums are made in [`Self::Real`], and rounded once.
    ///
    /// # Panics
    /// If the shapes do not fit: an invariant of the callers.
    fn product(a: Mat<Self>, b: Mat<Self>, bias: Option<&[Self]>) -> Vec<Self>;
    /// Adds a·b to `sum`, row by row.
    ///
    /// # Panics
    /// If the shapes do not fit: an invariant of the callers.
    fn add_product(sum: &mut [Self::Real], a: Mat<Self>, b: Mat<Self>);
    /// `operand` becomes the right matrix `b`.
    fn pack(operand: &mut Self::Operand, b: Mat<Self>);
    /// `sums` becomes `left`·`right`, or the product is added where `left` is a transpose, on the calling thread. The rows and columns of
    /// `sums` are set before; `buffer` is for a copy of `left`. Queries see `keys`.
    ///
    /// # Panics
    /// If the shapes do not fit: an invariant of the callers.
    fn multiply_panels(
        sums: &mut Panels<Self::Real>,
        left: Left<'_, Self>,
        right: &Self::Operand,
        keys: TileKeys,
        buffer: &mut Self::Operand,
    );

    /// The number that is read where `number` was stored.
    #[inline(always)]
    #[must_use]
    fn rounded(number: Self::Real) -> Self::Real {
        Self::store(number).load()
    }

    /// The elements of a CPU storage.
    ///
    /// # Errors
    /// If it holds another type.
    fn elements_mut(storage: &mut CpuStorage) -> Result<&mut [Self]>;
}

/// `elements_mut` of the type in `CpuStorage::$variant`.
macro_rules! elements_of {
    ($variant:ident) => {
        fn elements_mut(storage: &mut CpuStorage) -> Result<&mut [Self]> {
            match storage {
                CpuStorage::$variant(v) => Ok(v),
                other => bail!("expected {} storage, got {:?}", stringify!($variant), other.dtype()),
            }
        }
    };
}

/// `Stored` for a type that is computed in itself.
macro_rules! stored_as_computed {
    ($T:ty, $variant:ident) => {
        impl Stored for $T {
            type Real = Self;
            type Operand = Panels<Self>;

            const IS_BF16: bool = false;

            #[inline(always)]
            fn load(self) -> Self {
                self
            }

            #[inline(always)]
            fn store(number: Self) -> Self {
                number
            }

            fn zeros(len: usize) -> Vec<Self> {
                vec![0.0; len]
            }

            fn product(a: Mat<Self>, b: Mat<Self>, bias: Option<&[Self]>) -> Vec<Self> {
                if let Some(y) = product::multiply_few_rows(a, b, bias) {
                    return y;
                }
                gemm::product(a, b, bias)
            }

            fn add_product(sum: &mut [Self], a: Mat<Self>, b: Mat<Self>) {
                gemm::add_product(sum, a, b);
            }

            fn pack(operand: &mut Panels<Self>, b: Mat<Self>) {
                operand.pack(b);
            }

            fn multiply_panels(
                sums: &mut Panels<Self>,
                left: Left<'_, Self>,
                right: &Panels<Self>,
                keys: TileKeys,
                buffer: &mut Panels<Self>,
            ) {
                PanelProduct::new(sums, left, right, keys, buffer).multiply();
            }

            elements_of!($variant);
        }
    };
}

stored_as_computed!(f32, F32);
stored_as_computed!(f64, F64);

impl Stored for bf16 {
    type Real = f32;
    type Operand = Bf16Operand;

    const IS_BF16: bool = true;

    #[inline(always)]
    fn load(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn store(number: f32) -> Self {
        const QUIET: u32 = 1 << 22;
        let bits = number.to_bits();
        // A NaN is made quiet: the upper half of a signaling NaN may be that of infinity.
        let rounded = if number.is_nan() { bits | QUIET } else { bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) };
        Self::from_bits((rounded >> 16) as u16)
    }

    fn zeros(len: usize) -> Vec<Self> {
        vec![Self::ZERO; len]
    }

    fn product(a: Mat<Self>, b: Mat<Self>, bias: Option<&[Self]>) -> Vec<Self> {
        product::multiply_few_rows(a, b, bias).unwrap_or_else(|| product::product(a, b, bias))
    }

    fn add_product(sum: &mut [f32], a: Mat<Self>, b: Mat<Self>) {
        product::add_product(sum, a, b);
    }

    fn pack(operand: &mut Bf16Operand, b: Mat<Self>) {
        // SAFETY: only methods are in use whose instructions the machine has.
        unsafe { operand.pack(Bf16Products::in_use(), b) };
    }

    fn multiply_panels(
        sums: &mut Panels<f32>,
        left: Left<'_, Self>,
        right: &Bf16Operand,
        keys: TileKeys,
        buffer: &mut Bf16Operand,
    ) {
        // SAFETY: only methods are in use whose instructions the machine has.
        unsafe { right.multiply(Bf16Products::in_use(), sums, left, keys, buffer) };
    }

    elements_of!(BF16);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against the `half` crate's conversions, for every bf16 number and f32 numbers beside them.
    #[test]
    fn bf16_is_loaded_and_stored_as_the_half_crate_converts() {
        for bits in 0..=u16::MAX {
            let exact = bf16::from_bits(bits);
            if exact.is_nan() {
                assert!(exact.load().is_nan() && bf16::store(exact.load()).is_nan());
                continue;
            }
            assert_eq!(exact.load().to_bits(), exact.to_f32().to_bits());
            for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let number = f32::from_bits(u32::from(bits) << 16 | low);
                if !number.is_nan() {
                    assert_eq!(bf16::store(number).to_bits(), bf16::from_f32(number).to_bits(), "{number:e}");
                }
            }
        }
        assert!(bf16::store(f32::from_bits(0x7f80_0001)).is_nan(), "its upper half is infinity's");
    }
}
