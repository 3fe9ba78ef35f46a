//! MySQL, MariaDB and SQLite: packets, controls, plans of queries, faults.

mod database_controls;
mod database_controls_far;
mod database_faults;
mod database_files;
mod database_packets;
mod database_plans;
mod database_programs;
mod database_store;
