//! The layers of settings (preset, file, environment, `--set`), merged by figment; and which of them each value is from.
//!
//! The lowest layer, the built-in defaults, is in the raw types and in `resolve`.

use std::path::{Path, PathBuf};

use figment::Figment;
use figment::providers::Serialized;
use serde_json::{Map, Value};

use crate::check::one_line;
use crate::mistakes::Mistakes;
use crate::shape::join;
use crate::shape::{KeyShape, Shape, parse_slot, root, variants};
use runner_spec::diagnostic::{Diagnostic, list};
use runner_yaml::source::{Place, Source, SourceKind};
use runner_yaml::tree::{Node, Yaml};

/// One layer, checked.
pub(crate) struct Layer {
    pub(crate) from: LayerOrigin,
    pub(crate) value: Value,
}

/// The origin of a layer.
pub(crate) enum LayerOrigin {
    /// A preset, or the file in which the weights of `model.init.from` describe their model, by its name.
    Named(String),
    Text {
        source: Source,
        tree: Node,
        /// The folder that paths start from, absolute; `None` for that of the experiment.
        folder: Option<PathBuf>,
    },
}

impl Layer {
    /// Replaces the value at the JSON pointer `place`, which the layer has, by the text of `value`.
    pub(crate) fn set_text(&mut self, place: &str, value: &impl ToString) {
        if let Some(old) = self.value.pointer_mut(place) {
            *old = value.to_string().into();
        }
    }

    /// The folder that its paths start from, if it is not that of the experiment.
    pub(crate) fn folder(&self) -> Option<&Path> {
        match &self.from {
            LayerOrigin::Text { folder, .. } => folder.as_deref(),
            LayerOrigin::Named(_) => None,
        }
    }

    /// A mistake in the value of `path`; `None` if the layer is not text.
    pub(crate) fn diagnostic(&self, path: &str, message: String, help: String) -> Option<Diagnostic> {
        let LayerOrigin::Text { source, tree, .. } = &self.from else { return None };
        let place = key_and_value(tree, path).map_or(tree.place, |(_, value)| value.place);
        Some(source.diagnostic(place, path, message, help))
    }
}

/// All layers, merged.
pub(crate) struct Layers {
    all: Vec<Layer>,
    /// The experiment file among them.
    file: usize,
    pub(crate) merged: Value,
}

/// A place in one of the layers.
#[derive(Clone, Copy)]
pub(crate) struct Location<'l> {
    pub(crate) source: &'l Source,
    pub(crate) place: Place,
    /// Rank of the layer; a higher one wins.
    pub(crate) layer: usize,
    /// True if the key itself stands there, false if only the section that it belongs to.
    pub(crate) is_key: bool,
}

impl Layers {
    /// Merges `layers`, the lowest first. Layer `file` is the experiment file.
    ///
    /// # Errors
    /// If figment cannot represent a value; the values of checked layers are all representable.
    pub(crate) fn merge(mut layers: Vec<Layer>, file: usize) -> Result<Self, Box<figment::Error>> {
        for low in 0..layers.len() {
            let (lower, higher) = layers.split_at_mut(low + 1);
            for above in higher {
                prune(&mut lower[low].value, &above.value, root());
            }
        }
        let merge = |below: Figment, layer: &Layer| below.merge(Serialized::defaults(&layer.value));
        let merged = layers.iter().fold(Figment::new(), merge).extract().map_err(Box::new)?;
        Ok(Self { all: layers, file, merged })
    }

    /// The layer that gives `path`; a higher one wins over a lower one.
    pub(crate) fn layer_of(&self, path: &str) -> Option<usize> {
        value_at(&self.merged, path)?;
        self.all.iter().rposition(|layer| value_at(&layer.value, path).is_some())
    }

