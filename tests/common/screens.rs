//! What users see, as snapshots keep it: the same on every machine, at any speed.

use std::sync::{LazyLock, Mutex};

use regex::{Captures, Regex};

use super::{Arguments, Finished, Sandbox};

impl Sandbox {
    /// Runs a command that must end with this exit code, returns everything it printed, and keeps it for [`screens`](Self::screens).
    #[track_caller]
    pub fn show(&self, code: i32, arguments: &(impl Arguments + ?Sized)) -> String {
        self.keep(self.run(arguments).expect_code(code)).text()
    }

    /// A sandbox with the same folder, and its own screens.
    pub fn share_folder(&self) -> Self {
        Self { folder: self.folder.clone(), shown: Mutex::default() }
    }

    /// Keeps what a command printed for [`screens`](Self::screens).
    pub fn keep(&self, finished: Finished) -> Finished {
        let code = if finished.code == 0 { String::new() } else { format!("[exit code {}]\n", finished.code) };
        let text = finished.text();
        let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        let shown = ["$ runner ", &finished.arguments, "\n", &text, end, &code, "\n"].concat();
        self.shown.lock().unwrap().push_str(&shown);
        finished
    }

    /// The commands that were kept and what they printed, as a terminal would show them, without what differs between machines and runs.
    pub fn screens(&self) -> String {
        screen(&self.shown.lock().unwrap())
    }
}

/// What differs between runs and machines, and what a snapshot has in its place. Applied in this order.
static FILTERS: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    let [repository, version] = [env!("CARGO_MANIFEST_DIR"), env!("CARGO_PKG_VERSION")].map(regex::escape);
    let filters = [
        // Folders.
        (repository.as_str(), "[repository]"),
        (r"(/[\w.+-]+)*/\.tmp[A-Za-z0-9]{6}\b", "[folder]"),
        // The mark below a path is as long as the path.
        (r"(?m)(\| .*\[(?:folder|repository)\].*\n *\| +)\^+", "${1}^"),
        (r"127\.0\.0\.1:\d+", "127.0.0.1:[port]"),
        (r"tfevents\.\d+", "tfevents.[time]"),
        // Times, durations and rates. A star marks the best of a column.
        (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?(\.\d+)?Z?", "[date]"),
        (r"(?m)^( *phases ).*$", "${1} [times]"),
        (r"\*?\d[\d.,]* (tokens/s|tok/s|MB/s|M tokens/s)", "[rate] ${1}"),
        (r"\*?\b\d[\d.,]* (h \d+ min|min \d+ s|d \d+ h|ns|µs|ms|s|min|h)\b", "[time]"),
        // Memory, and the rate in the column before it.
        (r"\*?\b\d[\d.,]* ([KMGT]i)?B\b", "[size]"),
        (r"\*?\b[\d,]+ +\[size\] +\[time\]", "[rate]  [size]  [time]"),
        (r"\b[\d,]{3,} +\[date\]", "[rate]  [date]"),
        (r"(?m)^(  tokens/s +)[\d,]+( +)[\d,]+$", "${1}[rate]${2}[rate]"),
        // The machine, and the program.
        (r"\bcpu: [^,\n]+, \d+ threads?", "cpu: [processor], [threads]"),
        (r"(?m)^(ranks +\d.*); [^;\n]+$", "${1}; [processor]"),
        (r"the speed of .* or of its links", "the speed of [processor] or of its links"),
        (r"\b\d+ threads?\b", "[threads]"),
        (r"\b\d+ cores?\b", "[cores]"),
        (r"(?m)^(  (machine|environment) +).*$", "${1}[machine]"),
        (
            r"(?m)^(drift +(program|sources|target|processor|vectors|matrix products|bf16 products|kernels|variables|git) +same).*$",
            "${1} [machine]",
        ),
        (r"\b(pid|process) \d+", "${1} [pid]"),
        (r"(?m)^(drift +threads +).*$", "${1}[threads]"),
        (version.as_str(), "[version]"),
        // A file of numbers, which have different lengths, was cut at half of its length.
        (r"EOF while parsing an? \w+ at line \d+ column \d+", "EOF while parsing [at the cut]"),
        // How many runs of a killed sweep had ended or begun.
        (r"(?m)^(sweep +\S+: )\d+ of \d+ runs done, \d+ started", "${1}[runs done and started]"),
        // Losses, whose last digits depend on the processor, and what is computed from them.
        (
            r"\b(loss|mean|perplexity|norm|bits/byte|best|val_loss|val_bits_per_byte|train_loss|average)(:? +)\*?\d+\.\d+",
            "${1}${2}[n]",
        ),
        (r"standard errors? [\d.]+( to [\d.]+)?", "standard error [n]"),
        (r"\[n\] to [\d.]+", "[n]"),
        (r"\(SE [\d.]+%?\)", "(SE [n])"),
        (r"is lower by [\d.]+ (on .*, 95%) [\d.-]+ to [\d.-]+", "is lower by [n] ${1} [n] to [n]"),
        (r"\d[\d.]* ± ", "[n] ± "),
        (r"\b(acc|acc_norm|acc_norm_chars) \d+\.\d+%", "${1} [n]%"),
        (r"(?m)^(  \S+ +)\d+\.\d%", "${1}[n]%"),
        (r"± [\d.]+", "± [n]"),
        (r"\bp (< )?[\d.e-]+\)", "p [n])"),
        (r"95% -?[\d.]+ to -?[\d.]+", "95% [n] to [n]"),
        (r"\bby [\d.]+ \((95%|p)", "by [n] (${1}"),
        (r"`seeds: \[[\d, .]+\]` \(\d+ runs\)", "`seeds: [n]` ([n] runs)"),
        (r"a difference of [\d.e-]+", "a difference of [n]"),
        (r"(to \S+) \([\d.]+ to [\d.]+\)", "${1} ([n] to [n])"),
        (r"relative difference [\d.e+-]+", "relative difference [n]"),
        (r"the largest difference is at step \d+", "the largest difference is at step [n]"),
        (r"(more than the difference of) [\d.]+", "${1} [n]"),
        (r"\*?\b[1-9]\d*\.\d{4,}\b", "[n]"),
        (r"\b[1-9]\d*\.\d+( +)(\d+\.\d+|-)( +\d+/\d+ )", "[n]${1}[n]${3}"),
        (r"(by up to|from it by) [\d.]+", "${1} [n]"),
        (r"(  |to )[+−-]\d+\.\d+\b", "${1}[n]"),
        (r"\[n\]( +)\d+\.\d+", "[n]${1}[n]"),
        (r"\[n\]( +)\d+\.\d+", "[n]${1}[n]"),
        (r"(?m)^( +\d+ +)\[n\] +\[n\] +\S+$", "${1}[n]  [n]  [n]"),
        (r"\[n\]e-\d+", "[n]"),
        (r"(losses first differ at step|first by more than \S+ at step) \d+", "${1} [n]"),
        (r"the most, \S+, at step \d+", "the most, [n], at step [n]"),
        // A hash without a letter.
        (r"(hash +|→ +)\d{12}\b", "${1}[hash]"),
        // The first column of diff's figures is as wide as its longest number, and so is the place before the heading.
        (r"(common steps|at step \[n\])\n {10,}(A +B)\n", "${1}\n  ${2}\n"),
    ];
    filters.into_iter().map(|(pattern, by)| (Regex::new(pattern).unwrap(), by)).collect()
});

