// Numbers and times as people read them. Leaves to others: what they are about.

const whole = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });
const UNITS = [["d", 86_400_000], ["h", 3_600_000], ["min", 60_000], ["s", 1_000]];

/** 1,234,567 */
export const count = (number) => whole.format(number);

/** 1.2M where there is little room. */
export const compact = (number) => (number < 10_000 ? whole.format(number) : short.format(number));

/** Per second: at most a digit behind the point, and none where it says nothing. */
export function rate(perSecond) {
  if (perSecond === null || perSecond === undefined) return "–";
  if (perSecond === 0) return "0";
  if (perSecond < 0.1) return "<0.1";
  return perSecond < 100 ? perSecond.toFixed(1) : compact(perSecond);
}

/** The two largest units, or fewer. */
export function time(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1_000) return `${Math.round(ms)} ms`;
  const said = [];
  let rest = Math.floor(ms / 1_000) * 1_000;
  for (const [unit, length] of UNITS) {
    const many = Math.floor(rest / length);
    rest %= length;
    if (many > 0) said.push(`${many} ${unit}`);
    else if (said.length > 0) break;
    if (said.length === 2) break;
  }
  return said.join(" ");
}

/** How long ago; what is younger than a second is of now. */
export const ago = (ms) => (ms === null || ms === undefined ? "never" : ms < 1_000 ? "just now" : `${time(ms)} ago`);

/** Rounded down: 100 % is not said before it is reached. */
export function percent(used, limit) {
  const share = (used / Math.max(limit, 1)) * 100;
  return share > 9_999 ? ">9999 %" : `${Math.floor(share)} %`;
}

/** Two words for how a use stands to its limit, for eyes that tell no colours. */
export const level = (used, limit) => (used >= limit ? "over" : used > limit / 2 ? "high" : "low");

/** One of many. */
export const plural = (number, one, many) => `${count(number)} ${number === 1 ? one : many}`;

/** A moment of the day, by the reader's clock. */
export const clock = (unixMs) => new Date(unixMs).toLocaleTimeString("en-GB");

/** What goes without saying is not said. */
export const scope = (workspace, name) => (workspace === "default" ? name : `${workspace} / ${name}`);

/** As the first words of a sentence. */
export const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);
