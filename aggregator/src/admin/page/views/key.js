// One key: the outcome of a request now, its use over time, and the components of Envoys and regions with their ages.

import { h, keyed, meter, setText, svg, table, textual } from "../dom.js";
import { commandPanel } from "../commands.js";
import { term } from "../terms.js";
import * as words from "../words.js";

const MAX_POINTS = 300;
/** Use over time while the page is open, by key and window. */
const timelines = new Map();

export function key(query, raw) {
  const path = `/v1/keys?${raw}`;
  const name = query.get("counted") ?? query.get("identifier") ?? "";
  const title = h("h1", { class: "identifier" }, name);
  const where = h("p", { class: "muted" });
  const control = h("ul", { class: "panel control", "aria-label": "Live control", hidden: "" });
  const reasons = h("ul", { class: "panel reasons", "aria-label": "Why requests are denied", hidden: "" });
  const problem = h("p", { class: "panel empty", hidden: "" });
  const windows = h("div", { class: "stack" });
  const exact = h("div", { class: "stack" });
  const shown = new Map();
  const commands = commandPanel();
  const changes = h("a", { class: "more", hidden: "" }, "Changes of its live control");
  const element = h("div", { class: "view" }, h("p", {}, h("a", { href: "#/keys" }, "← All keys")), h("div", { class: "strip" }, title, changes), where, control, reasons, problem, commands.element, exact, windows);
  const exacts = keyed(exact, exactPanel);
  function update(response) {
    const body = response.body;
    showItems(control, body ? sentences(body.control, body.now_unix_ms) : []);
    showItems(reasons, body ? denials(body) : []);
    if (body) commands.update(body);
    // A banned or exempt key may have used nothing.
    const nothing = () => (body.unknown ? `${words.sentence(body.unknown)}.` : "Nothing was used in this window or the previous one.");
    const wrong = response.error ?? (body.windows.length + body.exact.length === 0 ? nothing() : null);
    problem.hidden = !wrong;
    windows.hidden = Boolean(wrong) || body.windows.length === 0;
    exact.hidden = Boolean(wrong) || body.exact.length === 0;
    if (wrong) setText(problem, wrong);
    if (!body) return;
    setText(title, body.identifier === "" ? "(all clients)" : body.identifier);
    document.title = `${body.identifier} · Weir`;
    setText(where, `${body.namespace === "" ? "A bucket of the ledger" : `Namespace ${body.namespace}, workspace ${body.workspace}`}; counts as known in region ${body.region}.`);
    changes.href = `#/overrides?workspace=${encodeURIComponent(body.workspace)}&namespace=${encodeURIComponent(body.namespace)}&identifier=${encodeURIComponent(body.named ?? "")}&text=${encodeURIComponent(body.named ?? "")}`;
    changes.hidden = body.named === null || body.namespace === "";
    // What applies to all windows stands once, above them.
    const general = new Set(sentences(body.control, body.now_unix_ms));
    const own = (control) => sentences(control, body.now_unix_ms).filter((sentence) => !general.has(sentence));
    exacts(body.exact.map((one) => ({ ...one, own: own(one.control) })), (one) => `${one.name}\n${one.algorithm}\n${one.zone}\n${one.window_ms}`);
    const idOf = (window) => `${window.duration_ms}/${window.epoch}/${window.resolution}`;
    const there = new Set(body.windows.map(idOf));
    for (const [id, panel] of shown) {
      if (there.has(id)) continue;
      panel.element.remove();
      shown.delete(id);
    }
    for (const window of body.windows) {
      const id = idOf(window);
      if (!shown.has(id)) {
        shown.set(id, windowPanel(window, `${body.workspace}\n${body.namespace}\n${body.counted}\n${id}`));
        windows.append(shown.get(id).element);
      }
      shown.get(id).update(window, body.now_unix_ms, own(window.control));
    }
  }
  return { title: name || "Key", paths: [path], element, update };
}

/** A list of sentences: live control for all windows of the key (a window panel shows its own), or why it is denied. */
function showItems(list, items) {
  list.hidden = items.length === 0;
  const shown = items.join("\n");
  if (list.dataset.shown === shown) return;
  list.dataset.shown = shown;
  list.replaceChildren(...items.map((sentence) => h("li", {}, sentence)));
}

