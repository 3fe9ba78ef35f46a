// Polls the aggregator one second after each answer, while the page is visible.

const INTERVAL_MS = 1_000;
const PATIENCE_MS = 6_000;

/** The last answer of each path with its time, and the current problem if requests fail. */
export const state = { said: new Map(), problem: null, since: null, paused: false, asking: false };

let wanted = () => [];
let changed = () => {};
let timer = null;

/** Starts polling the paths that `paths()` returns; calls `onChange` after each round. */
export function begin(paths, onChange) {
  wanted = paths;
  changed = onChange;
  document.addEventListener("visibilitychange", () => (document.hidden ? stop() : soon()));
  addEventListener("online", soon);
  soon();
}

/** The last answer of a path: {body} or {error}, with its time. */
export const said = (path) => state.said.get(path);

/** Polls at once. */
export function soon() {
  stop();
  if (!state.asking) round();
}

/** Pauses or resumes polling. */
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
    state.problem = error.name === "TimeoutError" ? "timeout" : "no connection";
    state.since ??= Date.now();
  }
  state.asking = false;
  forget(paths);
  changed();
  // The view may have changed during the round.
  const fresh = wanted().some((path) => !state.said.has(path)) && !state.problem;
  if (!document.hidden && !state.paused) timer = setTimeout(round, fresh ? 0 : INTERVAL_MS);
}

async function ask(path) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(PATIENCE_MS), cache: "no-store" });
  const body = await answer.json();
  const at = Date.now();
  state.said.set(path, answer.ok ? { body, at } : { error: body.error ?? `status ${answer.status}`, status: answer.status, at });
}

/** Drops the answers of keys that are no longer shown. */
function forget(paths) {
  for (const path of state.said.keys()) {
    if (path.startsWith("/v1/keys") && !paths.includes(path)) state.said.delete(path);
  }
}
