//! The mistakes of a sweep's points, each reported once with the points that have it.

use std::fmt::{self, Display, Write as _};

use crate::points::{ExpandedPoint, describe_points};
use crate::record::describe_values;
use runner_spec::diagnostic::{ConfigError, Diagnostic};
use runner_spec::error::{Classified, ErrorKind, PlainError};
use runner_spec::format::counted;

/// The largest number of mistakes that are shown.
const MAX_SHOWN_PROBLEMS: usize = 30;

/// The mistakes of a sweep's points.
#[derive(Debug, Default)]
pub struct PointProblems {
    /// The number of points of the sweep.
    total: usize,
    /// Each mistake with the numbers and the values of the points that have it.
    problems: Vec<(Problem, Vec<(usize, String)>)>,
}

#[derive(Debug)]
enum Problem {
    Plain(PlainError),
    Diagnostic(Box<Diagnostic>),
}

impl Problem {
    /// True if both are one mistake, whatever the help for it.
    fn is_same(&self, other: &Self) -> bool {
        fn identity(d: &Diagnostic) -> (usize, usize, [&str; 4]) {
            (d.line, d.column, [&d.source, &d.source_line, &d.key, &d.message])
        }
        match (self, other) {
            (Self::Plain(a), Self::Plain(b)) => a == b,
            (Self::Diagnostic(a), Self::Diagnostic(b)) => identity(a) == identity(b),
            _ => false,
        }
    }
}

impl PointProblems {
    /// No mistakes yet, of a sweep with `total` points.
    pub(super) fn new(total: usize) -> Self {
        Self { total, problems: Vec::new() }
    }

    /// # Errors
    /// `self`, if there is a mistake.
    pub(super) fn into_result(self) -> Result<(), Self> {
        if self.problems.is_empty() { Ok(()) } else { Err(self) }
    }

    /// Adds a mistake of `point`.
    pub(super) fn add(&mut self, point: &ExpandedPoint, error: PlainError) {
        self.add_problem(point, Problem::Plain(error));
    }

    /// Adds the mistakes of a `point` that does not load.
    pub(super) fn add_config(&mut self, point: &ExpandedPoint, error: ConfigError) {
        for diagnostic in error.diagnostics {
            self.add_problem(point, Problem::Diagnostic(Box::new(diagnostic)));
        }
    }

    fn add_problem(&mut self, point: &ExpandedPoint, problem: Problem) {
        let point = (point.index, describe_values(&point.values));
        match self.problems.iter_mut().find(|(known, _)| known.is_same(&problem)) {
            Some((_, points)) if points.last() == Some(&point) => {}
            Some((_, points)) => points.push(point),
            None => self.problems.push((problem, vec![point])),
        }
    }

    /// The mistakes as text for a person.
    pub fn render(&self, color: bool) -> String {
        let mut out = String::new();
        for (problem, points) in self.problems.iter().take(MAX_SHOWN_PROBLEMS) {
            let text = match problem {
                Problem::Plain(error) => format!("error: {error}"),
                Problem::Diagnostic(diagnostic) => {
                    ConfigError { diagnostics: vec![(**diagnostic).clone()] }.render_mistakes(color)
                }
            };
            let points = match points.as_slice() {
                [(index, values)] if self.total > 1 => format!("point {index} ({values})"),
                several => describe_points(&several.iter().map(|(index, _)| *index).collect::<Vec<_>>(), self.total),
            };
            let _ = write!(out, "{}\n  in {points}\n\n", text.trim_end());
        }
        let n = self.problems.len();
        let shown =
            if n > MAX_SHOWN_PROBLEMS { format!(", of which {MAX_SHOWN_PROBLEMS} are shown") } else { String::new() };
        let _ = write!(out, "{} in the sweep's points{shown}; nothing was started", counted(n as u64, "mistake"));
        out
    }
}

impl Display for PointProblems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

impl std::error::Error for PointProblems {}

impl Classified for PointProblems {
    /// That of the gravest mistake.
    fn kind(&self) -> ErrorKind {
        let kinds = self.problems.iter().map(|(problem, _)| match problem {
            Problem::Plain(error) => error.kind,
            Problem::Diagnostic(diagnostic) => diagnostic.kind,
        });
        kinds.max_by_key(|kind| *kind as u8).unwrap_or(ErrorKind::Request)
    }

    fn report(&self, color: bool) -> Option<String> {
        Some(self.render(color))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_of_several_points_is_reported_once() {
        let point = |index: usize| ExpandedPoint { index, values: vec![("lr".to_owned(), index.into())] };
        let mut problems = PointProblems::new(9);
        for index in [1, 2, 4] {
            problems.add(&point(index), PlainError::request("too long"));
        }
        assert_eq!(problems.kind(), ErrorKind::Request);
        problems.add(&point(4), PlainError::failure("too wide"));
        assert_eq!(problems.kind(), ErrorKind::Failure);
        assert_eq!(
            problems.render(false),
            "error: too long\n  in points 1, 2 and 4\n\nerror: too wide\n  in point 4 (lr=4)\n\n\
             2 mistakes in the sweep's points; nothing was started"
        );
        assert!(problems.into_result().is_err() && PointProblems::new(1).into_result().is_ok());
    }
}
