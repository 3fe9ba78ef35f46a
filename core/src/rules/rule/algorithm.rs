//! How a rule's limit is held, and what follows from that for its other fields.
//!
//! A window and a log have a limit and a window of their own; a ledger's stand in its zone. What an algorithm has no use
//! for is an error rather than ignored: whoever writes it expects something of it.
//!
//! Leaves to others: what the algorithms are (`exact`), reading the rest of a rule (`rule`).

use super::cost::Cost;
use crate::model::exact::{Algorithm, MAX_LOG_LIMIT};
use crate::model::key::HARD_LIMIT_RESOLUTION;
use crate::rules::parse::duration::Span;
use crate::rules::parse::errors::Errors;
use crate::rules::parse::fields::{Fields, Node};

const WINDOW: Span = Span { min_ms: 1_000, max_ms: 2_678_400_000, words: ("1s", "31d"), example: "1m" };

/// A window's consult serves a decision that could be made without it.
const QUERY_TIMEOUT: Span = Span { min_ms: 1, max_ms: 1_000, words: ("1ms", "1s"), example: "50ms" };
const QUERY_TIMEOUT_MS_DEFAULT: u64 = 50;
/// A log's or a ledger's answer is the decision.
const EXACT_TIMEOUT: Span = Span { min_ms: 1, max_ms: 10_000, words: ("1ms", "10s"), example: "100ms" };
const EXACT_TIMEOUT_MS_DEFAULT: u64 = 100;

/// The words of `algorithm`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::rules) enum Kind {
    #[default]
    Window,
    Log,
    Ledger,
}

/// What a rule's algorithm needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rules) struct Held {
    pub algorithm: Algorithm,
    /// 0 where the algorithm has none of its own.
    pub limit: u64,
    /// 0 where the algorithm has none of its own.
    pub duration_ms: u64,
}

impl Kind {
    /// Reads `algorithm`.
    pub fn read(node: Node<'_>, errors: &mut Errors) -> Option<Kind> {
        node.word(
            &[("sliding_window", Kind::Window), ("sliding_log", Kind::Log), ("ledger", Kind::Ledger)],
            errors,
        )
    }

    /// Reads `limit`, `window` and `zone`, of which each algorithm has some.
    pub fn read_limit(self, fields: &Fields<'_>, errors: &mut Errors) -> Option<Held> {
        if self == Kind::Ledger {
            return read_ledger(fields, errors);
        }
        let limit =
            fields.required("limit", "a whole number, 0 or more", errors, |n, e| self.read_most(n, e));
        let duration_ms =
            fields.required("window", "a duration such as \"1m\"", errors, |n, e| WINDOW.read(n, e));
        let why = "is of no use here, as only a ledger has a zone";
        let zoneless =
            without("zone", why, "\"algorithm\": \"ledger\" beside it, or no zone", fields, errors);
        let algorithm = if self == Kind::Log { Algorithm::Log } else { Algorithm::Window };
        zoneless?;
        Some(Held { algorithm, limit: limit?, duration_ms: duration_ms? })
    }

    /// Reads `hard_limit`, for which the window has to fall into cells of whole milliseconds.
    pub fn read_hard_limit(
        self,
        fields: &Fields<'_>,
        held: Option<&Held>,
        errors: &mut Errors,
    ) -> Option<bool> {
        let why = match self {
            Kind::Window => return read_windows_hard_limit(fields, held, errors),
            Kind::Log => "is of no use here, as no window of a log ever holds more than its limit",
            Kind::Ledger => "is of no use here, as no window of a ledger ever holds more than its rate",
        };
        without("hard_limit", why, "\"algorithm\": \"sliding_window\", or no hard limit", fields, errors)
            .map(|()| false)
    }

