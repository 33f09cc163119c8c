//! Matrix products by cuBLASLt. What it says about a kind of product is asked once and kept.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, OnceLock, PoisonError};

use candle_core::{DType, Result, Tensor, bail};
use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;

use super::Gpu;
use super::memory::address;
use crate::kernels::out_of_memory::is_out_of_memory;

/// A column-major matrix without gaps.
#[derive(Debug, Clone, Copy)]
pub struct Operand {
    pub address: u64,
    /// F32 or BF16.
    pub dtype: DType,
    /// Whether it takes part transposed.
    pub transposed: bool,
}

/// Vectors of epilogues are read in pieces of as many bytes: the search for an algorithm is not asked how they are aligned.
const WHOLE: u64 = 16;

/// What is done to the product before it is stored. Vectors and the second matrix are of the output's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Epilogue {
    None,
    /// Adds a vector of m elements to each column; its address is a multiple of 16, or there is no way.
    Bias(u64),
    /// Adds such a vector, stores that to `before`, [n, m], and its GELU (tanh form) to the output. m is a multiple of 8.
    GeluAux {
        bias: u64,
        before: u64,
    },
}

/// out (m × n) = a (m × k) · b (k × n), or plus what was there; column-major, as cuBLAS counts. Sums are f32.
#[derive(Debug, Clone, Copy)]
pub struct Product {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub a: Operand,
    /// Of a's type.
    pub b: Operand,
    pub out: Operand,
    pub accumulate: bool,
    pub epilogue: Epilogue,
}

/// Products of the same kind have the same algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Kind {
    m: usize,
    n: usize,
    k: usize,
    types: [DType; 2],
    transposed: [bool; 2],
    accumulate: bool,
    epilogue: u8,
    tf32: bool,
    /// Of a, b, out, bias and the second matrix: the largest power of two that divides the address, 256 at most.
    aligned: [u32; 5],
}

/// Descriptions of one kind of product, and how it is computed. They live as long as the process.
#[derive(Debug, Clone, Copy)]
struct Way {
    product: sys::cublasLtMatmulDesc_t,
    a: sys::cublasLtMatrixLayout_t,
    b: sys::cublasLtMatrixLayout_t,
    out: sys::cublasLtMatrixLayout_t,
    algorithm: sys::cublasLtMatmulAlgo_t,
    workspace: usize,
}

/// The library's handle, its workspace, and the ways that are known.
#[derive(Debug)]
struct Products {
    handle: sys::cublasLtHandle_t,
    workspace: Tensor,
    /// `None`: it has none for this kind.
    ways: HashMap<Kind, Option<Way>>,
}

// SAFETY: the handle may be used by any thread (cuBLASLt is thread-safe); the descriptions are used by one at a time, under the lock.
#[expect(unsafe_code, reason = "FFI")]
unsafe impl Send for Products {}

/// Made when the device is opened.
#[derive(Debug, Default)]
pub(super) struct BlasLt(OnceLock<Mutex<Products>>);

/// What the library answered that was no success. Its status stays in the text: by it an error is known as out of memory.
#[derive(Debug, thiserror::Error)]
#[error("cuBLASLt: {what}: {status}")]
struct Refused {
    what: String,
    status: CublasError,
}

fn refused(what: &str, status: CublasError) -> candle_core::Error {
    candle_core::Error::Cuda(Box::new(Refused { what: what.to_owned(), status }))
}

/// Statuses that say that there is no way, if one was asked for with an epilogue: not every version knows each before it tries.
fn is_no_way(status: CublasError) -> bool {
    use sys::cublasStatus_t as Status;
    matches!(
        status.0,
        Status::CUBLAS_STATUS_NOT_SUPPORTED | Status::CUBLAS_STATUS_INVALID_VALUE | Status::CUBLAS_STATUS_ARCH_MISMATCH
    )
}

fn named(what: &'static str) -> impl Fn(CublasError) -> candle_core::Error {
    move |status| refused(what, status)
}

