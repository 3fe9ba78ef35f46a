//! Authentication: bearer tokens (RFC 6750) and client certificates of applications, other proxies and filters.
//!
//! The tokens file contains only digests. A token has 256 random bits, so its SHA-256 can be neither reversed nor
//! guessed. A presented token is compared with every entry in constant time. The names in a certificate are public, so
//! they are looked up in a map.
//!
//! ```yaml
//! - name: shop
//!   sha256: <weir-aggregator token prints it>
//!   workspace: default
//!   zones: [1, 2]      # zones of the ledger, or all; default: none
//!   control: true      # may read and change live control; default: false
//!   namespaces: [cart, "job-*"]   # where it may count, or all; default: limits without a name
//!   max_cost: 100      # most that one request may use of one limit and identifier; default: unlimited
//! - name: gateways
//!   san: spiffe://example.org/gateway   # a name in the client's certificate, instead of a token
//!   workspaces: [default, mobile]       # makes it a filter's entry; or all
//! ```
//!
//! In reading order: `entry`, `caller`, this file (the valid credentials), `authenticator` (the gRPC listener),
//! `confine` (a filter's frames).

mod authenticator;
mod caller;
mod confine;
mod entry;

pub use authenticator::{Authenticator, PUBLISHED_TOKENS};
pub use caller::{Caller, Scope};
pub use entry::{Entry, Listed, MAX_NAME_BYTES, MAX_NAMESPACES, MAX_SAN_BYTES, MAX_ZONES};

use crate::net::follow::{self, Contents, Followed, ReadError};
use crate::net::listen::ConnectionInfo;
use crate::net::tls::CertificateNames;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::metrics::api::Files;
use caller::Holder;
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use parking_lot::RwLock;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};
use tracing::{error, info};
use weir_core::fields::Value;
use weir_core::fields::yaml::{self, Dialect, Verbatim};
use weir_core::region::shares::Grants;

/// Most entries in the file.
const MAX_TOKENS: usize = 10_000;
/// Longest `authorization` header that is parsed, in bytes.
pub const MAX_HEADER_BYTES: usize = 512;
const NOT_A_DIGEST: &str =
    "sha256 is not the 64 hexadecimal digits of a digest; make one with weir-aggregator token";
/// It may be one that is still being written, so an empty list must be explicit.
const EMPTY: &str = "the file is empty; write [] to have no tokens";
/// Prefix of a token, by which scanners recognise a leaked token.
pub const PREFIX: &str = "weir_";

/// The valid credentials. Without a file, every caller is admitted.
pub struct Tokens {
    table: Option<RwLock<Arc<Table>>>,
    /// The caller if there is no file.
    without_credential: Arc<Caller>,
    /// The file has named a filter since the start. Removing the last filter's entry therefore does not admit all
    /// filters.
    names_filters: AtomicBool,
}

/// The credentials that a client presents.
#[derive(Clone, Copy, Debug, Default)]
pub struct Presented<'a> {
    /// The value of the `authorization` header.
    pub header: Option<&'a [u8]>,
    /// The names in the client's verified certificate; used if there is no header.
    pub certificate: Option<&'a CertificateNames>,
}

impl<'a> Presented<'a> {
    /// The credentials of a gRPC call with these headers on this connection.
    pub fn in_call(headers: &'a HeaderMap, connection: Option<&'a ConnectionInfo>) -> Presented<'a> {
        Presented {
            header: headers.get(AUTHORIZATION).map(HeaderValue::as_bytes),
            certificate: connection.map(|connection| &connection.certificate),
        }
    }
}

/// Why a caller is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unauthorized {
    /// No token, and no certificate name of an entry.
    #[error("no token was sent; send authorization: Bearer {PREFIX}…")]
    Missing,
    /// The header is malformed.
    #[error(
        "the authorization header is not \"Bearer\", one space and a token, within {MAX_HEADER_BYTES} bytes"
    )]
    Malformed,
    /// No entry has this token.
    #[error("the token is unknown; it may have been revoked")]
    Unknown,
    /// A filter's credential was presented where an application's is required.
    #[error(
        "the credential belongs to a filter; an application's entry in the tokens file has workspace, not workspaces"
    )]
    OfFilter,
}

