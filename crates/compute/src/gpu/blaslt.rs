//! Matrix products by cuBLASLt. The algorithm for each kind of product is searched for once and kept.

use std::collections::HashMap;
use std::ffi::c_void;
use std::fmt::Display;
use std::mem::MaybeUninit;

use candle_core::cuda_backend::cudarc::driver::{CudaContext, CudaSlice, DevicePtr};
use candle_core::{CudaDevice, DType, Result, bail};
use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;

use super::Gpu;
use crate::kernels::out_of_memory::is_out_of_memory;
use crate::workspace::GPU_SCRATCH_BYTES;

/// A column-major matrix.
#[derive(Debug, Clone, Copy)]
pub struct MatmulOperand {
    pub address: u64,
    /// Elements from the start of a column to the start of the next.
    pub stride: usize,
    /// F32 or BF16.
    pub dtype: DType,
    /// True if the product takes the transposed matrix.
    pub transposed: bool,
}

/// Epilogues read vectors in pieces of this many bytes, but the search for an algorithm has no parameter for the alignment of vectors.
const EPILOGUE_ALIGNMENT: u64 = 16;

/// An operation on the product before it is stored. Vectors and `before` have the output's type. If their addresses are not multiples of
/// 16, there is no algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Epilogue {
    /// Stores the product.
    None,
    /// Adds a vector of m elements to each column.
    Bias(u64),
    /// Adds such a vector, stores that to `before`, `[n, m]`, and its GELU (tanh form) to the output. m is a multiple of 8.
    GeluAux { bias: u64, before: u64 },
    /// Multiplies the product by the slope of GELU (tanh form) at `before`, `[n, m]`. m is a multiple of 8.
    GeluSlope { before: u64 },
}

impl Epilogue {
    /// The library's name for it, the address of its vector, and that of its matrix; 0 where there is none.
    fn parts(self) -> (sys::cublasLtEpilogue_t, u64, u64) {
        use sys::cublasLtEpilogue_t as Name;
        match self {
            Self::None => (Name::CUBLASLT_EPILOGUE_DEFAULT, 0, 0),
            Self::Bias(bias) => (Name::CUBLASLT_EPILOGUE_BIAS, bias, 0),
            Self::GeluAux { bias, before } => (Name::CUBLASLT_EPILOGUE_GELU_AUX_BIAS, bias, before),
            Self::GeluSlope { before } => (Name::CUBLASLT_EPILOGUE_DGELU, 0, before),
        }
    }
}

/// The product out (m × n) = a (m × k) · b (k × n) + `addend`. Matrices are column-major, as in cuBLAS; sums are f32.
#[derive(Debug, Clone, Copy)]
pub struct MatmulRequest {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub a: MatmulOperand,
    /// Has the type of `a`.
    pub b: MatmulOperand,
    pub out: MatmulOperand,
    /// The address of a matrix like `out`, which may be `out` itself. The epilogue follows the sum.
    pub addend: Option<u64>,
    pub epilogue: Epilogue,
}

/// The properties of a product that its algorithm depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct MatmulKey {
    m: usize,
    n: usize,
    k: usize,
    strides: [usize; 3],
    types: [DType; 2],
    transposed: [bool; 2],
    /// Whether a matrix is added, and whether that is another than `out`.
    adds: [bool; 2],
    epilogue: sys::cublasLtEpilogue_t,
    tf32: bool,
    /// The largest power of two, up to 256, that divides the address of a, b, out, the epilogue's vector and matrix, and the addend or out.
    aligned: [u32; 6],
}

impl MatmulKey {
    /// True if the caller computes the same in another way where there is no algorithm.
    fn has_fallback(&self) -> bool {
        self.epilogue != sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DEFAULT || self.adds[1]
    }
}

