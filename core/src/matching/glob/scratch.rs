//! Working memory of a search: for each fragment, whether it was found, and which patterns wait for it.
//!
//! Marks have the number of their search, so that nothing is cleared, and nothing is allocated once the memory has grown. The path from a
//! fragment to the next shorter one that a pattern waits for is found once and then cached.

use super::fragments::{Finder, NONE, index};
use alloc::vec::Vec;

/// Working memory, kept between identifiers.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// Marks of this search; older ones count as unset, so nothing is cleared.
    search: u64,
    fragments: Vec<Fragment>,
    pub(super) waits: Vec<Wait>,
    /// Number of patterns on the waiting lists.
    pub(super) waiting: usize,
    /// The best pattern that was on a list in this search.
    pub(super) best_waiting: u32,
    /// Grows when a pattern begins to wait for a fragment, which invalidates cached paths.
    notes: u64,
    /// The text, if it has escaped pairs.
    pub(super) apart: Vec<u8>,
    #[cfg(test)]
    pub steps: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Fragment {
    seen: u64,
    /// Whether a pattern waits for it, or did at the last visit.
    waited: u64,
    listed: u64,
    first_wait: u32,
    /// While `noted` is current: no pattern waits for the fragments in between.
    skip_to: u32,
    noted: u64,
}

/// A pattern that waits for its `step`-th middle, at `from` or later.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub rank: u32,
    pub step: u32,
    pub from: usize,
    pub next: u32,
}

impl Scratch {
    pub(super) fn begin(&mut self, fragments: usize) {
        self.search = self.search.wrapping_add(1);
        self.notes = self.notes.wrapping_add(1);
        if self.fragments.len() < fragments {
            self.fragments.resize(fragments, Fragment::default());
        }
        self.waits.clear();
        self.waiting = 0;
        self.best_waiting = NONE;
    }

    pub(super) fn first_sight(&mut self, fragment: u32) -> bool {
        let search = self.search;
        self.fragments
            .get_mut(index(fragment))
            .is_some_and(|f| core::mem::replace(&mut f.seen, search) != search)
    }

    pub(super) fn wait(&mut self, fragment: u32, rank: u32, step: u32, from: usize) {
        let wait = Wait { rank, step, from, next: NONE };
        if let Ok(this) = u32::try_from(self.waits.len()) {
            self.best_waiting = self.best_waiting.min(rank);
            self.waits.push(wait);
            self.wait_again(this, fragment, wait);
        }
    }

    pub(super) fn wait_again(&mut self, this: u32, fragment: u32, wait: Wait) {
        let search = self.search;
        let Some(entry) = self.fragments.get_mut(index(fragment)) else { return };
        let next = if entry.listed == search { entry.first_wait } else { NONE };
        (entry.listed, entry.first_wait) = (search, this);
        if core::mem::replace(&mut entry.waited, search) != search {
            self.notes = self.notes.wrapping_add(1);
        }
        if let Some(slot) = self.waits.get_mut(index(this)) {
            *slot = Wait { next, ..wait };
            self.waiting = self.waiting.saturating_add(1);
        }
    }

    /// The longest suffix of a fragment, or itself, for which a pattern waits.
    pub(super) fn next_waited(&mut self, finder: &Finder, fragment: u32) -> u32 {
        let mut found = fragment;
        while let Some(entry) = self.fragments.get(index(found)).filter(|entry| entry.waited != self.search) {
            found = if entry.noted == self.notes { entry.skip_to } else { finder.within(found) };
            self.step();
        }
        let mut passed = fragment;
        while passed != found
            && let Some(entry) = self.fragments.get_mut(index(passed))
        {
            let is_noted = core::mem::replace(&mut entry.noted, self.notes) == self.notes;
            let skipped = core::mem::replace(&mut entry.skip_to, found);
            passed = if is_noted { skipped } else { finder.within(passed) };
        }
        found
    }

    /// Empties a fragment's list and returns its first element.
    pub(super) fn take_waiting(&mut self, fragment: u32) -> u32 {
        let search = self.search;
        let Some(entry) = self.fragments.get_mut(index(fragment)) else { return NONE };
        let first = if entry.listed == search { entry.first_wait } else { NONE };
        entry.first_wait = NONE;
        if first == NONE {
            entry.waited = 0;
        }
        self.count_taken(first);
        first
    }

    fn count_taken(&mut self, first: u32) {
        let mut next = first;
        while let Some(wait) = self.waits.get(index(next)) {
            self.waiting = self.waiting.saturating_sub(1);
            next = wait.next;
        }
    }

    #[cfg(test)]
    pub(super) fn step(&mut self) {
        self.steps += 1;
    }

    #[cfg(not(test))]
    #[inline(always)]
    pub(super) fn step(&self) {}
}
