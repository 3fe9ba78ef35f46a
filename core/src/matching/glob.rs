//! Thousands of `*` patterns against one identifier, in time linear in the identifier.
//!
//! Trying every pattern costs (patterns × length), and a naive matcher of `*a*a*a*b` far more; clients can cause both. So one automaton
//! finds all literal fragments of all patterns at once (`fragments`). The first sweep finds the patterns whose longest fragment, beginning
//! and end are in the identifier. The second follows all patterns with a middle together: each waits for its next fragment, and a hit moves
//! all patterns that wait for it (`scratch`). A pattern moves at most once for each fragment, so the work is the identifier's length plus
//! the patterns' own.
//!
//! If `com`, `.com` and `example.com` are fragments, all of them end where the longest does. The automaton reports the longest only, and of
//! the others only those that a pattern waits for are visited.
//!
//! A `*` matches whole characters: `\|` in a raw identifier is one, so no fragment begins inside it. A client that puts `x|gold` into the
//! first part thus does not match `*|gold|*`. See [`set_apart`].

mod fragments;
mod scratch;

pub(crate) use scratch::Scratch;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::ControlFlow::{Break, Continue};
use core::ops::Range;
use fragments::{Finder, Fragments, NONE, index};
use scratch::Wait;

/// An identifier to match: exact, or with `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    Exact(Box<[u8]>),
    Glob(Glob),
}

/// A pattern with at least one `*`, cut at its stars; see [`set_apart`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Glob {
    prefix: Vec<u8>,
    middles: Vec<Vec<u8>>,
    suffix: Vec<u8>,
    literal_chars: usize,
}

impl Pattern {
    /// Parses a pattern; `None` if it has a backslash that no raw identifier can have. `\*` matches a star, as it does not occur in raw
    /// identifiers. The text is UTF-8.
    pub fn parse(text: &[u8]) -> Option<Pattern> {
        let mut pieces = Vec::from([Vec::new()]);
        let mut literal_chars: usize = 0;
        let mut rest = text;
        while let Some((first, tail)) = rest.split_first() {
            rest = tail;
            if *first == b'*' {
                pieces.push(Vec::new());
                continue;
            }
            let piece = pieces.last_mut()?;
            if *first == b'\\' {
                let (second, tail) = tail.split_first()?;
                rest = tail;
                match second {
                    b'*' => piece.push(b'*'),
                    b'\\' | b'|' | b'-' | b'+' | b'~' => piece.extend_from_slice(&[b'\\', *second]),
                    _ => return None,
                }
            } else {
                piece.push(*first);
            }
            // UTF-8 continuation bytes belong to the character before them.
            literal_chars = literal_chars.saturating_add(usize::from(*first & 0xc0 != 0x80));
        }
        let mut suffix = pieces.pop()?;
        if pieces.is_empty() {
            return Some(Pattern::Exact(suffix.into()));
        }
        set_apart(&mut suffix);
        pieces.iter_mut().for_each(|piece| set_apart(piece));
        let mut pieces = pieces.into_iter();
        let prefix = pieces.next()?;
        let middles = pieces.filter(|piece| !piece.is_empty()).collect();
        Some(Pattern::Glob(Glob { prefix, middles, suffix, literal_chars }))
    }
}

/// Whether a pattern can match a raw identifier of so many parts. One that is malformed matches none.
pub fn matches_parts(pattern: &[u8], parts: usize) -> bool {
    let (mut least, mut has_star, mut escaping) = (1_usize, false, false);
    for byte in pattern {
        let escaped = escaping;
        escaping = !escaped && *byte == b'\\';
        least = least.saturating_add(usize::from(!escaped && *byte == b'|'));
        has_star |= !escaped && *byte == b'*';
    }
    !escaping && if has_star { least <= parts } else { least == parts }
}

/// Replaces the second byte of each escaped pair by one that is nowhere else in a pattern. Thus nothing that begins inside a
/// pair is equal to a fragment.
fn set_apart(text: &mut [u8]) {
    let mut escaping = false;
    for byte in text {
        let escaped = escaping;
        escaping = !escaped && *byte == b'\\';
        // UTF-8 has none of these bytes, so patterns have not.
        *byte = match (escaped, *byte) {
            (false, byte) => byte,
            (true, b'|') => 0xff,
            (true, b'\\') => 0xfe,
            (true, b'-') => 0xfd,
            (true, b'+') => 0xfc,
            (true, b'~') => 0xfa,
            (true, _) => 0xfb,
        };
    }
}

