//! Counts of all regions in the database: written, read, and guarded against a database that was set back.

pub(in crate::database) mod import;
pub(in crate::database) mod lease;
pub(in crate::database) mod marker;
pub(in crate::database) mod publish;
pub(in crate::database) mod rows;
pub(in crate::database) mod status;
