//! The facts about a session besides its plan: program, how it reads text, processor, GPUs, libraries and variables. Bits may depend on them.

use serde_json::Value;

use super::facts::{Fact, FactChange, Meaning};
use runner_machine::doctor::{is_computing_variable, is_gpu_variable};
use runner_machine::platform::{GpuLibraries, GpuModel, Platform};
use runner_record::manifest::Session;
use runner_spec::format::{bytes, short_hash};

use Meaning::Bits;

/// The name of the fact about how text is read, on which evaluations and samples depend, and no step of training.
const TEXT_READING: &str = "text reading";

/// The facts about the program.
pub(super) const PROGRAM_FACTS: [Fact<Session>; 4] = [
    Fact::new("program", Bits("a different version may compute in a different order"), |session| {
        known_text(&session.version)
    }),
    Fact::new("sources", Bits("the program differs, and may compute in a different order"), |session| {
        of_platform(session, |p| p.source_hash.as_deref().map(|hash| short_hash(hash).to_owned()))
    }),
    Fact::new(
        TEXT_READING,
        Bits("items of multiple choice, prompts and contexts may be tokenized differently"),
        |session| Some(format!("rule {}", session.text_reading_rule).into()),
    ),
    Fact::new(
        "target",
        Bits("a different C library (glibc or musl) or compiler target rounds some functions differently"),
        |session| of_platform(session, |p| p.target.clone()),
    ),
];

/// The facts about the machine.
pub(super) const MACHINE_FACTS: [Fact<Session>; 13] = [
    Fact::new(
        "processor",
        Bits("sums inside matrix products may be split differently, by the sizes of the caches"),
        |session| known_text(session.machine.cpu.as_ref().unwrap_or(&session.machine.arch)),
    ),
    Fact::new("vectors", Bits("vectors of a different width add in a different order"), |session| {
        of_platform(session, |p| p.vector_instructions.clone())
    }),
    Fact::new("matrix products", Bits("sums inside matrix products are split differently"), |session| {
        of_platform(session, |p| p.matmul_instructions.clone())
    }),
    Fact::new(
        "bf16 products",
        Bits("sums inside products of bf16 matrices are rounded differently; RUNNER_BF16_PRODUCTS chooses how"),
        |session| of_platform(session, |p| p.bf16_matmul_instructions.clone()),
    ),
    Fact::new("GPUs", Bits("a different kind of GPU adds in a different order"), |session| {
        session.platform.as_ref().map(|p| describe_gpus(&p.gpus).into())
    }),
    Fact::new("GPU driver", Bits("a different driver may compile kernels differently"), |session| {
        of_libraries(session, |l| l.driver.clone())
    }),
    Fact::new("CUDA", Bits("a different version of CUDA may compile kernels differently"), |session| {
        of_libraries(session, |l| l.cuda.clone())
    }),
    Fact::new(
        "cuBLASLt",
        Bits(
            "a different version of cuBLASLt may split sums inside matrix products \
        differently",
        ),
        |session| of_libraries(session, |l| l.cublaslt.clone()),
    ),
    Fact::new("NCCL", Bits("a different version of NCCL may add gradients of ranks in a different order"), |session| {
        of_libraries(session, |l| l.nccl.clone())
    }),
    Fact::new("cores", Meaning::None, |s| Some(s.machine.cores).filter(|&n| n > 0).map(Into::into)),
    Fact::new("memory bytes", Meaning::None, |s| s.machine.memory_bytes.map(Into::into)),
    // Any number of threads gives the same bits.
    Fact::new("threads", Meaning::None, |s| Some(s.threads).filter(|&n| n > 0).map(Into::into)),
    Fact::new("system", Meaning::None, |s| known_text(&s.machine.os)),
];

/// The variables of GPUs count for sessions on GPUs.
const VARIABLES: Fact<Session> =
    Fact::new("variables", Bits("these environment variables change which libraries compute, and how"), |session| {
        let has_gpus = session.platform.as_ref()?.gpu_libraries.is_some();
        let counts = |name: &str| is_computing_variable(name) && (has_gpus || !is_gpu_variable(name));
        let variables = session.environment.iter().filter(|(name, _)| counts(name));
        Some(variables.map(|(name, value)| format!("{name}={value}")).collect())
    });

/// The name of the fact about the division of the work among ranks.
pub const LAYOUT: &str = "layout";

const LAYOUT_FACT: Fact<Session> = Fact::new(LAYOUT, Bits("a different layout adds in a different order"), |session| {
    session.layout.as_ref().map(|layout| layout.describe_sums().into())
});

/// The facts on which bits depend, in the order in which they are shown.
pub(super) fn bit_facts() -> impl Iterator<Item = &'static Fact<Session>> {
    let facts = PROGRAM_FACTS.iter().chain(&MACHINE_FACTS).chain([&VARIABLES, &LAYOUT_FACT]);
    facts.filter(|fact| fact.meaning != Meaning::None)
}

/// The changes between two sessions on which bits may depend.
#[must_use]
pub fn fact_changes(was: &Session, is: &Session) -> Vec<FactChange> {
    bit_facts().filter_map(|fact| fact.change(was, is)).collect()
}

/// What `change` means for a run that is resumed.
#[must_use]
pub fn describe_consequence(change: &FactChange) -> &'static str {
    if change.name == TEXT_READING {
        "evaluations and samples before and after the change may not be comparable"
    } else {
        "the final bits may differ from those of an uninterrupted run"
    }
}

fn known_text(text: &str) -> Option<Value> {
    (!text.is_empty()).then(|| text.into())
}

