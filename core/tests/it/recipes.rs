//! The recipes at the beginning of `filter/CONFIGURATION.md`: each is a configuration, and resolves requests as its heading states.

use std::collections::BTreeMap;
use weir_core::fields::yaml::{self, Dialect};
use weir_core::rules::{Action, Config, Cost, Lines, Live, Request, Reset, Scratch, Violations};

const PAGE: &str = include_str!("../../../filter/CONFIGURATION.md");

/// A request as Envoy shows it.
#[derive(Clone, Debug, Default)]
struct Sent {
    headers: BTreeMap<Vec<u8>, Vec<u8>>,
    properties: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Sent {
    fn of(headers: &[(&str, &str)]) -> Sent {
        let bytes = |(name, value): &(&str, &str)| (name.as_bytes().to_vec(), value.as_bytes().to_vec());
        let headers = headers.iter().map(bytes).collect();
        Sent { headers, ..Sent::default() }.with("source\0address", "198.51.100.7:4000")
    }

    /// With a property that Envoy or another filter has.
    fn with(mut self, path: &str, value: &str) -> Sent {
        self.properties.insert(path.as_bytes().to_vec(), value.as_bytes().to_vec());
        self
    }
}

impl Request for Sent {
    fn header(&self, name: &[u8]) -> Lines<'_> {
        self.headers.get(name).map_or(Lines::None, |value| Lines::One(value))
    }

    fn for_each_header(&self, name: &[u8], line: &mut dyn FnMut(&[u8])) {
        self.headers.get(name).into_iter().for_each(|value| line(value));
    }

    fn property(&self, path: &[u8], out: &mut Vec<u8>) -> bool {
        let value = self.properties.get(path);
        out.extend(value.into_iter().flatten());
        value.is_some()
    }
}

