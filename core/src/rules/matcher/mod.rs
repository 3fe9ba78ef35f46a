//! Which requests a rule matches: the conditions on path, methods, headers, host, route, virtual host, query, client network and metadata
//! must all hold, and none of its exceptions.
//!
//! What upstreams read differently meets a condition if one reading does, and an exception only if all do: no spelling takes a request
//! out of a rule.

pub(super) mod metadata;
pub(super) mod network;
pub(super) mod query;
mod segments;
pub(super) mod text;
pub(super) mod value;

use self::metadata::MetadataCondition;
use self::network::NetworkCondition;
use self::query::QueryCondition;
use self::segments::Segments;
use self::text::{TEXT_BYTES_MAX, Text};
use self::value::ValueTest;
use crate::fields::Errors;
use crate::fields::{Fields, Node, is_token_byte};
use crate::matching::case;
use crate::rules::request::host::{self, Host};
use crate::rules::request::path::{self, Readings};
use crate::rules::request::sources::Sources;
use crate::rules::request::{Lines, Request, joined_header};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;

pub(super) const METHODS_MAX: usize = 32;
pub(super) const METHOD_BYTES_MAX: usize = 32;
pub(super) const HEADERS_MAX: usize = 16;
pub(super) const HOSTS_MAX: usize = 64;

pub(super) const METADATA_MAX: usize = 16;

pub(super) const QUERIES_MAX: usize = 16;
pub(super) const EXCEPTIONS_MAX: usize = 16;

pub(super) const FIELDS: [&str; 10] = [
    "path",
    "methods",
    "headers",
    "host",
    "route",
    "virtual_host",
    "query",
    "client_network",
    "metadata",
    "except",
];
/// The fields of an exception.
pub(super) const EXCEPTION_FIELDS: [&str; 9] =
    ["path", "methods", "headers", "host", "route", "virtual_host", "query", "client_network", "metadata"];
pub(super) const PATH_FIELDS: [&str; 5] = ["segments", "exact", "prefix", "regex", "ignore_case"];
pub(super) const HEADER_FIELDS: [&str; 8] =
    ["name", "exact", "prefix", "suffix", "contains", "regex", "present", "invert"];

/// The kinds of condition on a path.
pub(super) const PATH_KINDS: [&str; 4] = ["segments", "exact", "prefix", "regex"];

/// The kinds of condition on the name of a route or a virtual host.
pub(super) const NAME_KINDS: [&str; 5] = ["exact", "prefix", "suffix", "contains", "regex"];

/// `match`: all of its conditions must hold. Without any, every request matches.
#[derive(Clone, Debug, Default)]
pub(in crate::rules) struct Conditions {
    path: Option<PathCondition>,
    methods: Vec<Box<[u8]>>,
    headers: Vec<HeaderCondition>,
    hosts: Vec<Host>,
    route: Option<Text>,
    virtual_host: Option<Text>,
    rarer: Option<Box<RarerConditions>>,
}

/// Conditions that few rules have.
#[derive(Clone, Debug, Default)]
struct RarerConditions {
    query: Vec<QueryCondition>,
    client: Option<NetworkCondition>,
    metadata: Vec<MetadataCondition>,
    except: Vec<Conditions>,
}

/// How far a path narrows requests down: the later in order, the more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::rules) struct Specificity {
    has_path: bool,
    literal_bytes: usize,
    is_whole: bool,
}

impl Conditions {
    pub fn read(node: Node<'_>, errors: &mut Errors) -> Option<Conditions> {
        let fields = node.object(&FIELDS, errors)?;
        Conditions::read_fields(&fields, errors)
    }

    /// Reads an exception, which has a condition.
    fn read_exception(node: Node<'_>, errors: &mut Errors) -> Option<Conditions> {
        Conditions::read_some(node, "has no condition, so that the rule would match nothing", errors)
    }

    /// Reads what is exempt from all rules, which has a condition.
    pub fn read_exemption(node: Node<'_>, errors: &mut Errors) -> Option<Conditions> {
        Conditions::read_some(node, "has no condition, so that every request would be exempt", errors)
    }