impl Glob {
    fn fragments(&self) -> impl Iterator<Item = &Vec<u8>> {
        let ends = [&self.prefix, &self.suffix].into_iter().filter(|fragment| !fragment.is_empty());
        self.middles.iter().chain(ends)
    }
}

/// Patterns with their values, best first.
#[derive(Clone, Debug)]
pub(crate) struct GlobSet<V> {
    patterns: Vec<Compiled<V>>,
    /// By fragment: the patterns whose longest fragment it is, best first.
    triggers: Vec<Vec<u32>>,
    /// Finds all fragments; absent when no pattern has one.
    finder: Option<Finder>,
    /// Patterns of stars only, best first.
    everything: Vec<u32>,
}

#[derive(Clone, Debug)]
struct Compiled<V> {
    prefix: Box<[u8]>,
    middles: Box<[u32]>,
    suffix: Box<[u8]>,
    bytes_min: usize,
    value: V,
}

impl<V: Copy> GlobSet<V> {
    /// The best pattern is the one with most literal characters, among equals the first. `None` if the automaton would be too large.
    pub fn build(mut globs: Vec<(Glob, V)>) -> Option<GlobSet<V>> {
        // A stable sort: equals stay in the order of their listing.
        globs.sort_by_key(|(glob, _)| core::cmp::Reverse(glob.literal_chars));
        GlobSet::in_order(&globs)
    }

    /// The best pattern is the first. `None` if the automaton would be too large.
    pub fn in_order(globs: &[(Glob, V)]) -> Option<GlobSet<V>> {
        let mut fragments = Fragments::default();
        let mut patterns = Vec::with_capacity(globs.len());
        let mut triggers: Vec<Vec<u32>> = Vec::new();
        let mut everything = Vec::new();
        for (rank, (glob, value)) in globs.iter().enumerate() {
            let rank = u32::try_from(rank).ok()?;
            match glob.fragments().max_by_key(|fragment| fragment.len()) {
                Some(longest) => {
                    let longest = fragments.id(longest)?;
                    triggers.resize_with(fragments.len(), Vec::new);
                    triggers.get_mut(index(longest))?.push(rank);
                }
                None => everything.push(rank),
            }
            let middles =
                glob.middles.iter().map(|middle| fragments.id(middle)).collect::<Option<Box<[u32]>>>()?;
            triggers.resize_with(fragments.len(), Vec::new);
            let bytes_min =
                glob.fragments().fold(0_usize, |sum, fragment| sum.saturating_add(fragment.len()));
            let (prefix, suffix) = (glob.prefix.as_slice().into(), glob.suffix.as_slice().into());
            patterns.push(Compiled { prefix, middles, suffix, bytes_min, value: *value });
        }
        let finder = if fragments.is_empty() { None } else { Some(fragments.finder()?) };
        Some(GlobSet { patterns, triggers, finder, everything })
    }

