//! A table of the resources that each kernel uses, read from the assembler's output (`-Xptxas -v`).

/// The resources of one kernel on one architecture. `stack`, `stores` and `loads` are bytes per thread; `shared` is bytes per block,
/// without the dynamic part.
#[derive(Default)]
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
    // Properties of functions that are not inlined stand between those of kernels.
    let mut is_kernel = false;
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let mut words = rest.split('\'');
            let kernel = words.next().unwrap_or_default().to_owned();
            let arch = words.nth(1).unwrap_or_default().to_owned();
            all.push(Usage { arch, file: file.to_owned(), kernel, ..Usage::default() });
        } else if let Some((_, name)) = line.split_once("Function properties for ") {
            is_kernel = all.last().is_some_and(|usage| usage.kernel == name.trim());
        } else if let Some(usage) = all.last_mut() {
            if is_kernel && line.contains("bytes stack frame") {
                usage.stack = number_before(line, " bytes stack frame");
                usage.stores = number_before(line, " bytes spill stores");
                usage.loads = number_before(line, " bytes spill loads");
            } else if line.contains(" registers") && line.contains("Used ") {
                usage.registers = number_before(line, " registers");
                usage.shared = number_before(line, " bytes smem");
            }
        }
    }
    all
}

/// The number before `unit`; 0 where the line has no such unit.
fn number_before(line: &str, unit: &str) -> u64 {
    let number = line.split_once(unit).and_then(|(left, _)| left.rsplit([' ', ',']).next());
    number.and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// Formats the table, ordered by architecture, file and kernel. Kernels that spill registers are marked.
pub(crate) fn table(mut all: Vec<Usage>) -> String {
    all.sort_by(|a, b| (&a.arch, &a.file, &a.kernel).cmp(&(&b.arch, &b.file, &b.kernel)));
    let header = format!(
        "{:<5}  {:<14}  {:<36}  {:>9}  {:>6}  {:>5}  {:>7}  {:>8}\n",
        "gpu", "file", "kernel", "registers", "shared", "stack", "spilled", "reloaded"
    );
    let rows = all.iter().map(|u| {
        let mark = if u.stores + u.loads > 0 { "  <- spills" } else { "" };
        format!(
            "{:<5}  {:<14}  {:<36}  {:>9}  {:>6}  {:>5}  {:>7}  {:>8}{mark}\n",
            u.arch, u.file, u.kernel, u.registers, u.shared, u.stack, u.stores, u.loads
        )
    });
    std::iter::once(header).chain(rows).collect()
}
