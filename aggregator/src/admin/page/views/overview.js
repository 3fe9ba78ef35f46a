// The overview: rates, keys near their limits, and the state of the parts.

import { h, setText, spark } from "../dom.js";
import { term } from "../terms.js";
import * as words from "../words.js";
import { keyTable } from "./keys.js";
import { keyOf, targetOf } from "./overrides.js";
import { health, stateLine } from "./parts.js";
import { history, sumOf } from "./rules.js";

export function overview() {
  const figures = {
    allowed: figure("Allowed", "allowed"),
    denied: figure("Denied", "denied"),
    shadow: figure([term("Shadow"), " would deny"], "shadow"),
    keys: figure([term("Keys", "key"), " over their limit"]),
    bans: figure("Bans in force"),
    envoys: figure("Envoys"),
  };
  const table = keyTable({ caption: "The keys nearest their limits", sortable: false });
  const parts = h("ul", { class: "states", "aria-label": "Parts" });
  const rules = h("ul", { class: "rule-rows", "aria-label": "Busiest rules" });
  const bans = h("ul", { class: "bans", "aria-label": "Newest bans" });
  const banned = h("section", { class: "panel", hidden: "" }, h("h2", {}, "Bans ", h("a", { class: "more", href: "#/overrides?kind=ban" }, "all bans")), bans);
  const element = h("div", { class: "view" },
    h("h1", { class: "unseen" }, "Overview"),
    h("section", { class: "figures", "aria-label": "Figures" }, Object.values(figures).map((one) => one.element)),
    h("div", { class: "columns" },
      h("section", { class: "panel wide" }, h("h2", {}, "Nearest their limits ", h("a", { class: "more", href: "#/keys" }, "all keys")), table.element),
      h("div", { class: "stack" }, banned,
        h("section", { class: "panel" }, h("h2", {}, "Parts ", h("a", { class: "more", href: "#/parts" }, "all parts")), parts),
        h("section", { class: "panel" }, h("h2", {}, "Busiest rules ", h("a", { class: "more", href: "#/rules" }, "all rules")), rules))));
  function update(top, decisions, state, control) {
    if (!top.body || !decisions.body || !state.body || !control.body) return;
    const { sum, outcomes } = decisions.body;
    const over = (group) => words.rate(sumOf(outcomes, [group], sum.per_second.last_10s));
    const points = (...groups) => history(outcomes, groups, sum);
    figures.allowed.set(over("allowed"), "per second", points("allowed", "other"));
    figures.denied.set(over("denied"), "per second", points("denied"));
    figures.shadow.set(over("shadow"), "per second", points("shadow"));
    figures.keys.set(words.compact(top.body.keys_over), `${words.compact(top.body.keys_past_half)} past half, of ${words.compact(top.body.keys_held)}`);
    figures.bans.set(words.compact(control.body.bans), control.body.database === "none" ? "no live control without a database" : `of ${words.compact(control.body.in_force)} live controls`);
    banned.hidden = control.body.bans === 0;
    bans.replaceChildren(...control.body.overrides.map((ban) => banLine(ban, control.body.now_unix_ms)));
    figures.envoys.set(words.count(state.body.envoys_alive), `alive; ${words.count(state.body.envoys_connected)} connected here`);
    table.update(top.body.keys);
    parts.replaceChildren(...health(state.body).map(stateLine));
    rules.replaceChildren(...busiest(outcomes, decisions.body.rules));
  }
  return { title: "Overview", paths: ["/v1/top?limit=10", "/v1/rules?limit=5&order=busiest", "/v1/parts", "/v1/overrides?kind=ban&limit=5"], element, update };
}

function figure(title, kind) {
  const value = h("span", { class: "value" }, "–");
  const note = h("span", { class: "note" });
  const drawing = h("span", { class: "drawing" });
  const element = h("div", { class: `figure ${kind ?? ""}` }, h("span", { class: "title" }, title), value, note, kind ? drawing : null);
  return {
    element,
    set(text, more, points) {
      setText(value, text);
      value.classList.toggle("zero", text === "0");
      setText(note, more);
      if (points) drawing.replaceChildren(spark([{ values: points, kind }], { height: 30, label: `${element.firstChild.textContent}, the last five minutes` }));
    },
  };
}

function banLine(ban, now) {
  const link = keyOf(ban);
  const name = link ? h("a", { href: link, class: "row" }, targetOf(ban)) : h("span", { class: "row" }, targetOf(ban));
  const end = ban.expires_at === undefined ? "no end" : `for another ${words.time(Math.max(ban.expires_at - now, 0))}`;
  const by = ban.author === undefined ? "" : `, by ${words.visible(ban.author)}`;
  return h("li", {}, name, h("span", { class: "muted" }, `${words.scope(ban.workspace, ban.namespace === "*" ? "all namespaces" : ban.namespace)}, ${end}${by}`));
}

function busiest(outcomes, rules) {
  if (rules.length === 0) return [h("li", { class: "empty" }, "No filter has reported its rules yet.")];
  return rules.map((rule) => {
    const now = rule.per_second.last_10s;
    const against = sumOf(outcomes, [rule.shadow ? "shadow" : "denied"], now);
    return h("li", { class: "rule-row" },
      h("span", { class: "name" }, words.scope(rule.workspace, rule.name), rule.shadow ? h("span", { class: "badge shadow" }, "shadow") : null),
      h("span", { class: "rates" },
        h("span", {}, words.rate(now.allowed), h("small", {}, " allow/s")),
        h("span", { class: against > 0 ? (rule.shadow ? "shadow" : "denied") : "muted" }, words.rate(against), h("small", {}, rule.shadow ? " shadow/s" : " deny/s"))));
  });
}
