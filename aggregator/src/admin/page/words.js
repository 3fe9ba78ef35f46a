// Formats numbers and times.

const whole = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });
const UNITS = [["d", 86_400_000], ["h", 3_600_000], ["min", 60_000], ["s", 1_000]];

/** 1,234,567 */
export const count = (number) => whole.format(number);

/** 1.2M, for narrow columns. */
export const compact = (number) => (number < 10_000 ? whole.format(number) : short.format(number));

/** A rate per second with at most one decimal, and none for large numbers. */
export function rate(perSecond) {
  if (perSecond === null || perSecond === undefined) return "–";
  if (perSecond === 0) return "0";
  if (perSecond < 0.1) return "<0.1";
  return perSecond < 100 ? perSecond.toFixed(1) : compact(perSecond);
}

/** A duration in its two largest units. */
export function time(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1_000) return `${Math.round(ms)} ms`;
  const parts = [];
  let rest = Math.floor(ms / 1_000) * 1_000;
  for (const [unit, length] of UNITS) {
    const many = Math.floor(rest / length);
    rest %= length;
    if (many > 0) parts.push(`${many} ${unit}`);
    else if (parts.length > 0) break;
    if (parts.length === 2) break;
  }
  return parts.join(" ");
}

/** An age; less than a second is "just now". */
export const ago = (ms) => (ms === null || ms === undefined ? "never" : ms < 1_000 ? "just now" : `${time(ms)} ago`);

/** Rounded down, so that 100 % is shown only when the limit is reached. */
export function percent(used, limit) {
  const share = (used / Math.max(limit, 1)) * 100;
  return share > 9_999 ? ">9999 %" : `${Math.floor(share)} %`;
}

/** The level of use: at the limit or over it, above half of it, or below. */
export const level = (used, limit) => (used >= limit ? "over" : used > limit / 2 ? "high" : "low");

/** A number with its noun in singular or plural. */
export const plural = (number, one, many) => `${count(number)} ${number === 1 ? one : many}`;

const MOMENT = { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", timeZoneName: "short" };

/** A day and a time, with the browser's time zone. */
export const moment = (unixMs) => new Date(unixMs).toLocaleString("en-GB", MOMENT);

/** A time of day, in the browser's time zone, which the foot of the page states. */
export const clock = (unixMs) => new Date(unixMs).toLocaleTimeString("en-GB");

/** The browser's time zone, with its difference to UTC now. */
export function zone() {
  const minutes = -new Date().getTimezoneOffset();
  const two = (number) => String(number).padStart(2, "0");
  const difference = `${minutes < 0 ? "−" : "+"}${two(Math.floor(Math.abs(minutes) / 60))}:${two(Math.abs(minutes) % 60)}`;
  const name = Intl.DateTimeFormat().resolvedOptions().timeZone;
  return name === "UTC" ? name : `${name} (UTC${minutes === 0 ? "" : difference})`;
}

/** A text with invisible characters spelt out: one that changes the direction of writing makes two texts look the same. */
export const visible = (text) => text.replace(/[\p{Cc}\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/gu, (one) => `\\u{${one.codePointAt(0).toString(16)}}`);

/** The algorithm of a key in operators' words. */
export const kind = (algorithm) => ({ sliding_log: "exact log", ledger: "ledger" })[algorithm] ?? "window";

/** Where a key is counted: its namespace, or the zone of a ledger. */
export const place = (key) => (key.namespace === "" && key.zone ? `zone ${key.zone}` : scope(key.workspace, key.namespace));

/** Omits the default workspace. */
export const scope = (workspace, name) => (workspace === "default" ? name : `${workspace} / ${name}`);

/** With a capital first letter. */
export const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);
