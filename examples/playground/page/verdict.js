// Whether a run kept every invariant. If not: which one was violated, when, and how to reproduce the failure locally.
import { $, make } from './form.js';
import { CHECKERS } from './words.js';

const HELD = 'Checkers test every write, decision and message: no count falls, nothing is counted twice, no request waits too long, and at rest all counts agree. By how much a limit is exceeded is measured below.';
const FAILED = 'Weir has a bug, or a checker reports one wrongly, which can happen with tables that are too small and clocks that step. The first violation of each kind is shown.';
const FILE = 'weir-plan.json';
// A failure names keys and counts of one part; a longer text is in the saved run only.
const LONGEST = 2000;

// `ran` is what was run: a plan and a seed as text, and the scenario's name if it is one.
export function verdict(failures, ran) {
  const failed = failures.length > 0;
  const heading = make('strong', { textContent: failed ? 'An invariant was violated' : 'All invariants held' });
  $('verdict').className = failed ? 'verdict failed' : 'verdict';
  $('verdict').replaceChildren(heading, ...failed
    ? [make('ul', {}, ...failures.map(failure => line(failure, JSON.parse(ran.plan)))), ...natively(ran), make('p', { className: 'hint', textContent: FAILED })]
    : [make('span', { className: 'hint', textContent: HELD })]);
  $('verdict').hidden = false;
}

// Shows that the simulation failed before its end.
export function broken(what, ran) {
  verdict([{ checker: 'panic', at_ms: null, what }], ran);
}

function line({ checker, at_ms, what }, { traffic_ms }) {
  const aside = at_ms < 0 ? ', before the traffic' : at_ms > traffic_ms ? ', after the traffic' : '';
  const when = at_ms === null ? '' : ` at ${at_ms / 1000} s${aside}`;
  const detail = what.length > LONGEST ? `${what.slice(0, LONGEST)}…` : what;
  return make('li', {}, make('b', { textContent: CHECKERS[checker] ?? checker }), when, make('code', { textContent: `${checker}: ${detail}` }));
}

// The command that reproduces the failure in a terminal, and the file that it needs.
function natively({ plan, seed, scenario }) {
  const way = scenario ? `--scenario ${scenario} --seed ${seed}` : `--plan ${FILE}`;
  const parts = [
    make('p', { textContent: 'To reproduce the failure locally and shrink it to what is needed:' }),
    make('pre', { tabIndex: 0 }, make('code', { textContent: `./justw simulate ${way}` })),
  ];
  return scenario ? parts : [...parts, make('p', {}, savesPlan(make('a', { textContent: `Save ${FILE}`, href: '#' }), () => planText(JSON.parse(plan), seed)))];
}

// Makes a link save a plan in the simulator's format. `text` is called when the link is used.
export function savesPlan(link, text) {
  link.download = FILE;
  link.addEventListener('click', () => {
    URL.revokeObjectURL(link.href);
    link.href = URL.createObjectURL(new Blob([text()], { type: 'application/json' }));
  });
  return link;
}

// A seed may exceed a script's numbers, so it is inserted as text.
export function planText(plan, seed) {
  return JSON.stringify({ ...plan, seed: 'SEED' }, null, 2).replace('"SEED"', () => seed);
}
