//! The features that can be used here, and what the others lack: a pure function of the facts.

use serde::Serialize;

use super::build_facts::BuildFacts;
use super::driver::DriverFacts;
use super::library::{CUBLAS_LT, Library, LibraryFacts, NCCL};
use crate::gpu_facts::GpuFacts;
use runner_spec::cluster::ComputeCapability;

/// A feature that a user may want.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Feature {
    pub name: &'static str,
    pub ready: bool,
    /// The missing requirements, and how to get them.
    pub missing: Vec<Missing>,
}

/// One thing that is missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Missing {
    pub what: String,
    /// A command, or advice.
    pub mend: String,
}

/// The kernels have code for GPUs from A100 on, which compute in bf16 and TF32.
pub(super) fn features(build: &BuildFacts, driver: &DriverFacts, libraries: &[LibraryFacts]) -> Vec<Feature> {
    let mut one = on_one_gpu(build, driver, libraries);
    let mut several = one.clone();
    if build.cuda.is_some() && !build.nccl {
        several.push(missing("this build has no NCCL".to_owned(), "make cuda"));
    }
    several.extend(missing_library(&NCCL, driver, libraries));
    if driver.gpus.len() == 1 {
        let mend = "use a machine with several GPUs, or several nodes with one each";
        several.push(missing("there is one GPU".to_owned(), mend));
    }
    let is_old = |gpu: &&GpuFacts| gpu.compute_capability < ComputeCapability::MINIMUM;
    let old: Vec<Missing> = driver.gpus.iter().filter(is_old).map(outdated_gpu).collect();
    if old.len() == driver.gpus.len() {
        one.extend(old.clone());
    }
    several.extend(old);
    [("training on the CPU", Vec::new()), ("training on one GPU", one), ("training on several GPUs (NCCL)", several)]
        .map(|(name, missing)| Feature { name, ready: missing.is_empty(), missing })
        .into()
}

fn on_one_gpu(build: &BuildFacts, driver: &DriverFacts, libraries: &[LibraryFacts]) -> Vec<Missing> {
    let mut all = Vec::new();
    if build.cuda.is_none() {
        all.push(missing("this build has no CUDA".to_owned(), "make cuda"));
    }
    if driver.gpus.is_empty() {
        let what = driver.error.clone().unwrap_or_else(|| "the driver shows no GPU".to_owned());
        let mend = match (&driver.cuda, &driver.version) {
            // The kernel's module is there without its library: a container that was started without GPUs.
            (None, Some(_)) => "start the container with its GPUs (docker run --gpus all), or install libcuda.so.1",
            (None, None) => "install NVIDIA's driver (Debian, Ubuntu: apt-get install nvidia-driver)",
            (Some(_), _) => "nvidia-smi must list a GPU; CUDA_VISIBLE_DEVICES must not hide it",
        };
        all.push(missing(format!("no GPU: {what}"), mend));
    }
    all.extend(outdated_driver(build.cuda, driver.cuda.as_deref()));
    all.extend(missing_library(&CUBLAS_LT, driver, libraries));
    all
}

fn outdated_gpu(gpu: &GpuFacts) -> Missing {
    let oldest = ComputeCapability::MINIMUM;
    let what = format!(
        "GPU {} ({}) has compute capability {}, but must have at least {oldest}",
        gpu.index, gpu.name, gpu.compute_capability
    );
    missing(what, "choose a different GPU with CUDA_VISIBLE_DEVICES")
}

/// The driver, if it is older than the CUDA of the compiler: then it cannot read the kernels.
pub(super) fn outdated_driver(built: Option<&str>, driver: Option<&str>) -> Option<Missing> {
    let number = |text: &str| {
        let (major, minor) = text.split_once('.')?;
        Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?))
    };
    let (built, runs) = (built?, driver?);
    (number(runs)? < number(built)?).then(|| {
        let mend =
            format!("update the driver, or build with CUDA {runs}: NVCC=/usr/local/cuda-{runs}/bin/nvcc make cuda");
        Missing { what: format!("the driver supports CUDA up to {runs}, but this build uses CUDA {built}"), mend }
    })
}