fn data_type(dtype: DType) -> Result<sys::cudaDataType> {
    match dtype {
        DType::F32 => Ok(sys::cudaDataType_t::CUDA_R_32F),
        DType::BF16 => Ok(sys::cudaDataType_t::CUDA_R_16BF),
        other => bail!("products of f32 or bf16, not {other:?}"),
    }
}

fn alignment(address: u64) -> u32 {
    const MOST: u32 = 256;
    if address == 0 { MOST } else { (1 << address.trailing_zeros().min(8)).min(MOST) }
}

impl Product {
    fn kind(&self, tf32: bool) -> Kind {
        let (epilogue, bias, before) = match self.epilogue {
            Epilogue::None => (0, 0, 0),
            Epilogue::Bias(bias) => (1, bias, 0),
            Epilogue::GeluAux { bias, before } => (2, bias, before),
        };
        Kind {
            m: self.m,
            n: self.n,
            k: self.k,
            types: [self.a.dtype, self.out.dtype],
            transposed: [self.a.transposed, self.b.transposed],
            accumulate: self.accumulate,
            epilogue,
            tf32: tf32 && self.a.dtype == DType::F32,
            aligned: [self.a.address, self.b.address, self.out.address, bias, before].map(alignment),
        }
    }

    fn words(&self) -> String {
        let Self { m, n, k, .. } = self;
        let of = |x: &Operand| format!("{:?}{}", x.dtype, if x.transposed { " transposed" } else { "" });
        format!("{m} x {k} ({}) by {k} x {n} ({}) into {:?}", of(&self.a), of(&self.b), self.out.dtype)
    }
}

/// Sets one attribute of a product's description.
#[expect(unsafe_code, reason = "FFI")]
fn describe<T>(
    product: sys::cublasLtMatmulDesc_t,
    attribute: sys::cublasLtMatmulDescAttributes_t,
    value: &T,
) -> Result<()> {
    // SAFETY: the description lives; the library copies the value, whose size it compares with the attribute's.
    let set = unsafe {
        result::set_matmul_desc_attribute(product, attribute, std::ptr::from_ref(value).cast(), size_of::<T>())
    };
    set.map_err(named("a product's attribute"))
}

/// Sets one attribute of a preference.
#[expect(unsafe_code, reason = "FFI")]
fn prefer<T>(
    preference: sys::cublasLtMatmulPreference_t,
    attribute: sys::cublasLtMatmulPreferenceAttributes_t,
    value: &T,
) -> Result<()> {
    // SAFETY: as `describe`.
    let set = unsafe {
        result::set_matmul_pref_attribute(preference, attribute, std::ptr::from_ref(value).cast(), size_of::<T>())
    };
    set.map_err(named("a preference"))
}

/// The addresses of bias and second matrix, which a description holds.
fn point(product: sys::cublasLtMatmulDesc_t, epilogue: Epilogue) -> Result<()> {
    use sys::cublasLtMatmulDescAttributes_t as Attribute;
    match epilogue {
        Epilogue::None => Ok(()),
        Epilogue::Bias(bias) => describe(product, Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias),
        Epilogue::GeluAux { bias, before } => {
            describe(product, Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias)?;
            describe(product, Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &before)
        }
    }
}

impl Products {
    fn new(gpu: &Gpu) -> Result<Self> {
        // What NVIDIA's documentation recommends for each generation.
        let bytes: usize = if gpu.compute_capability().0 >= 9 { 32 << 20 } else { 4 << 20 };
        gpu.stream().context().bind_to_thread().map_err(super::driver)?;
        Ok(Self {
            handle: result::create_handle().map_err(|status| gpu.failed("a handle", status))?,
            workspace: gpu.empty(DType::U32, bytes / 4)?,
            ways: HashMap::new(),
        })
    }

    fn bytes(&self) -> usize {
        self.workspace.elem_count() * 4
    }

