//! Reserves, charges and errors of costs by use.

use super::*;
use crate::fields::Bounds;
use crate::rules::rule::cost::Cost;
use crate::rules::rule::cost::settlement::{End, Stage, Trailers};
use crate::rules::testing::TestRequest;
use crate::usage::Ratios;
use alloc::format;
use alloc::string::{String, ToString};

fn read(json: &str) -> Result<UsageCost, String> {
    let mut errors = Errors::default();
    let json = Value::parse(json.as_bytes(), Bounds::OF_A_FILE).unwrap();
    let cost = Cost::read(Node::root("cost", &json), &mut errors);
    match errors.finish(cost) {
        Ok(Cost::Usage(cost)) => Ok(*cost),
        Ok(other) => panic!("{other:?}"),
        Err(errors) => Err(errors.to_string()),
    }
}

fn typed(namespace: &str, key: &str) -> Vec<u8> {
    format!("metadata\0typed_filter_metadata\0{namespace}\0{key}").into_bytes()
}

/// With one of Envoy's records of use.
fn reported(mut request: TestRequest, record: &[(&str, i64)]) -> TestRequest {
    for (key, value) in record {
        request = request.property(&typed("envoy.ai.token_usage", key), &value.to_le_bytes());
    }
    request
}

/// With what Envoy reads of a request.
fn asked(request: TestRequest, input: i64, max_output: i64) -> TestRequest {
    let of = |key| typed("envoy.ai.request_info", key);
    request
        .property(&of("estimated_input_tokens"), &input.to_le_bytes())
        .property(&of("max_output_tokens"), &max_output.to_le_bytes())
        .property(&of("model"), b"gpt-4o")
}

fn post() -> TestRequest {
    TestRequest::default().header(":method", "POST")
}

#[test]
fn reserves() {
    let cost = read(
        r#"{"usage": "envoy", "max": 100000, "weights": {"output": 2},
            "models": [{"model": "gpt-*", "weights": {"input": 3}}, {"model": "gpt-4o-mini", "weights": {}}],
            "reserve": {"output_cap": 1000, "output_default": 500, "input_default": 40}}"#,
    )
    .unwrap();
    let sized = |length: &str| post().header("content-length", length);
    for (request, limit, expected) in [
        (asked(post(), 26, 100), 1_000_000, 3 * 26 + 100),
        (asked(post(), 26, 5_000), 1_000_000, 3 * 26 + 1_000),
        (asked(post(), 26, 0), 1_000_000, 3 * 26 + 500),
        (asked(sized("400"), 0, 10), 1_000_000, 3 * 100 + 10),
        (sized("401"), 1_000_000, 101 + 2 * 500),
        (post(), 1_000_000, 40 + 2 * 500),
        (post(), 300, 300),
        (post(), 0, 1),
        (TestRequest::get("/v1/models").whole(), 1_000_000, 0),
        (post().header("content-length", "0").whole(), 1_000_000, 0),
        (TestRequest::get("/").header("transfer-encoding", "chunked"), 1_000_000, 40 + 2 * 500),
        (TestRequest::get("/").header("content-length", "8"), 1_000_000, 2 + 2 * 500),
    ] {
        assert_eq!(
            cost.reserve(&request, limit, (0, &Ratios::default()), &mut Vec::from(*b"x")),
            expected,
            "{request:?}"
        );
    }
    let fixed = read(r#"{"usage": "envoy", "max": 9, "reserve": {"input": 3, "output": 4}}"#).unwrap();
    assert_eq!(fixed.reserve(&post(), 1_000, (0, &Ratios::default()), &mut Vec::new()), 7);
    let none = read(r#"{"usage": "envoy", "max": 9, "reserve": {"input": 0, "output": 0}}"#).unwrap();
    assert_eq!(
        none.reserve(&post(), 1_000, (0, &Ratios::default()), &mut Vec::new()),
        1,
        "only a request without a body is free"
    );
}

#[test]
fn a_learned_reserve_is_within_its_bounds() {
    let cost = read(
        r#"{"usage": "envoy", "max": 100000, "models": [{"model": "gpt-*", "weights": {"output": 2}}],
            "reserve": {"input": 0, "output": "learned", "output_default": 300, "output_cap": 2000}}"#,
    )
    .unwrap();
    let mut ratios = Ratios::default();
    let reserve = |request: &TestRequest, ratios: &Ratios| {
        cost.reserve(request, 1_000_000, (3, ratios), &mut Vec::new())
    };
    let learn = |ratios: &mut Ratios, rule: u16, tokens: i64| {
        let record = [("extraction_status", 1), ("input_tokens", 1), ("output_tokens", tokens)];
        let answer = reported(response("200", "via_upstream", 9_000), &record)
            .property(&typed("envoy.ai.token_usage", "model"), b"gpt-4o");
        let end = End { response: &answer, stage: Stage::Ended(Trailers::default()), rule, reserved: 0 };
        cost.settle(&end, ratios, &mut Vec::new()).unwrap();
    };
    let any = || asked(post(), 0, 0);
    assert_eq!(reserve(&any(), &ratios), 2 * 300, "nothing is known yet");
    learn(&mut ratios, 3, 100);
    assert_eq!(reserve(&any(), &ratios), 2 * 300, "never below the default");
    (0..20).for_each(|_| learn(&mut ratios, 3, 500));
    assert_eq!(reserve(&any(), &ratios), 2 * 511);
    assert_eq!(reserve(&asked(post(), 0, 50), &ratios), 2 * 50, "the request's own cap");
    assert_eq!(reserve(&post(), &ratios), 300, "another model");
    (0..400).for_each(|_| learn(&mut ratios, 3, 90_000));
    assert_eq!(reserve(&any(), &ratios), 2 * 2_000, "never above the cap");
    learn(&mut ratios, 4, 5);
    assert_eq!(cost.reserve(&any(), 1_000, (4, &ratios), &mut Vec::new()), 600);
}

