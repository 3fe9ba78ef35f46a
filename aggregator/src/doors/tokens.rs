//! Who may ask, and for which workspace: bearer tokens (RFC 6750) of applications and of other proxies.
//!
//! The file holds digests alone; a token has 256 random bits, so its SHA-256 can neither be reversed nor guessed. A
//! token that is presented is compared with every entry in constant time.
//!
//! ```yaml
//! - name: shop
//!   sha256: 2bd806c97f0e00af1a1fc3328fa763a9269723c8db8fac4f93af71db186d6e90
//!   workspace: default
//!   zones: [1, 2]      # of the ledger; or all; none if not given
//!   control: true      # may read and change live control; false if not given
//!   namespaces: [cart, "job-*"]   # where it may count; or all; if not given, all that no filter's rule counts
//!   max_cost: 100      # most that one request may use; no bound if not given
//! ```
//!
//! Leaves to others: looking at the file (`follow`), what a refusal looks like (`http`, `rls`).

use crate::doors::metrics::Files;
use crate::follow::{self, Contents, Followed, ReadError};
use crate::shared::Shared;
use parking_lot::RwLock;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::collections::{BTreeSet, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};
use tracing::{error, info};
use weir_core::key::MAX_TEXT_BYTES;

/// Most tokens in the file.
pub const MAX_TOKENS: usize = 10_000;
/// Most zones of one token that are named one by one.
pub const MAX_ZONES: usize = 1_000;
/// Most namespaces of one token that are named one by one.
pub const MAX_NAMESPACES: usize = 100;
/// Longest name of a token, in bytes.
pub const MAX_NAME_BYTES: usize = 64;
/// Longest `authorization` that is looked at, in bytes.
pub const MAX_HEADER_BYTES: usize = 512;
/// What a token begins with, so that one that was published by mistake is recognised.
pub const PREFIX: &str = "weir_";

/// The tokens that are in force; without a file everybody may ask.
pub struct Tokens {
    table: Option<RwLock<Arc<Table>>>,
    /// The caller where there is no file.
    anybody: Arc<Caller>,
}

/// Somebody who may ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Whose token it is; to be logged, as the token is not.
    pub name: String,
    /// The only workspace that may be asked about; any without tokens.
    workspace: Option<Vec<u8>>,
    zones: Zones,
    control: bool,
    namespaces: Namespaces,
    max_cost: u64,
}

/// In which namespaces windows and logs may be counted.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Namespaces {
    All,
    /// Those that no filter's rule counts.
    Unruled,
    /// By name; one that ends with an asterisk is a prefix.
    These(Vec<String>),
}

/// Which zones of the ledger may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Zones {
    All,
    These(BTreeSet<u32>),
}