/// A chosen cuBLASLt algorithm and its descriptors, which live as long as the process.
#[derive(Debug, Clone, Copy)]
struct MatmulPlan {
    descriptor: sys::cublasLtMatmulDesc_t,
    a: sys::cublasLtMatrixLayout_t,
    b: sys::cublasLtMatrixLayout_t,
    out: sys::cublasLtMatrixLayout_t,
    algorithm: sys::cublasLtMatmulAlgo_t,
    workspace: usize,
}

/// The library's handle, its workspace, and the plans that were made.
#[derive(Debug)]
pub(super) struct BlasLt {
    handle: sys::cublasLtHandle_t,
    workspace: CudaSlice<u32>,
    /// `None` where cuBLASLt has no algorithm.
    plans: HashMap<MatmulKey, Option<MatmulPlan>>,
    /// Which of the algorithms that cuBLASLt lists is taken, the one that it thinks fastest being 0.
    choice: usize,
    /// The multiprocessors that products are made for, if that is not all of them.
    multiprocessors: Option<i32>,
}

/// The most algorithms that cuBLASLt is asked for.
const MAX_ALGORITHMS: usize = 32;

// SAFETY: the handle may be used by any thread (cuBLASLt is thread-safe); the descriptors are used by one thread at a time, under the lock.
#[expect(unsafe_code, reason = "FFI")]
unsafe impl Send for BlasLt {}

/// Returns a function that converts a failed call's status to an error. Its text contains the status, by which `is_out_of_memory`
/// recognizes the error.
fn error_of(what: impl Display) -> impl FnOnce(CublasError) -> candle_core::Error {
    move |status| candle_core::Error::Cuda(format!("cuBLASLt: {what}: {status}").into())
}

/// True for statuses that mean, for a product that has a fallback, that there is no algorithm. Some versions find out only when they run
/// the algorithm.
fn means_unsupported(status: CublasError) -> bool {
    use sys::cublasStatus_t as Status;
    matches!(
        status.0,
        Status::CUBLAS_STATUS_NOT_SUPPORTED | Status::CUBLAS_STATUS_INVALID_VALUE | Status::CUBLAS_STATUS_ARCH_MISMATCH
    )
}

/// Converts a status to an error. cuBLASLt returns arbitrary errors when memory is nearly full and it cannot load its kernels: such an
/// error becomes one of too little memory.
fn matmul_error(context: &CudaContext, what: impl Display, status: CublasError) -> candle_core::Error {
    use sys::cublasStatus_t as Status;
    const MIN_FREE_BYTES: usize = 64 << 20;
    let may_be_memory = matches!(
        status.0,
        Status::CUBLAS_STATUS_INTERNAL_ERROR
            | Status::CUBLAS_STATUS_EXECUTION_FAILED
            | Status::CUBLAS_STATUS_NOT_INITIALIZED
    );
    if may_be_memory && context.mem_get_info().is_ok_and(|(free, _)| free < MIN_FREE_BYTES) {
        let what = format!("{what}: {status} where less than {} MiB are free", MIN_FREE_BYTES >> 20);
        return error_of(what)(CublasError(Status::CUBLAS_STATUS_ALLOC_FAILED));
    }
    error_of(what)(status)
}

fn data_type(dtype: DType) -> Result<sys::cudaDataType> {
    match dtype {
        DType::F32 => Ok(sys::cudaDataType_t::CUDA_R_32F),
        DType::BF16 => Ok(sys::cudaDataType_t::CUDA_R_16BF),
        other => bail!("products of f32 or bf16, not {other:?}"),
    }
}

/// The largest power of two, up to 256, that divides `address`.
fn alignment(address: u64) -> u32 {
    const MAX: u32 = 256;
    1 << address.trailing_zeros().min(MAX.ilog2())
}

