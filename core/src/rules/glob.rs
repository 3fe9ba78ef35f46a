//! Thousands of `*` patterns against one identifier, in time linear in the identifier.
//!
//! Trying every pattern costs (patterns × length), and a careless matcher of `*a*a*a*b` far more; both are a client's
//! to provoke. So: one automaton finds all literal fragments of all patterns at once. The first sweep learns which
//! patterns have their longest fragment in the identifier, and begin and end as it does. The second follows the
//! patterns with a middle, all together: each waits for its next fragment, and a hit moves all that wait for it.
//! A pattern moves at most once per fragment, so the work is the identifier's length plus the patterns' own.
//!
//! A `*` stands for whole characters: `\|` in a raw identifier is one, so no fragment begins inside it. Thus
//! `*|gold|*` cannot be met by a client that puts `x|gold` into the first part.

use super::overrides::Override;
use aho_corasick::{AhoCorasick, Input};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Nobody: an end of a list, or no pattern found yet.
const NONE: u32 = u32::MAX;

/// An identifier to match: exact, or with `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    Exact(Box<[u8]>),
    Glob(Glob),
}

/// A pattern with at least one `*`, cut at its stars.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Glob {
    prefix: Vec<u8>,
    middles: Vec<Vec<u8>>,
    suffix: Vec<u8>,
    literal_chars: usize,
}

impl Pattern {
    /// Reads a pattern; `None` when it has a backslash that no raw identifier can have. As `\*` is not in raw
    /// identifiers either, it is free to mean the star itself.
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
                    b'\\' | b'|' | b'-' => piece.extend_from_slice(&[b'\\', *second]),
                    _ => return None,
                }
            } else {
                piece.push(*first);
            }
            // UTF-8 continuation bytes belong to the character before them.
            literal_chars = literal_chars.saturating_add(usize::from(*first & 0xc0 != 0x80));
        }
        let suffix = pieces.pop()?;
        if pieces.is_empty() {
            return Some(Pattern::Exact(suffix.into()));
        }
        let mut pieces = pieces.into_iter();
        let prefix = pieces.next()?;
        let middles = pieces.filter(|piece| !piece.is_empty()).collect();
        Some(Pattern::Glob(Glob { prefix, middles, suffix, literal_chars }))
    }
}

impl Glob {
    fn fragments(&self) -> impl Iterator<Item = &Vec<u8>> {
        let ends = [&self.prefix, &self.suffix].into_iter().filter(|fragment| !fragment.is_empty());
        self.middles.iter().chain(ends)
    }
}

/// All patterns of one rule, best first.
#[derive(Clone, Debug)]
pub(super) struct GlobSet {
    patterns: Vec<Compiled>,
    /// By fragment: the patterns whose longest fragment it is, best first.
    triggers: Vec<Vec<u32>>,
    /// Finds all fragments; absent when no pattern has one.
    automaton: Option<AhoCorasick>,
    /// The first pattern of stars only.
    everything: Option<Override>,
}

#[derive(Clone, Debug)]
struct Compiled {
    prefix: Box<[u8]>,
    middles: Box<[u32]>,
    suffix: Box<[u8]>,
    bytes_min: usize,
    value: Override,
}

impl GlobSet {
    /// `None` when the automaton would be too large.
    pub fn build(mut globs: Vec<(Glob, Override)>) -> Option<GlobSet> {
        // A stable sort: equals stay in the order of their listing.
        globs.sort_by_key(|(glob, _)| core::cmp::Reverse(glob.literal_chars));
        let everything = globs.iter().find(|(glob, _)| glob.literal_chars == 0).map(|(_, value)| *value);
        globs.retain(|(glob, _)| glob.literal_chars > 0);

        let mut fragments = Fragments::default();
        let mut patterns = Vec::with_capacity(globs.len());
        let mut triggers: Vec<Vec<u32>> = Vec::new();
        for (rank, (glob, value)) in globs.iter().enumerate() {
            let longest = fragments.id(glob.fragments().max_by_key(|fragment| fragment.len())?)?;
            let middles =
                glob.middles.iter().map(|middle| fragments.id(middle)).collect::<Option<Box<[u32]>>>()?;
            triggers.resize_with(fragments.ids.len(), Vec::new);
            triggers.get_mut(index(longest))?.push(u32::try_from(rank).ok()?);
            let bytes_min =
                glob.fragments().fold(0_usize, |sum, fragment| sum.saturating_add(fragment.len()));
            let (prefix, suffix) = (glob.prefix.as_slice().into(), glob.suffix.as_slice().into());
            patterns.push(Compiled { prefix, middles, suffix, bytes_min, value: *value });
        }
        let automaton = match fragments.order.as_slice() {
            [] => None,
            order => Some(AhoCorasick::new(order).ok()?),
        };
        Some(GlobSet { patterns, triggers, automaton, everything })
    }

