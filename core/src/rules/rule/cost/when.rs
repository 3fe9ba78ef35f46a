//! The cost by what the response is: the first line of `cost.when` that applies decides.
//!
//! What a line compares is there with the response's headers, but for metadata and for the status of gRPC, which is in
//! the trailers unless the response has nothing but headers. Such a line is decided at the response's end.

use super::response::read_response_header;
use super::settlement::{End, Ending, Line, Settled, Stage};
use super::{TIMEOUT, TIMEOUT_MS_DEFAULT};
use crate::fields::{Errors, Fields, Node, Value};
use crate::rules::digits::parse;
use crate::rules::matcher::HeaderCondition;
use crate::rules::matcher::metadata::MetadataCondition;
use crate::rules::request::{Lines, Request};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::ops::RangeInclusive;

pub(in crate::rules) const FIELDS: [&str; 5] = ["when", "default", "reserve", "unanswered", "hold_timeout"];
/// The fields beside `only` or `refund`.
pub(in crate::rules) const SHORT_FIELDS: [&str; 2] = ["unanswered", "hold_timeout"];
pub(in crate::rules) const ONLY: &str = "only";
pub(in crate::rules) const REFUND: &str = "refund";
pub(in crate::rules) const LINE_FIELDS: [&str; 8] =
    ["status", "grpc_status", "header", "metadata", "details", "from", "cost", "max"];
/// What a line compares: at least one of these.
pub(in crate::rules) const CONDITIONS: [&str; 6] =
    ["status", "grpc_status", "header", "metadata", "details", "from"];
pub(in crate::rules) const LINES_MAX: usize = 16;
pub(in crate::rules) const STATUSES_MAX: usize = 16;
pub(in crate::rules) const CONDITIONS_MAX: usize = 16;
pub(in crate::rules) const DETAILS_BYTES_MAX: usize = 256;
pub(in crate::rules) const STATUS: RangeInclusive<u64> = 100..=599;
pub(in crate::rules) const GRPC_STATUS: RangeInclusive<u64> = 0..=16;
pub(in crate::rules) const STATUS_EXPECTED: &str = "a status such as 404, \"4xx\" or \"500-599\"";
/// What `unanswered` is in place of a number.
pub(in crate::rules) const UNANSWERED: [(&str, ()); 1] = [("reserve", ())];

/// `cost` by what the response is.
#[derive(Clone, Debug)]
pub struct WhenCost {
    /// The field that defines it: `when`, `only` or `refund`.
    pub field: &'static str,
    /// `when` (required): 1 to 16 lines.
    lines: Vec<WhenLine>,
    /// `default` (default 0): the cost of a response to which no line applies.
    pub default: u64,
    /// `reserve` (default: the highest cost that is a number; required if a header states a cost): what is reserved from the
    /// request to its response.
    pub reserve: u64,
    /// `unanswered` (default: the reserve): the cost if no upstream responded that may have received the request, and no
    /// line applies to Envoy's own response.
    pub unanswered: u64,
    /// `hold_timeout` (default `"5m"`): as in [`ResponseCost`](super::ResponseCost).
    pub hold_timeout_ms: u32,
}

/// One of `when`: what its responses are, and what they cost.
#[derive(Clone, Debug)]
struct WhenLine {
    /// None: any.
    statuses: Vec<RangeInclusive<u16>>,
    /// None: any.
    grpc_statuses: Vec<u8>,
    headers: Vec<HeaderCondition>,
    metadata: Vec<MetadataCondition>,
    /// The beginning of Envoy's details of the response's status.
    details: Option<Box<[u8]>>,
    from: Option<From>,
    cost: LineCost,
}

/// Where a response comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rules) enum From {
    Upstream,
    Envoy,
}

/// What a line charges.
#[derive(Clone, Debug)]
enum LineCost {
    Fixed(u64),
    /// The value of a header, at most `max`, which is charged too if it is no number.
    Header {
        name: Box<[u8]>,
        max: u64,
    },
}

impl WhenCost {
    /// What may decide the cost.
    pub fn lines(&self) -> impl Iterator<Item = Line> {
        let numbers = (1..).take(self.lines.len()).map(Line::Number);
        numbers.chain([Line::Default, Line::Unanswered, Line::Unsent, Line::Header])
    }

