//! Tests that the tokens in Weir's own manifests protect nothing: the aggregator refuses them where other machines reach it.

use crate::support::server::{ShiftedClock, settings};
use std::path::Path;
use std::sync::Arc;
use weir_aggregator::api::{ApiSettings, Insecure};
use weir_aggregator::auth::PUBLISHED_TOKENS;
use weir_aggregator::server::{ServeError, Server, Settings};

async fn start(token: &str, grpc_listen: &str, insecure: Insecure) -> Result<Server, ServeError> {
    let api = ApiSettings { insecure, ..settings().api };
    let token = Some(token.to_owned());
    let settings = Settings { api, token, grpc_listen: grpc_listen.into(), ..settings() };
    Server::start(settings, Arc::new(ShiftedClock::default())).await
}

#[tokio::test]
async fn a_published_token_opens_no_listener_to_other_machines() {
    let everywhere = "0.0.0.0:0";
    for token in PUBLISHED_TOKENS {
        let refused =
            start(token, everywhere, Insecure::default()).await.err().map(|error| error.to_string());
        let refused = refused.unwrap_or_else(|| panic!("the server must not start with {token}"));
        assert!(refused.contains(token) && refused.contains("WEIR_FILTER_TOKEN"), "{refused}");
    }
    let accepted = Insecure { grpc: true, ..Insecure::default() };
    for (token, listen, insecure) in [
        ("change-me", "127.0.0.1:0", Insecure::default()),
        ("change-me", everywhere, accepted),
        ("a-token-of-this-test", everywhere, Insecure::default()),
    ] {
        start(token, listen, insecure).await.unwrap().stop().await;
    }
}

#[test]
fn every_token_of_a_manifest_is_known() {
    let mut found = 0;
    walk(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../envoy/deploy"), &mut |text| {
        for line in text.lines().filter(|line| !line.trim_start().starts_with('#')) {
            let Some((_, value)) =
                line.split_once("WEIR_FILTER_TOKEN: ").or_else(|| line.split_once(" token: "))
            else {
                continue;
            };
            let value = value.trim_start_matches("&token ");
            let token = value.split([' ', ',', '}']).next().unwrap_or_default();
            let is_literal = !token.starts_with(['*', '{', '$', '"', '#']) && !token.is_empty();
            if is_literal {
                found += 1;
                assert!(PUBLISHED_TOKENS.contains(&token), "{line}");
            }
        }
    });
    assert!(found >= 5, "{found} tokens were found");
}

fn walk(folder: &Path, read: &mut dyn FnMut(&str)) {
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        match path.extension().and_then(|extension| extension.to_str()) {
            _ if path.is_dir() => walk(&path, read),
            Some("yaml" | "yml") => read(&std::fs::read_to_string(&path).unwrap()),
            _ => {}
        }
    }
}
