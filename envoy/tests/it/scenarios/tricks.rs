//! Evasion by clients: many spellings of one identifier or path as the upstream reads it, over HTTP/1.1 and HTTP/2. All
//! spellings together share one limit.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};
use weir_core::rules::Config;
use weir_envoy::http::{Protocol, Request};
use weir_envoy::{
    Aggregator, AggregatorOptions, EchoUpstream, EnvoyOptions, Redis, RedisOptions, Route, wait,
};

use super::common::{KEY, Region, SOON, config, get_as, rule, with};

const LIMIT: u64 = 2;

/// Spellings that meet one rule.
struct Spelling {
    name: &'static str,
    /// The fields of the rule besides its name, limit and window.
    rule: Value,
    spelt: Vec<Request>,
    /// The header, as name and value, that the upstream receives for each spelling that passes.
    seen: Option<(&'static str, &'static str)>,
}

/// Spellings of headers and cookies.
fn spellings_of_headers() -> Vec<Spelling> {
    let header = |value: &str| Request::get("/").header("x-user", value);
    let cookie = |value: &str| Request::get("/").header("cookie", value);
    let blanks = ["alice", " alice", "  alice", "\talice", "alice ", " alice\t"];
    vec![
        Spelling {
            name: "header",
            rule: json!({ "identifier": { "header": "x-user" } }),
            spelt: blanks.map(header).into(),
            seen: Some(("x-user", "alice")),
        },
        Spelling {
            name: "condition",
            rule: json!({ "identifier": { "constant": "met" }, "match": { "headers": [{ "name": "x-user", "exact": "alice" }] } }),
            spelt: blanks.map(header).into(),
            seen: Some(("x-user", "alice")),
        },
        Spelling {
            name: "lines",
            rule: json!({ "identifier": { "header": "x-user" }, "on_missing_identifier": "skip" }),
            spelt: ["a", "b", "c"].map(|value| header(value).header("x-user", "alice")).into(),
            seen: None,
        },
        Spelling {
            name: "cookies",
            rule: json!({ "identifier": { "cookie": "u" }, "on_missing_identifier": "skip" }),
            spelt: ["a", "b", "c"].map(|value| cookie(&format!("u={value}; u=alice"))).into(),
            seen: None,
        },
        Spelling {
            name: "cookie-lines",
            rule: json!({ "identifier": { "cookie": "u" }, "on_missing_identifier": "skip" }),
            spelt: ["a", "b", "c"]
                .map(|value| cookie(&format!("u={value}")).header("cookie", "u=alice"))
                .into(),
            seen: None,
        },
        Spelling {
            name: "last-cookie",
            rule: json!({ "identifier": { "cookie": "u", "pick": "last" } }),
            spelt: ["u=a; u=alice", "u=b; u=%61lice", "u=\"alice\"", r#"u="\141lice""#].map(cookie).into(),
            seen: None,
        },
    ]
}

/// Spellings of targets, credentials and hosts.
fn spellings_of_targets() -> Vec<Spelling> {
    let met = json!({ "constant": "met" });
    vec![
        Spelling {
            name: "query",
            rule: json!({ "identifier": { "query": "u" }, "on_missing_identifier": "skip" }),
            spelt: ["/?u=a&u=alice", "/?u=b&u=alice", "/?u=c;u=alice"].map(Request::get).into(),
            seen: None,
        },
        Spelling {
            name: "path",
            rule: json!({
                "identifier": met,
                "match": { "path": { "segments": "/login", "ignore_case": true } },
            }),
            spelt: ["/login", "/login;a=b", "/login/", "/Login", "/login%20", "/login.", "/x/..;/login"]
                .map(Request::get)
                .into(),
            seen: None,
        },
        // Envoy's default leaves all of these as they are.
        Spelling {
            name: "readings",
            rule: json!({ "identifier": met, "match": { "path": { "prefix": "/v1/" } } }),
            spelt: [
                "/v1/search/abc",
                "/v1/search/%2e%2e;/%2e%2e;/%2e%2e;/abc",
                r"/v1/search/\..;/\..;/\..;/abc",
                "/v1/search/../../abc",
                "/x/..%2fv1/abc",
                "//x/v1/abc",
            ]
            .map(Request::get)
            .into(),
            seen: None,
        },
        Spelling {
            name: "segment",
            rule: json!({ "identifier": { "path_segment": 2 }, "on_missing_identifier": "skip" }),
            spelt: ["/t/alice/%2e%2e;/bob/x", "/t/carol/../bob/x", "/t/dave%2fbob/x"]
                .map(Request::get)
                .into(),
            seen: None,
        },
        Spelling {
            name: "credential",
            rule: json!({ "identifier": { "authorization": true } }),
            spelt: ["Bearer x", "bearer x", "Bearer  x", "x"]
                .map(|value| Request::get("/").header("authorization", value))
                .into(),
            seen: None,
        },
        Spelling {
            name: "authority",
            rule: json!({ "identifier": { "host": true } }),
            spelt: ["example.com", "Example.com", "example.com:80", "example.com:8080"]
                .map(|host| Request::get("/").header("host", host))
                .into(),
            seen: None,
        },
    ]
}

/// Runs each spelling with a configuration of its own, because its rule may match requests of other spellings.
async fn check(protocol: Protocol) {
    let mut wrong = Vec::new();
    for Spelling { name, rule: fields, spelt, seen } in
        spellings_of_headers().into_iter().chain(spellings_of_targets())
    {
        let upstream = EchoUpstream::start(0).await.unwrap();
        let options = EnvoyOptions { route: Route::Upstream(upstream.port()), ..EnvoyOptions::default() };
        let region = Region::start(1, options, &config(&[with(rule(name, LIMIT), fields)])).await;
        let (mut passed, mut found) = (0, BTreeSet::new());
        // All spellings come once before any repeats, so that each could get its own budget.
        let requests = spelt.iter().chain(&spelt).chain(&spelt);
        for request in requests {
            let answer = region.envoy().send_by(protocol, request.clone()).await.unwrap();
            match answer.status {
                200 => {
                    passed += 1;
                    if let Some((header, _)) = seen {
                        let value = answer.json().unwrap()["headers"][header].clone();
                        found.insert(value.as_str().unwrap().to_owned());
                    }
                }
                status => assert_eq!(status, 429, "{name}: {request:?}: {answer:?}"),
            }
        }
        println!("{protocol:?} {name}: {} spellings, {passed} pass, seen {found:?}", spelt.len());
        let expected: BTreeSet<String> = seen.iter().map(|(_, value)| (*value).to_owned()).collect();
        if passed != LIMIT || found != expected {
            wrong.push(format!("{name}: {passed} passed, the upstream saw {found:?}"));
        }
        region.is_sound().await;
    }
    assert!(wrong.is_empty(), "over {protocol:?}, with a limit of {LIMIT}: {wrong:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spellings_of_one_client_share_a_limit_over_http1() {
    check(Protocol::Http1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spellings_of_one_client_share_a_limit_over_http2() {
    check(Protocol::Http2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_identifier_is_nowhere_behind_the_filter() {
    const SECRET: &str = "sk-correct-horse-battery";
    let config = with(
        config(&[with(rule("r", LIMIT), json!({ "hash": true }))]),
        json!({ "hash_key": "a-key-for-this-test" }),
    );
    let mut digest = Vec::new();
    let parsed = Config::parse(config.to_string().as_bytes()).unwrap();
    parsed.hash_key.unwrap().write(SECRET.as_bytes(), &mut digest);
    let digest = String::from_utf8(digest).unwrap();
    let mut region = Region::start(1, EnvoyOptions::default(), &config).await;
    for (protocol, expected) in [(Protocol::Http1, 200), (Protocol::Http2, 200), (Protocol::Http1, 429)] {
        let answer = region.envoy().send_by(protocol, get_as(SECRET)).await.unwrap();
        assert_eq!(answer.status, expected, "{answer:?}");
    }
    region.settles_at("r", &digest, LIMIT).await;
    assert_eq!(region.total("r", SECRET).await, 0);
    for path in ["/v1/top", "/v1/keys?namespace=r", "/metrics"] {
        let text = region.aggregator.admin_get(path).await.unwrap().text();
        assert!(!text.contains(SECRET), "{path}: {text}");
    }
    let log = region.aggregator.process().log().to_owned();
    assert!(!std::fs::read_to_string(log).unwrap().contains(SECRET), "the aggregator's log");
    assert!(!region.envoy().log().unwrap().contains(SECRET), "Envoy's log");
    region.is_sound().await;
}

/// The contents of all files of a folder.
fn bytes_in(folder: &Path) -> Vec<u8> {
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    files.filter(|path| path.is_file()).flat_map(|path| std::fs::read(path).unwrap()).collect()
}

fn holds(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

/// Windows, exact logs and bans of a secret identifier are stored in Redis and in the database, and in neither by its name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_identifier_is_in_no_store() {
    const SECRET: &str = "sk-correct-horse-battery";
    let ban = json!({ "threshold": 2, "window": "1h", "duration": "1h" });
    let of = |name: &str, more: Value| with(with(rule(name, 1), json!({ "hash": true })), more);
    let log = json!({ "algorithm": "sliding_log", "match": { "path": { "prefix": "/log" } } });
    let window = json!({ "ban": ban, "match": { "path": { "prefix": "/window" } } });
    let config =
        with(config(&[of("log", log), of("window", window)]), json!({ "hash_key": "a-key-for-this-test" }));
    let mut digest = Vec::new();
    Config::parse(config.to_string().as_bytes())
        .unwrap()
        .hash_key
        .unwrap()
        .write(SECRET.as_bytes(), &mut digest);
    let digest = String::from_utf8(digest).unwrap();

    let (redis, database) =
        (Redis::start(RedisOptions::default()).await.unwrap(), tempfile::tempdir().unwrap());
    let url = format!("sqlite://{}", database.path().join("weir.db").display());
    let arguments = ["--redis-url", &redis.url(), "--database-url", &url, "--migrate"];
    let arguments = arguments.map(str::to_owned).into();
    let aggregator =
        Aggregator::start(AggregatorOptions { arguments, ..AggregatorOptions::default() }).await.unwrap();
    let mut region = Region { envoys: Vec::new(), aggregator };
    region.add(EnvoyOptions::default(), &config).await;
    let send =
        async |path: &str| region.envoy().send(Request::get(path).header(KEY, SECRET)).await.unwrap().status;
    assert_eq!((send("/log").await, send("/log").await), (200, 429));
    let expected = [200, 429, 429, 429];
    for (at, expected) in expected.into_iter().enumerate() {
        assert_eq!(send("/window").await, expected, "request {at}");
    }
    let banned = async || {
        let shown = region.aggregator.admin_get("/v1/overrides").await.unwrap().text();
        assert!(!shown.contains(SECRET), "{shown}");
        shown.contains(&digest)
    };
    wait::until("the ban is stored", SOON, banned).await.unwrap();
    // Names in Redis escape the colon of its prefix.
    let plain = digest.strip_prefix("hmac:").unwrap();
    let stored = async || {
        for command in ["CONFIG SET rdbcompression no", "SAVE"] {
            assert!(redis.command(command).await.unwrap().starts_with("+OK"), "{command}");
        }
        let (in_redis, in_database) = (bytes_in(redis.folder()), bytes_in(database.path()));
        assert!(!holds(&in_redis, SECRET) && !holds(&in_database, SECRET));
        holds(&in_redis, plain) && holds(&in_database, plain)
    };
    wait::until("both stores have the digest", SOON, stored).await.unwrap();
    region.is_sound().await;
}
