// The search at the top: keys whose identifier or namespace contains a text, live control that names it, and the text itself as an
// identifier in each namespace. A search ends when another text is typed.

import { get } from "./data.js";
import { h, meter } from "./dom.js";
import * as words from "./words.js";
import { linkOf } from "./views/keys.js";
import { targetOf, whatOf } from "./views/overrides.js";

const PAUSE_MS = 150;
const MAX_SCOPES = 8;

/** Connects the field with the box of results. */
export function search(field, box) {
  let timer = null;
  /** The search whose results are shown or awaited: its text, its end, and how to abort it. */
  let current = null;
  const abort = () => {
    clearTimeout(timer);
    current?.controller.abort();
    current = null;
  };
  const close = () => {
    abort();
    box.hidden = true;
    field.setAttribute("aria-expanded", "false");
  };
  function look() {
    const text = field.value.trim();
    if (text === "") return close();
    if (current?.text === text) return current.done;
    abort();
    const one = { text, controller: new AbortController() };
    current = one;
    one.done = find(text, one.controller.signal).then((found) => {
      if (one !== current) return;
      box.replaceChildren(...found);
      box.hidden = false;
      field.setAttribute("aria-expanded", "true");
    });
    return one.done;
  }
  field.addEventListener("input", () => {
    if (current?.text === field.value.trim()) return;
    abort();
    timer = setTimeout(look, PAUSE_MS);
  });
  field.form.addEventListener("submit", async (event) => {
    event.preventDefault();
    clearTimeout(timer);
    const text = field.value.trim();
    await look();
    if (current?.text !== text) return;
    const whole = box.querySelector("a.row[data-whole]");
    if (whole) whole.click();
    else box.querySelector("a.row")?.focus();
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

/** What is found, or why nothing is. */
async function find(text, signal) {
  const asked = encodeURIComponent(text);
  const paths = [`/v1/top?limit=20&text=${asked}`, "/v1/rules?limit=20&order=busiest", `/v1/overrides?limit=5&text=${asked}`];
  try {
    const [top, rules, controls] = await Promise.all(paths.map((path) => get(path, signal)));
    return results(text, top.keys, rules.rules, controls);
  } catch (error) {
    return [h("p", { class: "empty" }, `The search failed: ${error.message}.`)];
  }
}

function results(text, keys, rules, controls) {
  const part = (title, items) => (items.length > 0 ? [h("h2", {}, title), h("ul", { "aria-label": title }, items)] : []);
  const known = new Set(keys.filter((key) => key.identifier === text).map((key) => `${key.workspace}\n${key.namespace}`));
  const scopes = new Map(rules.map((rule) => [`${rule.workspace}\n${rule.namespace}`, rule]));
  const others = [...scopes].filter(([id]) => !known.has(id)).map(([, rule]) => rule);
  // Without such a key, the only namespace is meant.
  const isOnly = known.size === 0 && others.length === 1;
  return [
    ...part("Keys", keys.map((key) => keyItem(key, text))),
    ...part(`Live control${controls.matching > controls.overrides.length ? ` (${words.count(controls.matching)})` : ""}`, controls.overrides.map((one) => h("li", {}, h("a", { class: "row", href: `#/overrides?text=${encodeURIComponent(text)}` }, targetOf(one)), h("span", { class: "muted" }, whatOf(one))))),
    ...part(`Explain “${text}” in namespace`, others.slice(0, MAX_SCOPES).map((rule) => h("li", {}, h("a", { class: "row", "data-whole": isOnly && "", href: `#/key?workspace=${encodeURIComponent(rule.workspace)}&namespace=${encodeURIComponent(rule.namespace)}&identifier=${encodeURIComponent(text)}` }, words.scope(rule.workspace, rule.namespace))))),
    ...(keys.length + controls.overrides.length + others.length === 0 ? [h("p", { class: "empty" }, "Nothing is found.")] : []),
  ];
}

function keyItem(key, text) {
  const bar = meter();
  bar.set(key.used, key.limit, words.level(key.used, key.limit));
  const state = key.but_for_shadow ? "shadow" : key.wait_ms === 0 ? "passes" : "denied";
  const word = key.but_for_shadow ? "passes by shadow mode" : state;
  return h("li", {}, h("a", { class: "row", "data-whole": key.identifier === text && "", href: linkOf(key) }, key.identifier === "" ? "(all clients)" : key.identifier),
    h("span", { class: "muted" }, `${words.place(key)}, ${words.kind(key.algorithm)} of ${words.time(key.duration_ms)}`), bar.element,
    h("span", { class: state }, `${words.count(key.used)} of ${words.count(key.limit)}, ${word}`));
}
