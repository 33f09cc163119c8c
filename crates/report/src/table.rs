//! Tables of text in aligned columns.

use std::cmp::Reverse;
use std::fmt::Write as _;

pub use console::Alignment as Align;
use console::{measure_text_width, pad_str, truncate_str};

/// Lays out `rows` under `columns`, with two blanks between columns and a line end after each row. Cells may hold colours.
/// Missing cells are empty.
pub fn table(columns: &[(&str, Align)], rows: &[Vec<String>]) -> String {
    let widths: Vec<usize> = columns.iter().enumerate().map(|(i, (head, _))| column_width(head, rows, i)).collect();
    let heads: Vec<String> = columns.iter().map(|(name, _)| (*name).to_owned()).collect();
    let mut out = String::new();
    for row in std::iter::once(&heads).chain(rows) {
        let cells = row.iter().map(String::as_str).chain(std::iter::repeat("")).zip(columns).zip(&widths);
        let cells: Vec<_> = cells.map(|((text, (_, align)), width)| pad_str(text, *width, *align, None)).collect();
        out.push_str(cells.join("  ").trim_end());
        out.push('\n');
    }
    out
}

/// The widest cell of the column `i`, its head included.
fn column_width(head: &str, rows: &[Vec<String>], i: usize) -> usize {
    let cells = rows.iter().filter_map(|row| row.get(i)).map(|cell| measure_text_width(cell));
    cells.fold(measure_text_width(head), usize::max)
}

/// A column of a table that may have to fit a width.
#[derive(Debug, Clone, Copy)]
pub struct Column<'a> {
    pub head: &'a str,
    pub align: Align,
    /// The width to which its cells may be shortened; `None` if they are never shortened.
    pub least_width: Option<usize>,
    /// If the width is too small, columns of lower importance are shortened and left out first; of equal ones, the last comes first.
    pub importance: u8,
}

impl<'a> Column<'a> {
    #[must_use]
    pub fn new(head: &'a str, align: Align, importance: u8) -> Self {
        Self { head, align, least_width: None, importance }
    }

    /// The column, whose cells may be shortened to `width`.
    #[must_use]
    pub fn shortened_to(self, width: usize) -> Self {
        Self { least_width: Some(width), ..self }
    }
}

/// A table whose columns are added one after the other, each with what it shows of a row.
pub(crate) struct RowTable<'a, R> {
    rows: &'a [R],
    columns: Vec<Column<'a>>,
    cells: Vec<Vec<String>>,
}

impl<'a, R> RowTable<'a, R> {
    pub(crate) fn new(rows: &'a [R]) -> Self {
        Self { rows, columns: Vec::new(), cells: vec![Vec::new(); rows.len()] }
    }

    pub(crate) fn add(&mut self, column: Column<'a>, cell: impl Fn(&R) -> String) {
        self.columns.push(column);
        self.cells.iter_mut().zip(self.rows).for_each(|(cells, row)| cells.push(cell(row)));
    }

    /// The table, as [`table_of_width`] lays it out.
    pub(crate) fn text(self, width: Option<usize>) -> String {
        table_of_width(self.columns, self.cells, width)
    }
}

/// Lays out `rows` under `columns` as [`table`] does. Lines are at most `width` characters wide, if it is given: cells are shortened, then
/// columns are left out, which the last line names. The two most important columns always stay.
#[must_use]
pub fn table_of_width(mut columns: Vec<Column<'_>>, mut rows: Vec<Vec<String>>, width: Option<usize>) -> String {
    let mut left_out: Vec<&str> = Vec::new();
    while let Some(width) = width {
        let shortened = fit(&columns, &rows, width);
        let least = (0..columns.len()).min_by_key(|&i| (columns[i].importance, Reverse(i)));
        let left_out_next = least.filter(|_| columns.len() > 2 && !is_within(&columns, &shortened, width));
        let Some(i) = left_out_next else {
            rows = shortened;
            break;
        };
        left_out.push(columns.remove(i).head);
        rows.iter_mut().filter(|row| i < row.len()).for_each(|row| drop(row.remove(i)));
    }
    let heads: Vec<(&str, Align)> = columns.iter().map(|column| (column.head, column.align)).collect();
    let mut out = table(&heads, &rows);
    if !left_out.is_empty() {
        let _ =
            writeln!(out, "left out because the terminal is narrow: {}; use `--json` to see them", left_out.join(", "));
    }
    out
}