const UPSTREAM: (&[u8], &[u8]) = (b"response\0code_details", b"via_upstream");

fn response(status: &str, details: &str, bytes: u64) -> TestRequest {
    TestRequest::default()
        .header(":status", status)
        .property(UPSTREAM.0, details.as_bytes())
        .property(b"response\0size", &bytes.to_le_bytes())
        .property(b"request\0size", &400_u64.to_le_bytes())
}

/// Of a request without a body.
fn free(status: &str, details: &str) -> TestRequest {
    TestRequest::default()
        .header(":status", status)
        .property(UPSTREAM.0, details.as_bytes())
        .property(b"response\0size", &90_u64.to_le_bytes())
        .property(b"request\0size", &0_u64.to_le_bytes())
}

fn reached(response: TestRequest) -> TestRequest {
    response.property(b"upstream\0local_address", b"127.0.0.1:1")
}

#[test]
fn each_end_has_its_charge() {
    let cost = read(
        r#"{"usage": "envoy", "max": 5000, "weights": {"cached_input": 0.5, "output": 2},
            "without_usage": "estimate", "on_disconnect": "reserve", "on_error_status": 7,
            "reserve": {"output_cap": 1000}}"#,
    )
    .unwrap();
    let ended = Stage::Ended(Trailers::default());
    let clean = |status| response(status, "via_upstream", 400);
    let complete = [("extraction_status", 1), ("input_tokens", 10), ("output_tokens", 20), ("model", 0)];
    let cached = [("input_token_details\0cached_tokens", 4)];
    let failing = |key, value| {
        let mut record = complete;
        record[1] = (key, value);
        reported(clean("200"), &record)
    };
    // 400 bytes of the request are 100 tokens, and those of the answer by a quarter too.
    let estimate = 100 + 2 * 100;
    for (end, stage, expected, result) in [
        (reported(clean("200"), &complete), ended, 10 + 40, "complete"),
        (reported(reported(clean("200"), &complete), &cached), ended, 6 + 2 + 40, "complete"),
        (reported(clean("500"), &complete), ended, 10 + 40, "complete"),
        (failing("input_tokens", 1 << 53), ended, 5_000, "complete"),
        (failing("input_tokens", 1 << 54), ended, estimate, "failed"),
        (failing("input_tokens", -1), ended, estimate, "failed"),
        (reported(clean("200"), &[("extraction_status", 3)]), ended, estimate, "failed"),
        (
            reported(clean("200"), &[("extraction_status", 2), ("input_tokens", 10)]),
            ended,
            estimate,
            "partial",
        ),
        (clean("200"), ended, estimate, "missing"),
        (clean("200").header("content-encoding", "gzip"), ended, estimate, "encoded"),
        (clean("200").header("content-encoding", "identity"), ended, estimate, "missing"),
        (clean("429"), ended, 7, "error_status"),
        (reached(response("200", "downstream_remote_disconnect", 400)), ended, 77, "disconnected"),
        (reached(response("200", "upstream_reset_after_response_started{…}", 1)), ended, 77, "reset"),
        (reached(response("503", "upstream_reset_before_response_started{…}", 95)), ended, 77, "reset"),
        (response("403", "rbac_access_denied", 19), ended, 0, "unsent"),
        (reached(TestRequest::default()), Stage::Unanswered, 77, "disconnected"),
        (free("200", "via_upstream"), ended, 0, "without_body"),
        (free("404", "via_upstream"), ended, 0, "without_body"),
        (free("200", "via_upstream").header("content-encoding", "gzip"), ended, 0, "without_body"),
        (reached(free("200", "downstream_remote_disconnect")), ended, 0, "without_body"),
        (reached(free("503", "upstream_reset_before_response_started{…}")), ended, 0, "without_body"),
        (reached(free("", "")), Stage::Unanswered, 0, "without_body"),
        (reported(free("200", "via_upstream"), &complete), ended, 10 + 40, "complete"),
        (TestRequest::default(), Stage::Unanswered, 0, "unsent"),
    ] {
        let mut ratios = Ratios::default();
        let of = End { response: &end, stage, rule: 3, reserved: 77 };
        let settled = cost.settle(&of, &mut ratios, &mut Vec::from(*b"x")).unwrap();
        assert_eq!((settled.cost, settled.line.to_string().as_str()), (expected, result), "{end:?}");
    }
    let of = End { response: &clean("200"), stage: Stage::Headers, rule: 3, reserved: 77 };
    assert_eq!(cost.settle(&of, &mut Ratios::default(), &mut Vec::new()), None, "the end decides");
}

