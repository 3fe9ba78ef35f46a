//! The commands: arguments, and those that are not the server.
//!
//! - [`args`]: every option. [`secret_files`]: secrets from files.
//! - [`check_config`]: the filter's configuration, parsed by the filter's own parser.
//! - [`healthcheck`], [`overrides`], [`terminal`], [`zones`]: commands; [`client`]: one HTTP request of theirs;
//!   [`database`]: the database that they work on; [`outcome`]: how they end.

pub mod args;
pub mod check_config;
pub mod client;
pub mod database;
pub mod healthcheck;
pub mod outcome;
pub mod overrides;
pub mod secret_files;
pub mod terminal;
pub mod zones;
