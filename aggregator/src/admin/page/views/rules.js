// The decisions of each rule, and the keys that a shadow rule would deny.

import { h, keyed, pager, setText, spark } from "../dom.js";
import * as words from "../words.js";
import { linkOf } from "./keys.js";

const SPANS = [["last_10s", "10 s"], ["last_1m", "1 min"], ["last_5m", "5 min"]];
const PAGE = 50;
const kept = { span: "last_10s", outcomes: [] };

const namesOf = (outcomes, groups) => outcomes.filter(({ group }) => groups.includes(group)).map(({ name }) => name);

/** The sum of what a rule has of each outcome of some groups. */
export const sumOf = (outcomes, groups, counts) => namesOf(outcomes, groups).reduce((sum, name) => sum + counts[name], 0);

/** Decisions of some groups over the last five minutes, one number for each point in time. */
export const history = (outcomes, groups, { history: points }) => {
  const [first, ...others] = namesOf(outcomes, groups).map((name) => points[name]);
  return first.map((count, at) => others.reduce((sum, series) => sum + series[at], count));
};

export function rules(query) {
  const state = { text: query.get("text") ?? "", offset: 0 };
  const list = h("ul", { class: "stack", "aria-label": "Rules" });
  const none = h("p", { class: "panel empty", hidden: "" });
  const scope = h("span", { class: "muted" });
  const spans = h("fieldset", { class: "segments" }, h("legend", { class: "unseen" }, "Rates over"),
    SPANS.map(([id, title]) => h("label", {}, h("input", { type: "radio", name: "span", value: id, checked: id === kept.span ? "" : null, onchange: () => { kept.span = id; draw(); } }), h("span", {}, title))));
  const field = h("input", { type: "search", id: "filter", value: state.text, placeholder: "Filter by name, namespace or workspace", autocomplete: "off", spellcheck: "false", maxlength: "256", oninput: () => choose({ text: field.value.trim(), offset: 0 }) });
  const pages = pager("rules", list, (offset) => choose({ offset }));
  const element = h("div", { class: "view" }, h("h1", {}, "Rules"), h("div", { class: "strip" }, spans, h("label", { class: "unseen", for: "filter" }, "Filter"), field, scope), list, none, pages.element);
  const cards = keyed(list, card);
  let last = null;
  function choose(change) {
    Object.assign(state, change);
    view.soon?.();
  }
  function draw() {
    if (!last) return;
    // Rules may have gone while their page was open.
    if (last.rules.length === 0 && last.matching > 0) return choose({ offset: 0 });
    kept.outcomes = last.outcomes;
    const aggregators = words.plural(last.aggregators, "aggregator", "aggregators");
    setText(scope, `requests per second, summed over the region's ${aggregators}${last.aggregators_silent ? `; ${last.aggregators_silent} silent` : ""}${last.left_out ? "; further rules are left out" : ""}`);
    none.hidden = last.rules.length > 0;
    setText(none, state.text === "" ? "No filter has reported its rules yet. Filters report them when they connect." : "No rule matches.");
    pages.set(state.offset, PAGE, last.matching);
    cards(last.rules, (rule) => `${rule.workspace}\n${rule.name}`);
  }
  const view = {
    title: "Rules",
    get paths() {
      return [`/v1/rules?limit=${PAGE}&offset=${state.offset}&text=${encodeURIComponent(state.text)}`];
    },
    element,
    update: (response) => { last = response.body ?? last; draw(); },
  };
  return view;
}

function card() {
  const name = h("h2");
  const mode = h("span", { class: "badge" });
  const facts = h("p", { class: "muted" });
  const drawing = h("div", { class: "drawing" });
  const rates = h("dl", { class: "rates" });
  const would = h("div", { class: "would" });
  const element = h("li", { class: "panel rule" }, h("div", { class: "about" }, h("div", { class: "head" }, name, mode), facts), drawing, rates, would);
  return {
    element,
    update(rule) {
      setText(name, rule.name);
      setText(mode, rule.shadow ? "shadow" : "enforced");
      mode.classList.toggle("shadow", rule.shadow);
      setText(facts, about(rule));
      const points = (...groups) => history(kept.outcomes, groups, rule);
      const series = [
        { values: points("allowed", "other", "shadow"), kind: "allowed" },
        { values: points("denied"), kind: "denied" },
        { values: points("shadow"), kind: "shadow" },
      ].filter(({ values, kind }) => kind === "allowed" || values.some((value) => value > 0));
      drawing.replaceChildren(spark(series, { width: 240, height: 44, label: "The last five minutes" }));
      rates.replaceChildren(...figures(rule));
      would.replaceChildren(...(rule.shadow ? wouldDeny(rule) : []));
      would.hidden = !rule.shadow;
    },
  };
}

function about(rule) {
  const where = `${words.scope(rule.workspace, rule.namespace)} · ${words.plural(rule.workers, "worker", "workers")}`;
  if (rule.algorithm === "ledger") return `ledger · ${where}`;
  const exact = rule.algorithm === "sliding_log" ? "exact log · " : "";
  return `${exact}${words.count(rule.limit)} in ${words.time(rule.window_ms)} · ${where}`;
}

function figures(rule) {
  const now = rule.per_second[kept.span];
  const usual = ["allowed", rule.shadow ? "shadow_denied" : "denied"];
  const figure = ({ name, label, group }) => h("div", { class: group, title: `${words.count(rule.decided[name])} since the aggregators first received this rule` }, h("dt", {}, label), h("dd", {}, words.rate(now[name]), h("small", {}, words.compact(rule.decided[name]))));
  const shown = kept.outcomes.filter(({ name }) => usual.includes(name) || rule.decided[name] > 0).map(figure);
  if (rule.excess_ratio) {
    const title = "The largest use of all regions beyond the limit within the last minutes";
    shown.push(h("div", { class: "excess", title }, h("dt", {}, "excess of regions"), h("dd", {}, `${(rule.excess_ratio * 100).toFixed(1)} %`)));
  }
  return shown;
}

function wouldDeny(rule) {
  const now = rule.per_second[kept.span];
  const all = Object.values(now).reduce((sum, one) => sum + one, 0);
  const share = all > 0 ? `${((now.shadow_denied / all) * 100).toFixed(1)} % of its requests` : "no requests now";
  const would = rule.would_deny;
  const items = [h("p", {}, h("strong", {}, "Would deny "), `${words.rate(now.shadow_denied)} per second, ${share}; ${words.count(rule.decided.shadow_denied)} so far.`)];
  if (!would) return items;
  if (would.keys === 0) return [...items, h("p", { class: "muted" }, "No key is over its limit now.")];
  const key = (one) => h("li", {}, h("a", { href: linkOf(one), class: "row" }, one.identifier === "" ? "(all clients)" : one.identifier), h("span", {}, `${words.count(one.used)} of ${words.count(one.limit)}`));
  const more = would.keys - would.furthest.length;
  return [...items,
    h("p", { class: "muted" }, `${words.plural(would.keys, "key is", "keys are")} over the limit now, the furthest first:`),
    h("ol", { class: "chips", "aria-label": `Keys over the limit of ${rule.name}` }, would.furthest.map(key), more > 0 ? h("li", { class: "muted" }, `and ${words.count(more)} more`) : null)];
}
