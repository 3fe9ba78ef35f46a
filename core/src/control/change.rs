//! Changes of live control: what each makes of the control that the database has in its place.
//!
//! A change is absolute. If its answer was lost, the caller may repeat it: the control is then already as requested,
//! and nothing changes. A [`Draft`] computes what one transaction makes of several changes, whose caller reads and
//! writes the rows.

use super::book::Book;
use super::{Control, Effect, MAX_CONTROLS, Slot, Target};
use crate::model::room::most_of_part;
use crate::model::time::UnixMs;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

/// Most controls in force that rules set. The rest is reserved for operators if rules set very many.
pub const MAX_AUTOMATIC: usize = MAX_CONTROLS / 4;

/// A control as the database has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredControl {
    /// Target, effect, expiry and revision.
    pub control: Control,
    /// The control was deleted.
    pub is_deleted: bool,
    /// The reason that the author gave.
    pub reason: String,
    /// The name of the token, or of the rule.
    pub author: String,
    /// A rule set the control, not a person.
    pub automatic: bool,
    /// When a control was first stored in this place, in milliseconds since the Unix epoch.
    pub created_at: u64,
    /// When the control was last changed, in milliseconds since the Unix epoch.
    pub updated_at: u64,
    /// The random number of its last change; see [`super::book`].
    pub stamp: u64,
}

/// A change of live control that an operator or a rule requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Whose limits.
    pub target: Target,
    /// The requested state.
    pub wish: Wish,
    /// The reason.
    pub reason: String,
    /// The author.
    pub author: String,
    /// Set if a rule requested the change: the time of the rule's decision. Such a change may extend a rule's control.
    /// It never replaces a person's control, and it does not restore a control that a person deleted after that time.
    pub automatic: Option<UnixMs>,
}

/// The requested state of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Sets this effect until this time; without a time it does not expire.
    Set(Effect, Option<UnixMs>),
    /// Deletes the control in this slot.
    Delete(Slot),
}

/// The result of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeOutcome {
    /// Applied: the control after the change, and before it.
    Done(Box<StoredControl>, Option<Box<StoredControl>>),
    /// Not needed: the control was already as requested.
    Same(Box<StoredControl>),
    /// There is no control to delete, or the ban of a rule has ended.
    Missing,
    /// Not applied: a person set or deleted the control since, or a rule's control lasts longer.
    Kept(Box<StoredControl>),
    /// Not applied: the limit on the number of controls is reached.
    Full(Bound),
}

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

/// The room for controls. Workspaces share it: none may have more than [three times what is free](most_of_part), so
/// that those that take all they may leave room to the others. So they share the part of it that controls of rules may
/// have. Counted once in a transaction, then updated with each change of the transaction.
#[derive(Clone, Debug, Default)]
pub struct Room {
    all: InForce,
    workspaces: BTreeMap<Vec<u8>, InForce>,
}

/// The numbers of controls in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InForce {
    /// All.
    pub controls: usize,
    /// Those that rules set.
    pub by_rules: usize,
}

/// Computes the results of changes one after the other, until all are written.
#[derive(Debug)]
pub struct Draft<'a> {
    book: &'a Book,
    now: UnixMs,
    /// The stored controls where a change applies, including the changes so far.
    stored: BTreeMap<(Target, Slot), StoredControl>,
    room: Room,
    revision: u64,
    made: Vec<Made>,
}

/// A change to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// The control after it.
    pub stored: StoredControl,
    /// The control in force before it.
    pub before: Option<StoredControl>,
}

impl StoredControl {
    /// Whether it is in force.
    pub fn is_in_force(&self, now: UnixMs) -> bool {
        !self.is_deleted && self.control.is_in_force(now)
    }

    /// The target and the slot.
    pub fn place(&self) -> (Target, Slot) {
        (self.control.target.clone(), self.control.effect.slot())
    }
}

impl Change {
    /// The slot in which it applies.
    pub fn slot(&self) -> Slot {
        match self.wish {
            Wish::Set(effect, _) => effect.slot(),
            Wish::Delete(slot) => slot,
        }
    }

    /// The result if `found` is stored; `None` if the change must be written.
    fn judge(&self, found: Option<&StoredControl>, now: UnixMs) -> Option<ChangeOutcome> {
        // It waited until its end, as over a suspend. What a person decided meanwhile may have been cleaned up.
        let is_over = |expires: Option<UnixMs>| expires.is_some_and(|expires| expires <= now);
        if self.automatic.is_some() && matches!(self.wish, Wish::Set(_, expires) if is_over(expires)) {
            return Some(ChangeOutcome::Missing);
        }
        if let Some(later) = found.filter(|found| self.comes_too_late(found)) {
            return Some(ChangeOutcome::Kept(Box::new(later.clone())));
        }
        let stands = found.filter(|found| found.is_in_force(now));
        let own = |found: &&StoredControl| found.updated_at == now.0 && found.author == self.author;
        match (self.wish, stands) {
            (Wish::Delete(_), Some(_)) => None,
            // The same deletion was made before, and its answer was lost.
            (Wish::Delete(_), None) => match found.filter(own) {
                Some(found) => Some(ChangeOutcome::Same(Box::new(found.clone()))),
                None => Some(ChangeOutcome::Missing),
            },
            (Wish::Set(..), None) => None,
            (Wish::Set(effect, expires), Some(stands)) => {
                let is_longer =
                    stands.control.expires.is_none_or(|at| expires.is_some_and(|wanted| wanted <= at));
                if self.automatic.is_some() && (!stands.automatic || is_longer) {
                    return Some(ChangeOutcome::Kept(Box::new(stands.clone())));
                }
                let says_it = stands.control.effect == effect
                    && stands.control.expires == expires
                    && stands.reason == self.reason
                    && stands.automatic == self.automatic.is_some();
                // Each reset is a new one, even if an equal one is stored.
                let same = says_it && (effect != Effect::Reset || own(&stands));
                same.then(|| ChangeOutcome::Same(Box::new(stands.clone())))
            }
        }
    }

