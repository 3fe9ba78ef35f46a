//! Counts of all regions in the database: packets, publication, import, the marker against data loss, and the region lease.

pub(in crate::database) mod exchange;
pub(in crate::database) mod import;
pub(in crate::database) mod lease;
pub(in crate::database) mod marker;
pub(in crate::database) mod publish;
pub(in crate::database) mod rows;
pub(in crate::database) mod status;
