//! Command-line arguments, and all commands except the server.
//!
//! - `args`: every option. [`secret_files`]: secrets from files. [`variables`]: how their variables are read.
//! - `check_config`: validation of the filter's configuration by the filter's own parser.
//! - [`healthcheck`], [`overrides`], [`terminal`], [`zones`]: commands. [`client`]: their HTTP requests. [`database`]:
//!   their database options. [`outcome`]: exit codes and errors.
//! - [`log_fields`]: the server's log as text.

pub mod args;
pub mod check_config;
pub mod client;
pub mod database;
pub mod healthcheck;
pub mod log_fields;
pub mod outcome;
pub mod overrides;
pub mod secret_files;
pub mod terminal;
pub mod variables;
pub mod zones;
