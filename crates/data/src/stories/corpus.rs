//! Which stories are told: the corpus, the held-out part, and the multiple-choice items, none of which share a story.

use std::collections::HashSet;

use super::plots::PLOTS;
use super::teller::{Story, Teller};

/// Raised whenever the stories change, so that a cache of older ones is not taken for them (a test holds the two
/// together).
pub(super) const EDITION: &str = "stories-1";
/// The corpus is the same on every machine and for every experiment.
const SEED: u64 = 0x0570_71e5;
/// Bytes of the corpus, and of the part held out for validation.
const TRAIN_BYTES: usize = 5_000_000;
const VALIDATION_BYTES: usize = 250_000;
const ITEMS: usize = 520;

/// One multiple-choice item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) story: Story,
    pub(super) endings: [String; 4],
    pub(super) label: usize,
}

/// Everything that is told.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) train: Vec<String>,
    pub(super) validation: Vec<String>,
    pub(super) items: Vec<Item>,
}

/// Tells all stories. Items come first: a story with the context of one is told no more.
pub(super) fn tell() -> Told {
    let mut told = HashSet::new();
    let mut fresh = |teller: &mut Teller, index: usize| loop {
        let story = PLOTS[index % PLOTS.len()](teller);
        if told.insert(story.context.clone()) {
            return story;
        }
    };
    let mut teller = Teller::new(SEED);
    let mut items = Vec::with_capacity(ITEMS);
    for index in 0..ITEMS {
        let story = fresh(&mut teller, index);
        let mut endings: Vec<_> = std::iter::once(&story.ending).chain(&story.wrong).cloned().collect();
        let label = teller.below(4);
        endings.swap(0, label);
        let [a, b, c, d] = endings.try_into().unwrap_or_default();
        items.push(Item { story, endings: [a, b, c, d], label });
    }
    let mut texts = |bytes: usize| {
        let (mut texts, mut size) = (Vec::new(), 0);
        while size < bytes {
            let index = teller.below(PLOTS.len());
            let text = fresh(&mut teller, index).text();
            size += text.len();
            texts.push(text);
        }
        texts
    };
    let validation = texts(VALIDATION_BYTES);
    let train = texts(TRAIN_BYTES);
    Told { train, validation, items }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_told_twice() {
        let told = tell();
        let train: HashSet<_> = told.train.iter().map(String::as_str).collect();
        assert_eq!(train.len(), told.train.len());
        assert!(told.validation.iter().all(|text| !train.contains(text.as_str())));
        for item in &told.items {
            let starts_alike = |text: &&&str| text.starts_with(&item.story.context);
            assert!(train.iter().find(starts_alike).is_none(), "{}", item.story.context);
        }
        let bytes: usize = told.train.iter().map(String::len).sum();
        assert!((4_900_000..5_100_000).contains(&bytes), "{bytes}");
    }

    #[test]
    fn items_have_one_right_ending_of_common_length() {
        let told = tell();
        assert_eq!(told.items.len(), ITEMS);
        let mut labels = [0; 4];
        for item in &told.items {
            assert_eq!(item.endings[item.label], item.story.ending);
            let distinct: HashSet<_> = item.endings.iter().collect();
            assert_eq!(distinct.len(), 4, "{:?}", item.endings);
            let lengths = item.endings.iter().map(String::len);
            let spread = lengths.clone().max().unwrap() - lengths.min().unwrap();
            assert!(spread <= 10, "{}: {:?}", item.story.plot, item.endings);
            labels[item.label] += 1;
        }
        assert!(labels.iter().all(|&count| count > ITEMS / 6), "{labels:?}");
    }

    /// Neither the shortest nor the longest ending is a good guess: the lengths must not give the answer away.
    #[test]
    fn length_does_not_tell() {
        let told = tell();
        for sign in [1, -1] {
            let hits = told.items.iter().filter(|item| {
                let guess = (0..4).min_by_key(|&i| sign * item.endings[i].len() as i64).unwrap();
                guess == item.label
            });
            let share = hits.count() as f64 / ITEMS as f64;
            assert!((0.15..0.35).contains(&share), "{share}");
        }
    }

    /// The word that decides is in the context or belongs to it, and the plots with copied words hold it.
    #[test]
    fn copied_words_are_in_the_context() {
        for item in tell().items {
            let differs =
                |a: &str, b: &str| a.split(' ').zip(b.split(' ')).find(|(a, b)| a != b).map(|(a, _)| a.to_owned());
            let word = differs(&item.story.ending, &item.story.wrong[2]).unwrap_or_default();
            let word = word.trim_matches(|c: char| !c.is_alphabetic());
            if ["lost", "hide", "treat", "gift", "sorry"].contains(&item.story.plot) {
                assert!(item.story.context.contains(word), "{word}: {:?}", item.story);
            }
        }
    }

    #[test]
    fn the_edition_is_of_these_stories() {
        let told = tell();
        let mut hasher = blake3::Hasher::new();
        told.train.iter().chain(&told.validation).for_each(|text| _ = hasher.update(text.as_bytes()));
        for item in &told.items {
            hasher.update(format!("{}{:?}{}", item.story.context, item.endings, item.label).as_bytes());
        }
        // Another hash means other stories: raise EDITION with it.
        assert_eq!((EDITION, &hasher.finalize().to_hex()[..16]), ("stories-1", "9875ab2ee99e242d"));
    }
}