    pub(super) fn read(node: Node<'_>, errors: &mut Errors) -> Option<WhenCost> {
        let fields = node.object(&FIELDS, errors)?;
        let lines = fields.required("when", "a list of 1 to 16 lines", errors, |node, errors| {
            node.list(1..=LINES_MAX, "lines", errors, WhenLine::read)
        });
        let default = fields.or("default", 0, errors, |n, e| n.integer(0..=u64::MAX, e));
        let usual = lines.as_ref().and_then(|lines| highest(lines, default?));
        let expected = "the amount reserved until the response arrives, as a header states a cost";
        let reserve = match usual {
            Some(usual) => fields.or("reserve", usual, errors, |n, e| n.integer(0..=u64::MAX, e)),
            None if lines.is_none() => fields.or("reserve", 0, errors, |n, e| n.integer(0..=u64::MAX, e)),
            None => fields.required("reserve", expected, errors, |n, e| n.integer(0..=u64::MAX, e)),
        };
        let ends = Ends::read(&fields, errors);
        ends?.complete("when", lines?, default?, reserve?)
    }

    /// `only`: responses with these statuses cost 1, all others nothing.
    pub(super) fn read_only(node: Node<'_>, errors: &mut Errors) -> Option<WhenCost> {
        let (statuses, ends) = Ends::read_short(ONLY, node, errors)?;
        let refund = WhenLine::of_statuses(Vec::from([500..=599]), 0);
        let lines = Vec::from([WhenLine::of_statuses(statuses, 1), refund]);
        ends.complete(ONLY, lines, 0, 1)
    }

    /// `refund`: responses with these statuses cost nothing, all others 1.
    pub(super) fn read_refund(node: Node<'_>, errors: &mut Errors) -> Option<WhenCost> {
        let (statuses, ends) = Ends::read_short(REFUND, node, errors)?;
        ends.complete(REFUND, Vec::from([WhenLine::of_statuses(statuses, 0)]), 1, 1)
    }

    /// The most that a request may cost.
    pub fn most(&self) -> u64 {
        let of_lines = self.lines.iter().map(|line| line.cost.most()).max();
        of_lines.unwrap_or(0).max(self.default).max(self.unanswered)
    }

    /// How many regular expressions it has.
    pub(in crate::rules) fn expressions(&self) -> usize {
        self.lines.iter().map(WhenLine::expressions).fold(0, usize::saturating_add)
    }

    pub(super) fn settle<R: Request + ?Sized>(
        &self,
        end: &End<'_, R>,
        buffer: &mut Vec<u8>,
    ) -> Option<Settled> {
        if end.stage != Stage::Unanswered {
            for (line, number) in self.lines.iter().zip(1..) {
                match line.fit(end, buffer) {
                    Fit::No => {}
                    Fit::Yes => {
                        let cost = line.cost.of(end.response).unwrap_or(self.default);
                        return Some(Settled::by(cost, Line::Number(number)));
                    }
                    Fit::AtEnd => return None,
                    Fit::Never => return Some(Settled::by(self.unanswered, Line::Unanswered)),
                }
            }
        }
        let (cost, line) = match end.ending(buffer) {
            Ending::Responded => (self.default, Line::Default),
            Ending::Unanswered => (self.unanswered, Line::Unanswered),
            // A later filter responds.
            Ending::NotSent if end.stage != Stage::Unanswered => (self.default, Line::Default),
            Ending::NotSent => (0, Line::Unsent),
        };
        Some(Settled::by(cost, line))
    }
}

/// What applies where no line does.
#[derive(Clone, Copy, Debug)]
struct Ends {
    /// None: the reserve.
    unanswered: Option<u64>,
    hold_timeout_ms: u64,
}

impl Ends {
    fn read(fields: &Fields<'_>, errors: &mut Errors) -> Option<Ends> {
        let unanswered = fields.optional("unanswered", errors, |node, errors| match node.value {
            Value::Text(_) if node.value.as_integer().is_none() => {
                node.word(&UNANSWERED, errors).map(|()| None)
            }
            _ => node.integer(0..=u64::MAX, errors).map(Some),
        });
        let hold_timeout_ms =
            fields.or("hold_timeout", TIMEOUT_MS_DEFAULT, errors, |n, e| TIMEOUT.read(n, e));
        Some(Ends { unanswered: unanswered?.flatten(), hold_timeout_ms: hold_timeout_ms? })
    }

