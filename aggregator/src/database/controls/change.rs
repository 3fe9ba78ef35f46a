//! Requested changes of live control, and the result of each, given the stored control.
//!
//! A change is absolute. If its answer was lost, the caller may repeat it: the control is then already as requested,
//! and nothing changes.

use super::{Bound, StoredControl};
use weir_core::control::{Control, Effect, Slot, Target};
use weir_core::model::time::UnixMs;

/// A requested change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Whose limits.
    pub target: Target,
    /// The requested state.
    pub wish: Wish,
    /// The reason, at most [`super::MAX_REASON_BYTES`].
    pub reason: String,
    /// The author, at most [`super::MAX_AUTHOR_BYTES`].
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
pub enum Changed {
    /// Applied: the control after the change, and before it.
    Done(Box<StoredControl>, Option<Box<StoredControl>>),
    /// Not needed: the control was already as requested.
    Same(Box<StoredControl>),
    /// There is no control to delete.
    Missing,
    /// Not applied: a person set or deleted the control since, or a rule's control lasts longer.
    Kept(Box<StoredControl>),
    /// Not applied: the limit on the number of controls is reached.
    Full(Bound),
}

impl Change {
    pub(super) fn slot(&self) -> Slot {
        match self.wish {
            Wish::Set(effect, _) => effect.slot(),
            Wish::Delete(slot) => slot,
        }
    }

    /// The result if `found` is stored; `None` if the change must be written.
    pub(super) fn judge(&self, found: Option<&StoredControl>, now: UnixMs) -> Option<Changed> {
        if let Some(later) = found.filter(|found| self.comes_too_late(found)) {
            return Some(Changed::Kept(Box::new(later.clone())));
        }
        let stands = found.filter(|found| found.is_in_force(now));
        let own = |found: &&StoredControl| found.updated_at == now.0 && found.author == self.author;
        match (self.wish, stands) {
            (Wish::Delete(_), Some(_)) => None,
            // The same deletion was made before, and its answer was lost.
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
                // Each reset is a new one, even if an equal one is stored.
                let same = says_it && (effect != Effect::Reset || own(&stands));
                same.then(|| Changed::Same(Box::new(stands.clone())))
            }
        }
    }

    /// Whether a rule decided before a person set or deleted the stored control. A disconnected Envoy may report such a
    /// decision long afterwards.
    fn comes_too_late(&self, found: &StoredControl) -> bool {
        self.automatic.is_some_and(|since| !found.automatic && found.updated_at > since.0)
    }

    /// The control to store; the caller draws its stamp.
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
            stamp: 0,
        }
    }
}

/// The control as JSON, for the audit.
pub(super) fn described(stored: &StoredControl) -> String {
    let mut fields = serde_json::Map::new();
    let (name, value) = name_and_value(&stored.control.effect);
    fields.insert(name.to_owned(), value);
    if let Some(expires) = stored.control.expires {
        fields.insert("expires_at".to_owned(), expires.0.into());
    }
    fields.insert("reason".to_owned(), stored.reason.as_str().into());
    fields.insert("author".to_owned(), stored.author.as_str().into());
    fields.insert("revision".to_owned(), stored.control.revision.into());
    serde_json::Value::Object(fields).to_string()
}

/// An effect as a JSON field and its value.
pub fn name_and_value(effect: &Effect) -> (&'static str, serde_json::Value) {
    match effect {
        Effect::Limit(limit) => ("limit", (*limit).into()),
        Effect::Exempt => ("exempt", true.into()),
        Effect::Ban => ("ban", true.into()),
        Effect::Credit(credit) => ("credit", (*credit).into()),
        Effect::Reset => ("reset", true.into()),
        Effect::Shadow(on) => ("shadow", (*on).into()),
    }
}
