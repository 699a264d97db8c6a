// What was: charts of a pool, tier, group, tenant or backend in one range of time, which all views share and the address
// names; what happened meanwhile; and what was of all in one minute.

import { useEffect, useRef } from "preact/hooks";
import { get, post } from "../api.js";
import { LINES, Plot, timeOfDay } from "../plot.js";
import { may } from "../session.js";
import { Actor, differenceOf } from "./changes.js";
import { attempt, html, link, notify, Table, usePolled, useRoute } from "../ui.js";
import { clock, count, NONE, percent, seconds, short, time } from "../words.js";

const RANGES = { "15m": "15 minutes", "1h": "1 hour", "6h": "6 hours", "24h": "24 hours" };
const POLL_MS = 10000;
const MINUTE_S = 60;
const SHOWN_EVENTS = 8;
const SAME_S = 15; // a change is seen by the next look
const STEPS_MIN = 12; // of a chart
const WITHIN = "±9 %"; // gateway/live/history/columns.py
let lastRange = "1h"; // of this tab: a link to another view keeps it

const perSecond = (value) => `${short(value)}/s`;

/** Charts of each kind: the label, the value of step `at` of series `of`, and how it is said. */
export const TOKENS = { label: "Tokens per second", of: ({ tokens }, at, stepS) => part(tokens[at], stepS), say: perSecond };
export const WAIT = { label: "Longest wait", of: ({ wait_s: waits }, at) => waits[at], say: seconds };
export const QUEUED = { label: "Requests queued", of: ({ queued }, at) => queued[at], say: short };
const USE = [
  TOKENS,
  { label: "Share of the pool", of: ({ share }, at) => share[at], say: percent, not: ["pool"] },
  { ...QUEUED, not: ["tenant"] },
  WAIT,
  { label: "TTFT, 90 % within", of: ({ ttft_s: ttft }, at) => ttft[at], say: seconds },
  { label: "Refused per minute", of: ({ refused }, at, stepS) => part(refused[at], stepS / MINUTE_S), say: short },
  { label: "Cost per hour", of: ({ cost }, at, stepS) => part(cost[at], stepS / 3600), say: money, isMoney: true },
];
export const SLOTS = { label: "Slots in use", of: ({ in_flight: used, requests_limit: most }, at) => ratio(used[at], most[at]), say: percent };
export const KV = { label: "KV tokens reserved", of: ({ kv_tokens: used, kv_tokens_limit: most }, at) => ratio(used[at], most[at]), say: percent };
const ENGINE = [
  SLOTS,
  KV,
  { label: "Time of a step", of: ({ step_s: step }, at) => step[at], say: seconds },
  { label: "Available", of: ({ available }, at) => available[at], say: percent },
];

function money(value) {
  return value == null ? NONE : value === 0 ? "0" : value.toPrecision(2);
}

const part = (value, by) => (value == null ? null : value / by);
const ratio = (value, limit) => (value == null ? null : limit ? Math.min(1, value / limit) : null);

/** Set a parameter of the address; null removes it. */
function setParameter(name, value, { isNew = true } = {}) {
  const [path, query = ""] = location.hash.split("?");
  const parameters = new URLSearchParams(query);
  if (value === null) parameters.delete(name);
  else parameters.set(name, value);
  const hash = [path || "#/now", `${parameters}`].filter(Boolean).join("?");
  if (isNew) location.hash = hash;
  else history.replaceState(null, "", hash);
}

/** The range that all views share, and the minute that is looked at: both are in the address. */
function useTime() {
  const { query } = useRoute();
  const asked = query.get("range");
  const range = Object.hasOwn(RANGES, asked ?? "") ? asked : lastRange;
  lastRange = range;
  useEffect(() => {
    if (asked !== range) setParameter("range", range, { isNew: false });
  }, [asked, range]);
  const choose = (unixS) => setParameter("at", unixS === null ? null : `${Math.floor(unixS / MINUTE_S) * MINUTE_S}`);
  return { range, at: Number(query.get("at")) || null, choose };
}

const readHistory = async (of, range, signal) => (await get(`/history?of=${encodeURIComponent(of)}&range=${range}`, { signal })).body;