    fn read_short(
        field: &'static str,
        node: Node<'_>,
        errors: &mut Errors,
    ) -> Option<(Vec<RangeInclusive<u16>>, Ends)> {
        let [unanswered, hold_timeout] = SHORT_FIELDS;
        let fields = node.object(&[field, unanswered, hold_timeout], errors)?;
        let statuses = fields.required(field, STATUS_EXPECTED, errors, read_statuses);
        let ends = Ends::read(&fields, errors);
        Some((statuses?, ends?))
    }

    fn complete(
        self,
        field: &'static str,
        lines: Vec<WhenLine>,
        default: u64,
        reserve: u64,
    ) -> Option<WhenCost> {
        let hold_timeout_ms = u32::try_from(self.hold_timeout_ms).ok()?;
        let unanswered = self.unanswered.unwrap_or(reserve);
        Some(WhenCost { field, lines, default, reserve, unanswered, hold_timeout_ms })
    }
}

/// The highest cost of the lines and of other responses; `None` if a header states one.
fn highest(lines: &[WhenLine], default: u64) -> Option<u64> {
    lines.iter().try_fold(default, |most, line| match line.cost {
        LineCost::Fixed(cost) => Some(most.max(cost)),
        LineCost::Header { .. } => None,
    })
}

/// Whether a line applies to a response.
enum Fit {
    Yes,
    No,
    /// That is known once the response has ended.
    AtEnd,
    /// The response has ended without what states it: it broke off, or its trailers were taken away. A later line must not decide then.
    Never,
}

impl WhenLine {
    fn of_statuses(statuses: Vec<RangeInclusive<u16>>, cost: u64) -> WhenLine {
        WhenLine {
            statuses,
            grpc_statuses: Vec::new(),
            headers: Vec::new(),
            metadata: Vec::new(),
            details: None,
            from: None,
            cost: LineCost::Fixed(cost),
        }
    }

    fn read(node: Node<'_>, errors: &mut Errors) -> Option<WhenLine> {
        let fields = node.object(&LINE_FIELDS, errors)?;
        let statuses = fields.or("status", Vec::new(), errors, read_statuses);
        let grpc_statuses = fields.or("grpc_status", Vec::new(), errors, |node, errors| {
            node.one_or_list(1..=STATUSES_MAX, "statuses", errors, |node, errors| {
                u8::try_from(node.integer(GRPC_STATUS, errors)?).ok()
            })
        });
        let headers = fields.or("header", Vec::new(), errors, |node, errors| {
            node.one_or_list(1..=CONDITIONS_MAX, "conditions", errors, HeaderCondition::read)
        });
        let metadata = fields.or("metadata", Vec::new(), errors, |node, errors| {
            node.one_or_list(1..=CONDITIONS_MAX, "conditions", errors, MetadataCondition::read)
        });
        let details = fields.optional("details", errors, |node, errors| {
            node.visible(DETAILS_BYTES_MAX, errors).map(|text| text.as_bytes().into())
        });
        let from = fields.optional("from", errors, |node, errors| node.word(&From::WORDS, errors));
        let cost = LineCost::read(&fields, errors);
        if CONDITIONS.iter().all(|name| fields.get(name).is_none()) {
            let expected = "one of status, grpc_status, header, metadata, details and from, or default";
            return node.reject(errors, "applies to every response", expected);
        }
        Some(WhenLine {
            statuses: statuses?,
            grpc_statuses: grpc_statuses?,
            headers: headers?,
            metadata: metadata?,
            details: details?,
            from: from?,
            cost: cost?,
        })
    }

    fn expressions(&self) -> usize {
        let of_headers = self.headers.iter().filter(|condition| condition.is_expression()).count();
        let of_metadata = self.metadata.iter().filter(|condition| condition.is_expression()).count();
        of_headers.saturating_add(of_metadata)
    }

    /// Whether the headers of the response meet all that is known by them.
    fn headers_apply<R: Request + ?Sized>(&self, end: &End<'_, R>, buffer: &mut Vec<u8>) -> bool {
        self.status_applies(end)
            && self.headers.iter().all(|header| header.matches(end.response, buffer))
            && self.from.is_none_or(|from| (from == From::Upstream) == end.is_from_upstream(buffer))
            && self.details.as_ref().is_none_or(|details| end.details(buffer).starts_with(details))
    }