    /// The values of all patterns.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.patterns.iter().map(|pattern| &pattern.value)
    }

    /// The value of the best pattern that matches and is acceptable.
    pub fn find(&self, text: &[u8], accept: impl Fn(&V) -> bool, scratch: &mut Scratch) -> Option<V> {
        let acceptable = |rank: &u32| self.pattern(*rank).is_some_and(|pattern| accept(&pattern.value));
        let mut best = self.everything.iter().copied().find(acceptable).unwrap_or(NONE);
        if let Some(finder) = &self.finder {
            let mut apart = core::mem::take(&mut scratch.apart);
            let text = with_pairs_apart(text, &mut apart);
            scratch.begin(finder.len());
            best = self.sweep_triggers(finder, text, &accept, scratch, best);
            best = self.sweep_middles(finder, text, scratch, best);
            scratch.apart = apart;
        }
        self.pattern(best).map(|pattern| pattern.value)
    }

    fn pattern(&self, rank: u32) -> Option<&Compiled<V>> {
        self.patterns.get(index(rank))
    }

    /// Finds the best pattern without a middle, if it is better than `best`, and notes patterns whose middles must be followed.
    fn sweep_triggers(
        &self,
        finder: &Finder,
        text: &[u8],
        accept: &impl Fn(&V) -> bool,
        scratch: &mut Scratch,
        best: u32,
    ) -> u32 {
        let mut best = best;
        finder.sweep(text, |longest, _| {
            scratch.step();
            let mut fragment = longest;
            while scratch.first_sight(fragment) {
                scratch.step();
                best = self.try_triggered(fragment, text, accept, scratch, best);
                if best == 0 {
                    return Break(());
                }
                fragment = finder.within(fragment);
            }
            Continue(())
        });
        best
    }

    /// The same for the patterns whose longest fragment this is.
    fn try_triggered(
        &self,
        fragment: u32,
        text: &[u8],
        accept: &impl Fn(&V) -> bool,
        scratch: &mut Scratch,
        best: u32,
    ) -> u32 {
        for rank in self.triggers.get(index(fragment)).into_iter().flatten().copied() {
            scratch.step();
            if rank >= best {
                break;
            }
            let Some(pattern) = self.pattern(rank) else { continue };
            if pattern.ends_fit(text) && accept(&pattern.value) {
                match pattern.middles.first() {
                    Some(middle) => scratch.wait(*middle, rank, 0, pattern.prefix.len()),
                    None => return rank,
                }
            }
        }
        best
    }

    /// Follows the patterns that wait for a middle, and returns the best of them and `best`.
    fn sweep_middles(&self, finder: &Finder, text: &[u8], scratch: &mut Scratch, best: u32) -> u32 {
        let mut best = best;
        if scratch.best_waiting >= best {
            return best;
        }
        finder.sweep(text, |longest, end| {
            scratch.step();
            let mut fragment = scratch.next_waited(finder, longest);
            while fragment != NONE {
                let start = end.saturating_sub(finder.bytes_of(fragment));
                best =
                    self.advance_all(scratch.take_waiting(fragment), start..end, text.len(), scratch, best);
                fragment = scratch.next_waited(finder, finder.within(fragment));
            }
            let is_over = best <= scratch.best_waiting || scratch.waiting == 0;
            if is_over { Break(()) } else { Continue(()) }
        });
        best
    }

    /// Moves a list of waiting patterns over a hit of their fragment; the best of those that this completes and `best`.
    fn advance_all(
        &self,
        first: u32,
        hit: Range<usize>,
        len: usize,
        scratch: &mut Scratch,
        best: u32,
    ) -> u32 {
        let (mut next, mut best) = (first, best);
        while let Some(wait) = scratch.waits.get(index(next)).copied() {
            let this = core::mem::replace(&mut next, wait.next);
            scratch.step();
            if wait.rank < best && self.advance(this, wait, hit.start, hit.end, len, scratch) {
                best = wait.rank;
            }
        }
        best
    }

    /// Moves one waiting pattern over a hit of its fragment; true when that completes it.
    fn advance(
        &self,
        this: u32,
        wait: Wait,
        start: usize,
        end: usize,
        len: usize,
        scratch: &mut Scratch,
    ) -> bool {
        let Some(pattern) = self.pattern(wait.rank) else { return false };
        let here = || pattern.middles.get(index(wait.step)).copied();
        if start < wait.from {
            here().into_iter().for_each(|fragment| scratch.wait_again(this, fragment, wait));
            return false;
        }
        let step = wait.step.saturating_add(1);
        match pattern.middles.get(index(step)) {
            Some(fragment) => {
                scratch.wait_again(this, *fragment, Wait { step, from: end, ..wait });
                false
            }
            None => end <= len.saturating_sub(pattern.suffix.len()),
        }
    }
}

impl<V> Compiled<V> {
    /// Whether the text begins and ends as the pattern does, with room between.
    fn ends_fit(&self, text: &[u8]) -> bool {
        text.len() >= self.bytes_min && text.starts_with(&self.prefix) && text.ends_with(&self.suffix)
    }
}

/// A raw identifier in the form in which it is matched; written to `apart` if it has escaped pairs.
fn with_pairs_apart<'a>(text: &'a [u8], apart: &'a mut Vec<u8>) -> &'a [u8] {
    if memchr::memchr(b'\\', text).is_none() {
        return text;
    }
    apart.clear();
    apart.extend_from_slice(text);
    set_apart(apart);
    apart
}

#[cfg(test)]
mod tests;