    /// The value of the best pattern that matches.
    pub fn find(&self, text: &[u8], scratch: &mut Scratch) -> Option<Override> {
        let Some(automaton) = &self.automaton else { return self.everything };
        scratch.begin(text, self.triggers.len());
        let best = self.sweep_triggers(automaton, text, scratch);
        let best = self.sweep_middles(automaton, text, scratch, best);
        self.pattern(best).map(|pattern| pattern.value).or(self.everything)
    }

    fn pattern(&self, rank: u32) -> Option<&Compiled> {
        self.patterns.get(index(rank))
    }

    /// Finds the best pattern without a middle, and notes those whose middles are still to be followed.
    fn sweep_triggers(&self, automaton: &AhoCorasick, text: &[u8], scratch: &mut Scratch) -> u32 {
        let mut best = NONE;
        let Ok(hits) = automaton.try_find_overlapping_iter(Input::new(text)) else { return best };
        for hit in hits {
            scratch.step();
            let fragment = hit.pattern().as_u32();
            if !scratch.first_sight(fragment) {
                continue;
            }
            for rank in self.triggers.get(index(fragment)).into_iter().flatten().copied() {
                scratch.step();
                if rank >= best {
                    break;
                }
                match self.pattern(rank) {
                    Some(pattern) if !pattern.ends_fit(text, scratch) => {}
                    Some(pattern) => match pattern.middles.first() {
                        Some(middle) => scratch.wait(*middle, rank, 0, pattern.prefix.len()),
                        None => best = rank,
                    },
                    None => {}
                }
            }
            if best == 0 {
                break;
            }
        }
        best
    }

