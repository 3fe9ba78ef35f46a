#!/usr/bin/env python3
"""Feeds the metrics of real Envoys to a real Prometheus, and evaluates every query of the dashboard and the alerts.

An Envoy runs for each configuration of metric labels: that of envoy.yaml, and those that Istio's agent and Envoy Gateway merge into their own.
Under each of them the labels that queries group by have values, and those of decisions have the same results. Two aggregators of one region's
name, each with a Redis of its own, fire WeirRegionSplit. promtool, if it is beside Prometheus, reads /metrics. The programs come by ENVOY_BIN,
WEIR_AGGREGATOR_BIN, WEIR_FILTER_WASM, WEIR_REDIS_SERVER and WEIR_PROMETHEUS, as in test.sh.

usage: envoy/tools/test/metrics.py
"""
import copy
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

ROOT = os.path.abspath(f"{os.path.dirname(os.path.abspath(__file__))}/../../..")
DEPLOY = f"{ROOT}/envoy/deploy"
sys.path.insert(0, subprocess.check_output([f"{ROOT}/envoy/tools/install/kubernetes.sh"], text=True).strip())

from ruamel.yaml import YAML  # noqa: E402

SOON = 60
RULES = [
    {"name": "per.key-of_mine", "identifier": {"header": "x-api-key"}, "limit": 2, "window": "1h"},
    {"name": "tried", "identifier": {"header": "x-api-key"}, "limit": 1, "window": "1h", "shadow_mode": True},
    {"name": "exact", "identifier": {"header": "x-exact"}, "limit": 9, "window": "1h", "algorithm": "sliding_log"},
]
# Before what an agent or a control plane adds, their bootstraps have tags of their own. This one, of Istio, matches outcomes as well.
OTHER_TAGS = {"use_all_default_tags": False, "stats_tags": [{"tag_name": "authz_dry_run_result", "regex": r"(\.shadow_(allowed|denied))"}]}
# Metrics with labels, which the traffic below produces under every configuration.
LABELLED = {
    "weir_decisions_total": ["rule", "outcome"],
    "weir_queries_total": ["reason"],
    "weir_query_results_total": ["result"],
    "weir_exact_results_total": ["result"],
}


def load(text):
    return YAML(typ="safe", pure=True).load(text)


def read(path):
    with open(f"{DEPLOY}/{path}", encoding="utf-8") as file:
        return file.read()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def get(url, **headers):
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as response:
        return response.read().decode()


def until(what, condition):
    """Waits until a condition gives a value other than false, or none of it fails any more."""
    end = time.monotonic() + SOON
    while True:
        try:
            if found := condition():
                return found
            problem = "it does not"
        except (OSError, urllib.error.URLError, ValueError) as error:
            problem = error
        if time.monotonic() > end:
            sys.exit(f"within {SOON} s: {what}: {problem}")
        time.sleep(0.2)


def bootstraps():
    """The bootstrap of envoy.yaml for each configuration, and what is merged into it when Envoy starts."""
    static = load(read("envoy.yaml"))
    listener = static["static_resources"]["listeners"][0]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    manager.pop("access_log")
    manager["route_config"]["virtual_hosts"][0]["routes"] = [{"match": {"prefix": "/"}, "direct_response": {"status": 200}}]
    config = manager["http_filters"][0]["typed_config"]["config"]
    config["vm_config"]["code"]["local"]["filename"] = os.environ["WEIR_FILTER_WASM"]
    config["configuration"]["value"]["rules"] = RULES
    merged = copy.deepcopy(static)
    merged["stats_config"] = OTHER_TAGS
    istio = load(read("kubernetes/overlays/istio/bootstrap.yaml"))["data"]["custom_bootstrap.json"]
    gateway = load(read("kubernetes/overlays/envoy-gateway/bootstrap.yaml"))["spec"]["bootstrap"]["value"]
    return {"static": (static, None), "istio": (merged, istio), "envoy-gateway": (merged, gateway)}


