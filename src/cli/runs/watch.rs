//! `runner watch`: shows runs on the terminal while they train, and after.

use std::path::Path;
use std::time::{Duration, Instant};

use clap::Args;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::cli::common::RunsFolderArgs;
use crate::cli::runs::selection::SelectionArgs;
use crate::cli::terminal::exit::{Context as _, Exit, Result};
use crate::cli::terminal::interrupt::Interrupt;
use crate::cli::terminal::output::print;
use runner_report::watch::{ProgressLines, WatchKey, WatchState, draw};

/// Records are read again after this time.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// Keys are looked for at least this often.
const KEY_INTERVAL: Duration = Duration::from_millis(100);

/// Watch runs on the terminal: their progress, speed, time left and curves, while they train and after.
///
/// Without names it shows all runs of the folder, and new ones as they start. The runs do not notice: they may be started by any process of
/// this machine, and go on when this command ends. Where standard output is not a terminal, it prints a line whenever a run moves on, and
/// ends when no run trains.
#[derive(Debug, Clone, Args)]
pub(crate) struct WatchArgs {
    #[command(flatten)]
    pub selection: SelectionArgs,
    #[command(flatten)]
    pub root: RunsFolderArgs,
    /// Print lines, even on a terminal.
    #[arg(long)]
    pub plain: bool,
}

/// # Errors
/// If a name stands for no run, or the terminal cannot be used.
pub(crate) fn run(args: &WatchArgs) -> Result<Exit> {
    let root = args.root.root();
    // A mistake in the names is reported before the screen is taken.
    args.selection.list(&root)?;
    let title = if args.selection.names.is_empty() {
        format!("{}/", root.display().to_string().trim_end_matches('/'))
    } else {
        args.selection.names.join(" ")
    };
    let mut state = WatchState::new(title);
    refresh(args, &root, &mut state);
    if args.plain || !console::user_attended() {
        return watch_lines(args, &root, &mut state);
    }
    let mut terminal = ratatui::try_init().context("the terminal")?;
    let watched = watch_screen(args, &root, &mut state, &mut terminal);
    ratatui::restore();
    watched
}

fn refresh(args: &WatchArgs, root: &Path, state: &mut WatchState) {
    state.refresh(args.selection.list(root).map_err(|error| error.to_string()));
}

fn watch_lines(args: &WatchArgs, root: &Path, state: &mut WatchState) -> Result<Exit> {
    // Nothing is ever half done here, so the first signal ends the process with the documented code.
    let _interrupt = Interrupt::install()?;
    let mut lines = ProgressLines::default();
    loop {
        for line in lines.due(state) {
            print(&format!("{line}\n"))?;
        }
        if !state.has_running() {
            return Ok(Exit::Done);
        }
        std::thread::sleep(REFRESH_INTERVAL);
        refresh(args, root, state);
    }
}

fn watch_screen(args: &WatchArgs, root: &Path, state: &mut WatchState, terminal: &mut DefaultTerminal) -> Result<Exit> {
    let mut read = Instant::now();
    loop {
        terminal.draw(|frame| draw(frame, state)).context("the terminal")?;
        if event::poll(KEY_INTERVAL).context("the terminal")? {
            match event::read().context("the terminal")? {
                Event::Key(key) if key.kind == KeyEventKind::Press && !press(state, key) => return Ok(Exit::Done),
                _ => continue,
            }
        }
        if read.elapsed() >= REFRESH_INTERVAL {
            refresh(args, root, state);
            read = Instant::now();
        }
    }
}

/// Does what `key` asks for. Returns false if it ends the command.
fn press(state: &mut WatchState, key: KeyEvent) -> bool {
    let meant = match key.code {
        KeyCode::Char('c' | 'd') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
        KeyCode::Char(character) => WatchKey::Character(character),
        KeyCode::Up => WatchKey::Up,
        KeyCode::Down => WatchKey::Down,
        KeyCode::Home => WatchKey::First,
        KeyCode::End => WatchKey::Last,
        KeyCode::Enter => WatchKey::Enter,
        KeyCode::Esc => WatchKey::Escape,
        KeyCode::Backspace => WatchKey::Backspace,
        _ => return true,
    };
    state.press(meant)
}