fn missing_library(wanted: &Library, driver: &DriverFacts, libraries: &[LibraryFacts]) -> Option<Missing> {
    let found = libraries.iter().find(|found| found.name == wanted.name)?;
    let error = found.error.as_ref()?;
    // The packages of CUDA 13 have no number in their names, but for NCCL's.
    let cuda_12 = driver.cuda.as_deref().is_some_and(|version| version.starts_with("12."));
    let package = match (wanted.name, cuda_12) {
        ("libnccl", true) => "nvidia-nccl-cu12",
        ("libnccl", false) => "nvidia-nccl-cu13",
        (_, true) => "nvidia-cublas-cu12",
        (_, false) => "nvidia-cublas",
    };
    let folder = r#"export RUNNER_CUDA_LIBS=$(python3 -c "import nvidia; print(*nvidia.__path__, sep=':')")"#;
    Some(missing(format!("{}: {error}", wanted.name), &format!("pip install {package}; {folder}")))
}

fn missing(what: String, mend: &str) -> Missing {
    Missing { what, mend: mend.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(index: usize, capability: (u32, u32)) -> GpuFacts {
        GpuFacts { index, ..crate::testing::gpu("X100", capability, 132, [0, 0], 0) }
    }

    fn driver(gpus: Vec<GpuFacts>, cuda: &str) -> DriverFacts {
        DriverFacts { cuda: Some(cuda.to_owned()), gpus, ..DriverFacts::default() }
    }

    fn libraries(lacks: &[&str]) -> Vec<LibraryFacts> {
        let facts = |name: &'static str| {
            let error = lacks.contains(&name).then(|| "not there".to_owned());
            LibraryFacts { name, version: None, path: None, error }
        };
        [CUBLAS_LT.name, NCCL.name].map(facts).into()
    }

    const FULL: BuildFacts = BuildFacts { version: "1", cuda: Some("13.0"), nccl: true };

    /// The first words of what each feature lacks.
    fn verdicts(build: &BuildFacts, driver: &DriverFacts, lacks: &[&str]) -> Vec<String> {
        let all = features(build, driver, &libraries(lacks));
        all.iter().map(|f| f.missing.iter().map(|m| m.what.as_str()).collect::<Vec<_>>().join("; ")).collect()
    }

    #[test]
    fn everything_is_there() {
        let two = driver(vec![gpu(0, (9, 0)), gpu(1, (8, 0))], "13.0");
        assert_eq!(verdicts(&FULL, &two, &[]), [""; 3]);
    }

    #[test]
    fn each_lack_is_named_where_it_counts() {
        let one = driver(vec![gpu(0, (9, 0))], "13.1");
        let lacks = "libnccl: not there; there is one GPU";
        assert_eq!(verdicts(&FULL, &one, &["libnccl"]), ["", "", lacks]);
        let without = BuildFacts { cuda: None, nccl: false, ..FULL };
        assert!(verdicts(&without, &one, &[])[1..].iter().all(|v| v.starts_with("this build has no CUDA")));
        let old = verdicts(&FULL, &driver(vec![gpu(0, (7, 5)), gpu(1, (9, 0))], "13.0"), &["libcublasLt"]);
        let small = "GPU 0 (X100) has compute capability 7.5, but must have at least 8.0";
        assert_eq!(old[2], format!("libcublasLt: not there; {small}"));
        assert_eq!(old[1], "libcublasLt: not there", "GPU 1 will do");
        assert_eq!(verdicts(&FULL, &driver(vec![gpu(0, (7, 5))], "13.0"), &[])[1], small);
        let none = DriverFacts { error: Some("no libcuda.so.1".to_owned()), ..DriverFacts::default() };
        assert_eq!(verdicts(&FULL, &none, &[])[1], "no GPU: no libcuda.so.1");
    }

    #[test]
    fn the_driver_must_be_as_new_as_the_compiler() {
        assert_eq!(outdated_driver(Some("13.0"), Some("13.0")), None);
        assert_eq!(outdated_driver(Some("12.9"), Some("12.10")), None, "not as text");
        assert_eq!(outdated_driver(None, Some("12.0")), None);
        assert!(outdated_driver(Some("13.0"), Some("12.8")).unwrap().mend.contains("/usr/local/cuda-12.8/"));
    }

    #[test]
    fn packages_go_by_the_drivers_cuda() {
        let mend = |cuda: &str, name: &'static str| {
            let all = features(&FULL, &driver(vec![gpu(0, (9, 0))], cuda), &libraries(&[name]));
            all[2].missing.iter().find(|m| m.what.starts_with(name)).unwrap().mend.clone()
        };
        assert!(mend("12.8", "libcublasLt").starts_with("pip install nvidia-cublas-cu12;"));
        assert!(mend("13.0", "libcublasLt").starts_with("pip install nvidia-cublas;"));
        assert!(mend("13.0", "libnccl").starts_with("pip install nvidia-nccl-cu13;"));
    }
}