/// Why somebody may not ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unauthorized {
    /// Nothing was presented.
    #[error("no token was sent; send authorization: Bearer {PREFIX}…")]
    Missing,
    /// Something else was presented.
    #[error(
        "the authorization header is not \"Bearer\", one space and a token, within {MAX_HEADER_BYTES} bytes"
    )]
    Malformed,
    /// Nobody's.
    #[error("the token is not known; it may have been withdrawn")]
    Unknown,
}

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokensError {
    /// It is not there, or not to be read.
    #[error("{0}; see --tokens-file or WEIR_TOKENS_FILE")]
    Read(#[from] ReadError),
    /// It is there.
    #[error("{}: {reason}; see --tokens-file or WEIR_TOKENS_FILE", path.display())]
    Wrong {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        reason: Wrong,
    },
}

/// What is wrong with a list of tokens.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// Not the YAML that it should be.
    #[error("it is not a list of {{name, sha256, workspace, zones, control, namespaces, max_cost}}: {0}")]
    Yaml(String),
    /// Too many.
    #[error("it holds {0} tokens, more than {MAX_TOKENS}")]
    TooMany(usize),
    /// An entry's field.
    #[error("entry {0}: {1}")]
    Entry(usize, &'static str),
    /// Two entries are one.
    #[error("entry {0} ({1:?}): an entry before it has the same {2}")]
    Twice(usize, String, &'static str),
}

/// A new token. It is shown once and kept nowhere.
pub struct NewToken {
    /// What is presented.
    pub token: String,
    /// The file's entry.
    pub entry: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEntry {
    name: String,
    sha256: String,
    workspace: String,
    #[serde(default)]
    zones: RawZones,
    #[serde(default)]
    control: bool,
    namespaces: Option<RawNamespaces>,
    max_cost: Option<u64>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum RawNamespaces {
    Word(String),
    These(Vec<String>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum RawZones {
    Word(String),
    These(BTreeSet<u32>),
}

impl Default for RawZones {
    fn default() -> Self {
        RawZones::These(BTreeSet::new())
    }
}

/// Digests beside those whose they are.
#[derive(Debug, Default)]
struct Table {
    digests: Vec<Words>,
    callers: Vec<Arc<Caller>>,
}

/// A digest; words are compared faster than bytes.
type Words = [u64; 4];

impl Tokens {
    /// Any caller may ask about anything, and use live control if `control` is set.
    pub fn open_to_all(control: bool) -> Arc<Tokens> {
        Arc::new(Tokens { table: None, anybody: Arc::new(Caller { control, ..Caller::ANYBODY }) })
    }

    /// Reads the file for the first time.
    pub fn read(path: PathBuf) -> Result<(Arc<Tokens>, Followed), TokensError> {
        let followed = Followed::open(vec![path.clone()])?;
        let text = text_of(followed.contents());
        let tokens = Tokens::parse(text).map_err(|reason| TokensError::Wrong { path, reason })?;
        Ok((Arc::new(tokens), followed))
    }

    /// The tokens of a file's text.
    pub fn parse(text: &[u8]) -> Result<Tokens, Wrong> {
        let table = Some(RwLock::new(Arc::new(Table::parse(text)?)));
        Ok(Tokens { table, anybody: Arc::new(Caller::ANYBODY) })
    }

    /// Whether one of these has to be shown.
    pub fn are_asked_for(&self) -> bool {
        self.table.is_some()
    }

    /// Who asks, by the value of an `authorization` header.
    pub fn check(&self, header: Option<&[u8]>) -> Result<Arc<Caller>, Unauthorized> {
        let Some(table) = &self.table else { return Ok(self.anybody.clone()) };
        let header = header.ok_or(Unauthorized::Missing)?;
        let digest = words(&Sha256::digest(presented(header).ok_or(Unauthorized::Malformed)?).into());
        let table = table.read().clone();
        table.find(&digest).ok_or(Unauthorized::Unknown)
    }

    /// Follows the file for as long as the program runs.
    pub async fn follow(self: Arc<Self>, followed: Followed, shared: Arc<Shared>) {
        let take = |contents: &Contents| {
            let new = Table::parse(text_of(contents)).map_err(|wrong| wrong.to_string())?;
            if let Some(table) = &self.table {
                *table.write() = Arc::new(new);
            }
            Ok(())
        };
        follow::follow(followed, take, |state| {
            shared.metrics.doors.files_read(Files::Tokens, state.is_ok());
            match state {
                Ok(()) => info!("the tokens were read again"),
                Err(reason) => {
                    error!(
                        reason,
                        "the tokens file changed and cannot be used; the tokens from before stay in force"
                    );
                }
            }
        })
        .await;
    }
}

impl Caller {
    /// The caller where no tokens are set.
    pub const ANYBODY: Caller = Caller {
        name: String::new(),
        workspace: None,
        zones: Zones::All,
        control: false,
        namespaces: Namespaces::All,
        max_cost: u64::MAX,
    };

    /// The workspace that this caller asks about when it names `asked`, or nothing; `None` if it may not.
    pub fn workspace<'a>(&'a self, asked: Option<&'a [u8]>) -> Option<&'a [u8]> {
        match (&self.workspace, asked) {
            (None, asked) => Some(asked.unwrap_or(b"default")),
            (Some(own), None) => Some(own),
            (Some(own), Some(asked)) => (own == asked).then_some(asked),
        }
    }

    /// Whether this caller may see and change live control of its workspace.
    pub fn may_control(&self) -> bool {
        self.control
    }

    /// Whether it is known by no token.
    pub fn is_anybody(&self) -> bool {
        self.name.is_empty()
    }

    /// Whether this caller may count in a namespace; `is_ruled` is whether a filter's rule counts there.
    pub fn may_count(&self, namespace: &[u8], is_ruled: impl FnOnce() -> bool) -> bool {
        let names = |pattern: &String| match pattern.strip_suffix('*') {
            Some(prefix) => namespace.starts_with(prefix.as_bytes()),
            None => namespace == pattern.as_bytes(),
        };
        match &self.namespaces {
            Namespaces::All => true,
            Namespaces::Unruled => !is_ruled(),
            Namespaces::These(patterns) => patterns.iter().any(names),
        }
    }

    /// Most that one request of this caller may use.
    pub fn max_cost(&self) -> u64 {
        self.max_cost
    }

    /// Whether this caller may use a zone of the ledger.
    pub fn may_use(&self, zone: u32) -> bool {
        match &self.zones {
            Zones::All => true,
            Zones::These(zones) => zones.contains(&zone),
        }
    }
}

impl NewToken {
    /// A random token.
    pub fn new(name: &str, workspace: &str) -> NewToken {
        NewToken::with(name, workspace, false)
    }

    /// The same, which may change live control if `control` says so.
    pub fn with(name: &str, workspace: &str, control: bool) -> NewToken {
        let secret: [u8; 32] = rand::random();
        let token = format!("{PREFIX}{}", hex(&secret));
        let digest = hex(&Sha256::digest(token.as_bytes()));
        let control = if control { "  control: true\n" } else { "" };
        let entry = format!(
            "- name: {name:?}\n  sha256: {digest}\n  workspace: {workspace:?}\n  zones: []\n{control}"
        );
        NewToken { token, entry }
    }
}

impl Table {
    fn parse(text: &[u8]) -> Result<Table, Wrong> {
        let entries: Option<Vec<RawEntry>> =
            serde_yaml_ng::from_slice(text).map_err(|error| Wrong::Yaml(error.to_string()))?;
        // As if it was cut off while it was written; whoever means to have no tokens says so.
        let entries = entries.ok_or_else(|| Wrong::Yaml("it is empty; [] would be no tokens".to_owned()))?;
        if entries.len() > MAX_TOKENS {
            return Err(Wrong::TooMany(entries.len()));
        }
        let mut table = Table::default();
        let (mut names, mut digests) = (HashSet::new(), HashSet::new());
        for (index, entry) in entries.into_iter().enumerate() {
            let number = index + 1;
            let (digest, caller) = entry.check().map_err(|what| Wrong::Entry(number, what))?;
            if !names.insert(caller.name.clone()) {
                return Err(Wrong::Twice(number, caller.name, "name"));
            }
            if !digests.insert(digest) {
                return Err(Wrong::Twice(number, caller.name, "sha256"));
            }
            table.digests.push(digest);
            table.callers.push(Arc::new(caller));
        }
        Ok(table)
    }

    /// Looks at every entry, however early one fits.
    fn find(&self, digest: &Words) -> Option<Arc<Caller>> {
        let mut found = u64::MAX;
        for (index, known) in (0_u64..).zip(&self.digests) {
            found.conditional_assign(&index, same(known, digest));
        }
        self.callers.get(usize::try_from(found).ok()?).cloned()
    }
}

impl RawEntry {
    fn check(self) -> Result<(Words, Caller), &'static str> {
        let digest = digest_of(&self.sha256).ok_or(
            "sha256 is not the 64 hexadecimal digits of a digest; make one with weir-aggregator token",
        )?;
        if self.name.is_empty() || self.name.len() > MAX_NAME_BYTES {
            return Err("the name is empty or longer than 64 bytes");
        }
        if self.workspace.is_empty() || self.workspace.len() > MAX_TEXT_BYTES {
            return Err("the workspace is empty or longer than 64 bytes");
        }
        let zones = match self.zones {
            RawZones::Word(word) if word == "all" => Zones::All,
            RawZones::These(zones) if zones.len() <= MAX_ZONES => Zones::These(zones),
            RawZones::These(_) => return Err("zones names more than 1000; \"all\" allows every one"),
            RawZones::Word(_) => return Err("zones is neither a list of numbers nor \"all\""),
        };
        let namespaces = match self.namespaces {
            None => Namespaces::Unruled,
            Some(RawNamespaces::Word(word)) if word == "all" => Namespaces::All,
            Some(RawNamespaces::These(names)) if names.len() <= MAX_NAMESPACES => Namespaces::These(names),
            Some(RawNamespaces::These(_)) => {
                return Err("namespaces names more than 100; \"all\" allows every one");
            }
            Some(RawNamespaces::Word(_)) => return Err("namespaces is neither a list of names nor \"all\""),
        };
        let (name, workspace, control) = (self.name, Some(self.workspace.into_bytes()), self.control);
        let max_cost = self.max_cost.unwrap_or(u64::MAX);
        Ok((digest, Caller { name, workspace, zones, control, namespaces, max_cost }))
    }
}

/// Of the only file.
fn text_of(contents: &Contents) -> &[u8] {
    contents.first().map(Vec::as_slice).unwrap_or_default()
}

/// The token of a header's value.
fn presented(header: &[u8]) -> Option<&[u8]> {
    let sound = |token: &&[u8]| !token.is_empty() && token.iter().all(u8::is_ascii_graphic);
    bearer(header).filter(|_| header.len() <= MAX_HEADER_BYTES).filter(sound)
}

/// What stands behind the scheme, by RFC 6750, section 2.1; the scheme's case does not matter (RFC 9110, section 11.1).
pub(super) fn bearer(header: &[u8]) -> Option<&[u8]> {
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
