//! Rules by what other filters and the connection state: routes, metadata, filter state, client certificates, and limits that
//! requests carry.

use super::common::{Region, SOON, config, filter, rule, sum_of, with};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, PKCS_ED25519, PublicKeyData,
    SanType, SigningKey,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use weir_envoy::bootstrap::{ClientTls, ROUTE, VIRTUAL_HOST};
use weir_envoy::http::Request;
use weir_envoy::{Envoy, EnvoyOptions, wait};

/// Filters that write headers into metadata and filter state, as an authentication would.
fn writers() -> Vec<Value> {
    let into = |header: &str, key: &str, kind: &str| {
        json!({ "header": header, "remove": true, "on_header_present": {
            "metadata_namespace": "acme.plans", "key": key, "type": kind,
        }})
    };
    let metadata = json!({ "name": "header_to_metadata", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config",
        "request_rules": [
            into("x-plan", "plan", "STRING"),
            into("x-limit", "limit", "NUMBER"),
            into("x-number", "number", "NUMBER"),
        ],
    }});
    let state = json!({ "name": "set_filter_state", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.set_filter_state.v3.Config",
        "on_request_headers": [{
            "object_key": "acme.tenant",
            "factory_key": "envoy.string",
            "format_string": {
                "text_format_source": { "inline_string": "%REQ(x-tenant)%" },
                "omit_empty_values": true,
            },
            "skip_if_empty": true,
        }],
    }});
    vec![metadata, state]
}

/// Sends the requests one after the other and compares the statuses.
async fn check(rules: &[Value], requests: &[(&[(&str, &str)], u16)]) {
    let options = EnvoyOptions { before: writers(), ..EnvoyOptions::default() };
    let region = Region::start(1, options, &config(rules)).await;
    for (at, (headers, expected)) in requests.iter().enumerate() {
        let request =
            headers.iter().fold(Request::get("/"), |request, (name, value)| request.header(name, value));
        let answer = region.envoy().send(request).await.unwrap();
        assert_eq!(answer.status, *expected, "request {at}: {headers:?}");
    }
    region.is_sound().await;
}

/// By metadata that another filter has set, by a secret header, and by a path in every reading.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_exempt_from_all_rules_by_their_conditions() {
    let exempt = json!({ "exempt": [
        { "metadata": [{ "filter": "acme.plans", "key": "plan", "exact": "staff" }] },
        { "headers": [{ "name": "x-probe-key", "exact": "7d1f8a02" }] },
        { "path": { "segments": "/assets/**" }, "methods": "GET" },
    ]});
    let options = EnvoyOptions { before: writers(), ..EnvoyOptions::default() };
    let rules = config(&[rule("one", 0), rule("two", 0)]);
    let region = Region::start(1, options, &with(rules, exempt)).await;
    for (path, header, expected) in [
        ("/", ("x-other", "a"), 429),
        ("/", ("x-plan", "staff"), 200),
        ("/", ("x-plan", "guest"), 429),
        ("/", ("x-probe-key", "7d1f8a02"), 200),
        ("/", ("x-probe-key", "7d1f8a03"), 429),
        ("/assets/a.png", ("x-other", "a"), 200),
        ("/assets/%2e%2e/a", ("x-other", "a"), 429),
    ] {
        let answer = region.envoy().send(Request::get(path).header(header.0, header.1)).await.unwrap();
        assert_eq!(answer.status, expected, "{path} {header:?}");
    }
    // Each rule counts what is exempt from it.
    for rule in ["one", "two"] {
        let name = format!("wasmcustom.weir_decisions_total.rule.{rule}.outcome.exempt");
        let counted = async || sum_of(region.envoy(), &name).await == 3;
        wait::until("they are counted", SOON, counted).await.unwrap();
    }
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metadata_and_filter_state_identify_and_carry_limits() {
    let of_plan = json!({
        "identifier": { "metadata": { "filter": "acme.plans", "key": "plan" } },
        "limit": { "metadata": { "filter": "acme.plans", "key": "limit" }, "default": 1, "max": 3 },
        "on_missing_identifier": "skip",
    });
    let of_number = json!({
        "identifier": { "metadata": { "filter": "acme.plans", "key": "number" } },
        "overrides": [{ "identifier": "42", "limit": 2 }],
        "on_missing_identifier": "skip",
    });
    let of_tenant =
        json!({ "identifier": { "filter_state": "acme.tenant" }, "on_missing_identifier": "skip" });
    let rules = [
        with(rule("plans", 1), of_plan),
        with(rule("numbers", 1), of_number),
        with(rule("tenants", 1), of_tenant),
    ];
    check(
        &rules,
        &[
            (&[("x-plan", "a")], 200),
            (&[("x-plan", "a")], 429),
            // The limit of the request decides, whatever limit the counts were charged under.
            (&[("x-plan", "a"), ("x-limit", "2")], 200),
            (&[("x-plan", "a"), ("x-limit", "9")], 200),
            (&[("x-plan", "a"), ("x-limit", "9")], 429),
            (&[("x-plan", "a"), ("x-limit", "2")], 429),
            (&[("x-plan", "b"), ("x-limit", "0")], 429),
            (&[("x-plan", "b")], 200),
            // A number is an identifier in digits.
            (&[("x-number", "42")], 200),
            (&[("x-number", "42")], 200),
            (&[("x-number", "42")], 429),
            (&[("x-number", "43")], 200),
            (&[("x-number", "43")], 429),
            (&[("x-tenant", "t1")], 200),
            (&[("x-tenant", "t1")], 429),
            (&[("x-tenant", "t2")], 200),
            (&[], 200),
            (&[], 200),
        ],
    )
    .await;
}

