//! What the assembler says of each kernel (`-Xptxas -v`), as a table.

/// Of one kernel on one kind of GPU. Bytes are per thread but for `shared`, which is per block and without the dynamic part.
pub(crate) struct Usage {
    arch: String,
    file: String,
    kernel: String,
    registers: u64,
    shared: u64,
    stack: u64,
    stores: u64,
    loads: u64,
}

/// Reads nvcc's output for one file:
/// ```text
/// ptxas info    : Compiling entry function 'fill_f32' for 'sm_80'
/// ptxas info    : Function properties for fill_f32
///     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
/// ptxas info    : Used 10 registers, used 0 barriers, 16 bytes smem, 372 bytes cmem[0]
/// ```
pub(crate) fn read(file: &str, log: &str) -> Vec<Usage> {
    let mut all: Vec<Usage> = Vec::new();
    // Properties of functions that are called, not inlined, stand between those of kernels.
    let mut of_kernel = false;
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let mut words = rest.split('\'');
            let kernel = words.next().unwrap_or_default().to_owned();
            let arch = words.nth(1).unwrap_or_default().to_owned();
            all.push(Usage {
                arch,
                file: file.to_owned(),
                kernel,
                registers: 0,
                shared: 0,
                stack: 0,
                stores: 0,
                loads: 0,
            });
        } else if let Some((_, name)) = line.split_once("Function properties for ") {
            of_kernel = all.last().is_some_and(|usage| usage.kernel == name.trim());
        } else if let Some(usage) = all.last_mut() {
            if of_kernel && line.contains("bytes stack frame") {
                usage.stack = before(line, " bytes stack frame");
                usage.stores = before(line, " bytes spill stores");
                usage.loads = before(line, " bytes spill loads");
            } else if line.contains(" registers") && line.contains("Used ") {
                usage.registers = before(line, " registers");
                usage.shared = before(line, " bytes smem");
            }
        }
    }
    all
}

/// The number that stands before `unit`.
fn before(line: &str, unit: &str) -> u64 {
    let number = line.split_once(unit).and_then(|(left, _)| left.rsplit([' ', ',']).next());
    number.and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// By GPU, file and kernel; spills are marked.
pub(crate) fn table(mut all: Vec<Usage>) -> String {
    all.sort_by(|a, b| (&a.arch, &a.file, &a.kernel).cmp(&(&b.arch, &b.file, &b.kernel)));
    let head = ["gpu", "file", "kernel", "registers", "shared", "stack", "spilled", "reloaded", ""].map(str::to_owned);
    let rows = all.iter().map(|u| {
        let mark = if u.stores + u.loads > 0 { "<- spills" } else { "" };
        let [registers, shared, stack, stores, loads] =
            [u.registers, u.shared, u.stack, u.stores, u.loads].map(|n| n.to_string());
        [u.arch.clone(), u.file.clone(), u.kernel.clone(), registers, shared, stack, stores, loads, mark.to_owned()]
    });
    let rows: Vec<[String; 9]> = std::iter::once(head).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..9).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths).enumerate();
        let line: Vec<String> = cells
            .map(
                |(i, (cell, width))| {
                    if (3..8).contains(&i) { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
                },
            )
            .collect();
        text += line.join("  ").trim_end();
        text += "\n";
    }
    text
}
