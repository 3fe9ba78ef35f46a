// Commands that lift a ban or raise a limit, quoted for a shell and ready to copy. Identifiers come from any client.

import { h, setText } from "./dom.js";
import * as words from "./words.js";

/** Highest limit. */
const MAX_COUNT = 2 ** 53 - 1;

/** A text as one word of a shell. Characters that are not visible are spelt out, so that the word is what it looks like. */
export function quote(text) {
  if (/^[A-Za-z0-9_@%+:,./-]+$/.test(text)) return text;
  if (!/[\p{C}\p{Zl}\p{Zp}]/u.test(text)) return `'${text.replaceAll("'", "'\\''")}'`;
  const spelt = [...text].map((one) => {
    if (one === "'" || one === "\\") return `\\${one}`;
    if (!/[\p{C}\p{Zl}\p{Zp}]/u.test(one)) return one;
    return `\\U${one.codePointAt(0).toString(16).padStart(8, "0")}`;
  });
  return `$'${spelt.join("")}'`;
}

// A value that begins with a dash would be read as an option.
const option = ([name, value]) => (value === undefined || value === null || value === "" ? [] : [`--${name}${String(value).startsWith("-") ? "=" : " "}${quote(String(value))}`]);
const command = (verb, ...options) => ["weir-aggregator", verb, ...options.flatMap(option)].join(" ");

/** A duration as the commands read it. */
function duration(ms) {
  const [unit, length] = [["d", 86_400_000], ["h", 3_600_000], ["m", 60_000], ["s", 1_000], ["ms", 1]].find(([, length]) => ms % length === 0);
  return `${ms / length}${unit}`;
}

/** What can be done for an explained key that is denied: {what, note, command}. `reason` is for the audit. */
export function commandsFor(body, reason) {
  const windows = [...body.windows, ...body.exact];
  const controls = [body.control, ...body.windows.map((window) => window.control)];
  const entries = new Map(controls.flatMap((control) => control.entries).map((entry) => [entry.revision, entry]));
  const place = [["workspace", body.workspace === "default" ? null : body.workspace], ["namespace", body.namespace]];
  const key = [...place, ["identifier", body.named]];
  const found = [];
  for (const entry of entries.values()) {
    if (entry.kind !== "ban") continue;
    const target = [place[0], ["namespace", entry.namespace], ["identifier", entry.identifier], ["network", entry.network]];
    const others = entry.network ?? (entry.identifier === body.named ? null : entry.identifier);
    const note = others ? `For every identifier that ${words.visible(others)} matches.` : null;
    found.push({ what: "Lift the ban", note, command: command("overrides delete", ...target, ["reason", reason]) });
  }
  if (body.named === null || body.namespace === "") return found;
  const banned = controls.some((control) => control.banned);
  for (const window of windows.filter((one) => one.passes === false && !one.outdated)) {
    const limit = Number(window.limit ?? 0);
    if (window.zone) {
      found.push({ what: "Raise the zone's rate", note: "For all of its buckets.", command: command("zones set", ["zone", window.zone], ["rate", Math.min(Math.max(2 * limit, 1), MAX_COUNT)], ["window", duration(window.window_ms)]) });
      continue;
    }
    const one = windows.length > 1 ? [["window", duration(window.duration_ms ?? window.window_ms)]] : [];
    if (banned && window.control?.entries.some((entry) => entry.kind === "ban" && entry.identifier !== body.named) && limit > 0) {
      found.push({ what: "Admit this key alone, within its limit", note: "A limit for exactly this identifier has precedence over a ban by pattern or network.", command: command("overrides set", ...key, ["limit", limit], ["expires-in", "24h"], ["reason", reason]) });
    } else if (!banned) {
      found.push({ what: "Double the limit for a day", command: command("overrides set", ...key, ...one, ["limit", Math.min(Math.max(2 * limit, 1), MAX_COUNT)], ["expires-in", "24h"], ["reason", reason]) });
      if (limit > 0) found.push({ what: "Grant the limit once more, for an hour", command: command(`overrides credit ${limit}`, ...key, ...one, ["expires-in", "1h"], ["reason", reason]) });
    }
  }
  if (!banned && found.length > 0) found.push({ what: "Start counting at zero, in all regions", command: command("overrides reset", ...key, ["reason", reason]) });
  return found;
}

/** A panel with the commands of a denied key. */
export function commandPanel() {
  let last = null;
  const reason = h("input", { id: "reason", autocomplete: "off", maxlength: "200", oninput: () => draw() });
  const list = h("ol", { class: "commands", "aria-label": "What can be done" });
  const note = h("p", { class: "muted" });
  const element = h("section", { class: "panel", hidden: "" },
    h("h2", {}, "What can be done"),
    h("label", { class: "reason", for: "reason" }, "Reason, for the audit", reason), list, note,
    h("p", { class: "muted" }, "Run them where an aggregator's HTTP API is reachable, with a token that allows live control: ", h("a", { href: "/docs/aggregator/OVERRIDES.md" }, "how"), "."));
  function draw() {
    const found = last ? commandsFor(last, reason.value.trim()) : [];
    const nameless = last && last.named === null ? "No command can name this identifier: it is empty, or has bytes that are not UTF-8, or control characters. A pattern with * can." : "";
    const ban = last?.control.banned && !last.control.entries.some((entry) => entry.kind === "ban") ? "The ban was made by a rule and is not in the database; it ends by itself." : "";
    setText(note, [nameless, ban].filter(Boolean).join(" "));
    note.hidden = note.textContent === "";
    element.hidden = !isDenied(last) || (found.length === 0 && note.hidden);
    // Unchanged items stay, so that neither the focus nor a selection is lost.
    const shown = JSON.stringify(found);
    if (list.dataset.shown === shown) return;
    list.dataset.shown = shown;
    list.replaceChildren(...found.map(item));
  }
  return { element, update: (body) => { last = body; draw(); } };
}

const isDenied = (body) => body && (body.control.banned || [...body.windows, ...body.exact].some((one) => one.passes === false && !one.outdated));

function item({ what, note, command }) {
  const code = h("code", {}, command);
  const button = h("button", { type: "button", class: "copy", onclick: () => copy(code, button) }, "Copy");
  button.setAttribute("aria-label", `Copy: ${words.sentence(what)}`);
  return h("li", {}, h("span", { class: "what" }, what, note ? h("small", {}, ` ${note}`) : null), h("div", { class: "command" }, h("pre", { tabindex: "0" }, code), button));
}

/** Copies the text of an element. Without permission for the clipboard the text is selected, to be copied by hand. */
async function copy(code, button) {
  let done = true;
  try {
    await navigator.clipboard.writeText(code.textContent);
  } catch {
    getSelection().selectAllChildren(code);
    done = document.execCommand("copy");
  }
  setText(button, done ? "Copied" : "Selected");
  setText(document.getElementById("announcement"), done ? "Copied." : "Selected; copy it with Ctrl+C.");
  setTimeout(() => setText(button, "Copy"), 2_000);
}
