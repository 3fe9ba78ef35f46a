//! Spellings of one identifier or path that an upstream treats as equal, by which a client could evade a limit.
//!
//! Each case states which identifiers a rule derives from a set of requests. A client that sends all of them gets one
//! identifier, or the shared identifier of all ambiguous requests, or is denied.

use proptest::prelude::*;
use std::collections::BTreeSet;
use weir_core::rules::{Action, Config, Lines, Live, Request, Scratch};

#[derive(Clone, Debug, Default)]
pub struct Sent(Vec<(&'static str, Vec<u8>)>);

impl Sent {
    pub fn to(path: &str) -> Self {
        Sent::default().with(":method", "POST").with(":authority", "example.com").with(":path", path)
    }

    pub fn with(mut self, name: &'static str, value: impl AsRef<[u8]>) -> Self {
        self.0.push((name, value.as_ref().to_vec()));
        self
    }
}

impl Request for Sent {
    fn header(&self, name: &[u8]) -> Lines<'_> {
        let mut lines = self.0.iter().filter(|(header, _)| header.as_bytes() == name);
        match (lines.next(), lines.next()) {
            (None, _) => Lines::None,
            (Some((_, value)), None) => Lines::One(value),
            _ => Lines::Many,
        }
    }

    fn for_each_header(&self, name: &[u8], line: &mut dyn FnMut(&[u8])) {
        self.0.iter().filter(|(header, _)| header.as_bytes() == name).for_each(|(_, value)| line(value));
    }

    fn property(&self, path: &[u8], out: &mut Vec<u8>) -> bool {
        let is_address = path == b"source\0address";
        out.extend_from_slice(if is_address { b"192.0.2.7:4000" } else { b"" });
        is_address
    }
}

pub fn one_rule(fields: &str) -> Config {
    let text = format!(
        r#"{{"aggregator": {{"cluster": "c"}}, "rules": [{{"name": "r", "limit": 5, "window": "1m", {fields}}}]}}"#
    );
    Config::parse(text.as_bytes()).unwrap_or_else(|errors| panic!("{fields}\n{errors}"))
}

/// The result of the rule for a request: its identifier, `denied`, or `unlimited`.
pub fn outcome(config: &Config, request: &Sent) -> String {
    let mut scratch = Scratch::default();
    match config.resolve(request, &Live::default(), &mut scratch).next() {
        None => "unlimited".to_owned(),
        Some(matched) => match matched.action {
            Action::Limit { .. } => String::from_utf8_lossy(matched.identifier).into_owned(),
            _ => "denied".to_owned(),
        },
    }
}

/// Expects that these requests together have exactly these outcomes.
pub fn check(fields: &str, requests: impl IntoIterator<Item = Sent>, expected: &[&str]) {
    let config = one_rule(fields);
    let found: BTreeSet<String> = requests.into_iter().map(|request| outcome(&config, &request)).collect();
    let expected: BTreeSet<String> = expected.iter().map(|text| (*text).to_owned()).collect();
    assert_eq!(found, expected, "{fields}");
}

const BLANKS: [&str; 7] = ["alice", " alice", "  alice", "alice ", "\talice", " \t alice\t ", "alice \t"];

#[test]
fn blanks_around_a_value_do_not_count() {
    let header = || BLANKS.map(|value| Sent::to("/").with("x-user", value));
    check(r#""identifier": {"header": "x-user"}"#, header(), &["alice"]);
    let cookie = BLANKS.map(|value| Sent::to("/").with("cookie", format!("u={value};v=1")));
    check(r#""identifier": {"cookie": "u"}"#, cookie, &["alice"]);
    let escaped = |value: &str| value.replace(' ', "%20").replace('\t', "%09");
    let query = BLANKS.map(|value| Sent::to(&format!("/?u={}", escaped(value))));
    check(r#""identifier": {"query": "u"}"#, query, &["alice"]);
    let segment = BLANKS.map(|value| Sent::to(&format!("/u/{}/x", escaped(value))));
    check(r#""identifier": {"path_segment": 2}"#, segment, &["alice"]);
    let authority = BLANKS.map(|value| Sent::default().with(":authority", value));
    check(r#""identifier": {"host": true}"#, authority, &["alice"]);
    let two = r#""identifier": [{"constant": "a"}, {"header": "x-user"}]"#;
    check(two, header(), &["a|alice"]);
    check(two, ["", " ", "\t", " \t "].map(|value| Sent::to("/").with("x-user", value)), &[r"a|\-"]);
}

#[test]
fn blanks_do_not_escape_conditions_on_headers() {
    for condition in [r#""exact": "alice""#, r#""prefix": "al""#, r#""suffix": "ce""#, r#""regex": "a.*e""#] {
        let rule = format!(
            r#""identifier": {{"constant": "met"}}, "match": {{"headers": [{{"name": "x-user", {condition}}}]}}"#
        );
        check(&rule, BLANKS.map(|value| Sent::to("/").with("x-user", value)), &["met"]);
    }
    let joined = [("a", "b"), (" a", "b"), ("a ", " b"), ("a\t", "\tb ")]
        .map(|(one, two)| Sent::to("/").with("x-list", one).with("x-list", two));
    let rule =
        r#""identifier": {"constant": "met"}, "match": {"headers": [{"name": "x-list", "exact": "a,b"}]}"#;
    check(rule, joined, &["met"]);
}

#[test]
fn several_values_of_one_name_are_ambiguous() {
    let cookies = ["a", "b", "c"].map(|value| Sent::to("/").with("cookie", format!("u={value}; u=alice")));
    check(r#""identifier": {"cookie": "u"}"#, cookies, &[r"\+"]);
    let lines =
        ["a", "b"].map(|value| Sent::to("/").with("cookie", format!("u={value}")).with("cookie", "u=alice"));
    check(r#""identifier": {"cookie": "u"}"#, lines, &[r"\+"]);
    let query = ["a", "b", ""].map(|value| Sent::to(&format!("/?u={value}&x=1&%75=alice")));
    check(r#""identifier": {"query": "u"}"#, query, &[r"\+"]);
    let headers = ["a", "b", ""].map(|value| Sent::to("/").with("x-user", value).with("x-user", "alice"));
    check(r#""identifier": {"header": "x-user"}"#, headers, &[r"\+"]);
}

#[test]
fn an_ambiguous_identifier_is_not_a_missing_one() {
    for (part, twice, without) in [
        (r#"{"header": "x-user"}"#, Sent::to("/").with("x-user", "a").with("x-user", "b"), Sent::to("/")),
        (r#"{"cookie": "u"}"#, Sent::to("/").with("cookie", "u=a; u=b"), Sent::to("/").with("cookie", "v=a")),
        (r#"{"query": "u"}"#, Sent::to("/?u=a&u=b"), Sent::to("/?v=a")),
    ] {
        for (missing, ambiguous, absent) in
            [("shared", r"\+", r"\-"), ("skip", r"\+", "unlimited"), ("deny", "denied", "denied")]
        {
            let rule = format!(r#""identifier": {part}, "on_missing_identifier": "{missing}""#);
            check(&rule, [twice.clone()], &[ambiguous]);
            check(&rule, [without.clone()], &[absent]);
        }
    }
}

#[test]
fn spellings_of_a_path_match_its_rule() {
    let rule = r#""identifier": {"constant": "met"}, "match": {"path": {"exact": "/login"}}"#;
    let spelt =
        ["/login;a=b", "/login;", "/x/..;a=b/login", "/x/..;/login", "/;x/login", "/login;a/../login"];
    check(rule, spelt.map(Sent::to), &["met"]);
    for (path, condition) in [
        ("/v1/models:run", ["/v1/models%3Arun", "/v1/models%3arun"]),
        ("/caf\u{e9}", ["/caf%C3%A9", "/caf%c3%a9"]),
        ("/a b", ["/a%20b", "/a%20%62"]),
    ] {
        let rule =
            format!(r#""identifier": {{"constant": "met"}}, "match": {{"path": {{"exact": "{path}"}}}}"#);
        check(&rule, condition.map(Sent::to), &["met"]);
    }
}

#[test]
fn spellings_of_a_path_that_only_some_upstreams_treat_as_equal_match_a_rule_by_segments() {
    let rule = r#""identifier": {"constant": "met"}, "match": {"path": {"segments": "/login"}}"#;
    let spelt =
        ["/login", "/login;a=b", "/login/", "/login%20", "/login.", "//login./%2e/?x", "/login%09/;x"];
    check(rule, spelt.map(Sent::to), &["met"]);
    check(rule, ["/Login", "/loginx", "/login.json", "/login/x"].map(Sent::to), &["unlimited"]);
    let folded = r#""identifier": {"constant": "met"}, "match": {"path": {"segments": "/login", "ignore_case": true}}"#;
    check(folded, spelt.into_iter().chain(["/Login", "/LOGIN/"]).map(Sent::to), &["met"]);
}

#[test]
fn a_rule_may_pick_one_of_several_values_and_deny_ambiguous_ones() {
    let cookies = || ["a", "b"].map(|value| Sent::to("/").with("cookie", format!("u={value}; u=alice")));
    check(r#""identifier": {"cookie": "u", "pick": "last"}"#, cookies(), &["alice"]);
    check(r#""identifier": {"cookie": "u", "pick": "first"}"#, cookies(), &["a", "b"]);
    let denied = r#""identifier": {"cookie": "u"}, "on_missing_identifier": "skip", "on_ambiguous_identifier": "deny""#;
    check(denied, cookies(), &["denied"]);
    check(denied, [Sent::to("/")], &["unlimited"]);
    let shared = r#""identifier": {"cookie": "u"}, "on_missing_identifier": "deny", "on_ambiguous_identifier": "shared""#;
    check(shared, cookies(), &[r"\+"]);
    // A request that also lacks a part is denied as well.
    let two = r#""identifier": [{"cookie": "u"}, {"header": "x-user"}], "on_missing_identifier": "skip""#;
    check(two, cookies(), &[r"\+|\-"]);
    let spelt = ["Alice", "ALICE", "alice"].map(|value| Sent::to("/").with("x-user", value));
    check(r#""identifier": {"header": "x-user", "lowercase": true}"#, spelt, &["alice"]);
}

#[test]
fn spellings_of_a_cookie_are_one_identifier() {
    let cookies = |spelt: &[&str]| -> Vec<Sent> {
        spelt.iter().map(|value| Sent::to("/").with("cookie", format!("u={value}"))).collect()
    };
    let by_cookie = r#""identifier": {"cookie": "u"}"#;
    check(by_cookie, cookies(&["s:al", "s%3Aal", "s%3aal", "\"s:al\"", "%73:al%20"]), &["s:al"]);
    let quoted = [
        "alice",
        r#""alice""#,
        r#""\141lice""#,
        r#""\141\154\151\143\145""#,
        r#""\alice""#,
        r#""%61li\143e""#,
    ];
    check(by_cookie, cookies(&quoted), &["alice"]);
    check(by_cookie, cookies(&[r#""a\054b""#, r#""a,b""#, "a%2Cb"]), &["a,b"]);
    check(by_cookie, cookies(&[r#""a\"\\\400""#]), &[r#"a"\\400"#]);
    // Some upstreams end such a value at the semicolon, others at the closing quote.
    check(by_cookie, cookies(&[r#""alice"#, r#""alice;b""#, r#"""#, r#""alice\""#]), &[r"\+"]);
}

#[test]
fn names_that_some_upstream_takes_for_the_same_are_ambiguous() {
    let names = [
        "user.id",
        "user+id",
        "user[id",
        "user_id%00x",
        "%20user_id",
        "User_ID",
        "user_id[]",
        "user_id[a]",
        "user_id]",
        "]user_id",
        "[user_id]",
        "[[user_id]",
        "%u0075ser_id",
    ];
    let query = r#""identifier": {"query": "user_id"}, "on_missing_identifier": "skip""#;
    check(query, names.map(|name| Sent::to(&format!("/?{name}=alice"))), &[r"\+"]);
    check(query, names.map(|name| Sent::to(&format!("/?user_id=a&{name}=alice"))), &[r"\+"]);
    let first = r#""identifier": {"query": "user_id", "pick": "first"}"#;
    check(first, names.map(|name| Sent::to(&format!("/?user_id=a&{name}=alice"))), &[r"\+"]);
    let other = ["user", "user_idx", "userid", "user-id", "x_user_id", "[x[user_id]", "_user_id"];
    check(query, other.map(|name| Sent::to(&format!("/?{name}=alice"))), &["unlimited"]);
    let cookie = r#""identifier": {"cookie": "user_id"}, "on_missing_identifier": "skip""#;
    let names = ["user.id", "user id", "user[id", "USER_id", "user_id[a]", "user%5Fid", "[user_id]"];
    check(cookie, names.map(|name| Sent::to("/").with("cookie", format!("{name}=alice"))), &[r"\+"]);
    check(cookie, other.map(|name| Sent::to("/").with("cookie", format!("{name}=alice"))), &["unlimited"]);
    check(r#""identifier": {"query": "f[a]"}"#, [Sent::to("/?f[a]=x&f[b]=y&g=z")], &["x"]);
    check(r#""identifier": {"query": "f[a]"}"#, ["/?f[a]z=x", "/?f_a]=x"].map(Sent::to), &[r"\+"]);
}

#[test]
fn spellings_of_a_credential_are_one_identifier() {
    let by_credential = r#""identifier": {"authorization": true}, "on_missing_identifier": "skip""#;
    let sent = |value: &str| Sent::to("/").with("authorization", value);
    let spelt = ["Bearer x", "bearer x", "BEARER  x", "Bearer\tx ", " Bearer x", "Token x", "x"];
    check(by_credential, spelt.map(sent), &["x"]);
    // u:pw, u:p, u: and u, with unused bits and with other padding.
    let basic = [
        "Basic dTpwdw==",
        "basic dTpwdz==",
        "Basic  dTpwdw",
        "BASIC dTpwdw===",
        "Basic dTpw",
        "Basic dTo=",
        "Basic dQ",
    ];
    check(by_credential, basic.map(sent), &["u"]);
    let ambiguous = [
        "Bearer x y",
        "Bearer x, Basic dTpw",
        "Digest username=\"u\", realm=\"r\"",
        "Basic dTp wdw==",
        "Basic dTpw-dw==",
        "Basic dTp=wdw=",
        "Basic dTpwd!w==",
        "Basic 6TpwdA==",
        "Bearer caf\u{e9}",
        "Bearer eyJh.e30.a+b",
        "Bearer eyJh.e30.a=b",
    ];
    check(by_credential, ambiguous.map(sent), &[r"\+"]);
    check(by_credential, [sent("Bearer x").with("authorization", "Bearer y")], &[r"\+"]);
    check(by_credential, ["", " ", "Bearer", "basic ", "Basic Og=="].map(sent), &["unlimited"]);
    check(by_credential, [Sent::to("/")], &["unlimited"]);
    // The unused bits of a token's last character, and padding behind it.
    let jwt = ["eyJh.e30.c2ln", "eyJh.e30.c2ln="].map(|token| sent(&format!("Bearer {token}")));
    check(by_credential, jwt, &["eyJh.e30.c2ln"]);
    let jwt = ["eyJh.e30.c2k", "eyJh.e30.c2l", "eyJh.e30.c2k="].map(|token| sent(&format!("Bearer {token}")));
    check(by_credential, jwt, &["eyJh.e30.c2k"]);
    check(by_credential, ["Bearer ab.c.d1", "Bearer eyJd1"].map(sent), &["ab.c.d1", "eyJd1"]);
    let of_users = r#""identifier": {"authorization": true, "lowercase": true}"#;
    check(of_users, ["Basic VTpwdw==", "basic dTpwdw=="].map(sent), &["u"]);
}

/// The tokens of RFC 7515, A.3 (ES256) and A.4 (ES512), each without its signature, with the signature, and with the other one that
/// verifies: the order of the group minus its second number. Of the first one also both as DER, and with zeros before the numbers.
const SIGNED: [(&str, &[&str]); 2] = [
    (
        "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ",
        &[
            "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q",
            "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmU69fgrc8OPGycO0lD3tat_FoFp57SETepkeks4eL_QfA",
            "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmU69fgrc8OPGycO0lD3tat_FoFp57SETepkeks4eL_QfB==",
            "MEUCIA7RIVN5Y2xIPC9_FVgH1AKjsigDOvl8fheBmsMWnqZlAiEAxQoH04w8cOXY8S2vCEpUgKZlkMXyk1Cajz9_ioOjVNU",
            "MEQCIA7RIVN5Y2xIPC9_FVgH1AKjsigDOvl8fheBmsMWnqZlAiA69fgrc8OPGycO0lD3tat_FoFp57SETepkeks4eL_QfA",
            "AAAO0SFTeWNsSDwvfxVYB9QCo7IoAzr5fH4XgZrDFp6mZQAAxQoH04w8cOXY8S2vCEpUgKZlkMXyk1Cajz9_ioOjVNU",
        ],
    ),
    (
        "eyJhbGciOiJFUzUxMiJ9.UGF5bG9hZA",
        &[
            "AdwMgeerwtHoh-l192l60hp9wAHZFVJbLfD_UxMi70cwnZOYaRI1bKPWROc-mZZqwqT2SI-KGDKB34XO0aw_7XdtAG8GaSwFKdCAPZgoXD2YBJZCPEX3xKpRwcdOO8KpEHwJjyqOgzDO7iKvU8vcnwNrmxYbSW9ERBXukOXolLzeO_Jn",
            "AdwMgeerwtHoh-l192l60hp9wAHZFVJbLfD_UxMi70cwnZOYaRI1bKPWROc-mZZqwqT2SI-KGDKB34XO0aw_7XdtAZD5ltP61i9_wmfXo8Jn-2m9w7oIO1WuPjixxD1W74P2ayb4BFLwQXO8LAAkqfOeCrogbFp0RYZZHdWHImGy_HGi",
        ],
    ),
];

/// A request that carries a token.
type Carrying = fn(&str) -> Sent;

/// How a token is sent: the part of a rule, and the request.
const SENT: [(&str, Carrying); 5] = [
    (r#"{"authorization": true}"#, |token| Sent::to("/").with("authorization", format!("Bearer {token}"))),
    (r#"{"header": "x-jwt"}"#, |token| Sent::to("/").with("x-jwt", token)),
    (r#"{"cookie": "jwt"}"#, |token| Sent::to("/").with("cookie", format!("jwt={token}"))),
    (r#"{"query": "jwt"}"#, |token| Sent::to(&format!("/?jwt={token}"))),
    (r#"{"path_segment": 2}"#, |token| Sent::to(&format!("/jwt/{token}"))),
];

#[test]
fn a_token_is_one_identifier_whatever_its_signature_is_replaced_by() {
    for (part, sent) in SENT {
        let config = one_rule(&format!(r#""identifier": {part}"#));
        let mut identifiers = BTreeSet::new();
        for (signed, signatures) in SIGNED {
            let token = |signature: &str| outcome(&config, &sent(&format!("{signed}.{signature}")));
            let found: BTreeSet<String> = signatures.iter().map(|signature| token(signature)).collect();
            assert_eq!(found.len(), 1, "{part} {signed} {found:?}");
            identifiers.extend(found);
            // Signatures of nobody, and of somebody else.
            let forged = ["", "AAAA", &signatures[0][..40], &format!("B{}", &signatures[0][1..])].map(token);
            identifiers.extend(forged);
            let text = |value: &str| format!("{signed}.{value}");
            assert_eq!(outcome(&config, &sent(&text("a+b~"))), r"\+", "{part}");
        }
        let of_api = |token: String| {
            let mut out = Vec::new();
            weir_core::rules::identifier::identifier_of(&[token.as_bytes()], &mut out);
            String::from_utf8(out).unwrap()
        };
        let (signed, signatures) = SIGNED[0];
        let expected = signatures.iter().map(|one| of_api(format!("{signed}.{one}")));
        assert!(expected.into_iter().all(|one| identifiers.contains(&one)), "{part}");
        assert_eq!(identifiers.len(), 10, "{part} {identifiers:?}");
    }
}

#[test]
fn a_semicolon_in_a_query_is_ambiguous() {
    let sent = ["/?u=alice;a", "/?u=alice;b", "/?a=1;u=alice", "/?u=a;u=alice"].map(Sent::to);
    check(r#""identifier": {"query": "u"}"#, sent, &[r"\+"]);
    check(r#""identifier": {"query": "u"}"#, [Sent::to("/?v=a;b&u=alice")], &["alice"]);
}

#[test]
fn spellings_of_a_path_segment_are_one_identifier() {
    let spelt = [
        "/u/al@ce",
        "/u/al%40ce",
        "/u/al@ce%20",
        "/u/%61l%40ce",
        "/u/al@ce?v=1",
        "/u/al@ce.",
        "/u/al@ce..%20%2e?v=1",
    ];
    check(r#""identifier": {"path_segment": 2}"#, spelt.map(Sent::to), &["al@ce"]);
}

#[test]
fn the_port_of_an_authority_does_not_count() {
    let spelt = ["a.com", "A.com", "a.com:80", "a.com:8080", "a.com.", "a.com.:1", "u@a.com:2"]
        .map(|value| Sent::default().with(":authority", value));
    check(r#""identifier": {"host": true}"#, spelt, &["a.com"]);
    let addresses = ["[::1]", "[::1]:80"].map(|value| Sent::default().with(":authority", value));
    check(r#""identifier": {"host": true}"#, addresses, &["[::1]"]);
}

#[test]
fn a_host_that_upstreams_read_differently_meets_every_condition_and_is_no_identifier() {
    let sent = |value: &str| Sent(vec![(":path", b"/".to_vec()), (":authority", value.into())]);
    let hosts = ["%61pi.example.com", "api%2Eexample.com", "\u{ff41}pi.example.com", "ap\u{ad}i.example.com"];
    check(r#""identifier": {"host": true}"#, hosts.map(sent), &[r"\+"]);
    for host in ["api.example.com", "*.example.com"] {
        let rule = format!(r#""identifier": {{"constant": "met"}}, "match": {{"host": "{host}"}}"#);
        check(&rule, hosts.map(sent), &["met"]);
        check(&rule, [sent("api.example.org")], &["unlimited"]);
    }
}

/// Forms of web frameworks remove more blanks than servers do.
#[test]
fn a_blank_that_only_some_upstreams_remove_makes_a_value_ambiguous() {
    let blanks = ["%0A", "%0D%0A", "%0B", "%0C", "%1C", "%00", "%C2%A0", "%E2%80%83", "%EF%BB%BF"];
    let sent = |(rule, before, after): (&str, &str, &str)| {
        let spelt = blanks.iter().flat_map(|blank| {
            [
                format!("{before}{blank}alice{after}"),
                format!("{before}alice{blank}{after}"),
                format!("{before}{blank}{after}"),
            ]
        });
        let request = |text: String| match before.starts_with('/') {
            true => Sent::to(&text),
            false => Sent::to("/").with("cookie", text),
        };
        check(rule, spelt.map(request), &[r"\+"]);
    };
    for case in [
        (r#""identifier": {"query": "u"}"#, "/?u=", "&v=1"),
        (r#""identifier": {"cookie": "u"}"#, "u=", ";v=1"),
        (r#""identifier": {"path_segment": 2}"#, "/u/", "/x"),
    ] {
        sent(case);
    }
}

#[test]
fn a_line_feed_at_the_end_of_a_path_leaves_no_rule() {
    for path in
        [r#""segments": "/login""#, r#""exact": "/login""#, r#""regex": "/login""#, r#""prefix": "/login""#]
    {
        let rule = format!(r#""identifier": {{"constant": "met"}}, "match": {{"path": {{{path}}}}}"#);
        check(&rule, ["/login", "/login%0A", "/login%0a?x", "/%6cogin%0A"].map(Sent::to), &["met"]);
        let other = if path.contains("prefix") { "met" } else { "unlimited" };
        check(&rule, ["/login%0Ax", "/login%0D"].map(Sent::to), &[other]);
    }
}

#[test]
fn a_condition_on_get_covers_head() {
    let sent = |method: &str| Sent(vec![(":path", b"/".to_vec()), (":method", method.into())]);
    let rule = r#""identifier": {"constant": "met"}, "match": {"methods": "GET"}"#;
    check(rule, ["GET", "HEAD", "get", "head"].map(sent), &["met"]);
    check(rule, ["POST", "HEADS"].map(sent), &["unlimited"]);
    let rule = r#""identifier": {"constant": "met"}, "match": {"methods": "HEAD"}"#;
    check(rule, ["GET", "POST"].map(sent), &["unlimited"]);
}

#[test]
fn ignored_case_is_that_of_upstreams() {
    for path in [r#""segments": "/signin/key""#, r#""exact": "/signin/key""#, r#""prefix": "/signin/k""#] {
        let rule = format!(
            r#""identifier": {{"constant": "met"}}, "match": {{"path": {{{path}, "ignore_case": true}}}}"#
        );
        let spelt = [
            "/SIGNIN/KEY",
            "/%C5%BFignin/key",
            "/s%C4%B1gnin/key",
            "/s%C4%B0gnin/key",
            "/signin/%E2%84%AAey",
        ];
        check(&rule, spelt.map(Sent::to), &["met"]);
    }
}

proptest! {
    #[test]
    fn no_blanks_make_another_identifier(
        value in "[a-z|\\\\\\-+%=]{1,9}",
        before in "[ \t]{0,4}",
        after in "[ \t]{0,4}",
    ) {
        let config = one_rule(r#""identifier": [{"header": "x-user"}, {"constant": "c"}]"#);
        let plain = outcome(&config, &Sent::to("/").with("x-user", &value));
        let blank = outcome(&config, &Sent::to("/").with("x-user", format!("{before}{value}{after}")));
        prop_assert_eq!(plain, blank);
    }

    #[test]
    fn no_second_value_passes_uncounted(
        values in proptest::collection::vec("[ a\t\"%;=+]{0,4}", 2..4),
        missing in proptest::sample::select(vec!["shared", "skip", "deny"]),
    ) {
        for part in [r#"{"header": "u"}"#, r#"{"cookie": "u"}"#] {
            let config = one_rule(&format!(r#""identifier": {part}, "on_missing_identifier": "{missing}""#));
            let sent = values.iter().fold(Sent::default(), |sent, value| {
                sent.with("u", value).with("cookie", format!("u={value}"))
            });
            let expected = if missing == "deny" { "denied" } else { r"\+" };
            prop_assert_eq!(outcome(&config, &sent), expected);
        }
    }
}
