//! Tables of text in aligned columns.

use console::measure_text_width;

/// Where a column's text stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

/// Lays out `rows` under `columns`, two blanks between columns, a line end after each row. Cells may hold colours. Missing
/// cells are empty.
#[must_use]
pub fn table(columns: &[(&str, Align)], rows: &[Vec<String>]) -> String {
    let cell = |row: &[String], i: usize| row.get(i).cloned().unwrap_or_default();
    let widths: Vec<usize> = columns
        .iter()
        .enumerate()
        .map(|(i, (name, _))| {
            let widest = rows.iter().map(|row| measure_text_width(&cell(row, i))).max().unwrap_or(0);
            widest.max(measure_text_width(name))
        })
        .collect();
    let heads: Vec<String> = columns.iter().map(|(name, _)| (*name).to_owned()).collect();
    let mut out = String::new();
    for row in std::iter::once(&heads).chain(rows) {
        let mut line = String::new();
        for (i, ((_, align), width)) in columns.iter().zip(&widths).enumerate() {
            let text = cell(row, i);
            let pad = " ".repeat(width - measure_text_width(&text).min(*width));
            line.push_str(if i == 0 { "" } else { "  " });
            match align {
                Align::Left => line.extend([text.as_str(), &pad]),
                Align::Right => line.extend([pad.as_str(), &text]),
            }
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [vec!["a".to_owned(), "1,000".to_owned()], vec!["\x1b[32mlong\x1b[0m".to_owned()]];
        let text = table(&[("id", Align::Left), ("n", Align::Right)], &rows);
        assert_eq!(text, "id        n\na     1,000\n\x1b[32mlong\x1b[0m\n");
    }
}
