//! Rules that ban: an identifier that is denied too often is denied for a while by all workers, and longer each time.
//! Bans survive faults.

use serde_json::{Value, json};
use weir_envoy::http::Response;
use weir_envoy::load::{self, LoadPlan};
use weir_envoy::{Envoy, EnvoyOptions, wait};

use super::common::{Region, SOON, config, get_as, rule, vm_reloads, with};

const DENIALS: u64 = 10;

/// A rule with a limit of 1 and a ban of these durations.
fn banning(first: &str, longest: &str) -> Value {
    let ban = json!({ "threshold": DENIALS, "window": "1m", "duration": first, "max_duration": longest });
    with(rule("r", 1), json!({ "ban": ban }))
}

async fn send_as(envoy: &Envoy, key: &str) -> Response {
    envoy.send(get_as(key)).await.unwrap()
}

/// Seconds until a ban ends; `None` if the response is not that of a ban.
fn banned_for(answer: &Response) -> Option<u64> {
    // A denial by the limit has headers about the limit; one by a ban has none.
    let is_ban = answer.status == 429 && answer.header("x-ratelimit-limit").is_none();
    is_ban.then(|| answer.header("retry-after").unwrap().parse().unwrap())
}

/// Sends requests until a ban begins; returns its duration and the number of denials before it.
async fn until_banned(envoy: &Envoy, key: &str) -> (u64, u64) {
    let (mut seconds, mut denials) = (0, 0);
    let banned = async || match send_as(envoy, key).await {
        answer if answer.status == 200 => false,
        answer => match banned_for(&answer) {
            Some(left) => {
                seconds = left;
                true
            }
            None => {
                denials += 1;
                false
            }
        },
    };
    wait::until("a ban", SOON, banned).await.unwrap();
    (seconds, denials)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_violations_ban_on_all_workers_and_longer_each_time() {
    let options = EnvoyOptions { concurrency: 2, ..EnvoyOptions::default() };
    let region = Region::start(1, options, &config(&[banning("4s", "8s")])).await;
    let envoy = region.envoy();
    let (first, _) = until_banned(envoy, "mallory").await;
    assert!((1..=4).contains(&first), "{first} s");
    // On any connection, and so any worker: workers without the ban receive it at their next ticks.
    let all_deny = async || {
        let answers = [
            send_as(envoy, "mallory").await,
            send_as(envoy, "mallory").await,
            send_as(envoy, "mallory").await,
        ];
        answers.iter().all(|answer| banned_for(answer).is_some())
    };
    wait::until("all workers deny", SOON, all_deny).await.unwrap();
    assert_eq!(send_as(envoy, "alice").await.status, 200, "others are not concerned");

    let plan = LoadPlan::of(vec![envoy.address()], 8, 500, |_| (0, get_as("mallory")));
    let hammered = load::run(plan).await.unwrap();
    assert_eq!(hammered.count(429), 500, "{hammered:?}");
    let over = async || banned_for(&send_as(envoy, "mallory").await).is_none();
    wait::until("the ban is over, hammered or not", SOON, over).await.unwrap();

    let (second, denials) = until_banned(envoy, "mallory").await;
    assert!((5..=8).contains(&second), "{second} s, twice as long as before");
    assert!(denials >= DENIALS - 1, "{denials} denials: those of the time before do not count");
    envoy
        .wait_stat("wasmcustom.weir_decisions_total.rule.r.outcome.banned", SOON, |count| count >= 3)
        .await
        .unwrap();
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_vm_keeps_the_ban() {
    let faulty = with(config(&[banning("10m", "24h")]), json!({ "test_faults": true }));
    let region = Region::start(1, EnvoyOptions::default(), &faulty).await;
    let envoy = region.envoy();
    until_banned(envoy, "mallory").await;
    // A worker stores its decisions at its next tick.
    let counted = async || vm_reloads(envoy).await > 0;
    envoy
        .wait_stat("wasmcustom.weir_decisions_total.rule.r.outcome.banned", SOON, |bans| bans > 0)
        .await
        .unwrap();
    assert_eq!(envoy.send(get_as("x").header("x-weir-fault", "panic")).await.unwrap().status, 503);
    let again = async || send_as(envoy, "x").await.status == 200;
    wait::until("another VM serves", SOON, again).await.unwrap();
    assert!(banned_for(&send_as(envoy, "mallory").await).is_some());
    wait::until("it was another VM", SOON, counted).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_envoys_of_a_region_count_denials_together() {
    let region = Region::start(2, EnvoyOptions::default(), &config(&[banning("10m", "24h")])).await;
    let [one, other] = &region.envoys[..] else { panic!("two Envoys") };
    while send_as(one, "mallory").await.status == 200 {}
    for _ in 1..DENIALS - 2 {
        assert!(banned_for(&send_as(one, "mallory").await).is_none());
    }
    region.settles_at("~r", "mallory", DENIALS - 2).await;
    let (seconds, denials) = until_banned(other, "mallory").await;
    println!("after {denials} denials of its own, for {seconds} s");
    assert!(denials < DENIALS, "{denials} alone would have been too few");
    assert!(banned_for(&send_as(other, "mallory").await).is_some());
    assert_eq!(send_as(other, "alice").await.status, 200);
    region.is_sound().await;
}
