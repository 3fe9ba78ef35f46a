// Plots over time as SVG: axes with units, faults as bands, failures as crosses, and a cursor that all plots share,
// moved by pointer or keys. The legend shows the values at the cursor. Lines differ by colour and by dashes.
import { make } from './form.js';

const NS = 'http://www.w3.org/2000/svg';
const LEFT = 46, RIGHT = 10, TOP = 14, BOTTOM = 30;

function svg(tag, attributes, ...children) {
  const node = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// About `count` round steps from 0 to `most`.
export function ticks(most, count) {
  const rough = most / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(times => times * power).find(step => step >= rough);
  return Array.from({ length: Math.floor(most / step + 1e-9) + 1 }, (_, at) => at * step);
}

const places = step => Math.max(0, -Math.floor(Math.log10(step || 1) + 1e-9));
export const format = value => value === null ? '–' : value.toLocaleString('en-GB', { maximumFractionDigits: value < 10 ? 1 : 0 });

// All plots of a run: `times` in seconds, faults as {from, to, label}, failures as {at, label}, and the `end` of the
// traffic.
export class Plots {
  constructor({ times, bands, marks, end }) {
    Object.assign(this, { times, bands, marks, end, plots: [], at: null });
    this.observer = new ResizeObserver(() => this.plots.forEach(plot => plot.draw()));
  }

  // `lines`: {label, values, colour, dash?, width?, area?}. A value is null if there is none.
  add(figure, { title, description, unit, lines, shade }) {
    const plot = new Plot(this, figure, { title, description, unit, lines, shade });
    this.plots.push(plot);
    this.observer.observe(figure);
    plot.draw();
  }

  point(at) {
    this.at = at === null ? null : Math.max(0, Math.min(this.times.length - 1, at));
    this.plots.forEach(plot => plot.mark());
  }

  close() { this.observer.disconnect(); }
}

class Plot {
  constructor(plots, figure, given) {
    Object.assign(this, { plots, figure }, given);
    this.legend = make('ul', { className: 'legend' });
    this.svg = svg('svg', { tabindex: 0, role: 'slider', 'aria-label': `${this.title}, over time`, 'aria-valuemin': 0, 'aria-valuemax': plots.times.length - 1 });
    figure.replaceChildren(make('figcaption', {}, make('h2', { textContent: this.title }), make('p', { textContent: this.description })), this.legend, this.svg);
    this.values = this.lines.map(line => {
      const value = make('b');
      const dash = line.dash ? { 'stroke-dasharray': line.dash } : {};
      const mark = svg('svg', { viewBox: '0 0 24 10', 'aria-hidden': 'true' }, svg('path', { d: 'M0 5H24', 'stroke-width': (line.width ?? 2) + 0.5, fill: 'none', style: `stroke:var(${line.colour})`, ...dash }));
      this.legend.append(make('li', {}, mark, line.label, value));
      return value;
    });
    this.when = make('li', { className: 'when' });
    this.legend.append(this.when);
    this.svg.addEventListener('pointermove', event => this.follow(event));
    this.svg.addEventListener('pointerdown', event => this.follow(event));
    this.svg.addEventListener('pointerleave', () => this.svg === document.activeElement || plots.point(null));
    this.svg.addEventListener('focus', () => plots.at === null && plots.point(plots.times.length - 1));
    this.svg.addEventListener('keydown', event => this.step(event));
  }

  follow(event) {
    const x = event.clientX - this.svg.getBoundingClientRect().left;
    const seconds = (x - LEFT) / (this.width - LEFT - RIGHT) * this.most;
    const { times } = this.plots;
    this.plots.point(Math.round((seconds - times[0]) / (times[1] - times[0] || 1)));
  }

  step(event) {
    const last = this.plots.times.length - 1;
    const at = this.plots.at ?? last;
    const far = Math.max(1, Math.round(last / 10));
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, ArrowDown: at - 1, ArrowUp: at + 1, PageDown: at - far, PageUp: at + far, Home: 0, End: last }[event.key];
    if (event.key === 'Escape') this.plots.point(null);
    if (to === undefined) return;
    event.preventDefault();
    this.plots.point(to);
  }

  x(seconds) { return LEFT + seconds / this.most * (this.width - LEFT - RIGHT); }
  y(value) { return this.height - BOTTOM - value / this.top * (this.height - TOP - BOTTOM); }

  draw() {
    const { width, height } = this.svg.getBoundingClientRect();
    if (!width) return;
    Object.assign(this, { width, height });
    const { times, bands, end } = this.plots;
    this.most = times.at(-1);
    const values = this.lines.flatMap(line => line.values).filter(value => value !== null);
    this.top = Math.max(1, ...values) * 1.06;
    this.cursor = svg('line', { class: 'cursor', y1: TOP, y2: height - BOTTOM, visibility: 'hidden' });
    const clip = svg('g', {});
    for (const { from, to, label } of bands) {
      const left = this.x(Math.min(from, this.most)), right = this.x(Math.min(to, this.most));
      clip.append(svg('rect', { class: 'band', x: left, y: TOP, width: Math.max(2, right - left), height: height - TOP - BOTTOM }, titled(label)));
    }
    if (end < this.most) clip.append(svg('rect', { class: 'after', x: this.x(end), y: TOP, width: this.x(this.most) - this.x(end), height: height - TOP - BOTTOM }, titled('After the traffic')));
    this.svg.replaceChildren(...this.axes(), clip, ...this.shading(), ...this.lines.flatMap(line => this.line(line)), ...this.failures(), this.cursor);
    this.mark();
  }

  // Failures before or after the shown time are drawn at its edge.
  failures() {
    return this.plots.marks.flatMap(({ at, label }) => {
      const x = this.x(Math.max(0, Math.min(at, this.most)));
      return [
        svg('line', { class: 'failure', x1: x, x2: x, y1: TOP, y2: this.height - BOTTOM }, titled(label)),
        svg('text', { class: 'failure', x, y: TOP - 3, 'text-anchor': 'middle' }, '✗', titled(label)),
      ];
    });
  }

  axes() {
    const { width, height, most, top } = this;
    const nodes = [];
    const up = ticks(top, height < 200 ? 3 : 5);
    for (const value of up) {
      nodes.push(svg('line', { class: value ? 'grid' : 'axis', x1: LEFT, x2: width - RIGHT, y1: this.y(value), y2: this.y(value) }));
      nodes.push(svg('text', { x: LEFT - 7, y: this.y(value) + 4, 'text-anchor': 'end' }, short(value, places(up[1]))));
    }
    const along = ticks(most, Math.max(3, Math.min(12, Math.floor(width / 75))));
    for (const value of along) {
      const last = value === along.at(-1);
      nodes.push(svg('line', { class: 'axis', x1: this.x(value), x2: this.x(value), y1: height - BOTTOM, y2: height - BOTTOM + 4 }));
      nodes.push(svg('text', { x: this.x(value), y: height - BOTTOM + 18, 'text-anchor': 'middle' }, short(value, places(along[1])) + (last ? ' s' : '')));
    }
    nodes.push(svg('text', { x: 0, y: 9 }, this.unit));
    return nodes;
  }

  // The area between a line and the limit below it: by how much the limit is exceeded.
  shading() {
    if (!this.shade) return [];
    const { line, above } = this.shade;
    const { values } = this.lines[line];
    const over = values.map(value => Math.max(value ?? 0, above));
    const { times } = this.plots;
    const there = over.map((value, at) => `${this.x(times[at]).toFixed(1)} ${this.y(value).toFixed(1)}`).join('L');
    const floor = this.y(above).toFixed(1);
    return [svg('path', { class: 'over', d: `M${this.x(times[0])} ${floor}L${there}L${this.x(times.at(-1))} ${floor}Z`, style: 'fill:var(--denied);opacity:.35' })];
  }

  line({ values, colour, dash, width = 2, area }) {
    const { times } = this.plots;
    let path = '', drawing = false;
    values.forEach((value, at) => {
      if (value !== null) path += `${drawing ? 'L' : 'M'}${this.x(times[at]).toFixed(1)} ${this.y(value).toFixed(1)}`;
      drawing = value !== null;
    });
    const floor = this.y(0);
    const below = area ? [svg('path', { class: 'area', d: `${path}L${this.x(times.at(-1))} ${floor}L${this.x(times[0])} ${floor}Z`, style: `fill:var(${colour})` })] : [];
    const drawn = svg('path', { class: 'series', d: path, style: `stroke:var(${colour});stroke-width:${width}`, ...dash && { 'stroke-dasharray': dash } });
    return [...below, drawn];
  }

  mark() {
    const { at, times } = this.plots;
    this.cursor?.setAttribute('visibility', at === null ? 'hidden' : 'visible');
    this.values.forEach((value, line) => { value.textContent = at === null ? '' : format(this.lines[line].values[at]); });
    this.when.textContent = at === null ? '' : `at ${times[at]} s`;
    if (at === null) return;
    const x = this.x(times[at]);
    this.cursor?.setAttribute('x1', x);
    this.cursor?.setAttribute('x2', x);
    this.svg.setAttribute('aria-valuenow', at);
    this.svg.setAttribute('aria-valuetext', `at ${times[at]} s: ${this.lines.map(line => `${line.label} ${format(line.values[at])}`).join(', ')}`);
  }
}

const titled = label => svg('title', {}, label);

function short(value, digits) {
  if (value >= 1e6) return `${+(value / 1e6).toFixed(1)}M`;
  if (value >= 1e4) return `${+(value / 1e3).toFixed(1)}k`;
  return value.toFixed(digits);
}