    /// Asks the library how to compute products of this kind.
    fn find(&self, product: &Product, kind: &Kind) -> Result<Option<Way>> {
        use sys::cublasLtEpilogue_t as Epilogues;
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let compute = if kind.tf32 {
            sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32
        } else {
            sys::cublasComputeType_t::CUBLAS_COMPUTE_32F
        };
        let description =
            result::create_matmul_desc(compute, sys::cudaDataType_t::CUDA_R_32F).map_err(named("a description"))?;
        // CUBLAS_OP_N and CUBLAS_OP_T.
        describe(description, Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &i32::from(kind.transposed[0]))?;
        describe(description, Attribute::CUBLASLT_MATMUL_DESC_TRANSB, &i32::from(kind.transposed[1]))?;
        let epilogue = match product.epilogue {
            Epilogue::None => Epilogues::CUBLASLT_EPILOGUE_DEFAULT,
            Epilogue::Bias(_) => Epilogues::CUBLASLT_EPILOGUE_BIAS,
            Epilogue::GeluAux { .. } => Epilogues::CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
        };
        describe(description, Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &(epilogue as u32))?;
        if matches!(product.epilogue, Epilogue::GeluAux { .. }) {
            describe(description, Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &(product.m as i64))?;
        }
        // The search looks at how these are aligned.
        point(description, product.epilogue)?;
        let layout = |dtype, rows: usize, columns: usize, transposed: bool| {
            let (rows, columns) = if transposed { (columns, rows) } else { (rows, columns) };
            result::create_matrix_layout(data_type(dtype)?, rows as u64, columns as u64, rows as i64)
                .map_err(named("a layout"))
        };
        let Product { m, n, k, .. } = *product;
        let (a, b) =
            (layout(kind.types[0], m, k, kind.transposed[0])?, layout(kind.types[0], k, n, kind.transposed[1])?);
        let out = layout(kind.types[1], m, n, false)?;
        match self.search(kind, description, [a, b, out]) {
            Ok(found) => {
                Ok(found.map(|(algorithm, workspace)| Way { product: description, a, b, out, algorithm, workspace }))
            }
            Err(e) if is_out_of_memory(&e) => Err(e),
            Err(e) => bail!("{} with addresses aligned to {:?}: {e}", product.words(), kind.aligned),
        }
    }

    #[expect(unsafe_code, reason = "FFI")]
    fn search(
        &self,
        kind: &Kind,
        description: sys::cublasLtMatmulDesc_t,
        [a, b, out]: [sys::cublasLtMatrixLayout_t; 3],
    ) -> Result<Option<(sys::cublasLtMatmulAlgo_t, usize)>> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Preference;
        let preference = result::create_matmul_pref().map_err(named("a preference"))?;
        prefer(preference, Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &self.bytes())?;
        for (attribute, aligned) in [
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, kind.aligned[0]),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, kind.aligned[1]),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, kind.aligned[2]),
            // Of the bias, too: some versions take what they know of D's.
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, kind.aligned[2].min(kind.aligned[3])),
        ] {
            prefer(preference, attribute, &aligned)?;
        }
        if kind.types[1] == DType::BF16 {
            // Parts of a sum are not rounded to the output's type before they are added.
            let scheme = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
            prefer(preference, Preference::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &scheme)?;
        }
        // SAFETY: all that is given was made just now and lives.
        let found = unsafe { result::get_matmul_algo_heuristic(self.handle, description, a, b, out, out, preference) };
        // SAFETY: made above, and used by nothing else.
        unsafe { result::destroy_matmul_pref(preference).map_err(named("a preference"))? }
        match found {
            Ok(found) => Ok(Some((found.algo, found.workspaceSize))),
            Err(CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED)) => Ok(None),
            Err(error) if kind.epilogue != 0 && is_no_way(error) => Ok(None),
            Err(error) => Err(named("the search for an algorithm")(error)),
        }
    }
}

impl Gpu {
    /// Multiplies on the compute stream.
    ///
    /// # Safety
    /// As `try_multiply`.
    ///
    /// # Errors
    /// As `try_multiply`, and if there is no algorithm.
    #[expect(unsafe_code, reason = "FFI")]
    pub unsafe fn multiply(&self, product: &Product) -> Result<()> {
        // SAFETY: the caller's promise.
        if unsafe { self.try_multiply(product)? } {
            return Ok(());
        }
        bail!("cuBLASLt has no algorithm for {} with {:?}", product.words(), product.kind(self.tf32()).aligned)
    }

