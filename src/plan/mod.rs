//! The pure planner: an experiment and facts about data and machine become one Program per rank.

pub mod program;
