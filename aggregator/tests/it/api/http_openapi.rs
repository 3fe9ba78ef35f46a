//! Compares the API's OpenAPI description with its behaviour: every path, method, status, field and bound in the
//! description, and every route that the API names.

use crate::support::database::ledger::ledger_charge;
use crate::support::http::{Answer, Client, JSON, token, write};
use crate::support::schema::Document;
use crate::support::server::{Weir, settings, start_with};
use serde_json::{Value, json};
use sqlx::Connection;
use std::collections::BTreeSet;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use weir_aggregator::api::ApiSettings;
use weir_aggregator::database::{Database, DatabaseOptions, ZoneChange};
use weir_aggregator::server::Settings;

type Header<'a> = (&'a str, &'a str);

const SOON: Duration = Duration::from_secs(5);

async fn document(weir: &Weir) -> Document {
    let answer = Client::connect(weir).await.send("GET", "/openapi.json", &[], b"").await;
    Document(answer.body)
}

/// A server with tokens and a ledger that has `attempts` in zone 1.
async fn start_ledger(attempts: usize) -> (Weir, String, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let (bearer, entry) = token("tester", "default", "[1]");
    let entry = format!("{entry}  control: true\n");
    let api = ApiSettings {
        tokens_file: Some(write(folder.path(), "tokens.yaml", &entry)),
        ..ApiSettings::default()
    };
    let url = format!("sqlite://{}/weir.db", folder.path().display());
    let database = DatabaseOptions { url, read_url: None, region: "test-region".into() };
    let weir =
        start_with(Settings { api, database: Some(database.clone()), migrate: true, ..settings() }).await;
    let ledger = Database::open(&database).unwrap();
    for zone in [1, 2] {
        let change = ZoneChange::new(zone, 2, Duration::from_secs(60), None).unwrap();
        ledger.set_zone(&change, SOON).await.unwrap();
        for _ in 0..attempts {
            ledger.check_velocity(&ledger_charge(zone, b"a|b", 1), SOON).await.unwrap().unwrap();
        }
    }
    (weir, format!("Bearer {bearer}"), folder)
}

#[tokio::test]
async fn every_status_of_every_path_is_seen_and_looks_as_described() {
    let (weir, bearer, folder) = start_ledger(3).await;
    let unavailable =
        DatabaseOptions { url: "mysql://none@127.0.0.1:1/none".into(), read_url: None, region: "r".into() };
    let no_database = start_with(Settings { database: Some(unavailable), ..settings() }).await;
    let document = document(&weir).await;
    let mut seen = BTreeSet::new();
    let mut see = |path: &str, method: &str, answer: &Answer| {
        document.check_answer(path, method, answer);
        seen.insert((path.to_owned(), method.to_owned(), answer.status));
    };
    let mut client = Client::connect(&weir).await;
    let bearer = ("authorization", bearer.as_str());
    let check = json!({"identifier": "a", "limit": 1, "duration": "1h"});
    let elsewhere = json!({"identifier": "a", "limit": 1, "duration": "1h", "workspace": "elsewhere"});
    for (path, sound, forbidden) in [
        ("/v1/check", check.clone(), elsewhere),
        (
            "/v1/check/batch",
            json!({"checks": [check]}),
            json!({"checks": [{"identifier": "a", "algorithm": "ledger", "zone": 2}]}),
        ),
    ] {
        let (sound, forbidden) = (sound.to_string(), forbidden.to_string());
        let long = vec![b' '; 256 * 1024 + 1];
        let cases: [(&[Header], &[u8], u16); 7] = [
            (&[JSON, bearer], sound.as_bytes(), 200),
            (&[JSON, bearer], sound.as_bytes(), 200),
            (&[JSON, bearer], b"{}", 400),
            (&[JSON], sound.as_bytes(), 401),
            (&[JSON, bearer], forbidden.as_bytes(), 403),
            (&[JSON, bearer], &long, 413),
            (&[bearer], sound.as_bytes(), 415),
        ];
        for (headers, body, status) in cases {
            let answer = client.send("POST", path, headers, body).await;
            assert_eq!(answer.status, status, "{path} {answer:?}");
            see(path, "post", &answer);
        }
        see(path, "post", &too_slow(&weir, "POST", path, bearer.1).await);
    }
    for (path, answer) in ledger(&mut client, bearer).await {
        see(path, "get", &answer);
    }
    for (path, answer) in reservations(&weir, bearer).await {
        see(path, "post", &answer);
    }
    let mut alone = Client::connect(&no_database).await;
    for (path, target) in [("/v1/ledger", "/v1/ledger?zone=1&bucket=a"), ("/v1/ledger/{id}", "/v1/ledger/1")]
    {
        let answer = alone.send("GET", target, &[], b"").await;
        assert_eq!(answer.status, 503, "{target} {answer:?}");
        see(path, "get", &answer);
    }
    let without = start_with(settings()).await;
    let answer = Client::connect(&without).await.send("GET", "/v1/ledger?zone=1&bucket=a", &[], b"").await;
    assert_eq!(answer.body["error"]["code"], "no_ledger");
    see("/v1/ledger", "get", &answer);
    for (path, method, answer) in overrides(&weir, &no_database, &without, bearer, &folder).await {
        see(path, method, &answer);
    }
    see("/v1/overrides", "put", &too_slow(&weir, "PUT", "/v1/overrides", bearer.1).await);
    assert_eq!(seen, document.statuses());
}

