//! The corpus, its held-out part, and the multiple-choice items. No two of them share a story.

use std::collections::HashSet;

use super::grammar::{Grammar, Plot, Random, Story};

/// The cache key of the corpus. It must change with the stories, so that older stories in a cache are not used instead; a test fails if
/// only the stories have changed.
pub(super) const EDITION: &str = "stories-1";
/// The corpus is the same on every machine and for every experiment.
const SEED: u64 = 0x0570_71e5;
const TRAIN_BYTES: usize = 5_000_000;
const VALIDATION_BYTES: usize = 250_000;
const ITEMS: usize = 520;

/// A multiple-choice item: a story and its endings in a different order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) story: Story,
    pub(super) endings: [String; 4],
    /// The index of the right ending.
    pub(super) label: usize,
}

/// All stories.
#[derive(Debug)]
pub(super) struct Stories {
    pub(super) train: Vec<String>,
    pub(super) validation: Vec<String>,
    pub(super) items: Vec<Item>,
}

/// Generates all stories. Items come first: no later story has the context of an item.
pub(super) fn generate_stories() -> Stories {
    let grammar = Grammar::read();
    let mut contexts = HashSet::new();
    let mut generate_new = |random: &mut Random, plot: &Plot| {
        loop {
            let story = grammar.generate_story(plot, random);
            if contexts.insert(story.context.clone()) {
                return story;
            }
        }
    };
    let mut random = Random(SEED);
    let mut items = Vec::with_capacity(ITEMS);
    for plot in grammar.plots.iter().cycle().take(ITEMS) {
        let story = generate_new(&mut random, plot);
        let mut endings = story.endings.clone();
        let label = random.below(4);
        endings.swap(0, label);
        items.push(Item { story, endings, label });
    }
    let mut texts = |bytes: usize| {
        let (mut texts, mut size) = (Vec::new(), 0);
        while size < bytes {
            let plot = random.pick(&grammar.plots);
            let text = generate_new(&mut random, plot).text();
            size += text.len();
            texts.push(text);
        }
        texts
    };
    let validation = texts(VALIDATION_BYTES);
    let train = texts(TRAIN_BYTES);
    Stories { train, validation, items }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_story_occurs_twice() {
        let stories = generate_stories();
        let train: HashSet<_> = stories.train.iter().map(String::as_str).collect();
        assert_eq!(train.len(), stories.train.len());
        assert!(stories.validation.iter().all(|text| !train.contains(text.as_str())));
        for item in &stories.items {
            let starts_alike = |text: &&&str| text.starts_with(&item.story.context);
            assert!(train.iter().find(starts_alike).is_none(), "{}", item.story.context);
        }
        let bytes: usize = stories.train.iter().map(String::len).sum();
        assert!((4_900_000..5_100_000).contains(&bytes), "{bytes}");
    }

    #[test]
    fn items_have_one_right_ending_of_common_length() {
        let stories = generate_stories();
        assert_eq!(stories.items.len(), ITEMS);
        let mut labels = [0; 4];
        for item in &stories.items {
            assert_eq!(item.endings[item.label], item.story.endings[0]);
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
        let stories = generate_stories();
        for sign in [1, -1] {
            let hits = stories.items.iter().filter(|item| {
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
        for item in generate_stories().items {
            let differs =
                |a: &str, b: &str| a.split(' ').zip(b.split(' ')).find(|(a, b)| a != b).map(|(a, _)| a.to_owned());
            let word = differs(&item.story.endings[0], &item.story.endings[3]).unwrap_or_default();
            let word = word.trim_matches(|c: char| !c.is_alphabetic());
            if ["lost", "hide", "treat", "gift", "sorry"].contains(&item.story.plot.as_str()) {
                assert!(item.story.context.contains(word), "{word}: {:?}", item.story);
            }
        }
    }

    #[test]
    fn the_edition_is_of_these_stories() {
        let stories = generate_stories();
        let mut hasher = blake3::Hasher::new();
        stories.train.iter().chain(&stories.validation).for_each(|text| _ = hasher.update(text.as_bytes()));
        for item in &stories.items {
            hasher.update(format!("{}{:?}{}", item.story.context, item.endings, item.label).as_bytes());
        }
        // Another hash means other stories: raise EDITION with it.
        assert_eq!((EDITION, &hasher.finalize().to_hex()[..16]), ("stories-1", "9875ab2ee99e242d"));
    }
}
