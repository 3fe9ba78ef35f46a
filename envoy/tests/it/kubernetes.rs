//! What is shipped for containers agrees with itself: manifests, Dockerfiles, the compose file and what the programs read.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use weir_core::rules::{Config, find_plugin_configs};
use weir_envoy::bootstrap::bootstrap;
use weir_envoy::{EnvoyOptions, binaries, yaml};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const COMPOSE_FILES: [&str; 3] =
    ["envoy/deploy/docker-compose.yml", "envoy/deploy/quickstart.yml", "envoy/deploy/docker/services.yml"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn documents(path: &str) -> Vec<Value> {
    parsed(path, &read(path))
}

fn parsed(path: &str, text: &str) -> Vec<Value> {
    let each = text.split("\n---\n");
    each.map(|one| yaml(one).unwrap_or_else(|error| panic!("{path}: {error}"))).collect()
}

/// The paths of the YAML files in a folder and below. Links are left out: the chart's lead to the same files.
fn files(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(root().join(folder)).unwrap().map(Result::unwrap);
    let within = |entry: std::fs::DirEntry| {
        let path = format!("{folder}/{}", entry.file_name().into_string().unwrap());
        match entry.file_type().unwrap().is_dir() {
            true => files(&path),
            false => vec![path],
        }
    };
    entries.flat_map(within).filter(|path| path.ends_with(".yaml")).collect()
}

/// All manifests, without kustomize's own files.
fn manifests() -> Vec<Value> {
    let folders = ["base", "components", "overlays"].map(|name| format!("envoy/deploy/kubernetes/{name}"));
    let paths = folders.iter().flat_map(|folder| files(folder));
    let paths = paths.filter(|path| !path.ends_with("/kustomization.yaml"));
    let all: Vec<_> = paths.flat_map(|path| documents(&path)).collect();
    assert!(all.len() >= 16, "{} documents", all.len());
    all
}

/// The manifests of the base with the patches of all components.
fn with_all_components() -> Vec<Value> {
    let mut all = manifests();
    let components = files("envoy/deploy/kubernetes/components");
    for path in components.iter().filter(|path| path.ends_with("/kustomization.yaml")) {
        for patch in documents(path)[0]["patches"].as_array().into_iter().flatten() {
            let target = &patch["target"];
            let is_target =
                |one: &&mut Value| one["kind"] == target["kind"] && one["metadata"]["name"] == target["name"];
            let object = all.iter_mut().find(is_target).unwrap_or_else(|| panic!("{path}: no {target}"));
            let operations: Value = yaml(patch["patch"].as_str().unwrap()).unwrap();
            for operation in operations.as_array().unwrap() {
                apply(object, operation);
            }
        }
    }
    all
}

/// One operation of a JSON patch: `add` at the end of a list or of a field, or `replace`.
fn apply(object: &mut Value, operation: &Value) {
    let (holder, name) = operation["path"].as_str().unwrap().rsplit_once('/').unwrap();
    match object.pointer_mut(holder).unwrap_or_else(|| panic!("{operation}")) {
        Value::Array(list) if name == "-" => list.push(operation["value"].clone()),
        Value::Object(fields) => drop(fields.insert(name.to_owned(), operation["value"].clone())),
        other => panic!("{operation} of {other}"),
    }
}

/// The only document of this kind and name.
fn manifest(kind: &str, name: &str) -> Value {
    let mut all = manifests();
    all.retain(|one| one["kind"] == kind && one["metadata"]["name"] == name);
    assert_eq!(all.len(), 1, "{kind} {name}");
    all.remove(0)
}

/// Every value with this field name, at any depth.
fn values<'a>(within: &'a Value, name: &str, found: &mut Vec<&'a Value>) {
    match within {
        Value::Object(fields) => {
            for (field, value) in fields {
                if field == name {
                    found.push(value);
                }
                values(value, name, found);
            }
        }
        Value::Array(list) => list.iter().for_each(|value| values(value, name, found)),
        _ => {}
    }
}