impl MatmulRequest {
    fn key(&self, tf32: bool) -> MatmulKey {
        let (epilogue, vector, matrix) = self.epilogue.parts();
        MatmulKey {
            m: self.m,
            n: self.n,
            k: self.k,
            strides: [self.a.stride, self.b.stride, self.out.stride],
            types: [self.a.dtype, self.out.dtype],
            transposed: [self.a.transposed, self.b.transposed],
            adds: [self.addend.is_some(), self.addend.is_some_and(|addend| addend != self.out.address)],
            epilogue,
            tf32: tf32 && self.a.dtype == DType::F32,
            aligned: [self.a.address, self.b.address, self.out.address, vector, matrix, self.c()].map(alignment),
        }
    }

    /// The address of cuBLASLt's matrix C, which it does not read without an addend.
    fn c(&self) -> u64 {
        self.addend.unwrap_or(self.out.address)
    }

    fn describe(&self) -> String {
        let Self { m, n, k, .. } = self;
        let describe_operand =
            |x: &MatmulOperand| format!("{:?}{}", x.dtype, if x.transposed { " transposed" } else { "" });
        format!(
            "{m} x {k} ({}) by {k} x {n} ({}) into {:?}",
            describe_operand(&self.a),
            describe_operand(&self.b),
            self.out.dtype
        )
    }
}

/// Sets one attribute of a product's descriptor.
#[expect(unsafe_code, reason = "FFI")]
fn set_descriptor<T>(
    descriptor: sys::cublasLtMatmulDesc_t,
    attribute: sys::cublasLtMatmulDescAttributes_t,
    value: &T,
) -> Result<()> {
    // SAFETY: the descriptor lives; the library copies the value, whose size it compares with the attribute's.
    let set = unsafe {
        result::set_matmul_desc_attribute(descriptor, attribute, std::ptr::from_ref(value).cast(), size_of::<T>())
    };
    set.map_err(error_of("a product's attribute"))
}

/// Sets one attribute of a preference.
#[expect(unsafe_code, reason = "FFI")]
fn set_preference<T>(
    preference: sys::cublasLtMatmulPreference_t,
    attribute: sys::cublasLtMatmulPreferenceAttributes_t,
    value: &T,
) -> Result<()> {
    // SAFETY: the preference lives; the library copies the value, whose size it compares with the attribute's.
    let set = unsafe {
        result::set_matmul_pref_attribute(preference, attribute, std::ptr::from_ref(value).cast(), size_of::<T>())
    };
    set.map_err(error_of("a preference"))
}

/// Sets the addresses of the epilogue's vector and matrix, which a descriptor holds.
fn set_epilogue_pointers(descriptor: sys::cublasLtMatmulDesc_t, epilogue: Epilogue) -> Result<()> {
    use sys::cublasLtMatmulDescAttributes_t as Attribute;
    let (_, vector, matrix) = epilogue.parts();
    for (attribute, address) in [
        (Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, vector),
        (Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, matrix),
    ] {
        if address != 0 {
            set_descriptor(descriptor, attribute, &address)?;
        }
    }
    Ok(())
}

impl BlasLt {
    /// Makes the library's handle. Call it before any kernel is launched: it may wait for all that runs on the GPU.
    ///
    /// # Errors
    /// If cuBLASLt fails, or memory is short.
    #[expect(unsafe_code, reason = "uninitialized device memory")]
    pub(super) fn new(device: &CudaDevice, (major, _): (i32, i32)) -> Result<Self> {
        let bytes = GPU_SCRATCH_BYTES[usize::from(major >= 9)];
        let stream = device.cuda_stream();
        stream.context().bind_to_thread().map_err(super::driver_error)?;
        Ok(Self {
            handle: result::create_handle().map_err(|status| matmul_error(stream.context(), "a handle", status))?,
            // SAFETY: the library writes to its workspace before it reads from it.
            workspace: unsafe { device.alloc(bytes / 4)? },
            plans: HashMap::new(),
            choice: 0,
            multiprocessors: None,
        })
    }