    fn read_some(node: Node<'_>, without: &str, errors: &mut Errors) -> Option<Conditions> {
        let fields = node.object(&EXCEPTION_FIELDS, errors)?;
        let conditions = Conditions::read_fields(&fields, errors)?;
        match conditions.is_empty() {
            true => node.reject(errors, without, "a condition"),
            false => Some(conditions),
        }
    }

    fn read_fields(fields: &Fields<'_>, errors: &mut Errors) -> Option<Conditions> {
        let path = fields.optional("path", errors, PathCondition::read);
        let methods = fields.or("methods", Vec::new(), errors, |node, errors| {
            node.one_or_list(1..=METHODS_MAX, "methods", errors, read_method)
        });
        let headers = fields.or("headers", Vec::new(), errors, |node, errors| {
            node.list(1..=HEADERS_MAX, "headers", errors, HeaderCondition::read)
        });
        let hosts = fields.or("host", Vec::new(), errors, |node, errors| {
            node.one_or_list(1..=HOSTS_MAX, "hosts", errors, Host::read)
        });
        let route = fields.optional("route", errors, read_name);
        let virtual_host = fields.optional("virtual_host", errors, read_name);
        let rarer = RarerConditions::read(fields, errors);
        Some(Conditions {
            path: path?,
            methods: methods?,
            headers: headers?,
            hosts: hosts?,
            route: route?,
            virtual_host: virtual_host?,
            rarer: rarer?.map(Box::new),
        })
    }

    /// Whether every request matches.
    pub fn is_empty(&self) -> bool {
        let Conditions { path, methods, headers, hosts, route, virtual_host, rarer } = self;
        let named = route.is_some() || virtual_host.is_some() || rarer.is_some();
        path.is_none() && methods.is_empty() && headers.is_empty() && hosts.is_empty() && !named
    }

    /// The hosts, one of which a request has; none if it may have any.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The segments with which every path that matches begins, disregarding case.
    pub fn head(&self) -> impl Iterator<Item = &[u8]> {
        self.path.iter().flat_map(|path| path.head())
    }

    /// Whether it has a condition on the path.
    pub fn reads_path(&self) -> bool {
        self.path.is_some() || self.exceptions().any(Conditions::reads_path)
    }

    /// How far its path narrows requests down.
    pub fn specificity(&self) -> Specificity {
        let (literal_bytes, is_whole) = self.path.as_ref().map_or((0, false), PathCondition::literal);
        Specificity { has_path: self.path.is_some(), literal_bytes, is_whole }
    }

    fn exceptions(&self) -> impl Iterator<Item = &Conditions> {
        self.rarer.iter().flat_map(|rarer| &rarer.except)
    }

    /// Whether it compares the path as it was sent, so that another spelling is another path. An inverted exact condition does too, and
    /// leaves out that one spelling alone.
    pub fn compares_sent_path(&self) -> bool {
        self.headers.iter().any(|header| {
            let leaves_out_one = header.invert && matches!(header.test, ValueTest::Value(Text::Exact(_)));
            *header.name == *b":path" && !leaves_out_one
        }) || self.exceptions().any(|except| except.headers.iter().any(|header| *header.name == *b":path"))
    }

    /// Whether it holds for a method whose requests have a body.
    pub fn allows_body(&self) -> bool {
        let has_body = |method: &[u8]| [&b"POST"[..], b"PUT", b"PATCH"].contains(&method);
        self.methods.is_empty() || self.methods.iter().any(|method| has_body(method))
    }

    /// The names of the headers that it reads.
    pub fn headers(&self) -> impl Iterator<Item = &[u8]> {
        let of_exceptions = self.exceptions().flat_map(|except| &except.headers);
        self.headers.iter().chain(of_exceptions).map(|header| &*header.name)
    }

    /// How many regular expressions it has.
    pub fn expressions(&self) -> usize {
        let of_path = self.path.iter().filter(|path| matches!(path.test, PathTest::Text(Text::Regex(_))));
        let of_headers = self.headers.iter().filter(|condition| condition.is_expression());
        let of_others = self.rarer.as_ref().map_or(0, |rarer| rarer.expressions());
        let names = [&self.route, &self.virtual_host].into_iter().flatten();
        let of_names = names.filter(|name| matches!(name, Text::Regex(_)));
        let of_values = of_headers.count().saturating_add(of_others);
        of_path.count().saturating_add(of_values).saturating_add(of_names.count())
    }

