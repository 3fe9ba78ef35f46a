// The state of every part: aggregators, Envoys, Redis, the database, regions.

import { h, table, textual } from "../dom.js";
import * as words from "../words.js";

/** A region writes to the database every ten seconds. */
const LAGGING_MS = 60_000;
const MARKS = { well: "✓", warn: "!", bad: "✕", none: "–" };

/** The state of an aggregator that sends its status. */
const stateOf = (one) => (one.draining ? "shutting down" : one.waits_for ? `waiting for ${one.waits_for}` : "serving");

/** The state of each part as a line: {part, state, word, more}. */
export function health(parts) {
  const own = parts.aggregator;
  const lines = [{ part: "This aggregator", state: stateOf(own) === "serving" ? "well" : "warn", word: stateOf(own), more: `up ${words.time(own.uptime_ms)}` }];
  const silent = parts.peers.filter((peer) => peer.silent).length;
  const others = parts.peers.filter((peer) => !peer.silent && stateOf(peer) !== "serving");
  if (parts.peers.length > 0) lines.push({ part: "Other aggregators", state: silent ? "bad" : others.length > 0 ? "warn" : "well", word: silent ? `${silent} of ${parts.peers.length} silent` : `${parts.peers.length - others.length} well`, more: [...new Set(others.map(stateOf))].join(", ") });
  lines.push({ part: "Envoys", state: parts.envoys_alive > 0 ? "well" : "warn", word: parts.envoys_alive > 0 ? `${words.count(parts.envoys_alive)} alive` : "none", more: `${words.plural(own.streams, "stream", "streams")} here` });
  if (parts.refused.length > 0) lines.push({ part: "Streams", state: "bad", word: "refused", more: `${parts.refused.map((one) => one.reason.replaceAll("_", " ")).join(", ")}; last ${words.ago(parts.refused[0].age_ms)}` });
  if (parts.stale_files.length > 0) lines.push({ part: "Files", state: "bad", word: "last change refused", more: `${parts.stale_files.map((files) => files.replaceAll("_", " ")).join(", ")}; the log has the reason` });
  lines.push(redisLine(parts.redis), databaseLine(parts.database));
  if (!["", "none"].includes(parts.rate_limits.source)) lines.push(limitsLine(parts.rate_limits));
  const regions = parts.regions.filter((region) => !region.own);
  const lagging = regions.filter((region) => region.seen_age_ms > LAGGING_MS);
  if (regions.length > 0) lines.push({ part: "Other regions", state: lagging.length ? "warn" : "well", word: lagging.length ? `${lagging.length} of ${regions.length} silent` : words.count(regions.length), more: lagging.map((region) => `${region.name} wrote ${words.ago(region.seen_age_ms)}`).join(", ") });
  return lines;
}

function redisLine(redis) {
  if (!redis) return { part: "Redis", state: "none", word: "none", more: "this is the region's only aggregator" };
  const word = redis.usable ? redis.trouble ?? "reachable" : redis.breaker === "half_open" ? "recovering" : "unavailable";
  const read = redis.calls.find((call) => call.operation === "read_markers");
  return { part: "Redis", state: !redis.usable ? "bad" : redis.trouble ? "warn" : "well", word, more: read && redis.usable ? `${read.took_ms.toFixed(1)} ms` : "deciding from memory" };
}

function databaseLine(database) {
  if (!database) return { part: "Database", state: "none", word: "none", more: "counts are not shared with other regions" };
  const away = database.breaker !== "closed";
  const trouble = away ? null : database.trouble;
  const replica = database.replica_breaker && database.replica_breaker !== "closed";
  return { part: "Database", state: away ? "bad" : trouble || replica ? "warn" : "well", word: away ? "unavailable" : replica ? "replica unavailable" : trouble ?? "reachable", more: `read ${words.ago(database.imported_age_ms)}` };
}

/** The limits of the rate-limit service. */
function limitsLine(limits) {
  const domains = limits.domains ?? null;
  const word = domains === null ? "none received" : limits.error ? "last change refused" : limits.connected === false ? "xDS server unavailable" : limits.unserved ? "some not served" : "in force";
  const state = domains === null ? "bad" : word === "in force" ? "well" : "warn";
  const more = (limits.error ?? limits.stream_error ?? limits.unserved)?.split("\n")[0] ?? `${words.plural(domains ?? 0, "domain", "domains")}${limits.version ? `, version ${limits.version}` : ""}`;
  return { part: "Rate-limit service", state, word, more };
}

/** The line as a list item. */
export function stateLine({ part, state, word, more }) {
  return h("li", { "data-state": state }, h("span", { class: "mark-state", "aria-hidden": "true" }, MARKS[state]), h("span", { class: "part-name" }, part), h("span", { class: "word" }, word), h("span", { class: "muted" }, more));
}

