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

/// Shortens cells so that lines of `table` are at most `width` wide. `shrinkable` says which columns give way, in which order,
/// and to how many columns each at most. Returns whether they fit then. Shortened cells lose their colours.
pub fn fit(columns: &[(&str, Align)], rows: &mut [Vec<String>], width: usize, shrinkable: &[(usize, usize)]) -> bool {
    let wide = |rows: &[Vec<String>], i: usize| {
        let cells = rows.iter().filter_map(|row| row.get(i)).map(|cell| measure_text_width(cell));
        cells.chain([measure_text_width(columns[i].0)]).max().unwrap_or(0)
    };
    let total: usize = (0..columns.len()).map(|i| wide(rows, i)).sum::<usize>() + 2 * columns.len().saturating_sub(1);
    let mut over = total.saturating_sub(width);
    for &(i, least) in shrinkable {
        let now = wide(rows, i);
        let to = now.saturating_sub(over).max(least).max(measure_text_width(columns[i].0)).min(now);
        over -= now - to;
        for cell in rows.iter_mut().filter_map(|row| row.get_mut(i)).filter(|cell| measure_text_width(cell) > to) {
            *cell = shortened(&console::strip_ansi_codes(cell), to);
        }
    }
    over == 0
}

/// `text` in at most `width` columns, with `…` for what is left out of its middle: ids differ at the end.
fn shortened(text: &str, width: usize) -> String {
    let keep = width.saturating_sub(1);
    let (head, tail) = (keep - keep / 2, keep / 2);
    let take = |chars: &mut dyn Iterator<Item = char>, room: usize| -> Vec<char> {
        let mut used = 0;
        chars
            .take_while(|c| {
                used += measure_text_width(&c.to_string());
                used <= room
            })
            .collect()
    };
    let start: String = take(&mut text.chars(), head).into_iter().collect();
    let end: String = take(&mut text.chars().rev(), tail).into_iter().rev().collect();
    format!("{start}…{end}")
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