/** Why requests are denied, above what can be done about it; the panels below have the figures. A ban of the key is live control's sentence. */
function denials(body) {
  if (body.control.banned) return [];
  const isDenied = (one) => one.passes === false && !one.outdated;
  return [
    ...body.windows.filter(isDenied).map((window) => `Window of ${words.time(window.duration_ms)}: ${windowVerdict(window)}`),
    ...body.exact.filter(isDenied).map((one) => `${exactTitle(one)}: ${exactVerdict(one)}`),
  ].map((sentence) => sentence.replace(": ✕ ", ": "));
}

function sentences(control, nowMs) {
  const all = [];
  const add = (what, kind) => all.push(`${what}${named(control.entries.find((entry) => entry.kind === kind))}.`);
  if (control.banned) add(control.banned_until_unix_ms ? `Banned for another ${words.time(Math.max(control.banned_until_unix_ms - nowMs, 0))}` : "Banned permanently", "ban");
  if (control.exempt) add("Exempt: neither decided nor counted", "exempt");
  if (control.limit !== null && control.limit !== undefined) add(`A limit of ${words.count(control.limit)} instead of the rule's`, "limit");
  if (control.credit > 0) add(`A credit of ${words.count(control.credit)} beyond the limit`, "credit");
  if (control.epoch > 0) add(`Reset: counted in epoch ${control.epoch}`, "reset");
  return all;
}

/** Identifies the entry, as in `overrides list` and `overrides audit`. */
function named(entry) {
  if (!entry) return "";
  const target = entry.identifier === null ? `network ${entry.network}` : `identifier ${words.visible(entry.identifier)}`;
  const by = entry.author ? `, by ${words.visible(entry.author)}${entry.reason ? `: ${words.visible(entry.reason)}` : ""}` : "";
  return ` (${target}, namespace ${entry.namespace}, revision ${entry.revision}${by})`;
}

/** The use of a log or a ledger, as its store has it. */
function exactPanel() {
  const title = h("h2");
  const verdict = h("p", { class: "verdict" });
  const bar = meter();
  const large = h("div", { class: "large" }, bar.element);
  const use = h("p", { class: "use" });
  const facts = h("dl", { class: "facts" });
  const element = h("section", { class: "panel window exact" }, title, verdict, large, use, facts);
  return {
    element,
    update(one) {
      const limit = one.limit ?? 0;
      const isKnown = one.used !== null && one.used !== undefined;
      const level = isKnown ? words.level(one.used, limit) : "low";
      setText(title, exactTitle(one));
      verdict.dataset.passes = String(one.passes);
      setText(verdict, exactVerdict(one));
      element.dataset.level = level;
      large.hidden = !isKnown;
      bar.set(one.used ?? 0, limit, level);
      setText(use, isKnown ? `${words.count(one.used)} of ${words.count(limit)} used (${words.percent(one.used, limit)})` : "");
      const fact = (term, text) => h("div", {}, h("dt", {}, term), h("dd", {}, text));
      facts.replaceChildren(
        fact("Rule", one.name ? `${one.name}${one.shadow ? ", shadow" : ""}` : "none reported"),
        fact(one.algorithm === "ledger" ? "Rate of the zone" : "Limit", isKnown || one.limit ? words.count(limit) : "unknown"),
        fact("Denied by this aggregator lately", words.count(one.denied)),
        ...one.own.map((sentence) => fact("Live control", sentence)));
    },
  };
}

const exactTitle = (one) => `${one.algorithm === "ledger" ? `Ledger, zone ${one.zone}, window` : "Exact log"}${one.window_ms ? ` of ${words.time(one.window_ms)}` : ""}`;