class Envoy:
    def __init__(self, start, folder, name, bootstrap, addition, aggregator):
        bootstrap = copy.deepcopy(bootstrap)
        self.port, self.admin = free_port(), free_port()
        bootstrap["node"]["id"] = name
        bootstrap["admin"]["address"]["socket_address"]["port_value"] = self.admin
        bootstrap["static_resources"]["listeners"][0]["address"]["socket_address"]["port_value"] = self.port
        cluster = next(one for one in bootstrap["static_resources"]["clusters"] if one["name"] == "weir_aggregator")
        endpoint = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]
        endpoint["address"]["socket_address"]["port_value"] = aggregator
        file = f"{folder}/{name}.json"
        with open(file, "w", encoding="utf-8") as opened:
            json.dump(bootstrap, opened)
        arguments = ["-c", file, "--concurrency", "1", "--use-dynamic-base-id", "--log-level", "warning"]
        start(name, os.environ["ENVOY_BIN"], *arguments, *(["--config-yaml", addition] if addition else []))

    def send(self, **headers):
        try:
            get(f"http://127.0.0.1:{self.port}/", **headers)
        except urllib.error.HTTPError as error:
            if error.code != 429:
                raise

    def metrics(self):
        return get(f"http://127.0.0.1:{self.admin}/stats/prometheus")


def split_region(start, folder):
    """Two aggregators of one region that share a database and no Redis; returns their addresses for Prometheus."""
    for cluster in ("one", "two"):
        redis, admin = free_port(), free_port()
        os.makedirs(f"{folder}/redis-{cluster}")
        start(f"redis-{cluster}", os.environ["WEIR_REDIS_SERVER"], "--port", str(redis), "--dir", f"{folder}/redis-{cluster}", "--save", "")
        listen = ["--grpc-listen", f"127.0.0.1:{free_port()}", "--admin-listen", f"127.0.0.1:{admin}", "--http-listen", "none"]
        stores = ["--redis-url", f"redis://127.0.0.1:{redis}", "--database-url", f"sqlite://{folder}/weir.db", "--migrate"]
        start(f"aggregator-{cluster}", os.environ["WEIR_AGGREGATOR_BIN"], "serve", "--region", "split", *listen, *stores)
        until("the aggregator of a split region is ready", lambda: get(f"http://127.0.0.1:{admin}/readyz"))
        yield f"127.0.0.1:{admin}"


class Prometheus:
    def __init__(self, start, folder, aggregators, envoys):
        self.port = free_port()
        targets = [{"targets": [f"127.0.0.1:{envoy.admin}"], "labels": {"configuration": name}} for name, envoy in envoys.items()]
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [f"{DEPLOY}/grafana/alerts.yml"],
            "scrape_configs": [
                {"job_name": "weir-aggregator", "static_configs": [{"targets": aggregators}]},
                {"job_name": "envoy", "metrics_path": "/stats/prometheus", "static_configs": targets},
            ],
        }
        with open(f"{folder}/prometheus.yml", "w", encoding="utf-8") as file:
            json.dump(config, file)
        listen = f"--web.listen-address=127.0.0.1:{self.port}"
        start("prometheus", os.environ["WEIR_PROMETHEUS"], f"--config.file={file.name}", f"--storage.tsdb.path={folder}/data", listen)

    def query(self, expression):
        try:
            answer = get(f"http://127.0.0.1:{self.port}/api/v1/query?{urllib.parse.urlencode({'query': expression})}")
        except urllib.error.HTTPError as error:
            sys.exit(f"{expression}: {error.read().decode()}")
        return json.loads(answer)["data"]["result"]


