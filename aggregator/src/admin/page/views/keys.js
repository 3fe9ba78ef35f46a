// The keys nearest their limits: a live table with sorting; each row links to the key's explanation.

import { h, meter, setText, table, textual } from "../dom.js";
import { term } from "../terms.js";
import * as words from "../words.js";

const kept = { sort: null };

/** The link to a key's explanation. */
export function linkOf(key) {
  if (key.namespace === "" && key.zone) return `#/key?zone=${key.zone}&counted=${key.counted}`;
  return `#/key?workspace=${encodeURIComponent(key.workspace)}&namespace=${encodeURIComponent(key.namespace)}&counted=${key.counted}&window_ms=${key.duration_ms}`;
}

export function keys() {
  const rows = keyTable({ caption: "The keys nearest their limits", sortable: true });
  const shown = h("p", { class: "muted", role: "status" });
  const element = h("div", { class: "view" },
    h("h1", {}, "Keys nearest their limits"), shown,
    h("section", { class: "panel" }, rows.element),
    h("p", { class: "muted" }, "The 100 keys of the region with the highest share of their limit in use; the search at the top finds all others. Keys that only shadow rules count are with their ", h("a", { href: "#/rules" }, "rules"), ". Used is what counts against the limit now: the current ", term("cell"), ", plus the part of the previous cell that the window still covers. Exact logs and ledgers are listed if this aggregator decided them lately; the use of a ledger is as of then, and Envoys deny more than is counted here."));
  function update({ body: top }) {
    if (!top) return;
    rows.update(top.keys);
    setText(shown, `${words.plural(top.keys_over, "key", "keys")} over, ${words.count(top.keys_past_half)} past half, of ${words.count(top.keys_held)}`);
  }
  return { title: "Keys", paths: ["/v1/top"], element, update };
}

/** A table of keys. */
export function keyTable({ caption, sortable }) {
  const columns = [
    { id: "identifier", title: "Identifier", value: (key) => key.identifier, cell: identifierCell },
    { id: "kind", title: "Kind", value: (key) => key.algorithm, cell: textual((key) => words.kind(key.algorithm)) },
    { id: "window", title: "Window", kind: "number", value: (key) => key.duration_ms, cell: textual((key) => words.time(key.duration_ms)) },
    { id: "share", title: "Share of limit", value: (key) => key.used / Math.max(key.limit, 1), cell: shareCell },
    { id: "used", title: "Used", kind: "number", value: (key) => key.used, cell: textual((key) => words.count(key.used)) },
    { id: "limit", title: "Limit", kind: "number", value: (key) => key.limit, cell: textual((key) => words.count(key.limit)) },
    { id: "denied", title: "Denied", kind: "number", value: (key) => key.denied ?? -1, cell: textual((key) => (key.denied === null ? "–" : words.count(key.denied))) },
    { id: "speed", title: "Per second", kind: "number", value: (key) => key.per_second ?? 0, cell: textual((key) => words.rate(key.per_second)) },
    { id: "others", title: "Other regions", kind: "number", value: (key) => key.global_others, cell: textual((key) => (key.global_others ? words.count(key.global_others) : "–")) },
    { id: "wait", title: "Passes", kind: "number", value: (key) => key.wait_ms ?? Infinity, cell: textual(passes) },
  ];
  const few = ["identifier", "share", "used", "limit", "wait"];
  return table({
    caption,
    columns: sortable ? columns : columns.filter((column) => few.includes(column.id)).map(({ value, ...column }) => column),
    keyOf: (key) => `${key.workspace}\n${key.namespace}\n${key.counted}\n${key.duration_ms}\n${key.epoch}\n${key.resolution}\n${key.algorithm}\n${key.zone}`,
    sort: sortable ? kept.sort : null,
    onSort: (sort) => (kept.sort = sort),
    empty: "No key has used any of its limit recently.",
  });
}

const passes = (key) => (key.but_for_shadow ? "by shadow mode" : key.wait_ms === 0 ? "now" : key.wait_ms === null || key.wait_ms === undefined ? "never" : `in ${words.time(key.wait_ms)}`);

function identifierCell() {
  const link = h("a", { class: "row" });
  const where = h("span", { class: "where" });
  return {
    element: h("span", { class: "key-name" }, link, where),
    update(key) {
      const target = linkOf(key);
      if (link.getAttribute("href") !== target) link.setAttribute("href", target);
      setText(link, key.identifier === "" ? "(all clients)" : key.identifier);
      setText(where, `${words.place(key)}${key.algorithm === "sliding_window" ? "" : ` · ${words.kind(key.algorithm)}`}`);
    },
  };
}

function shareCell() {
  const bar = meter();
  const text = h("span", { class: "percent" });
  return {
    element: h("span", { class: "share" }, bar.element, text),
    update(key, row) {
      const level = words.level(key.used, key.limit);
      bar.set(key.used, key.limit, level);
      row.dataset.level = level;
      setText(text, words.percent(key.used, key.limit));
    },
  };
}