/// A customer's count is one whatever its plan is. With the plan in the identifier, each plan has a count of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_customer_that_changes_plan_keeps_its_count() {
    let plan = json!({ "metadata": { "filter": "acme.plans", "key": "plan" } });
    let of = |name: &str| json!({ "header": name });
    let by_plan = json!({
        "identifier": of("x-user"),
        "limit": { "by": plan, "of": { "free": 3, "pro": 5, "enterprise*": 8 }, "default": 1 },
        "on_missing_identifier": "skip",
    });
    let in_identifier = json!({
        "identifier": [of("x-other"), plan],
        "overrides": [
            { "identifier": "*|free", "limit": 3 },
            { "identifier": "*|pro", "limit": 5 },
            { "identifier": "*|enterprise*", "limit": 8 },
        ],
        "on_missing_identifier": "skip",
    });
    let rules = [with(rule("by-plan", 1), by_plan), with(rule("in-identifier", 1), in_identifier)];
    let options = EnvoyOptions { before: writers(), ..EnvoyOptions::default() };
    let region = Region::start(1, options, &config(&rules)).await;
    let passing = async |header: &str, user: &str, plan: &str| {
        let mut passing = 0;
        for _ in 0..10 {
            let request = Request::get("/").header(header, user).header("x-plan", plan);
            let answer = region.envoy().send(request).await.unwrap();
            passing += u32::from(answer.status == 200);
        }
        passing
    };
    let mut sums = [0, 0];
    for (plan, expected) in [("free", [3, 3]), ("pro", [2, 5]), ("enterprise-eu", [3, 8]), ("free", [0, 0])] {
        let passed = [passing("x-user", "a", plan).await, passing("x-other", "a", plan).await];
        assert_eq!(passed, expected, "{plan}");
        sums = [sums[0] + passed[0], sums[1] + passed[1]];
    }
    assert_eq!(sums, [8, 16]);
    assert_eq!(passing("x-user", "b", "unknown").await, 1, "the default");
    let denied = Request::get("/").header("x-user", "a").header("x-plan", "pro");
    let denied = region.envoy().send(denied).await.unwrap();
    assert_eq!((denied.status, denied.header("x-ratelimit-limit")), (429, Some("5")));
    region.settles_at("by-plan", "a", 8).await;
    region.is_sound().await;
}

/// The issuer of JSON web tokens.
pub struct Issuer(KeyPair);

impl Issuer {
    pub fn new() -> Issuer {
        Issuer(KeyPair::generate_for(&PKCS_ED25519).unwrap())
    }

