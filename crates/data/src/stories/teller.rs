//! Chance and the sentences that all plots share.

use super::words::{ADJECTIVES, BOYS, FILLERS, GIRLS, HOMES};

/// A story that is told, with endings that would not follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Story {
    pub(super) plot: &'static str,
    pub(super) context: String,
    pub(super) ending: String,
    /// Of the same shape as `ending`.
    pub(super) wrong: [String; 3],
}

impl Story {
    pub(super) fn text(&self) -> String {
        format!("{} {}", self.context, self.ending)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Child {
    pub(super) name: &'static str,
    pub(super) girl: bool,
}

impl Child {
    pub(super) fn he(self) -> &'static str {
        if self.girl { "she" } else { "he" }
    }

    /// `He`, to start a sentence with.
    pub(super) fn he_(self) -> &'static str {
        if self.girl { "She" } else { "He" }
    }

    pub(super) fn his(self) -> &'static str {
        if self.girl { "her" } else { "his" }
    }

    /// `His`, to start a sentence with.
    pub(super) fn his_(self) -> &'static str {
        if self.girl { "Her" } else { "His" }
    }

    fn kind(self) -> &'static str {
        if self.girl { "girl" } else { "boy" }
    }
}

/// Makes choices, the same for the same seed.
pub(super) struct Teller(u64);

impl Teller {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// SplitMix64 (Steele, Lea and Flood 2014).
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform below `n`, which is small.
    pub(super) fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }

    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// One of some ways to say it.
    pub(super) fn say(&mut self, ways: &[String]) -> String {
        ways[self.below(ways.len())].clone()
    }

    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }

    /// Three of `from` that are neither `right` nor among `not`, of about the length of `right`.
    pub(super) fn others<'a>(&mut self, from: &[&'a str], right: &str, not: &[&str]) -> [&'a str; 3] {
        let mut others: Vec<_> = from.iter().copied().filter(|word| *word != right && !not.contains(word)).collect();
        self.shuffle(&mut others);
        others.sort_by_key(|word| word.len().abs_diff(right.len()) / 2);
        [others[0], others[1], others[2]]
    }

    pub(super) fn child(&mut self) -> Child {
        if self.below(2) == 0 {
            Child { name: self.pick(&GIRLS), girl: true }
        } else {
            Child { name: self.pick(&BOYS), girl: false }
        }
    }

    /// Another child than `not`.
    pub(super) fn friend(&mut self, not: Child) -> Child {
        loop {
            let child = self.child();
            if child != not {
                return child;
            }
        }
    }

    /// Introduces the child.
    pub(super) fn opening(&mut self, child: Child) -> String {
        let (name, kind, he_) = (child.name, child.kind(), child.he_());
        let (adjective, home) = (self.pick(&ADJECTIVES), self.pick(&HOMES));
        self.say(&[
            format!("Once upon a time there was a {adjective} {kind} named {name}."),
            format!("Once there was a {kind} called {name}. {he_} lived in {home}."),
            format!("{name} was a {adjective} {kind}. {he_} lived in {home}."),
            format!("In {home} lived a {adjective} {kind} named {name}."),
            format!("There was a {adjective} {kind} whose name was {name}."),
        ])
    }

    /// A sentence that means nothing for the ending, with a blank in front; sometimes none.
    pub(super) fn filler(&mut self, child: Child) -> String {
        if self.below(3) > 0 {
            return String::new();
        }
        let filler = self.pick(&FILLERS).replace("{name}", child.name);
        format!(" {}", filler.replace("{He}", child.he_()).replace("{his}", child.his()))
    }
}