    /// Follows the patterns that wait for a middle, and returns the best of them and `best`.
    fn sweep_middles(&self, automaton: &AhoCorasick, text: &[u8], scratch: &mut Scratch, best: u32) -> u32 {
        let mut best = best;
        if scratch.best_waiting >= best {
            return best;
        }
        let Ok(hits) = automaton.try_find_overlapping_iter(Input::new(text)) else { return best };
        for hit in hits {
            scratch.step();
            if !scratch.is_character(hit.start()) {
                continue;
            }
            let mut next = scratch.take_waiting(hit.pattern().as_u32());
            while let Some(wait) = scratch.waits.get(index(next)).copied() {
                let this = core::mem::replace(&mut next, wait.next);
                scratch.step();
                if wait.rank < best && self.advance(this, wait, hit.start(), hit.end(), text.len(), scratch) {
                    best = wait.rank;
                }
            }
            if best <= scratch.best_waiting || scratch.waiting == 0 {
                break;
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

impl Compiled {
    /// Whether the text begins and ends as the pattern does, with room between.
    fn ends_fit(&self, text: &[u8], scratch: &Scratch) -> bool {
        text.len() >= self.bytes_min
            && text.starts_with(&self.prefix)
            && text.ends_with(&self.suffix)
            && (self.suffix.is_empty() || scratch.is_character(text.len().saturating_sub(self.suffix.len())))
    }
}

/// Working memory, kept between identifiers.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Marks of this search; older ones count as unset, so nothing is cleared.
    search: u64,
    fragments: Vec<Fragment>,
    waits: Vec<Wait>,
    /// Patterns on the waiting lists, and the best that ever was on one.
    waiting: usize,
    best_waiting: u32,
    /// By byte of the text: whether it is the second of an escaped pair. Empty when nothing is escaped.
    escaped: Vec<bool>,
    #[cfg(test)]
    pub steps: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Fragment {
    seen: u64,
    listed: u64,
    first_wait: u32,
}

/// A pattern that waits for its `step`-th middle, at `from` or later.
#[derive(Clone, Copy, Debug)]
struct Wait {
    rank: u32,
    step: u32,
    from: usize,
    next: u32,
}

impl Scratch {
    fn begin(&mut self, text: &[u8], fragments: usize) {
        self.search = self.search.wrapping_add(1);
        if self.fragments.len() < fragments {
            self.fragments.resize(fragments, Fragment::default());
        }
        self.waits.clear();
        self.waiting = 0;
        self.best_waiting = NONE;
        self.escaped.clear();
        if memchr::memchr(b'\\', text).is_some() {
            let mut escaping = false;
            self.escaped.extend(text.iter().map(|byte| {
                let escaped = escaping;
                escaping = !escaped && *byte == b'\\';
                escaped
            }));
        }
    }

    /// Whether a character begins at this byte.
    fn is_character(&self, at: usize) -> bool {
        !self.escaped.get(at).copied().unwrap_or(false)
    }

    fn first_sight(&mut self, fragment: u32) -> bool {
        let search = self.search;
        self.fragments
            .get_mut(index(fragment))
            .is_some_and(|f| core::mem::replace(&mut f.seen, search) != search)
    }

    fn wait(&mut self, fragment: u32, rank: u32, step: u32, from: usize) {
        let wait = Wait { rank, step, from, next: NONE };
        if let Ok(this) = u32::try_from(self.waits.len()) {
            self.best_waiting = self.best_waiting.min(rank);
            self.waits.push(wait);
            self.wait_again(this, fragment, wait);
        }
    }

    fn wait_again(&mut self, this: u32, fragment: u32, wait: Wait) {
        let search = self.search;
        let Some(entry) = self.fragments.get_mut(index(fragment)) else { return };
        let next = if entry.listed == search { entry.first_wait } else { NONE };
        (entry.listed, entry.first_wait) = (search, this);
        if let Some(slot) = self.waits.get_mut(index(this)) {
            *slot = Wait { next, ..wait };
            self.waiting = self.waiting.saturating_add(1);
        }
    }

    /// Empties a fragment's list and returns its first element.
    fn take_waiting(&mut self, fragment: u32) -> u32 {
        match self.fragments.get_mut(index(fragment)) {
            Some(entry) if entry.listed == self.search => {
                let first = core::mem::replace(&mut entry.first_wait, NONE);
                self.count_taken(first);
                first
            }
            _ => NONE,
        }
    }

    fn count_taken(&mut self, first: u32) {
        let mut next = first;
        while let Some(wait) = self.waits.get(index(next)) {
            self.waiting = self.waiting.saturating_sub(1);
            next = wait.next;
        }
    }

    #[cfg(test)]
    fn step(&mut self) {
        self.steps += 1;
    }

    #[cfg(not(test))]
    #[inline(always)]
    fn step(&self) {}
}

/// Distinct fragments, numbered in the order in which they are first met.
#[derive(Default)]
struct Fragments<'a> {
    ids: BTreeMap<&'a [u8], u32>,
    order: Vec<&'a [u8]>,
}

impl<'a> Fragments<'a> {
    fn id(&mut self, fragment: &'a [u8]) -> Option<u32> {
        if let Some(id) = self.ids.get(fragment) {
            return Some(*id);
        }
        let id = u32::try_from(self.order.len()).ok()?;
        self.ids.insert(fragment, id);
        self.order.push(fragment);
        Some(id)
    }
}

fn index(id: u32) -> usize {
    usize::try_from(id).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::String;
    use alloc::vec;
    use proptest::prelude::*;

    fn set(patterns: &[&str]) -> GlobSet {
        let globs = patterns.iter().zip(1..).map(|(text, limit)| match Pattern::parse(text.as_bytes()) {
            Some(Pattern::Glob(glob)) => (glob, Override::Limit(limit)),
            other => panic!("{text} is no glob: {other:?}"),
        });
        GlobSet::build(globs.collect()).unwrap()
    }

    fn matches(pattern: &str, text: &[u8]) -> bool {
        set(&[pattern]).find(text, &mut Scratch::default()).is_some()
    }

    /// Characters of a raw identifier: an escaped pair is one.
    fn characters(text: &[u8]) -> Vec<Vec<u8>> {
        let mut characters = Vec::new();
        let mut bytes = text.iter();
        while let Some(byte) = bytes.next() {
            let mut character = vec![*byte];
            if *byte == b'\\' {
                character.extend(bytes.next());
            }
            characters.push(character);
        }
        characters
    }

    /// The definition, by backtracking.
    fn naive(pattern: &[Vec<u8>], text: &[Vec<u8>]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some((first, rest)) if first == b"*" => (0..=text.len()).any(|skip| naive(rest, &text[skip..])),
            Some((first, rest)) => {
                let literal = if first == br"\*" { b"*".to_vec() } else { first.clone() };
                text.first() == Some(&literal) && naive(rest, &text[1..])
            }
        }
    }

    #[test]
    fn single_patterns() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("**", "x", true),
            ("a*", "a", true),
            ("a*", "ba", false),
            ("*a", "ba", true),
            ("*a", "ab", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("ab*ba", "aba", false),
            ("*ab*", "xabx", true),
            ("*aa*aa*", "aaa", false),
            ("*aa*aa*", "aaaa", true),
            ("a*b*c", "abc", true),
            ("a*b*c", "acb", false),
            ("a*bc*c", "abc", false),
            ("a*ab*", "ab", false),
            (r"*\**", "x*y", true),
            (r"*\**", "xy", false),
            (r"*|gold|*", r"x\|gold|silver|z", false),
            (r"*|gold|*", r"x|gold|z", true),
            (r"*|b", r"a\|b", false),
            (r"*|b", r"a\\|b", true),
            (r"*-", r"\-", false),
            (r"*\-", r"a|\-", true),
            (r"*|*", r"\|\|", false),
        ] {
            assert_eq!(matches(pattern, text.as_bytes()), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn backslashes_that_stand_for_nothing_are_refused() {
        for text in [r"\", r"a\", r"\a*", r"\\\", r"*\"] {
            assert_eq!(Pattern::parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(Pattern::parse(br"a\*b"), Some(Pattern::Exact(b"a*b".as_slice().into())));
    }

    #[test]
    fn characters_are_counted_not_bytes() {
        // "éé" has four bytes but two characters, so the three of "*abc" are more.
        let set = set(&["éé*", "*abc"]);
        assert_eq!(set.find("éé-abc".as_bytes(), &mut Scratch::default()), Some(Override::Limit(2)));
    }

    /// Steps for patterns and texts made to be bad, against the length of both.
    fn check_linear(patterns: &[String], text: &[u8]) {
        let patterns: Vec<&str> = patterns.iter().map(String::as_str).collect();
        let set = set(&patterns);
        let steps = |text: &[u8]| {
            let mut scratch = Scratch::default();
            set.find(text, &mut scratch);
            scratch.steps
        };
        let size: usize = patterns.iter().map(|pattern| pattern.len()).sum();
        let (half, whole) = (steps(&text[text.len() / 2..]), steps(text));
        assert!(whole <= 2 * half + 4 * size, "{half} steps, then {whole} for twice the text");
        assert!(
            whole <= 12 * text.len() + 8 * size,
            "{whole} steps for {} bytes, patterns {size}",
            text.len()
        );
    }

    #[test]
    fn adversaries_stay_linear() {
        let many = |pattern: &dyn Fn(usize) -> String| (0..10_000).map(pattern).collect::<Vec<_>>();
        check_linear(&[String::from("*a*a*a*a*a*a*a*a*b")], &vec![b'a'; 65_536]);
        check_linear(&many(&|n| format!("{}b{n}", "*a".repeat(5))), &vec![b'a'; 65_536]);
        check_linear(&many(&|n| format!("*a*a*-{n}*")), &b"a-1".repeat(20_000));
        check_linear(&many(&|n| format!("*user-{n}*x*y*")), &b"user-1x user-22 user-333 ".repeat(2_000));
        let all: Vec<u8> = (0..10_000).flat_map(|n| format!("user-{n},").into_bytes()).collect();
        check_linear(&many(&|n| format!("*user-{n},*,*,*nowhere*")), &all);
        check_linear(&many(&|n| format!("*user-{n},*,*,*{n},user-*,{n},*")), &all);
        check_linear(&[String::from("*|x|*|y*")], &br"\|".repeat(32_768));
        check_linear(&[String::from("*aaaaaaaaaaaaaaaa*aaaaaaaaaaaaaaaa*b*")], &vec![b'a'; 65_536]);
    }

    #[test]
    fn the_search_ends_when_nothing_better_can_come() {
        let set = set(&["best-of-all*", "*a*", "*a*b*"]);
        let mut scratch = Scratch::default();
        let text = [b"best-of-all".as_slice(), &vec![b'a'; 60_000]].concat();
        assert_eq!(set.find(&text, &mut scratch), Some(Override::Limit(1)));
        assert!(scratch.steps < 20, "{}", scratch.steps);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn sets_agree_with_the_definition(
            patterns in proptest::collection::vec(r"([ab*]|\\\\|\\\||\\-|\||\\\*){0,7}", 1..8),
            texts in proptest::collection::vec(r"([ab*]|\\\\|\\\||\\-|\|){0,9}", 1..8),
        ) {
            let globs: Vec<&str> = patterns
                .iter()
                .map(String::as_str)
                .filter(|text| matches!(Pattern::parse(text.as_bytes()), Some(Pattern::Glob(_))))
                .collect();
            let set = set(&globs);
            let mut scratch = Scratch::default();
            for text in texts {
                let characters_of_text = characters(text.as_bytes());
                let literals = |glob: &str| {
                    characters(glob.as_bytes()).iter().filter(|character| **character != b"*").count()
                };
                let expected = globs
                    .iter()
                    .zip(1_u64..)
                    .filter(|(glob, _)| naive(&characters(glob.as_bytes()), &characters_of_text))
                    .max_by_key(|(glob, n)| (literals(glob), core::cmp::Reverse(*n)))
                    .map(|(_, n)| Override::Limit(n));
                prop_assert_eq!(set.find(text.as_bytes(), &mut scratch), expected, "{:?} {}", globs, text);
            }
        }

        #[test]
        fn any_bytes_are_safe(text in proptest::collection::vec(any::<u8>(), 0..300)) {
            set(&["*\u{e9}*", r"*\\*a*", "*|*|*", r"\-*", "*"]).find(&text, &mut Scratch::default());
        }
    }
}
