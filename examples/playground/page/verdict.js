// Whether a run kept every law; where not: which, when, and how to have the same failure on a machine.
import { $, make } from './form.js';
import { CHECKERS } from './words.js';

const HELD = 'Checkers follow every write, decision and message: no count falls, nothing is counted twice, nobody waits too long, and at rest all agree. How far a limit is passed is measured below.';
const FAILED = 'Weir has a mistake, or a checker sees one where there is none, as it may with tables that are too small and clocks that step. The first of each kind is told.';
const FILE = 'weir-plan.json';
// A failure tells keys and counts of one place; what is longer belongs into the saved run.
const LONGEST = 2000;

// `ran` is what was run: a plan and a seed as text, and the scenario's name if it is one.
export function verdict(failures, ran) {
  const failed = failures.length > 0;
  const says = make('strong', { textContent: failed ? 'Something that must hold did not' : 'Everything that must hold did' });
  $('verdict').className = failed ? 'verdict failed' : 'verdict';
  $('verdict').replaceChildren(says, ...failed
    ? [make('ul', {}, ...failures.map(failure => line(failure, JSON.parse(ran.plan)))), ...natively(ran), make('p', { className: 'hint', textContent: FAILED })]
    : [make('span', { className: 'hint', textContent: HELD })]);
  $('verdict').hidden = false;
}

// The simulation itself did not come to its end.
export function broken(what, ran) {
  verdict([{ checker: 'panic', at_ms: null, what }], ran);
}

function line({ checker, at_ms, what }, { traffic_ms }) {
  const aside = at_ms < 0 ? ', before the traffic' : at_ms > traffic_ms ? ', after the traffic' : '';
  const when = at_ms === null ? '' : ` at ${at_ms / 1000} s${aside}`;
  const detail = what.length > LONGEST ? `${what.slice(0, LONGEST)}…` : what;
  return make('li', {}, make('b', { textContent: CHECKERS[checker] ?? checker }), when, make('code', { textContent: `${checker}: ${detail}` }));
}

// The words for a terminal, and the file that they need.
function natively({ plan, seed, scenario }) {
  const way = scenario ? `--scenario ${scenario} --seed ${seed}` : `--plan ${FILE}`;
  const parts = [
    make('p', { textContent: 'The same failure on a machine, shrunk to what is needed for it:' }),
    make('pre', { tabIndex: 0 }, make('code', { textContent: `./justw simulate ${way}` })),
  ];
  return scenario ? parts : [...parts, make('p', {}, savesPlan(make('a', { textContent: `Save ${FILE}`, href: '#' }), () => planText(JSON.parse(plan), seed)))];
}

// Has a link save a plan as the simulator takes it; `text` is asked for when it is used.
export function savesPlan(link, text) {
  link.download = FILE;
  link.addEventListener('click', () => {
    URL.revokeObjectURL(link.href);
    link.href = URL.createObjectURL(new Blob([text()], { type: 'application/json' }));
  });
  return link;
}

// A seed is larger than a script's numbers: it is put in as text.
export function planText(plan, seed) {
  return JSON.stringify({ ...plan, seed: 'SEED' }, null, 2).replace('"SEED"', () => seed);
}
