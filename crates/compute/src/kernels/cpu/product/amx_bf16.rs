//! The tile instruction TDPBF16PS (AMX), which adds the product of 16 × 32 and 32 × 16 bf16 numbers to 16 × 16 f32 numbers.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::sync::LazyLock;

use half::bf16;

use super::PANEL_COLUMNS;
use super::avx512_bf16;
use super::packing::RowPair;
use super::tiles::TileInstructions;
use crate::kernels::cpu::gemm::Mat;

/// The instruction sums the products of the even and of the odd positions of 32 numbers separately, and then adds both to the sum so far.
pub(super) struct AmxBf16;

/// Rows of a tile: two tile registers. With two of columns, four of the eight registers hold sums.
const ROWS: usize = 32;
/// Numbers in a row of a tile register.
const DEPTH: usize = 32;

/// True if the processor has the instructions and the kernel lets this process use their registers, which it asks for.
pub(super) fn is_available() -> bool {
    static IS_AVAILABLE: LazyLock<bool> =
        LazyLock::new(|| avx512_bf16::is_available() && has_instructions() && request_permission());
    *IS_AVAILABLE
}

/// True if CPUID shows AMX-TILE and AMX-BF16.
fn has_instructions() -> bool {
    let needed = 1 << 24 | 1 << 22;
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & needed == needed
}

/// Asks Linux for the state of tiles, for all threads of this process.
#[cfg(target_os = "linux")]
fn request_permission() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_int = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_ulong = 18;
    // SAFETY: the call has no pointers.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn request_permission() -> bool {
    false
}

/// The operand of LDTILECFG.
#[repr(C, align(64))]
struct TileConfiguration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    bytes_per_row: [u16; 16],
    rows: [u8; 16],
}

/// Eight registers of 16 rows of 64 bytes.
static CONFIGURATION: TileConfiguration = TileConfiguration {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    bytes_per_row: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

impl TileInstructions for AmxBf16 {
    type Sums = [[f32; PANEL_COLUMNS]; ROWS];
    const ROWS: usize = ROWS;
    const DEPTH_STEP: usize = DEPTH;

    unsafe fn run_task(task: impl FnOnce()) {
        // SAFETY: the processor has the instructions, and the configuration is valid. A tile's product that panics ends the process's
        // training, and leaves a configured register file, which is valid.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const CONFIGURATION, options(nostack, readonly));
            task();
            asm!("tilerelease", options(nostack, nomem));
        }
    }

    unsafe fn sum_tile(left: Mat<bf16>, right: &[RowPair], sums: &mut Self::Sums) {
        assert_eq!((left.rows(), left.cols(), left.col_stride()), (ROWS, 2 * right.len(), 1), "operands of a tile");
        assert!(!right.is_empty() && left.cols().is_multiple_of(DEPTH), "depth of a tile");
        let row_bytes = size_of::<bf16>() * left.row_stride();
        let left = left.data().as_ptr();
        // SAFETY: the tile registers are configured. The loads read the 32 rows of `left` and the rows of `right`, 32 and 16 at a time;
        // the stores write the 32 rows of `sums`.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "2:",
                "tileloadd tmm4, [{upper} + {row_bytes}]",
                "tileloadd tmm6, [{right} + {panel_row_bytes}]",
                "tileloadd tmm7, [{right} + {panel_row_bytes} + 64]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{lower} + {row_bytes}]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {upper}, 64",
                "add {lower}, 64",
                "add {right}, 2048",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{sums} + {panel_row_bytes}], tmm0",
                "tilestored [{sums} + {panel_row_bytes} + 64], tmm1",
                "tilestored [{sums} + {panel_row_bytes} + 2048], tmm2",
                "tilestored [{sums} + {panel_row_bytes} + 2112], tmm3",
                upper = inout(reg) left => _,
                lower = inout(reg) left.add(16 * row_bytes / size_of::<bf16>()) => _,
                right = inout(reg) right.as_ptr() => _,
                steps = inout(reg) right.len() / 16 => _,
                sums = in(reg) sums.as_mut_ptr(),
                row_bytes = in(reg) row_bytes,
                panel_row_bytes = in(reg) size_of::<RowPair>(),
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}