#[test]
fn estimates_are_learned_from_complete_answers_of_the_same_model() {
    let cost = read(r#"{"usage": "envoy", "max": 5000, "reserve": {"input": 0}}"#).unwrap();
    let mut ratios = Ratios::default();
    let mut settle = |response: &TestRequest| {
        let end = End { response, stage: Stage::Ended(Trailers::default()), rule: 0, reserved: 0 };
        cost.settle(&end, &mut ratios, &mut Vec::new()).unwrap().cost
    };
    let aborted = reached(response("200", "downstream_remote_disconnect", 1_000));
    assert_eq!(settle(&aborted), 250, "the seed");
    let record = [("extraction_status", 1), ("output_tokens", 300), ("input_tokens", 0)];
    assert_eq!(settle(&reported(response("200", "via_upstream", 1_000), &record)), 300);
    assert_eq!(settle(&aborted), 300);
}

#[test]
fn prices_are_micro_dollars() {
    let cost = read(
        r#"{"usage": "envoy", "prices": {"gpt-4o": {"input": 2.50, "output": 10}, "gpt-*": {"input": 1, "output": 1},
            "*": {"input": 10, "output": 30}}}"#,
    )
    .unwrap();
    assert!(cost.is_money && cost.max == 100_000_000);
    let settle = |model: &[u8]| {
        let record = [("extraction_status", 1), ("input_tokens", 3), ("output_tokens", 2)];
        let response = reported(response("200", "via_upstream", 9), &record);
        let response = response.property(&typed("envoy.ai.token_usage", "model"), model);
        let end = End { response: &response, stage: Stage::Ended(Trailers::default()), rule: 0, reserved: 0 };
        let settled = cost.settle(&end, &mut Ratios::default(), &mut Vec::new()).unwrap();
        (settled.cost, settled.used.unwrap().is_unpriced)
    };
    assert_eq!(settle(b"gpt-4o"), (28, false));
    assert_eq!(settle(b"gpt-4o-mini"), (5, false));
    assert_eq!(settle(b"claude"), (90, true));
}

