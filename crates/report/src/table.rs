//! Tables of text in aligned columns.

use std::fmt::Write as _;

pub use console::Alignment as Align;
use console::{measure_text_width, pad_str, truncate_str};

/// Lays out `rows` under `columns`, with two blanks between columns and a line end after each row. Cells may hold colours.
/// Missing cells are empty.
pub fn table(columns: &[(&str, Align)], rows: &[Vec<String>]) -> String {
    let widths: Vec<usize> = (0..columns.len()).map(|i| column_width(columns, rows, i)).collect();
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
fn column_width(columns: &[(&str, Align)], rows: &[Vec<String>], i: usize) -> usize {
    let cells = rows.iter().filter_map(|row| row.get(i)).map(|cell| measure_text_width(cell));
    cells.fold(measure_text_width(columns[i].0), usize::max)
}

/// A column that [`fit`] may shorten, and the width below which it does not.
pub(crate) type Shrinkable = (usize, usize);

/// True if [`fit`] would make the lines at most `width` wide.
pub(crate) fn fits(columns: &[(&str, Align)], rows: &[Vec<String>], width: usize, shrinkable: &[Shrinkable]) -> bool {
    fit(columns, &mut rows.to_vec(), width, shrinkable)
}

/// Shortens cells so that the lines of [`table`] are at most `width` wide, one column of `shrinkable` after the other. Returns
/// true if they fit then. Shortened cells lose their colours.
pub(crate) fn fit(
    columns: &[(&str, Align)],
    rows: &mut [Vec<String>],
    width: usize,
    shrinkable: &[Shrinkable],
) -> bool {
    let cells: usize = (0..columns.len()).map(|i| column_width(columns, rows, i)).sum();
    let mut excess = (cells + 2 * columns.len().saturating_sub(1)).saturating_sub(width);
    for &(i, least) in shrinkable {
        let now = column_width(columns, rows, i);
        let target = now.saturating_sub(excess).max(least).max(measure_text_width(columns[i].0)).min(now);
        excess -= now - target;
        for cell in rows.iter_mut().filter_map(|row| row.get_mut(i)).filter(|cell| measure_text_width(cell) > target) {
            *cell = shortened(&console::strip_ansi_codes(cell), target);
        }
    }
    excess == 0
}

/// `text` in at most `width` columns, with `…` for the middle that is left out: ids differ at the end.
fn shortened(text: &str, width: usize) -> String {
    let keep = width.saturating_sub(1);
    let reversed = |text: &str| text.chars().rev().collect::<String>();
    let start = truncate_str(text, keep - keep / 2, "");
    format!("{start}…{}", reversed(&truncate_str(&reversed(text), keep / 2, "")))
}

/// Lines of a name and a value, indented.
pub(crate) fn name_value_lines<'a>(rows: impl IntoIterator<Item = (&'a str, String)>) -> String {
    rows.into_iter().fold(String::new(), |mut out, (name, value)| {
        let _ = writeln!(out, "  {name:12}{value}");
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_give_way_in_order_and_no_further_than_said() {
        let columns = [("id", Align::Left), ("n", Align::Left), ("tags", Align::Left)];
        let rows = || vec![vec!["abcdefghij".to_owned(), "1".to_owned(), "0123456789ab".to_owned()]];
        let line = |width: usize| {
            let mut rows = rows();
            fit(&columns, &mut rows, width, &[(2, 6), (0, 5)]);
            table(&columns, &rows).lines().last().unwrap().to_owned()
        };
        assert_eq!(line(27), "abcdefghij  1  0123456789ab");
        assert_eq!(line(25), "abcdefghij  1  01234…89ab");
        assert_eq!(line(18), "abc…hij  1  012…ab");
        assert_eq!(line(1), "ab…ij  1  012…ab");
        assert_eq!(shortened("日本語日本語", 6), "日…語");
    }

    #[test]
    fn columns_line_up() {
        let rows = [vec!["a".to_owned(), "1,000".to_owned()], vec!["\x1b[32mlong\x1b[0m".to_owned()]];
        let text = table(&[("id", Align::Left), ("n", Align::Right)], &rows);
        assert_eq!(text, "id        n\na     1,000\n\x1b[32mlong\x1b[0m\n");
    }
}
