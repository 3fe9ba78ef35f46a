//! Each API denies what another region has used up, also after a time without calls: the embedded limiter then has left its region, and
//! decides its first call by counts that it has to receive again.

use crate::support::database::{Scene, Store};
use crate::support::http::{Client, write};
use crate::support::rlqs::Proxy;
use crate::support::rls::{OK, call, codes, descriptor, request};
use crate::support::server::{DEADLINE, Weir, settings, start_with, until};
use serde_json::json;
use tempfile::TempDir;
use weir_aggregator::api::{ApiSettings, rls};
use weir_aggregator::database::DatabaseOptions;
use weir_aggregator::server::Settings;
use weir_core::model::key::{Key, KeyParts};
use weir_core::model::schedule::Schedule;
use weir_core::region::top::Top;
use weir_envoy::wait;

const LIMIT: u64 = 100;
/// Calls in the other region, beyond the limit of a day.
const CALLS: u64 = 150;
const LIMITS: &str = "
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 100}
";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Api {
    Http,
    Rls,
    Rlqs,
}

const APIS: [Api; 3] = [Api::Http, Api::Rls, Api::Rlqs];

struct Region {
    weir: Weir,
    _folder: TempDir,
}

impl Region {
    async fn start(region: &str, scene: &Scene) -> Region {
        let folder = tempfile::tempdir().unwrap();
        let files = Some(write(folder.path(), "edge.yaml", LIMITS));
        let rls = rls::Settings { files, ..rls::Settings::default() };
        let (url, read_url, region) = (scene.url.clone(), None, region.to_owned());
        let weir = start_with(Settings {
            region: region.clone(),
            database: Some(DatabaseOptions { url, read_url, region }),
            // A limiter leaves its region after a millisecond without a call, not after a minute.
            schedule: Schedule { leave_ms: 1, ..Schedule::for_tests() },
            api: ApiSettings { rls, ..settings().api },
            ..settings()
        });
        Region { weir: weir.await, _folder: folder }
    }

    /// How many of these calls about `user` pass.
    async fn passed(&self, api: Api, user: &str, calls: u64) -> u64 {
        let mut passed = 0;
        match api {
            Api::Http => {
                let check = json!({"namespace": "n", "identifier": [user], "limit": LIMIT, "duration": "1d"});
                let mut client = Client::connect(&self.weir).await;
                for _ in 0..calls {
                    let answer = client.post("/v1/check", &check).await;
                    assert_eq!(answer.status, 200, "{answer:?}");
                    passed += u64::from(answer.body["allowed"] == true);
                }
            }
            Api::Rls => {
                let channel = self.weir.connect().await;
                for _ in 0..calls {
                    let answer = call(&channel, request(vec![descriptor(&[("user", user)])])).await.unwrap();
                    passed += u64::from(codes(&answer).0 == OK);
                }
            }
            Api::Rlqs => {
                // As an Envoy, which reports what it was assigned once it has passed so much.
                let mut proxy = Proxy::open(self.weir.connect().await).await;
                let mut assigned = proxy.tokens(&[("user", user)], 0, 0).await;
                while passed < calls && assigned > 0 {
                    let passes = assigned.min(calls - passed);
                    passed += passes;
                    assigned = proxy.tokens(&[("user", user)], passes, 0).await;
                }
            }
        }
        passed
    }

    /// The keys that are near their limits.
    fn nearest(&self) -> Vec<Key> {
        let mut top = Top::default();
        while self.weir.server.services().region(|region, now| region.rank(&mut top, now)) {}
        top.nearest.into_iter().map(|ranked| ranked.key).collect()
    }

    /// What other regions have used of a key.
    fn others_use(&self, key: &Key) -> u64 {
        let KeyParts { workspace, namespace, identifier, .. } = key.parts();
        let explained = self.weir.server.services().explain(workspace, namespace, identifier);
        explained.iter().flat_map(|key| &key.cells).map(|cell| cell.global_others).sum()
    }

    async fn is_idle(&self) {
        until("the limiter has left", || self.weir.server.services().stats().live_nodes == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_region_has_used_up_passes_through_no_api_after_an_idle_time() {
    let store = Store::sqlite();
    let scene = store.fresh().await;
    let (a, b) = (Region::start("a", &scene).await, Region::start("b", &scene).await);
    for api in APIS {
        // Each limiter was in its region before.
        assert_eq!(b.passed(api, "other", 1).await, 1, "{api:?}");
        assert_eq!(a.passed(api, &format!("{api:?}"), CALLS).await, LIMIT, "{api:?}");
    }
    let received = async || {
        let keys = a.nearest();
        keys.len() == APIS.len() && keys.iter().all(|key| b.others_use(key) == LIMIT)
    };
    wait::until("the other region has what was used", DEADLINE, received).await.unwrap();
    for api in APIS {
        for _ in 0..5 {
            b.is_idle().await;
            assert_eq!(b.passed(api, &format!("{api:?}"), CALLS / 5).await, 0, "{api:?}");
        }
    }
}
