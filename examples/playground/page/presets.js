// Situations to start from, in operators' words. Each is a whole plan; the first is that of a first visit.

const base = {
  seed: 0,
  topology: { regions: 1, aggregators: 1, envoys: 3, workers: 2, buckets: 1024, keys_per_bucket: 8 },
  rules: [{ limit: 600, window_ms: 60000, hard_limit: false, timeout_ms: 50, deny_on_failure: false, trust_first: false, shadow: false }],
  traffic: [{ from_ms: 0, until_ms: null, rules: 1, cost: [1, 1], at: [], shape: { Steady: { identifier: 1, rate: 20 } } }],
  faults: [],
  network: { regional_us: [50, 500], global_us: [20000, 80000] },
  schedule: { publish_ms: 10000, exchange_ms: 1000 },
  settle_ms: 3000, traffic_ms: 180000, quiet_ms: 45000,
};
const fleet = change => ({ ...base.topology, ...change });

export const PRESETS = [
  {
    name: 'api-key', title: 'An API key over three Envoys',
    description: 'One client sends twice its limit through a load balancer. The three Envoys share the count.',
    plan: base,
  },
  {
    name: 'login', title: 'A burst of logins',
    description: 'A script tries 200 passwords within a second, every half minute. The hard limit holds in any minute, also at the end of a window.',
    plan: {
      ...base, topology: fleet({ aggregators: 2, envoys: 4 }), rules: [{ ...base.rules[0], limit: 10, hard_limit: true }],
      traffic: [{ ...base.traffic[0], shape: { Bursts: { identifier: 1, requests: 200, every_ms: 30000, over_ms: 1000 } } }],
    },
  },
  {
    name: 'redis', title: 'Redis is down',
    description: 'Two aggregators lose their Redis for a minute. They decide from memory, and the counts agree again afterwards.',
    plan: {
      ...base, topology: fleet({ aggregators: 2, envoys: 4 }),
      faults: [{ at_ms: 60000, for_ms: 60000, what: { Crash: { part: { Redis: { region: 0 } } } } }],
    },
  },
  {
    name: 'region', title: 'A region is cut off',
    description: 'Two regions share a limit, and one loses the database for a while. It goes on with the last counts of the other.',
    plan: {
      ...base, topology: fleet({ regions: 2, aggregators: 2 }),
      faults: [{ at_ms: 70000, for_ms: 50000, what: { Cut: { link: { Database: { region: 1 } } } } }],
    },
  },
];
