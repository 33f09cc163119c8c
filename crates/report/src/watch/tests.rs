//! What the screen shows, at the widths of common terminals, and what keys do.

use std::path::Path;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use runner_plan::testing::{compiled, experiment};
use runner_record::catalog::{ListedRun, ListedStatus, describe};
use runner_record::testing::{eval, timed_run, train};

use super::{ProgressLines, WatchKey, WatchState, draw};

/// Four runs: two that train, one that failed, and one that is done.
fn runs(root: &Path) -> Vec<ListedRun> {
    let plan = compiled(&experiment());
    let listed = (0..4_u32).map(|i| {
        let losses = (1..=40_u32).map(|step| {
            let loss = format!("{:.3}", 4.0 / f64::from(step).sqrt() + f64::from(i) / 4.0);
            let measured = if step % 10 == 0 { eval(step.into(), &loss) } else { String::new() };
            train(step.into(), &loss) + &measured
        });
        let lines: String = losses.collect();
        let path = timed_run(root, &plan, &[(0, "2026-01-01T00:00:00.000Z")], &lines);
        let status = [ListedStatus::Done, ListedStatus::Failed, ListedStatus::Running, ListedStatus::Running];
        let error = (i == 1).then(|| "step 40: the loss is not finite".to_owned());
        ListedRun { status: status[i as usize], error, tags: vec![format!("tag{i}")], ..describe(&path) }
    });
    listed.collect()
}

fn screen(state: &WatchState, width: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, 30)).unwrap();
    terminal.draw(|frame| draw(frame, state)).unwrap();
    terminal.backend().to_string()
}

fn press(state: &mut WatchState, keys: &str) {
    for key in keys.chars() {
        let key = match key {
            '\n' => WatchKey::Enter,
            '\u{1b}' => WatchKey::Escape,
            other => WatchKey::Character(other),
        };
        assert!(state.press(key), "{key:?} ends the command");
    }
}

#[test]
fn the_screen_at_several_widths() {
    let root = tempfile::tempdir().unwrap();
    let mut state = WatchState::new("runs/".to_owned());
    insta::assert_snapshot!("nothing_yet", screen(&state, 80));
    state.refresh(Ok(runs(root.path())));
    insta::assert_snapshot!("list_80", screen(&state, 80));
    insta::assert_snapshot!("list_160", screen(&state, 160));
    press(&mut state, "jj\n");
    insta::assert_snapshot!("failed_run_80", screen(&state, 80));
    insta::assert_snapshot!("failed_run_160", screen(&state, 160));
    state.refresh(Err("the folder cannot be read".to_owned()));
    assert!(screen(&state, 80).contains("the folder cannot be read"));
    // A terminal that is too small shows less, and nothing fails.
    for (width, height) in [(1, 1), (10, 3), (20, 8)] {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, &state)).unwrap();
    }
}

#[test]
fn keys_choose_pin_and_filter() {
    let root = tempfile::tempdir().unwrap();
    let mut state = WatchState::new("runs/".to_owned());
    state.refresh(Ok(runs(root.path())));
    let ids: Vec<String> = state.shown().map(|run| run.listed.id.clone()).collect();
    let drawn = |state: &WatchState| state.drawn().iter().map(|run| run.listed.id.clone()).collect::<Vec<_>>();
    assert_eq!(drawn(&state), ids[..2], "those that train");
    press(&mut state, "j pj");
    assert_eq!(state.selected.as_deref(), Some(ids[2].as_str()));
    assert!(state.pinned.is_empty(), "a second pin takes the first back");
    press(&mut state, " j");
    assert_eq!(drawn(&state), ids[2..4], "the pinned one and the chosen one");
    press(&mut state, "G");
    assert_eq!(state.selected.as_deref(), Some(ids[3].as_str()));
    press(&mut state, "/tag2\n");
    assert_eq!(state.shown().count(), 1);
    assert_eq!(state.selected().unwrap().listed.tags, ["tag2"]);
    press(&mut state, "\u{1b}");
    assert_eq!(state.shown().count(), 4);
    press(&mut state, "\n\u{1b}");
    assert!(!state.is_detail);
    // A run that is gone is not chosen any more.
    state.refresh(Ok(Vec::new()));
    assert!(state.selected().is_none());
    assert!(!state.press(WatchKey::Character('q')));
}

#[test]
fn lines_are_printed_when_a_run_moves_on() {
    let root = tempfile::tempdir().unwrap();
    let mut state = WatchState::new("runs/".to_owned());
    let all = runs(root.path());
    state.refresh(Ok(all.clone()));
    let mut lines = ProgressLines::default();
    insta::assert_snapshot!(lines.due(&state).join("\n"));
    assert!(lines.due(&state).is_empty());
    let done = all.into_iter().map(|run| ListedRun { status: ListedStatus::Done, error: None, ..run });
    state.refresh(Ok(done.collect()));
    assert_eq!(lines.due(&state).len(), 3, "those that were not done");
    assert!(!state.has_running());
}