/// Why the tokens file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokensError {
    /// The file is missing or unreadable.
    #[error("{0}; see --tokens-file or WEIR_TOKENS_FILE")]
    Read(#[from] ReadError),
    /// The file has invalid content.
    #[error("{}: {reason}; see --tokens-file or WEIR_TOKENS_FILE", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: ContentError,
    },
}

/// Why the content of the tokens file is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContentError {
    /// Not a YAML list of entries.
    #[error(
        "expected a YAML list of {{name, sha256 or san, workspace or workspaces, zones, control, namespaces, max_cost}}: {0}"
    )]
    Yaml(String),
    /// The first line is what the client presents.
    #[error(
        "line 1 is the token itself, which belongs to the client: remove it, and keep the entry below it"
    )]
    Pasted,
    /// Too many entries.
    #[error("the file has {0} entries; at most {MAX_TOKENS} are allowed")]
    TooMany(usize),
    /// An entry is invalid.
    #[error("entry {0}: {1}")]
    Entry(usize, String),
    /// Two entries share a name or a credential.
    #[error("entry {0} ({1:?}): an earlier entry has the same {2}")]
    Twice(usize, String, &'static str),
}

impl ContentError {
    /// The problem without the number of its entry.
    fn problem(&self) -> String {
        match self {
            ContentError::Entry(_, what) => what.clone(),
            ContentError::Twice(_, name, field) => {
                format!("an earlier entry has the same {field} (name {name:?})")
            }
            other => other.to_string(),
        }
    }
}

/// A new token. It is shown once and not stored.
pub struct NewToken {
    /// The token that the client presents.
    pub token: String,
    /// The entry for the tokens file.
    pub entry: String,
}

/// Holders by digest, and holders by certificate name.
#[derive(Debug, Default)]
struct Table {
    digests: Vec<Words>,
    holders: Vec<Holder>,
    names: HashMap<String, Holder>,
}

/// What earlier entries have, which no other may have.
#[derive(Debug, Default)]
struct Taken {
    names: HashSet<String>,
    digests: HashSet<Words>,
    sans: HashSet<String>,
}

/// A digest as words, which are compared faster than bytes.
type Words = [u64; 4];

impl Tokens {
    /// Admits every caller to everything, and to live control if `control` is set.
    pub fn open_to_all(control: bool) -> Arc<Tokens> {
        Arc::new(Tokens::over(None, control))
    }

    /// Reads the file at the start.
    pub fn read(path: PathBuf) -> Result<(Arc<Tokens>, Followed<Contents>), TokensError> {
        let followed = Followed::open(vec![path.clone()])?;
        let text = text_of(followed.contents());
        let tokens = Tokens::parse(text).map_err(|reason| TokensError::Content { path, reason })?;
        Ok((Arc::new(tokens), followed))
    }

    /// Parses the content of the file.
    pub fn parse(text: &[u8]) -> Result<Tokens, ContentError> {
        Table::parse(text).map(|table| Tokens::over(Some(table), false))
    }

    /// The entries of a file's content, or all that is wrong with it, each with the number of its entry from 0 if it is of one.
    pub fn entries(text: &[u8]) -> Result<Vec<Entry>, Vec<(Option<usize>, String)>> {
        let read = read_entries(text).map_err(|wrong| vec![(None, wrong.to_string())])?;
        let (mut entries, mut wrong, mut taken) = (Vec::new(), Vec::new(), Taken::default());
        for (number, entry) in (1..).zip(read) {
            let added = entry.and_then(|entry| {
                entries.push(entry.clone());
                Table::default().add(number, entry, &mut taken)
            });
            wrong.extend(added.err().map(|added| (Some(number - 1), added.problem())));
        }
        if wrong.is_empty() { Ok(entries) } else { Err(wrong) }
    }