    /// Whether the rule matches this request. Cheap conditions are tested first.
    pub fn matches<R: Request + ?Sized>(&self, request: &R, sources: &mut Sources) -> bool {
        let Sources { path, buffer, route, virtual_host, .. } = sources;
        self.method_matches(request, buffer)
            && self.host_matches(request, buffer)
            && self.path.as_ref().is_none_or(|condition| condition.matches(path.of(request, buffer)))
            && self.headers.iter().all(|header| header.matches(request, buffer))
            && self.route.as_ref().is_none_or(|name| name.matches(route.of(request)))
            && self.virtual_host.as_ref().is_none_or(|name| name.matches(virtual_host.of(request)))
            && self.rarer.as_ref().is_none_or(|rarer| rarer.matches(request, sources, false))
    }

    /// Whether all upstreams read the request as one that matches.
    pub fn matches_certainly<R: Request + ?Sized>(&self, request: &R, sources: &mut Sources) -> bool {
        let Sources { path, buffer, route, virtual_host, .. } = sources;
        self.method_matches_certainly(request, buffer)
            && self.host_matches(request, buffer)
            && !self.matches_some_hosts(request, buffer)
            && self.path.as_ref().is_none_or(|condition| {
                condition.matches_certainly(path.of(request, buffer)) && !has_fragment(request, buffer)
            })
            && self.headers.iter().all(|header| header.matches(request, buffer))
            && self.route.as_ref().is_none_or(|name| name.matches(route.of(request)))
            && self.virtual_host.as_ref().is_none_or(|name| name.matches(virtual_host.of(request)))
            && self.rarer.as_ref().is_none_or(|rarer| rarer.matches(request, sources, true))
    }

    /// Whether the request, which the rule matches, has a reading of its path that does not meet the rule's condition.
    pub fn matches_some_readings<R: Request + ?Sized>(&self, request: &R, sources: &mut Sources) -> bool {
        let Some(condition) = &self.path else { return false };
        let path = sources.path.of(request, &mut sources.buffer);
        path.differ() && !path.all(|reading| condition.matches_reading(reading, false))
    }

    /// Whether the rule is for certain hosts, and upstreams read the request's differently.
    pub fn matches_some_hosts<R: Request + ?Sized>(&self, request: &R, buffer: &mut Vec<u8>) -> bool {
        !self.hosts.is_empty()
            && !self.hosts.contains(&Host::Any)
            && joined_header(request, b":authority", buffer)
                .is_some_and(|authority| !host::is_plain(authority))
    }

    fn method_matches<R: Request + ?Sized>(&self, request: &R, buffer: &mut Vec<u8>) -> bool {
        if self.methods.is_empty() {
            return true;
        }
        let method = joined_header(request, b":method", buffer).unwrap_or_default();
        // Some upstreams take `post` for `POST`, others refuse it. Most answer HEAD as they answer GET.
        let is_head = method.eq_ignore_ascii_case(b"HEAD");
        self.methods.iter().any(|allowed| {
            allowed.eq_ignore_ascii_case(method) || (is_head && allowed.eq_ignore_ascii_case(b"GET"))
        })
    }

    /// Whether the method is one of those as it is written, or answered alike.
    fn method_matches_certainly<R: Request + ?Sized>(&self, request: &R, buffer: &mut Vec<u8>) -> bool {
        let method = joined_header(request, b":method", buffer).unwrap_or_default();
        let is_allowed = |allowed: &[u8]| allowed == method || (method == b"HEAD" && allowed == b"GET");
        self.methods.is_empty() || self.methods.iter().any(|allowed| is_allowed(allowed))
    }

    fn host_matches<R: Request + ?Sized>(&self, request: &R, buffer: &mut Vec<u8>) -> bool {
        if self.hosts.is_empty() {
            return true;
        }
        let authority = joined_header(request, b":authority", buffer);
        self.hosts.iter().any(|host| host.matches(authority))
    }
}

