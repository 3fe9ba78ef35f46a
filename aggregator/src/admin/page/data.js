// Asks the aggregator, a second after the last answer, while somebody looks. Leaves to others: what is shown of it.

const INTERVAL_MS = 1_000;
const PATIENCE_MS = 6_000;

/** What was said last of each path, and when; and why nothing is said now. */
export const state = { said: new Map(), problem: null, since: null, paused: false, asking: false };

let wanted = () => [];
let changed = () => {};
let timer = null;

/** From now on asks for what `paths()` names, and calls `onChange` after each round. */
export function begin(paths, onChange) {
  wanted = paths;
  changed = onChange;
  document.addEventListener("visibilitychange", () => (document.hidden ? stop() : soon()));
  addEventListener("online", soon);
  soon();
}

/** What was said of a path: {body} or {error}, with the moment. */
export const said = (path) => state.said.get(path);

/** Asks at once. */
export function soon() {
  stop();
  if (!state.asking) round();
}

/** Asks no more, or again. */
export function pause(paused) {
  state.paused = paused;
  changed();
  if (!paused) soon();
}

function stop() {
  clearTimeout(timer);
}

async function round() {
  const paths = wanted();
  state.asking = true;
  try {
    await Promise.all(paths.map(ask));
    state.problem = null;
    state.since = null;
  } catch (error) {
    state.problem = error.name === "TimeoutError" ? "it takes too long" : "no connection";
    state.since ??= Date.now();
  }
  state.asking = false;
  forget(paths);
  changed();
  // Somebody may look at something else by now.
  const fresh = wanted().some((path) => !state.said.has(path)) && !state.problem;
  if (!document.hidden && !state.paused) timer = setTimeout(round, fresh ? 0 : INTERVAL_MS);
}

async function ask(path) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(PATIENCE_MS), cache: "no-store" });
  const body = await answer.json();
  const at = Date.now();
  state.said.set(path, answer.ok ? { body, at } : { error: body.error ?? `status ${answer.status}`, status: answer.status, at });
}

/** Keys that somebody looked at before. */
function forget(paths) {
  for (const path of state.said.keys()) {
    if (path.startsWith("/v1/explain") && !paths.includes(path)) state.said.delete(path);
  }
}
