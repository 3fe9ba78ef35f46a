// Polls the aggregator one second after each response, while the page is visible.

const INTERVAL_MS = 1_000;
const PATIENCE_MS = 6_000;

/** The last response of each path with its time, and the current problem if requests fail. */
export const state = { responses: new Map(), problem: null, since: null, paused: false, polling: false };

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

/** The last response of a path: {body} or {error}, with its time. */
export const responseOf = (path) => state.responses.get(path);

/** Polls at once. */
export function soon() {
  stop();
  if (!state.polling) round();
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
  state.polling = true;
  try {
    await Promise.all(paths.map(poll));
    state.problem = null;
    state.since = null;
  } catch (error) {
    state.problem = error.name === "TimeoutError" ? "timeout" : error instanceof Refusal ? error.message : "no connection";
    state.since ??= Date.now();
  }
  state.polling = false;
  forget(paths);
  changed();
  // The view may have changed during the round.
  const fresh = wanted().some((path) => !state.responses.has(path)) && !state.problem;
  if (!document.hidden && !state.paused) timer = setTimeout(round, fresh ? 0 : INTERVAL_MS);
}

/** An answer that has no data. */
class Refusal extends Error {}

/** The JSON of a path. Throws what went wrong; an answer to a wrong query, status 400, is left to `onWrong`. */
export async function get(path, signal, onWrong) {
  const patience = AbortSignal.timeout(PATIENCE_MS);
  const response = await fetch(path, { signal: signal ? AbortSignal.any([signal, patience]) : patience, cache: "no-store" });
  const body = await response.json().catch((error) => {
    if (error instanceof SyntaxError) return {};
    throw error;
  });
  if (response.ok) return body;
  const reason = body.error ?? "no JSON";
  if (response.status === 400 && onWrong) return onWrong(reason);
  throw new Refusal(`status ${response.status}: ${reason}`);
}

async function poll(path) {
  const answer = await get(path, null, (error) => ({ wrong: error }));
  const at = Date.now();
  state.responses.set(path, answer.wrong === undefined ? { body: answer, at } : { error: answer.wrong, at });
}

/** Drops the answers to queries that are no longer shown. */
function forget(paths) {
  for (const path of state.responses.keys()) {
    if (path.includes("?") && !paths.includes(path)) state.responses.delete(path);
  }
}