    /// Multiplies on the compute stream. `false`, and nothing done, if cuBLASLt has no algorithm for these types, sizes, alignments
    /// and epilogue.
    ///
    /// # Safety
    /// The addresses have as many elements of their types as the sizes say, on this device.
    ///
    /// # Errors
    /// That of cuBLASLt, or if memory is short.
    #[expect(unsafe_code, reason = "FFI")]
    pub unsafe fn try_multiply(&self, product: &Product) -> Result<bool> {
        if product.m == 0 || product.n == 0 {
            return Ok(true);
        }
        if product.a.dtype != product.b.dtype {
            bail!("a product of {:?} and {:?}", product.a.dtype, product.b.dtype)
        }
        if let Epilogue::Bias(bias) | Epilogue::GeluAux { bias, .. } = product.epilogue
            && !bias.is_multiple_of(WHOLE)
        {
            return Ok(false);
        }
        let mut products = self.products()?.lock().unwrap_or_else(PoisonError::into_inner);
        let kind = product.kind(self.tf32());
        let way = if let Some(way) = products.ways.get(&kind) {
            *way
        } else {
            let way = products.find(product, &kind)?;
            products.ways.insert(kind, way);
            way
        };
        let Some(way) = way else { return Ok(false) };
        point(way.product, product.epilogue)?;
        let (one, beta) = (1.0_f32, if product.accumulate { 1.0_f32 } else { 0.0 });
        let at = |address: u64| address as *mut c_void;
        let workspace = at(address(&products.workspace)?);
        let stream = self.stream();
        stream.context().bind_to_thread().map_err(super::driver)?;
        // SAFETY: descriptions and algorithm were made for these sizes, types and alignments; the caller answers for the
        // addresses; the workspace has what was preferred; factors are on the host, which is the default, and copied.
        let done = unsafe {
            result::matmul(
                products.handle,
                way.product,
                std::ptr::from_ref(&one).cast(),
                std::ptr::from_ref(&beta).cast(),
                at(product.a.address),
                way.a,
                at(product.b.address),
                way.b,
                at(product.out.address),
                way.out,
                at(product.out.address),
                way.out,
                std::ptr::from_ref(&way.algorithm),
                workspace,
                way.workspace,
                stream.cu_stream().cast(),
            )
        };
        match done {
            Ok(()) => Ok(true),
            // Nothing was launched: it is a check of arguments that failed.
            Err(status) if kind.epilogue != 0 && is_no_way(status) => {
                products.ways.insert(kind, None);
                Ok(false)
            }
            Err(status) => Err(self.failed(&product.words(), status)),
        }
    }

    /// Makes the library's handle, which may wait for all that runs on the GPU: to be called before anything does.
    ///
    /// # Errors
    /// That of cuBLASLt, or if memory is short.
    pub(super) fn prepare_products(&self) -> Result<()> {
        self.products().map(drop)
    }

    fn products(&self) -> Result<&Mutex<Products>> {
        if let Some(products) = self.blaslt.0.get() {
            return Ok(products);
        }
        let new = Mutex::new(Products::new(self)?);
        Ok(self.blaslt.0.get_or_init(|| new))
    }

    /// On a device without room for its kernels the library says anything.
    fn failed(&self, what: &str, status: CublasError) -> candle_core::Error {
        use sys::cublasStatus_t as Status;
        const KERNELS: usize = 64 << 20;
        let any = matches!(
            status.0,
            Status::CUBLAS_STATUS_INTERNAL_ERROR
                | Status::CUBLAS_STATUS_EXECUTION_FAILED
                | Status::CUBLAS_STATUS_NOT_INITIALIZED
        );
        let full = || self.stream().context().mem_get_info().is_ok_and(|(free, _)| free < KERNELS);
        if any && full() {
            let what = format!("{what}: {status} where less than {} MiB are free", KERNELS >> 20);
            return refused(&what, CublasError(Status::CUBLAS_STATUS_ALLOC_FAILED));
        }
        refused(what, status)
    }
}
