//! Exact limits: logs on Redis or in memory, ledgers in the database.

mod exact_logs;
mod exact_streams;
mod ledger;
mod ledger_by_hand;
mod ledger_faults;
