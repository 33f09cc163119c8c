//! What a person sees: progress, tables, summaries.
