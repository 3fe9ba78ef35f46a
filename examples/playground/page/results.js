// Shows the results of a run: figures, plots, and the plots as tables. `verdict.js` shows the verdict.
import { $, make } from './form.js';
import { CHECKERS, FAULTS, duration, targets } from './words.js';
import { Plots, format } from './plot.js';
import { verdict } from './verdict.js';

const whole = value => value.toLocaleString('en-GB');
const percent = part => `${(part * 100).toLocaleString('en-GB', { maximumFractionDigits: 1 })} %`;
let plots = null;

// `ran` is what was run, as sent to the worker; `file` is its result.
export function show(file, ran) {
  const { outcome, series } = JSON.parse(file);
  verdict(outcome.failures, ran);
  headline(outcome.comparison, series, JSON.parse(ran.plan));
  tiles(outcome);
  plot(series, JSON.parse(ran.plan), outcome.failures);
  comparison(outcome.comparison);
  figures(outcome.figures);
  $('summary').hidden = false;
  URL.revokeObjectURL($('save').href);
  $('save').href = URL.createObjectURL(new Blob([file], { type: 'application/json' }));
  table(series);
}

// Removes the results of an earlier run.
export function clear() {
  plots?.close();
  ['tiles', 'plot-requests', 'plot-snapshots', 'plot-window'].forEach(id => $(id).replaceChildren());
  ['headline', 'summary', 'points'].forEach(id => { $(id).hidden = true; });
}

// The result in one line: the limit, and the most that was admitted in any window.
function headline({ worst_window }, { key, points }, { rules }) {
  const name = { 1000: 'second', 60000: 'minute', 3600000: 'hour', 86400000: 'day' }[key.window_ms];
  const worst = rules.length === 1 ? Math.round(worst_window * key.limit) : Math.max(0, ...points.map(point => point.window));
  const limit = make('span', {}, 'limit ', make('b', { textContent: whole(key.limit) }), name ? ` ${name === 'hour' ? 'an' : 'a'} ${name}` : ` in ${duration(key.window_ms)}`);
  const found = make('span', { className: worst > key.limit ? 'over' : '' }, `worst ${name ?? duration(key.window_ms)} `, make('b', { textContent: whole(worst) }));
  $('headline').replaceChildren(limit, ' → ', found);
  $('headline').hidden = false;
}

function tiles({ comparison, figures }) {
  const { requests, admitted, exact, worst_window, over } = comparison;
  const tile = (name, value, note) => make('div', {}, make('dt', { textContent: name }), make('dd', { textContent: value }), make('dd', { textContent: note }));
  $('tiles').replaceChildren(
    tile('Requests', whole(requests), `${whole(comparison.lost)} lost when a process ended`),
    tile('Admitted', whole(admitted), `${whole(exact.admitted)} by an exact log`),
    tile('Denied', whole(requests - admitted), `${whole(exact.wrongly_denied)} that an exact log admits`),
    tile('Fullest window', percent(worst_window), 'of the limit, in any true window'),
    tile('Largest excess', percent(over), 'of the limit, as the rule counts'),
    tile('Received by all in', figures.convergence.count ? `${whole(figures.convergence.p50)} ms` : '–', figures.convergence.count ? `99 % in ${whole(figures.convergence.p99)} ms` : 'no other process had to receive it'),
  );
}

function faults({ faults, topology }) {
  // A plan may have a thousand faults of one kind, so their targets are computed once.
  const places = {};
  const place = (kind, value) => {
    places[kind] ??= new Map(targets(kind, topology).map(([value, name]) => [JSON.stringify(value), name]));
    return places[kind].get(JSON.stringify(value));
  };
  return faults.map(({ at_ms, for_ms, what }) => {
    const [[kind, values]] = Object.entries(what);
    const parts = [place(kind, values[FAULTS[kind].of]), FAULTS[kind].label.toLowerCase()];
    return { from: at_ms / 1000, to: (at_ms + for_ms) / 1000, label: parts.filter(Boolean).join(': ') };
  });
}

