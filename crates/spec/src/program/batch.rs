//! The rows of each step: the global batch, a rank's part of it, and the position of a step in the order of the data.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::serde_defaults::{is_default, is_one, one};

/// The global batch of a step is the next `sequences` rows of the data order; this rank takes `slice` of it (start, count), every
/// `stride`-th row from the start on, in micro-batches of `micro_batch` rows, the last of which may be smaller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchSpec {
    pub sequences: usize,
    pub slice: (usize, usize),
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub stride: usize,
    pub micro_batch: usize,
    /// Inputs per row.
    pub length: usize,
    /// Sequences into which a row of the data is cut. The sequences of a batch are whole rows.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub pieces: usize,
    /// True if attention does not see padding.
    #[serde(default, skip_serializing_if = "is_default")]
    pub mask_padding: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    pub order: RowOrder,
    /// The position from which rows are counted; `None`: step 0 reads the first row of the first epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<DataPosition>,
}

/// The order of the rows of an epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowOrder {
    /// True if rows come in the order of the source, instead of a new permutation in every epoch.
    pub sequential: bool,
    /// True if the rows of an epoch that fill no global batch are left out. If not, the next epoch begins within the batch.
    pub drop_last: bool,
    /// Rows of each epoch that are read, the first ones in its order; `None`: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch_rows: Option<u64>,
}

/// A position in the training data: the next row to read after some steps, and what these steps read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DataPosition {
    /// Optimizer steps done.
    #[schemars(range(max = 1_000_000_000_000u64))]
    pub step: u64,
    /// The epoch of the next row, from 0.
    #[schemars(range(max = 1_000_000_000_000u64))]
    pub epoch: u64,
    /// The next row, from 0, in the order of its epoch.
    #[schemars(range(max = 1_000_000_000_000_000u64))]
    pub row: u64,
    /// Rows read by these steps.
    #[schemars(range(max = 1_000_000_000_000_000_000u64))]
    pub rows: u64,
    /// Tokens of these rows, padding included.
    #[schemars(range(max = 1_000_000_000_000_000_000u64))]
    pub tokens: u64,
}

impl BatchSpec {
    /// Micro-batches in this rank's slice.
    pub fn micro_batches(&self) -> usize {
        self.slice.1.div_ceil(self.micro_batch)
    }

    /// Rows of micro-batch `mb`, as (start, count) within the global batch; they are `stride` apart.
    pub fn rows(&self, mb: usize) -> (usize, usize) {
        let start = mb * self.micro_batch;
        (self.slice.0 + start * self.stride, self.micro_batch.min(self.slice.1 - start))
    }

    /// The rows of the data that steps with this batch read, of training data with `rows` rows.
    pub fn row_sequence(&self, rows: u64) -> RowSequence {
        let (read, length) = (self.sequences / self.pieces.max(1), self.length * self.pieces);
        RowSequence::new(read, length, self.order, self.position, rows)
    }
}

/// The rows that each step of a run reads, as places in the order of an epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowSequence {
    /// What the stages before the last one read, each with the step after which it ends.
    earlier: Vec<(u64, EqualBatches)>,
    last: EqualBatches,
}

/// The rows of steps that read equally many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct EqualBatches {
    start: DataPosition,
    sequences: u64,
    length: u64,
    /// Rows of an epoch that are read.
    epoch_rows: u64,
    /// The same of the epoch of `start`, whose first rows may have been read in batches of a different size.
    first_epoch_rows: u64,
}

/// The place of a batch in its epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpochBatch {
    /// From 0.
    pub epoch: u64,
    /// From 1.
    pub batch: u64,
    /// The batches that belong to the epoch.
    pub batches: u64,
}

impl RowSequence {
    /// The rows of steps of `sequences` rows of `length` tokens, from `position` on, out of `rows`. A step reads the rows after those of the
    /// step before it, and may have more rows than an epoch. With `order.drop_last`, an epoch ends when fewer rows than a batch are left of
    /// it.
    pub fn new(sequences: usize, length: usize, order: RowOrder, position: Option<DataPosition>, rows: u64) -> Self {
        Self { earlier: Vec::new(), last: EqualBatches::new(sequences, length, order, position, rows) }
    }

    /// The same rows up to step `until`, from which on steps read the rows of `later`.
    #[must_use]
    pub fn then(mut self, until: u64, later: Self) -> Self {
        self.earlier.push((until, self.last));
        self.earlier.extend(later.earlier);
        Self { earlier: self.earlier, last: later.last }
    }

