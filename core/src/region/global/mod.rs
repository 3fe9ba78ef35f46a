//! The exchange with other regions: `publish` (what is due, what is imported), `due` (the keys that wait, by urgency), `excess` (how much
//! all regions together used beyond limits).

mod due;
pub(in crate::region) mod excess;
pub(in crate::region) mod publish;
