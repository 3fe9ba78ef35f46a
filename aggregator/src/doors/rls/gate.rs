//! Who may call the rate-limit service, and who may open a filter's stream.
//!
//! Leaves to others: what a call asks (`call`).

use crate::doors::tokens::{Caller, Tokens, bearer};
use crate::refusal::Refusal;
use std::sync::Arc;
use subtle::ConstantTimeEq;
use tonic::Status;
use tonic::metadata::MetadataMap;

/// What a caller must show: the aggregator's token, or one of the applications' tokens.
#[derive(Clone)]
pub struct Gate {
    token: Option<String>,
    tokens: Arc<Tokens>,
}

impl Gate {
    /// Lets those pass who know `token` or one of `tokens`; everybody if neither is asked for.
    pub fn new(token: Option<String>, tokens: Arc<Tokens>) -> Gate {
        Gate { token, tokens }
    }

    /// Who calls with these metadata.
    pub fn admit(&self, metadata: &MetadataMap) -> Result<Arc<Caller>, Status> {
        let shown = shown_in(metadata);
        let asked_for = (self.token.as_deref(), self.tokens.are_asked_for());
        match asked_for {
            (Some(token), _) if presents(shown, token) => Ok(Arc::new(Caller::ANYBODY)),
            (Some(_), false) => Err(Status::unauthenticated(
                "the token is missing or wrong; send the metadata \"authorization: Bearer …\" with the aggregator's, \
                 which --token or WEIR_TOKEN sets",
            )),
            _ => self.tokens.check(shown).map_err(|refused| Status::unauthenticated(refused.to_string())),
        }
    }
}

impl Gate {
    /// Whether a filter may open a stream with these metadata: it must know the aggregator's token, if there is one.
    pub fn admit_filter(&self, metadata: &MetadataMap) -> Result<(), Refusal> {
        match self.token.as_deref() {
            Some(token) if !presents(shown_in(metadata), token) => Err(Refusal::Token),
            _ => Ok(()),
        }
    }
}

fn shown_in(metadata: &MetadataMap) -> Option<&[u8]> {
    metadata.get("authorization").map(|value| value.as_bytes())
}

fn presents(shown: Option<&[u8]>, token: &str) -> bool {
    shown.and_then(bearer).is_some_and(|shown| shown.trim_ascii().ct_eq(token.as_bytes()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers() {
        let cases = [
            (None, None, true),
            (None, Some("Bearer any"), true),
            (Some("secret"), None, false),
            (Some("secret"), Some("Bearer secret"), true),
            (Some("secret"), Some("bearer  secret "), true),
            (Some("secret"), Some("Bearer Secret"), false),
            (Some("secret"), Some("Bearer "), false),
            (Some("secret"), Some("secret"), false),
            (Some("secret"), Some("Basic secret"), false),
        ];
        for (token, shown, expected) in cases {
            let mut metadata = MetadataMap::new();
            if let Some(shown) = shown {
                metadata.insert("authorization", shown.parse().unwrap());
            }
            let gate = Gate::new(token.map(str::to_owned), Tokens::open_to_all(false));
            assert_eq!(gate.admit(&metadata).is_ok(), expected, "{token:?} and {shown:?}");
            assert_eq!(gate.admit_filter(&metadata).is_ok(), expected, "{token:?} and {shown:?}");
        }
    }
}