fn all<'a>(within: &'a Value, name: &str) -> Vec<&'a Value> {
    let mut found = Vec::new();
    values(within, name, &mut found);
    found
}

/// The filter's configuration and the aggregators' cluster, for Istio and for Envoy Gateway.
fn filters() -> [(Value, Value); 2] {
    let at = |kind, name, place| manifest(kind, name).pointer(place).unwrap_or(&Value::Null).clone();
    [
        (
            at("WasmPlugin", "weir", "/spec/pluginConfig"),
            at("EnvoyFilter", "weir-aggregator", "/spec/configPatches/0/patch/value"),
        ),
        (
            at("EnvoyExtensionPolicy", "weir", "/spec/wasm/0/config"),
            at("EnvoyPatchPolicy", "weir-aggregator", "/spec/jsonPatches/0/operation/value"),
        ),
    ]
}

#[test]
fn filters_take_their_configurations_and_find_the_aggregators() {
    let service = manifest("Service", "weir-aggregator");
    let host =
        format!("weir-aggregator.{}.svc.cluster.local", service["metadata"]["namespace"].as_str().unwrap());
    for (config, cluster) in filters() {
        let parsed = Config::parse(config.to_string().as_bytes()).unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(cluster["name"], parsed.aggregator.cluster.as_str());
        assert_eq!(cluster["load_assignment"]["cluster_name"], cluster["name"]);
        let address = all(&cluster, "socket_address");
        assert_eq!(address, [&json!({ "address": host, "port_value": 7071 })]);
        assert_eq!(
            config["aggregator"]["token"],
            manifest("Secret", "weir-aggregator")["stringData"]["WEIR_FILTER_TOKEN"]
        );
    }
}

/// What `weir-aggregator check-config --json` prints about a text.
fn check_config(text: &str) -> Value {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let mut command = Command::new(binaries::aggregator().unwrap());
    let output = command.args(["check-config", "--json"]).arg(file.path()).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["valid"], output.status.success(), "{report}");
    report
}

#[test]
fn check_config_reads_the_manifests() {
    let folders = ["base", "components", "overlays"].map(|name| format!("envoy/deploy/kubernetes/{name}"));
    let texts: Vec<_> = folders.iter().flat_map(|folder| files(folder)).map(|path| read(&path)).collect();
    let report = check_config(&texts.join("\n---\n"));
    assert_eq!(report["errors"], json!([]));
    let of = |report: &Value| -> Vec<(Value, Value)> {
        let found = report["configurations"].as_array().unwrap();
        found.iter().map(|one| (one["object"].clone(), one["path"].clone())).collect()
    };
    let istio = (json!("WasmPlugin weir"), json!("spec.pluginConfig"));
    let gateway = (json!("EnvoyExtensionPolicy weir"), json!("spec.wasm[0].config"));
    let mut found = of(&report);
    found.sort_by_key(|(object, _)| object.to_string());
    assert_eq!(found, [gateway, istio]);
    // As the component `traffic-extension` changes it.
    let mut plugin = manifest("WasmPlugin", "weir");
    plugin["kind"] = "TrafficExtension".into();
    let config = plugin["spec"]["pluginConfig"].take();
    plugin["spec"] = json!({ "wasm": { "pluginConfig": config } });
    let extension = (json!("TrafficExtension weir"), json!("spec.wasm.pluginConfig"));
    assert_eq!(of(&check_config(&plugin.to_string())), [extension]);
    plugin["spec"]["wasm"]["pluginConfig"]["rules"][0]["limit"] = "many".into();
    let errors = &check_config(&plugin.to_string())["errors"];
    assert_eq!(errors[0]["path"], "spec.wasm.pluginConfig.rules[0].limit");
}

#[test]
fn envoy_takes_the_clusters_and_the_metric_labels() {
    let folder = tempfile::tempdir().unwrap();
    for (number, ((_, cluster), mut bootstrap)) in filters().into_iter().zip(bootstraps()).enumerate() {
        let file = folder.path().join(format!("{number}.json"));
        bootstrap["static_resources"] = json!({ "clusters": [cluster] });
        std::fs::write(&file, bootstrap.to_string()).unwrap();
        weir_envoy::validate_file(&file).unwrap();
    }
}

