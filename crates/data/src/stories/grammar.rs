//! Generates stories from the grammar in `stories.yaml`: words, and plots that put them together.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;

use crate::hashing::split_mix;

/// The content of `stories.yaml`, which explains itself.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Grammar {
    words: HashMap<String, Vec<String>>,
    pairs: HashMap<String, Vec<(String, String)>>,
    opening: Vec<Draw>,
    fillers: Vec<String>,
    pub(super) plots: Vec<Plot>,
}

/// The plan of one kind of story.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Plot {
    name: String,
    draws: Vec<Draw>,
    context: String,
    answer: Option<String>,
    instead: Option<String>,
    endings: Vec<String>,
}

/// A variable and what its value is drawn from; a map of one entry.
type Draw = BTreeMap<String, Choices>;

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Choices {
    List(String),
    Sentences(Vec<String>),
}

/// A story, with endings that would not follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Story {
    pub(super) plot: String,
    pub(super) context: String,
    /// The right ending first, then three wrong ones of the same shape.
    pub(super) endings: [String; 4],
}

impl Story {
    pub(super) fn text(&self) -> String {
        format!("{} {}", self.context, self.endings[0])
    }
}

impl Grammar {
    #[expect(clippy::expect_used, reason = "the file is part of the program, and tests read it")]
    pub(super) fn read() -> Self {
        runner_yaml::document::from_str(include_str!("stories.yaml")).expect("stories.yaml is a grammar")
    }

    /// Generates a story of `plot`, one of this grammar's.
    pub(super) fn generate_story(&self, plot: &Plot, random: &mut Random) -> Story {
        let mut draft = StoryDraft { grammar: self, random, values: HashMap::new(), answers: Vec::new() };
        let name = draft.draw_child("");
        draft.values.insert("name", name.to_owned());
        draft.make_draws(&plot.draws);
        let context = draft.fill(&plot.context);
        if let (Some(answer), Some(list)) = (&plot.answer, &plot.instead) {
            draft.answers = draft.draw_answers(&draft.values[answer.as_str()].clone(), list);
        }
        let ending = draft.random.pick(&plot.endings);
        let endings = std::array::from_fn(|index| {
            draft.values.insert("answer", draft.answers[index].clone());
            draft.fill(ending)
        });
        Story { plot: plot.name.clone(), context, endings }
    }
}

/// A story that is being generated.
struct StoryDraft<'a> {
    grammar: &'a Grammar,
    random: &'a mut Random,
    /// The value of each variable.
    values: HashMap<&'a str, String>,
    /// The right answer and three wrong ones.
    answers: Vec<String>,
}

impl<'a> StoryDraft<'a> {
    fn make_draws(&mut self, draws: &'a [Draw]) {
        for (variable, choices) in draws.iter().flatten() {
            let value = match choices {
                Choices::Sentences(sentences) => {
                    let sentence = self.random.pick(sentences);
                    self.fill(sentence)
                }
                Choices::List(list) if list == "children" => self.draw_child(&self.values["name"].clone()).to_owned(),
                Choices::List(list) => match self.grammar.pairs.get(list) {
                    Some(pairs) => {
                        let (value, answer) = self.random.pick(pairs);
                        let answers = pairs.iter().map(|(_, answer)| answer.as_str()).collect();
                        let wrong = self.random.three_like(answer, answers);
                        self.answers =
                            [answer].into_iter().map(String::as_str).chain(wrong).map(str::to_owned).collect();
                        value.clone()
                    }
                    None => self.random.pick(&self.grammar.words[list]).clone(),
                },
            };
            self.values.insert(variable, value);
        }
    }

    /// A child whose name is not `other`.
    fn draw_child(&mut self, other: &str) -> &'a str {
        loop {
            let names = if self.random.below(2) == 0 { "girls" } else { "boys" };
            let name = self.random.pick(&self.grammar.words[names]);
            if name != other {
                return name;
            }
        }
    }

    /// `right`, and three wrong answers from `list`. Among children, one is the other child of the story.
    fn draw_answers(&mut self, right: &str, list: &str) -> Vec<String> {
        let mut answers = vec![right.to_owned()];
        let list = if list == "children" {
            let other = if self.values["name"] == right { "friend" } else { "name" };
            answers.push(self.values[other].clone());
            if self.is_girl(right) { "girls" } else { "boys" }
        } else {
            list
        };
        let words =
            self.grammar.words[list].iter().map(String::as_str).filter(|word| !answers.iter().any(|a| a == word));
        let wrong = self.random.three_like(right, words.collect());
        answers.extend(wrong.into_iter().map(str::to_owned));
        answers
    }

    /// `template` with values for its variables in braces.
    fn fill(&mut self, template: &'a str) -> String {
        let mut text = String::new();
        let mut rest = template;
        while let Some((before, (variable, after))) =
            rest.split_once('{').and_then(|(before, after)| Some((before, after.split_once('}')?)))
        {
            text += before;
            let filled = match variable {
                "opening" => {
                    self.make_draws(&self.grammar.opening);
                    self.values["sentence"].clone()
                }
                "filler" if self.random.below(3) > 0 => String::new(),
                "filler" => {
                    let filler = self.random.pick(&self.grammar.fillers);
                    format!(" {}", self.fill(filler))
                }
                "Answer" => {
                    let mut letters = self.values["answer"].chars();
                    letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect()
                }
                _ => self.value(variable),
            };
            text += &filled;
            rest = after;
        }
        text + rest
    }

    fn value(&self, variable: &str) -> String {
        let (child, word) = variable.split_once('.').unwrap_or(("name", variable));
        let (girl, boy) = match word {
            "he" => ("she", "he"),
            "He" => ("She", "He"),
            "his" => ("her", "his"),
            "His" => ("Her", "His"),
            "kind" => ("girl", "boy"),
            _ => return self.values[variable].clone(),
        };
        if self.is_girl(&self.values[child]) { girl } else { boy }.to_owned()
    }

    fn is_girl(&self, name: &str) -> bool {
        self.grammar.words["girls"].iter().any(|girl| girl == name)
    }
}

/// Random choices, the same for the same seed: SplitMix64 (Steele, Lea and Flood 2014).
pub(super) struct Random(pub(super) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        split_mix(self.0)
    }

    /// A uniform number below `n`, which is small.
    pub(super) fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }

    pub(super) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// Three of `from` other than `right`, of about its length.
    fn three_like<'a>(&mut self, right: &str, mut from: Vec<&'a str>) -> Vec<&'a str> {
        from.retain(|word| *word != right);
        for i in (1..from.len()).rev() {
            from.swap(i, self.below(i + 1));
        }
        from.sort_by_key(|word| word.len().abs_diff(right.len()) / 2);
        from.truncate(3);
        from
    }
}
