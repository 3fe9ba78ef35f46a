// The settings: shows a plan in fields, and writes fields to the plan. Parts of the plan without a field are not
// changed.
import { SHAPES, FAULTS, targets, duration } from './words.js';

export const $ = id => document.getElementById(id);

// Creates an element. `props` are properties, or attributes if the name contains a dash.
export function make(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name.includes('-') || name === 'for' || name === 'role') node.setAttribute(name, value);
    else node[name] = value;
  }
  node.append(...children);
  return node;
}

const number = input => input.value === '' || !Number.isFinite(input.valueAsNumber) ? null : input.valueAsNumber;
const seconds = ms => String(ms / 1000);

function numberField({ label, unit, min, step, max }, value, set) {
  const input = make('input', { type: 'number', min, max, step, value, required: true });
  input.addEventListener('input', () => { if (number(input) !== null && input.checkValidity()) set(number(input)); });
  return make('label', {}, unit ? `${label} (${unit})` : label, input);
}

function choice(label, options, chosen, set, hidden) {
  const select = make('select', hidden ? { 'aria-label': label } : {});
  options.forEach(([value, name]) => select.append(make('option', { value, textContent: name })));
  select.value = chosen;
  select.addEventListener('change', () => set(select.value));
  return hidden ? select : make('label', { className: 'wide' }, label, select);
}

// Items shown of a list. Further ones are in the plan only.
const ITEMS_MAX = 40;

const bit = (mask, at) => Math.floor(mask / 2 ** at) % 2 === 1;

export class Form {
  constructor(changed) {
    this.changed = changed;
    const numbers = { regions: 1, envoys: 1, aggregators: 1 };
    for (const id of Object.keys(numbers)) {
      this.onInput(id, value => { this.plan.topology[id] = value; this.faults(); });
    }
    this.onInput('seconds', value => { this.plan.traffic_ms = Math.round(value * 1000); });
    this.onInput('publish', value => { this.plan.schedule.publish_ms = Math.round(value * 1000); });
    this.onInput('exchange', value => { this.plan.schedule.exchange_ms = Math.round(value * 1000); });
    $('add-source').addEventListener('click', () => this.add('traffic', 'sources', this.newSource()));
    $('add-fault').addEventListener('click', () => this.add('faults', 'faults', this.newFault('Cut')));
  }

  onInput(id, set) {
    $(id).addEventListener('input', () => {
      if (number($(id)) === null || !$(id).checkValidity()) return;
      set(number($(id)));
      this.touch();
    });
  }

  // A field has changed the plan.
  touch() {
    // After the traffic, regions need time to exchange their counts. Otherwise the run ends before the counts agree.
    const intervals = this.plan.schedule.publish_ms + this.plan.schedule.exchange_ms;
    if (this.plan.topology.regions > 1) this.plan.quiet_ms = Math.max(this.plan.quiet_ms, 5000 + 2 * intervals);
    this.changed();
  }

  show(plan) {
    this.plan = plan;
    for (const id of ['regions', 'envoys', 'aggregators']) $(id).value = plan.topology[id];
    $('seconds').value = seconds(plan.traffic_ms);
    $('publish').value = seconds(plan.schedule.publish_ms);
    $('exchange').value = seconds(plan.schedule.exchange_ms);
    this.sources();
    this.faults();
  }

  setRules(rules) {
    const before = this.plan.rules.length;
    this.plan.rules = rules;
    if (before !== rules.length) {
      this.plan.traffic.forEach(source => { source.rules = 2 ** rules.length - 1; });
      this.sources();
    }
  }

  add(list, container, item) {
    this.plan[list].push(item);
    this[container]();
    this.touch();
    $(container).lastElementChild.querySelector('select, input').focus();
  }

  remove(list, container, index, button) {
    this.plan[list].splice(index, 1);
    this[container]();
    this.touch();
    // After a removal by keyboard, the focus moves to the next item, or to the button that adds one.
    const remaining = $(container).querySelectorAll('.quiet');
    (remaining[Math.min(index, remaining.length - 1)] ?? $(button)).focus();
  }

  newSource() {
    const shape = { Steady: defaults(SHAPES.Steady.fields) };
    return { from_ms: 0, until_ms: null, rules: 2 ** this.plan.rules.length - 1, cost: [1, 1], at: [], shape };
  }

  newFault(kind) {
    const at_ms = Math.round(this.plan.traffic_ms / 3000) * 1000;
    return { at_ms, for_ms: Math.max(1000, at_ms), what: this.wrong(kind) };
  }

  wrong(kind) {
    const [target] = targets(kind, this.plan.topology)[0] ?? ['Database'];
    return { [kind]: { [FAULTS[kind].of]: target, ...defaults(FAULTS[kind].fields) } };
  }

  sources() {
    this.items('traffic', 'sources', 'add-source', (source, index) => this.source(source, index));
  }

