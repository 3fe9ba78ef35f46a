use super::wire::{Descriptor, Policy, Received, Replace};
use super::*;
use crate::api::rls::matching::{Limit, Rate};
use crate::api::rls::wire::{Entry, Unit};
use prost_types::{Any, Struct, Value};
use std::path::PathBuf;

fn resource(config: &RateLimitConfig) -> Any {
    Any { type_url: TYPE_URL.into(), value: config.encode_to_vec() }
}

fn response(configs: &[RateLimitConfig]) -> DiscoveryResponse {
    DiscoveryResponse {
        version_info: "1".into(),
        type_url: TYPE_URL.into(),
        nonce: "n".into(),
        resources: configs.iter().map(resource).collect(),
    }
}

fn limits_in(response: &DiscoveryResponse, domains: Domains) -> Result<Limits, String> {
    limits_of(&response.encode_to_vec().into(), domains)
}

fn config(domain: &str, descriptors: Vec<Descriptor>) -> RateLimitConfig {
    let descriptors = descriptors.into_iter().map(Received::from).collect();
    RateLimitConfig { name: format!("config of {domain}"), domain: domain.into(), descriptors }
}

fn limited(key: &str, unit: i32, requests_per_unit: u32) -> Descriptor {
    let policy = Policy { unit, requests_per_unit, ..Policy::default() };
    Descriptor { key: key.into(), rate_limit: Some(policy.into()), ..Descriptor::default() }
}

/// The bytes as another implementation of these messages encodes them.
#[test]
fn a_resource_is_read_as_it_is_written_elsewhere() {
    let bytes = [
        b"\x0a\x01n\x12\x01d\x1a\x3c".as_slice(),
        b"\x0a\x01k\x12\x02v*\x1a\x10\x08\x07\x10\x96\x01\x22\x04name\x2a\x03\x0a\x01r",
        b"\x22\x07\x0a\x03sub\x1a\x00\x28\x01\x30\x01\x38\x01\x42\x12\x0a\x10\x0a\x05quota\x12\x07\x1a\x05spare",
    ]
    .concat();
    let quota = Value::from("spare");
    let expected = Descriptor {
        key: "k".into(),
        value: "v*".into(),
        rate_limit: Some(
            Policy {
                unit: 7,
                requests_per_unit: 150,
                unlimited: false,
                name: "name".into(),
                replaces: vec![Replace { name: "r".into() }],
            }
            .into(),
        ),
        descriptors: vec![
            Descriptor {
                key: "sub".into(),
                rate_limit: Some(Policy::default().into()),
                ..Descriptor::default()
            }
            .into(),
        ],
        shadow_mode: true,
        detailed_metric: true,
        quota_mode: true,
        metadata: Some(Struct { fields: [("quota".to_owned(), quota)].into() }),
    };
    let expected =
        RateLimitConfig { name: "n".into(), domain: "d".into(), descriptors: vec![expected.into()] };
    assert_eq!(RateLimitConfig::decode(bytes.as_slice()), Ok(expected));
}

#[test]
fn a_response_holds_the_limits_of_all_domains() {
    let marked = Descriptor { quota_mode: true, shadow_mode: true, value: "v".into(), ..limited("k", 2, 5) };
    let nested = Descriptor { descriptors: vec![marked.into()], ..limited("outer", 6, 0) };
    let nested = Descriptor { rate_limit: None, ..nested };
    let configs = [config("one", vec![nested]), config("two", vec![limited("any", 1, 0)])];
    let limits = limits_in(&response(&configs), Domains::Unique).unwrap();
    assert_eq!(limits.len(), 2);
    let entry = |key: &str, value: &str| Entry { key: key.into(), value: value.into() };
    let found = limits.domain("one").unwrap().find(&[entry("outer", "x"), entry("k", "v")]).first().unwrap();
    assert_eq!((found.limit, found.quota, found.shadow), (rate(5, Unit::Minute), true, true));
    let found = limits.domain("two").unwrap().find(&[entry("any", "x")]).first().unwrap();
    assert_eq!(found.limit, rate(0, Unit::Second), "a missing number is 0");
    assert_eq!(limits_in(&response(&[]), Domains::Unique).unwrap().len(), 0, "no policy is left");
}