    fn over(table: Option<Table>, control: bool) -> Tokens {
        Tokens {
            names_filters: AtomicBool::new(table.as_ref().is_some_and(Table::names_filters)),
            table: table.map(|table| RwLock::new(Arc::new(table))),
            without_credential: Arc::new(Caller::without_credential(control)),
        }
    }

    /// Whether applications need a credential.
    pub fn is_required(&self) -> bool {
        self.table.is_some()
    }

    /// Whether the file names a filter, or has done so since the start.
    pub fn name_filters(&self) -> bool {
        self.names_filters.load(Relaxed)
    }

    /// The names and prefixes of namespaces that the entries of applications allow, by which keys share their room.
    pub fn grants(&self) -> Grants {
        let mut grants = Grants::default();
        if let Some(table) = &self.table {
            let table = table.read().clone();
            table
                .holders
                .iter()
                .chain(table.names.values())
                .for_each(|holder| holder.add_grants(&mut grants));
        }
        grants
    }

    /// Authenticates an application or another proxy.
    pub fn check(&self, presented: Presented<'_>) -> Result<Arc<Caller>, Unauthorized> {
        match self.holder(presented)? {
            None => Ok(self.without_credential.clone()),
            Some(Holder::Application(caller)) => Ok(caller),
            Some(Holder::Filter(_)) => Err(Unauthorized::OfFilter),
        }
    }

    /// Authenticates a filter; `None` if the credential is no filter's.
    fn scope(&self, presented: Presented<'_>) -> Option<Arc<Scope>> {
        match self.holder(presented) {
            Ok(Some(Holder::Filter(scope))) => Some(scope),
            _ => None,
        }
    }

    /// Whether the token or the certificate is that of an application, whichever takes precedence.
    fn is_application(&self, presented: Presented<'_>) -> bool {
        let by_certificate = Presented { header: None, ..presented };
        let holders = [presented, by_certificate].map(|presented| self.holder(presented));
        holders.iter().any(|holder| matches!(holder, Ok(Some(Holder::Application(_)))))
    }

    /// The holder of the credential; `None` if there is no file.
    fn holder(&self, presented: Presented<'_>) -> Result<Option<Holder>, Unauthorized> {
        let Some(table) = &self.table else { return Ok(None) };
        let table = table.read().clone();
        let Some(header) = presented.header else {
            let mut names = presented.certificate.into_iter().flat_map(CertificateNames::iter);
            let holder = names.find_map(|name| table.names.get(name));
            return holder.cloned().map(Some).ok_or(Unauthorized::Missing);
        };
        let digest = words(&Sha256::digest(token_of(header).ok_or(Unauthorized::Malformed)?).into());
        table.find(&digest).map(Some).ok_or(Unauthorized::Unknown)
    }

    /// Replaces the table. Streams of filters whose entries changed end, because a stream keeps the scope with which it
    /// began.
    fn replace(&self, mut new: Table) {
        self.names_filters.fetch_or(new.names_filters(), Relaxed);
        let Some(table) = &self.table else { return };
        let mut table = table.write();
        new.keep_scopes(&table);
        *table = Arc::new(new);
    }

    /// Watches the file for as long as the program runs; `replaced` is called after each change.
    pub async fn follow(
        self: Arc<Self>,
        followed: Followed<Contents>,
        metrics: Arc<Metrics>,
        replaced: impl Fn(&Tokens) + Send + 'static,
    ) {
        let take = move |contents: &Contents| {
            let new = Table::parse(text_of(contents)).map_err(|wrong| wrong.to_string())?;
            self.replace(new);
            replaced(&self);
            Ok(())
        };
        follow::follow(followed, take, |state| {
            metrics.api.files_read(Files::Tokens, state.is_ok());
            match state {
                Ok(()) => info!("tokens file reloaded"),
                Err(reason) => {
                    error!(reason, "the changed tokens file is invalid; the previous tokens stay valid");
                }
            }
        })
        .await;
    }
}