  items(list, container, button, item) {
    const all = this.plan[list];
    const hidden = all.length - ITEMS_MAX;
    $(container).replaceChildren(...all.slice(0, ITEMS_MAX).map(item));
    if (hidden > 0) $(container).append(make('p', { className: 'hint', textContent: `And ${hidden} more: see the plan below.` }));
    $(button).disabled = hidden >= 0;
  }

  source(source, index) {
    const kind = Object.keys(source.shape)[0];
    const values = source.shape[kind];
    const options = Object.entries(SHAPES).map(([name, { label }]) => [name, label]);
    if (!SHAPES[kind]) options.push([kind, `Recorded: ${values.arrivals?.length ?? 0} requests`]);
    const select = choice(`Traffic ${index + 1}`, options, kind, chosen => {
      source.shape = { [chosen]: SHAPES[chosen] ? defaults(SHAPES[chosen].fields) : values };
      this.sources();
      this.touch();
      $('sources').children[index].querySelector('select').focus();
    }, true);
    const fields = this.fields(SHAPES[kind]?.fields ?? {}, values);
    const item = this.item(`Traffic ${index + 1}`, select, fields, () => this.remove('traffic', 'sources', index, 'add-source'));
    if (this.plan.rules.length > 1) item.append(this.which(source));
    return item;
  }

  // The rules that apply to a source's requests.
  which(source) {
    const boxes = this.plan.rules.map((rule, at) => {
      const box = make('input', { type: 'checkbox', checked: bit(source.rules, at) });
      box.addEventListener('change', () => { source.rules += (box.checked ? 1 : -1) * 2 ** at; this.touch(); });
      return make('label', {}, box, `${rule.limit} in ${duration(rule.window_ms)}`);
    });
    return make('fieldset', { className: 'which', 'aria-label': 'Rules that apply' }, ...boxes);
  }

  faults() {
    this.items('faults', 'faults', 'add-fault', (fault, index) => this.fault(fault, index));
  }

  fault(fault, index) {
    const kind = Object.keys(fault.what)[0];
    const values = fault.what[kind];
    const { of, fields } = FAULTS[kind];
    const kinds = Object.entries(FAULTS).filter(([name]) => name === kind || targets(name, this.plan.topology).length).map(([name, { label }]) => [name, label]);
    const select = choice(`Fault ${index + 1}`, kinds, kind, chosen => {
      fault.what = this.wrong(chosen);
      this.faults();
      this.touch();
      $('faults').children[index].querySelector('select').focus();
    }, true);
    const options = targets(kind, this.plan.topology).map(([value, name]) => [JSON.stringify(value), name]);
    const chosen = JSON.stringify(values[of]);
    if (!options.some(([value]) => value === chosen)) options.push([chosen, chosen.replace(/[{}":]+/g, ' ').trim()]);
    const time = (label, name) => numberField({ label, unit: 's', min: 0, step: 'any', max: 259200 }, seconds(fault[name]), value => { fault[name] = Math.round(value * 1000); this.touch(); });
    return this.item(`Fault ${index + 1}`, select, [
      choice('Where', options, chosen, value => { values[of] = JSON.parse(value); this.touch(); }),
      time('From', 'at_ms'), time('For', 'for_ms'), ...this.fields(fields, values),
    ], () => this.remove('faults', 'faults', index, 'add-fault'));
  }

  fields(fields, values) {
    return Object.entries(fields).map(([name, field]) => numberField(field, values[name], value => { values[name] = value; this.touch(); }));
  }

  item(name, select, fields, removed) {
    const button = make('button', { type: 'button', className: 'quiet', textContent: '×', 'aria-label': `Remove ${name.toLowerCase()}` });
    button.addEventListener('click', removed);
    return make('div', { className: 'item', role: 'group', 'aria-label': name },
      make('div', { className: 'head' }, select, button), make('div', { className: 'fields' }, ...fields));
  }
}

const defaults = fields => Object.fromEntries(Object.entries(fields).map(([name, { value }]) => [name, value]));

// A plan's rules as a filter's configuration.
export function rulesText(rules) {
  const given = rules.map((rule, at) => ({
    name: rules.length > 1 ? `limit-${at + 1}` : 'limit',
    identifier: { header: 'x-api-key' },
    limit: rule.limit,
    window: duration(rule.window_ms),
    ...rule.hard_limit && { hard_limit: true },
    ...rule.timeout_ms !== 50 && { timeout: `${rule.timeout_ms}ms` },
    ...rule.deny_on_failure && { on_failure: 'deny' },
    ...rule.trust_first && { unknown_key: 'assume_low' },
    ...rule.shadow && { shadow_mode: true },
  }));
  // Keeps a short object on one line.
  return JSON.stringify(given.length === 1 ? given[0] : given, null, 2).replace(/\{\s*("header": "[^"]*")\s*\}/g, '{ $1 }');
}