export function parts() {
  const states = h("ul", { class: "states", "aria-label": "State of the parts" });
  const aggregators = table({ caption: "Aggregators of the region", keyOf: (one) => one.id ?? "own", empty: "", columns: [
    { id: "id", title: "Aggregator", cell: textual((one) => (one.own ? "this one" : one.id.slice(0, 12))) },
    { id: "state", title: "State", cell: textual((one) => (one.silent ? `✕ silent for ${words.time(one.age_ms)}` : stateOf(one) === "serving" ? "✓ serving" : `! ${stateOf(one)}`)) },
    { id: "version", title: "Version", cell: textual((one) => one.version) },
    { id: "up", title: "Up", kind: "number", cell: textual((one) => words.time(one.uptime_ms)) },
    { id: "envoys", title: "Envoys", kind: "number", cell: textual((one) => words.count(one.envoys)) },
    { id: "streams", title: "Streams", kind: "number", cell: textual((one) => words.count(one.streams)) },
    { id: "keys", title: "Keys", kind: "number", cell: textual((one) => words.count(one.keys)) },
  ] });
  const envoys = table({ caption: "Envoys connected here", keyOf: (one) => one.node, empty: "No Envoy is connected here.", columns: [
    { id: "node", title: "Envoy", cell: textual((one) => one.node.slice(0, 12)) },
    { id: "state", title: "State", cell: textual((one) => (one.silent_ms > 2_000 ? `! silent for ${words.time(one.silent_ms)}` : "✓ active")) },
    { id: "address", title: "From", cell: textual((one) => one.address ?? "embedded limiter") },
    { id: "streams", title: "Streams", kind: "number", cell: textual((one) => words.count(one.streams)) },
    { id: "subscriber", title: "Receives pushes", cell: textual((one) => (one.subscriber ? "yes" : "elsewhere")) },
    { id: "since", title: "Connected", kind: "number", cell: textual((one) => words.ago(one.connected_ms)) },
  ] });
  const regions = table({ caption: "Regions", keyOf: (one) => one.name, empty: "No region has written to the database.", columns: [
    { id: "name", title: "Region", cell: textual((one) => one.name + (one.own ? " (this one)" : "")) },
    { id: "seen", title: "Last write", kind: "number", cell: textual((one) => (one.seen_age_ms === null || one.seen_age_ms === undefined ? "none yet" : words.ago(one.seen_age_ms))) },
  ] });
  const calls = table({ caption: "Store calls", keyOf: (one) => one.operation, empty: "No store is configured.", columns: [
    { id: "operation", title: "Call", cell: textual((one) => one.operation.replaceAll("_", " ")) },
    { id: "age", title: "Last", kind: "number", cell: textual((one) => words.ago(one.age_ms)) },
    { id: "took", title: "Took", kind: "number", cell: textual((one) => `${one.took_ms.toFixed(1)} ms`) },
    { id: "calls", title: "Calls", kind: "number", cell: textual((one) => words.compact(one.calls)) },
    { id: "failures", title: "Failed", kind: "number", cell: textual((one) => words.compact(one.failures)) },
    { id: "failure", title: "Last failure", cell: textual((one) => (one.failure ? `${one.failure}, ${words.ago(one.failure_age_ms)}` : "none")) },
  ] });
  const facts = h("dl", { class: "facts" });
  const panel = (title, ...children) => h("section", { class: "panel" }, h("h2", {}, title), children);
  const regionPanel = panel("Regions", regions.element);
  const element = h("div", { class: "view" }, h("h1", {}, "Parts"),
    h("div", { class: "columns even" }, panel("State", states), panel("This aggregator", facts)),
    panel("Aggregators of the region", aggregators.element), panel("Envoys connected here", envoys.element),
    h("div", { class: "columns even" }, panel("Store calls", calls.element), regionPanel));
  function update(response) {
    const body = response.body;
    if (!body) return;
    states.replaceChildren(...health(body).map(stateLine));
    facts.replaceChildren(...factsOf(body));
    aggregators.update([{ ...body.aggregator, own: true }, ...body.peers]);
    envoys.update(body.envoys);
    regionPanel.hidden = !body.database;
    regions.update(body.regions);
    calls.update([...(body.redis?.calls ?? []), ...(body.database?.calls ?? [])]);
  }
  return { title: "Parts", paths: ["/v1/parts"], element, update };
}

function factsOf({ aggregator: own, redis, database }) {
  const fact = (term, text) => h("div", {}, h("dt", {}, term), h("dd", {}, text));
  const list = (counts) => Object.entries(counts).map(([name, number]) => `${words.compact(number)} ${name.replaceAll("_", " ")}`).join(", ");
  const facts = [
    fact("Keys, cells", `${words.count(own.keys)}, ${words.count(own.cells)}`),
    fact("Reports received", words.count(own.reports)),
    fact("Queries received", list(own.queries)),
    fact("Queued", list(own.queues)),
    fact("HTTP API", list(own.api.http ?? {})),
    fact("Rate-limit service", list(own.api.rls ?? {})),
    fact("Quota service", list(own.api.rlqs ?? {})),
  ];
  if (redis) facts.push(fact("Redis", `read ${words.ago(redis.read_age_ms)}, lost its data ${words.plural(redis.wipes, "time", "times")}`));
  if (database) facts.push(fact("Database", `published ${words.ago(database.published_age_ms)}, imported ${words.ago(database.imported_age_ms)}, lost its data ${words.plural(database.wipes, "time", "times")}`));
  return facts;
}
