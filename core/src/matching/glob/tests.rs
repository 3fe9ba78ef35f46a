use super::*;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use proptest::prelude::*;

fn set(patterns: &[&str]) -> GlobSet<u64> {
    let globs = patterns.iter().zip(1..).map(|(text, limit)| match Pattern::parse(text.as_bytes()) {
        Some(Pattern::Glob(glob)) => (glob, limit),
        other => panic!("{text} is no glob: {other:?}"),
    });
    GlobSet::build(globs.collect()).unwrap()
}

fn matches(pattern: &str, text: &[u8]) -> bool {
    set(&[pattern]).find(text, |_| true, &mut Scratch::default()).is_some()
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
fn patterns_match_identifiers_of_some_numbers_of_parts() {
    for (pattern, parts, expected) in [
        ("a", 1, true),
        ("a", 2, false),
        ("a|b", 2, true),
        ("a|b", 1, false),
        (r"a\|b", 1, true),
        (r"a\|b", 2, false),
        (r"a\\|b", 2, true),
        ("*", 3, true),
        ("*|b", 3, true),
        ("*|b", 1, false),
        (r"\*|b", 3, false),
        (r"a\", 1, false),
    ] {
        assert_eq!(matches_parts(pattern.as_bytes(), parts), expected, "{pattern} {parts}");
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
        (r"*|\~", r"a|\~", true),
        (r"*|\~", r"a|~", false),
        (r"*~", r"a|\~", false),
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
    assert_eq!(set.find("éé-abc".as_bytes(), |_| true, &mut Scratch::default()), Some(2));
}

/// Steps for patterns and texts made to be bad, against the length of both.
fn check_linear(patterns: &[String], text: &[u8]) {
    let patterns: Vec<&str> = patterns.iter().map(String::as_str).collect();
    let set = set(&patterns);
    let steps = |text: &[u8]| {
        let mut scratch = Scratch::default();
        set.find(text, |_| true, &mut scratch);
        scratch.steps
    };
    let size: usize = patterns.iter().map(|pattern| pattern.len()).sum();
    let (half, whole) = (steps(&text[text.len() / 2..]), steps(text));
    assert!(whole <= 2 * half + 4 * size, "{half} steps, then {whole} for twice the text");
    assert!(whole <= 12 * text.len() + 8 * size, "{whole} steps for {} bytes, patterns {size}", text.len());
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

/// All of them end, or wait, wherever one of them does.
#[test]
fn fragments_that_end_in_each_other_stay_linear() {
    let nested = |pattern: &dyn Fn(String) -> String| -> Vec<String> {
        (1..=256).map(|n| pattern("a".repeat(n))).collect()
    };
    let text = vec![b'a'; 65_536];
    check_linear(&nested(&|a| format!("{a}*b")), &text);
    check_linear(&nested(&|a| format!("b*{a}")), &text);
    check_linear(&nested(&|a| format!("*{a}*b")), &text);
    check_linear(&nested(&|a| format!("*{a}*{a}*b*")), &text);
    check_linear(&nested(&|a| format!("*{a}*-*")), &text);
    check_linear(&nested(&|a| format!("*{a}*-*{a}*-*")), &[text.as_slice(), b"-"].concat().repeat(2));
    check_linear(&nested(&|a| format!("*{a}*-*")), &b"aaaaaaa-".repeat(8_192));
    let pairs = |n: usize| r"\|".repeat(n);
    check_linear(
        &(1..=100).map(|n| format!("*|{}*-*", pairs(n))).collect::<Vec<_>>(),
        pairs(32_768).as_bytes(),
    );
}

#[test]
fn the_search_ends_when_no_better_match_is_possible() {
    let set = set(&["best-of-all*", "*a*", "*a*b*"]);
    let mut scratch = Scratch::default();
    let text = [b"best-of-all".as_slice(), &vec![b'a'; 60_000]].concat();
    assert_eq!(set.find(&text, |_| true, &mut scratch), Some(1));
    assert!(scratch.steps < 20, "{}", scratch.steps);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn sets_agree_with_the_definition(
        patterns in proptest::collection::vec(r"([ab*]|\\\\|\\\||\\-|\\\+|\||\\\*){0,7}", 1..8),
        texts in proptest::collection::vec(r"([ab*]|\\\\|\\\||\\-|\\\+|\|){0,9}", 1..8),
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
                .map(|(_, n)| n);
            prop_assert_eq!(set.find(text.as_bytes(), |_| true, &mut scratch), expected, "{:?} {}", globs, text);
        }
    }

    #[test]
    fn the_first_acceptable_one_is_found_in_the_order_given(
        patterns in proptest::collection::vec(r"[ab]{0,2}\*[ab]{0,2}(\*[ab]{0,1})?", 1..10),
        texts in proptest::collection::vec("[ab]{0,5}", 1..8),
        unwanted in 0_usize..4,
    ) {
        let globs = patterns.iter().zip(0_usize..).map(|(text, n)| match Pattern::parse(text.as_bytes()) {
            Some(Pattern::Glob(glob)) => (glob, n),
            other => panic!("{text} is no glob: {other:?}"),
        });
        let set = GlobSet::in_order(&globs.collect::<Vec<_>>()).unwrap();
        let mut scratch = Scratch::default();
        for text in texts {
            let fits = |pattern: &str| naive(&characters(pattern.as_bytes()), &characters(text.as_bytes()));
            let expected = (0..patterns.len()).find(|n| n % 4 != unwanted && fits(&patterns[*n]));
            let found = set.find(text.as_bytes(), |n| n % 4 != unwanted, &mut scratch);
            prop_assert_eq!(found, expected, "{:?} {}", patterns, text);
        }
    }

    #[test]
    fn any_bytes_are_safe(text in proptest::collection::vec(any::<u8>(), 0..300)) {
        set(&["*\u{e9}*", r"*\\*a*", "*|*|*", r"\-*", "*"]).find(&text, |_| true, &mut Scratch::default());
    }
}
