//! Errors of the HTTP API, all in one form:
//! `{"error": {"code": "invalid_request", "message": "…", "field": "checks[3].limit", "problems": [{"field", "message"}]}}`.

use crate::auth::Unauthorized;
use axum::http::StatusCode;
use axum::http::header::{CONNECTION, HeaderName, WWW_AUTHENTICATE};
use axum::response::{IntoResponse, Json, Response};
use serde::Serialize;
use weir_core::fields::FieldError;

/// Most invalid fields of one request that are reported.
pub(super) const MAX_PROBLEMS: usize = 20;

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// 400 and above.
    pub status: StatusCode,
    /// For programs.
    pub code: &'static str,
    /// For people.
    pub message: String,
    /// The invalid fields, at most 20.
    pub fields: Vec<FieldProblem>,
    /// A header that belongs to the status.
    pub header: Option<(HeaderName, &'static str)>,
}

/// An invalid field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FieldProblem {
    /// Its path, such as `checks[3].limit`.
    pub field: String,
    /// What is invalid, and what is expected.
    pub message: String,
}

impl From<&FieldError> for FieldProblem {
    fn from(error: &FieldError) -> FieldProblem {
        FieldProblem { field: error.path.clone(), message: error.message() }
    }
}

#[derive(Serialize)]
struct Body<'a> {
    error: ErrorBody<'a>,
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    code: &'static str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    problems: &'a [FieldProblem],
}

impl Problem {
    pub(super) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Problem {
        Problem { status, code, message: message.into(), fields: Vec::new(), header: None }
    }

    /// The body is not valid JSON, or too deep or too large for a request.
    pub(super) fn json(error: &serde_json::Error) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, "invalid_json", format!("the body is not valid JSON: {error}"))
    }

    /// Some fields are invalid; the list has at least one.
    pub(super) fn fields(fields: Vec<FieldProblem>) -> Problem {
        let message = match fields.as_slice() {
            [only] if only.field.is_empty() => format!("the body: {}", only.message),
            [first] => format!("{}: {}", first.field, first.message),
            [first, more @ ..] => format!("{}: {} (and {} more)", first.field, first.message, more.len()),
            [] => String::new(),
        };
        Problem { fields, ..Problem::new(StatusCode::BAD_REQUEST, "invalid_request", message) }
    }

    /// One field is invalid.
    pub(super) fn field(field: &str, message: &str) -> Problem {
        Problem::fields(vec![FieldProblem { field: field.to_owned(), message: message.to_owned() }])
    }

    /// The caller may not use this value.
    pub(super) fn forbidden(code: &'static str, field: String, message: String) -> Problem {
        Problem { status: StatusCode::FORBIDDEN, code, ..Problem::field(&field, &message) }
    }

    /// The caller is not authenticated (RFC 6750, section 3).
    pub(super) fn unauthorized(reason: Unauthorized) -> Problem {
        let (code, challenge) = match reason {
            Unauthorized::OfFilter => {
                return Problem::new(StatusCode::FORBIDDEN, "credential_of_a_filter", reason.to_string());
            }
            Unauthorized::Missing => ("token_missing", "Bearer"),
            Unauthorized::Malformed => ("token_malformed", "Bearer error=\"invalid_request\""),
            Unauthorized::Unknown => ("token_unknown", "Bearer error=\"invalid_token\""),
        };
        Problem::new(StatusCode::UNAUTHORIZED, code, reason.to_string()).with(WWW_AUTHENTICATE, challenge)
    }

    pub(super) fn too_slow() -> Problem {
        let message = "the body did not arrive in time";
        Problem::new(StatusCode::REQUEST_TIMEOUT, "too_slow", message).with(CONNECTION, "close")
    }

    fn with(self, name: HeaderName, value: &'static str) -> Problem {
        Problem { header: Some((name, value)), ..self }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let error = ErrorBody {
            code: self.code,
            message: &self.message,
            field: self.fields.first().map(|first| first.field.as_str()).filter(|field| !field.is_empty()),
            problems: &self.fields,
        };
        let body = Json(Body { error });
        match self.header {
            Some(header) => (self.status, [header], body).into_response(),
            None => (self.status, body).into_response(),
        }
    }
}
