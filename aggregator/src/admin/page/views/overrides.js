// Live control: what is in force, its author, reason, start and end; and the audit. It can be changed by commands only.

import { get } from "../data.js";
import { h, setText, table, textual, toBeginning } from "../dom.js";
import { term } from "../terms.js";
import * as words from "../words.js";

const KINDS = [["", "all"], ["ban", "bans"], ["limit", "limits"], ["exempt", "exemptions"], ["credit", "credits"], ["reset", "resets"], ["shadow", "shadow switches"]];
const PAGE = 50;
const MAX_CHANGES = 500;

/** What a control does. */
export function whatOf(one) {
  const window = one.window ? ` in ${words.time(one.window)}` : "";
  if (one.limit !== undefined) return `limit ${words.count(one.limit)}${window}`;
  if (one.credit !== undefined) return `credit ${words.count(one.credit)}${window}`;
  if (one.shadow !== undefined) return `shadow ${one.shadow ? "on" : "off"}`;
  return ["ban", "exempt", "reset"].find((kind) => one[kind]) ?? "";
}

/** Whom it names. */
export const targetOf = (one) => words.visible(one.identifier ?? one.network ?? `rule ${one.rule}`);

/** Where it applies. */
const placeOf = (one) => words.scope(one.workspace, one.rule !== undefined ? "all clients" : one.namespace === "*" ? "all namespaces" : one.namespace);

/** The explanation of the key that a control names, if it names one key. */
export function keyOf(one) {
  if (one.identifier === undefined || one.namespace === "*" || /[*\\]/.test(one.identifier)) return null;
  return `#/key?workspace=${encodeURIComponent(one.workspace)}&namespace=${encodeURIComponent(one.namespace)}&identifier=${encodeURIComponent(one.identifier)}`;
}

/** A cell with the target of a control, as a link if it is one key. */
export function targetCell() {
  const link = h("a", { class: "row" });
  const text = h("span", { class: "identifier" });
  const where = h("span", { class: "where" });
  return {
    element: h("span", { class: "key-name" }, link, text, where),
    update(one) {
      const target = keyOf(one);
      link.hidden = target === null;
      text.hidden = target !== null;
      if (target) link.setAttribute("href", target);
      setText(target ? link : text, targetOf(one));
      setText(where, placeOf(one));
    },
  };
}

const byOf = (one) => (one.author === undefined ? "unknown" : `${words.visible(one.author)}${one.automatic ? " (rule)" : ""}`);
const whyOf = (one) => (one.reason ? words.visible(one.reason) : "–");
const untilOf = (one) => (one.expires_at === undefined ? "no end" : words.moment(one.expires_at));

