#!/usr/bin/env python3
"""Renders the Kubernetes manifests with kustomize and Helm, and checks what comes out.

Every object fits its schema: those of Kubernetes in strict form, and custom-resources.yaml, or with --crds the CRDs themselves. The chart and
kustomize render the same objects. The chart refuses values that are wrong. The metric labels of all configurations of Envoy are equal, and
prometheus-rule.yaml holds alerts.yml. --write generates that file. No region has a name unless it is set. The programs come from install/kubernetes.sh.

usage: envoy/tools/lint/kubernetes.py [--write] [--crds FOLDER]
"""
import argparse
import glob
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.abspath(f"{os.path.dirname(os.path.abspath(__file__))}/../../..")
DEPLOY = f"{ROOT}/envoy/deploy"
MANIFESTS = f"{DEPLOY}/kubernetes"
INSTALLED = subprocess.check_output([f"{ROOT}/envoy/tools/install/kubernetes.sh"], text=True).strip()
sys.path.insert(0, INSTALLED)

import fastjsonschema  # noqa: E402
from ruamel.yaml import YAML  # noqa: E402

RULE_HEAD = """\
# Generated from alerts.yml by `envoy/tools/lint/kubernetes.py --write`; `./justw lint` compares them.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: weir
  namespace: weir
  labels: { app.kubernetes.io/name: weir-aggregator, app.kubernetes.io/part-of: weir }   # CHANGE: add what your Prometheus selects.
spec:
"""
COMPONENTS = ["database", "redis", "monitoring", "tls", "http-api", "tracing"]
# Values with which the chart renders what kustomize does.
RULES = [{"name": "per-key", "identifier": {"header": "x-api-key"}, "limit": 1000, "window": "1m"}]
TOKEN = {"region": "eu-west-1", "secret": {"filterToken": "change-me"}}
REDIS = {"redis": {"enabled": True, "url": "redis://weir:change-me@redis.weir.svc.cluster.local:6379"}}
DATABASE = {
    "database": {
        "enabled": True,
        "url": "mysql://weir:change-me@mysql.example.com/weir",
        "migrateUrl": "mysql://weir-migrate:change-me@mysql.example.com/weir",
    }
}
MONITORING = {"monitoring": {part: {"enabled": True} for part in ("serviceMonitor", "prometheusRule", "dashboard")}}
OPTIONS = {part: {"enabled": True} for part in ("tls", "httpApi", "tracing")}
FILTER = {"filter": {"config": {"rules": RULES}}}
ISTIO = {**FILTER, "istio": {"enabled": True}}
TRAFFIC_EXTENSION = {**FILTER, "istio": {"enabled": True, "api": "TrafficExtension"}}
GATEWAY = {**FILTER, "envoyGateway": {"enabled": True}}
NATIVE = {"filter": {"kind": "native", "config": {"rules": RULES}}}


def load(text):
    return [document for document in YAML(typ="safe", pure=True).load_all(text) if document is not None]


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def run(program, *arguments):
    return subprocess.run([f"{INSTALLED}/bin/{program}", *arguments], capture_output=True, text=True)


def kustomize(folder):
    done = run("kubectl", "kustomize", folder)
    if done.returncode:
        sys.exit(f"{os.path.relpath(folder, ROOT)}: {done.stderr}")
    return load(done.stdout)


def helm(*values):
    merged = {key: value for part in values for key, value in part.items()}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(merged, file)
        file.flush()
        return run("helm", "template", "weir", f"{MANIFESTS}/chart", "--namespace", "weir", "--values", file.name)


def chart(*values):
    done = helm(*values)
    if done.returncode:
        sys.exit(f"the chart with {values}: {done.stderr}")
    return load(done.stdout)


def overlay(resources, components):
    """What kustomize renders of an overlay that combines parts."""
    os.makedirs(f"{ROOT}/target", exist_ok=True)
    with tempfile.TemporaryDirectory(dir=f"{ROOT}/target") as folder:
        def path(part):
            return os.path.relpath(f"{MANIFESTS}/{part}", os.path.realpath(folder))

        with open(f"{folder}/kustomization.yaml", "w", encoding="utf-8") as file:
            json.dump({"resources": [path(one) for one in resources], "components": [path(one) for one in components]}, file)
        return kustomize(folder)


def name(one):
    return f"{one['apiVersion']} {one['kind']} {one['metadata'].get('namespace', '')}/{one['metadata']['name']}"