    /// Whether a rule decided before a person set or deleted the stored control. A disconnected Envoy may report such a
    /// decision long afterwards.
    fn comes_too_late(&self, found: &StoredControl) -> bool {
        self.automatic.is_some_and(|since| !found.automatic && found.updated_at > since.0)
    }

    /// The control to store.
    fn result(&self, found: Option<&StoredControl>, revision: u64, stamp: u64, now: UnixMs) -> StoredControl {
        let (effect, expires, is_deleted) = match (self.wish, found) {
            (Wish::Set(effect, expires), _) => (effect, expires, false),
            (Wish::Delete(_), Some(found)) => (found.control.effect, found.control.expires, true),
            (Wish::Delete(_), None) => (Effect::Exempt, None, true),
        };
        let since = found.filter(|found| found.is_in_force(now)).map_or(now.0, |found| found.created_at);
        StoredControl {
            control: Control { target: self.target.clone(), effect, expires, revision },
            is_deleted,
            reason: self.reason.clone(),
            author: self.author.clone(),
            automatic: self.automatic.is_some(),
            created_at: since,
            updated_at: now.0,
            stamp,
        }
    }
}

impl<'a> Draft<'a> {
    /// For a database whose last revision is `revision`, and that has the `stored` controls where changes apply. `book`
    /// has what the caller has read.
    pub fn new(
        book: &'a Book,
        stored: BTreeMap<(Target, Slot), StoredControl>,
        room: Room,
        revision: u64,
        now: UnixMs,
    ) -> Draft<'a> {
        Draft { book, now, stored, room, revision, made: Vec::new() }
    }

    /// The result of the next change; `stamp` is random.
    pub fn take(&mut self, change: &Change, stamp: u64) -> ChangeOutcome {
        let place = (change.target.clone(), change.slot());
        let found = self.stored.get(&place);
        if let Some(changed) = change.judge(found, self.now) {
            return changed;
        }
        let before = found.filter(|found| found.is_in_force(self.now));
        if before.is_none()
            && let Some(bound) = self.room.full(&place.0.workspace, change.automatic.is_some())
        {
            return ChangeOutcome::Full(bound);
        }
        let Some(revision) = self.book.next_revision(self.revision, self.now) else {
            return ChangeOutcome::Full(Bound::Revisions);
        };
        self.revision = revision;
        let stored = change.result(found, revision, stamp, self.now);
        let before = before.cloned();
        let is_now = Some(&stored).filter(|stored| !stored.is_deleted);
        self.room.replace(&place.0.workspace, before.as_ref(), is_now);
        self.stored.insert(place, stored.clone());
        self.made.push(Made { stored: stored.clone(), before: before.clone() });
        ChangeOutcome::Done(Box::new(stored), before.map(Box::new))
    }

    /// The changes to write, in their order.
    pub fn made(&self) -> &[Made] {
        &self.made
    }

    /// The last revision.
    pub fn revision(&self) -> u64 {
        self.revision
    }
}

impl Room {
    /// Adds what a workspace has in force.
    pub fn add(&mut self, workspace: &[u8], found: InForce) {
        for held in [&mut self.all, self.workspaces.entry(workspace.into()).or_default()] {
            held.controls = held.controls.saturating_add(found.controls);
            held.by_rules = held.by_rules.saturating_add(found.by_rules);
        }
    }

    /// The limit that leaves no room for another control, if any.
    fn full(&self, workspace: &str, automatic: bool) -> Option<Bound> {
        let own = self.workspaces.get(workspace.as_bytes()).copied().unwrap_or_default();
        let is_full = |own: usize, all: usize, most: usize| own >= most_of_part(most.saturating_sub(all));
        if is_full(own.controls, self.all.controls, MAX_CONTROLS) {
            return Some(Bound::Controls);
        }
        let rules_are_full = automatic && is_full(own.by_rules, self.all.by_rules, MAX_AUTOMATIC);
        rules_are_full.then_some(Bound::Rules)
    }

    /// Updates the counts: `was` is no longer stored, `is_now` is stored instead.
    fn replace(&mut self, workspace: &str, was: Option<&StoredControl>, is_now: Option<&StoredControl>) {
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