    /// Whether it applies.
    fn fit<R: Request + ?Sized>(&self, end: &End<'_, R>, buffer: &mut Vec<u8>) -> Fit {
        if !self.headers_apply(end, buffer) {
            return Fit::No;
        }
        let has_ended = matches!(end.stage, Stage::Ended(_));
        if has_ended && !self.metadata.is_empty() && end.ending(buffer) == Ending::Unanswered {
            return Fit::Never;
        }
        if !self.grpc_statuses.is_empty() {
            match end.grpc_status() {
                None => return Fit::AtEnd,
                Some(Some(status)) if self.grpc_statuses.contains(&status) => {}
                // A response of gRPC with another status of HTTP has none of its own.
                Some(None) if has_ended && end.is_grpc() && end.status() == Some(200) => return Fit::Never,
                Some(_) => return Fit::No,
            }
        }
        if !self.metadata.is_empty() && end.stage == Stage::Headers {
            return Fit::AtEnd;
        }
        match self.metadata.iter().all(|condition| condition.matches(end.response, buffer)) {
            true => Fit::Yes,
            false => Fit::No,
        }
    }

    fn status_applies<R: Request + ?Sized>(&self, end: &End<'_, R>) -> bool {
        self.statuses.is_empty()
            || end.status().is_some_and(|status| self.statuses.iter().any(|range| range.contains(&status)))
    }
}

impl<R: Request + ?Sized> End<'_, R> {
    /// The status of gRPC, if the response has one. `None`: that is known once it has ended.
    fn grpc_status(&self) -> Option<Option<u8>> {
        let number = |value: &[u8]| parse(value).and_then(|status| u8::try_from(status).ok());
        match (self.response.header(b"grpc-status"), self.stage) {
            (Lines::One(value), _) => Some(number(value)),
            (Lines::None, Stage::Ended(trailers)) => Some(trailers.grpc_status),
            (Lines::None, Stage::Headers) if self.is_grpc() => None,
            _ => Some(None),
        }
    }

    fn is_grpc(&self) -> bool {
        matches!(self.response.header(b"content-type"), Lines::One(kind) if kind.starts_with(b"application/grpc"))
    }
}

impl From {
    pub(in crate::rules) const WORDS: [(&str, From); 2] =
        [("upstream", From::Upstream), ("envoy", From::Envoy)];
}

impl LineCost {
    fn read(fields: &Fields<'_>, errors: &mut Errors) -> Option<LineCost> {
        let expected = "a whole number, 0 or more, or an object with header";
        let stated = matches!(fields.get("cost").map(|node| node.value), Some(Value::Object(_)));
        if !stated {
            fields.reject_given(&["max"], "it has no effect on a cost that is a number", errors);
            let cost = fields.required("cost", expected, errors, |n, e| n.integer(0..=u64::MAX, e));
            return cost.map(LineCost::Fixed);
        }
        let name = fields.required("cost", expected, errors, read_response_header);
        let expected = "the most that a request may cost, such as 20000";
        let max = fields.required("max", expected, errors, |n, e| n.integer(1..=u64::MAX, e));
        Some(LineCost::Header { name: name?, max: max? })
    }

    fn most(&self) -> u64 {
        match self {
            LineCost::Fixed(cost) => *cost,
            LineCost::Header { max, .. } => *max,
        }
    }

    /// The cost of a response, unless it lacks the header.
    fn of<R: Request + ?Sized>(&self, response: &R) -> Option<u64> {
        match self {
            LineCost::Fixed(cost) => Some(*cost),
            LineCost::Header { name, max } => super::response::largest(response, name, *max),
        }
    }
}

/// One status, class or range, or a list of them.
fn read_statuses(node: Node<'_>, errors: &mut Errors) -> Option<Vec<RangeInclusive<u16>>> {
    node.one_or_list(1..=STATUSES_MAX, "statuses", errors, |node, errors| match statuses(node.value) {
        Some(range) => Some(range),
        None => node.reject(errors, "is not a status", STATUS_EXPECTED),
    })
}

fn statuses(value: &Value<'_>) -> Option<RangeInclusive<u16>> {
    let one = |number: u64| STATUS.contains(&number).then_some(number);
    let (first, last) = match (value.as_integer(), value) {
        (Some(number), _) => (one(number)?, number),
        (None, Value::Text(text)) => match (text.strip_suffix("xx"), text.split_once('-')) {
            (Some(class), _) => {
                let first =
                    parse(class.as_bytes()).filter(|class| (1..=5).contains(class))?.checked_mul(100)?;
                (first, first.checked_add(99)?)
            }
            (None, Some((first, last))) => (one(parse(first.as_bytes())?)?, one(parse(last.as_bytes())?)?),
            (None, None) => return None,
        },
        (None, _) => return None,
    };
    let range = u16::try_from(first).ok()?..=u16::try_from(last).ok()?;
    (!range.is_empty()).then_some(range)
}