impl RarerConditions {
    /// Reads them; `None` within if none is given.
    fn read(fields: &Fields<'_>, errors: &mut Errors) -> Option<Option<RarerConditions>> {
        let query = fields.or("query", Vec::new(), errors, |node, errors| {
            node.list(1..=QUERIES_MAX, "conditions", errors, QueryCondition::read)
        });
        let client = fields.optional("client_network", errors, NetworkCondition::read);
        let metadata = fields.or("metadata", Vec::new(), errors, |node, errors| {
            node.list(1..=METADATA_MAX, "conditions", errors, MetadataCondition::read)
        });
        let except = fields.or("except", Vec::new(), errors, |node, errors| {
            node.list(1..=EXCEPTIONS_MAX, "exceptions", errors, Conditions::read_exception)
        });
        let (query, client, metadata, except) = (query?, client?, metadata?, except?);
        let is_none = query.is_empty() && client.is_none() && metadata.is_empty() && except.is_empty();
        Some((!is_none).then_some(RarerConditions { query, client, metadata, except }))
    }

    fn expressions(&self) -> usize {
        let of_query = self.query.iter().filter(|condition| condition.is_expression()).count();
        let of_metadata = self.metadata.iter().filter(|condition| condition.is_expression()).count();
        let of_exceptions = self.except.iter().map(Conditions::expressions);
        of_exceptions.fold(of_query.saturating_add(of_metadata), usize::saturating_add)
    }

    /// Whether the request meets them, as some upstream reads it or as all do, and no exception as all do.
    fn matches<R: Request + ?Sized>(&self, request: &R, sources: &mut Sources, certainly: bool) -> bool {
        let Sources { peer, buffer, value, .. } = sources;
        let mut meets = |one: &QueryCondition| match certainly {
            true => one.matches_certainly(request, buffer, value),
            false => one.matches(request, buffer, value),
        };
        self.query.iter().all(&mut meets)
            && self.client.as_ref().is_none_or(|client| client.matches(request, peer, buffer))
            && self.metadata.iter().all(|condition| condition.matches(request, buffer))
            && !self.except.iter().any(|except| except.matches_certainly(request, sources))
    }
}

/// Whether a request target has a `#`, which servers should refuse, and some take for a part of the path.
fn has_fragment<R: Request + ?Sized>(request: &R, buffer: &mut Vec<u8>) -> bool {
    let target = joined_header(request, b":path", buffer).unwrap_or_default();
    memchr::memchr(b'#', target).is_some()
}

/// One condition on a header. `invert` negates its result, so an inverted condition on a value holds for a request
/// without the header.
#[derive(Clone, Debug)]
pub(in crate::rules) struct HeaderCondition {
    pub name: Box<[u8]>,
    test: ValueTest,
    invert: bool,
}

impl HeaderCondition {
    pub fn read(node: Node<'_>, errors: &mut Errors) -> Option<HeaderCondition> {
        let fields = node.object(&HEADER_FIELDS, errors)?;
        let name = fields.required("name", "a header name such as \"x-api-key\"", errors, |node, errors| {
            node.header_name(errors)
        });
        let test = ValueTest::read(&fields, errors);
        let invert = fields.or("invert", false, errors, |node, errors| node.boolean(errors));
        Some(HeaderCondition { name: name?, test: test?, invert: invert? })
    }

    /// Whether it has a regular expression.
    pub fn is_expression(&self) -> bool {
        matches!(self.test, ValueTest::Value(Text::Regex(_)))
    }

    pub fn matches<R: Request + ?Sized>(&self, request: &R, buffer: &mut Vec<u8>) -> bool {
        let holds = match &self.test {
            ValueTest::Present(wanted) => (request.header(&self.name) != Lines::None) == *wanted,
            ValueTest::Value(text) => {
                joined_header(request, &self.name, buffer).is_some_and(|value| text.matches(value))
            }
        };
        holds != self.invert
    }
}

