//! The layers of settings (preset, file, environment, `--set`), merged by figment; and which of them each value is from.
//!
//! The lowest layer, the built-in defaults, is in the raw types and in `resolve`.

use figment::value::{Dict, Map, Value as Merged};
use figment::{Figment, Metadata, Profile, Provider};
use serde_json::Value;

use super::check::{join, one_line};
use super::shape::{Shape, Slot, root, variants};
use runner_spec::diagnostic::Diagnostic;
use runner_template::source::{Place, Source, SourceKind};
use runner_template::tree::{Node, Yaml};

/// One layer, checked.
pub struct Layer {
    pub from: From,
    pub value: Value,
}

pub enum From {
    Preset(String),
    /// The file in which the weights of `model.init.from` describe their model.
    Weights(String),
    Text {
        source: Source,
        tree: Node,
    },
}

/// All layers, merged.
pub struct Layers {
    all: Vec<Layer>,
    figment: Figment,
    merged: Dict,
}

/// A place in one of the layers.
#[derive(Clone, Copy)]
pub struct Location<'l> {
    pub source: &'l Source,
    pub place: Place,
    /// Rank of the layer; a higher one wins.
    pub layer: usize,
    /// True if the key itself stands there, false if only the section that it belongs to.
    pub exact: bool,
}

struct AsProvider<'v>(usize, &'v Value);

impl Provider for AsProvider<'_> {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.0.to_string())
    }

    fn data(&self) -> figment::Result<Map<Profile, Dict>> {
        let dict = Merged::serialize(self.1)?.into_dict().unwrap_or_default();
        Ok(Map::from([(Profile::Default, dict)]))
    }
}

impl Layers {
    /// Merges `layers`, the lowest first.
    pub fn merge(mut layers: Vec<Layer>) -> Result<Self, Box<figment::Error>> {
        for low in 0..layers.len() {
            let (lower, higher) = layers.split_at_mut(low + 1);
            for above in higher {
                prune(&mut lower[low].value, &above.value, root());
            }
        }
        let mut figment = Figment::new();
        for (i, layer) in layers.iter().enumerate() {
            figment = figment.merge(AsProvider(i, &layer.value));
        }
        let merged = figment.data().map_err(Box::new)?.remove(&Profile::Default).unwrap_or_default();
        Ok(Self { all: layers, figment, merged })
    }

    /// The merged value of all layers.
    pub fn value(&self) -> Value {
        runner_spec::format::json_value(&self.merged)
    }

    fn find(&self, path: &str) -> Option<&Merged> {
        let mut parts = path.split('.');
        let mut at = self.merged.get(parts.next()?)?;
        for part in parts {
            at = match at {
                Merged::Dict(_, dict) => dict.get(part)?,
                Merged::Array(_, items) => items.get(part.parse::<usize>().ok()?)?,
                _ => return None,
            };
        }
        Some(at)
    }

    /// The layer that gives `path`; a higher one wins over a lower one.
    pub fn layer_of(&self, path: &str) -> Option<usize> {
        self.figment.get_metadata(self.find(path)?.tag())?.name.parse().ok()
    }

