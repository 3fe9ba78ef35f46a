//! What may become of live control: changes that are wanted, and how each is judged by what stands.
//!
//! A change is absolute, so that one whose answer was lost may be made again: it finds what it wanted and changes nothing.
//!
//! Leaves to others: making it (`apply`), whether somebody may (`apis`).

use super::{Bound, StoredControl};
use weir_core::control::{Control, Effect, Slot, Target};
use weir_core::model::time::UnixMs;

/// A change that is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// For whom.
    pub target: Target,
    /// What is to be said.
    pub wish: Wish,
    /// Why; at most [`super::MAX_REASON_BYTES`].
    pub reason: String,
    /// Who wants it; at most [`super::MAX_AUTHOR_BYTES`].
    pub author: String,
    /// A rule does, not a person, and decided so then: it extends what rules said, never replaces what people said, and
    /// does not bring back what they took away since.
    pub automatic: Option<UnixMs>,
}

/// What is to become of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// This is to be said of it.
    Set(Effect, Option<UnixMs>),
    /// Nothing in this slot.
    Delete(Slot),
}

/// What became of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed {
    /// It is made: how it is now, and how it was.
    Done(Box<StoredControl>, Option<Box<StoredControl>>),
    /// It was so already.
    Same(Box<StoredControl>),
    /// There is nothing to delete.
    Missing,
    /// A person said something else, or took it away since, or a rule said something that holds longer.
    Kept(Box<StoredControl>),
    /// So many are in force as may be.
    Full(Bound),
}

impl Change {
    pub(super) fn slot(&self) -> Slot {
        match self.wish {
            Wish::Set(effect, _) => effect.slot(),
            Wish::Delete(slot) => slot,
        }
    }

    /// What it comes to where this is stored; `None` if something is to be written.
    pub(super) fn judge(&self, found: Option<&StoredControl>, now: UnixMs) -> Option<Changed> {
        if let Some(later) = found.filter(|found| self.comes_too_late(found)) {
            return Some(Changed::Kept(Box::new(later.clone())));
        }
        let stands = found.filter(|found| found.is_in_force(now));
        let own = |found: &&StoredControl| found.updated_at == now.0 && found.author == self.author;
        match (self.wish, stands) {
            (Wish::Delete(_), Some(_)) => None,
            // It was made a moment ago, and the answer was lost.
            (Wish::Delete(_), None) => match found.filter(own) {
                Some(found) => Some(Changed::Same(Box::new(found.clone()))),
                None => Some(Changed::Missing),
            },
            (Wish::Set(..), None) => None,
            (Wish::Set(effect, expires), Some(stands)) => {
                let is_longer =
                    stands.control.expires.is_none_or(|at| expires.is_some_and(|wanted| wanted <= at));
                if self.automatic.is_some() && (!stands.automatic || is_longer) {
                    return Some(Changed::Kept(Box::new(stands.clone())));
                }
                let says_it = stands.control.effect == effect
                    && stands.control.expires == expires
                    && stands.reason == self.reason
                    && stands.automatic == self.automatic.is_some();
                // Each reset is another one.
                let same = says_it && (effect != Effect::Reset || own(&stands));
                same.then(|| Changed::Same(Box::new(stands.clone())))
            }
        }
    }

    /// A rule decided so before a person said what is found, or that nothing is said any more; an Envoy that was not
    /// connected may tell of it long after that.
    fn comes_too_late(&self, found: &StoredControl) -> bool {
        self.automatic.is_some_and(|since| !found.automatic && found.updated_at > since.0)
    }

    /// What is stored then.
    pub(super) fn result(&self, found: Option<&StoredControl>, revision: u64, now: UnixMs) -> StoredControl {
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
        }
    }
}

/// For the audit.
pub(super) fn described(stored: &StoredControl) -> String {
    let mut told = serde_json::Map::new();
    let (name, value) = said(&stored.control.effect);
    told.insert(name.to_owned(), value);
    if let Some(expires) = stored.control.expires {
        told.insert("expires_at".to_owned(), expires.0.into());
    }
    told.insert("reason".to_owned(), stored.reason.as_str().into());
    told.insert("author".to_owned(), stored.author.as_str().into());
    told.insert("revision".to_owned(), stored.control.revision.into());
    serde_json::Value::Object(told).to_string()
}

/// An effect as a field and its value.
pub fn said(effect: &Effect) -> (&'static str, serde_json::Value) {
    match effect {
        Effect::Limit(limit) => ("limit", (*limit).into()),
        Effect::Exempt => ("exempt", true.into()),
        Effect::Ban => ("ban", true.into()),
        Effect::Credit(credit) => ("credit", (*credit).into()),
        Effect::Reset => ("reset", true.into()),
        Effect::Shadow(on) => ("shadow", (*on).into()),
    }
}