    /// The batches to which `step`, from 0, belongs.
    fn at(&self, step: u64) -> &EqualBatches {
        self.earlier.iter().find(|(until, _)| step < *until).map_or(&self.last, |(_, batches)| batches)
    }

    /// The epoch, from 0, and the place in its order, of row `index` of the global batch of `step`, from 0. The step must not be before the
    /// position from which rows are counted.
    pub fn place(&self, step: u64, index: u64) -> (u64, u64) {
        self.at(step).place(step, index)
    }

    /// The position after `steps` steps.
    pub fn position_after(&self, steps: u64) -> DataPosition {
        self.at(steps).position_after(steps)
    }

    /// The number of the batch of `step`, from 0, in its epoch. A batch belongs to the epoch of its first row. Rows that were read in batches of
    /// another size count as batches of this size.
    pub fn epoch_batch(&self, step: u64) -> EpochBatch {
        self.at(step).epoch_batch(step)
    }

    /// The epochs that `steps` steps read.
    pub fn epochs_after(&self, steps: u64) -> f64 {
        // An epoch that a batch of the next stage does not fill is over when that stage starts.
        self.at(steps.saturating_sub(1)).epochs_after(steps)
    }

    /// The steps after which `epochs` passes are done, with a fraction, if all steps read as many rows as the last; no less than the steps
    /// before the position.
    pub fn steps_of_epochs(&self, epochs: f64) -> f64 {
        self.last.steps_of_epochs(epochs)
    }

    /// The steps after which at most `tokens` tokens are computed, padding included, if all steps read as many rows as the last; no less
    /// than the steps before the position.
    pub fn steps_of_tokens(&self, tokens: u64) -> u64 {
        self.last.steps_of_tokens(tokens)
    }

    /// The rows of an epoch that the last steps read.
    pub fn epoch_rows(&self) -> u64 {
        self.last.epoch_rows
    }
}

impl EqualBatches {
    fn new(sequences: usize, length: usize, order: RowOrder, position: Option<DataPosition>, rows: u64) -> Self {
        let rows = order.epoch_rows.map_or(rows, |epoch_rows| epoch_rows.min(rows));
        let (sequences, rows) = ((sequences as u64).max(1), rows.max(1));
        let start = position.unwrap_or_default();
        let read = start.row.min(rows);
        let whole = |rows: u64| rows / sequences * sequences;
        let drops = order.drop_last && rows >= sequences;
        Self {
            start: DataPosition { row: read, ..start },
            sequences,
            length: length as u64,
            epoch_rows: if drops { whole(rows) } else { rows },
            first_epoch_rows: if drops { read + whole(rows - read) } else { rows },
        }
    }

    fn place(&self, step: u64, index: u64) -> (u64, u64) {
        let read = self.own_rows(step).saturating_add(index);
        let left = self.first_epoch_rows - self.start.row;
        if read < left {
            return (self.start.epoch, self.start.row + read);
        }
        let later = read - left;
        (self.start.epoch.saturating_add(1 + later / self.epoch_rows), later % self.epoch_rows)
    }

    fn position_after(&self, steps: u64) -> DataPosition {
        let (epoch, row) = self.place(steps, 0);
        let read = self.own_rows(steps);
        let rows = self.start.rows.saturating_add(read);
        let tokens = self.start.tokens.saturating_add(read.saturating_mul(self.length));
        DataPosition { step: steps, epoch, row, rows, tokens }
    }

    fn epoch_batch(&self, step: u64) -> EpochBatch {
        let (epoch, row) = self.place(step, 0);
        let end = if epoch == self.start.epoch { self.first_epoch_rows } else { self.epoch_rows };
        let earlier = row / self.sequences;
        EpochBatch { epoch, batch: earlier + 1, batches: earlier + (end - row).div_ceil(self.sequences) }
    }

    fn epochs_after(&self, steps: u64) -> f64 {
        let (read, DataPosition { epoch, row, .. }) = (self.own_rows(steps), self.start);
        let left = self.first_epoch_rows - row;
        if self.first_epoch_rows == self.epoch_rows {
            (u128::from(epoch) * u128::from(self.epoch_rows) + u128::from(row) + u128::from(read)) as f64
                / self.epoch_rows as f64
        } else if read <= left {
            epoch as f64 + (row + read) as f64 / self.first_epoch_rows as f64
        } else {
            epoch as f64 + 1.0 + (read - left) as f64 / self.epoch_rows as f64
        }
    }

