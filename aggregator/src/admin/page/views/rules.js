// The decisions of each rule, and the keys that a shadow rule would deny.

import { h, keyed, pager, setText, spark } from "../dom.js";
import * as words from "../words.js";
import { linkOf } from "./keys.js";

const SPANS = [["last_10s", "10 s"], ["last_1m", "1 min"], ["last_5m", "5 min"]];
const PAGE = 50;
const kept = { span: "last_10s" };

const KINDS = ["allowed", "denied", "shadow_denied", "exempt", "undecided", "banned"];

/** Decisions of some kinds over the last five minutes, one number for each point in time. */
export const history = (rule, kinds) => rule.history.map((point) => kinds.reduce((sum, kind) => sum + point[KINDS.indexOf(kind)], 0));

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
      const points = (kinds) => history(rule, kinds);
      const series = [
        { values: points(["allowed", "exempt", "undecided", "shadow_denied"]), kind: "allowed" },
        { values: points(["denied", "banned"]), kind: "denied" },
        { values: points(["shadow_denied"]), kind: "shadow" },
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
  const figure = (title, kind, value, all) => h("div", { class: kind, title: `${words.count(all)} since the aggregators first received this rule` }, h("dt", {}, title), h("dd", {}, words.rate(value), h("small", {}, words.compact(all))));
  const shown = [figure("allowed", "allowed", now.allowed, rule.decided.allowed)];
  if (!rule.shadow || rule.decided.denied > 0) shown.push(figure("denied", "denied", now.denied, rule.decided.denied));
  if (rule.shadow || rule.decided.shadow_denied > 0) shown.push(figure("shadow", "shadow", now.shadow_denied, rule.decided.shadow_denied));
  if (rule.excess_ratio) {
    const title = "The largest use of all regions beyond the limit within the last minutes";
    shown.push(h("div", { class: "excess", title }, h("dt", {}, "excess of regions"), h("dd", {}, `${(rule.excess_ratio * 100).toFixed(1)} %`)));
  }
  for (const [kind, title] of [["banned", "banned"], ["exempt", "exempt"], ["undecided", "undecided"]]) {
    if (rule.decided[kind] > 0) shown.push(figure(title, kind, now[kind], rule.decided[kind]));
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