/// The condition on the path. It holds if it holds for one of the path's readings.
#[derive(Clone, Debug)]
struct PathCondition {
    test: PathTest,
    /// Whether texts are compared without their case.
    ignore_case: bool,
}

#[derive(Clone, Debug)]
enum PathTest {
    Segments(Segments),
    Text(Text),
}

impl PathCondition {
    fn read(node: Node<'_>, errors: &mut Errors) -> Option<PathCondition> {
        let fields = node.object(&PATH_FIELDS, errors)?;
        let kind = fields.exactly_one(&PATH_KINDS, errors)?;
        let ignore_case = fields.or("ignore_case", false, errors, |node, errors| node.boolean(errors));
        if let Some(node) = fields.get("ignore_case").filter(|_| kind == "regex") {
            return node.reject(errors, "has no effect on a regular expression", "(?i) at its beginning");
        }
        let test = PathTest::read(kind, fields.get(kind)?, errors);
        Some(PathCondition { test: test?, ignore_case: ignore_case? })
    }

    /// The segments with which every path that matches begins. The last one of a prefix may be incomplete.
    fn head(&self) -> impl Iterator<Item = &[u8]> {
        let (pattern, text) = match &self.test {
            PathTest::Segments(pattern) => (Some(pattern), &[][..]),
            PathTest::Text(Text::Exact(text)) if text.first() == Some(&b'/') => (None, &**text),
            PathTest::Text(Text::Prefix(text)) => {
                let end = memchr::memrchr(b'/', text).unwrap_or(0);
                (None, text.get(..end).unwrap_or_default())
            }
            PathTest::Text(_) => (None, &[][..]),
        };
        pattern.into_iter().flat_map(Segments::head).chain(path::segments(text))
    }

    /// How many bytes of a path it states, and whether it states how the path ends.
    fn literal(&self) -> (usize, bool) {
        match &self.test {
            PathTest::Segments(pattern) => pattern.literal(),
            PathTest::Text(Text::Exact(text)) => (text.len(), true),
            PathTest::Text(Text::Prefix(text)) => (text.len(), false),
            PathTest::Text(_) => (0, false),
        }
    }

    fn matches(&self, path: &Readings) -> bool {
        path.any(|reading| self.matches_reading(reading, path.is_plain()))
    }

    /// Whether all readings meet it as they are written, and none would be another one if its escapes were decoded again.
    fn matches_certainly(&self, path: &Readings) -> bool {
        path.all(|reading| {
            memchr::memchr(b'%', reading).is_none()
                && match &self.test {
                    PathTest::Segments(pattern) => pattern.matches_as_written(reading, self.ignore_case),
                    PathTest::Text(_) => self.matches_reading(reading, true),
                }
        })
    }

    fn matches_reading(&self, path: &[u8], is_plain: bool) -> bool {
        match &self.test {
            PathTest::Segments(segments) => {
                segments.matches(path, self.ignore_case)
                    || (!is_plain && segments.matches_whole(path, self.ignore_case))
            }
            PathTest::Text(Text::Exact(text)) if self.ignore_case => case::equal(text, path),
            PathTest::Text(Text::Prefix(text)) if self.ignore_case => case::begins_with(path, text),
            PathTest::Text(text) => text.matches(path),
        }
    }
}

impl PathTest {
    fn read(kind: &str, node: Node<'_>, errors: &mut Errors) -> Option<PathTest> {
        if kind == "segments" {
            let text = node.text(TEXT_BYTES_MAX, errors)?;
            return Segments::read(text, node, errors).map(PathTest::Segments);
        }
        let text = Text::read(kind, node, errors)?;
        let sound = match &text {
            Text::Exact(path) if **path == *b"*" => true,
            Text::Exact(path) | Text::Prefix(path) => check_path(path, kind, node, errors),
            _ => true,
        };
        sound.then_some(PathTest::Text(text))
    }
}

