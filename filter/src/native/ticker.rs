//! The module's own thread, which does the ticks of all plugins.

use super::{installed, slots, wake};
use crate::host::kinds::LogLevel;
use crate::host::{calls, metrics};
use std::sync::Once;
use std::thread::Builder;

static STARTED: Once = Once::new();

/// Starts the thread, unless it runs. It runs as long as the process: without a configuration it waits.
pub fn start() {
    STARTED.call_once(|| {
        if let Err(error) = Builder::new().name("weir".to_owned()).spawn(run) {
            calls::log(
                LogLevel::Error,
                &format!("weir: cannot start a thread: {error}; nothing is exchanged"),
            );
        }
    });
}

fn run() {
    loop {
        wake::begin();
        let now = calls::mono_now();
        let next = slots::all().iter().filter_map(|slot| slot.tick(now)).min_by_key(|due| due.0);
        if metrics::has_changes()
            && let Some(newest) = installed::all().last()
        {
            newest.ask();
        }
        wake::wait(next, calls::mono_now);
    }
}