/** `of` is the API's: pool:NAME, tenant:NAME, ... Without `pool` those of all pools. */
export function History({ of, pool = null }) {
  const { range, at, choose } = useTime();
  const [answer, again] = usePolled((signal) => readHistory(of, range, signal), [of, range], POLL_MS);
  const found = answer.value && sinceItIsRecorded(answer.value);
  return html`<${Before} range=${range} at=${at} choose=${choose} answer=${answer} since=${found?.since}>
    ${found && html`<${Charts} found=${found} pool=${pool} at=${at} choose=${choose} /><${Events} events=${found.events} choose=${choose} again=${again} />`}
  <//>`;
}

/** The same of several, one line each: `of` as the API's, `charts` are those of above; `which` says which these are. An
 * order that changes with every second decides anew which are shown when they are asked for again.
 */
export function Compared({ of, charts: wanted, which }) {
  const { range, at, choose } = useTime();
  const latest = useRef(of);
  latest.current = of;
  const isAny = of.length > 0;
  const read = (signal) => (isAny ? Promise.all(latest.current.slice(0, LINES.length).sort().map((each) => readHistory(each, range, signal))) : null);
  const [answer] = usePolled(read, [isAny, range], POLL_MS);
  if (!isAny) return null;
  const found = answer.value && sinceItIsRecorded(besideEachOther(answer.value));
  return html`<${Before} range=${range} at=${at} choose=${choose} answer=${answer} since=${found?.since} which=${which}>
    ${found && html`<${Missing} found=${found} />`}
    ${found && (Object.keys(found.pools).length === 0 ? NOTHING : html`<div class="plots" role="group" aria-label="Charts">${wanted.map((each) => html`<${Plot} key=${each.label}
      ...${drawn(each, found, found.pools)} events=${found.events} chosen=${at} onTime=${choose} />`)}</div>`)}
  <//>`;
}

/** Answers of one range as one, in which each thing stands by its name. They were asked for at once, but a step may have
 * begun between two of them.
 */
function besideEachOther(answers) {
  const [first] = answers;
  const from = Math.max(...answers.map((each) => each.from_s));
  const skipped = ({ from_s: begun }) => (from - begun) / first.step_s;
  const all = answers.flatMap((each) => Object.entries(each.pools).map(([pool, { values }], _, { length }) => [nameOf(each.of) + (length > 1 ? ` in ${pool}` : ""), values, skipped(each)]));
  const steps = Math.min(...all.map(([, values, skip]) => Object.values(values)[0].length - skip));
  const pools = all.slice(0, LINES.length).map(([name, values, skip]) => [name, { values: Object.fromEntries(Object.entries(values).map(([column, each]) => [column, each.slice(skip, skip + steps)])) }]);
  return { ...first, from_s: from, pools: Object.fromEntries(pools), missing: [...new Set(answers.flatMap((each) => each.missing))] };
}

const nameOf = (of) => of.slice(of.indexOf(":") + 1);

/** The heading of what was, with the range and the minute, and that minute. */
function Before({ range, at, choose, answer, since, which = "", children }) {
  return html`<section class="history" aria-label="History">
    <div class="bar"><h2>Before now <small class="dim">${which}${WITHIN}; click a chart to see that minute${since ? `; recorded since ${timeOfDay(since)}` : ""}</small></h2>
      <span class="controls"><label>Range <select value=${range} onChange=${(event) => setParameter("range", event.target.value)}>
        ${Object.entries(RANGES).map(([id, label]) => html`<option key=${id} value=${id}>${label}</option>`)}</select></label>
      <${WhichMinute} at=${at} choose=${choose} /></span></div>
    ${answer.error ? html`<p class="bad" role="alert">${answer.error.message}</p>` : null}
    ${answer.value === null ? html`<p class="dim" aria-busy="true">Reading what was recorded…</p>` : children}
    ${at === null ? null : html`<${Minute} at=${at} choose=${choose} />`}
  </section>`;
}

/** What was recorded, without the steps before its first: a gateway that started an hour ago has no day to show. */
function sinceItIsRecorded(found) {
  const series = Object.values(found.pools).flatMap(({ values }) => Object.values(values));
  const known = series.map((each) => each.findIndex((value) => value != null)).filter((at) => at >= 0);
  if (known.length === 0) return found;
  const begun = Math.min(...known);
  const first = Math.max(0, Math.min(begun, series[0].length - STEPS_MIN));
  const rest = (values) => Object.fromEntries(Object.entries(values).map(([name, each]) => [name, each.slice(first)]));
  const pools = Object.fromEntries(Object.entries(found.pools).map(([name, { values }]) => [name, { values: rest(values) }]));
  return { ...found, from_s: found.from_s + first * found.step_s, pools, since: first > 0 ? found.from_s + begun * found.step_s : null };
}