    fn steps_of_epochs(&self, epochs: f64) -> f64 {
        let DataPosition { step, epoch, row, .. } = self.start;
        let (epoch, row) = (epoch as f64, row as f64);
        let [first, each] = [self.first_epoch_rows, self.epoch_rows].map(|rows| rows as f64);
        let read = if self.first_epoch_rows == self.epoch_rows {
            epochs * each - (epoch * each + row)
        } else if epochs <= epoch + 1.0 {
            (epochs - epoch) * first - row
        } else {
            first - row + (epochs - epoch - 1.0) * each
        };
        step as f64 + (read / self.sequences as f64).max(0.0)
    }

    fn steps_of_tokens(&self, tokens: u64) -> u64 {
        let own = tokens.saturating_sub(self.start.tokens);
        self.start.step.saturating_add(own / (self.sequences * self.length).max(1))
    }

    /// Rows from the position to the beginning of `step`.
    fn own_rows(&self, step: u64) -> u64 {
        step.saturating_sub(self.start.step).saturating_mul(self.sequences)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sequence(sequences: usize, drop_last: bool, position: Option<DataPosition>, rows: u64) -> RowSequence {
        RowSequence::new(sequences, 10, RowOrder { sequential: false, drop_last, epoch_rows: None }, position, rows)
    }

    /// The places of all rows of `steps` steps from `from` on.
    fn places(of: &RowSequence, from: u64, steps: u64, sequences: u64) -> Vec<(u64, u64)> {
        (from..from + steps).flat_map(|step| (0..sequences).map(move |i| of.place(step, i))).collect()
    }

    #[test]
    fn rows_follow_one_another_through_the_epochs() {
        let of = sequence(4, false, None, 6);
        let expected = [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (1, 0), (1, 1), (1, 2), (1, 3), (1, 4), (1, 5)];
        assert_eq!(places(&of, 0, 3, 4), expected);
        let after = DataPosition { step: 2, epoch: 1, row: 2, rows: 8, tokens: 80 };
        assert_eq!(of.position_after(2), after);
        assert_eq!((of.epochs_after(2), of.epochs_after(3)), (8.0 / 6.0, 2.0));
        assert_eq!((of.steps_of_epochs(2.0), of.steps_of_epochs(2.5), of.steps_of_tokens(119)), (3.0, 3.75, 2));
    }

    #[test]
    fn a_batch_reads_several_epochs() {
        let of = sequence(7, false, None, 3);
        let expected = [
            (0, 0),
            (0, 1),
            (0, 2),
            (1, 0),
            (1, 1),
            (1, 2),
            (2, 0),
            (2, 1),
            (2, 2),
            (3, 0),
            (3, 1),
            (3, 2),
            (4, 0),
            (4, 1),
        ];
        assert_eq!(places(&of, 0, 2, 7), expected);
        assert_eq!(of.position_after(2), DataPosition { step: 2, epoch: 4, row: 2, rows: 14, tokens: 140 });
        assert_eq!((of.epochs_after(2), of.steps_of_epochs(7.0), of.steps_of_tokens(140)), (14.0 / 3.0, 3.0, 2));
    }

    #[test]
    fn an_epoch_reads_its_first_rows() {
        let order = RowOrder { sequential: true, drop_last: false, epoch_rows: Some(5) };
        let of = RowSequence::new(4, 10, order, None, 10);
        let expected = [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 0), (1, 1), (1, 2)];
        assert_eq!(places(&of, 0, 2, 4), expected);
        assert_eq!((of.epoch_rows(), of.epochs_after(5)), (5, 4.0));
        assert_eq!(RowSequence::new(4, 10, order, None, 3), RowSequence::new(4, 10, RowOrder::default(), None, 3));
    }

    #[test]
    fn rows_that_fill_no_batch_are_left_out() {
        let of = sequence(4, true, None, 10);
        let expected = [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (0, 6), (0, 7), (1, 0), (1, 1), (1, 2), (1, 3)];
        assert_eq!(places(&of, 0, 3, 4), expected);
        // At the border of an epoch, the next row is that of the next epoch.
        assert_eq!(of.position_after(2), DataPosition { step: 2, epoch: 1, row: 0, rows: 8, tokens: 80 });
        assert_eq!(of.epochs_after(3), 1.5);
    }

