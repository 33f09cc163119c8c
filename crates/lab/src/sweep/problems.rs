//! Mistakes of several points, each said once.

use std::fmt::Write as _;

use runner_spec::diagnostic::ConfigError;

/// At most this many mistakes are shown.
const SHOWN: usize = 30;
/// At most this many points are named for one.
const NAMED: usize = 3;

/// What is wrong with which points.
#[derive(Debug, Default)]
pub struct PointProblems {
    all: Vec<Problem>,
}

#[derive(Debug)]
struct Problem {
    /// What makes two of them the same.
    key: String,
    text: String,
    points: Vec<usize>,
}

impl PointProblems {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// `point` has the mistake that `text` tells.
    pub fn add(&mut self, point: usize, text: &str) {
        self.note(point, text, || format!("error: {text}"));
    }

    /// `point` does not load.
    pub fn add_config(&mut self, point: usize, error: &ConfigError, color: bool) {
        for diagnostic in &error.diagnostics {
            let d = diagnostic;
            let key = format!("{}\n{}:{}\n{}\n{}\n{}", d.source, d.line, d.column, d.key, d.message, d.source_line);
            self.note(point, &key, || {
                let alone = ConfigError { diagnostics: vec![diagnostic.clone()] }.render(color);
                // The last line counts mistakes.
                alone.rsplit_once('\n').map_or(alone.clone(), |(text, _)| text.to_owned())
            });
        }
    }

    fn note(&mut self, point: usize, key: &str, text: impl FnOnce() -> String) {
        match self.all.iter_mut().find(|p| p.key == key) {
            Some(known) => {
                if known.points.last() != Some(&point) {
                    known.points.push(point);
                }
            }
            None => self.all.push(Problem { key: key.to_owned(), text: text(), points: vec![point] }),
        }
    }

    /// All of them, of a sweep of `total` points; `words` says what a point is, and is asked where one stands alone.
    #[must_use]
    pub fn render(&self, total: usize, words: impl Fn(usize) -> String) -> String {
        let mut out = String::new();
        for problem in self.all.iter().take(SHOWN) {
            let who = match problem.points.as_slice() {
                [one] if total > 1 => format!("point {one} ({})", words(*one)),
                points => these(points, total),
            };
            out.push_str(problem.text.trim_end());
            let _ = write!(out, "\n  in {who}\n\n");
        }
        let n = self.all.len();
        let count = if n == 1 { "1 mistake".to_owned() } else { format!("{n} mistakes") };
        let shown = if n > SHOWN { format!(", of which {SHOWN} are shown") } else { String::new() };
        let _ = write!(out, "{count} in the sweep's points{shown}; nothing was started");
        out
    }
}

/// `point 3`, `points 1, 3, 5 and 9 more`, `all 12 points`.
#[must_use]
pub fn these(points: &[usize], total: usize) -> String {
    let list = |points: &[usize]| points.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match points {
        [one] => format!("point {one}"),
        all if all.len() == total => format!("all {total} points"),
        [few @ .., last] if few.len() <= NAMED => format!("points {} and {last}", list(few)),
        many => {
            let named = many.get(..NAMED).unwrap_or(many);
            format!("points {} and {} more", list(named), many.len() - named.len())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_named_as_people_would() {
        assert_eq!(these(&[3], 9), "point 3");
        assert_eq!(these(&[1, 2], 9), "points 1 and 2");
        assert_eq!(these(&[1, 2, 3, 7], 9), "points 1, 2, 3 and 7");
        assert_eq!(these(&(1..=12).collect::<Vec<_>>(), 20), "points 1, 2, 3 and 9 more");
        assert_eq!(these(&[1, 2, 3], 3), "all 3 points");
    }

    #[test]
    fn a_mistake_of_several_points_is_said_once() {
        let mut problems = PointProblems::default();
        assert!(problems.is_empty());
        for point in [1, 2, 4] {
            problems.add(point, "too long");
        }
        problems.add(4, "too wide");
        let text = problems.render(9, |point| format!("lr={point}"));
        assert_eq!(
            text,
            "error: too long\n  in points 1, 2 and 4\n\nerror: too wide\n  in point 4 (lr=4)\n\n\
             2 mistakes in the sweep's points; nothing was started"
        );
    }
}