/// What Istio's agent and Envoy Gateway add to an Envoy's bootstrap for metric labels.
fn bootstraps() -> [Value; 2] {
    let at = |kind, name, place| manifest(kind, name).pointer(place).unwrap_or(&Value::Null).clone();
    let texts = [
        at("ConfigMap", "weir-bootstrap", "/data/custom_bootstrap.json"),
        at("EnvoyProxy", "weir", "/spec/bootstrap/value"),
    ];
    texts.map(|text| yaml(text.as_str().unwrap()).unwrap())
}

/// All configurations of Envoy have the metric labels of the harness, with which `dashboards.rs` checks that an Envoy's
/// metrics have the labels that dashboard and alerts use.
#[test]
fn metric_labels_are_those_of_the_tests() {
    let envoys =
        ["envoy/deploy/envoy.yaml", "envoy/deploy/docker/envoy.yaml"].map(|path| documents(path).remove(0));
    let tags = bootstrap(&EnvoyOptions::default(), Path::new("/"))["stats_config"]["stats_tags"].clone();
    assert!(tags.as_array().unwrap().len() >= 4, "{tags}");
    for config in envoys.into_iter().chain(bootstraps()) {
        assert_eq!(config["stats_config"]["stats_tags"], tags);
    }
}

#[test]
fn images_have_one_name_and_version_everywhere() {
    let tagged: BTreeSet<_> =
        ["weir-aggregator", "weir-filter"].map(|name| format!("{name}:{VERSION}")).into();
    let mut named = BTreeSet::new();
    for one in manifests() {
        for image in all(&one, "image").into_iter().chain(all(&one, "url")) {
            // An image reference, or an object that contains its URL.
            if let Some(image) = image.as_str() {
                named.insert(image.rsplit('/').next().unwrap().to_owned());
            }
        }
        let version = &one["metadata"]["labels"]["app.kubernetes.io/version"];
        assert!(version.is_null() || version == VERSION, "{}", one["metadata"]["name"]);
    }
    assert_eq!(named, tagged);
    assert_eq!(manifest("Job", &format!("weir-migrate-{}", VERSION.replace('.', "-")))["kind"], "Job");
    for name in ["aggregator", "filter"] {
        let dockerfile = read(&format!("{name}/Dockerfile"));
        assert!(dockerfile.contains(&format!("\nARG VERSION={VERSION}\n")), "{name}");
        assert!(dockerfile.contains(&format!("-t weir-{name}:{VERSION} .")), "{name}");
    }
    let chart = &documents("envoy/deploy/kubernetes/chart/Chart.yaml")[0];
    assert_eq!((&chart["version"], &chart["appVersion"]), (&json!(VERSION), &json!(VERSION)));
    let compose = read("envoy/deploy/docker/services.yml");
    for name in ["weir-aggregator", "weir-filter-installer"] {
        let image = format!("image: ${{WEIR_IMAGES:-}}{name}:${{WEIR_TAG:-{VERSION}}}\n");
        assert!(compose.contains(&image), "{image}");
    }
}

#[test]
fn selectors_find_the_aggregators() {
    let deployment = manifest("Deployment", "weir-aggregator");
    let labels = deployment["spec"]["template"]["metadata"]["labels"].as_object().unwrap();
    let mut selectors = vec![manifest("Service", "weir-aggregator")["spec"]["selector"].clone()];
    for kind in ["Deployment", "PodDisruptionBudget", "NetworkPolicy"] {
        let found = manifest(kind, "weir-aggregator");
        let spec = &found["spec"];
        let own = spec.get("selector").or_else(|| spec.get("podSelector")).unwrap();
        selectors.push(own["matchLabels"].clone());
    }
    for spread in all(&deployment, "labelSelector") {
        selectors.push(spread["matchLabels"].clone());
    }
    assert_eq!(selectors.len(), 6);
    for selector in selectors {
        let labels_of_selector = selector.as_object().unwrap();
        assert!(
            !labels_of_selector.is_empty()
                && labels_of_selector.iter().all(|(name, value)| labels.get(name) == Some(value)),
            "{selector}"
        );
    }
}