    /// The location of `path`, or else of the section that it belongs to. `None` only if there is no text at all.
    pub fn locate(&self, path: &str) -> Option<Location<'_>> {
        if let Some(layer) = self.layer_of(path)
            && let Some((source, place)) = self.place_in(layer, path)
        {
            return Some(Location { source, place, layer, exact: true });
        }
        let mut at = path;
        loop {
            at = at.rsplit_once('.').map_or("", |(parent, _)| parent);
            // The file first: a section is written there, and only touched by the others.
            if let Some((layer, (source, place))) = (0..self.all.len()).find_map(|i| Some((i, self.place_in(i, at)?))) {
                return Some(Location { source, place, layer, exact: false });
            }
            if at.is_empty() {
                return None;
            }
        }
    }

    fn place_in(&self, layer: usize, path: &str) -> Option<(&Source, Place)> {
        let From::Text { source, tree } = &self.all[layer].from else { return None };
        if path.is_empty() {
            return Some((source, Place { length: 1, ..tree.place }));
        }
        let (mut node, mut found) = (tree, None);
        for part in path.split('.') {
            let (place, inner) = node.get(part)?;
            (node, found) = (inner, Some(place));
        }
        Some((source, found?))
    }

    /// The place of the value of `path` itself, if it is a single word or number.
    pub fn value_place(&self, path: &str) -> Option<Place> {
        let From::Text { tree, .. } = &self.all[self.layer_of(path)?].from else { return None };
        let node = path.split('.').try_fold(tree, |node, part| Some(node.get(part)?.1))?;
        (matches!(node.value, Yaml::Scalar { .. }) && !node.is_null()).then_some(node.place)
    }

    /// The origin of the final value at `path`, such as `exp.yaml:12:7`; `None` for a default.
    pub fn origin(&self, path: &str, is_null: bool) -> Option<String> {
        if matches!(self.find(path)?, Merged::Empty(..)) && !is_null {
            return None;
        }
        let layer = self.layer_of(path)?;
        match &self.all[layer].from {
            From::Preset(name) => Some(format!("preset {name}")),
            From::Weights(file) => Some(file.clone()),
            From::Text { source, .. } => Some(source.origin(self.place_in(layer, path)?.1)),
        }
    }

    /// The environment variables that have a say in the result, with their values.
    pub fn environment(&self) -> Vec<(String, String)> {
        fn visit(layers: &Layers, value: &Merged, used: &mut Vec<bool>) {
            match value {
                Merged::Dict(_, dict) if !dict.is_empty() => dict.values().for_each(|v| visit(layers, v, used)),
                leaf => {
                    let layer = layers.figment.get_metadata(leaf.tag()).and_then(|m| m.name.parse::<usize>().ok());
                    if let Some(flag) = layer.and_then(|i| used.get_mut(i)) {
                        *flag = true;
                    }
                }
            }
        }
        let mut used = vec![false; self.all.len()];
        self.merged.values().for_each(|v| visit(self, v, &mut used));
        let variables =
            self.all.iter().zip(used).filter(|(_, used)| *used).filter_map(|(layer, _)| match &layer.from {
                From::Text { source, .. } if source.kind == SourceKind::Environment => {
                    Some((source.label.clone(), source.yaml().to_owned()))
                }
                _ => None,
            });
        variables.collect()
    }

    /// Reports required keys that are missing, and removes from `value` what serde could not read.
    pub fn complete(&self, value: &mut Value, poisoned: &mut Vec<String>, out: &mut Vec<Diagnostic>) {
        self.complete_at(value, root(), "", poisoned, out);
    }

    /// True if the value is complete.
    fn complete_at(
        &self,
        value: &mut Value,
        slot: Slot<'static>,
        path: &str,
        poisoned: &mut Vec<String>,
        out: &mut Vec<Diagnostic>,
    ) -> bool {
        let Value::Object(map) = value else { return true };
        match slot.shape {
            Shape::Keys(keys) => {
                let mut broken = Vec::new();
                map.retain(|key, inner| {
                    let Some(slot) = keys.get(key) else { return false };
                    if inner.is_null() {
                        return slot.nullable;
                    }
                    let whole = self.complete_at(inner, slot, &join(path, key), poisoned, out);
                    if !whole {
                        broken.push(key.clone());
                    }
                    whole
                });
                let mut whole = true;
                for key in keys.required() {
                    if map.get(key).is_some_and(|v| !v.is_null()) {
                        continue;
                    }
                    // The sections are optional to serde, so that the others can be looked at without them.
                    whole &= path.is_empty() || path == "data";
                    let at = join(path, key);
                    if !broken.iter().any(|b| b == key) && !is_poisoned(poisoned, &at) {
                        out.extend(self.missing(path, key, keys.get(key)));
                    }
                    poisoned.push(at);
                }
                whole
            }
            Shape::Variants(of) => {
                let of = variants(of);
                // A choice is one key; what a layer without mistakes merges to has one.
                let Some((name, inner)) = map.iter_mut().next() else { return true };
                let slot = of.iter().find(|(n, _)| n == name).map(|(_, slot)| *slot);
                let at = join(path, name);
                slot.is_some_and(|slot| self.complete_at(inner, slot, &at, poisoned, out))
            }
            _ => true,
        }
    }

    fn missing(&self, path: &str, key: &str, slot: Option<Slot<'static>>) -> Option<Diagnostic> {
        let at = join(path, key);
        let location = self.locate(&at)?;
        let help = match (at.as_str(), slot.map(|s| s.shape)) {
            ("model", _) => "add `model: {preset: gpt2-micro}`, or another preset, or the sizes".to_owned(),
            ("data", _) => "add `data: {train: {text: {files: [input.txt]}}}`, or another source".to_owned(),
            (_, Some(Shape::Variants(of))) => {
                let names: Vec<&str> = variants(of).into_iter().map(|(name, _)| name).collect();
                format!("choose one of {}", runner_spec::diagnostic::list(&names, "and"))
            }
            _ => slot.map(|s| one_line(s.description)).unwrap_or_default(),
        };
        Some(location.source.diagnostic(location.place, &at, format!("`{at}` is missing"), help))
    }
}

/// True if a mistake was reported at `path`, in it, or around it.
pub(crate) fn is_poisoned(poisoned: &[String], path: &str) -> bool {
    let within = |inner: &str, outer: &str| {
        outer.is_empty() || inner == outer || inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('.'))
    };
    poisoned.iter().any(|p| within(p, path) || within(path, p))
}

/// Takes out of `lower` what a different choice in `higher` replaces.
fn prune(lower: &mut Value, higher: &Value, slot: Slot<'static>) {
    let (Value::Object(low), Value::Object(high)) = (lower, higher) else { return };
    match slot.shape {
        Shape::Keys(keys) => {
            let exclusive = keys.exclusive();
            let chosen = |key: &str| high.get(key).is_some_and(|v| !v.is_null());
            if let Some(winner) = exclusive.iter().find(|key| chosen(key)) {
                low.retain(|key, _| key == winner || !exclusive.contains(&key.as_str()));
            }
            for (key, inner) in low.iter_mut() {
                if let (Some(above), Some(slot)) = (high.get(key), keys.get(key)) {
                    prune(inner, above, slot);
                }
            }
        }
        Shape::Variants(of) => {
            low.retain(|key, _| high.contains_key(key));
            for (name, slot) in variants(of) {
                if let (Some(inner), Some(above)) = (low.get_mut(name), high.get(name)) {
                    prune(inner, above, slot);
                }
            }
        }
        _ => {}
    }
}
