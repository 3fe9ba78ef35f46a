//! A real Envoy's decisions as the aggregator's admin API and the terminal commands show them.

use std::process::{Command, Output};

use serde_json::{Value, json};
use weir_envoy::{Aggregator, EnvoyOptions, binaries, http, wait};

use super::common::{Region, SOON, config, get_as, rule, with};

const HOSTILE: &str = "<img src=x onerror=alert(1)>";

pub async fn page(aggregator: &Aggregator, path: &str) -> Value {
    aggregator.admin_get(path).await.unwrap().json().unwrap()
}

/// The output of a command.
fn printed(aggregator: &Aggregator, arguments: &[&str]) -> String {
    let output = output(aggregator, arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The error of a command that fails.
fn fails(aggregator: &Aggregator, arguments: &[&str]) -> String {
    let output = output(aggregator, arguments);
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).unwrap()
}

fn output(aggregator: &Aggregator, arguments: &[&str]) -> Output {
    let server = format!("http://{}", aggregator.admin_address());
    let mut command = Command::new(binaries::aggregator().unwrap());
    command.args(arguments).args(["--admin-url", &server]).output().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_of_an_envoy_are_shown_exactly() {
    let shadow = with(rule("tight", 3), json!({ "shadow_mode": true }));
    let config = config(&[rule("r", 5), shadow]);
    let region = Region::start(1, EnvoyOptions::default(), &config).await;
    let reported =
        async || page(&region.aggregator, "/v1/rules").await["rules"].as_array().unwrap().len() == 2;
    wait::until("the filter has reported its rules", SOON, reported).await.unwrap();
    for key in [HOSTILE; 8].into_iter().chain(["light"; 2]) {
        http::send(region.envoy().address(), get_as(key)).await.unwrap();
    }
    let decided = async |name: &str| {
        let rules = page(&region.aggregator, "/v1/rules").await;
        let rules = rules["rules"].as_array().unwrap().clone();
        let rule = rules.into_iter().find(|rule| rule["name"] == name).unwrap();
        let of = |outcome: &str| rule["decided"][outcome].as_u64().unwrap();
        (of("allowed"), of("denied"), of("shadow_denied"))
    };
    // The shadow rule would also have denied what the first rule denies.
    let all = async || decided("r").await == (7, 3, 0) && matches!(decided("tight").await, (5, 0, 2..=5));
    let waited = wait::until("all decisions are reported", SOON, all).await;
    assert!(waited.is_ok(), "r {:?}, tight {:?}", decided("r").await, decided("tight").await);

    let first = async || page(&region.aggregator, "/v1/top").await["keys"][0]["identifier"] == HOSTILE;
    wait::until("the key at its limit comes first", SOON, first).await.unwrap();
    let parts = page(&region.aggregator, "/v1/parts").await;
    assert_eq!((&parts["envoys_connected"], &parts["envoys_alive"]), (&json!(1), &json!(1)), "{parts}");

    let top = printed(&region.aggregator, &["top", "--once"]);
    assert!(top.contains(HOSTILE) && top.contains("would deny 1 now"), "{top}");
    let explained = printed(&region.aggregator, &["explain", "--namespace", "r", "--identifier", HOSTILE]);
    for part in ["5 of 5 (100%)", "would be denied", "rule r, 5 before overrides", "connected here"] {
        assert!(explained.contains(part), "no {part:?} in\n{explained}");
    }
    // Without a namespace the identifier is explained in each that counts it; a search shows one table.
    let explained = printed(&region.aggregator, &["explain", "--identifier", HOSTILE]);
    for part in ["in namespace r, workspace default", "in namespace tight, workspace default"] {
        assert!(explained.contains(part), "no {part:?} in\n{explained}");
    }
    let refused = fails(&region.aggregator, &["explain", "--identifier", "nobody"]);
    assert!(refused.contains("which are r, tight; see --workspace"), "{refused}");
    let found = printed(&region.aggregator, &["top", "--text", "LIGHT"]);
    assert!(
        found.starts_with("NAMESPACE") && found.lines().count() == 3 && found.contains("light"),
        "{found}"
    );
    region.is_sound().await;
}
