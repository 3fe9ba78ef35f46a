//! For how many further controls there is room: in all, and for each workspace, so that none uses up what others need.
//!
//! Counted once in a transaction, and then kept up with what it changes.
//!
//! Leaves to others: making room among those that are over (`tidy`).

use super::StoredControl;
use crate::database::DatabaseError;
use crate::database::connection::{Arg, Connection};
use std::collections::BTreeMap;
use weir_core::control::MAX_CONTROLS;
use weir_core::model::time::UnixMs;

/// Most controls of one workspace that are in force: half of all.
pub const MAX_OF_WORKSPACE: usize = MAX_CONTROLS / 2;
/// Most controls in force that rules said by themselves: a flood of them must leave room for people.
pub const MAX_AUTOMATIC: usize = MAX_CONTROLS / 4;
/// Most of these of one workspace.
pub const MAX_AUTOMATIC_OF_WORKSPACE: usize = MAX_AUTOMATIC / 2;

/// Of what there is no more room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// [`MAX_CONTROLS`] are in force.
    All,
    /// [`MAX_OF_WORKSPACE`] are.
    Workspace,
    /// [`MAX_AUTOMATIC`] are.
    Rules,
    /// [`MAX_AUTOMATIC_OF_WORKSPACE`] are.
    RulesOfWorkspace,
    /// The database has used up its revisions.
    Revisions,
}

/// How many there are.
#[derive(Default)]
pub(super) struct Room {
    kept: usize,
    all: InForce,
    workspaces: BTreeMap<Vec<u8>, InForce>,
}

/// How many are in force.
#[derive(Clone, Copy, Default)]
struct InForce {
    controls: usize,
    by_rules: usize,
}

impl Room {
    pub async fn count(connection: &mut Connection, now: UnixMs) -> Result<Room, DatabaseError> {
        let now = Arg::Int(now.0);
        let mut room = Room::default();
        connection
            .each(COUNT, &[now, now], |row| {
                let number =
                    |column| usize::try_from(row.number(column).unwrap_or_default()).unwrap_or(usize::MAX);
                let found = InForce { controls: number(2), by_rules: number(3) };
                room.kept += number(1);
                room.all.controls += found.controls;
                room.all.by_rules += found.by_rules;
                room.workspaces.insert(row.bytes(0).unwrap_or_default().to_vec(), found);
            })
            .await?;
        Ok(room)
    }

    /// All that are kept, those that are over included.
    pub fn kept(&self) -> usize {
        self.kept
    }

    /// Whether there is no room for another one.
    pub fn full(&self, workspace: &str, automatic: bool) -> Option<Bound> {
        let own = self.workspaces.get(workspace.as_bytes()).copied().unwrap_or_default();
        let bounds = [
            (true, self.all.controls, MAX_CONTROLS, Bound::All),
            (true, own.controls, MAX_OF_WORKSPACE, Bound::Workspace),
            (automatic, self.all.by_rules, MAX_AUTOMATIC, Bound::Rules),
            (automatic, own.by_rules, MAX_AUTOMATIC_OF_WORKSPACE, Bound::RulesOfWorkspace),
        ];
        let met = bounds.into_iter().find(|(applies, count, most, _)| *applies && count >= most);
        met.map(|(.., bound)| bound)
    }

    /// What was in force no longer is; what is now comes instead.
    pub fn replace(&mut self, workspace: &str, was: Option<&StoredControl>, is_now: Option<&StoredControl>) {
        self.all.replace(was, is_now);
        self.workspaces.entry(workspace.into()).or_default().replace(was, is_now);
    }
}

impl InForce {
    fn replace(&mut self, was: Option<&StoredControl>, is_now: Option<&StoredControl>) {
        let by_rule = |stored: Option<&StoredControl>| stored.is_some_and(|stored| stored.automatic).into();
        self.controls = moved(self.controls, was.is_some().into(), is_now.is_some().into());
        self.by_rules = moved(self.by_rules, by_rule(was), by_rule(is_now));
    }
}

fn moved(count: usize, less: usize, more: usize) -> usize {
    count.saturating_sub(less).saturating_add(more)
}

/// Of each workspace all that are kept, those in force, and those of them that rules said: now, now.
const COUNT: &str = "
SELECT workspace,
       COUNT(*),
       COUNT(CASE WHEN deleted = 0 AND (expires_at = 0 OR expires_at > ?) THEN 1 END),
       COUNT(CASE WHEN deleted = 0 AND (expires_at = 0 OR expires_at > ?) AND automatic = 1 THEN 1 END)
FROM weir_controls
GROUP BY workspace";