    /// Envoy's own filter, which verifies tokens and leaves their claims in dynamic metadata.
    pub fn filter(&self) -> Value {
        let key = json!({ "kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "x": URL_SAFE_NO_PAD.encode(self.0.der_bytes()) });
        let provider = json!({
            "issuer": "weir", "payload_in_metadata": "jwt_payload",
            "local_jwks": { "inline_string": json!({ "keys": [key] }).to_string() },
        });
        json!({ "name": "envoy.filters.http.jwt_authn", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication",
            "providers": { "weir": provider },
            "rules": [{ "match": { "prefix": "/" }, "requires": { "provider_name": "weir" } }],
        }})
    }

    /// What is signed of a token with these claims, and the signature.
    fn token(&self, claims: &Value) -> [String; 2] {
        let claims = with(json!({ "iss": "weir" }), claims.clone());
        let parts = [json!({ "alg": "EdDSA", "typ": "JWT" }), claims];
        let signed = parts.map(|part| URL_SAFE_NO_PAD.encode(part.to_string())).join(".");
        let signature = URL_SAFE_NO_PAD.encode(self.0.sign(signed.as_bytes()).unwrap());
        [signed, signature]
    }

    /// A request with a token that has these claims.
    pub fn request(&self, claims: &Value) -> Request {
        Request::get("/").header("authorization", format!("Bearer {}", self.token(claims).join(".")))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_its_issuer_did_not_sign_counts_nowhere() {
    let issuer = Issuer::new();
    let by_user = json!({ "identifier": { "jwt_claim": { "claim": "user" } } });
    let options = EnvoyOptions { before: vec![issuer.filter()], ..EnvoyOptions::default() };
    let region = Region::start(1, options, &config(&[with(rule("users", 1), by_user)])).await;
    let [own, victim] = ["mallory", "alice"].map(|user| json!({ "user": user }));
    let forged = [&issuer.token(&victim)[0][..], &issuer.token(&own)[1]].join(".");
    let forged = Request::get("/").header("authorization", format!("Bearer {forged}"));
    for (request, expected) in [
        (forged.clone(), 401),
        (issuer.request(&own), 200),
        (forged.clone(), 401),
        (issuer.request(&own), 429),
        (issuer.request(&victim), 200),
        (forged, 401),
    ] {
        let answer = region.envoy().send(request.clone()).await.unwrap();
        assert_eq!(answer.status, expected, "{request:?}");
    }
    region.settles_at("users", "alice", 1).await;
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_that_are_lists_booleans_or_null_identify() {
    let issuer = Issuer::new();
    let of = |claim: &str, parts: Value| {
        let identifier = with(json!({ "jwt_claim": { "claim": claim } }), parts);
        with(rule(claim, 1), json!({ "identifier": identifier, "on_missing_identifier": "skip" }))
    };
    let rules = [
        of("only", json!({})),
        of("first", json!({ "pick": "first" })),
        of("last", json!({ "pick": "last" })),
    ];
    let options = EnvoyOptions { before: vec![issuer.filter()], ..EnvoyOptions::default() };
    let region = Region::start(1, options, &config(&rules)).await;
    for (claims, expected) in [
        (json!({ "only": ["a"] }), 200),
        (json!({ "only": "a" }), 429),
        (json!({ "only": true }), 200),
        (json!({ "only": true }), 429),
        (json!({ "only": [true] }), 429),
        (json!({ "only": false }), 200),
        (json!({ "only": 7 }), 200),
        (json!({ "only": [7] }), 429),
        // Missing.
        (json!({ "only": [] }), 200),
        (json!({ "only": [] }), 200),
        (json!({ "only": null }), 200),
        (json!({ "only": null }), 200),
        (json!({ "only": ["a", null] }), 200),
        (json!({}), 200),
        // All ambiguous ones share one count.
        (json!({ "only": ["b", "c"] }), 200),
        (json!({ "only": ["d", "e"] }), 429),
        (json!({ "only": { "a": 1 } }), 429),
        (json!({ "only": [["f"]] }), 429),
        (json!({ "first": ["a", "b"] }), 200),
        (json!({ "first": ["a", "c"] }), 429),
        (json!({ "first": ["b", "a"] }), 200),
        (json!({ "first": "b" }), 429),
        (json!({ "first": [] }), 200),
        (json!({ "last": ["a", "b"] }), 200),
        (json!({ "last": ["c", "b"] }), 429),
        (json!({ "last": ["b", "a"] }), 200),
    ] {
        let answer = region.envoy().send(issuer.request(&claims)).await.unwrap();
        assert_eq!(answer.status, expected, "{claims}");
    }
    assert_eq!(region.envoy().send(Request::get("/")).await.unwrap().status, 401, "without a token");
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_match_routes_and_virtual_hosts_by_name() {
    let everyone = json!({ "constant": "everyone" });
    let of = |name: &str, limit: u64, matched: Value| {
        with(rule(name, limit), json!({ "identifier": everyone, "match": matched }))
    };
    let rules = [
        of("other-route", 0, json!({ "route": { "exact": "other" } })),
        of("other-host", 0, json!({ "route": { "exact": ROUTE }, "virtual_host": { "prefix": "other" } })),
        of("both", 2, json!({ "route": { "prefix": "every" }, "virtual_host": { "exact": VIRTUAL_HOST } })),
    ];
    check(&rules, &[(&[], 200), (&[], 200), (&[], 429)]).await;
}

/// A certificate and its key, as PEM.
struct Pair {
    certificate: String,
    key: String,
}

impl Pair {
    fn put(&self, folder: &Path, name: &str) -> (std::path::PathBuf, std::path::PathBuf) {
        let put = |name: String, text: &str| {
            let path = folder.join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        (put(format!("{name}.crt"), &self.certificate), put(format!("{name}.key"), &self.key))
    }
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, "authority.test");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn sign(authority: &CertifiedIssuer<'_, KeyPair>, san: SanType) -> Pair {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, "subject.test");
    params.subject_alt_names = vec![san];
    let signed = params.signed_by(&key, authority).unwrap();
    Pair { certificate: signed.pem(), key: key.serialize_pem() }
}

/// The status of a request over TLS, with this client certificate. `None` if there is no response.
async fn status(envoy: &Envoy, trusted: &str, own: Option<&Pair>) -> Option<u16> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(trusted.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let builder = builder.with_root_certificates(roots);
    let config = match own {
        None => builder.with_no_client_auth(),
        Some(Pair { certificate, key }) => {
            let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    };
    let socket = TcpStream::connect(envoy.address()).await.unwrap();
    let name = ServerName::try_from("envoy.test").unwrap();
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, socket).await.unwrap();
    let request = b"GET / HTTP/1.1\r\nhost: envoy.test\r\nconnection: close\r\n\r\n";
    let mut received = Vec::new();
    let _ = stream.write_all(request).await;
    let _ = stream.read_to_end(&mut received).await;
    let status = received.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
    std::str::from_utf8(status).ok()?.parse().ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_are_identified_by_their_certificates() {
    let folder = tempfile::tempdir().unwrap();
    let (trusted, foreign) = (authority(), authority());
    let dns = SanType::DnsName("envoy.test".try_into().unwrap());
    let spiffe = |path: &str| SanType::URI(format!("spiffe://acme/{path}").try_into().unwrap());
    std::fs::write(folder.path().join("ca.crt"), trusted.pem()).unwrap();
    let own = sign(&trusted, dns).put(folder.path(), "envoy");
    let by_certificate =
        json!({ "identifier": { "client_certificate": "uri_san" }, "on_missing_identifier": "deny" });
    let config = config(&[with(rule("services", 1), by_certificate)]);
    let client_tls = Some(ClientTls { authority: folder.path().join("ca.crt"), own });
    let aggregator = weir_envoy::Aggregator::start(weir_envoy::AggregatorOptions::default()).await.unwrap();
    let options = EnvoyOptions {
        filter: filter(&config),
        client_tls,
        aggregator_ports: vec![aggregator.grpc_port()],
        ..EnvoyOptions::default()
    };
    let envoy = Envoy::start(options).await.unwrap();
    super::common::settled(&envoy).await;
    let (cart, shop) = (sign(&trusted, spiffe("cart")), sign(&trusted, spiffe("shop")));
    let again = sign(&trusted, spiffe("cart"));
    let forged = sign(&foreign, spiffe("bank"));
    for (at, (own, expected)) in [
        (Some(&cart), Some(200)),
        (Some(&cart), Some(429)),
        // Another certificate of the same identity.
        (Some(&again), Some(429)),
        (Some(&shop), Some(200)),
        (None, Some(429)),
        (Some(&forged), None),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(status(&envoy, &trusted.pem(), own).await, expected, "request {at}");
    }
    super::common::sound(&envoy).await;
}