/// Every status of the ledger's history with a database: path and answer.
async fn ledger(client: &mut Client, bearer: Header<'_>) -> Vec<(&'static str, Answer)> {
    let mut answers = Vec::new();
    for (path, target, headers, status) in [
        ("/v1/ledger", "/v1/ledger?zone=1&bucket=a%7Cb", vec![bearer], 200),
        ("/v1/ledger", "/v1/ledger?zone=1&identifier=a&identifier=b&limit=2", vec![bearer], 200),
        ("/v1/ledger", "/v1/ledger?zone=1", vec![bearer], 400),
        ("/v1/ledger", "/v1/ledger?zone=1&bucket=a", vec![], 401),
        ("/v1/ledger", "/v1/ledger?zone=2&bucket=a", vec![bearer], 403),
        ("/v1/ledger/{id}", "/v1/ledger/1", vec![bearer], 200),
        ("/v1/ledger/{id}", "/v1/ledger/x", vec![bearer], 400),
        ("/v1/ledger/{id}", "/v1/ledger/1", vec![], 401),
        ("/v1/ledger/{id}", "/v1/ledger/999999", vec![bearer], 404),
        // In a zone that this token may not use.
        ("/v1/ledger/{id}", "/v1/ledger/4", vec![bearer], 404),
        ("/openapi.json", "/openapi.json", vec![], 200),
    ] {
        let answer = client.send("GET", target, &headers, b"").await;
        assert_eq!(answer.status, status, "{target} {answer:?}");
        answers.push((path, answer));
    }
    answers
}

/// Every status of reservations: path and answer.
async fn reservations(weir: &Weir, bearer: Header<'_>) -> Vec<(&'static str, Answer)> {
    const RESERVE: &str = "/v1/reserve";
    const SETTLE: &str = "/v1/settle";
    let mut answers = Vec::new();
    let mut client = Client::connect(weir).await;
    let check = |cost: u64| json!({"namespace": "api", "identifier": "r", "limit": 10, "duration": "1h", "cost": cost});
    let one = |id: &str, cost: u64| {
        let mut request = check(cost);
        request["id"] = id.into();
        request
    };
    let mut short = one("short", 1);
    short["lifetime"] = "1s".into();
    let several = json!({"id": "several", "checks": [check(1), check(2)]});
    let mut elsewhere = one("elsewhere", 1);
    elsewhere["workspace"] = "elsewhere".into();
    let there = json!({"id": "one", "cost": 1, "workspace": "elsewhere"});
    let settled = |id: &str, cost: u64| json!({"id": id, "cost": cost});
    let long = json!("x".repeat(64 * 1024));
    for (path, body, headers, status) in [
        (RESERVE, one("one", 5), vec![JSON, bearer], 200),
        (RESERVE, one("denied", 6), vec![JSON, bearer], 200),
        (RESERVE, several, vec![JSON, bearer], 200),
        (RESERVE, short.clone(), vec![JSON, bearer], 200),
        (RESERVE, one("one", 4), vec![JSON, bearer], 409),
        (RESERVE, json!({}), vec![JSON, bearer], 400),
        (RESERVE, one("two", 1), vec![JSON], 401),
        (RESERVE, elsewhere, vec![JSON, bearer], 403),
        (RESERVE, long.clone(), vec![JSON, bearer], 413),
        (RESERVE, one("two", 1), vec![bearer], 415),
        (SETTLE, settled("one", 5), vec![JSON, bearer], 200),
        (SETTLE, json!({"id": "several", "costs": [1, 1]}), vec![JSON, bearer], 200),
        (SETTLE, settled("one", 6), vec![JSON, bearer], 409),
        (SETTLE, settled("never", 6), vec![JSON, bearer], 404),
        (SETTLE, settled("several", 6), vec![JSON, bearer], 400),
        (SETTLE, settled("one", 5), vec![JSON], 401),
        (SETTLE, there, vec![JSON, bearer], 403),
        (SETTLE, long, vec![JSON, bearer], 413),
        (SETTLE, settled("one", 5), vec![bearer], 415),
    ] {
        let answer = client.send("POST", path, &headers, body.to_string().as_bytes()).await;
        assert_eq!(answer.status, status, "{path} {body}: {answer:?}");
        answers.push((path, answer));
    }
    super::reservations::fill(weir).await;
    for (path, body, status) in
        [(RESERVE, one("full", 1), 503), (RESERVE, short, 410), (SETTLE, settled("short", 1), 410)]
    {
        let began = std::time::Instant::now();
        let answer = loop {
            let answer = client.send("POST", path, &[JSON, bearer], body.to_string().as_bytes()).await;
            // Until it has expired, the answer is repeated.
            if answer.status == status || began.elapsed() > SOON {
                break answer;
            }
        };
        assert_eq!(answer.status, status, "{path} {body}: {answer:?}");
        answers.push((path, answer));
    }
    for path in [RESERVE, SETTLE] {
        answers.push((path, too_slow(weir, "POST", path, bearer.1).await));
    }
    answers
}

