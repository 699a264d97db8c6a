// Numbers and reasons as words. A value that is not there is "–".

export const NONE = "–";

const COUNT = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });

/** How exact quantiles of latencies are: they are counted in buckets (gateway/live/recent_counts.py). */
export const COUNTED = "±9 %";

export const count = (value) => (value == null ? NONE : COUNT.format(value));

export function percent(ratio) {
  if (ratio == null) return NONE;
  const value = 100 * ratio;
  if (value > 0 && value < 0.1) return "<0.1 %";
  return `${value >= 9.95 || value === 0 ? value.toFixed(0) : value.toFixed(1)} %`;
}

/** An amount of money, with as many decimals as the largest of its table needs: these are under each other. */
export function money(text, largest) {
  if (text == null) return NONE;
  const decimals = largest >= 1 || largest === 0 ? 2 : Math.min(12, 1 - Math.floor(Math.log10(largest)));
  const least = 10 ** -decimals;
  const value = Number(text);
  if (value > 0 && value < least / 2) return `<${least.toFixed(decimals)}`;
  return value.toLocaleString("en-GB", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
}

export function decimal(value) {
  if (value == null) return NONE;
  if (Number.isInteger(value)) return count(value);
  const size = Math.abs(value);
  return size >= 100 ? count(value) : value.toFixed(size >= 10 ? 1 : size >= 0.1 ? 2 : 3);
}

export function short(value) {
  if (value == null) return NONE;
  if (value >= 1e9) return `${(value / 1e9).toFixed(1)} G`;
  if (value >= 1e6) return `${(value / 1e6).toFixed(1)} M`;
  if (value >= 1e4) return `${(value / 1e3).toFixed(0)} k`;
  return value >= 100 || Number.isInteger(value) ? count(value) : value.toFixed(1);
}

export function seconds(value) {
  if (value == null) return NONE;
  if (value < 0.00005) return "0 ms";
  if (value < 0.0995) return `${(value * 1000).toFixed(value < 0.00995 ? 1 : 0)} ms`;
  if (value < 0.9995) return `${(value * 1000).toFixed(0)} ms`;
  if (value < 9.95) return `${value.toFixed(1)} s`;
  if (value < 120) return `${value.toFixed(0)} s`;
  if (value < 7200) return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
  if (value < 172800) return `${Math.floor(value / 3600)} h ${Math.round((value % 3600) / 60)} min`;
  return `${(value / 86400).toFixed(0)} days`;
}

export function time(unixS) {
  if (unixS == null) return NONE;
  return new Date(unixS * 1000).toLocaleString("sv-SE");
}

/** As `time`, without the day where that is today. */
export function clock(unixS) {
  const [day, ofDay] = time(unixS).split(" ");
  return day === time(Date.now() / 1000).split(" ")[0] ? ofDay : `${day} ${ofDay}`;
}

export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

export function listed(names, most = 3) {
  const shown = names.slice(0, most);
  if (names.length > most) return `${shown.join(", ")} and ${names.length - most} more`;
  if (shown.length < 2) return shown.join("");
  return `${shown.slice(0, -1).join(", ")} and ${shown.at(-1)}`;
}

const plain = (word) => String(word).replaceAll("_", " ");

/** Why a backend takes no more now (policies/types.py, Binding). */
const BOUNDS = {
  slots: "all its slots are taken",
  kv: "its KV memory is full",
  steps: "one more request would make its steps longer than its limit",
  prompts: "it has prompts to read for longer than a step",
  reserved: "what is free there is reserved for a tier",
  held: "it has just rejected a request, and gets none for a moment",
  unhealthy: "it is not available",
  draining: "it is being drained",
};

/** Why a request waits, in a table's cell (policies/types.py, Wait). */
const WAITS = {
  no_backend: "no backend is available",
  backends_held: "backends rejected a request just now",
  key_limit: "its key is at its in-flight limit",
  session: "contexts of other sessions fill the KV pools",
  tenant_limit: "at its in-flight limit",
  own_queue: "older requests of its own go first",
  no_room: "no backend has room",
};

/** Why a share is due (gateway/live/shares.py). */
const DUES = { asks: "all it asks for", weight: "what its weight gives", limit: "what its limit allows" };

/** Whose request is next, by the name of the pool's order (policies/fairness). */
const ORDERS = {
  vtc: "the tenant that got the least for its weight (vtc)",
  lcf: "the tenant that got the least, counted from its first request (lcf)",
  drr: "each tenant in turn, by weight (drr)",
  fifo: "the oldest request, whatever its tenant (fifo)",
  slack: "the request with the least time left, of tenants that got about the least (slack)",
  dlpm: "the request with the longest cached prefix, of tenants with credit left (dlpm)",
  equinox: "the tenant that fared worst, in service and in latency (equinox)",
  justitia: "the tenant that would be done first, were the backends shared evenly (justitia)",
};

/** Why a call was refused (policies/types.py, Reason). */
const REFUSALS = {
  tenant_queue_full: "its queue is full",
  queue_full: "all queues together are full",
  queue_timeout: "no room in time",
  rate_limited: "over its rate limit",
  too_many_at_once: "too many such calls at once",
  budget_spent: "its budget is spent",
  request_too_large: "too large for every backend",
  tenant_unknown: "an unknown tenant",
  no_backend: "no backend is available",
  slo_unreachable: "too late for its target",
  shed: "shed for more urgent requests",
  draining: "the gateway stops",
};

/** How a call ended that was not refused (policies/types.py, Outcome). */
const OUTCOMES = { completed: "answered", client_gone: "its client left", backend_failed: "its backend failed", cancelled: "cancelled by an operator" };

const said = (sentences, reason) => (Object.hasOwn(sentences, reason) ? sentences[reason] : plain(reason));

/** `reserves`: slots that a backend keeps free, by tier. */
export const bound = (reason, reserves = null) => {
  if (reason == null) return "it takes more";
  const tiers = Object.keys(reserves || {});
  return reason === "reserved" && tiers.length > 0 ? `what is free there is reserved for tier ${listed(tiers)}` : said(BOUNDS, reason);
};
export const wait = (reason) => (reason == null ? NONE : said(WAITS, reason));
export const order = (policy) => (Object.hasOwn(ORDERS, policy) ? ORDERS[policy] : `the one that the order ${policy} names`);
export const ORDER_NAMES = Object.keys(ORDERS);
export const due = (reason) => (reason == null ? NONE : said(DUES, reason));
export const refusal = (reason) => said(REFUSALS, reason);
export const outcome = (code) => (code == null ? NONE : Object.hasOwn(REFUSALS, code) ? `refused: ${REFUSALS[code]}` : said(OUTCOMES, code));
export const OUTCOME_NAMES = [...Object.keys(OUTCOMES), ...Object.keys(REFUSALS)].map((code) => [code, outcome(code)]);