function exactVerdict(one) {
  const denied = (wait) => (wait !== null && wait !== undefined ? `A request of cost 1 would be denied. It would pass again in ${words.time(wait)}, if nothing more is used.` : one.control.banned ? "Every request is denied: the key is banned." : "Every request would be denied: the limit is 0.");
  if (one.but_for_shadow) return `✓ Every request passes because of shadow mode. Without it: ${denied(one.but_for_shadow.wait_ms)}`;
  if (one.control.exempt && one.passes) return "✓ Every request passes: the key is exempt.";
  if (one.passes === false) return `✕ ${denied(one.wait_ms)}`;
  if (one.trouble) return `Its use could not be read: ${one.trouble}.`;
  return one.passes ? `✓ A request of cost 1 would pass. ${words.count(one.remaining)} left.` : "Its use is not known.";
}

function windowPanel(window, id) {
  const verdict = h("p", { class: "verdict" });
  const bar = meter();
  const use = h("p", { class: "use" });
  const facts = h("dl", { class: "facts" });
  const chart = h("div", { class: "chart" });
  const cells = h("div", { class: "cells" });
  const envoys = table({
    caption: "Envoys",
    columns: [
      { id: "node", title: "Envoy", cell: nodeCell },
      { id: "cell", title: "In cell", cell: textual((part) => part.cell) },
      { id: "own", title: "Used", kind: "number", cell: textual((part) => words.count(part.own)) },
      { id: "age", title: "Last grew", kind: "number", cell: textual((part) => words.ago(part.age_ms)) },
    ],
    keyOf: (part) => `${part.sequence} ${part.node}`,
    empty: "No Envoy of this region has used this key.",
  });
  const regions = table({
    caption: "Regions",
    columns: [
      { id: "region", title: "Region", cell: textual((one) => one.region) },
      { id: "cell", title: "In cell", cell: textual((one) => one.cell) },
      { id: "count", title: "Used", kind: "number", cell: textual((one) => words.count(one.count)) },
      { id: "age", title: "Received", kind: "number", cell: textual((one) => words.ago(one.age_ms)) },
    ],
    keyOf: (one) => `${one.sequence} ${one.region}`,
    empty: "No other region has published this key.",
  });
  const hardLimit = window.resolution > 1 ? `, a hard limit of ${window.resolution} cells` : "";
  const element = h("section", { class: "panel window" },
    h("h2", {}, `Window of ${words.time(window.duration_ms)}${hardLimit}${window.epoch ? `, epoch ${window.epoch}` : ""}`),
    verdict, h("div", { class: "large" }, bar.element), use, facts,
    h("h3", {}, "Use since the page was opened"), chart,
    h("h3", {}, term("Cells", "cell")), cells,
    h("div", { class: "columns even" },
      h("section", {}, h("h3", {}, term("Envoys", "component"), " of this region"), envoys.element),
      h("section", {}, h("h3", {}, "Published by other regions"), regions.element)));
  return {
    element,
    update(now, nowMs, own) {
      const level = now.limit === null || now.limit === undefined ? "low" : words.level(now.used, now.limit);
      verdict.dataset.passes = String(now.passes);
      setText(verdict, windowVerdict(now));
      element.dataset.level = level;
      bar.set(now.used, now.limit ?? Math.max(now.used, 1), level);
      setText(use, now.limit === null || now.limit === undefined ? `${words.count(now.used)} used` : `${words.count(now.used)} of ${words.count(now.limit)} used (${words.percent(now.used, now.limit)})`);
      facts.replaceChildren(...factsOf(now, own));
      chart.replaceChildren(timeline(remember(id, nowMs, now.used), now.limit));
      cells.replaceChildren(...now.cells.map((cell) => cellBar(cell, now.cells)));
      const named = new Map(now.cells.map((cell) => [cell.sequence, cell.current ? "current" : words.clock(cell.start_unix_ms)]));
      envoys.update([...now.cells].reverse().flatMap((cell) => cell.components.map((part) => ({ ...part, sequence: cell.sequence, cell: named.get(cell.sequence) }))));
      regions.update([...now.cells].reverse().flatMap((cell) => cell.regions.map((part) => ({ ...part, sequence: cell.sequence, cell: named.get(cell.sequence) }))));
    },
  };
}

