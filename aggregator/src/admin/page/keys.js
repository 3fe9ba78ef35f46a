// The keys nearest their limits: a live table with sorting and a filter; each row links to the key's explanation.

import { h, meter, setText, table, textual } from "./dom.js";
import * as words from "./words.js";

const kept = { filter: "", sort: null };

/** The link to a key's explanation. */
export function linkOf(key) {
  return `#/key?workspace=${encodeURIComponent(key.workspace)}&namespace=${encodeURIComponent(key.namespace)}&counted=${key.counted}&window_ms=${key.duration_ms}`;
}

export function keys() {
  const rows = keyTable({ caption: "The keys nearest their limits", sortable: true });
  const shown = h("span", { class: "muted", role: "status" });
  const field = h("input", { type: "search", id: "filter", value: kept.filter, placeholder: "Filter by identifier, namespace or workspace", autocomplete: "off", spellcheck: "false", oninput: () => { kept.filter = field.value; draw(); } });
  const element = h("div", { class: "view" },
    h("h1", {}, "Keys nearest their limits"),
    h("div", { class: "strip" }, h("label", { class: "unseen", for: "filter" }, "Filter"), field, shown),
    h("section", { class: "panel" }, rows.element),
    lookup(),
    h("p", { class: "muted" }, "The 100 keys of the region with the highest share of their limit in use. Used is what counts against the limit now: the current cell, plus the part of the previous cell that the window still covers."));
  let top = null;
  function draw() {
    if (!top) return;
    const wanted = kept.filter.trim().toLowerCase();
    const found = top.keys.filter((key) => [key.identifier, key.namespace, key.workspace].some((text) => text.toLowerCase().includes(wanted)));
    rows.update(found);
    setText(shown, wanted ? `${found.length} of ${top.keys.length} match` : `${words.plural(top.keys_over, "key", "keys")} over, ${words.count(top.keys_past_half)} past half, of ${words.count(top.keys_held)}`);
  }
  return { title: "Keys", paths: ["/v1/top"], element, update: (response) => { top = response.body ?? top; draw(); } };
}

/** A form to explain a key that is not in the table. */
function lookup() {
  const field = (name, title, value, more) => h("label", {}, title, h("input", { name, value, autocomplete: "off", spellcheck: "false", maxlength: "4096", ...more }));
  const form = h("form", { onsubmit: (event) => {
    event.preventDefault();
    const parameters = new URLSearchParams(new FormData(form));
    location.hash = `#/key?${parameters}`;
  } },
    field("namespace", "Namespace, as in the rule", "", { required: "" }), field("identifier", "Identifier, as a request carries it", "", { required: "" }), field("workspace", "Workspace", "default", { required: "" }),
    h("button", { class: "button" }, "Explain"));
  return h("details", { class: "lookup" }, h("summary", {}, "Explain another key"), form);
}

/** A table of keys. */
export function keyTable({ caption, sortable }) {
  const columns = [
    { id: "identifier", title: "Identifier", value: (key) => key.identifier, cell: identifierCell },
    { id: "window", title: "Window", kind: "number", value: (key) => key.duration_ms, cell: textual((key) => words.time(key.duration_ms)) },
    { id: "share", title: "Share of limit", value: (key) => key.used / Math.max(key.limit, 1), cell: shareCell },
    { id: "used", title: "Used", kind: "number", value: (key) => key.used, cell: textual((key) => words.count(key.used)) },
    { id: "limit", title: "Limit", kind: "number", value: (key) => key.limit, cell: textual((key) => words.count(key.limit)) },
    { id: "speed", title: "Per second", kind: "number", value: (key) => key.per_second ?? 0, cell: textual((key) => words.rate(key.per_second)) },
    { id: "others", title: "Other regions", kind: "number", value: (key) => key.global_others, cell: textual((key) => (key.global_others ? words.count(key.global_others) : "–")) },
    { id: "wait", title: "Passes", kind: "number", value: (key) => key.wait_ms ?? Infinity, cell: textual(passes) },
  ];
  const few = ["identifier", "share", "used", "limit", "wait"];
  return table({
    caption,
    columns: sortable ? columns : columns.filter((column) => few.includes(column.id)).map(({ value, ...column }) => column),
    keyOf: (key) => `${key.workspace}\n${key.namespace}\n${key.counted}\n${key.duration_ms}\n${key.epoch}\n${key.resolution}`,
    sort: sortable ? kept.sort : null,
    onSort: (sort) => (kept.sort = sort),
    empty: "No key has used any of its limit recently.",
  });
}

const passes = (key) => (key.wait_ms === 0 ? "now" : key.wait_ms === null || key.wait_ms === undefined ? "never" : `in ${words.time(key.wait_ms)}`);

function identifierCell() {
  const link = h("a", { class: "row" });
  const where = h("span", { class: "where" });
  return {
    element: h("span", { class: "key-name" }, link, where),
    update(key) {
      const target = linkOf(key);
      if (link.getAttribute("href") !== target) link.setAttribute("href", target);
      setText(link, key.identifier === "" ? "(all clients)" : key.identifier);
      setText(where, words.scope(key.workspace, key.namespace));
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
