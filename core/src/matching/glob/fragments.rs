//! The distinct literal fragments of patterns, and an automaton that finds them all in one sweep.
//!
//! At each place it reports the longest fragment that ends there. The others that end there are suffixes of it, each
//! [`within`](Finder::within) the other, and can be followed if they are needed.

use aho_corasick::automaton::Automaton;
use aho_corasick::nfa::{contiguous, noncontiguous};
use aho_corasick::{Anchored, dfa};
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::ControlFlow;

/// No fragment, the end of a list, or no pattern found yet.
pub(super) const NONE: u32 = u32::MAX;

/// Up to this number of fragments a full table is used, which is faster and larger.
const MAX_IN_A_TABLE: usize = 100;

/// Distinct fragments, numbered in the order of their first occurrence.
#[derive(Default)]
pub(super) struct Fragments<'a> {
    ids: BTreeMap<&'a [u8], u32>,
    order: Vec<&'a [u8]>,
}

/// Finds all fragments.
#[derive(Clone, Debug)]
pub(super) struct Finder {
    automaton: Kind,
    fragments: Arc<[Fragment]>,
}

#[derive(Clone, Debug)]
enum Kind {
    Table(Arc<dfa::DFA>),
    States(Arc<contiguous::NFA>),
}

#[derive(Clone, Copy, Debug)]
struct Fragment {
    bytes: usize,
    within: u32,
}

impl<'a> Fragments<'a> {
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub fn len(&self) -> usize {
        self.order.len()
    }

    pub fn id(&mut self, fragment: &'a [u8]) -> Option<u32> {
        if let Some(id) = self.ids.get(fragment) {
            return Some(*id);
        }
        let id = u32::try_from(self.order.len()).ok().filter(|id| *id != NONE)?;
        self.ids.insert(fragment, id);
        self.order.push(fragment);
        Some(id)
    }

    /// `None` when the automaton would be too large.
    pub fn finder(&self) -> Option<Finder> {
        let states = noncontiguous::NFA::new(&self.order).ok()?;
        let automaton = if self.order.len() <= MAX_IN_A_TABLE {
            Kind::Table(Arc::new(dfa::Builder::new().build_from_noncontiguous(&states).ok()?))
        } else {
            Kind::States(Arc::new(contiguous::Builder::new().build_from_noncontiguous(&states).ok()?))
        };
        let measure = |fragment: &&[u8]| {
            let mut within = NONE;
            let shorter = fragment.get(1..).unwrap_or_default();
            sweep(&states, shorter, |found, end| {
                within = if end == shorter.len() { found } else { NONE };
                ControlFlow::Continue(())
            });
            Fragment { bytes: fragment.len(), within }
        };
        Some(Finder { automaton, fragments: self.order.iter().map(measure).collect() })
    }
}

impl Finder {
    /// Number of fragments.
    pub fn len(&self) -> usize {
        self.fragments.len()
    }

    pub fn bytes_of(&self, fragment: u32) -> usize {
        self.fragments.get(index(fragment)).map_or(0, |found| found.bytes)
    }

    /// The longest other fragment that is a suffix of this one.
    pub fn within(&self, fragment: u32) -> u32 {
        self.fragments.get(index(fragment)).map_or(NONE, |found| found.within)
    }

    /// Calls `found` for each place where a fragment ends, with the longest one, until it breaks.
    pub fn sweep(&self, text: &[u8], found: impl FnMut(u32, usize) -> ControlFlow<()>) {
        match &self.automaton {
            Kind::Table(automaton) => sweep(automaton.as_ref(), text, found),
            Kind::States(automaton) => sweep(automaton.as_ref(), text, found),
        }
    }
}

fn sweep<A: Automaton>(automaton: &A, text: &[u8], mut found: impl FnMut(u32, usize) -> ControlFlow<()>) {
    let Ok(mut state) = automaton.start_state(Anchored::No) else { return };
    for (end, byte) in (1_usize..).zip(text) {
        state = automaton.next_state(Anchored::No, state, *byte);
        // The longest comes first, as the others belong to states to which this one falls back.
        if automaton.is_special(state)
            && automaton.is_match(state)
            && found(automaton.match_pattern(state, 0).as_u32(), end).is_break()
        {
            return;
        }
    }
}

pub(super) fn index(id: u32) -> usize {
    usize::try_from(id).unwrap_or(usize::MAX)
}