/// A second aggregator of a region without a Redis is not ready before the first has ended, so both cannot overlap.
#[test]
fn a_region_without_a_redis_replaces_its_aggregator_before_the_next_starts() {
    let after = |components: &[&str]| {
        let mut deployment = manifest("Deployment", "weir-aggregator");
        for component in components {
            let path = format!("envoy/deploy/kubernetes/components/{component}/kustomization.yaml");
            for patch in documents(&path)[0]["patches"].as_array().unwrap() {
                if patch["target"]["kind"] == "Deployment" {
                    let operations: Value = yaml(patch["patch"].as_str().unwrap()).unwrap();
                    operations.as_array().unwrap().iter().for_each(|one| apply(&mut deployment, one));
                }
            }
        }
        deployment["spec"]["strategy"].clone()
    };
    let rolling = manifest("Deployment", "weir-aggregator")["spec"]["strategy"].clone();
    assert_eq!(rolling["rollingUpdate"]["maxUnavailable"], 0);
    assert_eq!(after(&["database"]), json!({ "type": "Recreate" }));
    assert_eq!((after(&["redis"]), after(&["database", "redis"])), (rolling.clone(), rolling));
    let multi_region =
        documents("envoy/deploy/kubernetes/overlays/multi-region/kustomization.yaml").remove(0);
    let components = multi_region["components"].as_array().unwrap();
    let at =
        |name: &str| components.iter().position(|one| one == &format!("../../components/{name}")).unwrap();
    assert!(at("database") < at("redis"), "{components:?}");
    let helpers = read("envoy/deploy/kubernetes/chart/templates/_helpers.tpl");
    let at = |name: &str| helpers.find(&format!("\"components/{name}\"")).unwrap();
    assert!(at("database") < at("redis"));
    let hook = read("envoy/deploy/kubernetes/chart/templates/database.yaml");
    assert!(hook.contains("\"pre-install,pre-upgrade\""), "an installation waits for ready aggregators");
}

/// The image listens on these ports, the Deployment names them, and the Service, the policy and the probes refer to
/// them.
#[test]
fn ports_are_those_of_the_image() {
    let deployment = manifest("Deployment", "weir-aggregator");
    let dockerfile = read("aggregator/Dockerfile");
    assert!(dockerfile.contains("WEIR_GRPC_LISTEN=0.0.0.0:7071 WEIR_ADMIN_LISTEN=0.0.0.0:7070"));
    let ports = all(&deployment, "ports")[0].as_array().unwrap();
    let ports: Vec<_> =
        ports.iter().map(|port| (&port["name"], port["containerPort"].as_u64().unwrap())).collect();
    assert_eq!(ports, [(&json!("grpc"), 7071), (&json!("admin"), 7070)]);
    let service = manifest("Service", "weir-aggregator");
    for port in service["spec"]["ports"].as_array().unwrap() {
        assert!(ports.contains(&(&port["targetPort"], port["port"].as_u64().unwrap())), "{port}");
    }
    for probe in all(&deployment, "httpGet") {
        assert_eq!(probe["port"], "admin");
        assert!(["/readyz", "/healthz"].contains(&probe["path"].as_str().unwrap()), "{probe}");
    }
}