/// Every status of live control: path, method and answer.
async fn overrides(
    weir: &Weir,
    unavailable: &Weir,
    without: &Weir,
    bearer: Header<'_>,
    folder: &TempDir,
) -> Vec<(&'static str, &'static str, Answer)> {
    const PATH: &str = "/v1/overrides";
    const AUDIT: &str = "/v1/overrides/audit";
    let mut seen = Vec::new();
    let mut client = Client::connect(weir).await;
    let sound = json!({"namespace": "n", "identifier": "a", "limit": 1, "window": "1m", "expires_in": "1h"})
        .to_string();
    let switch = json!({"rule": "r", "shadow": true}).to_string();
    let elsewhere =
        json!({"namespace": "n", "identifier": "a", "limit": 1, "workspace": "elsewhere"}).to_string();
    let other = sound.replace("\"limit\":1", "\"limit\":2");
    let long = vec![b' '; 16 * 1024 + 1];
    let puts: [(&[Header], &[u8], u16); 8] = [
        (&[JSON, bearer], sound.as_bytes(), 200),
        (&[JSON, bearer], other.as_bytes(), 200),
        (&[JSON, bearer], switch.as_bytes(), 200),
        (&[JSON, bearer], b"{}", 400),
        (&[JSON], sound.as_bytes(), 401),
        (&[JSON, bearer], elsewhere.as_bytes(), 403),
        (&[JSON, bearer], &long, 413),
        (&[bearer], sound.as_bytes(), 415),
    ];
    for (headers, body, status) in puts {
        let answer = client.send("PUT", PATH, headers, body).await;
        assert_eq!(answer.status, status, "{answer:?}");
        seen.push((PATH, "put", answer));
    }
    for (path, method, query, headers, status) in [
        (PATH, "delete", "rule=r&reason=over", vec![bearer], 200),
        (PATH, "delete", "rule=never-set", vec![bearer], 404),
        (PATH, "delete", "rule=r&x=1", vec![bearer], 400),
        (PATH, "delete", "rule=r", vec![], 401),
        (PATH, "delete", "rule=r&workspace=elsewhere", vec![bearer], 403),
        (PATH, "get", "limit=1", vec![bearer], 200),
        (PATH, "get", "limit=0", vec![bearer], 400),
        (PATH, "get", "", vec![], 401),
        (PATH, "get", "workspace=elsewhere", vec![bearer], 403),
        (AUDIT, "get", "limit=1", vec![bearer], 200),
        (AUDIT, "get", "rule=r", vec![bearer], 200),
        (AUDIT, "get", "limit=0", vec![bearer], 400),
        (AUDIT, "get", "", vec![], 401),
        (AUDIT, "get", "workspace=elsewhere", vec![bearer], 403),
    ] {
        let answer = client.send(&method.to_uppercase(), &format!("{path}?{query}"), &headers, b"").await;
        assert_eq!(answer.status, status, "{method} {path}?{query} {answer:?}");
        seen.push((path, method, answer));
    }
    for (weir, status) in [(unavailable, 503), (without, 501)] {
        let mut client = Client::connect(weir).await;
        for (path, method, query, body) in [
            (PATH, "get", "", ""),
            (PATH, "put", "", &*switch),
            (PATH, "delete", "?rule=r", ""),
            (AUDIT, "get", "", ""),
        ] {
            let path_and_query = format!("{path}{query}");
            let answer = client.send(&method.to_uppercase(), &path_and_query, &[JSON], body.as_bytes()).await;
            assert_eq!(answer.status, status, "{method} {path} {answer:?}");
            seen.push((path, method, answer));
        }
    }
    fill(&folder.path().join("weir.db")).await;
    let answer = client.send("PUT", PATH, &[JSON, bearer], switch.as_bytes()).await;
    assert_eq!(answer.status, 507, "{answer:?}");
    seen.push((PATH, "put", answer));
    seen
}