    /// Describes the product to the library and lets it choose an algorithm.
    fn find_plan(&self, product: &MatmulRequest, key: &MatmulKey) -> Result<Option<MatmulPlan>> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let compute = if key.tf32 {
            sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32
        } else {
            sys::cublasComputeType_t::CUBLAS_COMPUTE_32F
        };
        let descriptor =
            result::create_matmul_desc(compute, sys::cudaDataType_t::CUDA_R_32F).map_err(error_of("a description"))?;
        // CUBLAS_OP_N and CUBLAS_OP_T.
        set_descriptor(descriptor, Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &i32::from(key.transposed[0]))?;
        set_descriptor(descriptor, Attribute::CUBLASLT_MATMUL_DESC_TRANSB, &i32::from(key.transposed[1]))?;
        set_descriptor(descriptor, Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &(key.epilogue as u32))?;
        if let Some(multiprocessors) = self.multiprocessors {
            set_descriptor(descriptor, Attribute::CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &multiprocessors)?;
        }
        if product.epilogue.parts().2 != 0 {
            set_descriptor(descriptor, Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &(product.m as i64))?;
        }
        // The search checks how these are aligned.
        set_epilogue_pointers(descriptor, product.epilogue)?;
        let layout = |operand: MatmulOperand, rows: usize, columns: usize| {
            let (rows, columns) = if operand.transposed { (columns, rows) } else { (rows, columns) };
            result::create_matrix_layout(data_type(operand.dtype)?, rows as u64, columns as u64, operand.stride as i64)
                .map_err(error_of("a layout"))
        };
        let MatmulRequest { m, n, k, a, b, out, .. } = *product;
        let (a, b, out) = (layout(a, m, k)?, layout(b, k, n)?, layout(out, m, n)?);
        match self.find_algorithm(key, descriptor, [a, b, out]) {
            Ok(None) => Ok(None),
            Ok(Some((algorithm, workspace))) => Ok(Some(MatmulPlan { descriptor, a, b, out, algorithm, workspace })),
            Err(e) if is_out_of_memory(&e) => Err(e),
            Err(e) => bail!("{} with addresses aligned to {:?}: {e}", product.describe(), key.aligned),
        }
    }

    #[expect(unsafe_code, reason = "FFI")]
    fn find_algorithm(
        &self,
        key: &MatmulKey,
        descriptor: sys::cublasLtMatmulDesc_t,
        [a, b, out]: [sys::cublasLtMatrixLayout_t; 3],
    ) -> Result<Option<(sys::cublasLtMatmulAlgo_t, usize)>> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Preference;
        let preference = result::create_matmul_pref().map_err(error_of("a preference"))?;
        set_preference(preference, Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &self.workspace.num_bytes())?;
        for (attribute, aligned) in [
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.aligned[0]),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.aligned[1]),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.aligned[5]),
            // The smaller of the output's and the vector's alignment: some versions read a bias as they read D.
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.aligned[2].min(key.aligned[3])),
        ] {
            set_preference(preference, attribute, &aligned)?;
        }
        if key.types[1] == DType::BF16 {
            // Parts of a sum are not rounded to the output's type before they are added.
            let scheme = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
            set_preference(preference, Preference::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &scheme)?;
        }
        let asked = (self.choice + 1).min(MAX_ALGORITHMS);
        let (mut listed, mut count) = ([MaybeUninit::uninit(); MAX_ALGORITHMS], 0);
        // SAFETY: all arguments were created above and are alive; at most as many algorithms are written as there is room for.
        let found = unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                self.handle,
                descriptor,
                a,
                b,
                out,
                out,
                preference,
                asked as i32,
                listed[0].as_mut_ptr(),
                &raw mut count,
            )
            .result()
        };
        // SAFETY: made above, and used by nothing else.
        unsafe { result::destroy_matmul_pref(preference).map_err(error_of("a preference"))? }
        let last = usize::try_from(count).ok().and_then(|count| count.min(asked).checked_sub(1));
        // SAFETY: the library has written the first `count`.
        let last = last.map(|last| unsafe { listed[last].assume_init() });
        match found.and_then(|()| last.map(|last| last.state.result().map(|()| last)).transpose()) {
            Ok(last) => Ok(last.map(|last| (last.algo, last.workspaceSize))),
            Err(CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED)) => Ok(None),
            Err(error) if key.has_fallback() && means_unsupported(error) => Ok(None),
            Err(error) => Err(error_of("the search for an algorithm")(error)),
        }
    }
}