/// The components are consistent: each listener has a port that the Service names and the policy admits, and each
/// mounted volume exists.
#[test]
fn components_agree_with_each_other() {
    let all_of_it = with_all_components();
    let of = |kind: &str| {
        let is_aggregator =
            |one: &&Value| one["kind"] == kind && one["metadata"]["name"] == "weir-aggregator";
        all_of_it.iter().find(is_aggregator).unwrap()
    };
    let container = &of("Deployment")["spec"]["template"]["spec"]["containers"][0];
    let names = |list: &Value, name: &str| -> BTreeSet<String> {
        let list = list.as_array().unwrap_or_else(|| panic!("no list of {name}"));
        list.iter().map(|one| one[name].as_str().unwrap_or_else(|| panic!("{one}")).to_owned()).collect()
    };
    let ports = names(&container["ports"], "name");
    assert_eq!(ports, ["admin", "grpc", "http"].map(str::to_owned).into());
    assert_eq!(names(&of("Service")["spec"]["ports"], "targetPort"), ports);
    let let_in = of("NetworkPolicy")["spec"]["ingress"].as_array().unwrap();
    assert!(let_in.iter().all(|rule| !rule["from"].as_array().unwrap().is_empty()), "{let_in:?}");
    assert_eq!(let_in.iter().flat_map(|rule| names(&rule["ports"], "port")).collect::<BTreeSet<_>>(), ports);
    let variables = container["env"].as_array().unwrap();
    let listen = variables.iter().find(|one| one["name"] == "WEIR_HTTP_LISTEN").unwrap();
    let port = container["ports"].as_array().unwrap().iter().find(|port| port["name"] == "http").unwrap();
    assert_eq!(listen["value"], format!("0.0.0.0:{}", port["containerPort"]));
    let (mounts, pod) = (&container["volumeMounts"], &of("Deployment")["spec"]["template"]["spec"]);
    assert_eq!(names(mounts, "name"), names(&pod["volumes"], "name"));
    let folders = names(mounts, "mountPath");
    for file in variables.iter().filter(|one| one["name"].as_str().unwrap().ends_with("_FILE")) {
        let (folder, _) = file["value"].as_str().unwrap().rsplit_once('/').unwrap();
        assert!(folders.contains(folder), "{file} is in no volume");
    }
}

/// The program reads every variable that the containers set.
#[test]
fn variables_are_those_of_the_program() {
    let page = read("aggregator/README.md");
    let mut names = BTreeSet::new();
    let manifests = files("envoy/deploy/kubernetes");
    let others = ["aggregator/Dockerfile"].iter().chain(&COMPOSE_FILES).map(|path| (*path).to_owned());
    // What Compose and the build of an image read.
    let not_read = ["WEIR_TAG", "WEIR_IMAGES", "WEIR_REVISION"];
    for place in manifests.into_iter().chain(others) {
        let text = read(&place);
        let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        let variables = words.filter(|word| word.starts_with("WEIR_") && !word.ends_with('_'));
        names.extend(variables.map(|name| (place.clone(), name.to_owned())));
    }
    assert!(names.len() > 10, "{names:?}");
    for (place, name) in names {
        assert!(
            not_read.contains(&name.as_str()) || page.contains(&format!("`{name}`")),
            "{place}: {name} is not in aggregator/README.md"
        );
    }
}