/// For people: what each response costs.
impl fmt::Display for WhenCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.lines {
            write!(f, "{line}, ")?;
        }
        write!(f, "else {} ({} until then", self.default, self.reserve)?;
        if self.unanswered != self.reserve {
            write!(f, ", {} if unanswered", self.unanswered)?;
        }
        f.write_str(")")
    }
}

impl fmt::Display for WhenLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cost {
            LineCost::Fixed(cost) => write!(f, "{cost}")?,
            LineCost::Header { name, max } => {
                write!(f, "the value of {}, at most {max},", String::from_utf8_lossy(name))?;
            }
        }
        let mut conditions = Vec::new();
        if !self.statuses.is_empty() {
            let statuses = self.statuses.iter().map(|range| match range.start() == range.end() {
                true => range.start().to_string(),
                false => format!("{}-{}", range.start(), range.end()),
            });
            conditions.push(format!("status {}", statuses.collect::<Vec<_>>().join(" or ")));
        }
        if !self.grpc_statuses.is_empty() {
            let statuses: Vec<String> = self.grpc_statuses.iter().map(u8::to_string).collect();
            conditions.push(format!("gRPC status {}", statuses.join(" or ")));
        }
        let headers = self.headers.iter().map(|header| String::from_utf8_lossy(&header.name));
        conditions.extend(headers.map(|name| format!("header {name}")));
        if !self.metadata.is_empty() {
            conditions.push("metadata".to_string());
        }
        if let Some(details) = &self.details {
            conditions.push(format!("details {}", String::from_utf8_lossy(details)));
        }
        let from = From::WORDS.iter().find(|(_, from)| Some(*from) == self.from);
        conditions.extend(from.map(|(word, _)| format!("from {word}")));
        write!(f, " with {}", conditions.join(" and "))
    }
}

#[cfg(test)]
mod tests {
    use super::super::settlement::Trailers;
    use super::*;
    use crate::fields::Bounds;
    use crate::rules::rule::cost::Cost;
    use crate::rules::testing::TestRequest;

    fn read(json: &str) -> Result<WhenCost, String> {
        let mut errors = Errors::default();
        let json = Value::parse(json.as_bytes(), Bounds::OF_A_FILE).unwrap();
        let cost = Cost::read(Node::root("cost", &json), &mut errors);
        match errors.finish(cost) {
            Ok(Cost::When(cost)) => Ok(*cost),
            Ok(other) => panic!("{other:?}"),
            Err(errors) => Err(errors.to_string()),
        }
    }

