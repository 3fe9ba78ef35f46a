// The page: navigation between views, keyboard shortcuts, and the age of the shown data.

import * as data from "./data.js";
import { setText } from "./dom.js";
import * as words from "./words.js";
import { search } from "./search.js";
import { explainTerms, glossary } from "./terms.js";
import { overview } from "./views/overview.js";
import { keys } from "./views/keys.js";
import { key } from "./views/key.js";
import { rules } from "./views/rules.js";
import { overrides } from "./views/overrides.js";
import { parts } from "./views/parts.js";

const VIEWS = { overview, keys, key, rules, overrides, parts };
const ORDER = ["overview", "keys", "rules", "overrides", "parts"];
const main = document.getElementById("main");
const banner = document.getElementById("banner");
const help = document.getElementById("help");
const field = document.getElementById("search");
const found = document.getElementById("found");
let view = null;
let wasLost = false;

function route() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const name = Object.hasOwn(VIEWS, path) ? path : "overview";
  return { name, query: new URLSearchParams(query), raw: query ?? "" };
}

function open() {
  const { name, query, raw } = route();
  const first = view === null;
  // A view polls at once after it has changed its paths.
  view = Object.assign(VIEWS[name](query, raw), { name, soon: data.soon });
  main.replaceChildren(view.element);
  document.title = `${view.title} · Weir`;
  for (const link of document.querySelectorAll("nav a")) {
    const isHere = link.dataset.view === (name === "key" ? "keys" : name);
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (!first) {
    scrollTo(0, 0);
    main.focus({ preventScroll: true });
    data.soon();
  }
  draw();
}

function draw() {
  const responses = view.paths.map((path) => data.responseOf(path));
  const region = responses.find((response) => response?.body?.region)?.body.region;
  if (region) setText(document.getElementById("region"), region);
  if (responses.every((response) => response !== undefined)) view.update(...responses);
  freshness();
}

/** Shows the age of the data, and whether the aggregator responds. */
function freshness() {
  const { problem, since, paused } = data.state;
  const ats = view.paths.map((path) => data.responseOf(path)?.at).filter(Boolean);
  const age = ats.length > 0 ? Date.now() - Math.min(...ats) : null;
  const lost = problem !== null;
  document.body.dataset.state = lost ? "lost" : paused ? "paused" : "live";
  const fresh = age !== null && age < 3_000;
  setText(document.getElementById("age"), lost ? "no answer" : paused ? `paused, ${words.time(age ?? 0)} old` : fresh ? "live" : age === null ? "…" : words.ago(age));
  document.getElementById("pause").setAttribute("aria-pressed", String(paused));
  document.getElementById("pause").title = paused ? "Resume (p)" : "Pause (p)";
  banner.hidden = !lost;
  if (lost) {
    const shown = age === null ? "No data yet." : `The data shown is ${words.time(age)} old.`;
    setText(banner, `The aggregator has not answered since ${words.clock(since)} (${problem}). ${shown} Retrying every second.`);
  }
  if (lost !== wasLost) setText(document.getElementById("announcement"), lost ? "" : "The aggregator answers again.");
  wasLost = lost;
}

function moveRow(by) {
  const place = found.hidden ? main : found;
  const rows = [...place.querySelectorAll("a.row")].filter((row) => row.offsetParent !== null);
  const at = rows.indexOf(document.activeElement);
  rows[Math.max(0, Math.min(rows.length - 1, at < 0 ? (by > 0 ? 0 : rows.length - 1) : at + by))]?.focus();
}

const SHORTCUTS = {
  "/": () => field.focus(),
  "?": () => help.showModal(),
  p: () => data.pause(!data.state.paused),
  j: () => moveRow(1),
  k: () => moveRow(-1),
  ArrowDown: () => moveRow(1),
  ArrowUp: () => moveRow(-1),
  ...Object.fromEntries(ORDER.map((name, at) => [String(at + 1), () => (location.hash = name === "overview" ? "#/" : `#/${name}`)])),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
  const isField = event.target.matches("input, select, textarea");
  if (isField && event.key === "Escape") event.target.blur();
  if (isField && event.key === "ArrowDown" && event.target.type === "search") {
    event.preventDefault();
    moveRow(1);
  }
  if (isField || !Object.hasOwn(SHORTCUTS, event.key)) return;
  const inRows = document.activeElement.matches("a.row, body, main");
  if (event.key.startsWith("Arrow") && !inRows) return;
  event.preventDefault();
  SHORTCUTS[event.key]();
});
document.getElementById("help-open").addEventListener("click", () => help.showModal());
document.getElementById("pause").addEventListener("click", () => data.pause(!data.state.paused));
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
addEventListener("hashchange", open);
search(field, found);
explainTerms();
document.getElementById("terms").append(...glossary());
setText(document.getElementById("zone"), words.zone());
linkGrafana();

/** The link to Grafana, if the aggregator has its URL. */
async function linkGrafana() {
  const links = await fetch("/v1/links").then((response) => response.json(), () => ({}));
  const link = document.getElementById("grafana");
  if (!links.grafana) return;
  link.href = links.grafana;
  link.hidden = false;
}

setInterval(freshness, 1_000);
open();
data.begin(() => view.paths, draw);