/// Stores the maximum number of controls.
async fn fill(file: &std::path::Path) {
    let url = format!("sqlite://{}", file.display());
    let mut connection = sqlx::SqliteConnection::connect(&url).await.unwrap();
    let fill = "WITH RECURSIVE place (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM place WHERE i < 10000)
        INSERT INTO weir_controls SELECT x'77', x'6e', CAST(i AS BLOB), x'', 0, 1, 3, 0, 0, x'', x'', 0, 0, i, 1, 1, 0 FROM place";
    sqlx::raw_sql(fill).execute(&mut connection).await.unwrap();
}

/// A body that does not arrive.
async fn too_slow(weir: &Weir, method: &str, path: &str, bearer: &str) -> Answer {
    let mut slow = TcpStream::connect(weir.server.http_address().unwrap()).await.unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nauthorization: {bearer}\r\n\
         content-length: 9\r\n\r\n{{"
    );
    slow.write_all(head.as_bytes()).await.unwrap();
    let mut response = String::new();
    tokio::time::timeout(Duration::from_secs(15), slow.read_to_string(&mut response)).await.unwrap().unwrap();
    assert!(
        response.starts_with("HTTP/1.1 408 ") && response.contains("content-type: application/json"),
        "{response}"
    );
    let (_, body) = response.split_once("\r\n\r\n").unwrap();
    Answer {
        status: 408,
        headers: [(hyper::header::CONTENT_TYPE, "application/json".parse().unwrap())].into_iter().collect(),
        body: serde_json::from_str(body).unwrap(),
    }
}

#[tokio::test]
async fn the_ledger_returns_what_it_recorded() {
    let (weir, bearer, _folder) = start_ledger(3).await;
    let mut client = Client::connect(&weir).await;
    let headers = [("authorization", bearer.as_str())];
    let page = client.send("GET", "/v1/ledger?zone=1&bucket=a%7Cb&limit=2", &headers, b"").await.body;
    let outcomes: Vec<&Value> =
        page["transactions"].as_array().unwrap().iter().map(|of| &of["outcome"]).collect();
    assert_eq!(outcomes, ["blocked", "allowed"], "the newest first: {page}");
    let rest = format!("/v1/ledger?zone=1&bucket=a%7Cb&limit=2&before={}", page["next"]);
    let rest = client.send("GET", &rest, &headers, b"").await.body;
    assert_eq!((rest["transactions"].as_array().unwrap().len(), rest.get("next")), (1, None), "{rest}");
    let id = &rest["transactions"][0]["id"];
    let one = client.send("GET", &format!("/v1/ledger/{id}"), &headers, b"").await.body;
    assert_eq!(one, rest["transactions"][0]);
    assert_eq!((&one["bucket"], &one["cost"], &one["zone"]), (&json!("a|b"), &json!(1), &json!(1)));
}

#[tokio::test]
async fn every_route_is_described() {
    let weir = start_with(settings()).await;
    let document = document(&weir).await;
    let lost = Client::connect(&weir).await.send("GET", "/", &[], b"").await.body;
    let lost = lost["error"]["message"].as_str().unwrap();
    let named: BTreeSet<(String, String)> = lost
        .split_once("there are ")
        .unwrap()
        .1
        .replace(" and ", ", ")
        .split(", ")
        .map(|route| route.split_once(' ').unwrap())
        .map(|(method, path)| (path.to_owned(), method.to_lowercase()))
        .collect();
    let described = document.statuses().into_iter().map(|(path, method, _)| (path, method)).collect();
    assert_eq!(named, described);
}

#[tokio::test]
async fn every_field_and_bound_of_a_request_is_the_api() {
    let weir = start_with(settings()).await;
    let document = document(&weir).await;
    let mut client = Client::connect(&weir).await;
    let window = json!({"identifier": "a", "limit": 5, "duration": "1h"});
    let ledger = json!({"identifier": "a", "algorithm": "ledger", "zone": 1, "timeout": 1});
    let mut tried = 0;
    for name in document.fields("LimitRequest") {
        let base = if name == "zone" { &ledger } else { &window };
        for (value, fits) in document.probes("LimitRequest", &name) {
            let mut request = base.clone();
            request[&name] = value;
            let listed = match name.as_str() {
                "workspace" | "on_failure" | "timeout" => {
                    json!({"checks": [base.clone()], &name: request[&name]})
                }
                _ => json!({"checks": [request.clone()]}),
            };
            let listed = strip_call_fields(listed);
            // A ledger has other fields.
            let algorithm = name == "algorithm" && request["algorithm"] == "ledger";
            for (path, schema, body) in
                [("/v1/check", "LimitRequest", &request), ("/v1/check/batch", "LimitsRequest", &listed)]
            {
                let answer = client.post(path, body).await;
                assert_eq!(document.fits(schema, body), fits, "{body}");
                let expected = if fits && !algorithm { 200 } else { 400 };
                assert_eq!(answer.status, expected, "{path} {body}: {answer:?}");
                // A list inside a list of a check is nested too deeply to be parsed.
                if answer.body["error"]["code"] == "invalid_request" && !fits {
                    let field = answer.body["error"]["field"].as_str().unwrap();
                    assert!(field.ends_with(&name), "{body}: {field}");
                }
                tried += 1;
            }
        }
    }
    assert!(tried > 100, "{tried} requests");
    for count in [0, 1, 100, 101] {
        let request = json!({"checks": vec![window.clone(); count]});
        let expected = if document.fits("LimitsRequest", &request) { 200 } else { 400 };
        assert_eq!(client.post("/v1/check/batch", &request).await.status, expected, "{count} checks");
        assert_eq!(expected == 200, (1..=100).contains(&count));
    }
    let unknown = json!({"identifier": "a", "limit": 5, "duration": "1h", "cots": 1});
    assert!(!document.fits("LimitRequest", &unknown));
    assert_eq!(client.post("/v1/check", &unknown).await.status, 400);
    assert!(!document.fits("LimitRequest", &json!({"limit": 5, "duration": "1h"})));
}

#[tokio::test]
async fn every_field_and_bound_of_a_reservation_is_the_api() {
    let weir = start_with(settings()).await;
    let document = document(&weir).await;
    let mut client = Client::connect(&weir).await;
    let mut tried = 0;
    let bases = [
        (
            "/v1/reserve",
            "ReserveRequest",
            json!({"identifier": "a", "limit": 1, "duration": "1h", "cost": 0}),
        ),
        ("/v1/settle", "SettleRequest", json!({"cost": 0})),
    ];
    for (path, schema, base) in bases {
        for name in document.fields(schema).into_iter().filter(|name| !["checks", "costs"].contains(&&**name))
        {
            for (value, fits) in document.probes(schema, &name) {
                tried += 1;
                let mut request = base.clone();
                request["id"] = format!("{path} {tried}").into();
                request[&name] = value;
                let answer = client.post(path, &request).await;
                assert_eq!(document.fits(schema, &request), fits, "{request}");
                // A reservation of this id may be there.
                let is_found = [200, 404].contains(&answer.status);
                assert_eq!(is_found, fits, "{path} {request}: {answer:?}");
                assert!(is_found || answer.status == 400, "{answer:?}");
            }
        }
    }
    assert!(tried > 80, "{tried} requests");
    for count in [0, 1, 8, 9] {
        let fits = (1..=8).contains(&count);
        let check = json!({"identifier": "a", "limit": 1, "duration": "1h", "cost": 0});
        let reserve = json!({"id": format!("{count} checks"), "checks": vec![check; count]});
        let settle = json!({"id": "none", "costs": vec![1; count]});
        assert_eq!(document.fits("ReserveRequest", &reserve), fits);
        assert_eq!(document.fits("SettleRequest", &settle), fits);
        assert_eq!(client.post("/v1/reserve", &reserve).await.status, if fits { 200 } else { 400 });
        assert_eq!(client.post("/v1/settle", &settle).await.status, if fits { 404 } else { 400 });
    }
}

/// `timeout` belongs to the call, not to a check.
fn strip_call_fields(mut listed: Value) -> Value {
    if let Some(check) = listed["checks"][0].as_object_mut() {
        check.remove("timeout");
    }
    listed
}
