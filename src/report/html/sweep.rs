//! A sweep as the page shows it: a row a point, what mattered. The one place that knows how sweeps are stored.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use super::error::ReportError;
use super::files;
use crate::store::catalog;
use crate::store::manifest::SweepPoint;
use crate::store::run_dir;

/// The file in a sweep's folder, and the folder of sweeps among the runs.
pub const SWEEP: &str = "sweep.json";
pub const SWEEPS: &str = "sweeps";

/// A sweep.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SweepTable {
    pub id: String,
    /// `val_loss`, and whether less of it is better.
    pub metric: String,
    pub minimize: bool,
    /// The parameters that vary, in the order of the sweep file.
    pub parameters: Vec<String>,
    pub rows: Vec<SweepRow>,
    /// What mattered, the most first, and by which measure.
    pub importance: Vec<Importance>,
    pub importance_method: Option<String>,
}

/// One point.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SweepRow {
    /// From 1.
    pub point: usize,
    /// Of each parameter.
    pub values: Vec<Value>,
    pub status: String,
    pub steps: u64,
    pub objective: Option<f64>,
    /// Its run's id.
    pub run: Option<String>,
    pub seconds: Option<f64>,
}

/// How much a parameter mattered: a share of 1.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Importance {
    pub parameter: String,
    pub share: f64,
}

/// The folder of the sweep that `wanted` means: a folder, or an id among the sweeps of `root`.
#[must_use]
pub fn find(root: &Path, wanted: &str) -> Option<PathBuf> {
    if wanted.is_empty() {
        return None;
    }
    let is_name = Path::new(wanted).components().count() == 1 && !wanted.starts_with('.');
    let named = is_name.then(|| root.join(SWEEPS).join(wanted));
    named.into_iter().chain([PathBuf::from(wanted)]).find(|folder| folder.join(SWEEP).is_file())
}

/// The sweep in `folder`, and the directories in `root` of its points' runs, in the order of the points.
///
/// # Errors
/// If there is no sweep, or it cannot be read.
pub fn load(folder: &Path, root: &Path) -> Result<(SweepTable, Vec<PathBuf>), ReportError> {
    let none = || format!("{}: no sweep: there is no {SWEEP}", folder.display());
    let stored: Value = files::json(&folder.join(SWEEP))
        .map_err(ReportError::Request)?
        .ok_or_else(none)
        .map_err(ReportError::Request)?;
    let id = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let runs = runs_of(&id, root)?;
    Ok((table(&id, &stored, &runs), runs.into_iter().map(|(_, path)| path).collect()))
}

/// The runs in `root` that are points of the sweep `id`, by point.
fn runs_of(id: &str, root: &Path) -> Result<Vec<(usize, PathBuf)>, ReportError> {
    let point = |sweep: Option<SweepPoint>| sweep.filter(|s| s.id == id).map(|s| s.point);
    let mut runs: Vec<(usize, PathBuf)> = catalog::list(root)?
        .into_iter()
        .filter_map(|listed| Some((point(run_dir::manifest(&listed.path).ok()?.sweep)?, listed.path)))
        .collect();
    runs.sort();
    Ok(runs)
}

/// `stored` as a table: `points` with `values`, `objective` with `metric` and `goal`, perhaps `importance`.
fn table(id: &str, stored: &Value, runs: &[(usize, PathBuf)]) -> SweepTable {
    let points: &[Value] = stored["points"].as_array().map_or(&[], Vec::as_slice);
    let mut parameters: Vec<String> = Vec::new();
    for name in points.iter().filter_map(|p| p["values"].as_object()).flat_map(serde_json::Map::keys) {
        if !parameters.contains(name) {
            parameters.push(name.clone());
        }
    }
    let metric = stored["objective"]["metric"].as_str().unwrap_or("val_loss").to_owned();
    let row = |(i, point): (usize, &Value)| {
        let index = point["index"].as_u64().map_or(i + 1, |n| n as usize);
        let run = runs.iter().find(|(n, _)| *n == index).map(|(_, path)| path);
        let listed = run.map(|path| catalog::describe(path));
        let summary = run.and_then(|path| run_dir::summary(path).ok().flatten());
        let measured = listed.as_ref().and_then(|l| if metric == "loss" { l.loss } else { l.val_loss });
        SweepRow {
            point: index,
            values: parameters.iter().map(|name| point["values"][name].clone()).collect(),
            status: listed.as_ref().map_or("queued", |l| l.status.as_str()).to_owned(),
            steps: listed.as_ref().map_or(0, |l| l.step),
            objective: measured.filter(|v| v.is_finite()),
            run: listed.map(|l| l.id),
            seconds: summary.map(|s| s.wall_seconds),
        }
    };
    SweepTable {
        id: id.to_owned(),
        minimize: stored["objective"]["goal"].as_str() != Some("maximize"),
        rows: points.iter().enumerate().map(row).collect(),
        metric,
        parameters,
        importance: Vec::new(),
        importance_method: None,
    }
}
