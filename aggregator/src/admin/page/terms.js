// Short definitions of terms, as in the glossary of core/README.md (a test compares them), and the tooltip that shows them:
// under the pointer, at the focus, or after a tap. Escape closes it.

import { h, setText } from "./dom.js";
import * as words from "./words.js";

const TERMS = new Map([
  ["key", "Workspace, namespace, identifier, window, resolution and epoch: what is counted."],
  ["epoch", "The epoch is the revision of the newest reset that names the identifier, or 0."],
  ["cell", "A key in one span of time, numbered floor(unix_ms / cell_ms); a window is one cell, or ten under a hard limit (the resolution)."],
  ["node", "A process that counts: an Envoy with the filter, or an embedded limiter."],
  ["component", "A node's count in a cell."],
  ["query", "A call to the aggregator that a request waits for."],
  ["report", "Counts that a worker sends."],
  ["push", "Others' counts that an aggregator sends."],
  ["baseline", "Use from before counting began here."],
  ["marker", "A value in a store that shows whether it lost data."],
  ["peers", "The other aggregators of a region, which share its Redis."],
  ["zone", "A ledger's use case with rate and window."],
  ["transaction", "One recorded attempt."],
  ["live control", "Overrides, exemptions, bans, credits, resets and shadow switches, changed while everything runs."],
  ["revision", "The number of a change, which only grows."],
  ["shadow", "A rule that counts but never denies."],
]);

const tip = document.getElementById("tip");
let shown = null;

/** A text that explains a term of the glossary. */
export function term(text, name = text.toLowerCase()) {
  return TERMS.has(name) ? h("button", { type: "button", class: "term", "data-term": name }, text) : text;
}

function show(element) {
  if (shown === element) return;
  hide();
  shown = element;
  setText(tip, TERMS.get(element.dataset.term));
  tip.hidden = false;
  element.setAttribute("aria-describedby", "tip");
  const at = element.getBoundingClientRect();
  const left = Math.max(8, Math.min(at.left, document.documentElement.clientWidth - tip.offsetWidth - 8));
  const below = at.bottom + 6 + tip.offsetHeight < innerHeight;
  tip.style.setProperty("left", `${left}px`);
  tip.style.setProperty("top", `${below ? at.bottom + 6 : at.top - 6 - tip.offsetHeight}px`);
}

function hide() {
  shown?.removeAttribute("aria-describedby");
  shown = null;
  tip.hidden = true;
}

/** Shows and hides the tooltip for all terms on the page. */
export function explainTerms() {
  const of = (event) => event.target.closest?.(".term");
  for (const name of ["mouseover", "focusin", "click"]) document.addEventListener(name, (event) => of(event) && show(of(event)));
  for (const name of ["mouseout", "focusout"]) document.addEventListener(name, (event) => of(event) && hide());
  document.addEventListener("keydown", (event) => event.key === "Escape" && hide());
  addEventListener("scroll", hide, { passive: true, capture: true });
  addEventListener("hashchange", hide);
}

/** All terms, for the help. */
export const glossary = () => [...TERMS].map(([name, meaning]) => h("div", {}, h("dt", {}, words.sentence(name)), h("dd", {}, meaning)));
