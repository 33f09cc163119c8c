//! The facts about a session on which the bits of its numbers depend, besides its plan: program, how it reads text, processor, GPUs, libraries and variables.
//! `resume`, `reproduce` and `diff` compare them.

use std::fmt;

use runner_machine::doctor::{is_computing_variable, is_gpu_variable};
use runner_machine::platform::{GpuLibraries, GpuModel, Platform};
use runner_spec::format::{bytes, short_hash};

use runner_record::manifest::Session;

/// One fact about sessions.
#[derive(Debug, Clone, Copy)]
pub struct BitFact {
    pub name: &'static str,
    /// The parts of the fact about a session; `None` if the session does not record it, or does not have it.
    parts: fn(&Session) -> Option<Vec<String>>,
    /// The consequence of another value for the bits.
    pub meaning: &'static str,
}

/// The name of the fact about environment variables.
pub const VARIABLES: &str = "variables";

/// The name of the fact about how text is read, on which evaluations and samples depend, and no step of training.
pub const TEXT_READING: &str = "text reading";

/// All facts, in the order in which they are shown.
pub const BIT_FACTS: [BitFact; 14] = [
    BitFact {
        name: "program",
        parts: |session| {
            Some(session.version.clone()).filter(|version| !version.is_empty()).map(|version| vec![version])
        },
        meaning: "another version may compute in another order",
    },
    BitFact {
        name: "sources",
        parts: |session| of_platform(session, |p| p.source_hash.as_deref().map(|hash| short_hash(hash).to_owned())),
        meaning: "the program differs, and may compute in another order",
    },
    BitFact {
        name: TEXT_READING,
        parts: |session| Some(vec![format!("rule {}", session.text_reading())]),
        meaning: "items of multiple choice, prompts and contexts may be tokenized differently",
    },
    BitFact {
        name: "target",
        parts: |session| of_platform(session, |p| p.target.clone()),
        meaning: "another C library (glibc or musl) or compiler target rounds some functions differently",
    },
    BitFact {
        name: "processor",
        parts: |session| {
            let machine = &session.machine;
            let name = machine.cpu.as_ref().unwrap_or(&machine.arch);
            (!name.is_empty()).then(|| vec![name.clone()])
        },
        meaning: "sums inside matrix products may be split differently, by the sizes of the caches",
    },
    BitFact {
        name: "vectors",
        parts: |session| of_platform(session, |p| p.vector_instructions.clone()),
        meaning: "vectors of another width add in another order",
    },
    BitFact {
        name: "matrix products",
        parts: |session| of_platform(session, |p| p.matmul_instructions.clone()),
        meaning: "sums inside matrix products are split differently",
    },
    BitFact {
        name: "bf16 products",
        parts: |session| of_platform(session, |p| p.bf16_matmul_instructions.clone()),
        meaning: "sums inside products of bf16 matrices are rounded differently",
    },
    BitFact {
        name: "GPUs",
        parts: |session| session.platform.as_ref().map(|p| describe_gpus(&p.gpus)).filter(|gpus| !gpus.is_empty()),
        meaning: "another kind of GPU adds in another order",
    },
    BitFact {
        name: "GPU driver",
        parts: |session| of_libraries(session, |l| l.driver.clone()),
        meaning: "another driver may compile kernels differently",
    },
    BitFact {
        name: "CUDA",
        parts: |session| of_libraries(session, |l| l.cuda.clone()),
        meaning: "another CUDA may compile kernels differently",
    },
    BitFact {
        name: "cuBLASLt",
        parts: |session| of_libraries(session, |l| l.cublaslt.clone()),
        meaning: "another cuBLASLt may split sums inside matrix products otherwise",
    },
    BitFact {
        name: "NCCL",
        parts: |session| of_libraries(session, |l| l.nccl.clone()),
        meaning: "another NCCL may add gradients of ranks in another order",
    },
    BitFact {
        name: VARIABLES,
        parts: computing_variables,
        meaning: "these environment variables change which libraries compute, and how",
    },
];

fn of_platform(session: &Session, value: impl Fn(&Platform) -> Option<String>) -> Option<Vec<String>> {
    session.platform.as_ref().and_then(value).map(|value| vec![value])
}