function plot(series, plan, failures) {
  const { points, key, step_ms } = series;
  plots?.close();
  const seconds = step_ms / 1000;
  const of = name => points.map(point => point[name]);
  const rate = name => of(name).map(count => count / seconds);
  const bands = faults(plan);
  const named = [...new Set(bands.map(band => band.label))];
  const marks = failures.filter(failure => failure.at_ms !== null).map(({ at_ms, checker }) => ({ at: at_ms / 1000, label: `${CHECKERS[checker] ?? checker} at ${at_ms / 1000} s` }));
  const banded = [
    named.length ? ` Shaded: ${named.slice(0, 3).join('; ')}${named.length > 3 ? '; and more' : ''}.` : '',
    marks.length ? ' ✗: an invariant was violated.' : '',
  ].join('');
  plots = new Plots({ times: points.map(point => point.at_ms / 1000), bands, marks, end: plan.traffic_ms / 1000 });
  const limit = { label: 'Limit', values: points.map(() => key.limit), colour: '--limit', dash: '2 4', width: 1.5 };
  plots.add($('plot-requests'), {
    title: 'Requests', description: `Requests that arrived, and the decisions on them.${banded}`, unit: 'a second',
    lines: [
      { label: 'Arrivals', values: rate('arrived'), colour: '--arrived', width: 1.5 },
      { label: 'Admitted', values: rate('admitted'), colour: '--admitted', width: 2.4, area: true },
      { label: 'Denied', values: rate('denied'), colour: '--denied', dash: '7 3' },
      { label: 'Admitted by an exact log', values: rate('exact_admitted'), colour: '--exact', dash: '1.5 3', width: 1.6 },
    ],
  });
  const dashes = ['', '9 4', '3 3', '12 3 3 3', '5 2', '14 5'];
  const regions = (points[0]?.snapshots ?? []).map((_, at) => ({
    label: plan.topology.regions > 1 ? `Region ${at + 1}` : 'The region', values: points.map(point => point.snapshots[at].region), colour: `--r${at % 6}`, dash: dashes[at % 6],
  }));
  const keyName = `key ${key.identifier}, ${whole(key.limit)} in ${duration(key.window_ms)}`;
  plots.add($('plot-snapshots'), {
    title: 'Counts of each region', description: `What counts against the limit of ${keyName}: in each region’s aggregators, and the true use.`, unit: 'used',
    lines: [{ label: 'True use', values: of('truth'), colour: '--exact', width: 3.2 }, ...regions, limit],
  });
  plots.add($('plot-window'), {
    title: 'Overshoot', description: `What was admitted of the same key in the ${duration(key.window_ms)} before each moment. An exact log never exceeds its limit.`, unit: 'admitted',
    lines: [
      { label: 'Weir', values: of('window'), colour: '--admitted', width: 2.4 },
      { label: 'Exact log', values: of('exact_window'), colour: '--exact', dash: '1.5 3', width: 1.6 }, limit,
    ],
    shade: { line: 0, above: key.limit },
  });
}

const row = (cell, values) => make('tr', {}, ...values.map((value, at) => make(at ? cell : 'th', { textContent: value, ...at === 0 && cell === 'td' && { scope: 'row' } })));

function comparison({ requests, admitted, admitted_cost, exact, central }) {
  const line = (name, limiter, beyond, wrongly) => row('td', [name, whole(limiter.admitted), whole(requests - limiter.admitted), whole(limiter.admitted_cost), beyond, wrongly]);
  $('judges').replaceChildren(
    make('thead', {}, row('th', ['Decided by', 'admits', 'denies', 'cost admitted', 'Weir admits beyond', 'Weir denies wrongly'])),
    make('tbody', {},
      line('Weir', { admitted, admitted_cost }, '', ''),
      line('The same algorithm in one place', central, whole(central.beyond), whole(central.wrongly_denied)),
      line('An exact sliding log', exact, whole(exact.beyond), whole(exact.wrongly_denied))));
}

function figures({ frames, messages, redis_commands, database_statements, database_rows, queries, waits }) {
  const pairs = [
    ['Frames on streams', whole(frames)], ['Messages between aggregators', whole(messages)], ['Redis commands', whole(redis_commands)],
    ['Database statements', whole(database_statements)], ['Rows written to the database', whole(database_rows)], ['Queries that requests waited for', whole(queries)],
    ['Waits, median', `${format(waits.p50 / 1000)} ms`], ['Waits, 99 %', `${format(waits.p99 / 1000)} ms`], ['Longest wait', `${format(waits.max / 1000)} ms`],
  ];
  $('figures').replaceChildren(...pairs.map(([name, value]) => make('div', {}, make('dt', { textContent: name }), make('dd', { textContent: value }))));
}

// Filled when it is opened, since it rarely is.
function table({ points }) {
  const fill = () => {
    if (!$('points').open) return;
    const head = ['Until, s', 'Arrived', 'Admitted', 'Denied', 'By exact log', 'In window', 'By exact log', 'True use', ...points[0]?.snapshots.map((_, at) => `Region ${at + 1}`) ?? []];
    const body = points.map(point => row('td', [
      point.at_ms / 1000, point.arrived, point.admitted, point.denied, point.exact_admitted, point.window, point.exact_window, point.truth,
      ...point.snapshots.map(snapshot => snapshot.region ?? '–'),
    ].map(String)));
    $('points-table').replaceChildren(make('thead', {}, row('th', head)), make('tbody', {}, ...body));
  };
  $('points').hidden = false;
  $('points').ontoggle = fill;
  fill();
}
