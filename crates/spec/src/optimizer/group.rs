//! Groups of parameters.

use std::collections::BTreeMap;
use std::ops::Range;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Optimizer, ParameterUpdate};
use crate::diagnostic::{KeyMistake, nearest};
use crate::model::ParamSpec;
use crate::model::layout::ParamLayout;
use crate::transfer::TransferRules;

/// Settings of the parameters whose names match a pattern, where they differ from the optimizer's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupOptions {
    /// The names of the parameters, as checkpoints have them; `*` stands for any text. If several groups match a parameter, the last one
    /// that gives a setting wins.
    pub r#match: String,
    /// Factor on the learning rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(!skip_serializing_if, range(min = 0, max = 10_000))]
    pub lr_scale: Option<f64>,
    /// Weight decay instead of the optimizer's, also for biases and gains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(!skip_serializing_if, range(min = 0, max = 10_000))]
    pub weight_decay: Option<f64>,
}

impl GroupOptions {
    fn matches(&self, name: &str) -> bool {
        matches(&self.r#match, name)
    }
}

/// True if `name` is `pattern`, in which `*` stands for any text.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == name };
    let (middle, end) = rest.rsplit_once('*').unwrap_or(("", rest));
    let Some(inner) = name.strip_prefix(start).and_then(|name| name.strip_suffix(end)) else { return false };
    // Each piece at its first place leaves most of the name to the pieces after it.
    let mut pieces = middle.split('*').filter(|piece| !piece.is_empty());
    pieces.try_fold(inner, |name, piece| Some(name.split_once(piece)?.1)).is_some()
}

/// Parameters with the optimizer that updates them: a range of the flat storage.
#[derive(Debug, Clone, PartialEq)]
pub struct ParameterGroup {
    /// The optimizer, and the patterns of groups that match: `adamw + *.bias`.
    pub name: String,
    pub elements: Range<usize>,
    pub optimizer: Optimizer,
    /// Multiplies the learning rate of the step.
    pub lr_scale: f64,
}

/// What decides the settings of each parameter of a model.
#[derive(Debug, Clone)]
pub struct GroupRules<'a> {
    pub optimizer: Optimizer,
    pub options: &'a [GroupOptions],
    pub transfer: Option<TransferRules>,
    /// The model's layers.
    pub layers: usize,
}