function windowVerdict(window) {
  const { passes, control, wait_ms: wait, but_for_shadow: denied } = window;
  const waits = wait !== null && wait !== undefined;
  if (window.outdated) return "Used before a reset; no longer counted.";
  if (denied) return `✓ Every request passes because of shadow mode. Without it, requests would be denied${denied.wait_ms !== null ? `, and would pass again in ${words.time(denied.wait_ms)}` : control.banned ? ": the key is banned" : ": the limit is 0"}.`;
  if (control.exempt) return "✓ Every request passes: the key is exempt.";
  if (control.banned && !waits) return "✕ Every request is denied: the key is banned.";
  if (passes === true) return `✓ A request of cost 1 would pass. ${words.count(window.remaining)} left.`;
  if (passes === false && waits) return `✕ A request of cost 1 would be denied. It would pass again in ${words.time(wait)}, if nothing more is used.`;
  return passes === false ? "✕ Every request would be denied: the limit is 0." : "No limit is known for this window.";
}

function factsOf(window, own) {
  const fact = (term, text) => h("div", {}, h("dt", {}, term), h("dd", {}, text));
  const rules = window.rules.map((rule) => `${rule.name} (${words.count(rule.limit)}${rule.shadow ? ", shadow" : ""})`);
  return [
    fact("Limit", window.limit === null || window.limit === undefined ? "unknown" : words.count(window.limit)),
    fact("Rules, before overrides", rules.length > 0 ? rules.join(", ") : "none reported"),
    fact("Used by other regions", words.count(window.global_others)),
    ...(window.reserved > 0 ? [fact("Reserved, not used yet", words.count(window.reserved))] : []),
    ...own.map((sentence) => fact("Live control", sentence)),
  ];
}

function nodeCell() {
  const code = h("code");
  const here = h("span", { class: "badge" }, "here");
  return {
    element: h("span", {}, code, " ", here),
    update(part) {
      setText(code, part.node.slice(0, 12));
      code.title = part.node;
      here.hidden = !part.here;
    },
  };
}

function cellBar(cell, cells) {
  const most = Math.max(1, ...cells.map((one) => one.regional_total + one.global_others));
  const part = (kind, number) => {
    const bar = h("span", { class: `part ${kind}` });
    bar.style.setProperty("inline-size", `${(number / most) * 100}%`);
    return bar;
  };
  const others = cell.global_others > 0 ? `, other regions ${words.count(cell.global_others)}` : "";
  return h("div", { class: "cell" },
    h("span", { class: "when" }, `${words.clock(cell.start_unix_ms)} – ${words.clock(cell.end_unix_ms)}${cell.current ? " (now)" : ""}`),
    h("span", { class: "parts", "aria-hidden": "true" }, part("here", cell.regional_total), part("others", cell.global_others)),
    h("span", { class: "count" }, `this region ${words.count(cell.regional_total)}${others}`));
}

function remember(id, now, used) {
  const points = timelines.get(id) ?? [];
  if (points.at(-1)?.[0] !== now) points.push([now, used]);
  timelines.delete(id);
  timelines.set(id, points.slice(-MAX_POINTS));
  if (timelines.size > 20) timelines.delete(timelines.keys().next().value);
  return timelines.get(id);
}

function timeline(points, limit) {
  const [width, height] = [800, 120];
  const most = Math.max(1, limit ?? 0, ...points.map(([, used]) => used)) * 1.1;
  const [from, to] = [points[0][0], points.at(-1)[0]];
  const x = (at) => (((at - from) / Math.max(to - from, 30_000)) * width).toFixed(1);
  const y = (used) => (height - (used / most) * height).toFixed(1);
  const line = points.map(([at, used]) => `${x(at)},${y(used)}`).join(" ");
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": `Used since ${words.clock(from)}` },
    svg("polygon", { class: "area allowed", points: `0,${height} ${line} ${x(to)},${height}` }),
    svg("polyline", { class: "line allowed", points: line }));
  if (limit !== null && limit !== undefined) drawing.append(svg("line", { class: "limit", x1: 0, x2: width, y1: y(limit), y2: y(limit) }));
  return h("figure", {}, drawing, h("figcaption", {}, h("span", {}, words.clock(from)), limit ? h("span", { class: "limit-note" }, `- - limit ${words.count(limit)}`) : null, h("span", {}, words.clock(to))));
}
