//! The arithmetic: functions on tensors, one implementation per device behind each.