impl GroupRules<'_> {
    /// The groups of the parameters in `layout`, in its order. Neighbours with the same settings are one group.
    pub fn groups(&self, layout: &ParamLayout) -> Vec<ParameterGroup> {
        let mut groups: Vec<ParameterGroup> = Vec::new();
        for entry in &layout.entries {
            let group = self.group_of(&entry.spec, entry.range());
            match groups.last_mut() {
                Some(last) if *last == (ParameterGroup { elements: last.elements.clone(), ..group.clone() }) => {
                    last.elements.end = group.elements.end;
                }
                _ => groups.push(group),
            }
        }
        groups
    }

    fn group_of(&self, parameter: &ParamSpec, elements: Range<usize>) -> ParameterGroup {
        let ParameterUpdate { mut optimizer, mut lr_scale, .. } = self.optimizer.update_of(parameter, self.layers);
        let mut name = optimizer.name().to_owned();
        if let Some(transfer) = &self.transfer {
            let (transferred, factor, role) = transfer.settings(parameter, optimizer);
            (optimizer, lr_scale) = (transferred, lr_scale * factor);
            name.extend([" ", role]);
        }
        let mut given_scale = 1.0;
        for options in self.options.iter().filter(|options| options.matches(&parameter.name)) {
            name.extend([" + ", &options.r#match]);
            given_scale = options.lr_scale.unwrap_or(given_scale);
            let decayed = options.weight_decay.and_then(|decay| optimizer.description().with_decay(decay));
            optimizer = decayed.unwrap_or(optimizer);
        }
        ParameterGroup { name, elements, optimizer, lr_scale: lr_scale * given_scale }
    }

    /// The factors on the learning rate of each group of `parameters`, by the group's name.
    pub fn lr_scales(&self, parameters: &[ParamSpec]) -> BTreeMap<String, f64> {
        let groups = parameters.iter().map(|parameter| self.group_of(parameter, 0..0));
        groups.map(|group| (group.name, group.lr_scale)).collect()
    }
}

impl Optimizer {
    /// The groups of the parameters in `layout`, of a model of `layers` layers, without a transfer.
    pub fn groups(&self, options: &[GroupOptions], layout: &ParamLayout, layers: usize) -> Vec<ParameterGroup> {
        GroupRules { optimizer: *self, options, transfer: None, layers }.groups(layout)
    }

    /// Mistakes of the groups `options` for a model with these parameters. `key` is where the file has the list.
    pub fn group_mistakes(&self, key: &str, options: &[GroupOptions], parameters: &[ParamSpec]) -> Vec<KeyMistake> {
        let mut mistakes = Vec::new();
        for (index, group) in options.iter().enumerate() {
            let GroupOptions { r#match: pattern, lr_scale, weight_decay } = group;
            let mut mistake = |name: &str, message: String, help: String| {
                mistakes.push(KeyMistake::new([format!("{key}.{index}{name}")], message, help));
            };
            if !parameters.iter().any(|parameter| group.matches(&parameter.name)) {
                let names = parameters.iter().map(|parameter| parameter.name.as_str());
                let some = || names.clone().step_by(names.len().div_ceil(3).max(1)).collect::<Vec<_>>().join("`, `");
                let help = nearest(pattern, names.clone()).map_or_else(
                    || format!("`*` stands for any text; names are, for example, `{}`", some()),
                    |name| format!("the nearest name is `{name}`; `*` stands for any text"),
                );
                mistake(".match", format!("no parameter of the model matches `{pattern}`"), help);
            }
            if lr_scale.is_none() && weight_decay.is_none() {
                let help = "give `lr_scale`, `weight_decay` or both".to_owned();
                mistake("", format!("the group `{pattern}` changes nothing"), help);
            }
            if weight_decay.is_some() && self.description().weight_decay().is_none() {
                let help = "delete the key, or use adamw".to_owned();
                mistake(".weight_decay", format!("{} has no weight decay", self.name()), help);
            }
        }
        mistakes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ParamInit, ParamRole};
    use crate::optimizer::{AdamW, Decays, Lion, Muon, Sgd};

    const NAMES: [(&str, &[usize], usize); 5] = [
        ("embed.weight", &[5, 2], 0),
        ("layers.0.up.weight", &[3, 2], 1),
        ("layers.0.norm.weight", &[2], 1),
        ("layers.0.up.bias", &[3], 1),
        ("head.weight", &[5, 2], 2),
    ];

    fn parameters() -> Vec<ParamSpec> {
        let spec = |(name, shape, block): (&str, &[usize], usize)| ParamSpec {
            name: name.to_owned(),
            shape: shape.to_vec(),
            init: ParamInit::Zeros,
            block,
            role: ParamRole::Weight,
        };
        NAMES.into_iter().map(spec).collect()
    }

    fn group(name: &str, elements: Range<usize>, optimizer: Optimizer, lr_scale: f64) -> ParameterGroup {
        ParameterGroup { name: name.to_owned(), elements, optimizer, lr_scale }
    }

    #[test]
    fn parameters_with_the_same_settings_are_one_group() {
        let layout = ParamLayout::new(parameters());
        let adamw = AdamW { weight_decay: 0.5, ..AdamW::default() };
        let all = Optimizer::Adamw(AdamW { decays: Decays::All, ..adamw });
        let [decayed, free] = [0.5, 0.0].map(|weight_decay| Optimizer::Adamw(AdamW { weight_decay, ..adamw }));
        let groups = decayed.groups(&[], &layout, 1);
        assert_eq!(groups, [group("adamw", 0..26, decayed, 1.0), group("adamw", 26..31, free, 1.0)]);
        for (name, optimizer) in
            [("adamw", all), ("adamw", free), ("sgd", Optimizer::Sgd(Sgd { lr: 0.5, momentum: 0.5 }))]
        {
            assert_eq!(optimizer.groups(&[], &layout, 1), [group(name, 0..31, optimizer, 1.0)]);
        }
    }

    #[test]
    fn muon_updates_the_matrices_of_layers() {
        let adamw = AdamW { lr: 0.25, weight_decay: 0.5, ..AdamW::default() };
        let muon = Optimizer::Muon(Muon { lr: 0.5, adamw, ..Muon::default() });
        let layout = ParamLayout::with_fewer_moments(parameters(), |spec| muon.update_of(spec, 1).moments == 1);
        let [decayed, free] =
            [0.5, 0.0].map(|weight_decay| Optimizer::Adamw(AdamW { weight_decay, ..adamw }).without_lr());
        let groups = muon.groups(&[], &layout, 1);
        let expected =
            [group("muon", 0..6, muon, 1.0), group("adamw", 6..26, decayed, 0.5), group("adamw", 26..31, free, 0.5)];
        assert_eq!(groups, expected);
        assert_eq!(layout.one_moment, 6);
    }

    #[test]
    fn the_last_group_that_matches_counts() {
        let options = |pattern: &str, lr_scale, weight_decay| GroupOptions {
            r#match: pattern.to_owned(),
            lr_scale,
            weight_decay,
        };
        let lion = Lion { weight_decay: 0.5, ..Lion::default() };
        let optimizer = Optimizer::Lion(lion);
        let given = [options("*.bias", Some(0.5), Some(0.25)), options("layers.*.up.*", Some(0.125), None)];
        let rules = GroupRules { optimizer, options: &given, transfer: None, layers: 1 };
        let scales = rules.lr_scales(&parameters());
        let expected = [("lion", 1.0), ("lion + *.bias + layers.*.up.*", 0.125), ("lion + layers.*.up.*", 0.125)]
            .map(|(k, v)| (k.to_owned(), v));
        assert_eq!(scales, BTreeMap::from(expected));
        let groups = optimizer.groups(&given, &ParamLayout::new(parameters()), 1);
        let bias = groups.last().unwrap();
        assert_eq!(bias.optimizer, Optimizer::Lion(Lion { weight_decay: 0.25, ..lion }));
        assert!(matches("*a*b", "xaxxb") && matches("a*", "a") && !matches("*a*b", "xaxxbx") && !matches("a", "ab"));
    }
}
