//! Turns to call the database for live control. A workspace has one at a time, and those that wait are served in order, so that no
//! workspace keeps another waiting for more than a call.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// Most concurrent calls. The region's publishing and importing share the same four connections.
const MAX_CALLS: usize = 2;

/// The turns of all workspaces.
pub(super) struct Turns {
    all: Semaphore,
    /// Those whose calls have or await a turn.
    workspaces: Mutex<HashMap<String, Arc<Semaphore>>>,
}

/// The right to make one call.
pub(super) struct Turn<'a> {
    _of_all: SemaphorePermit<'a>,
    _of_workspace: OwnedSemaphorePermit,
}

impl Default for Turns {
    fn default() -> Turns {
        Turns { all: Semaphore::new(MAX_CALLS), workspaces: Mutex::default() }
    }
}

impl Turns {
    /// Waits for a turn of a workspace.
    pub(super) async fn take(&self, workspace: &str) -> Option<Turn<'_>> {
        let of_workspace = self.of(workspace).acquire_owned().await.ok()?;
        let of_all = self.all.acquire().await.ok()?;
        Some(Turn { _of_all: of_all, _of_workspace: of_workspace })
    }

    fn of(&self, workspace: &str) -> Arc<Semaphore> {
        let mut workspaces = self.workspaces.lock();
        workspaces.retain(|_, turn| Arc::strong_count(turn) > 1);
        workspaces.entry(workspace.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(1))).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;

    #[test]
    fn a_workspace_has_one_turn_at_a_time() {
        let turns = Turns::default();
        let take = |workspace: &str| turns.take(workspace).now_or_never().flatten();
        let one = take("one").unwrap();
        for _ in 0..100 {
            assert!(take("one").is_none());
        }
        let two = take("two").unwrap();
        assert!(take("three").is_none(), "there are two in all");
        drop(one);
        let three = take("three").unwrap();
        assert_eq!(turns.workspaces.lock().len(), 2);
        drop((two, three));
        assert!(take("one").is_some());
    }
}