/// A request, and what each rule that matches it makes of it: the identifier, and what is charged.
type Case = (Sent, Vec<(&'static str, Action)>);

/// The configurations of the recipes by their headings.
fn recipes() -> BTreeMap<&'static str, Config> {
    let part = PAGE.split("\n## Recipes\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let recipe = |text: &'static str| {
        let (heading, rest) = text.split_once('\n').unwrap();
        let yaml = rest.split("```yaml\n").nth(1).unwrap().split("\n```").next().unwrap();
        let documents = yaml::documents(yaml.as_bytes(), Dialect::Envoy).unwrap();
        let mut config = documents[0].value.to_json();
        config["aggregator"] = serde_json::json!({ "cluster": "weir_aggregator" });
        let parsed = Config::parse(config.to_string().as_bytes());
        (heading, parsed.unwrap_or_else(|errors| panic!("{heading}: {errors}")))
    };
    part.split("\n### ").skip(1).map(recipe).collect()
}

fn limit(limit: u64, cost: u64) -> Action {
    Action::Limit { limit, configured: None, cost, epoch: 0 }
}

fn key(key: &str) -> Sent {
    Sent::of(&[(":method", "GET"), (":path", "/v1/orders"), ("x-api-key", key)])
}

fn login(path: &str, user: &str) -> Sent {
    Sent::of(&[(":method", "POST"), (":path", path), ("x-login-user", user)])
}

/// What an authorisation wrote.
fn authorised(customer: &str, limit: &str) -> Sent {
    let place = |key: &str| format!("metadata\0filter_metadata\0envoy.filters.http.ext_authz\0{key}");
    key("").with(&place("customer"), customer).with(&place("limit"), limit)
}

/// Where a claim of a token stands.
fn claim(name: &str) -> String {
    format!("metadata\0filter_metadata\0envoy.filters.http.jwt_authn\0jwt_payload\0{name}")
}

/// A token of this customer and plan.
fn claims(customer: &str, plan: &str) -> Sent {
    key("").with(&claim("sub"), customer).with(&claim("plan"), plan)
}

/// A call of a language model, and what it reserves.
fn prompt() -> Case {
    let sent = Sent::of(&[(":method", "POST"), (":path", "/v1/chat/completions"), ("content-length", "400")]);
    let reserved =
        vec![("alice", limit(200_000, 100 + 1_024)), ("acme", limit(50_000_000, 100 * 10 + 1_024 * 30))];
    (sent.with(&claim("sub"), "alice").with(&claim("org"), "acme"), reserved)
}

fn cases() -> Vec<(&'static str, Vec<Case>)> {
    let forwarded = Sent::of(&[(":path", "/"), ("x-forwarded-for", "9.9.9.9, 198.51.100.1")]);
    let tokens = Sent::of(&[(":path", "/v1/chat"), ("authorization", "Bearer team_1")]);
    vec![
        ("A limit for each API key", vec![(key("a"), vec![("a", limit(1_000, 1))])]),
        (
            "A limit for each plan",
            vec![
                (claims("acme", "free"), vec![("acme", limit(60, 1))]),
                (claims("acme", "pro"), vec![("acme", limit(600, 1))]),
                (claims("acme", "enterprise-eu"), vec![("acme", limit(10_000, 1))]),
                (claims("acme", "other"), vec![("acme", limit(60, 1))]),
            ],
        ),
        (
            "A limit for each plan that keys show",
            vec![
                (key("free"), vec![("free", limit(60, 1))]),
                (key("pro_1"), vec![("pro_1", limit(600, 1))]),
                (key("pro_acme"), vec![("pro_acme", limit(3_000, 1))]),
            ],
        ),
        (
            "A limit that an authorisation states",
            vec![
                (authorised("acme", "500"), vec![("acme", limit(500, 1))]),
                (authorised("acme", "20000"), vec![("acme", limit(10_000, 1))]),
                (authorised("acme", ""), vec![("acme", limit(60, 1))]),
            ],
        ),
        ("A limit for each client address", vec![(forwarded, vec![("198.51.100.1", limit(600, 1))])]),
        (
            "Who may be exempt",
            vec![
                (key("a"), vec![("a", limit(60, 1))]),
                (key("internal_ci"), vec![("internal_ci", Action::Exempt)]),
                (key("a").with("source\0address", "10.1.2.3:4000"), vec![("a", Action::Exempt)]),
            ],
        ),
        (
            "Who is exempt from all rules",
            vec![
                (key("a"), vec![("a", limit(60, 1)), ("198.51.100.7", limit(600, 1))]),
                (
                    key("a").with(&claim("role"), "staff"),
                    vec![("a", Action::Exempt), ("198.51.100.7", Action::Exempt)],
                ),
            ],
        ),
        ("Headers that a client library reads", vec![(key("a"), vec![("a", limit(60, 1))])]),
        ("A limit that costs tokens", vec![(tokens, vec![("team_1", limit(100_000, 500))])]),
        (
            "Logins, with a ban",
            vec![
                (login("/login", "Alice"), vec![("alice", limit(5, 1))]),
                (login("/Login/", "alice"), vec![("alice", limit(5, 1))]),
                (login("/logout", "alice"), vec![]),
                (login("/login", ""), vec![(r"\-", Action::DenyMissing)]),
            ],
        ),
        ("Tokens and money of language models", vec![prompt()]),
        (
            "Wrong passwords alone",
            vec![
                (login("/Login", "Alice"), vec![("alice", limit(5, 1))]),
                (login("/logout", "alice"), vec![]),
            ],
        ),
        ("Never more than the limit", vec![(key("a"), vec![("a", limit(100, 1))])]),
        ("A new limit, first without effect", vec![(key("a"), vec![("a", limit(30, 1))])]),
    ]
}

#[test]
fn recipes_resolve_requests_as_they_state() {
    let recipes = recipes();
    let cases = cases();
    let run: Vec<&str> = cases.iter().map(|(heading, _)| *heading).collect();
    assert!(
        recipes.keys().all(|heading| run.contains(heading)),
        "a recipe that no test runs: {:?}",
        recipes.keys()
    );
    for (heading, cases) in cases {
        let config = &recipes[heading];
        for (request, expected) in cases {
            let mut scratch = Scratch::default();
            let matches = config.resolve(&request, &Live::default(), &mut scratch);
            let found: Vec<(String, Action)> = matches
                .map(|one| (String::from_utf8_lossy(one.identifier).into_owned(), one.action))
                .collect();
            let expected: Vec<(String, Action)> =
                expected.into_iter().map(|(identifier, action)| (identifier.to_owned(), action)).collect();
            assert_eq!(found, expected, "{heading}: {request:?}");
        }
    }
    let rule = |heading: &str| &recipes[heading].rules[0];
    assert!(rule("Never more than the limit").hard_limit);
    assert!(rule("A new limit, first without effect").shadow);
    let responses = &recipes["Headers that a client library reads"].responses;
    assert_eq!(responses.reset, Reset::UnixSeconds);
    assert_eq!(responses.names[2].as_deref(), Some("x-rate-limit-reset"));
    let by_response = rule("Wrong passwords alone");
    assert!(matches!(by_response.cost, Cost::When(_)), "{:?}", by_response.cost);
    assert_eq!(by_response.ban.map(|ban| ban.count), Some(Violations::Charged));
    assert_eq!(rule("Logins, with a ban").ban.as_ref().map(|ban| ban.threshold), Some(20));
}