/// Hashes, and the names of checkpoints, which are no hashes.
static HASHES: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(step-|\d\.)?\b([0-9a-f]{64}|[0-9a-f]{16}|[0-9a-f]{12}|[0-9a-f]{8})\b").unwrap());

/// The lines that a run or a sweep prints while it trains.
static PROGRESS: LazyLock<Regex> = LazyLock::new(|| {
    let run = r"(step|eval|sample|save|epoch) +\d+[ /]";
    let sweep = r"(start|done|judged|waiting) +point |leads  |mean +of ";
    Regex::new(&format!(r"(?m)(^({run}|{sweep}).*\n)+")).unwrap()
});

/// What a run prints at its end, after its line that begins with `done:` or `interrupted:`.
static RESULTS: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?m)^  train loss .*\n(  .*\n)*?  run +\S+\nnext:\n(  runner .*\n)+").unwrap());

/// Numbers have different widths, and so have the columns of tables. Tests of tables check that these are aligned.
static COLUMNS: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"(\S) {2,}").unwrap());

/// A line of a file in which a mistake is marked, or the mark.
static QUOTED_LINE: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^ *\d* +\|").unwrap());

/// When a checkpoint is saved beside the training is up to the disk.
static SAVES: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"(?m)^save +\d+ .*\n").unwrap());

/// What was printed, without what differs between machines and runs. What every run prints while it trains and at its end is shortened.
pub fn screen(text: &str) -> String {
    let text = PROGRESS.replace_all(text, "[progress]\n");
    whole_screen(&RESULTS.replace_all(&text, "[result]\n"))
}

/// The same with the lines that a run prints while it trains and at its end.
pub fn whole_screen(text: &str) -> String {
    let text = SAVES.replace_all(text, "");
    let mark = |found: &Captures<'_>| {
        // Eight digits may be a hash; more are a number.
        let is_number = found[2].len() > 8 && found[2].bytes().all(|digit| digit.is_ascii_digit());
        if found.get(1).is_some() || is_number { found[0].to_owned() } else { "[hash]".to_owned() }
    };
    let mut text = HASHES.replace_all(&text, mark).into_owned();
    for (pattern, by) in &*FILTERS {
        text = pattern.replace_all(&text, *by).into_owned();
    }
    let lines = text
        .lines()
        .map(|line| if QUOTED_LINE.is_match(line) { line.into() } else { COLUMNS.replace_all(line, "${1}  ") });
    lines.map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n") + "\n"
}
