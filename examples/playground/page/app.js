// The page: settings become a plan; the plan becomes a link and a run.
import init, { judge, listScenarios, readLink, writeLink } from './weir_playground.js';
import { $, Form, make, rulesText } from './form.js';
import { discard, judgeInWorker, settled } from './judge.js';
import { PRESETS } from './presets.js';
import { clear, show } from './results.js';
import { broken, planText, savesPlan } from './verdict.js';
import { duration } from './words.js';

const OWN = 'Your own';
// The shortest window that regions share with each other.
const SHARED_MS = 60000;
// Browsers truncate or refuse a longer address.
const LINK_MAX = 500000;
// Errors and rules that are shown. Further ones are only counted.
const SHOWN_MAX = 20;

let scenarios = [];
let scenario = '';
let worker = null;
// The parser's last result for the limit.
let judged = null;
// The address to be shown, and its timer.
let fragment = '';
let addressing = 0;
const form = new Form(() => changed());

// The settings differ from the scenario; from here on the link contains the plan itself.
function changed() {
  scenario = '';
  $('scenario').value = '';
  showJudged();
  describe();
  address();
}

// Turns the settings into a link. Returns whether they are a valid plan. Browsers allow few changes of an address at a
// time, so the address follows after a short delay.
function address() {
  clearTimeout(addressing);
  try {
    if (!$('seed').checkValidity()) throw 'the seed must be a whole number';
    fragment = scenario ? `scenario=${scenario}&seed=${$('seed').value}` : writeLink(JSON.stringify(form.plan), $('seed').value);
  } catch (error) {
    showStatus(errorText(error), true);
    return false;
  }
  addressing = setTimeout(showAddress, 200);
  $('plan').value = planText(form.plan, $('seed').value);
  $('plan').removeAttribute('aria-invalid');
  $('plan-error').textContent = '';
  showStatus('');
  return true;
}

function showAddress() {
  clearTimeout(addressing);
  history.replaceState(null, '', fragment.length > LINK_MAX ? '#' : `#${fragment}`);
}

// The simulator's errors are text. Anything else that is thrown is a bug of the page.
function errorText(error) {
  if (typeof error === 'string') return error;
  console.error(error);
  return 'The page failed. Load it again.';
}

function showStatus(message, wrong = false) {
  $('status').textContent = message;
  $('status').className = wrong ? 'wrong' : '';
}

// Shows which preset or scenario the settings are, if any.
function describe() {
  const link = plan => { try { return writeLink(JSON.stringify(plan), '1'); } catch { return null; } };
  const own = scenario ? null : link(form.plan);
  const preset = PRESETS.find(({ plan }) => own !== null && link(plan) === own);
  document.querySelectorAll('#presets input').forEach(input => { input.checked = input.value === preset?.name; });
  const found = scenarios.find(one => one.name === scenario)?.description.replace(/^./, first => first.toUpperCase());
  $('description').textContent = found ?? preset?.description ?? 'Your own settings.';
}

// The presets as radio buttons.
function presets() {
  return PRESETS.map(({ name, title, plan }) => {
    const input = make('input', { type: 'radio', name: 'preset', value: name });
    input.addEventListener('change', () => { if (load(structuredClone(plan), '1', '')) run(); });
    return make('label', {}, input, make('span', { textContent: title }));
  });
}

// Shows a plan that does not come from the fields.
function load(plan, seed, name) {
  scenario = name;
  $('scenario').value = name;
  $('seed').value = seed;
  form.show(plan);
  discard();
  $('rules').value = rulesText(plan.rules);
  judged = JSON.parse(judge($('rules').value));
  showJudged();
  describe();
  return address();
}

// Shows the plan of a link. An invalid link changes nothing.
function open(link) {
  try {
    if (!link) return load(structuredClone(PRESETS[0].plan), '1', '');
    const { plan, seed } = JSON.parse(readLink(link));
    return load(plan, seed, new URLSearchParams(link).has('plan') ? '' : new URLSearchParams(link).get('scenario'));
  } catch (error) {
    if (!form.plan) load(structuredClone(PRESETS[0].plan), '1', '');
    clearTimeout(addressing);
    $('scenario').value = scenario;
    showStatus(errorText(error), true);
    return false;
  }
}

// A limit was typed or pasted.
async function judgeRules() {
  const slow = setTimeout(() => $('judged').replaceChildren(make('p', { className: 'hint', textContent: 'Reading…' })), 300);
  const result = await judgeInWorker($('rules').value);
  clearTimeout(slow);
  if (!result) return;
  judged = result;
  if (judged.errors.length) { showJudged(); return; }
  form.setRules(judged.rules.map(({ rule }) => rule));
  changed();
}

// Shows the result of the filter's parser.
function showJudged() {
  const { rules, errors, notes } = judged;
  const wrong = errors.length > 0;
  const hint = textContent => make('p', { className: 'hint', textContent });
  const more = all => all.length > SHOWN_MAX ? [hint(`And ${all.length - SHOWN_MAX} more.`)] : [];
  const few = all => all.slice(0, SHOWN_MAX);
  $('rules').setAttribute('aria-invalid', wrong);
  $('copy-rule').disabled = !judged.yaml;
  $('yaml').hidden = true;
  const errorLines = () => [make('ul', { className: 'wrong' }, ...few(errors).map(({ path, message }) => make('li', {}, make('b', { textContent: path }), path ? ' ' : '', message))), ...more(errors)];
  const ruleLines = () => [...few(rules).map(({ name, rule }) => make('p', { className: 'sound' }, `✓ ${name}: ${rule.limit} in ${duration(rule.window_ms)}${rule.hard_limit ? ', in any window' : ''}${rule.shadow ? ', in shadow' : ''}`)), ...more(rules)];
  const alone = form.plan.topology.regions > 1 && rules.some(({ rule }) => rule.window_ms < SHARED_MS);
  $('judged').replaceChildren(...wrong ? errorLines() : ruleLines(), ...few(notes).map(hint), ...more(notes),
    ...alone ? [hint('Windows below a minute are not shared between regions: each region enforces the limit separately.')] : []);
}