    #[test]
    fn a_different_batch_reads_the_next_rows() {
        // 10 rows; two steps of 3 have read places 0 to 5.
        let at = sequence(3, false, None, 10).position_after(2);
        assert_eq!((at.epoch, at.row, at.rows, at.tokens), (0, 6, 6, 60));
        let of = sequence(5, false, Some(at), 10);
        let expected = [(0, 6), (0, 7), (0, 8), (0, 9), (1, 0), (1, 1), (1, 2), (1, 3), (1, 4), (1, 5)];
        assert_eq!(places(&of, 2, 2, 5), expected);
        assert_eq!(of.position_after(4), DataPosition { step: 4, epoch: 1, row: 6, rows: 16, tokens: 160 });
        assert_eq!([2, 3, 4].map(|step| of.epochs_after(step)), [0.6, 1.1, 1.6]);
        // Two epochs are 20 rows, of which 14 are left: 2.8 steps of 5. 200 tokens are 20 rows.
        assert_eq!((of.steps_of_epochs(2.0), of.steps_of_tokens(200)), (4.8, 4));
        assert_eq!((of.steps_of_epochs(0.5), of.steps_of_tokens(10)), (2.0, 2));
    }

    #[test]
    fn the_epoch_in_which_the_batch_changes_ends_when_no_batch_is_left() {
        // 23 rows; three steps of 3 have read places 0 to 8; 14 are left.
        let at = sequence(3, true, None, 23).position_after(3);
        assert_eq!((at.epoch, at.row), (0, 9));
        // Of batches of 6 two are left, which end at place 21. An epoch has three of them.
        let of = sequence(6, true, Some(at), 23);
        let whole: Vec<(u64, u64)> = (9..21).map(|row| (0, row)).chain((0..18).map(|row| (1, row))).collect();
        assert_eq!(places(&of, 3, 5, 6), whole);
        assert_eq!((of.place(8, 0), of.position_after(5).epoch), ((2, 0), 1));
        assert_eq!([3, 4, 5, 6].map(|step| of.epochs_after(step)), [9.0 / 21.0, 15.0 / 21.0, 1.0, 1.0 + 6.0 / 18.0]);
        assert_eq!((of.steps_of_epochs(1.0), of.steps_of_epochs(2.0)), (5.0, 8.0));
        // No batch of 16 is left: the next epoch begins at once.
        let of = sequence(16, true, Some(at), 23);
        assert_eq!((of.place(3, 0), of.place(3, 15), of.place(4, 0)), ((1, 0), (1, 15), (2, 0)));
        assert_eq!(of.epochs_after(3), 1.0);
    }

    #[test]
    fn a_batch_belongs_to_the_epoch_of_its_first_row() {
        let batches = |of: RowSequence, from: u64, steps: u64| -> Vec<(u64, u64, u64)> {
            let batches = (from..from + steps).map(|step| of.epoch_batch(step));
            batches.map(|EpochBatch { epoch, batch, batches }| (epoch, batch, batches)).collect()
        };
        // First rows 0, 4, 8 | 2, 6 | 0, …
        assert_eq!(
            batches(sequence(4, false, None, 10), 0, 6),
            [(0, 1, 3), (0, 2, 3), (0, 3, 3), (1, 1, 2), (1, 2, 2), (2, 1, 3)]
        );
        assert_eq!(batches(sequence(4, true, None, 10), 0, 3), [(0, 1, 2), (0, 2, 2), (1, 1, 2)]);
        // Batches of 1.6 epochs: none begins in the third epoch.
        assert_eq!(batches(sequence(8, false, None, 5), 0, 4), [(0, 1, 1), (1, 1, 1), (3, 1, 1), (4, 1, 1)]);
        // 9 rows were read in batches of 3, and two batches of 6 follow.
        let at = sequence(3, true, None, 23).position_after(3);
        assert_eq!(batches(sequence(6, true, Some(at), 23), 3, 3), [(0, 2, 3), (0, 3, 3), (1, 1, 3)]);
    }

    #[test]
    fn a_position_that_changes_nothing_has_no_effect() {
        for drop_last in [false, true] {
            let plain = sequence(4, drop_last, None, 10);
            let at = plain.position_after(7);
            let counted = sequence(4, drop_last, Some(at), 10);
            assert_eq!(places(&plain, 7, 9, 4), places(&counted, 7, 9, 4), "{drop_last}");
            assert_eq!(plain.position_after(13), counted.position_after(13), "{drop_last}");
            assert!((7..20).all(|step| plain.epoch_batch(step) == counted.epoch_batch(step)), "{drop_last}");
        }
    }
}
