//! Why a call to a store failed, as far as the reason decides what is done next.

/// Why a call, or one cell of it, failed. The store may have executed the call nevertheless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No answer within the deadline.
    Timeout,
    /// The store cannot be reached. If the connection broke, the call may have arrived.
    Unavailable,
    /// No connection to the store could be made, so the call has not arrived.
    Unreachable,
    /// The store is reached, and answers nothing before it has loaded its data, or before its cluster is up.
    Loading,
    /// The most calls that may wait for an answer were waiting already. This shows nothing about the store itself.
    Busy,
    /// The store answered with an error.
    Refused,
    /// The store answered with an error that concerns only this cell: another program has replaced its value, or has
    /// put too much into it. The store itself works.
    OfTheCell,
    /// The answer does not match the call.
    Malformed,
}

impl Failure {
    /// Whether the store answered with an error of either kind.
    pub const fn is_refusal(self) -> bool {
        matches!(self, Failure::Refused | Failure::OfTheCell)
    }

    /// The label of this failure in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Failure::Timeout => "timeout",
            Failure::Unavailable | Failure::Unreachable | Failure::Loading | Failure::Busy => "unavailable",
            Failure::Refused | Failure::OfTheCell => "refused",
            Failure::Malformed => "protocol",
        }
    }
}

/// Whether every part of a call failed, and none because of its own cell.
pub fn did_nothing<T>(results: &[Result<T, Failure>]) -> bool {
    results.iter().all(|result| result.as_ref().is_err_and(|failure| *failure != Failure::OfTheCell))
}

/// The first failure, which stands for all parts that failed.
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