const NOTHING = html`<p class="dim">Nothing was recorded in this range. It is kept for 24 hours while the gateway runs, from the first ten seconds on.</p>`;

const Missing = ({ found: { missing } }) => (missing.length === 0 ? null : html`<p class="warn">Without what ${missing.join(", ")} recorded: no answer.</p>`);

function Charts({ found, pool, at, choose }) {
  const kind = found.of.split(":", 1)[0];
  const wanted = kind === "backend" ? ENGINE : USE.filter((each) => !(each.not || []).includes(kind) && !(each.isMoney && found.currency === null));
  const pools = Object.entries(found.pools).filter(([name]) => pool === null || name === pool);
  if (pools.length === 0) return NOTHING;
  return html`<${Missing} found=${found} />${pools.map(([name, own]) => html`<div key=${name} class=${wanted.length === 4 ? "plots four" : "plots"} aria-label=${`Charts of the pool ${name}`} role="group">
    ${pools.length > 1 ? html`<h3>In the pool ${name}</h3>` : null}${wanted.map((each) => html`<${Plot} key=${each.label} ...${drawn(each, found, { [each.label]: own })} events=${found.events} chosen=${at} onTime=${choose} />`)}</div>`)}`;
}

/** A chart as Plot takes it, with a line for each of these, by name. */
function drawn({ label, of, say, isMoney }, { from_s: from, step_s: stepS, currency }, things) {
  const { length } = Object.values(Object.values(things)[0].values)[0];
  const times = Array.from({ length }, (_, number) => from + number * stepS);
  const named = isMoney ? `${label}, ${currency}` : label;
  const lines = Object.entries(things).map(([name, { values }]) => ({ name: name === label ? named : name, values: times.map((_, number) => of(values, number, stepS)) }));
  return { label: named, times, lines, from, to: from + length * stepS, say };
}

/** The same as a click on a chart, for a keyboard and for a time that is known. */
function WhichMinute({ at, choose }) {
  const local = at === null ? "" : `${time(at).slice(0, 10)}T${timeOfDay(at)}`;
  const chosen = (event) => {
    const given = Date.parse(event.target.value);
    if (!Number.isNaN(given)) choose(given / 1000);
  };
  return html`<label>Minute <input type="datetime-local" value=${local} onChange=${chosen} /></label>`;
}

const SAID = { create: "made", update: "changed", delete: "removed, or as the file says", not_available: "is not available", available: "is available again", leads: "leads now" };

/** A key that is made is told in Changes: many are made at once, and none does harm. */
const isTold = ({ name, what }) => !(name.startsWith("keys/") && what === "create");

/** A backend that is drained is not available for that reason: the change says it. */
const isOfDrain = ({ at, kind, name, what }, events) => kind === "backend" && what === "not_available" && events.some((each) => each.name === `backends/${name}` && each.after?.draining && Math.abs(each.at - at) < SAME_S);

function Events({ events, choose, again }) {
  const told = events.filter((each) => isTold(each) && !isOfDrain(each, events));
  const shown = told.slice(-SHOWN_EVENTS).reverse();
  const note = async (event) => {
    event.preventDefault();
    const field = event.target.elements.note;
    if (field.value.trim() === "") return;
    await attempt(async () => {
      await post("/notes", { text: field.value.trim() });
      field.value = "";
      notify("It is noted, and in the audit log.");
      again();
    });
  };
  return html`${shown.length === 0 ? null : html`<ol class="events" aria-label="What happened">${shown.map((each) => html`<li key=${`${each.at}${each.name}`}>
      <button class="quiet" onClick=${() => choose(each.at)}>${clock(each.at)}</button> ${said(each)}</li>`)}</ol>`}
    ${told.length > shown.length ? html`<p class="dim">${count(told.length - shown.length)} more, as lines in the charts.</p>` : null}
    ${may("operator") ? html`<form class="controls" onSubmit=${note}><label>Note <input name="note" maxlength="200" placeholder="deployed 1.2" /></label><button>Add it</button></form>` : null}`;
}