    fn logins() -> WhenCost {
        read(
            r#"{"when": [
                {"status": [401, 403], "cost": 1},
                {"status": "5xx", "cost": 0},
                {"header": {"name": "location", "prefix": "/login"}, "cost": 2},
                {"grpc_status": [7, 16], "cost": 3},
                {"metadata": {"filter": "f", "key": "k", "exact": "v"}, "cost": 4},
                {"status": ["200-299", 304], "from": "envoy", "cost": 5},
                {"details": "rbac_", "cost": 6},
                {"status": 202, "cost": {"header": "x-tokens"}, "max": 50}
            ], "default": 7, "reserve": 9, "unanswered": 8}"#,
        )
        .unwrap()
    }

    const ENDED: Stage = Stage::Ended(Trailers { grpc_status: None });

    /// A response from upstream.
    fn response(status: &str) -> TestRequest {
        TestRequest::default().header(":status", status).property(b"response\0code_details", b"via_upstream")
    }

    /// A response of Envoy's own.
    fn own(status: &str, details: &str) -> TestRequest {
        TestRequest::default()
            .header(":status", status)
            .property(b"response\0code_details", details.as_bytes())
    }

    fn settle(cost: &WhenCost, response: &TestRequest, stage: Stage) -> Option<(u64, String)> {
        let settled = cost.settle(&End { response, stage, rule: 0, reserved: 9 }, &mut Vec::from(*b"x"))?;
        Some((settled.cost, settled.line.to_string()))
    }

    #[test]
    fn the_first_line_that_applies_decides() {
        let cost = logins();
        let reached = |request: TestRequest| request.property(b"upstream\0local_address", b"127.0.0.1:1");
        let json = |request: TestRequest| request.header("content-type", "application/json");
        let value = |request: TestRequest| request.metadata(&["f", "k"], "v");
        for (response, stage, expected) in [
            (response("401"), ENDED, (1, "1")),
            (response("401").header("location", "/login"), ENDED, (1, "1")),
            (own("403", "rbac_access_denied"), ENDED, (1, "1")),
            (response("503"), ENDED, (0, "2")),
            (reached(own("503", "upstream_reset_before_response_started{…}")), ENDED, (0, "2")),
            (response("302").header("location", "/login?error"), ENDED, (2, "3")),
            (response("302").header("location", "/home"), ENDED, (7, "default")),
            (response("200").header("grpc-status", "16"), Stage::Headers, (3, "4")),
            (response("200").header("grpc-status", "16"), ENDED, (3, "4")),
            (response("200"), Stage::Ended(Trailers { grpc_status: Some(7) }), (3, "4")),
            (response("200"), Stage::Ended(Trailers { grpc_status: Some(0) }), (7, "default")),
            (response("200").header("grpc-status", "many"), ENDED, (7, "default")),
            (json(value(response("200"))), ENDED, (4, "5")),
            (own("200", "direct_response"), ENDED, (5, "6")),
            (own("304", "direct_response"), ENDED, (5, "6")),
            (own("404", "rbac_x"), ENDED, (6, "7")),
            (response("202").header("x-tokens", "20"), ENDED, (20, "8")),
            (response("202").header("x-tokens", "1e1"), ENDED, (50, "8")),
            (response("202"), ENDED, (7, "8")),
            (response("404"), ENDED, (7, "default")),
            (own("429", "weir_limited"), ENDED, (7, "default")),
            (reached(own("404", "response_timeout")), ENDED, (8, "unanswered")),
            (reached(TestRequest::default()), Stage::Unanswered, (8, "unanswered")),
            (
                TestRequest::default().property(b"upstream\0request_attempt_count", &2_u64.to_le_bytes()),
                Stage::Unanswered,
                (8, "unanswered"),
            ),
            (TestRequest::default(), Stage::Unanswered, (0, "unsent")),
        ] {
            let found = settle(&cost, &response, stage);
            assert_eq!(found, Some((expected.0, expected.1.to_string())), "{response:?} {stage:?}");
        }
    }

    #[test]
    fn a_line_that_needs_the_end_waits_for_it() {
        let cost = logins();
        let grpc = |status: &str| response(status).header("content-type", "application/grpc+proto");
        assert_eq!(settle(&cost, &grpc("401"), Stage::Headers), Some((1, "1".into())), "a line before it");
        assert_eq!(settle(&cost, &grpc("200"), Stage::Headers), None, "trailers follow");
        assert_eq!(settle(&cost, &response("404"), Stage::Headers), None, "metadata may follow");
        let by_status = read(r#"{"when": [{"status": 404, "grpc_status": 5, "cost": 2}]}"#).unwrap();
        assert_eq!(settle(&by_status, &grpc("404"), Stage::Headers), None);
        assert_eq!(settle(&by_status, &grpc("200"), Stage::Headers), Some((0, "default".into())));
        assert_eq!(settle(&by_status, &response("404"), Stage::Headers), Some((0, "default".into())));
    }

    /// A client that leaves early, or a filter that takes the trailers away, does not choose a later line.
    #[test]
    fn no_later_line_decides_where_the_end_is_missing() {
        let lines = |first: &str| {
            let text = format!(
                r#"{{"when": [{first}, {{"status": 200, "cost": 0}}], "default": 0, "reserve": 1, "unanswered": 8}}"#
            );
            read(&text).unwrap()
        };
        let of_metadata = lines(r#"{"metadata": {"filter": "f", "key": "k", "exact": "v"}, "cost": 1}"#);
        let reached = |response: TestRequest| response.property(b"upstream\0local_address", b"10.0.0.1:1");
        let left = || reached(own("200", "downstream_remote_disconnect"));
        assert_eq!(settle(&of_metadata, &left(), ENDED), Some((8, "unanswered".into())));
        assert_eq!(settle(&of_metadata, &reached(response("200")), ENDED), Some((0, "2".into())));
        let of_status = lines(r#"{"grpc_status": 16, "cost": 1}"#);
        let grpc = || reached(response("200")).header("content-type", "application/grpc");
        assert_eq!(settle(&of_status, &grpc(), ENDED), Some((8, "unanswered".into())));
        let with = Stage::Ended(Trailers { grpc_status: Some(16) });
        assert_eq!(settle(&of_status, &grpc(), with), Some((1, "1".into())));
        assert_eq!(settle(&of_status, &reached(response("200")), ENDED), Some((0, "2".into())), "no gRPC");
    }

    #[test]
    fn defaults_and_short_forms() {
        let cost = read(r#"{"when": [{"status": 401, "cost": 3}, {"status": 402, "cost": 1}]}"#).unwrap();
        assert_eq!((cost.default, cost.reserve, cost.unanswered, cost.hold_timeout_ms), (0, 3, 3, 300_000));
        let cost = read(r#"{"when": [{"status": 401, "cost": 3}], "reserve": 0, "unanswered": "reserve"}"#);
        let cost = cost.unwrap();
        assert_eq!((cost.reserve, cost.unanswered, cost.most()), (0, 0, 3));

        let only = read(r#"{"only": [401, 403], "unanswered": 0, "hold_timeout": "1s"}"#).unwrap();
        assert_eq!((only.default, only.reserve, only.unanswered, only.hold_timeout_ms), (0, 1, 0, 1_000));
        let refund = read(r#"{"refund": "5xx"}"#).unwrap();
        assert_eq!((refund.default, refund.reserve, refund.unanswered, refund.most()), (1, 1, 1, 1));
        let reset = own("503", "upstream_reset").property(b"upstream\0local_address", b"127.0.0.1:1");
        for (status, by_only, by_refund) in
            [("200", 0, 1), ("401", 1, 1), ("403", 1, 1), ("500", 0, 0), ("599", 0, 0)]
        {
            let of = |cost| settle(cost, &response(status), Stage::Headers).unwrap().0;
            assert_eq!((of(&only), of(&refund)), (by_only, by_refund), "{status}");
        }
        assert_eq!(settle(&only, &reset, Stage::Headers), Some((0, "2".into())));
        assert_eq!(
            only.to_string(),
            "1 with status 401 or 403, 0 with status 500-599, else 0 (1 until then, 0 if unanswered)"
        );
    }

    #[test]
    fn errors() {
        let line = r#"{"status": 401, "cost": 1}"#;
        for (json, problem) in [
            (r#"{"when": []}"#.to_string(), "when: it has 0 lines"),
            (format!(r#"{{"when": [{}]}}"#, [line; 17].join(", ")), "when: it has 17 lines"),
            (r#"{"when": [{"cost": 1}]}"#.to_string(), "applies to every response"),
            (r#"{"when": [{"status": 401}]}"#.to_string(), "when[0].cost: it is missing"),
            (r#"{"when": [{"status": 99, "cost": 1}]}"#.to_string(), "is not a status"),
            (r#"{"when": [{"status": "6xx", "cost": 1}]}"#.to_string(), "is not a status"),
            (r#"{"when": [{"status": "599-500", "cost": 1}]}"#.to_string(), "is not a status"),
            (r#"{"when": [{"status": "ok", "cost": 1}]}"#.to_string(), "is not a status"),
            (r#"{"when": [{"grpc_status": 17, "cost": 1}]}"#.to_string(), "out of range"),
            (r#"{"when": [{"from": "client", "cost": 1}]}"#.to_string(), "from"),
            (r#"{"when": [{"status": 401, "cost": -1}]}"#.to_string(), "cost"),
            (r#"{"when": [{"status": 401, "cost": 1, "max": 2}]}"#.to_string(), "no effect"),
            (r#"{"when": [{"status": 401, "cost": {"header": "x"}}]}"#.to_string(), "max: it is missing"),
            (
                r#"{"when": [{"status": 401, "cost": {"header": "x"}, "max": 5}]}"#.to_string(),
                "reserve: it is missing",
            ),
            (format!(r#"{{"when": [{line}], "request": {{"header": "x"}}}}"#), "no such field"),
            (format!(r#"{{"when": [{line}], "unanswered": "max"}}"#), "unanswered"),
            (r#"{"only": 401, "reserve": 3}"#.to_string(), "no such field"),
            (r#"{"refund": "x"}"#.to_string(), "is not a status"),
        ] {
            let error = read(&json).unwrap_err();
            assert!(error.contains(problem), "{json}\n{error}");
        }
    }
}
