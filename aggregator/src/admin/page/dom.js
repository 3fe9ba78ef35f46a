// Creates and updates elements. All content is set as text, never as markup, because identifiers come from any client.

import { count } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";
/** Rows of one page of a table. */
const ROWS = 100;
/** Above a list to whose beginning the page scrolls. */
const GAP_PX = 12;

/** Creates an element. Attributes that begin with "on" are listeners; false and null are left out. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Creates an SVG element. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Sets a text only if it differs, so that screen readers and selections are not disturbed. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A bar that shows the used share of a limit. */
export function meter() {
  const full = h("span", { class: "full" });
  const element = h("span", { class: "meter", "aria-hidden": "true" }, full);
  return {
    element,
    set(used, limit, level) {
      full.style.setProperty("inline-size", `${Math.min(100, (used / Math.max(limit, 1)) * 100)}%`);
      element.dataset.level = level;
    },
  };
}

/** A line chart of series of equal length, each with a class; `most` is the least value at full height. */
export function spark(series, { width = 160, height = 36, most = 0, label = "" } = {}) {
  const top = Math.max(most, 1e-9, ...series.flatMap((one) => one.values));
  const drawing = svg("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label });
  for (const { values, kind } of series) {
    const step = width / Math.max(values.length - 1, 1);
    const y = (value) => (height - 1.5 - (value / top) * (height - 3)).toFixed(1);
    const points = values.map((value, at) => `${(at * step).toFixed(1)},${y(value)}`);
    if (points.length < 2) continue;
    drawing.append(svg("polygon", { class: `area ${kind}`, points: `0,${height} ${points.join(" ")} ${width},${height}` }));
    drawing.append(svg("polyline", { class: `line ${kind}`, points: points.join(" ") }));
  }
  return drawing;
}

/** Keeps children by key: creates, updates, orders and removes them without moving the focus. */
export function keyed(parent, make) {
  const known = new Map();
  return (items, keyOf) => {
    const focused = document.activeElement;
    const wanted = new Map(items.map((item) => [keyOf(item), item]));
    for (const [key, child] of known) {
      if (wanted.has(key)) continue;
      child.element.remove();
      known.delete(key);
    }
    let place = parent.firstChild;
    for (const [key, item] of wanted) {
      const child = known.get(key) ?? make(item);
      known.set(key, child);
      child.update(item);
      if (child.element === place) place = place.nextSibling;
      else parent.insertBefore(child.element, place);
    }
    // Chromium removes the focus from an element that is moved.
    if (focused !== document.activeElement && focused && parent.contains(focused)) focused.focus({ preventScroll: true });
  };
}

/** Shows the beginning of a list whose other page was chosen below it, unless that is in sight. */
export function toBeginning(list) {
  const top = list.getBoundingClientRect().top - document.querySelector("header").offsetHeight;
  if (top < 0) scrollBy(0, top - GAP_PX);
}

/** Buttons between the pages of the `list` of `name`, and which entries are shown; hidden while there is one page. `go` gets the first entry. */
export function pager(name, list, go) {
  let at = { from: 0, size: 1 };
  const turn = (way) => {
    go(Math.max(0, at.from + way * at.size));
    toBeginning(list);
  };
  const button = (title, way) => h("button", { type: "button", class: "button plain", onclick: () => turn(way) }, title);
  const [back, next] = [button("Previous", -1), button("Next", 1)];
  const where = h("span", { class: "muted", role: "status" });
  const element = h("nav", { class: "pages", "aria-label": `Pages of ${name}`, hidden: "" }, back, where, next);
  return {
    element,
    set(from, size, all) {
      at = { from, size };
      element.hidden = from === 0 && all <= size;
      back.disabled = from === 0;
      next.disabled = from + size >= all;
      setText(where, `${count(Math.min(from + 1, all))} to ${count(Math.min(from + size, all))} of ${count(all)}`);
    },
  };
}

/** A sortable table of pages of 100 rows. Columns: {id, title, kind, value(item), cell() → {element, update(item)}}. */
export function table({ caption, columns, keyOf, sort, onSort, empty }) {
  const body = h("tbody", { role: "rowgroup" });
  const heads = columns.map((column) => {
    const title = column.value
      ? h("button", { type: "button", class: "sort", onclick: () => choose(column) }, column.title, h("span", { class: "arrow", "aria-hidden": "true" }))
      : column.title;
    return h("th", { scope: "col", role: "columnheader", class: column.kind ?? "" }, title);
  });
  const none = h("p", { class: "empty", hidden: "" }, empty);
  let from = 0;
  const pages = pager(caption, body, (first) => {
    from = first;
    update(last);
  });
  const element = h("div", { class: "scroll" },
    h("table", { role: "table" }, h("caption", { class: "unseen" }, caption), h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, heads)), body), none, pages.element);
  const draw = keyed(body, () => {
    const cells = columns.map((column) => ({ column, ...column.cell() }));
    const row = h("tr", { role: "row" }, cells.map((cell) =>
      h("td", { role: "cell", class: `${cell.column.kind ?? ""} c-${cell.column.id}`, "data-title": cell.column.title }, cell.element)));
    return { element: row, update: (item) => cells.forEach((cell) => cell.update(item, row)) };
  });
  let last = [];
  function choose(column) {
    sort = sort?.id === column.id ? { id: column.id, down: !sort.down } : { id: column.id, down: column.kind === "number" };
    onSort?.(sort);
    update(last);
  }
  function update(items) {
    last = items;
    const column = columns.find((one) => one.id === sort?.id);
    const ordered = column ? [...items].sort((a, b) => compare(column.value(a), column.value(b)) * (sort.down ? -1 : 1)) : items;
    heads.forEach((head, at) => {
      if (columns[at].id === sort?.id) head.setAttribute("aria-sort", sort.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    none.hidden = items.length > 0;
    element.firstChild.hidden = items.length === 0;
    from = Math.min(from, Math.max(0, Math.ceil(items.length / ROWS) - 1) * ROWS);
    draw(ordered.slice(from, from + ROWS), keyOf);
    pages.set(from, ROWS, items.length);
  }
  return { element, update };
}

/** A text cell. */
export const textual = (words) => () => {
  const element = h("span");
  return { element, update: (item) => setText(element, words(item)) };
};

function compare(a, b) {
  return typeof a === "string" ? a.localeCompare(b) : (a ?? -1) - (b ?? -1);
}
