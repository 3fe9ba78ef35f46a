//! Counts of all regions in the database: packets, the import of all rows, and the region lease.

pub(in crate::database) mod exchange;
pub(in crate::database) mod import;
pub(in crate::database) mod lease;
pub(in crate::database) mod rows;
