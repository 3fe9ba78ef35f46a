//! The room for controls. Workspaces share it: none may have more than [three times what is free](most_of_part), so that those that take
//! all they may leave room to the others. So they share the part of it that controls of rules may have.
//!
//! Counted once in a transaction, then updated with each change of the transaction.

use super::StoredControl;
use crate::database::DatabaseError;
use crate::database::connection::{Arg, Connection};
use std::collections::BTreeMap;
use weir_core::control::MAX_CONTROLS;
use weir_core::model::room::most_of_part;
use weir_core::model::time::UnixMs;

/// Most controls in force that rules set. The rest is reserved for operators if rules set very many.
pub const MAX_AUTOMATIC: usize = MAX_CONTROLS / 4;

/// The limit that is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The workspace has its part of [`MAX_CONTROLS`].
    Controls,
    /// The rules of the workspace have their part of [`MAX_AUTOMATIC`].
    Rules,
    /// The database has used up its revisions.
    Revisions,
}

/// The numbers of stored controls.
#[derive(Default)]
pub(super) struct Room {
    kept: usize,
    all: InForce,
    workspaces: BTreeMap<Vec<u8>, InForce>,
}

/// The numbers of controls in force.
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
            .each(connection.statements().controls.count, &[now, now], |row| {
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

    /// All stored controls, deleted and expired ones included.
    pub fn kept(&self) -> usize {
        self.kept
    }

    /// The limit that leaves no room for another control, if any.
    pub fn full(&self, workspace: &str, automatic: bool) -> Option<Bound> {
        let own = self.workspaces.get(workspace.as_bytes()).copied().unwrap_or_default();
        let is_full = |own: usize, all: usize, most: usize| own >= most_of_part(most.saturating_sub(all));
        if is_full(own.controls, self.all.controls, MAX_CONTROLS) {
            return Some(Bound::Controls);
        }
        let rules_are_full = automatic && is_full(own.by_rules, self.all.by_rules, MAX_AUTOMATIC);
        rules_are_full.then_some(Bound::Rules)
    }

    /// Updates the counts: `was` is no longer stored, `is_now` is stored instead.
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
