//! Lines of parts, of which the less important ones are left out if the line is too long.

/// A part of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinePart {
    pub text: String,
    /// The importance of the part: the parts with the lowest rank are left out first.
    pub rank: u8,
}

impl LinePart {
    pub fn new(rank: u8, text: String) -> Self {
        Self { text, rank }
    }
}

/// The longest line of `parts`, in their order and two blanks apart, that has at most `width` characters. The most important part
/// stays even if it is wider.
pub fn fit_line(parts: &[LinePart], width: usize) -> String {
    let mut shown: Vec<&LinePart> = parts.iter().collect();
    loop {
        let line = shown.iter().map(|part| part.text.as_str()).collect::<Vec<_>>().join("  ");
        // The last of several parts with the lowest rank goes first.
        let least = shown.iter().enumerate().rev().min_by_key(|(_, part)| part.rank).map(|(i, _)| i);
        match least {
            Some(least) if shown.len() > 1 && line.chars().count() > width => _ = shown.remove(least),
            _ => return line,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_important_parts_stay() {
        let parts = [(2, "loss 2.5"), (0, "lr 1e-3"), (1, "900 tok/s"), (3, "5m 10s left")];
        let parts = parts.map(|(rank, text)| LinePart::new(rank, text.to_owned()));
        let line = |width| fit_line(&parts, width);
        assert_eq!(line(usize::MAX), "loss 2.5  lr 1e-3  900 tok/s  5m 10s left");
        assert_eq!(line(41), line(usize::MAX));
        assert_eq!(line(40), "loss 2.5  900 tok/s  5m 10s left");
        assert_eq!(line(31), "loss 2.5  5m 10s left");
        assert_eq!([line(20), line(3)], ["5m 10s left"; 2]);
        assert_eq!(fit_line(&[], 3), "");
    }
}