def expressions():
    """Each query of the dashboard and the alerts, as Grafana would send it."""
    dashboard = json.loads(read("grafana/weir.json"))
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"].replace("$__rate_interval", "10s").replace("$aggregator", ".*").replace("$envoy", ".*")
    for group in load(read("grafana/alerts.yml"))["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]


def check(prometheus, names):
    failures = []
    for metric, labels in LABELLED.items():
        for name in names:
            series = prometheus.query(f'{metric}{{configuration="{name}"}}')
            values = [one["metric"] for one in series]
            if not values or not all(one.get(label) for one in values for label in labels):
                failures.append(f"{name}: {metric} has no labels {labels}: {values}")
    for name in names:
        found = {one["metric"].get("outcome") for one in prometheus.query(f'weir_decisions_total{{configuration="{name}"}}')}
        if not found >= {"allowed", "denied", "shadow_denied"}:
            failures.append(f"{name}: outcomes are {found}")
    count = 0
    for place, expression in expressions():
        count += 1
        prometheus.query(expression)
        grouped = [label.strip() for group in re.findall(r"\bby \(([^)]*)\)", expression) for label in group.split(",")]
        # The filter's queries under each configuration: the same labels, each with a value.
        if not re.search(r"weir_(?!aggregator|ratelimit_(?!strict))\w", expression):
            continue
        results = {}
        for name in names:
            selected = re.sub(r"(weir_\w+)(\{)?", lambda found: f'{found[1]}{{configuration="{name}"' + ("," if found[2] else "}"), expression)
            # A comparison would leave out what is well.
            selected = re.sub(r" (>|==) [0-9.e* ]+$", "", selected)
            series = [one["metric"] for one in prometheus.query(selected)]
            kept = [label for label in grouped if label not in ("le", "instance")]
            # Whether a decision was late depends on the machine's load.
            in_time = [one for one in series if one.get("outcome") != "undecided"]
            results[name] = sorted(tuple(one.get(label, "") for label in kept) for one in in_time)
            if any("" in (one.get(label, "") for label in kept) for one in series):
                failures.append(f"{name}: {place}: a label of {kept} has no value: {series}")
        # So does how often Envoys query.
        decisions = set(re.findall(r"weir_\w+", expression)) == {"weir_decisions_total"} and "undecided" not in expression
        if decisions and len({json.dumps(one) for one in results.values()}) > 1:
            failures.append(f"{place}: {expression}: results differ: {results}")
    return count, failures


def text_format(admin):
    """What promtool reports on the aggregator's metrics as a reader gets them that does not accept OpenMetrics."""
    promtool = os.path.join(os.path.dirname(os.environ["WEIR_PROMETHEUS"]), "promtool")
    if not os.path.exists(promtool):
        return []
    checked = subprocess.run([promtool, "check", "metrics"], input=get(f"http://127.0.0.1:{admin}/metrics"), capture_output=True, text=True)
    return [f"/metrics: {line}" for line in (checked.stdout + checked.stderr).splitlines()]


def main():
    processes = []
    with tempfile.TemporaryDirectory() as folder:

        def start(name, *command):
            with open(f"{folder}/{name}.log", "w", encoding="utf-8") as log:
                processes.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))

        try:
            grpc, admin = free_port(), free_port()
            listen = ["--grpc-listen", f"127.0.0.1:{grpc}", "--admin-listen", f"127.0.0.1:{admin}", "--http-listen", "none"]
            start("aggregator", os.environ["WEIR_AGGREGATOR_BIN"], "serve", "--region", "test", *listen)
            until("the aggregator is ready", lambda: get(f"http://127.0.0.1:{admin}/readyz"))
            envoys = {name: Envoy(start, folder, name, *both, grpc) for name, both in bootstraps().items()}
            split = list(split_region(start, folder))
            prometheus = Prometheus(start, folder, [f"127.0.0.1:{admin}", *split], envoys)
            until("Prometheus is ready", lambda: get(f"http://127.0.0.1:{prometheus.port}/-/ready"))
            for envoy in envoys.values():
                until("an Envoy has a stream", lambda: re.search(r"^weir_subscribers\{\} 1$", envoy.metrics(), re.M))

            # Long enough that rates of each query have two samples at least.
            end = time.monotonic() + 8
            number = 0
            while time.monotonic() < end:
                number += 1
                for name, envoy in envoys.items():
                    envoy.send(**{"x-api-key": f"{name}-a"})
                    envoy.send(**{"x-api-key": f"{name}-{number}", "x-exact": f"{name}-{number}"})
                time.sleep(0.2)
            count, failures = check(prometheus, list(envoys))
            firing = 'ALERTS{alertname="WeirRegionSplit",alertstate="firing"}'
            fired = until("both parts of a region are reported", lambda: len(found := prometheus.query(firing)) >= len(split) and found)
            if (instances := {one["metric"]["instance"] for one in fired}) != set(split):
                failures.append(f"WeirRegionSplit fires for {instances}, expected {split}")
            failures += text_format(admin)
            for failure in failures:
                print(failure, file=sys.stderr)
            print(f"{count} queries under {len(envoys)} configurations, {len(failures)} failures")
            return int(bool(failures))
        finally:
            if sys.exc_info()[0]:
                for log in sorted(os.listdir(folder)):
                    if log.endswith(".log"):
                        with open(f"{folder}/{log}", encoding="utf-8") as opened:
                            print(f"== {log}\n{opened.read()[-3000:]}", file=sys.stderr)
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait()


if __name__ == "__main__":
    sys.exit(main())