fn of_platform(session: &Session, value: impl Fn(&Platform) -> Option<String>) -> Option<Value> {
    session.platform.as_ref().and_then(value).map(Into::into)
}

fn of_libraries(session: &Session, value: impl Fn(&GpuLibraries) -> Option<String>) -> Option<Value> {
    of_platform(session, |p| p.gpu_libraries.as_ref().and_then(&value))
}

/// Each kind of GPU, with its number if there are several.
fn describe_gpus(gpus: &[GpuModel]) -> Vec<String> {
    gpus.chunk_by(|a, b| a == b)
        .filter_map(|equal| {
            let GpuModel { name, memory_bytes, compute_capability } = equal.first()?;
            let count = if equal.len() > 1 { format!("{} × ", equal.len()) } else { String::new() };
            Some(format!("{count}{name}, {}, compute capability {compute_capability}", bytes(*memory_bytes)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(platform: Platform, environment: &[(&str, &str)]) -> Session {
        let environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Session { version: "1".to_owned(), platform: Some(platform), environment, ..Session::default() }
    }

    fn gpu(name: &str) -> GpuModel {
        GpuModel { name: name.to_owned(), memory_bytes: 80 << 30, compute_capability: "9.0".to_owned() }
    }

    #[test]
    fn each_fact_that_differs_is_shown_with_its_meaning() {
        let was = Platform {
            target: Some("x86_64-unknown-linux-gnu".to_owned()),
            source_hash: Some("0123456789abcdef".to_owned()),
            vector_instructions: Some("AVX2".to_owned()),
            matmul_instructions: Some("FMA".to_owned()),
            bf16_matmul_instructions: None,
            gpus: vec![gpu("H100"), gpu("H100")],
            gpu_libraries: Some(GpuLibraries { cublaslt: Some("13.0.0".to_owned()), ..GpuLibraries::default() }),
        };
        let is = Platform {
            target: Some("x86_64-unknown-linux-musl".to_owned()),
            gpus: vec![gpu("H200")],
            gpu_libraries: Some(GpuLibraries { cublaslt: Some("13.1.0".to_owned()), ..GpuLibraries::default() }),
            ..was.clone()
        };
        let was = session(was, &[("NCCL_ALGO", "Ring"), ("CUDA_X", "1"), ("RANK", "0"), ("RUNNER_RUNS", "a")]);
        let is = session(is, &[("NCCL_ALGO", "Ring"), ("CUDA_X", "2"), ("RANK", "1"), ("RUNNER_RUNS", "b")]);
        assert_eq!(fact_changes(&was, &was), []);
        let said: Vec<String> = fact_changes(&was, &is).iter().map(ToString::to_string).collect();
        assert_eq!(said.len(), 4, "{said:#?}");
        assert!(
            said[0]
                .starts_with("target: x86_64-unknown-linux-musl, was x86_64-unknown-linux-gnu: a different C library")
        );
        assert!(said[1].starts_with("GPUs: H200, 80.0 GiB, compute capability 9.0, was 2 × H100, "), "{}", said[1]);
        assert!(said[2].starts_with("cuBLASLt: 13.1.0, was 13.0.0: "));
        assert!(said[3].starts_with("variables: CUDA_X=2, was CUDA_X=1: "), "{}", said[3]);
    }

    #[test]
    fn a_changed_rule_of_reading_text_is_named() {
        let rule = |text_reading_rule| Session { version: "1".to_owned(), text_reading_rule, ..Session::default() };
        assert_eq!(fact_changes(&rule(1), &rule(1)), []);
        let changes = fact_changes(&rule(1), &rule(2));
        assert!(
            changes[0].to_string().starts_with("text reading: rule 2, was rule 1: items of multiple choice, "),
            "{changes:?}"
        );
        assert_eq!(
            describe_consequence(&changes[0]),
            "evaluations and samples before and after the change may not \
            be comparable"
        );
    }

    #[test]
    fn facts_that_are_not_recorded_are_not_compared() {
        let old = Session { version: "1".to_owned(), ..Session::default() };
        let platform = Platform { source_hash: Some("0123456789ab".to_owned()), ..Platform::default() };
        let new = session(platform, &[("LD_PRELOAD", "a.so"), ("NCCL_ALGO", "Ring")]);
        assert_eq!(fact_changes(&old, &new), []);
        assert_eq!(fact_changes(&new, &old), []);
        let unset = session(Platform::default(), &[]);
        let changes: Vec<String> = fact_changes(&unset, &new).iter().map(ToString::to_string).collect();
        // Without GPUs, those of GPUs do not count. The sources of one program are unknown.
        assert_eq!(changes.len(), 1, "{changes:?}");
        assert!(changes[0].starts_with("variables: LD_PRELOAD=a.so, was none: "), "{changes:?}");
    }

    #[test]
    fn a_gpu_that_one_session_lacks_is_a_change_and_its_libraries_are_not() {
        let libraries = GpuLibraries { cuda: Some("13.0".to_owned()), ..GpuLibraries::default() };
        let gpus = vec![gpu("H100")];
        let with = session(Platform { gpus, gpu_libraries: Some(libraries), ..Platform::default() }, &[]);
        let instructions = Some("AMX_BF16".to_owned());
        let bf16 = session(Platform { bf16_matmul_instructions: instructions, ..Platform::default() }, &[]);
        let changes: Vec<String> = fact_changes(&with, &bf16).iter().map(ToString::to_string).collect();
        assert_eq!(changes.len(), 1, "{changes:?}");
        assert!(changes[0].starts_with("GPUs: none, was H100, 80.0 GiB, "), "{changes:?}");
    }
}
