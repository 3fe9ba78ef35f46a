//! Processes of scenarios: `binaries` (paths of the programs), `process` (a child that ends with its value), `ports`,
//! `clock` (a wall clock that a test moves) and `wait` (conditions with deadlines).

pub mod binaries;
pub mod clock;
pub mod ports;
pub mod process;
pub mod wait;