#[test]
fn every_error_names_its_resource() {
    let domain = |descriptors| response(&[config("d", descriptors)]);
    let other = |mut response: DiscoveryResponse| {
        response.resources[0].type_url = "type.googleapis.com/other".into();
        response
    };
    let broken = |mut response: DiscoveryResponse| {
        response.resources[0].value = b"\x0a\xff".to_vec();
        response
    };
    let policy = |policy: Policy| {
        domain(vec![Descriptor { key: "k".into(), rate_limit: Some(policy.into()), ..Descriptor::default() }])
    };
    let deep = (0..MAX_NESTED).fold(limited("k", 1, 1), |inner, _| Descriptor {
        descriptors: vec![inner.into()],
        key: "k".into(),
        ..Descriptor::default()
    });
    let cases = [
        (DiscoveryResponse { type_url: "other".into(), ..domain(vec![]) }, "the type is \"other\""),
        (other(domain(vec![])), "resource 0: the type is"),
        (broken(domain(vec![])), "resource 0 is no RateLimitConfig"),
        (response(&[config("", vec![])]), "config of : domain: \"\" is empty"),
        (response(&[config("d", vec![]), config("d", vec![])]), "config of d: domain: \"d\" occurs twice"),
        (domain(vec![limited("", 1, 1)]), "descriptors[0].key: it is missing"),
        (domain(vec![limited("k", 1, 1), limited("k", 1, 1)]), "descriptors[1]: it is the second"),
        (domain(vec![limited("k*", 1, 1)]), "descriptors[0].key: it has a wildcard"),
        (policy(Policy { unit: 1, unlimited: true, ..Policy::default() }), "unit: it has no effect"),
        (domain(vec![deep]), "is nested too deep"),
    ];
    for (response, expected) in cases {
        let error = limits_in(&response, Domains::Unique).unwrap_err();
        assert!(error.contains(expected), "{error}\n{expected}");
    }
    let many = (0..10_000).map(|_| limited("", 1, 1)).collect();
    let error = limits_in(&domain(many), Domains::Unique).unwrap_err();
    assert!(error.len() <= MAX_REASON_BYTES, "{}", error.len());
    let merged = [config("d", vec![limited("a", 1, 1)]), config("d", vec![limited("b", 1, 1)])];
    assert!(limits_in(&response(&merged), Domains::Merged).is_ok());
}

/// Each of these is one of many, by different authors.
#[test]
fn a_limit_that_cannot_be_served_concerns_no_other() {
    let descriptors = vec![limited("year", 6, 9), limited("none", 0, 1), limited("new", 99, 1)];
    let configs = [config("one", descriptors), config("two", vec![limited("other", 1, 1)])];
    let limits = limits_in(&response(&configs), Domains::Unique).unwrap();
    let limit = |domain: &str, key: &str| {
        let entry = Entry { key: key.into(), value: b"x".to_vec() };
        limits.domain(domain).unwrap().find(&[entry])[0].limit
    };
    assert_eq!(limit("one", "year"), rate(9, Unit::Year));
    assert_eq!((limit("one", "none"), limit("one", "new")), (Limit::Unserved, Limit::Unserved));
    assert_eq!(limit("two", "other"), rate(1, Unit::Second));
    assert_eq!(limits.unserved().count(), 2);
    let reasons = limits.unserved().to_string();
    let [missing, unknown] = reasons.lines().collect::<Vec<_>>()[..] else { panic!("{reasons}") };
    assert!(missing.starts_with("config of one: descriptors[1].rate_limit.unit: it is missing"), "{missing}");
    assert!(unknown.contains("descriptors[2].rate_limit.unit: \"99\" is not a unit of time"), "{unknown}");
}