/// True if the lines of the table are at most `width` wide.
pub(crate) fn is_within(columns: &[Column<'_>], rows: &[Vec<String>], width: usize) -> bool {
    excess_width(columns, rows, width) == 0
}

fn excess_width(columns: &[Column<'_>], rows: &[Vec<String>], width: usize) -> usize {
    let cells: usize = columns.iter().enumerate().map(|(i, column)| column_width(column.head, rows, i)).sum();
    (cells + 2 * columns.len().saturating_sub(1)).saturating_sub(width)
}

/// `rows` with cells shortened, one column after the other, until the lines are at most `width` wide or no column may be shortened further.
/// Shortened cells lose their colours.
fn fit(columns: &[Column<'_>], rows: &[Vec<String>], width: usize) -> Vec<Vec<String>> {
    let mut rows = rows.to_vec();
    let mut excess = excess_width(columns, &rows, width);
    let mut order: Vec<usize> = (0..columns.len()).collect();
    order.sort_by_key(|&i| (columns[i].importance, Reverse(i)));
    for i in order {
        let Column { head, least_width: Some(least), .. } = columns[i] else { continue };
        let now = column_width(head, &rows, i);
        let target = now.saturating_sub(excess).max(least).max(measure_text_width(head)).min(now);
        excess -= now - target;
        for cell in rows.iter_mut().filter_map(|row| row.get_mut(i)).filter(|cell| measure_text_width(cell) > target) {
            *cell = shortened(&console::strip_ansi_codes(cell), target);
        }
    }
    rows
}

/// `text` in at most `width` columns, with `…` for the middle that is left out: ids differ at the end.
fn shortened(text: &str, width: usize) -> String {
    let keep = width.saturating_sub(1);
    let reversed = |text: &str| text.chars().rev().collect::<String>();
    let start = truncate_str(text, keep - keep / 2, "");
    format!("{start}…{}", reversed(&truncate_str(&reversed(text), keep / 2, "")))
}

/// Lines of a name and a value, indented. Further lines of a value are below its first.
pub(crate) fn name_value_lines<'a>(rows: impl IntoIterator<Item = (&'a str, String)>) -> String {
    rows.into_iter().fold(String::new(), |mut out, (name, value)| {
        let _ = writeln!(out, "  {name:12}{}", value.replace('\n', &format!("\n{:14}", "")));
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_shortened_by_importance_and_then_columns_are_left_out() {
        let text = |width: usize| {
            let column = |head, importance| Column::new(head, Align::Left, importance);
            let columns = vec![column("id", 9).shortened_to(5), column("n", 1), column("tags", 2).shortened_to(6)];
            let row = vec!["abcdefghij".to_owned(), "1".to_owned(), "0123456789ab".to_owned()];
            table_of_width(columns, vec![row], Some(width))
        };
        let line = |width: usize| text(width).lines().nth(1).unwrap().to_owned();
        assert_eq!(line(27), "abcdefghij  1  0123456789ab");
        assert_eq!(line(25), "abcdefghij  1  01234…89ab");
        assert_eq!(line(18), "abc…hij  1  012…ab");
        assert_eq!(line(15), "abc…hij  012…ab");
        assert!(text(15).ends_with("left out because the terminal is narrow: n; use `--json` to see them\n"));
        assert_eq!(line(1), "ab…ij  012…ab", "two columns always stay");
        assert_eq!(shortened("日本語日本語", 6), "日…語");
    }

    #[test]
    fn columns_line_up() {
        let rows = [vec!["a".to_owned(), "1,000".to_owned()], vec!["\x1b[32mlong\x1b[0m".to_owned()]];
        let text = table(&[("id", Align::Left), ("n", Align::Right)], &rows);
        assert_eq!(text, "id        n\na     1,000\n\x1b[32mlong\x1b[0m\n");
    }
}