/// A path with something that a server may remove meets few requests, or none: the rule would silently limit too little.
fn check_path(path: &[u8], kind: &str, node: Node<'_>, errors: &mut Errors) -> bool {
    const EXPECTED: &str = "a path that begins with / and has no query";
    if path.first() != Some(&b'/') || path::without_query(path) != path {
        return node.reject::<()>(errors, "is not a path", EXPECTED).is_some();
    }
    // The text after a prefix may turn trailing dots of the prefix into part of a name.
    let tail: &[u8] = if kind == "prefix" { b"x" } else { b"" };
    let (whole, mut normal) = ([path, tail].concat(), Vec::new());
    path::normalise(&whole, &mut normal);
    if normal == whole {
        return true;
    }
    let shown = normal.strip_suffix(tail).unwrap_or(&normal);
    let expected = match core::str::from_utf8(shown) {
        Ok(shown) => format!("the path {shown:?}"),
        Err(_) => "a path without what a server may remove".to_string(),
    };
    node.reject::<()>(errors, "is not in the form in which paths are compared", expected).is_some()
}

/// A condition on the name of a route or a virtual host.
fn read_name(node: Node<'_>, errors: &mut Errors) -> Option<Text> {
    let fields = node.object(&NAME_KINDS, errors)?;
    let kind = fields.exactly_one(&NAME_KINDS, errors)?;
    Text::read(kind, fields.get(kind)?, errors)
}