impl NewToken {
    /// A random token with the permissions of `entry`.
    pub fn new(entry: Entry) -> Result<NewToken, &'static str> {
        let secret: [u8; 32] = rand::random();
        let token = format!("{PREFIX}{}", hex(&secret));
        let entry = Entry { sha256: Some(hex(&Sha256::digest(token.as_bytes()))), ..entry };
        Ok(NewToken { token, entry: entry.to_yaml()? })
    }
}

impl Table {
    fn parse(text: &[u8]) -> Result<Table, ContentError> {
        let (mut table, mut taken) = (Table::default(), Taken::default());
        for (number, entry) in (1..).zip(read_entries(text)?) {
            table.add(number, entry?, &mut taken)?;
        }
        Ok(table)
    }

    fn add(&mut self, number: usize, entry: Entry, taken: &mut Taken) -> Result<(), ContentError> {
        let wrong = |what: &str| ContentError::Entry(number, what.to_owned());
        entry.check().map_err(wrong)?;
        let twice = |field| ContentError::Twice(number, entry.name.clone(), field);
        if !taken.names.insert(entry.name.clone()) {
            return Err(twice("name"));
        }
        // Case does not matter in DNS names, which have no colon, and those of a certificate are in lower case.
        let lower = |san: String| if san.contains(':') { san } else { san.to_ascii_lowercase() };
        if let Some(san) = entry.san.clone().map(lower) {
            if !taken.sans.insert(san.clone()) {
                return Err(twice("san"));
            }
            self.names.insert(san, Holder::of(entry));
            return Ok(());
        }
        let digest = entry.sha256.as_deref().and_then(digest_of);
        let digest = digest.ok_or_else(|| wrong(NOT_A_DIGEST))?;
        if !taken.digests.insert(digest) {
            return Err(twice("sha256"));
        }
        self.digests.push(digest);
        self.holders.push(Holder::of(entry));
        Ok(())
    }

    fn names_filters(&self) -> bool {
        self.holders.iter().chain(self.names.values()).any(|holder| matches!(holder, Holder::Filter(_)))
    }

    /// Keeps the scopes of `old` that are unchanged, and revokes the others.
    fn keep_scopes(&mut self, old: &Table) {
        let mut digests: HashMap<_, _> = self.digests.iter().zip(&mut self.holders).collect();
        for (digest, holder) in old.digests.iter().zip(&old.holders) {
            holder.pass_on(digests.get_mut(digest).map(|new| &mut **new));
        }
        for (name, holder) in &old.names {
            holder.pass_on(self.names.get_mut(name));
        }
    }

    /// Compares with every entry, even after a match, so that the time is constant.
    fn find(&self, digest: &Words) -> Option<Holder> {
        let mut found = u64::MAX;
        for (index, stored) in (0_u64..).zip(&self.digests) {
            found.conditional_assign(&index, same(stored, digest));
        }
        self.holders.get(usize::try_from(found).ok()?).cloned()
    }
}

/// Whether a text begins with what `weir-aggregator token` prints first.
pub fn begins_with_a_token(text: &[u8]) -> bool {
    let line = text.trim_ascii_start().split(u8::is_ascii_whitespace).next().unwrap_or_default();
    line.strip_prefix(PREFIX.as_bytes())
        .is_some_and(|rest| rest.len() >= 32 && rest.iter().all(u8::is_ascii_hexdigit))
}

