// The search at the top: keys whose identifier contains a text, live control that names it, and the text itself as an
// identifier in each namespace.

import { h, meter } from "./dom.js";
import * as words from "./words.js";
import { linkOf } from "./views/keys.js";
import { targetOf, whatOf } from "./views/overrides.js";

const PAUSE_MS = 150;
const PATIENCE_MS = 6_000;
const MAX_SCOPES = 8;

/** Connects the field with the box of results. */
export function search(field, box) {
  let timer = null;
  let latest = 0;
  let text = "";
  const close = () => {
    latest += 1;
    text = "";
    clearTimeout(timer);
    box.hidden = true;
    field.setAttribute("aria-expanded", "false");
  };
  async function look() {
    const wanted = field.value.trim();
    if (wanted === "") return close();
    if (wanted === text) return;
    const number = ++latest;
    const found = await Promise.all([
      get(`/v1/top?limit=20&text=${encodeURIComponent(wanted)}`), get("/v1/rules"), get(`/v1/overrides?limit=5&text=${encodeURIComponent(wanted)}`),
    ]).then(([top, rules, controls]) => results(wanted, top.keys, rules.rules, controls), (error) => [h("p", { class: "empty" }, `The search failed: ${error.message}.`)]);
    if (number !== latest) return;
    text = wanted;
    box.replaceChildren(...found);
    box.hidden = false;
    field.setAttribute("aria-expanded", "true");
  }
  field.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(look, PAUSE_MS);
  });
  field.form.addEventListener("submit", async (event) => {
    event.preventDefault();
    clearTimeout(timer);
    await look();
    box.querySelector("a.row")?.click();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || box.hidden) return;
    field.focus();
    close();
  });
  document.addEventListener("click", (event) => {
    if (!field.form.contains(event.target)) close();
  });
  addEventListener("hashchange", () => {
    field.value = "";
    close();
  });
}

async function get(path) {
  const response = await fetch(path, { signal: AbortSignal.timeout(PATIENCE_MS), cache: "no-store" });
  const body = await response.json();
  if (!response.ok) throw new Error(body.error ?? `status ${response.status}`);
  return body;
}

function results(text, keys, rules, controls) {
  const part = (title, items) => (items.length > 0 ? [h("h2", {}, title), h("ul", {}, items)] : []);
  const known = new Set(keys.filter((key) => key.identifier === text).map((key) => `${key.workspace}\n${key.namespace}`));
  const scopes = new Map(rules.map((rule) => [`${rule.workspace}\n${rule.namespace}`, rule]));
  const others = [...scopes].filter(([id]) => !known.has(id)).map(([, rule]) => rule);
  return [
    ...part("Keys", keys.map(keyItem)),
    ...part(`Live control${controls.matching > controls.overrides.length ? ` (${words.count(controls.matching)})` : ""}`, controls.overrides.map((one) => h("li", {}, h("a", { class: "row", href: `#/overrides?text=${encodeURIComponent(text)}` }, targetOf(one)), h("span", { class: "muted" }, whatOf(one))))),
    ...part(`Explain “${text}” in namespace`, others.slice(0, MAX_SCOPES).map((rule) => h("li", {}, h("a", { class: "row", href: `#/key?workspace=${encodeURIComponent(rule.workspace)}&namespace=${encodeURIComponent(rule.namespace)}&identifier=${encodeURIComponent(text)}` }, words.scope(rule.workspace, rule.namespace))))),
    ...(keys.length + controls.overrides.length + others.length === 0 ? [h("p", { class: "empty" }, "Nothing is found.")] : []),
  ];
}

function keyItem(key) {
  const bar = meter();
  bar.set(key.used, key.limit, words.level(key.used, key.limit));
  const state = key.wait_ms === 0 ? "passes" : "denied";
  return h("li", {}, h("a", { class: "row", href: linkOf(key) }, key.identifier === "" ? "(all clients)" : key.identifier),
    h("span", { class: "muted" }, `${words.place(key)}, ${words.kind(key.algorithm)} of ${words.time(key.duration_ms)}`), bar.element,
    h("span", { class: state }, `${words.count(key.used)} of ${words.count(key.limit)}, ${state}`));
}
