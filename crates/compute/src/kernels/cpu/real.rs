//! The number types that CPU kernels run on: f32 to train, f64 to check gradients with.

use std::fmt::Debug;
use std::iter::Sum;
use std::ops::Neg;

use super::Stored;
use super::product::panels::{PanelProduct, PanelRow};

/// A float that kernels compute in.
pub trait Real: Stored<Real = Self> + Debug + Neg<Output = Self> + Sum {
    const ZERO: Self;
    const ONE: Self;
    const LOWEST: Self;

    fn real(v: f64) -> Self;
    fn double(self) -> f64;
    /// Vectorizes; within 2 units in the last place for f32.
    #[must_use]
    fn fast_exp(self) -> Self;
    #[must_use]
    fn log(self) -> Self;
    #[must_use]
    fn root(self) -> Self;
    #[must_use]
    fn fma(self, a: Self, b: Self) -> Self;
    #[must_use]
    fn larger(self, other: Self) -> Self;
    /// The rows of a panel, if they are in f32.
    fn f32_rows(panel: &mut [PanelRow<Self>]) -> Option<&mut [PanelRow<f32>]>;
    fn multiply_panels(product: PanelProduct<'_, Self>);

    /// tanh from one exponential; absolute error of a few units in the last place of 1.
    #[inline(always)]
    #[must_use]
    fn fast_tanh(self) -> Self {
        let two = Self::real(2.0);
        Self::ONE - two / ((two * self).fast_exp() + Self::ONE)
    }
}

/// The items of `Real` whose text is the same for f32 and f64.
macro_rules! same_for_both {
    () => {
        const ZERO: Self = 0.0;
        const ONE: Self = 1.0;
        const LOWEST: Self = Self::MIN;

        #[inline(always)]
        fn real(v: f64) -> Self {
            v as Self
        }

        #[inline(always)]
        fn double(self) -> f64 {
            self as f64
        }

        #[inline(always)]
        fn log(self) -> Self {
            self.ln()
        }

        #[inline(always)]
        fn root(self) -> Self {
            self.sqrt()
        }

        #[inline(always)]
        fn fma(self, a: Self, b: Self) -> Self {
            self.mul_add(a, b)
        }

        #[inline(always)]
        fn larger(self, other: Self) -> Self {
            if self > other { self } else { other }
        }
    };
}

impl Real for f32 {
    same_for_both!();

    fn f32_rows(panel: &mut [PanelRow<Self>]) -> Option<&mut [PanelRow<f32>]> {
        Some(panel)
    }

    fn multiply_panels(product: PanelProduct<'_, Self>) {
        pulp::Arch::new().dispatch(product);
    }

    /// exp(x) = 2^n · exp(r), |r| ≤ ln 2 / 2: n by adding 1.5·2^23, which leaves it in the low mantissa bits; exp(r) by
    /// its Taylor polynomial of degree 7, whose remainder is below half a unit in the last place.
    #[inline(always)]
    fn fast_exp(self) -> Self {
        const SHIFT: f32 = 12_582_912.0;
        const LN2_HIGH: f32 = 0.693_359_4;
        const LN2_LOW: f32 = -2.121_944_4e-4;
        // A comparison with NaN is false, so NaN passes both lines and comes out as NaN. `min` and `max` would drop it.
        let x = if self > 88.0 { 88.0 } else { self };
        let x = if x < -87.0 { -87.0 } else { x };
        let shifted = x.mul_add(std::f32::consts::LOG2_E, SHIFT);
        let n = shifted - SHIFT;
        let r = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, x));
        let mut p = 1.0 / 5040.0;
        for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
            p = r.mul_add(p, c);
        }
        p * Self::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23))
    }
}

impl Real for f64 {
    same_for_both!();

    fn f32_rows(_: &mut [PanelRow<Self>]) -> Option<&mut [PanelRow<f32>]> {
        None
    }

    fn multiply_panels(product: PanelProduct<'_, Self>) {
        product.multiply_scalar();
    }

    #[inline(always)]
    fn fast_exp(self) -> Self {
        self.exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_units_in_the_last_place() {
        let mut worst = 0.0_f64;
        for i in -87_000..=88_000 {
            let x = i as f32 / 1000.0;
            let exact = f64::from(x).exp();
            let relative = (f64::from(x.fast_exp()) - exact).abs() / exact;
            worst = worst.max(relative);
        }
        assert!(worst < 2.0 * f64::from(f32::EPSILON), "{worst:e}");
        assert!(f32::NAN.fast_exp().is_nan());
        assert!(f32::NEG_INFINITY.fast_exp() < 1e-37);
    }

    #[test]
    fn tanh_saturates_and_is_close() {
        for i in -2000..=2000 {
            let x = i as f32 / 100.0;
            assert!((f64::from(x.fast_tanh()) - f64::from(x).tanh()).abs() < 4e-7, "{x}");
        }
        assert_eq!(1e9_f32.fast_tanh(), 1.0);
        assert_eq!((-1e9_f32).fast_tanh(), -1.0);
    }
}
