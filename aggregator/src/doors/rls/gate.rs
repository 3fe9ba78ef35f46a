//! Who may call the rate-limit service.
//!
//! Leaves to others: what a call asks (`call`).

use crate::doors::tokens::{Caller, Tokens, bearer};
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
        let shown = metadata.get("authorization").map(|value| value.as_bytes());
        let asked_for = (self.token.as_deref(), self.tokens.are_asked_for());
        match asked_for {
            (Some(token), _)
                if shown.and_then(bearer).is_some_and(|shown| same(shown.trim_ascii(), token)) =>
            {
                Ok(Arc::new(Caller::ANYBODY))
            }
            (Some(_), false) => Err(Status::unauthenticated(
                "the token is missing or wrong; send the metadata \"authorization: Bearer …\" with the aggregator's, \
                 which --token or WEIR_TOKEN sets",
            )),
            _ => self.tokens.check(shown).map_err(|refused| Status::unauthenticated(refused.to_string())),
        }
    }
}

fn same(shown: &[u8], token: &str) -> bool {
    shown.ct_eq(token.as_bytes()).into()
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
            let gate = Gate::new(token.map(str::to_owned), Tokens::open_to_all());
            assert_eq!(gate.admit(&metadata).is_ok(), expected, "{token:?} and {shown:?}");
        }
    }
}