function said(event) {
  const { kind, name, what, actor } = event;
  const by = actor ? html` <span class="dim">by <${Actor} of=${event} /></span>` : null;
  const key = name.startsWith("keys/") ? (event.after ?? event.before) : null;
  const label = [key?.label, key?.tenant && `of ${key.tenant}`].filter(Boolean).join(" ");
  if (kind === "note") return html`<strong>${name}</strong>${by}`;
  const words = Object.hasOwn(SAID, what) ? SAID[what] : what;
  return html`${name}${label ? ` (${label})` : ""} ${kind === "change" && (event.before || event.declared) ? differenceOf({ ...event, kind: name.split("/", 1)[0], action: words }) : words}${by}`;
}

/** What was of all in one minute. */
function Minute({ at, choose }) {
  const [answer] = usePolled(async (signal) => (await get(`/history/minute?at=${at}`, { signal })).body, [at], 0);
  const found = answer.value;
  const rows = (kind) => (found?.rows || []).filter((each) => each.kind === kind).map((each) => ({ ...each, ...each.values }));
  return html`<section class="minute" aria-label="One minute">
    <div class="bar"><h2>At ${timeOfDay(at)} <small class="dim">the minute from ${time(at)}</small></h2>
      <span class="controls"><button onClick=${() => choose(at - MINUTE_S)}>Minute before</button><button onClick=${() => choose(at + MINUTE_S)}>Minute after</button>
      <button class="quiet" onClick=${() => choose(null)}>Close</button></span></div>
    ${answer.error ? html`<p class="bad" role="alert">${answer.error.message}</p>` : null}
    ${found === null ? null : found.is_recorded ? html`<${Used} label="Tenants in that minute" rows=${rows("tenant")} currency=${found.currency} /><${Engines} rows=${rows("backend")} />` : html`<p class="dim">Nothing was recorded in that minute, or it is not over.</p>`}
  </section>`;
}

function Used({ label, rows, currency }) {
  const columns = [
    { id: "name", label: "Tenant", value: (each) => each.name, cell: (each) => html`<a class="name" href=${link("tenant", each.name)}>${each.name}</a>` },
    { id: "pool", label: "Pool", hide: "middle", value: (each) => each.pool, cell: (each) => each.pool },
    { id: "share", label: "Share", kind: "number", note: "of the pool", value: (each) => each.share, cell: (each) => percent(each.share) },
    { id: "tokens", label: "Tokens", kind: "number", value: (each) => each.tokens, cell: (each) => short(each.tokens) },
    { id: "wait", label: "Longest wait", kind: "number", value: (each) => each.wait_s, cell: (each) => seconds(each.wait_s) },
    { id: "ttft", label: "TTFT, 90 % within", kind: "number", value: (each) => each.ttft_s, cell: (each) => seconds(each.ttft_s) },
    { id: "refused", label: "Refused", kind: "number", value: (each) => each.refused, cell: (each) => count(each.refused) },
    ...(currency === null ? [] : [{ id: "cost", label: `Cost, ${currency}`, kind: "number", value: (each) => each.cost, cell: (each) => money(each.cost) }]),
  ];
  return html`<${Table} label=${label} columns=${columns} rows=${rows} keyOf=${(each) => `${each.pool} ${each.name}`} sort=${{ id: "share", down: true }} size=${10} empty="No tenant did anything." />`;
}

function Engines({ rows }) {
  if (rows.length === 0) return null;
  const columns = [
    { id: "name", label: "Backend", value: (each) => each.name, cell: (each) => html`<a class="name" href=${link("backend", each.name)}>${each.name}</a>` },
    { id: "available", label: "Available", kind: "number", note: "of the minute", value: (each) => each.available, cell: (each) => percent(each.available) },
    { id: "slots", label: "Slots", kind: "number", note: "in use / limit", value: (each) => each.in_flight, cell: (each) => `${short(each.in_flight)} / ${count(each.requests_limit)}` },
    { id: "kv", label: "KV tokens", kind: "number", note: "reserved / limit", value: (each) => each.kv_tokens, cell: (each) => `${short(each.kv_tokens)} / ${each.kv_tokens_limit ? short(each.kv_tokens_limit) : NONE}` },
    { id: "step", label: "Step", kind: "number", value: (each) => each.step_s, cell: (each) => seconds(each.step_s) },
  ];
  return html`<${Table} label="Backends in that minute" columns=${columns} rows=${rows} keyOf=${(each) => `${each.pool} ${each.name}`} sort=${{ id: "name", down: false }} size=${10} />`;
}