/// The entries of a file's content, as far as each can be read.
fn read_entries(text: &[u8]) -> Result<Vec<Result<Entry, ContentError>>, ContentError> {
    const WRITTEN: Verbatim = Verbatim {
        fields: &["name", "sha256", "san", "workspace"],
        lists: &["workspaces", "namespaces"],
        not_below: "",
    };
    if begins_with_a_token(text) {
        return Err(ContentError::Pasted);
    }
    let documents = yaml::documents(text, Dialect::Written(WRITTEN)).map_err(ContentError::Yaml)?;
    let [document] = documents.as_slice() else {
        let what = if documents.is_empty() { EMPTY } else { "the file has several documents" };
        return Err(ContentError::Yaml(what.to_owned()));
    };
    if let Some(again) = document.repeated.first() {
        return Err(ContentError::Yaml(format!("{}: {}", again.path, again.problem())));
    }
    let entries = match &document.value {
        Value::List(entries) => entries,
        Value::Null => return Err(ContentError::Yaml(EMPTY.to_owned())),
        _ => return Err(ContentError::Yaml("it is not a list".to_owned())),
    };
    if entries.len() > MAX_TOKENS {
        return Err(ContentError::TooMany(entries.len()));
    }
    let entry = |(number, entry): (usize, &Value<'_>)| {
        let entry = entry.to_json();
        Entry::deserialize(&entry).map_err(|wrong| ContentError::Entry(number, placed(&entry, &wrong)))
    };
    Ok((1..).zip(entries).map(entry).collect())
}

/// What is wrong with an entry, with its field and name.
fn placed(entry: &serde_json::Value, wrong: &serde_json::Error) -> String {
    const NAME: &str = "name";
    let fields = entry.as_object().into_iter().flatten();
    // Each is read alone, as the first error of an entry does not state its field.
    let faulty = fields.filter_map(|(field, value)| {
        let alone = serde_json::json!({NAME: "", field: value});
        Entry::deserialize(&alone).err().map(|wrong| (field, wrong.to_string()))
    });
    let problems: Vec<String> = faulty
        .map(
            |(field, wrong)| {
                if wrong.starts_with("unknown field") { wrong } else { format!("{field}: {wrong}") }
            },
        )
        .collect();
    if problems.is_empty() {
        return wrong.to_string();
    }
    let name = entry[NAME].as_str().map(|name| format!(" (name {name:?})"));
    problems.join("; ") + &name.unwrap_or_default()
}

/// The content of the only file.
fn text_of(contents: &Contents) -> &[u8] {
    contents.first().map(Vec::as_slice).unwrap_or_default()
}

/// The token in a header's value.
fn token_of(header: &[u8]) -> Option<&[u8]> {
    let sound = |token: &&[u8]| !token.is_empty() && token.iter().all(u8::is_ascii_graphic);
    bearer(header).filter(|_| header.len() <= MAX_HEADER_BYTES).filter(sound)
}

/// The text after the scheme, by RFC 6750, section 2.1. The scheme is case-insensitive (RFC 9110, section 11.1).
fn bearer(header: &[u8]) -> Option<&[u8]> {
    const SCHEME: &[u8] = b"bearer ";
    let (scheme, token) = header.split_at_checked(SCHEME.len())?;
    scheme.eq_ignore_ascii_case(SCHEME).then_some(token)
}

fn same(one: &Words, other: &Words) -> Choice {
    one.iter().zip(other).fold(Choice::from(1), |same, (one, other)| same & one.ct_eq(other))
}