def schema_of(shorthand):
    """The JSON schema of a spec in the form of custom-resources.yaml."""
    if isinstance(shorthand, list):
        return {"type": "array", "items": schema_of(shorthand[0])}
    if isinstance(shorthand, dict):
        fields = {field.rstrip("!"): schema_of(value) for field, value in shorthand.items()}
        required = [field[:-1] for field in shorthand if field.endswith("!")]
        return {"type": "object", "properties": fields, "required": required, "additionalProperties": False}
    if shorthand == "any":
        return {}
    if shorthand == "strings":
        return {"type": "object", "additionalProperties": {"type": "string"}}
    if shorthand in ("string", "integer", "boolean"):
        return {"type": shorthand}
    return {"enum": shorthand.split(" | ")}


def closed(schema):
    """A CRD's schema that refuses unknown fields, which the API server would drop."""
    if not isinstance(schema, dict):
        return schema
    # Patterns are left out: the library misreads some of Go's.
    dropped = ("format", "description", "default", "pattern")
    kept = {key: value for key, value in schema.items() if not key.startswith("x-kubernetes") and key not in dropped}
    if "properties" in kept:
        kept["properties"] = {field: closed(value) for field, value in kept["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            kept.setdefault("additionalProperties", False)
    for key in ("items", "additionalProperties"):
        kept.update({key: closed(kept[key])} if key in kept else {})
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["string", "integer"]}
    return kept


class Schemas:
    def __init__(self, crds):
        (self.folder,) = glob.glob(f"{INSTALLED}/kubernetes_validate/kubernetes-json-schema/*-local-strict")
        self.definitions = read(f"{self.folder}/_definitions.json").replace("/api/_definitions.json#", "#")
        self.validators = {}
        metadata = {"apiVersion": {}, "kind": {}, "metadata": {"type": "object", "required": ["name"]}}
        for kind, shorthand in load(read(f"{ROOT}/envoy/tools/lint/custom-resources.yaml"))[0].items():
            whole = {"type": "object", "properties": {**metadata, "spec": schema_of(shorthand)}, "additionalProperties": False}
            self.validators[kind] = fastjsonschema.compile({**whole, "required": ["spec"]})
        for file in glob.glob(f"{crds}/*.yaml") if crds else []:
            for crd in load(read(file)):
                for version in crd["spec"]["versions"]:
                    schema = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
                    kind = f"{crd['spec']['group']}/{version['name']} {crd['spec']['names']['kind']}"
                    if kind in self.validators:
                        whole = {"type": "object", "properties": {**metadata, "spec": closed(schema)}}
                        self.validators[kind] = fastjsonschema.compile(whole)
                        print(f"schema of {kind} from {os.path.basename(file)}")

    def check(self, place, one):
        kind = f"{one['apiVersion']} {one['kind']}"
        if kind not in self.validators:
            # apps/v1 Deployment: deployment-apps-v1.json
            version = one["apiVersion"].replace("networking.k8s.io", "networking").replace("/", "-")
            path = f"{self.folder}/{one['kind'].lower()}-{version}.json"
            if not os.path.exists(path):
                return [f"{place}: there is no schema of {kind}"]
            schema = json.loads(read(path).replace("/api/_definitions.json#", "#"))
            schema["$defs"] = json.loads(self.definitions)["$defs"]
            self.validators[kind] = fastjsonschema.compile(schema)
        try:
            self.validators[kind](one)
        except fastjsonschema.JsonSchemaException as error:
            return [f"{place}: {name(one)}: {error.message}"]
        return []


def variable(deployment, name):
    return next(one for one in deployment["spec"]["template"]["spec"]["containers"][0]["env"] if one["name"] == name)


def regions(place, rendered, expected):
    """Whether the aggregator has the name of the region that was set, and otherwise none, with which it does not start."""
    for one in rendered:
        if one["kind"] == "Deployment" and variable(one, "WEIR_REGION")["value"] != expected:
            yield f"{place}: WEIR_REGION is {variable(one, 'WEIR_REGION')['value']!r}; expected {expected!r}"


def plain(one):
    """An object without what only Helm, or only kustomize, adds."""
    one = json.loads(json.dumps(one))
    metadata = one["metadata"]
    for field, prefixes in (("labels", ("helm.sh/", "app.kubernetes.io/managed-by", "app.kubernetes.io/instance")), ("annotations", ("helm.sh/",))):
        kept = {key: value for key, value in metadata.pop(field, {}).items() if not key.startswith(prefixes)}
        metadata.update({field: kept} if kept else {})
    if one["kind"] == "Deployment":
        one["spec"]["template"]["metadata"]["annotations"].pop("checksum/secret", None)
        variable(one, "WEIR_REGION")["value"] = ""
    # A text's last newline differs, which means nothing to its readers.
    for holder in (one.get("data"), one.get("spec", {}).get("bootstrap")):
        for key, value in (holder or {}).items():
            holder[key] = value.rstrip("\n")
    return one


def differences(place, rendered, expected):
    """Between objects of the chart and of kustomize; the chart leaves the namespace to `helm install --create-namespace`."""
    ours = {name(one): plain(one) for one in rendered}
    theirs = {name(one): plain(one) for one in expected if one["kind"] != "Namespace"}
    for key in sorted(ours.keys() | theirs.keys()):
        if ours.get(key) != theirs.get(key):
            yield f"{place}: {key}: the chart renders {json.dumps(ours.get(key))}, kustomize {json.dumps(theirs.get(key))}"


def refused(expected, *values):
    done = helm(*values)
    if done.returncode == 0:
        yield f"the chart accepts {values}"
    elif expected not in done.stderr:
        yield f"the chart refuses {values} for another reason than {expected!r}: {done.stderr}"


def taken(own, routes, least):
    """Values that no overlay has."""
    objects = {one["kind"]: one for one in own}
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    policy = objects["NetworkPolicy"]["spec"]
    env = [(one["name"], one["value"]) for one in pod["containers"][0]["env"]]
    secrets = [one["spec"]["template"]["spec"]["containers"][0]["envFrom"][0]["secretRef"]["name"] for one in least if one["kind"] == "Deployment"]
    (extension,) = (one for one in routes if one["kind"] == "EnvoyExtensionPolicy")
    found = {
        "replicas": objects["Deployment"]["spec"]["replicas"] == 3,
        "env": sorted(env) == sorted(set(env)) and {("WEIR_MAX_KEYS", "5000000"), ("WEIR_LOG_FORMAT", "text")} <= set(env) and len(env) == 4,
        "pod": pod["nodeSelector"] == {"pool": "edge"} and len(pod["containers"]) == 1,
        "resources": pod["containers"][0]["resources"] == {"limits": {"memory": "4Gi"}},
        "networkPolicy.from": policy["ingress"][0]["from"] == [{"podSelector": {}}],
        "networkPolicy.to": policy["egress"][1]["to"] == [{"ipBlock": {"cidr": "10.1.0.0/16"}}],
        "envoyGateway.routes": [(one["kind"], one["name"]) for one in extension["spec"]["targetRefs"]] == [("HTTPRoute", "a"), ("HTTPRoute", "b")],
        "secret.name": secrets == ["own"],
        "enabled: false": sorted(one["kind"] for one in least) == ["Deployment", "Service"],
    }
    return [f"the chart does not take {value}" for value, is_taken in found.items() if not is_taken]


def modules(rendered):
    """Whether what attaches the dynamic module, and nothing that attaches WASM, is rendered where `filter.kind` is native."""
    for place, objects in rendered.items():
        text = json.dumps(objects)
        is_native = "native" in place
        if ("libweir_filter.so" in text) != is_native or (is_native and ("WasmPlugin" in text or '"wasm":' in text)):
            yield f"{place}: it attaches the wrong kind of filter"


def tags():
    """The metric labels of each configuration of Envoy."""
    for path in ("envoy.yaml", "docker/envoy.yaml"):
        yield path, load(read(f"{DEPLOY}/{path}"))[0]
    istio = load(read(f"{MANIFESTS}/overlays/istio/bootstrap.yaml"))[0]
    yield "overlays/istio/bootstrap.yaml", load(istio["data"]["custom_bootstrap.json"])[0]
    gateway = load(read(f"{MANIFESTS}/overlays/envoy-gateway/bootstrap.yaml"))[0]
    yield "overlays/envoy-gateway/bootstrap.yaml", load(gateway["spec"]["bootstrap"]["value"])[0]
    for kind in ("istio", "envoy-gateway"):
        for patch in load(read(f"{MANIFESTS}/overlays/{kind}/native/kustomization.yaml"))[0]["patches"]:
            for operation in load(patch["patch"])[0]:
                if "bootstrap" in operation["path"]:
                    # Envoy Gateway does not let a module name its metrics as a WASM filter's.
                    text = operation["value"].replace("dynamicmodulescustom", "wasmcustom")
                    yield f"overlays/{kind}/native", load(text)[0]


def prometheus_rule():
    alerts = read(f"{DEPLOY}/grafana/alerts.yml")
    groups = alerts[alerts.index("\ngroups:") + 1 :]
    return RULE_HEAD + "".join(f"  {line}" if line.strip() else line for line in groups.splitlines(keepends=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help="generate prometheus-rule.yaml")
    parser.add_argument("--crds", metavar="FOLDER", help="CRDs (*.yaml) in place of custom-resources.yaml")
    arguments = parser.parse_args()
    failures = []

    generated = f"{DEPLOY}/grafana/prometheus-rule.yaml"
    if arguments.write:
        with open(generated, "w", encoding="utf-8") as file:
            file.write(prometheus_rule())
    if read(generated) != prometheus_rule():
        failures.append("prometheus-rule.yaml is not that of alerts.yml: run envoy/tools/lint/kubernetes.py --write")

    labels = dict(tags())
    for place, config in labels.items():
        if config["stats_config"]["stats_tags"] != labels["envoy.yaml"]["stats_config"]["stats_tags"]:
            failures.append(f"{place}: stats_tags are not those of envoy.yaml")

    rendered = {
        "overlays/minimal": kustomize(f"{MANIFESTS}/overlays/minimal"),
        "overlays/istio": kustomize(f"{MANIFESTS}/overlays/istio"),
        "overlays/envoy-gateway": kustomize(f"{MANIFESTS}/overlays/envoy-gateway"),
        "overlays/multi-region": kustomize(f"{MANIFESTS}/overlays/multi-region"),
        "all components": overlay(
            ["overlays/istio"], ["overlays/istio/traffic-extension"] + [f"components/{part}" for part in COMPONENTS]
        ),
        "native istio": overlay(["overlays/istio"], ["overlays/istio/native"]),
        "native envoy-gateway": overlay(["overlays/envoy-gateway"], ["overlays/envoy-gateway/native"]),
        "chart: native istio": chart(TOKEN, ISTIO, NATIVE),
        "chart: native envoy-gateway": chart(TOKEN, GATEWAY, NATIVE),
        "chart: minimal": chart(TOKEN),
        "chart: istio": chart(TOKEN, ISTIO),
        "chart: envoy-gateway": chart(TOKEN, GATEWAY),
        "chart: multi-region": chart(TOKEN, REDIS, DATABASE, MONITORING, ISTIO),
        "chart: all components": chart(TOKEN, REDIS, DATABASE, MONITORING, OPTIONS, TRAFFIC_EXTENSION),
        "chart: HTTPRoutes": chart(TOKEN, FILTER, {"envoyGateway": {"enabled": True, "routes": ["a", "b"]}}),
        "chart: least": chart(
            {"region": "eu", "secret": {"create": False, "name": "own"}, "podDisruptionBudget": {"enabled": False}, "networkPolicy": {"enabled": False}}
        ),
        "chart: own values": chart(
            TOKEN,
            REDIS,
            {
                "replicas": 3,
                "env": [{"name": "WEIR_MAX_KEYS", "value": "5000000"}, {"name": "WEIR_LOG_FORMAT", "value": "text"}],
                "pod": {"nodeSelector": {"pool": "edge"}, "imagePullSecrets": [{"name": "registry"}]},
                "resources": {"limits": {"memory": "4Gi"}},
                "networkPolicy": {"from": {"grpc": [{"podSelector": {}}]}, "to": {"6379": [{"ipBlock": {"cidr": "10.1.0.0/16"}}]}},
            },
        ),
    }
    schemas = Schemas(arguments.crds)
    for place, objects in rendered.items():
        for one in objects:
            failures += schemas.check(place, one)
    for place in ("minimal", "istio", "envoy-gateway", "multi-region"):
        failures += differences(place, rendered[f"chart: {place}"], rendered[f"overlays/{place}"])
        failures += regions(place, rendered[f"overlays/{place}"], "")
        failures += regions(place, rendered[f"chart: {place}"], TOKEN["region"])
    for place in ("all components", "native istio", "native envoy-gateway"):
        failures += differences(place, rendered[f"chart: {place}"], rendered[place])
    failures += modules(rendered)

    failures += taken(rendered["chart: own values"], rendered["chart: HTTPRoutes"], rendered["chart: least"])
    failures += refused("region is required", {"secret": TOKEN["secret"]})
    failures += refused("secret.filterToken is required", {"region": "eu"})
    failures += refused("need redis.enabled", TOKEN, {"replicas": 2})
    failures += refused("redis.url is required", TOKEN, {"redis": {"enabled": True}})
    failures += refused("filter.config.rules is required", TOKEN, {"istio": {"enabled": True}})
    failures += refused("additional properties", TOKEN, {"replica": 2})
    failures += refused("/filter/kind", TOKEN, {"filter": {"kind": "lua"}})

    lint = run("helm", "lint", f"{MANIFESTS}/chart", "--strict", "--set", "secret.filterToken=x,region=eu")
    if lint.returncode:
        failures.append(lint.stdout + lint.stderr)

    for failure in failures:
        print(failure, file=sys.stderr)
    print(f"{sum(map(len, rendered.values()))} objects of {len(rendered)} renderings, {len(failures)} failures")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