#[test]
fn use_in_metadata_of_any_filter() {
    let total = read(
        r#"{"usage": {"metadata": {"filter": "f", "total": ["a", "n"]}}, "max": 100, "without_usage": 50,
            "weights": {"input": 1, "output": 3}, "reserve": {"output": 5}}"#,
    )
    .unwrap();
    let settle = |value: &[u8]| {
        let response =
            response("200", "via_upstream", 9).property(b"metadata\0filter_metadata\0f\0a\0n", value);
        let end = End { response: &response, stage: Stage::Ended(Trailers::default()), rule: 0, reserved: 0 };
        let settled = total.settle(&end, &mut Ratios::default(), &mut Vec::new()).unwrap();
        (settled.cost, settled.line.to_string())
    };
    for (value, expected, result) in [
        (7.0_f64.to_le_bytes().as_slice(), 21, "complete"),
        (b"7", 21, "complete"),
        (&0.0_f64.to_le_bytes(), 0, "complete"),
        (&2.5_f64.to_le_bytes(), 50, "failed"),
        (&(-1.0_f64).to_le_bytes(), 50, "failed"),
        (b"1e3", 50, "failed"),
        (b"many", 50, "failed"),
        (b"9007199254740993", 50, "failed"),
        (b"", 50, "missing"),
    ] {
        assert_eq!(settle(value), (expected, result.to_string()), "{value:?}");
    }
    assert!(read(r#"{"usage": {"ai_gateway": {"total": "t"}}, "max": 1000000}"#).is_ok());
}

#[test]
fn use_of_which_a_part_is_missing_is_partial() {
    let cost = read(
        r#"{"usage": "ai_gateway", "max": 50000, "weights": {"output": 2}, "reserve": {"input": 100},
            "models": [{"model": "big", "weights": {"output": 3}}, {"model": "gpt-4o", "weights": {"output": 4}}]}"#,
    )
    .unwrap();
    let gateway = |key: &str| format!("metadata\0filter_metadata\0io.envoy.ai_gateway\0{key}").into_bytes();
    let settle = |written: &[(&str, f64)], model: Option<&[u8]>| {
        let mut response =
            response("200", "via_upstream", 40).property(b"request\0headers\0x-ai-eg-model", b"gpt-4o");
        for (key, value) in written {
            response = response.property(&gateway(key), &value.to_le_bytes());
        }
        if let Some(model) = model {
            response = response.property(&gateway("model_name_override"), model);
        }
        let end = End { response: &response, stage: Stage::Ended(Trailers::default()), rule: 0, reserved: 0 };
        let settled = cost.settle(&end, &mut Ratios::default(), &mut Vec::new()).unwrap();
        (settled.cost, settled.line.to_string())
    };
    let (input, output, total) = ("llm_input_token", "llm_output_token", "llm_total_token");
    // Without use 100 tokens of the prompt and a quarter of 40 bytes are estimated.
    for (written, model, expected, result) in [
        (&[(input, 7.0), (output, 5.0)][..], None, 7 + 4 * 5, "complete"),
        (&[(input, 7.0), (output, 5.0)], Some(b"big".as_slice()), 7 + 3 * 5, "complete"),
        (&[(input, 7.0), (output, 5.0)], Some(b"other"), 7 + 4 * 5, "complete"),
        (&[(input, 7.0), (total, 12.0)], None, 7 + 4 * 5, "complete"),
        (&[(output, 5.0), (total, 12.0)], None, 7 + 4 * 5, "complete"),
        (&[(total, 12.0)], None, 4 * 12, "complete"),
        (&[(input, 7.0)], None, 100 + 4 * 10, "partial"),
        (&[(input, 900.0)], None, 900, "partial"),
        (&[(output, 70.0)], None, 280, "partial"),
        (&[], None, 100 + 4 * 10, "missing"),
    ] {
        assert_eq!(settle(written, model), (expected, result.to_string()), "{written:?} {model:?}");
    }
}

#[test]
fn errors() {
    for (json, problem) in [
        (r#"{"usage": "envoy"}"#, "max: it is missing"),
        (r#"{"usage": "body", "max": 9}"#, "is no source of use"),
        (r#"{"usage": {"metadata": {"filter": "f", "input": "i"}}, "max": 100000}"#, "total, or both"),
        (
            r#"{"usage": {"metadata": {"input": "i", "output": "o"}}, "max": 100000}"#,
            "none of filter or typed",
        ),
        (r#"{"usage": "envoy", "prices": {"a": {"input": 1, "output": 1}}}"#, "prices.*: it is missing"),
        (r#"{"usage": "envoy", "prices": {"*": {"input": 1}}}"#, "output: it is missing"),
        (
            r#"{"usage": "envoy", "prices": {"*": {"input": 1, "output": 1}}, "weights": {}}"#,
            "no effect beside prices",
        ),
        (r#"{"usage": "envoy", "max": 4095}"#, "max: it is below the reserve"),
        (r#"{"usage": "envoy", "max": 100000, "weights": {"input": -1}}"#, "is not a weight"),
        (r#"{"usage": "envoy", "max": 100000, "weights": {"input": 0.0000001}}"#, "is not a weight"),
        (r#"{"usage": "envoy", "max": 100000, "weights": {"input": 1000001}}"#, "is not a weight"),
        (r#"{"usage": "envoy", "max": 100000, "without_usage": 100001}"#, "out of range"),
        (r#"{"usage": "envoy", "max": 100000, "on_disconnect": "free"}"#, "is not a charge"),
        (r#"{"usage": "envoy", "max": 100000, "reserve": {"output": "guessed"}}"#, "reserve.output"),
        (r#"{"usage": "envoy", "max": 100000, "when": []}"#, "no such field"),
    ] {
        let error = read(json).unwrap_err();
        assert!(error.contains(problem), "{json}\n{error}");
    }
}