export function overrides(query) {
  const state = { kind: query.get("kind") ?? "", text: query.get("text") ?? "", pages: [] };
  const audited = ["workspace", "namespace", "identifier", "network"].map((name) => [name, query.get(name)]).filter(([, value]) => value);
  const note = h("p", { class: "muted", role: "status" });
  const trouble = h("p", { class: "panel empty", hidden: "" });
  const kinds = h("fieldset", { class: "segments" }, h("legend", { class: "unseen" }, "Kind"),
    KINDS.map(([id, title]) => h("label", {}, h("input", { type: "radio", name: "kind", value: id, checked: id === state.kind ? "" : null, onchange: () => choose({ kind: id }) }), h("span", {}, title))));
  const field = h("input", { type: "search", id: "filter", value: state.text, placeholder: "Filter by target, author or reason", autocomplete: "off", spellcheck: "false", maxlength: "256", oninput: () => choose({ text: field.value.trim() }) });
  const rows = table({ caption: "Live control in force", keyOf: (one) => String(one.revision), empty: "Nothing of that is in force.", columns: [
    { id: "who", title: "For", cell: targetCell },
    { id: "what", title: "What", cell: textual(whatOf) },
    { id: "by", title: "By", cell: textual(byOf) },
    { id: "why", title: "Why", cell: textual(whyOf) },
    { id: "since", title: "Since", cell: textual((one) => (one.updated_at === undefined ? "unknown" : words.moment(one.updated_at))) },
    { id: "until", title: "Until", cell: textual(untilOf) },
  ] });
  const turn = (change) => {
    change();
    view.soon?.();
    toBeginning(rows.element);
  };
  const newer = h("button", { type: "button", class: "button plain", onclick: () => turn(() => state.pages.pop()) }, "Newer");
  const older = h("button", { type: "button", class: "button plain", onclick: () => turn(() => last?.next && state.pages.push(last.next)) }, "Older");
  const changes = changeLog(audited);
  let last = null;
  const view = {
    title: "Live control",
    get paths() {
      const before = state.pages.at(-1);
      return [`/v1/overrides?limit=${PAGE}&kind=${state.kind}&text=${encodeURIComponent(state.text)}${before ? `&before=${before}` : ""}`];
    },
    update,
    element: h("div", { class: "view" }, h("h1", {}, "Live control"),
      h("p", { class: "muted" }, term("Live control"), " changes limits while everything runs. It is set by ", h("code", {}, "weir-aggregator overrides"), ", see ", h("a", { href: "/docs/aggregator/OVERRIDES.md" }, "its documentation"), "; this page only shows it."),
      trouble,
      h("div", { class: "strip" }, kinds, h("label", { class: "unseen", for: "filter" }, "Filter"), field),
      h("section", { class: "panel" }, h("h2", {}, "In force ", note), rows.element, h("div", { class: "pages" }, newer, older)),
      changes.element),
  };
  function choose(change) {
    Object.assign(state, change, { pages: [] });
    view.soon?.();
  }
  function update(response) {
    if (response.error) return setText(trouble, response.error), (trouble.hidden = false);
    last = response.body;
    const { database, in_force, matching, overrides: found, next, revision } = last;
    setText(trouble, database === "none" ? "This aggregator has no database (--database-url), so there is no live control." : "The database does not answer. What is in force stays in force; authors and reasons of newer entries are missing.");
    trouble.hidden = database === "read";
    const first = state.pages.length * PAGE;
    setText(note, matching > found.length ? `${words.count(first + 1)} to ${words.count(first + found.length)} of ${words.count(matching)}` : matching === in_force ? words.count(in_force) : `${words.count(matching)} of ${words.count(in_force)}`);
    rows.update(found);
    newer.hidden = state.pages.length === 0;
    older.hidden = next === null || next === undefined;
    changes.see(database === "none" ? null : revision);
  }
  return view;
}

/** The audit, which is read again when there is a newer revision. */
function changeLog(place) {
  let seen = null;
  let next = null;
  let all = [];
  const trouble = h("p", { class: "muted", hidden: "" });
  const rows = table({ caption: "Changes of live control", keyOf: (one) => String(one.id), empty: "Nothing was changed.", columns: [
    { id: "time", title: "Time", cell: textual((one) => words.moment(one.at)) },
    { id: "who", title: "For", cell: targetCell },
    { id: "before", title: "Before", cell: textual((one) => whatWas(one.before)) },
    { id: "after", title: "After", cell: textual((one) => (one.action === "deleted" ? "deleted" : whatWas(one.after))) },
    { id: "by", title: "By", cell: textual(byOf) },
    { id: "region", title: "Region", cell: textual((one) => one.region) },
    { id: "why", title: "Why", cell: textual(whyOf) },
  ] });
  const more = h("button", { type: "button", class: "button plain", hidden: "", onclick: () => read(next) }, "Older changes");
  const whole = place.length > 0 ? h("a", { class: "more", href: "#/overrides" }, "all changes") : null;
  const named = place.find(([name]) => name === "identifier" || name === "network");
  const element = h("section", { class: "panel" }, h("h2", {}, named ? `Changes for ${named[1]} ` : "Changes ", whole), trouble, rows.element, h("div", { class: "pages" }, more));
  async function read(before) {
    const parameters = new URLSearchParams([...place, ["limit", String(PAGE)], ...(before ? [["before", String(before)]] : [])]);
    try {
      const body = await get(`/v1/overrides/audit?${parameters}`);
      all = before ? [...all, ...body.changes] : body.changes;
      next = all.length < MAX_CHANGES ? body.next ?? null : null;
      trouble.hidden = true;
      rows.update(all);
      more.hidden = next === null;
    } catch (error) {
      setText(trouble, `The changes cannot be read: ${error.message}`);
      trouble.hidden = false;
      // They are read again with the next update.
      if (!before) seen = null;
    }
  }
  return {
    element,
    see(revision) {
      element.hidden = revision === null;
      if (revision === null || revision === seen) return;
      seen = revision;
      read(null);
    },
  };
}

function whatWas(control) {
  if (!control) return "–";
  const until = control.expires_at === undefined ? "" : `, until ${words.moment(control.expires_at)}`;
  return `${whatOf(control)}${until}`;
}