fn of_libraries(session: &Session, value: impl Fn(&GpuLibraries) -> Option<String>) -> Option<Vec<String>> {
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

/// The variables of GPUs count for sessions on GPUs. Sessions of older versions recorded their own variables alone: nothing is known about
/// the others.
fn computing_variables(session: &Session) -> Option<Vec<String>> {
    let has_gpus = session.platform.as_ref()?.gpu_libraries.is_some();
    let counts = |name: &str| is_computing_variable(name) && (has_gpus || !is_gpu_variable(name));
    let variables = session.environment.iter().filter(|(name, _)| counts(name));
    Some(variables.map(|(name, value)| format!("{name}={value}")).collect())
}

impl BitFact {
    /// The value for `session`; `None` if it is not recorded.
    pub fn value(&self, session: &Session) -> Option<String> {
        (self.parts)(session).map(|parts| describe_parts(&parts))
    }

    /// The value for `session` without the parts that `other` has, too; the whole value if it is not recorded for `other`.
    pub fn value_beside(&self, session: &Session, other: &Session) -> Option<String> {
        let (mut parts, others) = ((self.parts)(session)?, (self.parts)(other).unwrap_or_default());
        if parts != others {
            parts.retain(|part| !others.contains(part));
        }
        Some(describe_parts(&parts))
    }

    /// The change from `was` to `is`; `None` if there is none, or one of them does not record the fact.
    fn change(&self, was: &Session, is: &Session) -> Option<FactChange> {
        let differs = (self.parts)(was)? != (self.parts)(is)?;
        let (was, is) = (self.value_beside(was, is)?, self.value_beside(is, was)?);
        differs.then_some(FactChange { name: self.name, was, is, meaning: self.meaning })
    }
}

fn describe_parts(parts: &[String]) -> String {
    if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
}

/// A fact that differs between two sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FactChange {
    pub name: &'static str,
    pub was: String,
    pub is: String,
    pub meaning: &'static str,
}

impl FactChange {
    /// What the change means for a run that is resumed.
    pub fn consequence(&self) -> &'static str {
        if self.name == TEXT_READING {
            "evaluations and samples before and after it may not compare"
        } else {
            "the run may end in other bits than without the interruption"
        }
    }
}

impl fmt::Display for FactChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}, was {}: {}", self.name, self.is, self.was, self.meaning)
    }
}

/// The facts that both sessions record and that differ.
pub fn fact_changes(was: &Session, is: &Session) -> Vec<FactChange> {
    BIT_FACTS.iter().filter_map(|fact| fact.change(was, is)).collect()
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
    fn each_fact_that_differs_is_said_with_its_meaning() {
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
            said[0].starts_with("target: x86_64-unknown-linux-musl, was x86_64-unknown-linux-gnu: another C library")
        );
        assert!(said[1].starts_with("GPUs: H200, 80.0 GiB, compute capability 9.0, was 2 × H100, "), "{}", said[1]);
        assert!(said[2].starts_with("cuBLASLt: 13.1.0, was 13.0.0: "));
        assert!(said[3].starts_with("variables: CUDA_X=2, was CUDA_X=1: "), "{}", said[3]);
    }

    #[test]
    fn sessions_without_a_rule_of_reading_text_had_the_first_one() {
        let rule = |text_reading_rule| Session { version: "1".to_owned(), text_reading_rule, ..Session::default() };
        assert_eq!(fact_changes(&rule(None), &rule(Some(1))), []);
        let changes = fact_changes(&rule(None), &rule(Some(2)));
        assert!(
            changes[0].to_string().starts_with("text reading: rule 2, was rule 1: items of multiple choice, "),
            "{changes:?}"
        );
        assert_eq!(changes[0].consequence(), "evaluations and samples before and after it may not compare");
    }

    #[test]
    fn nothing_is_said_about_what_is_not_recorded() {
        let old = Session { version: "1".to_owned(), ..Session::default() };
        let platform = Platform { source_hash: Some("0123456789ab".to_owned()), ..Platform::default() };
        let new = session(platform, &[("LD_PRELOAD", "a.so"), ("NCCL_ALGO", "Ring")]);
        assert_eq!(fact_changes(&old, &new), []);
        assert_eq!(fact_changes(&new, &old), []);
        let unset = session(Platform::default(), &[]);
        let changes = fact_changes(&unset, &new);
        assert!(
            changes.len() == 1 && changes[0].to_string().starts_with("variables: LD_PRELOAD=a.so, was none"),
            "{changes:?}"
        );
    }
}
