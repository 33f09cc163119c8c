//! A loss of power between any two changes of files: those that a run made are replayed into a model of a file system.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::file_system::{FileSystem, Survival};
use super::injector::{Call, Injector};
use super::{
    APPLY, EXPORTS, PREPARATIONS, SEAL, Sample, Scenario, check_is_all_or_nothing, new_sandbox, sealable_sandbox,
    trained_sandbox,
};
use crate::sandbox::{Sandbox, names_in};

/// The newest checkpoint in each folder of checkpoints that was synced. No loss of power may take it.
type Promises = BTreeMap<PathBuf, String>;

fn note_promise(promises: &mut Promises, call: &Call, file_system: &FileSystem) {
    // A folder that is being made is not promised.
    let is_unfinished = call.path.iter().any(|name| name.to_str().is_some_and(|name| name.starts_with('.')));
    if call.operation == "sync" && call.path.ends_with("checkpoints") && !is_unfinished {
        let names = file_system.names_in(&call.path);
        if let Some(newest) = names.into_iter().rfind(|name| name.starts_with("step-")) {
            promises.insert(call.path.clone(), newest);
        }
    }
}

/// Runs the command of `scenario` again on what a loss of power after each of its calls leaves.
fn check_power_losses(scenario: &Scenario<'_>, mut sample: Sample) {
    let mut file_system = FileSystem::holding(scenario.prepared.folder());
    let mut promises = Promises::new();
    for (index, call) in scenario.calls.iter().enumerate() {
        file_system.apply(call);
        note_promise(&mut promises, call, &file_system);
        if call.operation == "none" {
            continue;
        }
        let is_last = index + 1 == scenario.calls.len();
        for survival in Survival::ALL {
            sample.try_next(is_last, || {
                let sandbox = Sandbox::in_memory();
                file_system.write_image(survival, sandbox.folder());
                let at = format!("call {} ({} {})", index + 1, call.operation, call.path.display());
                let what = format!("{}: power is lost after {at}, {survival:?} survive", scenario.name);
                for (folder, checkpoint) in &promises {
                    let path = sandbox.path(folder);
                    assert!(path.is_dir() && names_in(&path).contains(checkpoint), "{what}: {checkpoint} is lost");
                }
                if is_last {
                    assert_eq!((scenario.products)(&sandbox), scenario.reference, "{what}: the result is lost");
                }
                (scenario.check_remains)(&sandbox, &scenario.reference, &what);
                scenario.check_recovery(&sandbox, &what);
            });
        }
    }
    sample.finish(&format!("losses of power: {}, {} calls", scenario.name, scenario.calls.len()));
}

#[test]
fn a_new_run_survives_a_loss_of_power() {
    let Some(injector) = Injector::new() else { return };
    check_power_losses(&Scenario::of_runs(&injector, "a new run", APPLY, new_sandbox()), Sample::every(41));
}

#[test]
fn a_resumed_run_survives_a_loss_of_power() {
    let Some(injector) = Injector::new() else { return };
    check_power_losses(&Scenario::of_resumed_run(&injector), Sample::every(41));
}

#[test]
fn exports_and_shards_survive_a_loss_of_power() {
    let Some(injector) = Injector::new() else { return };
    for command in [&EXPORTS[..], &PREPARATIONS].concat() {
        check_power_losses(&Scenario::of_files(&injector, command, trained_sandbox()), Sample::every(29));
    }
}

#[test]
fn a_sealed_run_survives_a_loss_of_power() {
    let Some(injector) = Injector::new() else { return };
    let scenario = Scenario::of_files(&injector, SEAL, sealable_sandbox());
    check_power_losses(&Scenario { check_remains: check_is_all_or_nothing, ..scenario }, Sample::every(29));
}