impl Gpu {
    /// From here on takes number `choice` of the algorithms that cuBLASLt lists for a product, or the last one: to measure them.
    pub fn choose_algorithm(&self, choice: usize) {
        let mut blaslt = self.blaslt.lock();
        (blaslt.choice, blaslt.plans) = (choice, HashMap::new());
    }

    /// From here on makes products for all multiprocessors but `spared`, which other kernels occupy: to measure them.
    pub fn spare_multiprocessors(&self, spared: usize) {
        let rest = self.multiprocessors().saturating_sub(spared).max(1);
        let mut blaslt = self.blaslt.lock();
        (blaslt.multiprocessors, blaslt.plans) = ((spared > 0).then_some(rest as i32), HashMap::new());
    }

    /// Multiplies on the compute stream. `false`, and nothing done, if cuBLASLt has no algorithm with this epilogue, or with an addend other
    /// than `out`, for these types, sizes and alignments.
    ///
    /// # Safety
    /// The addresses have as many elements of their types as the sizes say, on this device.
    ///
    /// # Errors
    /// If cuBLASLt fails or has no algorithm even without these, or memory is short.
    #[expect(unsafe_code, reason = "FFI")]
    pub unsafe fn multiply(&self, product: &MatmulRequest) -> Result<bool> {
        if product.m == 0 || product.n == 0 {
            return Ok(true);
        }
        if product.a.dtype != product.b.dtype {
            bail!("a product of {:?} and {:?}", product.a.dtype, product.b.dtype)
        }
        let (_, vector, matrix) = product.epilogue.parts();
        if !(vector | matrix).is_multiple_of(EPILOGUE_ALIGNMENT) {
            return Ok(false);
        }
        let mut blaslt = self.blaslt.lock();
        let key = product.key(self.tf32());
        let plan = if let Some(plan) = blaslt.plans.get(&key) {
            *plan
        } else {
            let plan = blaslt.find_plan(product, &key)?;
            blaslt.plans.insert(key, plan);
            plan
        };
        let Some(plan) = plan else {
            if key.has_fallback() {
                return Ok(false);
            }
            bail!("cuBLASLt has no algorithm for {} with {:?}", product.describe(), key.aligned)
        };
        set_epilogue_pointers(plan.descriptor, product.epilogue)?;
        let (one, beta) = (1.0_f32, if product.addend.is_some() { 1.0_f32 } else { 0.0 });
        let pointer = |address: u64| address as *mut c_void;
        let stream = self.stream();
        let workspace = pointer(blaslt.workspace.device_ptr(stream).0);
        stream.context().bind_to_thread().map_err(super::driver_error)?;
        // SAFETY: descriptors and algorithm were made for these sizes, types and alignments; the caller answers for the
        // addresses; the workspace has the bytes that were allowed; factors are on the host, which is the default, and copied.
        let done = unsafe {
            result::matmul(
                blaslt.handle,
                plan.descriptor,
                std::ptr::from_ref(&one).cast(),
                std::ptr::from_ref(&beta).cast(),
                pointer(product.a.address),
                plan.a,
                pointer(product.b.address),
                plan.b,
                pointer(product.c()),
                plan.out,
                pointer(product.out.address),
                plan.out,
                std::ptr::from_ref(&plan.algorithm),
                workspace,
                plan.workspace,
                stream.cu_stream().cast(),
            )
        };
        match done {
            Ok(()) => Ok(true),
            // Nothing was launched: a check of arguments failed.
            Err(status) if key.has_fallback() && means_unsupported(status) => {
                blaslt.plans.insert(key, None);
                Ok(false)
            }
            Err(status) => Err(matmul_error(stream.context(), product.describe(), status)),
        }
    }
}