/// A field that is not known may stand for several units, or for a count that all values share.
#[test]
fn a_limit_with_a_field_of_a_later_version_is_not_served() {
    // The descriptors k1, with field 6 in its limit, k2, with field 9 and k3 below it, k4, k5 with field 9 alone, and k6, unlimited with
    // field 6.
    let bytes = [
        b"\x0a\x01n\x12\x01d".as_slice(),
        b"\x1a\x0c\x0a\x02k1\x1a\x06\x08\x02\x10\x05\x30\x0a",
        b"\x1a\x12\x0a\x02k2\x22\x0a\x0a\x02k3\x1a\x04\x08\x02\x10\x05\x48\x01",
        b"\x1a\x0a\x0a\x02k4\x1a\x04\x08\x02\x10\x05",
        b"\x1a\x06\x0a\x02k5\x48\x01",
        b"\x1a\x0a\x0a\x02k6\x1a\x04\x18\x01\x30\x0a",
    ]
    .concat();
    let resource = Any { type_url: TYPE_URL.into(), value: bytes };
    let response = DiscoveryResponse { resources: vec![resource], ..response(&[]) };
    let limits = limits_in(&response, Domains::Unique).unwrap();
    let limit = |keys: &[&str]| {
        let entries: Vec<_> =
            keys.iter().map(|key| Entry { key: (*key).into(), value: b"x".to_vec() }).collect();
        limits.domain("d").unwrap().find(&entries)[0].limit
    };
    assert_eq!((limit(&["k1"]), limit(&["k2", "k3"])), (Limit::Unserved, Limit::Unserved));
    assert_eq!(limit(&["k4"]), rate(5, Unit::Minute));
    assert_eq!((limit(&["k5"]), limit(&["k6"])), (Limit::Unserved, Limit::Unserved));
    let reasons = limits.unserved().to_string();
    assert!(
        reasons.contains("unit: \"minute, with the unknown field 6\" is not a unit of time"),
        "{reasons}"
    );
    assert!(
        reasons.contains("descriptors[1].descriptors[0].rate_limit.unit: \"minute, with the unknown field 9")
    );
}

fn rate(requests: u32, unit: Unit) -> Limit {
    Limit::Rate(Rate::new(requests, unit, 1).unwrap())
}

/// More levels than a configuration may have, and fewer than the decoder refuses.
const MAX_NESTED: usize = 40;

#[test]
fn options_are_validated() {
    let new = |url: &str, ca: Option<&str>, identity: (Option<&str>, Option<&str>), token: &str| {
        let path = |path: Option<&str>| path.map(PathBuf::from);
        let identity = (path(identity.0), path(identity.1));
        let made = XdsOptions::new(url.into(), "n".into(), path(ca), identity, Some(token.into()));
        made.map(drop).map_err(|error| error.to_string())
    };
    let (none, both) = ((None, None), (Some("c"), Some("k")));
    assert_eq!(new("http://a:1", None, none, "t"), Ok(()));
    assert_eq!(new("https://a:1", Some("ca"), both, "t"), Ok(()));
    for (url, ca, identity, token, expected) in [
        ("a:1", None, none, "t", "it has no scheme"),
        ("http://", None, none, "t", "--rls-xds-url"),
        ("http://u:secret@a:1", None, none, "t", "it contains a user"),
        ("http://a:1", Some("ca"), none, "t", "--rls-xds-ca-file"),
        ("http://a:1", None, both, "t", "use https://"),
        ("https://a:1", None, (Some("c"), None), "t", "--rls-xds-key-file"),
        ("https://a:1", None, (None, Some("k")), "t", "--rls-xds-cert-file"),
        ("http://a:1", None, none, "a\nb", "the token"),
    ] {
        let error = new(url, ca, identity, token).unwrap_err();
        assert!(error.contains(expected) && !error.contains("secret"), "{error}");
    }
}

#[test]
fn a_response_is_bounded_before_it_is_decoded() {
    let read =
        |config: RateLimitConfig| limits_in(&response(&[config]), Domains::Unique).err().unwrap_or_default();
    let too_many = "resources, descriptors, limits, replaced limits";
    // Each takes a few bytes of a response, which has at most 8 MiB.
    let many = bounds::MAX_MESSAGES + 1;
    assert!(read(config("d", vec![Descriptor::default(); many])).contains(too_many));
    let mut replaces = limited("k", 1, 1);
    replaces.rate_limit.as_mut().unwrap().message.replaces = vec![Replace::default(); many];
    assert!(read(config("d", vec![replaces])).contains(too_many));
    let mut metadata = limited("k", 1, 1);
    let list = Value::from(vec![Value::from(1.0); many]);
    metadata.metadata = Some(Struct { fields: [("l".to_owned(), list)].into() });
    assert!(read(config("d", vec![metadata])).contains(too_many));
    let resources = DiscoveryResponse { resources: vec![Any::default(); many], ..response(&[]) };
    assert!(limits_in(&resources, Domains::Unique).unwrap_err().contains(too_many));
    let sound: Vec<_> = (0..10_000).map(|n| limited(&format!("k{n}"), 1, 1)).collect();
    assert_eq!(read(config("d", sound)), "");
    let mut cut = response(&[config("d", vec![limited("k", 1, 1)])]);
    cut.resources[0].value.pop();
    assert!(limits_in(&cut, Domains::Unique).unwrap_err().contains("cut off"));
}
