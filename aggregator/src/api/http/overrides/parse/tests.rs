use super::*;
use proptest::prelude::{any, prop_assert, proptest};
use serde_json::json;

const NOW: UnixMs = UnixMs(1_800_000_000_000);

fn put(json: &serde_json::Value) -> Result<ControlRequest, Problem> {
    parse_put(json.to_string().as_bytes())
}

#[test]
fn all_fields_are_read() {
    let alice = |effect, expires, reason: &str| ControlRequest {
        place: Place {
            workspace: None,
            scope: "n".into(),
            selector: Selector::Identifier("alice".into()),
            window_ms: None,
        },
        effect,
        expires,
        reason: reason.into(),
        author: None,
    };
    for (fields, expected) in [
        (json!({"limit": 5}), alice(Effect::Limit(5), None, "")),
        (json!({"exempt": true, "reason": "tests"}), alice(Effect::Exempt, None, "tests")),
        (json!({"ban": true, "reason": "spam"}), alice(Effect::Ban, None, "spam")),
        (json!({"credit": 9, "expires_in": "1h"}), alice(Effect::Credit(9), Some(Expiry::In(3_600_000)), "")),
        (json!({"credit": 9, "expires_at": 7}), alice(Effect::Credit(9), Some(Expiry::At(UnixMs(7))), "")),
        (
            json!({"credit": 9, "expires_in": "7d"}),
            alice(Effect::Credit(9), Some(Expiry::In(604_800_000)), ""),
        ),
        (
            json!({"credit": 9, "expires_at": "2030-01-31T12:00:00Z"}),
            alice(Effect::Credit(9), Some(Expiry::At(UnixMs(1_896_091_200_000))), ""),
        ),
        (json!({"reset": true}), alice(Effect::Reset, None, "")),
    ] {
        let mut json = json!({"namespace": "n", "identifier": "alice"});
        json.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        assert_eq!(put(&json), Ok(expected), "{json}");
    }
    let network =
        put(&json!({"workspace": "w", "namespace": "*", "network": "10.1.2.3/8", "exempt": true})).unwrap();
    assert_eq!(network.place.workspace.as_deref(), Some("w"));
    assert_eq!(network.place.selector, Selector::Network(parse_network("10.0.0.0/8").unwrap()));
    let switch = put(&json!({"rule": "per-key", "shadow": false})).unwrap();
    assert_eq!((switch.place.selector, switch.effect), (Selector::Rule, Effect::Shadow(false)));
    let window = put(&json!({"namespace": "n", "identifier": "a", "limit": 1, "window": "1m"})).unwrap();
    assert_eq!(window.place.window_ms, Some(60_000));
}

#[test]
fn every_invalid_field_is_reported() {
    for (json, field, part) in [
        (json!([]), "", "not an object"),
        (json!({"namespace": "n", "identifier": "a"}), "", "exactly one of limit, exempt"),
        (json!({"namespace": "n", "identifier": "a", "limit": 1, "exempt": true}), "", "exactly one of"),
        (json!({"namespace": "n", "identifier": "a", "limit": -1}), "limit", "from 0"),
        (json!({"namespace": "n", "identifier": "a", "ban": false}), "ban", "is not true"),
        (json!({"namespace": "n", "identifier": "a", "ban": true}), "reason", "missing"),
        (json!({"namespace": "n", "identifier": "a", "credit": 1}), "expires_in", "missing"),
        (
            json!({"namespace": "n", "identifier": "a", "reset": true, "expires_in": "1h"}),
            "expires_in",
            "leave it out",
        ),
        (
            json!({"namespace": "n", "identifier": "a", "limit": 1, "expires_in": 1}),
            "expires_in",
            "between 1s",
        ),
        (
            json!({"namespace": "n", "identifier": "a", "limit": 1, "expires_in": "1h", "expires_at": 9}),
            "expires_at",
            "both this and",
        ),
        (
            json!({"namespace": "n", "identifier": "a", "limit": 1, "expires_at": "soon"}),
            "expires_at",
            "2030-01-31T",
        ),
        (json!({"identifier": "a", "limit": 1}), "namespace", "missing"),
        (json!({"namespace": "n", "limit": 1}), "identifier", "missing"),
        (
            json!({"namespace": "n", "identifier": "a", "network": "::1", "ban": true, "reason": "x"}),
            "identifier",
            "no more",
        ),
        (json!({"namespace": "n", "network": "home", "exempt": true}), "network", "not a network"),
        (json!({"namespace": "n", "rule": "r", "shadow": true}), "namespace", "leave it out"),
        (json!({"rule": "r", "shadow": 1}), "shadow", "true or false"),
        (
            json!({"namespace": "n", "identifier": "a", "limit": 1, "reason": "r".repeat(501)}),
            "reason",
            "500",
        ),
        (json!({"namespace": "n", "identifier": "a", "limit": 1, "until": 1}), "until", "no such field"),
    ] {
        let problem = put(&json).expect_err(&json.to_string());
        assert_eq!(problem.fields[0].field, field, "{json}: {}", problem.message);
        assert!(problem.message.contains(part), "{json}: {}", problem.message);
        assert!(!problem.message.starts_with(':'), "{json}: {}", problem.message);
    }
    for (expiry, sound) in [
        (Expiry::In(1_000), true),
        (Expiry::At(UnixMs(NOW.0 + 1)), true),
        (Expiry::At(NOW), false),
        (Expiry::At(UnixMs(LATEST.0 + 1)), false),
    ] {
        assert_eq!(expiry.at(NOW).is_ok(), sound, "{expiry:?}");
    }
}

