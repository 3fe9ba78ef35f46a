//! Tests of what set-ups of the reference service rely on: quotas, hits of descriptors, refunds, metadata, headers, and the
//! settings for all limits.

use crate::support::rls::{Entries, OK, OVER, call, codes, descriptor, remaining, request, service};
use futures_util::future::join_all;
use prost_types::Struct;
use prost_types::value::Kind;
use tonic::transport::Channel;
use weir_aggregator::api::rls::Answering;
use weir_aggregator::api::rls::wire::{Descriptor, RateLimitRequest, RateLimitResponse};

const LIMITS: &str = "
domain: edge
descriptors:
  - {key: one, quota_mode: true, rate_limit: {unit: month, requests_per_unit: 1}, metadata: {pool: {one: '1'}}}
  - {key: two, quota_mode: true, rate_limit: {unit: month, requests_per_unit: 2}, metadata: {pool: {two: '2'}}}
  - {key: shade, quota_mode: true, shadow_mode: true, rate_limit: {unit: month, requests_per_unit: 0}}
  - {key: user, rate_limit: {unit: month, requests_per_unit: 5}}
  - {key: wide, rate_limit: {unit: month, requests_per_unit: 100}}
  - {key: tokens, rate_limit: {unit: month, requests_per_unit: 1000}}
  - {key: brief, rate_limit: {unit: second, requests_per_unit: 10}}
  - {key: free, rate_limit: {unlimited: true}}
";

async fn check(channel: &Channel, descriptors: Vec<Descriptor>) -> RateLimitResponse {
    call(channel, request(descriptors)).await.unwrap()
}