#[test]
fn containers_are_not_root_and_change_nothing_of_their_own() {
    let mut containers = 0;
    for one in manifests() {
        for pod in all(&one, "containers") {
            for container in pod.as_array().unwrap() {
                containers += 1;
                let security = &container["securityContext"];
                assert_eq!(security["readOnlyRootFilesystem"], true, "{container}");
                assert_eq!(security["allowPrivilegeEscalation"], false, "{container}");
                assert_eq!(security["capabilities"]["drop"], json!(["ALL"]), "{container}");
            }
        }
    }
    assert_eq!(containers, 3);
    let namespace = manifest("Namespace", "weir");
    assert_eq!(namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"], "restricted");
    assert!(read("aggregator/Dockerfile").contains("\nUSER 65532:65532\n"), "a number, for runAsNonRoot");
}

/// Requirements of the profile `restricted` of the Pod Security Standards, except those checked above.
#[test]
fn pods_meet_the_restricted_profile() {
    for one in manifests() {
        let specs = all(&one, "spec");
        for pod in specs.into_iter().filter(|spec| spec["containers"].is_array()) {
            let name = &one["metadata"]["name"];
            assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{name}");
            assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault", "{name}");
            assert!(
                ["hostNetwork", "hostPID", "hostIPC"].iter().all(|field| pod[*field].is_null()),
                "{name}"
            );
            assert!(all(pod, "hostPath").is_empty() && all(pod, "hostPort").is_empty(), "{name}");
            assert!(all(pod, "privileged").is_empty(), "{name}");
        }
    }
}

/// An aggregator's egress: DNS, the stores of its components and the collector.
#[test]
fn the_policy_lets_aggregators_reach_their_stores_and_nothing_else() {
    let ports = |documents: &[Value]| -> BTreeSet<u64> {
        let policy = documents.iter().find(|one| one["kind"] == "NetworkPolicy").unwrap();
        assert_eq!(policy["spec"]["policyTypes"], json!(["Ingress", "Egress"]));
        let rules = policy["spec"]["egress"].as_array().unwrap();
        assert!(rules.iter().all(|rule| !rule["to"].as_array().unwrap().is_empty()), "{rules:?}");
        rules.iter().flat_map(|rule| all(&rule["ports"], "port")).filter_map(Value::as_u64).collect()
    };
    assert_eq!(ports(&manifests()), [53].into());
    assert_eq!(ports(&with_all_components()), [53, 3306, 4317, 6379].into());
}

/// Every container of the compose files has only the rights that it needs.
#[test]
fn the_compose_files_containers_are_confined() {
    let mut writable = BTreeSet::new();
    for path in COMPOSE_FILES {
        let compose = &documents(path)[0];
        for (name, service) in compose["services"].as_object().unwrap() {
            let of = |field: &str| merged(service, field);
            assert_eq!(of("cap_drop"), json!(["ALL"]), "{path}: {name}");
            assert_eq!(of("security_opt"), json!(["no-new-privileges:true"]), "{path}: {name}");
            if of("read_only") != true {
                writable.insert(name.clone());
            }
            let adds = of("cap_add");
            assert_eq!(adds.is_array(), name == "mysql", "{path}: {name}: {adds}");
        }
    }
    // These store data in folders of their images.
    assert_eq!(writable, ["grafana", "mysql", "prometheus"].map(str::to_owned).into());
}

/// A field of a service, of the mapping that it includes by YAML's merge key, or of the service that it extends.
fn merged(service: &Value, field: &str) -> Value {
    if let Some(value) = service.get(field) {
        return value.clone();
    }
    if let Some(extended) = service.get("extends") {
        let path = format!("envoy/deploy/{}", extended["file"].as_str().unwrap());
        return merged(&documents(&path)[0]["services"][extended["service"].as_str().unwrap()], field);
    }
    service.get("<<").map_or(Value::Null, |base| merged(base, field))
}

#[test]
fn the_compose_files_envoys_take_their_configuration() {
    let config: Value = yaml(&read("envoy/deploy/docker/envoy.yaml")).unwrap();
    let plugins = find_plugin_configs(&config);
    assert_eq!(plugins.len(), 1);
    let parsed = Config::parse(plugins[0].json.as_bytes()).unwrap_or_else(|errors| panic!("{errors}"));
    let clusters = config["static_resources"]["clusters"].as_array().unwrap();
    assert!(clusters.iter().any(|cluster| cluster["name"] == parsed.aggregator.cluster.as_str()));
    // The files of Envoy, Prometheus, Grafana and the dashboards exist where the compose files mount them.
    let mut mounted = 0;
    for path in COMPOSE_FILES {
        let compose = &documents(path)[0];
        let mounts = all(compose, "volumes").into_iter().filter_map(Value::as_array).flatten();
        for file in mounts.filter_map(|mount| mount.as_str()?.strip_prefix("./")?.split(':').next()) {
            assert!(root().join(path).parent().unwrap().join(file).is_file(), "{path}: {file}");
            mounted += 1;
        }
    }
    assert!(mounted >= 6, "{mounted} files");
}