    /// Reads a limit, a rule's or an override's.
    pub fn read_most(self, node: Node<'_>, errors: &mut Errors) -> Option<u64> {
        match self {
            Kind::Window => node.integer(0..=u64::MAX, errors),
            Kind::Log => node.integer(0..=MAX_LOG_LIMIT, errors),
            Kind::Ledger => node.reject(
                errors,
                "is of no use here, as a ledger's zone says how much passes",
                "\"exempt\": true, or no override",
            ),
        }
    }

    /// Reads `timeout`.
    pub fn read_timeout(self, fields: &Fields<'_>, errors: &mut Errors) -> Option<u64> {
        let (span, default) = match self {
            Kind::Window => (QUERY_TIMEOUT, QUERY_TIMEOUT_MS_DEFAULT),
            Kind::Log | Kind::Ledger => (EXACT_TIMEOUT, EXACT_TIMEOUT_MS_DEFAULT),
        };
        fields.or("timeout", default, errors, |n, e| span.read(n, e))
    }

    /// Refuses a cost that only the response tells where a limit is to be held exactly.
    pub fn check_cost(
        self,
        fields: &Fields<'_>,
        cost: Option<&Cost>,
        hard_limit: bool,
        errors: &mut Errors,
    ) -> Option<()> {
        let why = match (self, hard_limit) {
            (Kind::Window, false) => return Some(()),
            (Kind::Window, true) => {
                "cannot be told by a response, as a hard limit holds against what is known before"
            }
            (Kind::Log | Kind::Ledger, _) => {
                "cannot be told by a response, as a log or a ledger is charged before"
            }
        };
        let expected = "a number, or a cost by a header of the request";
        match fields.get("cost").filter(|_| matches!(cost, Some(Cost::Response(_)))) {
            Some(node) => node.reject(errors, why, expected),
            None => Some(()),
        }
    }

    /// Refuses fields that mean nothing to the algorithm.
    pub fn check_others(self, fields: &Fields<'_>, errors: &mut Errors) -> Option<()> {
        let why = "is of no use here, as every request is asked about";
        let asks = self == Kind::Window
            || without(
                "unknown_key",
                why,
                "\"algorithm\": \"sliding_window\", or no unknown_key",
                fields,
                errors,
            )
            .is_some();
        let why = "is of no use here, as a ledger counts by its zone";
        let counts =
            self != Kind::Ledger || without("namespace", why, "no namespace", fields, errors).is_some();
        (asks && counts).then_some(())
    }
}

fn read_windows_hard_limit(fields: &Fields<'_>, held: Option<&Held>, errors: &mut Errors) -> Option<bool> {
    let hard_limit = fields.or("hard_limit", false, errors, |n, e| n.boolean(e))?;
    let uneven = held.is_some_and(|held| !held.duration_ms.is_multiple_of(HARD_LIMIT_RESOLUTION.into()));
    match fields.get("window").filter(|_| hard_limit && uneven) {
        Some(window) => window.reject(
            errors,
            "cannot be cut into ten cells of whole milliseconds, as a hard limit needs",
            "a multiple of 10ms, or no hard limit",
        ),
        None => Some(hard_limit),
    }
}

fn read_ledger(fields: &Fields<'_>, errors: &mut Errors) -> Option<Held> {
    let why = "is of no use here, as a ledger's zone says rate and window";
    let limitless = without("limit", why, "no limit: see `weir-aggregator zones`", fields, errors);
    let windowless = without("window", why, "no window: see `weir-aggregator zones`", fields, errors);
    let expected = "the number of the ledger's zone, 1 or more";
    let zone = fields.required("zone", expected, errors, |n, e| n.integer(1..=u64::from(u32::MAX), e));
    limitless.and(windowless)?;
    Some(Held { algorithm: Algorithm::Ledger { zone: u32::try_from(zone?).ok()? }, limit: 0, duration_ms: 0 })
}

fn without<'a>(
    name: &'a str,
    why: &str,
    expected: &str,
    fields: &Fields<'a>,
    errors: &mut Errors,
) -> Option<()> {
    match fields.get(name) {
        Some(node) => node.reject(errors, why, expected),
        None => Some(()),
    }
}
