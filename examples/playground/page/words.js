// Labels, fields and targets of the simulator's shapes and faults, for the form.

const field = (label, value, unit = '', min = 0, step = 1, max = Number.MAX_SAFE_INTEGER) => ({ label, value, unit, min, step, max });
const identifier = field('Key', 1);
const rate = value => field('Requests', value, '/s', 0, 'any');

export const SHAPES = {
  Steady: { label: 'Steady, one key', fields: { identifier, rate: rate(20) } },
  Spread: { label: 'Evenly over many keys', fields: { identifiers: field('Keys', 20, '', 1), rate: rate(100) } },
  Zipf: { label: 'Many keys by Zipf’s law', fields: { identifiers: field('Keys', 10000, '', 1), exponent: field('Exponent', 1, '', 0, 'any', 10), rate: rate(200) } },
  Bursts: { label: 'Bursts, one key', fields: { identifier, requests: field('Requests', 100), every_ms: field('Every', 10000, 'ms', 1), over_ms: field('Within', 20, 'ms') } },
  WindowEnd: { label: 'At a window’s end, then saturation', fields: { identifier, limit: field('Burst', 100), window_ms: field('Window', 10000, 'ms', 1), rate: rate(50) } },
  UnderFloor: { label: 'Just below what regions publish', fields: { identifier, requests: field('Each region', 49), window_ms: field('Window', 10000, 'ms', 1) } },
  Fresh: { label: 'Always new keys', fields: { from: field('First key', 1000000), rate: rate(200) } },
};

const DAY_MS = 86400000;
const ms = (label, value, min = 0) => ({ ms: field(label, value, 'ms', min, 1, DAY_MS) });
const perMille = { per_mille: field('Of a thousand', 100, '', 0, 1, 1000) };
const stores = ['Redis', 'Database'];
const allParts = ['Envoy', 'Aggregator', ...stores];

// `of`: whether the fault has a `link`, a `part` or a `region`.
export const FAULTS = {
  Cut: { label: 'Cut off', of: 'link', fields: {} },
  Delay: { label: 'Messages are delayed', of: 'link', fields: ms('By up to', 300) },
  Lose: { label: 'Messages are lost', of: 'link', fields: perMille },
  Repeat: { label: 'Messages are delivered twice', of: 'link', fields: perMille },
  Reorder: { label: 'Messages overtake each other', of: 'link', fields: {} },
  Crash: { label: 'Crash', of: 'part', parts: allParts, fields: {} },
  Freeze: { label: 'Freeze', of: 'part', parts: allParts, fields: {} },
  Restart: { label: 'Orderly restart', of: 'part', parts: allParts, fields: {} },
  Wipe: { label: 'Loses its data', of: 'part', parts: stores, fields: {} },
  Restore: { label: 'Is set back to its state at the beginning', of: 'part', parts: ['Database'], fields: {} },
  FailOver: { label: 'A Redis is replaced by a replica that lags', of: 'region', fields: {} },
  SetBack: { label: 'A Redis is set back to older data', of: 'region', fields: {} },
  Slow: { label: 'Responds slowly', of: 'part', parts: stores, fields: ms('By', 500) },
  Skew: { label: 'Clock is wrong', of: 'part', parts: ['Envoy', 'Aggregator', 'Database'], fields: ms('Ahead by', 2000, -DAY_MS) },
  Rebuild: { label: 'Listener is rebuilt', of: 'part', parts: ['Envoy'], fields: {} },
  Roll: { label: 'All Envoys are replaced in turn', of: 'region', fields: {} },
  Flood: { label: 'A flood of new keys', of: 'part', parts: ['Envoy'], fields: { identifiers: field('Keys', 2000, '/s', 1) } },
};

// Labels of the invariants that a checker, or a scenario's expectation, found violated.
export const CHECKERS = {
  owner: 'An Envoy’s own count fell',
  charge: 'More was counted than was admitted',
  truth: 'More use of others was received than they had spent',
  limit: 'An Envoy admitted more than its own use allows',
  denial: 'A request was denied although the use of all allows it',
  wait: 'A request waited longer than its timeout',
  answers: 'A request was decided twice',
  bounds: 'An amount exceeded its bound',
  messages: 'A message between aggregators could not be read',
  rest: 'At rest, the counts differ',
  table: 'At rest, the database lacks what a region has published',
  over: 'Over the whole run, more was admitted than the scenario allows',
  under: 'Over the whole run, less was admitted than the scenario requires',
  'worst-window': 'A window held more than the scenario allows',
  panic: 'The simulation failed before its end',
};

const range = count => [...Array(Math.max(0, Math.min(count, 64))).keys()];

// The possible targets of a fault of this kind in a topology: [value, name].
export function targets(kind, { regions, envoys, aggregators }) {
  const { of, parts } = FAULTS[kind];
  if (of === 'region') return range(regions).map(region => [region, `Region ${region + 1}`]);
  const in_ = region => regions > 1 ? `, region ${region + 1}` : '';
  const found = [];
  if (of === 'link') {
    if (regions > 1) range(regions).forEach(region => found.push([{ Database: { region } }, `Region ${region + 1} – database`]));
    if (regions > 1) found.push([{ Database: { region: null } }, 'All regions – database']);
    for (const region of range(regions)) {
      found.push([{ Streams: { region, envoy: null, aggregator: null } }, `All Envoys – aggregators${in_(region)}`]);
      range(envoys).forEach(envoy => found.push([{ Streams: { region, envoy, aggregator: null } }, `Envoy ${envoy + 1} – aggregators${in_(region)}`]));
      if (aggregators > 1) {
        found.push([{ Redis: { region, aggregator: null } }, `Aggregators – Redis${in_(region)}`]);
        found.push([{ Peers: { region } }, `Between aggregators${in_(region)}`]);
      }
    }
    return found;
  }
  if (parts.includes('Database') && regions > 1) found.push(['Database', 'Database']);
  for (const region of range(regions)) {
    if (parts.includes('Redis') && aggregators > 1) found.push([{ Redis: { region } }, `Redis${in_(region)}`]);
    if (parts.includes('Aggregator')) range(aggregators).forEach(aggregator => found.push([{ Aggregator: { region, aggregator } }, `Aggregator ${aggregator + 1}${in_(region)}`]));
    if (parts.includes('Envoy')) range(envoys).forEach(envoy => found.push([{ Envoy: { region, envoy } }, `Envoy ${envoy + 1}${in_(region)}`]));
  }
  return found;
}

export const duration = ms => {
  for (const [unit, size] of [['d', 86400000], ['h', 3600000], ['m', 60000], ['s', 1000]]) {
    if (ms && ms % size === 0) return `${ms / size}${unit}`;
  }
  return `${ms}ms`;
};