fn read_method(node: Node<'_>, errors: &mut Errors) -> Option<Box<[u8]>> {
    let text = node.text(METHOD_BYTES_MAX, errors)?;
    let valid = text.bytes().all(|byte| is_token_byte(byte) && !byte.is_ascii_lowercase());
    if valid {
        return Some(text.as_bytes().into());
    }
    node.reject(errors, "is not a method", "a method in capitals, such as \"GET\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::{Bounds, Value};
    use crate::rules::testing::TestRequest;

    fn read(json: &str) -> Conditions {
        let mut errors = Errors::default();
        let json = Value::parse(json.as_bytes(), Bounds::OF_A_FILE).unwrap();
        let conditions = Conditions::read(Node::root("configuration", &json), &mut errors);
        errors.finish(conditions).unwrap_or_else(|errors| panic!("{errors}"))
    }

    fn check(json: &str, request: TestRequest, expected: bool) {
        let found = read(json).matches(&request, &mut Sources::default());
        assert_eq!(found, expected, "{json} {request:?}");
    }

    #[test]
    fn path_conditions() {
        for (json, path, expected) in [
            (r#"{}"#, "/", true),
            (r#"{"path": {"exact": "/admin"}}"#, "/admin?x=1", true),
            (r#"{"path": {"exact": "/admin"}}"#, "/api/../admin", true),
            (r#"{"path": {"exact": "/admin"}}"#, "//%61dmin", true),
            (r#"{"path": {"exact": "/admin"}}"#, "/admin/", false),
            (r#"{"path": {"prefix": "/admin"}}"#, "/administrator", true),
            (r#"{"path": {"prefix": "/admin/"}}"#, "/admin", false),
            (r#"{"path": {"prefix": "/admin/"}}"#, "/admin/../x", true),
            (r#"{"path": {"prefix": "/admin/"}}"#, "/admin%2f../x;y", true),
            (r#"{"path": {"prefix": "/."}}"#, "/.well-known", true),
            (r#"{"path": {"regex": "/v[0-9]+/.*"}}"#, "/x/../v12/y?z", true),
            (r#"{"path": {"regex": "/v[0-9]+"}}"#, "/v12/y", false),
            (r#"{"path": {"exact": "*"}}"#, "*", true),
            (r#"{"path": {"segments": "/admin"}}"#, "/Admin/", false),
            (r#"{"path": {"segments": "/admin", "ignore_case": true}}"#, "/aDMIN;x/%20./?y", true),
            (r#"{"path": {"exact": "/admin", "ignore_case": true}}"#, "/ADMIN", true),
            (r#"{"path": {"exact": "/admin", "ignore_case": true}}"#, "/ADMIN/", false),
            (r#"{"path": {"prefix": "/admin/", "ignore_case": true}}"#, "/Admin/x", true),
            (r#"{"path": {"prefix": "/admin/", "ignore_case": true}}"#, "/Adm", false),
        ] {
            check(json, TestRequest::get(path), expected);
        }
    }

    #[test]
    fn other_conditions() {
        let request =
            || TestRequest::get("/").header("x-tier", "gold").header("x-many", "a").header("x-many", "b");
        for (json, expected) in [
            (r#"{"methods": ["GET", "HEAD"]}"#, true),
            (r#"{"methods": "GET"}"#, true),
            (r#"{"methods": ["POST"]}"#, false),
            (r#"{"host": "example.com"}"#, true),
            (r#"{"host": ["a.com", "*"]}"#, true),
            (r#"{"host": "*.example.com"}"#, false),
            (r#"{"headers": [{"name": "X-Tier", "exact": "gold"}]}"#, true),
            (r#"{"headers": [{"name": "x-tier", "exact": "gold", "invert": true}]}"#, false),
            (r#"{"headers": [{"name": "x-none", "exact": "gold", "invert": true}]}"#, true),
            (r#"{"headers": [{"name": "x-none", "exact": "gold"}]}"#, false),
            (r#"{"headers": [{"name": "x-tier", "present": true}]}"#, true),
            (r#"{"headers": [{"name": "x-none", "present": false}]}"#, true),
            (r#"{"headers": [{"name": "x-many", "present": true}]}"#, true),
            (r#"{"headers": [{"name": "x-many", "exact": "a,b"}]}"#, true),
            (r#"{"headers": [{"name": "x-many", "suffix": "b"}, {"name": "x-tier", "prefix": "g"}]}"#, true),
            (
                r#"{"headers": [{"name": "x-tier", "contains": "ol"}, {"name": "x-tier", "regex": "g"}]}"#,
                false,
            ),
            (r#"{"methods": ["GET"], "host": "example.com", "path": {"exact": "/x"}}"#, false),
        ] {
            check(json, request(), expected);
        }
        check(r#"{"methods": ["GET"]}"#, TestRequest::default(), false);
        check(r#"{"host": "*"}"#, TestRequest::default(), true);
    }
    #[test]
    fn an_exception_holds_only_if_every_reading_does() {
        let of = |except: &str| format!(r#"{{"except": [{except}]}}"#);
        let assets = of(r#"{"path": {"segments": "/assets/**"}}"#);
        let prefix = of(r#"{"path": {"prefix": "/assets/"}}"#);
        let exact = of(r#"{"path": {"exact": "/assets/a"}}"#);
        for path in
            ["/assets/a", "//assets/a", "/assets//a", "/%61ssets/a", "/assets/a?b=/../c", "/x/../assets/a"]
        {
            let is_read_otherwise = path.starts_with("//") || path.starts_with("/x");
            check(&assets, TestRequest::get(path), is_read_otherwise);
            check(&prefix, TestRequest::get(path), is_read_otherwise);
        }
        check(&exact, TestRequest::get("/assets/a"), false);
        for path in [
            "/assets/../api",
            "/assets/%2e%2e/api",
            "/assets/%2E./api",
            "/assets/..;/api",
            "/assets/..;x=1/api",
            "/assets/x/../../api",
            "/assets/..%2fapi",
            "/assets%2f..%2fapi",
            "/assets/..\\api",
            "/assets/..%5capi",
            "/assets/%252e%252e/api",
            "/assets/..%252fapi",
            "/assets/a%00",
            "/assets/a%0a",
            "/assets/#/../../api",
            "/assets;/../api",
            "/assets./a",
            "/assets%20/a",
            "/Assets/a",
            "/api",
            "/api?/assets/",
            "/api#/assets/",
            "//host/assets/a",
            "/",
            "*",
            "",
        ] {
            for except in [&assets, &prefix, &exact] {
                check(except, TestRequest::get(path), true);
            }
        }
        check(&of(r#"{"path": {"segments": "/"}}"#), TestRequest::get("/"), false);
        check(&of(r#"{"path": {"segments": "/assets"}}"#), TestRequest::get("/assets/"), false);
        check(&of(r#"{"path": {"regex": "/assets/[a-z]+"}}"#), TestRequest::get("/assets/a"), false);
        check(&of(r#"{"path": {"regex": "/assets/.*"}}"#), TestRequest::get("/assets/..;/api"), true);
    }

    #[test]
    fn an_exception_may_have_any_condition() {
        let of = |except: &str| format!(r#"{{"methods": ["GET", "HEAD", "POST"], "except": [{except}]}}"#);
        let get = |path: &str| TestRequest::get(path).header("x-tier", "gold").peer("10.1.2.3:4");
        let post = || TestRequest::default().header(":method", "post").header(":path", "/a");
        for (except, request, expected) in [
            (r#"{"methods": "GET"}"#, get("/"), false),
            (r#"{"methods": "POST"}"#, get("/"), true),
            (r#"{"methods": "POST"}"#, post(), true),
            (r#"{"host": "example.com"}"#, get("/"), false),
            (r#"{"host": "other.com"}"#, get("/"), true),
            (r#"{"host": "example.com"}"#, post().header(":authority", "ex%61mple.com"), true),
            (r#"{"headers": [{"name": "x-tier", "exact": "gold"}]}"#, get("/"), false),
            (r#"{"methods": "GET", "headers": [{"name": "x-tier", "exact": "iron"}]}"#, get("/"), true),
            (r#"{"methods": "POST"}, {"headers": [{"name": "x-tier", "present": true}]}"#, get("/"), false),
            (r#"{"client_network": {"in": ["10.0.0.0/8"]}}"#, get("/"), false),
            (r#"{"client_network": {"not_in": ["10.0.0.0/8"]}}"#, get("/"), true),
            (r#"{"query": [{"name": "a", "exact": "b"}]}"#, get("/?a=b"), false),
            (r#"{"query": [{"name": "a", "exact": "b"}]}"#, get("/?a=b&A=c"), true),
            (r#"{"query": [{"name": "a", "exact": "b"}]}"#, get("/?a=b&a=c"), true),
            (r#"{"query": [{"name": "a", "present": false}]}"#, get("/"), false),
            (r#"{"query": [{"name": "a", "present": false}]}"#, get("/?A=1"), true),
        ] {
            check(&of(except), request, expected);
        }
        check(
            r#"{"query": [{"name": "a", "exact": "b"}], "client_network": {"in": ["10.0.0.0/8"]}}"#,
            get("/?A=b"),
            true,
        );
        check(r#"{"query": [{"name": "a", "exact": "b"}]}"#, get("/?a=c"), false);
        check(r#"{"client_network": {"not_in": ["10.0.0.0/8"]}}"#, get("/"), false);
    }

    #[test]
    fn names_of_route_and_virtual_host() {
        let request = || {
            TestRequest::get("/")
                .property(b"xds\0route_name", b"httproute/shop/cart/rule/0")
                .property(b"xds\0virtual_host_name", b"shop")
        };
        for (json, expected) in [
            (r#"{"route": {"prefix": "httproute/shop/cart/"}}"#, true),
            (r#"{"route": {"exact": "httproute/shop/cart"}}"#, false),
            (r#"{"route": {"regex": "httproute/[a-z]+/cart/.*"}, "virtual_host": {"exact": "shop"}}"#, true),
            (r#"{"route": {"suffix": "/0"}, "virtual_host": {"contains": "x"}}"#, false),
        ] {
            check(json, request(), expected);
        }
        check(r#"{"route": {"prefix": "h"}}"#, TestRequest::get("/"), false);
    }

    #[test]
    fn a_route_is_read_once_and_after_cheaper_conditions() {
        let conditions = read(r#"{"methods": "GET", "route": {"exact": "a"}}"#);
        let mut sources = Sources::default();
        let get = TestRequest::get("/").property(b"xds\0route_name", b"a");
        assert!(conditions.matches(&get, &mut sources) && conditions.matches(&get, &mut sources));
        assert_eq!(get.host_calls.get(), 1);
        sources.reset();
        let post = TestRequest::default().header(":method", "POST");
        assert!(!conditions.matches(&post, &mut sources));
        assert_eq!(post.host_calls.get(), 0);
        sources.reset();
        assert!(!conditions.matches(&TestRequest::get("/"), &mut sources), "the route of another request");
    }
}
