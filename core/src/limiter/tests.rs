//! Scenarios of one process: several workers over one table, a region behind them, time in steps.