async function run() {
  await settled();
  stop();
  if (!$('settings').checkValidity()) { $('settings').reportValidity(); return; }
  if (judged.errors.length) { showStatus('The limit has errors.', true); $('rules').focus(); return; }
  if (!address()) return;
  showAddress();
  worker ??= new Worker('worker.js', { type: 'module' });
  const ran = { plan: JSON.stringify(form.plan), seed: $('seed').value, scenario };
  worker.onmessage = ({ data }) => onResult(data, ran);
  worker.onerror = () => onResult({ wrong: 'The simulator did not load. Load the page again.' }, ran);
  running(true);
  worker.postMessage(ran);
}

function onResult({ part, recorded, took, wrong, broken: message }, ran) {
  if (part !== undefined) { $('progress').value = part; return; }
  running(false);
  if (recorded === undefined) {
    end();
    if (message) { clear(); broken(message, ran); }
    showStatus(wrong ?? 'The simulation failed.', true);
    return;
  }
  show(recorded, ran);
  const { settle_ms, traffic_ms, quiet_ms } = JSON.parse(ran.plan);
  // On a phone the verdict is outside the visible part.
  if ($('verdict').classList.contains('failed')) showStatus('An invariant was violated: see the verdict.', true);
  else showStatus(`${(settle_ms + traffic_ms + quiet_ms) / 1000} s simulated in ${(took / 1000).toFixed(1)} s.`);
  document.body.dataset.runs = Number(document.body.dataset.runs ?? 0) + 1;
}

function running(is) {
  document.body.dataset.running = is;
  // If the button that disappears has the focus, the other button gets it.
  const [goes, comes] = is ? [$('run'), $('cancel')] : [$('cancel'), $('run')];
  const had = document.activeElement === goes;
  goes.hidden = true;
  comes.hidden = false;
  if (had) comes.focus();
  $('progress').hidden = !is;
  $('progress').value = 0;
  $('results').setAttribute('aria-busy', is);
  if (is) showStatus('Simulating…');
}

// A worker that computes receives no messages, so it is ended. The next run starts another.
function end() {
  worker?.terminate();
  worker = null;
}

function stop() {
  if (document.body.dataset.running !== 'true') return;
  end();
  running(false);
  showStatus('Cancelled.');
}

// Copies the rule as a filter's configuration. It is shown too, to be copied by hand where a page may not use the clipboard.
async function copyRule() {
  $('yaml').textContent = judged.yaml;
  $('yaml').hidden = false;
  try {
    await navigator.clipboard.writeText(judged.yaml);
    showStatus('The rule is copied as the filter’s configuration, in YAML.');
  } catch {
    getSelection().selectAllChildren($('yaml'));
    showStatus(document.execCommand('copy') ? 'The rule is copied as the filter’s configuration, in YAML.' : 'The rule is selected: copy it with Ctrl+C.');
  }
}

async function share() {
  if (!address()) return;
  showAddress();
  if (fragment.length > LINK_MAX) { showStatus('These settings are too large for a link: save the plan as a file.', true); return; }
  try {
    await navigator.clipboard.writeText(location.href);
    showStatus('Link copied.');
  } catch {
    showStatus('Copy the link from the address bar. It contains all settings.');
  }
}

function addListeners() {
  // The fragment contains the settings, so this link only moves the focus.
  $('skip').addEventListener('click', event => { event.preventDefault(); $('results').focus(); });
  $('settings').addEventListener('submit', event => { event.preventDefault(); run(); });
  $('cancel').addEventListener('click', stop);
  $('share').addEventListener('click', share);
  $('copy-rule').addEventListener('click', copyRule);
  // A field in a closed part cannot show that it is invalid.
  $('advanced').addEventListener('invalid', () => { $('advanced').open = true; }, true);
  $('scenario').addEventListener('change', () => {
    const name = $('scenario').value;
    if (open(name && `scenario=${name}&seed=${$('seed').value}`)) run();
  });
  $('seed').addEventListener('change', () => {
    if (address() && scenario) open(fragment);
  });
  $('rules').addEventListener('input', judgeRules);
  $('plan').addEventListener('change', () => {
    try {
      const seed = /"seed"\s*:\s*(\d+)/.exec($('plan').value)?.[1] ?? $('seed').value;
      open(writeLink($('plan').value, seed));
    } catch (error) {
      $('plan').setAttribute('aria-invalid', 'true');
      $('plan-error').textContent = errorText(error);
    }
  });
  savesPlan($('save-plan'), () => planText(form.plan, $('seed').value));
  addEventListener('hashchange', () => { if (open(location.hash.slice(1))) run(); });
}

async function begin() {
  showStatus('Loading…');
  try {
    await init({ module_or_path: 'weir_playground_bg.wasm' });
  } catch (error) {
    showStatus(`The simulator did not load: ${error}. It needs WebAssembly.`, true);
    return;
  }
  scenarios = JSON.parse(listScenarios());
  $('scenario').append(make('option', { value: '', textContent: OWN }), ...scenarios.map(({ name, long }) => make('option', { value: name, textContent: long ? `${name} (long)` : name })));
  $('presets').append(...presets());
  addListeners();
  if (open(location.hash.slice(1))) run();
}

await begin();
