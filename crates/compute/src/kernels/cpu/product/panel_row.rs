//! A row of a panel.

use super::PANEL_COLUMNS;

/// A row of a panel.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C, align(64))]
pub struct PanelRow<T = f32>(pub [T; PANEL_COLUMNS]);