fn words(digest: &[u8; 32]) -> Words {
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(digest.as_chunks().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    words
}

fn digest_of(text: &str) -> Option<Words> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes: Option<Vec<u8>> =
        pairs.iter().map(|[high, low]| Some(digit(high)? << 4 | digit(low)?)).collect();
    let digest: [u8; 32] = bytes?.try_into().ok()?;
    rest.is_empty().then(|| words(&digest))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &str) -> String {
        Tokens::parse(text.as_bytes()).err().map_or_else(String::new, |wrong| wrong.to_string())
    }

    #[test]
    fn what_a_file_repeats_is_bounded_before_it_takes_memory() {
        let names = vec!["\"job-*\""; 100_000].join(", ");
        let entries = |times: usize| -> String {
            let more = |n: usize| format!("- {{name: n{n}, san: s{n}, workspace: w, namespaces: *a}}\n");
            let first = format!("- {{name: n, san: s, workspace: w, namespaces: &a [{names}]}}\n");
            first + &(0..times).map(more).collect::<String>()
        };
        assert_eq!(wrong(&entries(2)), "");
        let error = wrong(&entries(200));
        assert!(error.contains("repeated and merged ones included"), "{error}");
        assert!(error.contains("line "), "{error}");
    }

    #[test]
    fn what_cannot_be_read_has_a_place() {
        for (text, place) in [
            (
                "- {name: a, workspace: w, san: s}\n- {name: a, wrkspace: w}\n",
                "entry 2: unknown field `wrkspace`",
            ),
            ("- {name: a, workspace: w, san: s}\n- 5\n", "entry 2: invalid type: integer `5`"),
            (
                "- {name: a, workspace: w, san: s, control: \"yes\"}\n",
                "entry 1: control: invalid type: string \"yes\", expected a boolean (name \"a\")",
            ),
            (
                "- {name: a, workspace: w, san: s, namespaces: cart, max_cost: -1}\n",
                "entry 1: max_cost: invalid value: integer `-1`, expected u64; \
                 namespaces: invalid value: string \"cart\", expected a list, or \"all\" (name \"a\")",
            ),
            (
                "- {name: a, workspaces: [w], san: s, zones: \"1,2\"}\n",
                "entry 1: zones: invalid value: string",
            ),
            ("- {workspace: w, san: s}\n", "entry 1: missing field `name`"),
            (
                "- name: a\n  workspace: w\n  name: b\n",
                "[0].name: it is given twice, again at line 3, column 3",
            ),
            ("- name: [a]\n  san: s\n", "at line 1, column 9"),
            ("- name: a\n  san: *s\n", "at line 2, column 8"),
            ("- name: a\n san: s\n", "at line 2, column 2"),
            ("- name: a\n  san: s\n  namespaces: {<<: 5}\n", "at line 3, column 15"),
            ("[]\n---\n[]\n", "several documents"),
            ("name: a\n", "not a list"),
        ] {
            let error = wrong(text);
            assert!(error.contains(place), "{text}: {error}");
        }
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        let text = "- {name: 007, san: 1.0, workspaces: [yes, 010]}\n- {name: no, san: 2, workspace: on, namespaces: all}\n";
        let entries = Tokens::entries(text.as_bytes()).unwrap();
        let names = |of: &[&str]| Listed::These(of.iter().map(ToString::to_string).collect());
        assert_eq!((entries[0].name.as_str(), entries[0].san.as_deref()), ("007", Some("1.0")));
        assert_eq!(entries[0].workspaces, Some(names(&["yes", "010"])));
        assert_eq!((entries[1].name.as_str(), entries[1].workspace.as_deref()), ("no", Some("on")));
        assert_eq!(entries[1].namespaces, Some(Listed::All));
    }

    /// Whoever saves an example unchanged must not admit everybody who has read it.
    #[test]
    fn no_page_has_a_digest_that_can_be_used() {
        for page in [include_str!("../../README.md"), include_str!("mod.rs")] {
            let digests = page.lines().filter_map(|line| line.split_once("sha256: ").map(|(_, rest)| rest));
            let usable: Vec<_> =
                digests.filter_map(|rest| rest.split(' ').next()).filter_map(digest_of).collect();
            assert!(usable.is_empty(), "{usable:?}");
        }
        let page = include_str!("../../README.md").split_once("## Tokens").unwrap().1;
        let example = page.split("```").nth(1).unwrap().strip_prefix("yaml").unwrap();
        assert!(wrong(example).contains("weir-aggregator token"), "{}", wrong(example));
    }
}
