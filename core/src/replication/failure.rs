//! Why a store did not do what it was asked, as far as that matters to what is done next.
//!
//! Leaves to others: texts and codes (`aggregator`), and whether a store that fails is still asked (`breaker`).

/// Why a call, or one cell of it, failed. Nothing is known about whether the store did it all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No answer within the time given.
    Timeout,
    /// It cannot be reached.
    Unavailable,
    /// As much waits for its answers as may; that says nothing of the store.
    Busy,
    /// It answered with an error.
    Refused,
    /// So it did, and only the cell that was asked about is to blame: somebody has put something else in its place, or
    /// too much into it. The store itself works.
    OfTheCell,
    /// Its answer is none to the question.
    Malformed,
}

impl Failure {
    /// Whether the store answered with an error, of whatever kind.
    pub const fn is_refusal(self) -> bool {
        matches!(self, Failure::Refused | Failure::OfTheCell)
    }

    /// One of few words, for metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Failure::Timeout => "timeout",
            Failure::Unavailable | Failure::Busy => "unavailable",
            Failure::Refused | Failure::OfTheCell => "refused",
            Failure::Malformed => "protocol",
        }
    }
}

/// Whether every part of a call failed, and none because of its own cell.
pub fn did_nothing<T>(results: &[Result<T, Failure>]) -> bool {
    results.iter().all(|result| result.as_ref().is_err_and(|failure| *failure != Failure::OfTheCell))
}

/// It speaks for all that failed.
pub fn first_failure<T>(results: &[Result<T, Failure>]) -> Option<Failure> {
    results.iter().find_map(|result| result.as_ref().err().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_did_nothing_if_no_part_of_it_was_answered() {
        type Case<'a> = (&'a [Result<(), Failure>], bool, Option<Failure>);
        let cases: [Case; 5] = [
            (&[Err(Failure::Unavailable), Err(Failure::Timeout)], true, Some(Failure::Unavailable)),
            (&[Err(Failure::Refused)], true, Some(Failure::Refused)),
            (&[Ok(()), Err(Failure::Unavailable)], false, Some(Failure::Unavailable)),
            (&[Err(Failure::Unavailable), Err(Failure::OfTheCell)], false, Some(Failure::Unavailable)),
            (&[Ok(())], false, None),
        ];
        for (results, nothing, first) in cases {
            assert_eq!((did_nothing(results), first_failure(results)), (nothing, first), "{results:?}");
        }
    }
}
