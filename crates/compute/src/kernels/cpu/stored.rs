//! The number types that flat buffers are stored in: those of [`Real`], and bf16, which kernels compute in f32.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, Result, WithDType, bail};
use half::bf16;

use super::Real;

/// A number as a flat buffer of weights, gradients or moments stores it.
pub trait Stored: WithDType {
    /// The type that kernels compute in.
    type Real: Real;

    /// True if storing a number rounds it to bf16.
    const IS_BF16: bool;

    fn load(self) -> Self::Real;
    /// The nearest number that can be stored, ties to even.
    #[must_use]
    fn store(number: Self::Real) -> Self;
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

            const IS_BF16: bool = false;

            #[inline(always)]
            fn load(self) -> Self {
                self
            }

            #[inline(always)]
            fn store(number: Self) -> Self {
                number
            }

            elements_of!($variant);
        }
    };
}

stored_as_computed!(f32, F32);
stored_as_computed!(f64, F64);

impl Stored for bf16 {
    type Real = f32;

    const IS_BF16: bool = true;

    #[inline(always)]
    fn load(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn store(number: f32) -> Self {
        let rounded = (number.round_bf16().to_bits() >> 16) as u16;
        // A NaN whose upper half is that of infinity stays a NaN.
        Self::from_bits(if number.is_nan() { rounded | 0x40 } else { rounded })
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