    /// The location of `path`, or else of the section that it belongs to. `None` only if there is no text at all.
    pub(crate) fn locate(&self, path: &str) -> Option<Location<'_>> {
        if let Some(layer) = self.layer_of(path)
            && let Some((source, place)) = self.place_in(layer, path)
        {
            return Some(Location { source, place, layer, is_key: true });
        }
        let mut at = path;
        loop {
            at = at.rsplit_once('.').map_or("", |(parent, _)| parent);
            // The file first, then those below it: a section is written there, and only touched by flags and variables.
            let below = (0..=self.file).rev().chain(self.file + 1..self.all.len());
            if let Some((layer, (source, place))) = below.into_iter().find_map(|i| Some((i, self.place_in(i, at)?))) {
                return Some(Location { source, place, layer, is_key: false });
            }
            if at.is_empty() {
                return None;
            }
        }
    }

    /// The folder that the path of `key` starts from, if it is not that of the experiment.
    pub(crate) fn folder_of(&self, key: &str) -> Option<&Path> {
        self.all[self.layer_of(key)?].folder()
    }

    fn place_in(&self, layer: usize, path: &str) -> Option<(&Source, Place)> {
        let LayerOrigin::Text { source, tree, .. } = &self.all[layer].from else { return None };
        if path.is_empty() {
            return Some((source, Place { length: 1, ..tree.place }));
        }
        Some((source, key_and_value(tree, path)?.0))
    }

    /// The place of the value of `path` itself, if it is a single word or number.
    pub(crate) fn value_place(&self, path: &str) -> Option<Place> {
        let LayerOrigin::Text { tree, .. } = &self.all[self.layer_of(path)?].from else { return None };
        let (_, node) = key_and_value(tree, path)?;
        (matches!(node.value, Yaml::Scalar { .. }) && !node.is_null()).then_some(node.place)
    }

    /// The origin of the final value at `path`, such as `exp.yaml:12:7`; `None` for a default.
    pub(crate) fn origin(&self, path: &str, is_null: bool) -> Option<String> {
        if value_at(&self.merged, path)?.is_null() && !is_null {
            return None;
        }
        let layer = self.layer_of(path)?;
        match &self.all[layer].from {
            LayerOrigin::Named(name) => Some(name.clone()),
            LayerOrigin::Text { source, .. } => Some(source.origin(self.place_in(layer, path)?.1)),
        }
    }

    /// The environment variables that set keys, with their values.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        let variables = self.all.iter().filter_map(|layer| match &layer.from {
            LayerOrigin::Text { source, .. } if source.kind == SourceKind::Environment => {
                Some((source.label.clone(), source.yaml().to_owned()))
            }
            _ => None,
        });
        variables.collect()
    }

    /// Reports required keys that are missing, and removes from `value` what serde could not read.
    pub(crate) fn complete(&self, value: &mut Value, mistakes: &mut Mistakes) {
        self.complete_at(value, root(), "", mistakes);
    }

    /// True if the value is complete.
    fn complete_at(&self, value: &mut Value, slot: KeyShape, path: &str, mistakes: &mut Mistakes) -> bool {
        if let (Value::Array(values), Shape::List { items, .. }) = (&mut *value, slot.shape) {
            let item = parse_slot(items);
            let mut whole = true;
            for (index, value) in values.iter_mut().enumerate() {
                whole &= self.complete_at(value, item, &join(path, &index.to_string()), mistakes);
            }
            return whole;
        }
        let Value::Object(map) = value else { return true };
        match slot.shape {
            Shape::Keys(keys) => {
                let mut broken = Vec::new();
                map.retain(|key, inner| {
                    let Some(slot) = keys.get(key) else { return false };
                    // An empty choice is the default, like one that is not given.
                    if matches!(slot.shape, Shape::Variants(_)) && inner.as_object().is_some_and(Map::is_empty) {
                        return false;
                    }
                    if inner.is_null() {
                        return slot.nullable;
                    }
                    let whole = self.complete_at(inner, slot, &join(path, key), mistakes);
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
                    if !broken.iter().any(|b| b == key) && !mistakes.is_poisoned(&at) {
                        mistakes.diagnostics.extend(self.missing(&at, keys.get(key)));
                    }
                    mistakes.poison(at);
                }
                whole
            }
            Shape::Variants(of) => {
                let choices = variants(of);
                // A choice is one key; what a layer without mistakes merges to has one.
                let Some((name, inner)) = map.iter_mut().next() else { return true };
                let slot = choices.iter().find(|(n, _)| n == name).map(|(_, slot)| *slot);
                let at = join(path, name);
                slot.is_some_and(|slot| self.complete_at(inner, slot, &at, mistakes))
            }
            Shape::Entries(of) => {
                let entry = parse_slot(of);
                // Null takes back an entry of a lower layer.
                map.retain(|name, inner| {
                    !inner.is_null() && self.complete_at(inner, entry, &join(path, name), mistakes)
                });
                true
            }
            _ => true,
        }
    }

    /// The diagnostic for the required key `path`, which is missing.
    fn missing(&self, path: &str, slot: Option<KeyShape>) -> Option<Diagnostic> {
        let location = self.locate(path)?;
        let help = match (path, slot.map(|s| s.shape)) {
            ("model", _) => "add `model: {preset: gpt2-micro}`, or another preset, or the sizes".to_owned(),
            ("data", _) => "add `data: {train: {text: {files: [input.txt]}}}`, or another source".to_owned(),
            (_, Some(Shape::Variants(of))) => {
                let names: Vec<&str> = variants(of).into_iter().map(|(name, _)| name).collect();
                format!("choose one of {}", list(&names, "and"))
            }
            _ => slot.map(|s| one_line(s.description)).unwrap_or_default(),
        };
        Some(location.source.diagnostic(location.place, path, format!("`{path}` is missing"), help))
    }
}

/// The place of the key at `path`, such as `train.steps`, and its value. A text or a number may stand for a section: it is the value of the
/// section's keys.
fn key_and_value<'n>(tree: &'n Node, path: &str) -> Option<(Place, &'n Node)> {
    path.split('.').try_fold((tree.place, tree), |(place, node), key| match node.value {
        Yaml::Scalar { .. } if !node.is_null() => Some((place, node)),
        _ => node.get(key),
    })
}

/// The value at `path`, such as `train.steps`.
fn value_at<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    value.pointer(&format!("/{}", path.replace('.', "/")))
}

/// Takes out of `lower` what a different choice in `higher` replaces.
pub(crate) fn prune(lower: &mut Value, higher: &Value, slot: KeyShape) {
    if let Shape::WordOr { other, .. } = slot.shape {
        return prune(lower, higher, parse_slot(other));
    }
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
        // A choice that names nothing takes nothing away.
        Shape::Variants(_) if high.is_empty() => {}
        Shape::Variants(of) => {
            low.retain(|key, _| high.contains_key(key));
            for (name, slot) in variants(of) {
                if let (Some(inner), Some(above)) = (low.get_mut(name), high.get(name)) {
                    prune(inner, above, slot);
                }
            }
        }
        Shape::Entries(of) => {
            for (name, inner) in low.iter_mut() {
                if let Some(above) = high.get(name) {
                    prune(inner, above, parse_slot(of));
                }
            }
        }
        _ => {}
    }
}