async fn of(channel: &Channel, descriptors: &[Entries<'_>]) -> RateLimitResponse {
    check(channel, descriptors.iter().map(|entries| descriptor(entries)).collect()).await
}

fn hits(entries: Entries<'_>, hits: u64) -> Descriptor {
    Descriptor { hits_addend: Some(hits), ..descriptor(entries) }
}

fn back(entries: Entries<'_>, given: u64) -> Descriptor {
    Descriptor { is_negative_hits: true, ..hits(entries, given) }
}

const ONE: Entries = &[("one", "x")];
const TWO: Entries = &[("two", "x")];
const USER: Entries = &[("user", "a")];
const WIDE: Entries = &[("wide", "a")];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quotas_deny_only_together() {
    let (_weir, channel, _folder) = service(LIMITS, Answering::default()).await;
    let response = of(&channel, &[ONE, TWO, USER]).await;
    assert_eq!((codes(&response), remaining(&response)), ((OK, vec![OK, OK, OK]), vec![0, 1, 4]));
    let response = of(&channel, &[ONE, TWO, USER]).await;
    assert_eq!((codes(&response), remaining(&response)), ((OK, vec![OVER, OK, OK]), vec![0, 0, 3]));
    let denied = of(&channel, &[ONE, TWO, USER]).await;
    assert_eq!((codes(&denied), remaining(&denied)), ((OVER, vec![OVER, OVER, OK]), vec![0, 0, 3]));
    assert_eq!(denied.response_headers_to_add[0].key, "retry-after");
    let response = of(&channel, &[USER]).await;
    assert_eq!(remaining(&response), [2], "the denied call was charged nothing");
    // A quota in shadow mode never is over, so not all are.
    let response = of(&channel, &[ONE, TWO, &[("shade", "x")]]).await;
    assert_eq!(codes(&response), (OK, vec![OVER, OVER, OK]));
    // Descriptors without a limit are no quotas.
    assert_eq!(
        codes(&of(&channel, &[ONE, &[("free", "")], &[("other", "")]]).await),
        (OVER, vec![OVER, OK, OK])
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_that_denies_leaves_quotas_uncharged() {
    let (_weir, channel, _folder) = service(LIMITS, Answering::default()).await;
    for _ in 0..5 {
        assert_eq!(codes(&of(&channel, &[USER]).await).0, OK);
    }
    let denied = of(&channel, &[TWO, USER]).await;
    assert_eq!((codes(&denied), remaining(&denied)), ((OVER, vec![OK, OVER]), vec![2, 0]));
}

/// The hits of a response, such as tokens, are used whether or not they fit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hits_of_a_descriptor_count_even_if_they_do_not_fit() {
    let (_weir, channel, _folder) = service(LIMITS, Answering::default()).await;
    let look = || vec![hits(USER, 0), hits(WIDE, 0)];
    assert_eq!(remaining(&check(&channel, look()).await), [5, 100]);
    let used = check(&channel, vec![hits(USER, 12), hits(WIDE, 12)]).await;
    assert_eq!((codes(&used), remaining(&used)), ((OVER, vec![OVER, OK]), vec![0, 88]));
    let later = check(&channel, look()).await;
    assert_eq!((codes(&later), remaining(&later)), ((OVER, vec![OVER, OK]), vec![0, 88]), "12 of 5 are used");
    // Once the limit is exceeded, its count stays as it is, and the other's does not.
    let used = check(&channel, vec![hits(USER, 12), hits(WIDE, 12)]).await;
    assert_eq!((codes(&used), remaining(&used)), ((OVER, vec![OVER, OK]), vec![0, 76]));
    // Such descriptors deny the limits beside them, which are then not charged.
    let beside: Entries = &[("user", "b")];
    let denied = check(&channel, vec![hits(USER, 1), descriptor(beside)]).await;
    assert_eq!((codes(&denied), remaining(&denied)), ((OVER, vec![OVER, OK]), vec![0, 5]));
    // A quota counts so too, and does not deny alone.
    let used = check(&channel, vec![hits(ONE, 7), hits(TWO, 1)]).await;
    assert_eq!((codes(&used), remaining(&used)), ((OK, vec![OVER, OK]), vec![0, 1]));
    let look = check(&channel, vec![hits(ONE, 0), hits(TWO, 0)]).await;
    assert_eq!((codes(&look), remaining(&look)), ((OK, vec![OVER, OK]), vec![0, 1]));
}

/// Concurrent calls all find the limit unexceeded. Each cost counts, until the limit is exceeded.
#[tokio::test]
async fn concurrent_hits_of_descriptors_all_count_until_the_limit_is_exceeded() {
    let (_weir, channel, _folder) = service(LIMITS, Answering::default()).await;
    for key in 0..10 {
        let key = format!("k{key}");
        let tokens: Entries = &[("tokens", &key)];
        let calls = (0..8).map(|_| check(&channel, vec![hits(tokens, 300)]));
        let responses = join_all(calls).await;
        let passed = responses.iter().filter(|response| codes(response).0 == OK).count();
        let look = check(&channel, vec![hits(tokens, 0)]).await;
        assert_eq!((passed, codes(&look).0, remaining(&look)), (3, OVER, vec![0]), "4 × 300 of 1 000 count");
    }
}

/// A call that its quotas deny charges no limit beside them, whatever other calls charge meanwhile.
#[tokio::test]
async fn concurrent_calls_share_a_quota_and_charge_nothing_if_they_are_denied() {
    let (_weir, channel, _folder) = service(LIMITS, Answering::default()).await;
    for key in 0..10 {
        let key = format!("k{key}");
        let (one, two, wide): (Entries, Entries, Entries) =
            (&[("one", &key)], &[("two", &key)], &[("wide", &key)]);
        let all: [Entries; 3] = [one, two, wide];
        let calls = (0..6).map(|_| of(&channel, &all));
        let passed = join_all(calls).await.iter().filter(|response| codes(response).0 == OK).count();
        let look = check(&channel, vec![hits(one, 0), hits(two, 0), hits(wide, 0)]).await;
        assert_eq!((passed, remaining(&look)), (2, vec![0, 0, 98]), "one charged once, two and wide twice");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hits_that_are_given_back_can_be_used_again() {
    let (_weir, channel, _folder) = service(LIMITS, Answering::default()).await;
    assert_eq!(remaining(&check(&channel, vec![hits(USER, 4)]).await), [1]);
    let refund = check(&channel, vec![back(USER, 3)]).await;
    assert_eq!((codes(&refund), remaining(&refund)), ((OK, vec![OK]), vec![4]));
    for left in [3, 2, 1, 0] {
        assert_eq!(remaining(&of(&channel, &[USER]).await), [left]);
    }
    assert_eq!(codes(&of(&channel, &[USER]).await), (OVER, vec![OVER]));
    // No more comes back than was used, and a refund is never over its limit.
    let refund = check(&channel, vec![back(USER, u64::MAX)]).await;
    assert_eq!((codes(&refund), remaining(&refund)), ((OK, vec![OK]), vec![5]));
    let refund = check(&channel, vec![back(USER, 9), descriptor(WIDE)]).await;
    assert_eq!((codes(&refund), remaining(&refund)), ((OK, vec![OK, OK]), vec![5, 99]));
    // What was taken for a call that is denied is there for the next.
    let many = RateLimitRequest { hits_addend: 6, ..request(vec![descriptor(USER)]) };
    let denied = call(&channel, many).await.unwrap();
    assert_eq!((codes(&denied), remaining(&denied)), ((OVER, vec![OVER]), vec![0]));
    assert_eq!(remaining(&check(&channel, vec![hits(USER, 5)]).await), [0]);
    assert_eq!(codes(&of(&channel, &[USER]).await).0, OVER);
    // Where nothing was used, nothing comes back.
    assert_eq!(remaining(&check(&channel, vec![back(&[("user", "new")], 3)]).await), [5]);
    for _ in 0..5 {
        assert_eq!(codes(&of(&channel, &[&[("user", "new")]]).await).0, OK);
    }
    assert_eq!(codes(&of(&channel, &[&[("user", "new")]]).await).0, OVER);
}

/// A cost that is denied counts if its descriptor states it, so a limit may be exceeded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hits_that_are_given_back_to_an_exceeded_limit_make_up_for_what_is_above_it_first() {
    let (_weir, channel, _folder) = service(LIMITS, Answering::default()).await;
    let tokens: Entries = &[("tokens", "x")];
    assert_eq!(remaining(&check(&channel, vec![hits(tokens, 900)]).await), [100]);
    assert_eq!(codes(&check(&channel, vec![hits(tokens, 600)]).await).0, OVER, "1 500 of 1 000");
    let refund = check(&channel, vec![back(tokens, 400)]).await;
    assert_eq!((codes(&refund).0, remaining(&refund)), (OK, vec![0]), "1 100 are left");
    assert_eq!(codes(&of(&channel, &[tokens]).await).0, OVER);
    let refund = check(&channel, vec![back(tokens, 200)]).await;
    assert_eq!((codes(&refund).0, remaining(&refund)), (OK, vec![100]), "900 are left");
    let look = check(&channel, vec![hits(tokens, 0)]).await;
    assert_eq!((codes(&look).0, remaining(&look)), (OK, vec![100]));
    assert_eq!(remaining(&check(&channel, vec![hits(tokens, 40), descriptor(WIDE)]).await), [60, 99]);
    assert_eq!(remaining(&check(&channel, vec![hits(tokens, 60)]).await), [0]);
    assert_eq!(codes(&of(&channel, &[tokens]).await).0, OVER);
    // As before, the cost that exceeds the limit counts in full.
    check(&channel, vec![back(tokens, 1_500)]).await;
    assert_eq!(codes(&check(&channel, vec![hits(tokens, 1_300)]).await).0, OVER);
    let refund = check(&channel, vec![back(tokens, 400)]).await;
    assert_eq!((codes(&refund).0, remaining(&refund)), (OK, vec![100]), "900 of 1 300 are left");
}

/// What was used in the unit before fades by itself, so it is not given back as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hits_of_the_unit_before_are_not_given_back() {
    let (weir, channel, _folder) = service(LIMITS, Answering::default()).await;
    let brief: Entries = &[("brief", "a")];
    // The unit of the last call, or a later one.
    let unit = || weir.server.services().moment().unix.0 / 1_000;
    for _ in 0..2 {
        // Uses up a unit until its end.
        let begun = unit();
        while unit() == begun {
            of(&channel, &[brief]).await;
        }
        check(&channel, vec![back(brief, 10)]).await;
        let begun = unit();
        let mut passed = 1;
        loop {
            let response = of(&channel, &[brief]).await;
            if unit() > begun {
                break;
            }
            passed += i32::from(codes(&response).0 == OK);
        }
        assert!(passed <= 11, "{passed} of 10 in a second; one of them is given back");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dynamic_metadata_has_the_request_and_what_passes() {
    let answering = Answering { dynamic_metadata: true, ..Answering::default() };
    let (_weir, channel, _folder) = service(LIMITS, answering).await;
    let pools = |response: &RateLimitResponse| {
        let metadata = response.dynamic_metadata.clone().unwrap();
        let object = |of: &Struct, name: &str| match of.fields.get(name).map(|member| member.kind.clone()) {
            Some(Some(Kind::StructValue(object))) => object,
            _ => Struct::default(),
        };
        assert_eq!(metadata.fields["domain"].kind, Some(Kind::StringValue("edge".into())));
        let pools = object(&object(&metadata, "metadata"), "pool");
        pools.fields.into_keys().collect::<Vec<_>>()
    };
    assert_eq!(pools(&of(&channel, &[ONE, TWO]).await), ["one", "two"]);
    assert_eq!(pools(&of(&channel, &[ONE, TWO]).await), ["two"]);
    assert_eq!(pools(&of(&channel, &[ONE, TWO]).await), [""; 0]);
    let (_weir, channel, _folder) = service(LIMITS, Answering::default()).await;
    assert_eq!(of(&channel, &[ONE]).await.dynamic_metadata, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn response_headers_show_the_nearest_limit() {
    let names = ["RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"].map(str::to_owned);
    let answering = Answering { response_headers: Some(names), ..Answering::default() };
    let (_weir, channel, _folder) = service(LIMITS, answering).await;
    let shown = |response: &RateLimitResponse| {
        let header = |name: &str| {
            let headers = &response.response_headers_to_add;
            headers.iter().find(|header| header.key == name).map(|header| header.value.clone())
        };
        let seconds = |name| header(name).map(|seconds| seconds.parse::<u64>().unwrap());
        let least = seconds("retry-after").unwrap_or(1);
        let reset = seconds("RateLimit-Reset");
        assert!(reset.is_none_or(|reset| (least..=60 * 24 * 3_600).contains(&reset)), "{reset:?}");
        header("RateLimit-Limit").zip(header("RateLimit-Remaining"))
    };
    let pair = |limit: &str, left: &str| Some((limit.to_owned(), left.to_owned()));
    assert_eq!(shown(&of(&channel, &[WIDE, USER]).await), pair("5", "4"));
    assert_eq!(shown(&of(&channel, &[&[("other", "")]]).await), None);
    // A tenth of the tokens is left, and more of the others, though these are fewer.
    let tokens: Entries = &[("tokens", "a")];
    let both = vec![descriptor(&[("user", "b")]), hits(tokens, 900)];
    assert_eq!(shown(&check(&channel, both).await), pair("1000", "100"));
    check(&channel, vec![hits(USER, 9)]).await;
    assert_eq!(shown(&of(&channel, &[WIDE, USER]).await), pair("5", "0"));
    // The fractions of a second that are left are one, and a denied client that waits for the reset does not come too early.
    for _ in 0..12 {
        assert!(shown(&of(&channel, &[&[("brief", "b")]]).await).is_some());
    }
    for _ in 0..3 {
        assert!(shown(&of(&channel, &[&[("brief", "b")], USER]).await).is_some());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_may_learn_which_limits_a_request_exceeds() {
    let exceeded_header = Some("x-ratelimit-exceeded".to_owned());
    let (_weir, channel, _folder) =
        service(LIMITS, Answering { exceeded_header, ..Answering::default() }).await;
    let exceeded = |response: RateLimitResponse| {
        response
            .request_headers_to_add
            .into_iter()
            .map(|header| (header.key, header.value))
            .collect::<Vec<_>>()
    };
    let named = |names: &str| vec![("x-ratelimit-exceeded".to_owned(), names.to_owned())];
    assert_eq!(exceeded(of(&channel, &[ONE, TWO]).await), []);
    assert_eq!(exceeded(of(&channel, &[ONE, TWO]).await), named("edge.one"));
    assert_eq!(exceeded(of(&channel, &[ONE, TWO]).await), [], "a denied request has no upstream");
    assert_eq!(exceeded(of(&channel, &[ONE, &[("shade", "x")]]).await), named("edge.one, edge.shade"));
    assert_eq!(exceeded(of(&channel, &[USER]).await), []);
    let (_weir, channel, _folder) = service(LIMITS, Answering::default()).await;
    assert_eq!(exceeded(of(&channel, &[&[("shade", "x")]]).await), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_limits_may_be_in_shadow_mode_or_quotas() {
    let shadow = Answering { shadow_mode: true, ..Answering::default() };
    let (weir, channel, _folder) = service(LIMITS, shadow).await;
    for _ in 0..5 {
        assert_eq!(codes(&of(&channel, &[USER]).await), (OK, vec![OK]));
    }
    let response = of(&channel, &[USER, WIDE]).await;
    assert_eq!((codes(&response), remaining(&response)), ((OK, vec![OVER, OK]), vec![0, 99]));
    assert_eq!(response.response_headers_to_add, []);
    let counted = weir.metric("weir_aggregator_api_decisions_total{api=\"rls\",result=\"shadow_denied\"}");
    assert_eq!(counted, 1.0);
    let quota = Answering { quota_mode: true, ..Answering::default() };
    let (_weir, channel, _folder) = service(LIMITS, quota).await;
    for _ in 0..5 {
        assert_eq!(codes(&of(&channel, &[USER]).await).0, OK);
    }
    assert_eq!(codes(&of(&channel, &[USER, WIDE]).await), (OK, vec![OVER, OK]));
    assert_eq!(codes(&of(&channel, &[USER]).await), (OVER, vec![OVER]));
    assert_eq!(codes(&of(&channel, &[USER, &[("other", "")]]).await), (OK, vec![OVER, OK]), "one passes");
}