#[test]
fn queries() {
    let Removal { place, slot, reason, author } =
        parse_delete("namespace=n&identifier=a%7Cb&kind=credit&window=1m&reason=it+is+over&author=ann")
            .unwrap();
    assert_eq!(
        (place.selector, slot, reason.as_str(), author.as_deref()),
        (Selector::Identifier("a|b".into()), Slot::Credit, "it is over", Some("ann"))
    );
    assert_eq!(parse_delete("rule=r").unwrap().slot, Slot::Shadow);
    assert_eq!(parse_delete("namespace=*&network=::1").unwrap().slot, Slot::Override);
    for (query, field) in [
        ("namespace=n", "identifier"),
        ("namespace=n&identifier=a&identifier=b", "identifier"),
        ("namespace=n&identifier=%f", "identifier"),
        ("namespace=n&identifier=a&kind=shadow", "kind"),
        ("rule=r&kind=credit", "kind"),
        ("namespace=n&identifier=a&window=1", "window"),
        ("namespace=n&identifier=a&page=1", "page"),
    ] {
        assert_eq!(parse_delete(query).expect_err(query).fields[0].field, field, "{query}");
    }
    let list =
        parse_list("namespace=n&kind=reset&after=7&limit=9&network=10.1.2.3%2F8&matching=a+b").unwrap();
    let expected = ControlFilter {
        place: PlaceFilter { scope: "n".into(), network: "10.0.0.0/8".into(), ..PlaceFilter::default() },
        slot: Some(Slot::Reset),
        matching: Some("a b".into()),
        after: 7,
        limit: 9,
    };
    assert_eq!(list, expected);
    let audit = parse_audit("author=ann&before=3").unwrap();
    assert_eq!((audit.author.as_str(), audit.before, audit.limit), ("ann", Some(3), DEFAULT_PAGE));
    for query in ["limit=0", "limit=1001", "after=x", "kind=ban", "limit=1&limit=2", "x=1"] {
        assert!(parse_list(query).is_err(), "{query}");
    }
    assert!(parse_audit("before=0").is_err());
}

proptest! {
    #[test]
    fn any_input_has_a_result(bytes in proptest::collection::vec(any::<u8>(), 0..200), query in ".{0,80}") {
        let (put, delete) = (parse_put(&bytes), parse_delete(&query));
        prop_assert!(put.is_ok_and(|change| change.reason.len() <= MAX_REASON_BYTES) || parse_put(&bytes).is_err());
        prop_assert!(delete.is_ok() || delete.is_err_and(|problem| !problem.message.is_empty()));
        prop_assert!(parse_list(&query).is_ok_and(|filter| filter.limit <= MAX_PAGE) || parse_list(&query).is_err());
    }
}
