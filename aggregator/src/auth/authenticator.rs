//! Authentication at the gRPC listener: filters that open a stream, and callers of the rate-limit service.

use super::{Caller, Presented, Scope, Tokens, bearer};
use std::sync::Arc;
use subtle::ConstantTimeEq;
use tonic::Status;
use weir_core::rules::PLACEHOLDER;

/// The tokens in Weir's own manifests. They are placeholders there, and protect nothing.
pub const PUBLISHED_TOKENS: [&str; 2] = [PLACEHOLDER, "local-only"];

/// The accepted credentials: the aggregator's own token, and the entries of the tokens file.
#[derive(Clone)]
pub struct Authenticator {
    token: Option<String>,
    tokens: Arc<Tokens>,
}

impl Authenticator {
    /// Admits callers with `token` or an entry of `tokens`. Admits every caller if neither is configured.
    pub fn new(token: Option<String>, tokens: Arc<Tokens>) -> Authenticator {
        Authenticator { token, tokens }
    }

    /// Authenticates a caller of the rate-limit service.
    pub fn admit(&self, presented: Presented<'_>) -> Result<Arc<Caller>, Status> {
        match (self.token.as_deref(), self.tokens.is_required()) {
            (Some(token), _) if presents(presented, token) => Ok(Arc::new(Caller::without_credential(false))),
            (Some(_), false) => Err(Status::unauthenticated(
                "the token is missing or wrong; send the metadata \"authorization: Bearer …\" with the aggregator's, \
                 which --filter-token or WEIR_FILTER_TOKEN sets",
            )),
            _ => self.tokens.check(presented).map_err(|refused| Status::unauthenticated(refused.to_string())),
        }
    }

    /// The scope of a filter; `None` if the filter may not open a stream. If the aggregator has no token and the tokens
    /// file names no filter, every filter may count everything, but for callers with an application's credential.
    pub fn admit_filter(&self, presented: Presented<'_>) -> Option<Arc<Scope>> {
        let everything = || Arc::new(Scope::everything());
        match self.token.as_deref() {
            Some(token) if presents(presented, token) => Some(everything()),
            None if !self.tokens.name_filters() => (!self.tokens.is_application(presented)).then(everything),
            _ => self.tokens.scope(presented),
        }
    }

    /// The aggregator's own token, if it stands in Weir's own manifests, so that everybody has it.
    pub fn published_token(&self) -> Option<&str> {
        self.token.as_deref().filter(|token| PUBLISHED_TOKENS.contains(&token.trim()))
    }

    /// Whether callers of the rate-limit service must present a credential.
    pub fn callers_need_tokens(&self) -> bool {
        self.token.is_some() || self.tokens.is_required()
    }

    /// Whether filters must present a credential.
    pub fn filters_need_tokens(&self) -> bool {
        self.token.is_some() || self.tokens.name_filters()
    }
}

fn presents(presented: Presented<'_>, token: &str) -> bool {
    presented.header.and_then(bearer).is_some_and(|shown| shown.trim_ascii().ct_eq(token.as_bytes()).into())
}

#[cfg(test)]
mod tests {
    use super::super::{Entry, Listed, NewToken};
    use super::*;

    fn bearer_of(token: &str) -> String {
        format!("Bearer {token}")
    }

    fn header(value: Option<&str>) -> Presented<'_> {
        Presented { header: value.map(str::as_bytes), ..Presented::default() }
    }

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
            let authenticator = Authenticator::new(token.map(str::to_owned), Tokens::open_to_all(false));
            assert_eq!(authenticator.admit(header(shown)).is_ok(), expected, "{token:?} and {shown:?}");
            assert_eq!(
                authenticator.admit_filter(header(shown)).is_some(),
                expected,
                "{token:?} and {shown:?}"
            );
        }
    }

    #[test]
    fn credentials_of_filters_and_of_applications_are_not_interchangeable() {
        let workspaces = Some(Listed::These(["mobile".to_owned()].into()));
        let filter = Entry { name: "gateways".to_owned(), workspaces, ..Entry::default() };
        let [filter, application] =
            [filter, Entry::application("shop", "mobile")].map(|entry| NewToken::new(entry).unwrap());
        let file = |entries: &[&NewToken]| {
            let text: String = entries.iter().map(|token| token.entry.as_str()).collect();
            Arc::new(Tokens::parse(text.as_bytes()).unwrap())
        };
        let [for_filter, for_application] = [&filter, &application].map(|token| bearer_of(&token.token));
        let (for_filter, for_application) = (header(Some(&for_filter)), header(Some(&for_application)));
        for token in [None, Some("secret".to_owned())] {
            let authenticator = Authenticator::new(token.clone(), file(&[&filter, &application]));
            assert!(authenticator.filters_need_tokens());
            let scope = authenticator.admit_filter(for_filter).unwrap();
            assert!(scope.has_workspace("mobile") && !scope.has_workspace("default"));
            assert!(authenticator.admit_filter(for_application).is_none());
            assert!(authenticator.admit_filter(header(None)).is_none());
            assert_eq!(authenticator.admit(for_application).unwrap().name, "shop");
            assert!(authenticator.admit(for_filter).is_err());
            let own = authenticator.admit_filter(header(Some("Bearer secret")));
            assert_eq!(own.is_some_and(|scope| scope.is_everything()), token.is_some());
        }
        let authenticator = Authenticator::new(None, file(&[&application]));
        assert!(
            !authenticator.filters_need_tokens() && authenticator.admit_filter(header(None)).is_some(),
            "no filter is named"
        );
    }
}
