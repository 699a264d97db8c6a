// Now: what every tier and tenant gets beside what it is due, what waits, and what each backend is limited by.

import { useState } from "preact/hooks";
import { FirstUse } from "./first-use.js";
import { History } from "./history.js";
import { Unserved } from "./unserved.js";
import { changedBy, Hurt, hurtOf, isHeldShort, isShort, shareOf, useChanged, WhoIsHurt } from "./hurt.js";
import { Figure, html, link, Meter, ShareBar, Table, TenantLink, useLive } from "../ui.js";
import { bound, clock, count, COUNTED, decimal, due, listed, NONE, order, percent, plural, refusal, seconds, short, wait } from "../words.js";

const WINDOWS = ["10 s", "1 min", "15 min"];
const MINUTE = 1; // the window that sentences are about

export function Now({ pool: chosen }) {
  const { document: state, error } = useLive();
  if (state === null) return html`<p class="dim" aria-busy="true">${error || "Waiting for the first second…"}</p>`;
  const names = Object.keys(state.pools || {}).sort();
  const name = names.includes(chosen) ? chosen : names[0];
  return html`
    <${FirstUse} gateway=${state.gateway} />
    <${Cluster} cluster=${state.cluster} />
    ${names.length > 1 ? html`<${Pools} pools=${state.pools} names=${names} chosen=${name} />` : null}
    ${name === undefined ? html`<p>There is no pool: no backend is known.</p>` : html`<${Pool} key=${name} name=${name} pool=${state.pools[name]} keysRefused=${state.keys_refused} />`}`;
}

function Cluster({ cluster }) {
  if (!cluster || (cluster.members || []).length < 2) return null;
  return html`<section class="cluster" aria-label="Replicas">
    <span>Leader: <strong>${cluster.leader || "none"}</strong></span>
    ${cluster.members.map((each) => html`<span key=${each.name} class=${`chip ${each.role}`}>${each.name}<small> ${each.role}</small></span>`)}
    <span class="dim">epoch ${count(cluster.epoch)}${cluster.round_trip_s == null ? "" : `, ${seconds(cluster.round_trip_s)} to the leader`}</span>
  </section>`;
}

function Pools({ pools, names, chosen }) {
  return html`<nav class="pools" aria-label="Pools">${names.map(
    (name) => html`<a key=${name} class="chip" href=${link("now", name)} aria-current=${name === chosen ? "page" : undefined}>
      ${name} <small>${plural(pools[name].queued || 0, "request")} queued${pools[name].oldest_wait_s == null ? "" : `, ${seconds(pools[name].oldest_wait_s)}`}</small></a>`,
  )}</nav>`;
}

/** The sum of some counts by reason, in words and as a number. */
export function byReason(...many) {
  const counts = {};
  for (const [reason, number] of many.flatMap((each) => Object.entries(each || {}))) counts[reason] = (counts[reason] || 0) + number;
  const some = Object.entries(counts).filter(([, number]) => number > 0);
  return [some.map(([reason, number]) => (some.length > 1 ? `${count(number)} ${refusal(reason)}` : refusal(reason))).join(", "), some.reduce((sum, [, number]) => sum + number, 0)];
}

function Pool({ name, pool, keysRefused }) {
  const tenants = entries(pool.tenants);
  const tiers = entries(pool.tiers);
  const backends = entries(pool.backends);
  const [refused, refusedSum] = byReason(pool.refused);
  const [passedOn, passedOnSum] = byReason(...Object.values(pool.passed_on || {}));
  return html`<section class="pool" aria-labelledby="pool-name">
    <h1 id="pool-name">${name} <small class="dim">next is ${order(pool.policy)}</small></h1>
    <dl class="figures">
      <${Figure} label="requests queued" value=${count(pool.queued || 0)} />
      <${Figure} label="oldest wait" value=${seconds(pool.oldest_wait_s)} />
      <${Figure} label="requests in flight" value=${count(pool.in_flight || 0)} />
      <${Figure} label="tokens per second, prompt + output" value=${short(pool.tokens_per_s || 0)} />
      <${Figure} label="refused in the last minute" value=${count(refusedSum)} tone=${refusedSum ? "warn" : ""}
        note=${refused} />
      ${passedOnSum ? html`<${Figure} label="passed on to another model of an alias in the last minute" value=${count(passedOnSum)} note=${passedOn} />` : null}
    </dl>
    <${Verdict} pool=${pool} keysRefused=${keysRefused} tenants=${tenants} tiers=${tiers} backends=${backends} />
    <${History} of=${`pool:${name}`} />
    <${Tiers} tiers=${tiers} />
    <${Groups} groups=${entries(pool.groups)} />
    <${Tenants} tenants=${tenants} />
    <${Backends} backends=${backends} />
  </section>`;
}

/** Which tenants are hurt; who gets the most and why that is right; which backend is the bottleneck: as sentences. */
function Verdict({ pool, keysRefused, tenants, tiers, backends }) {
  return html`<div class="verdict">
    <${WhoIsHurt} tenants=${tenants} tiers=${tiers} />
    ${keysRefused ? html`<p><strong class="warn">${plural(keysRefused, "call")} refused for ${keysRefused === 1 ? "its key" : "their keys"}</strong> in the last minute: without a key, or with one that is unknown, removed or expired. They count for no tenant.</p>` : null}
    <${Unserved} />
    <${NotAvailable} backends=${backends} />
    <p>${mostServed(tenants, tiers)}</p>
    <p>${gapOf(tiers, tenants)}</p>
    <p>${bottleneck(backends, pool.bottleneck)}</p>
  </div>`;
}

/** Why its share is due: asks (it gets all it asks for), weight, or limit. Null: the gateway does not say. */
export const dueBy = (each, at = MINUTE) => each.due_by?.[at] ?? null;

function mostServed(tenants, tiers) {
  const most = tenants.reduce((best, each) => (shareOf(each) > (best ? shareOf(best) : 0) ? each : best), null);
  if (most === null) return "Nothing was served in the last minute.";
  const isDue = most.due?.[MINUTE];
  const start = html`<${TenantLink} id=${most.id} /> gets the most: <strong>${percent(shareOf(most))}</strong> of the last minute`;
  if (isDue == null || isShort(shareOf(most), isDue)) return html`${start}, which is less than its due: ${percent(isDue)}.`;
  const waiting = tenants.filter(isHeldShort);
  if (waiting.length === 0) return html`${start}, and that is right: ${whyRight(most, tenants, tiers)}`;
  const isOne = waiting.length === 1;
  const limited = waiting.filter((each) => each.waits === "tenant_limit").length;
  const cause = limited === 0 ? "." : limited === waiting.length ? `, by ${isOne ? "its" : "their"} in-flight ${isOne ? "limit" : "limits"}.` : `, ${count(limited)} of them by their in-flight limits.`;
  return html`${start}; ${percent(isDue)} is its due. ${listed(waiting.map((each) => each.id))}
    ${isOne ? " waits and gets less than its due" : " wait and get less than their due"}${cause}`;
}

/** Why the tenant that gets the most is due it. */
function whyRight(most, tenants, tiers) {
  if (dueBy(most) !== "weight") return "it gets all it asks for, and no tenant that waits gets less than its due.";
  const rivals = tenants.filter((each) => each.id !== most.id && dueBy(each) === "weight");
  if (rivals.length === 0) return "all others get all they ask for, or are at a limit of their own, and it gets the rest.";
  const weightOf = (each) => `weight ${decimal(each.weight)}${tiers.length > 1 ? ` in tier ${each.tier}` : ""}`;
  const beside = rivals.length > 3 ? `${count(rivals.length)} other tenants` : listed(rivals.map((each) => `${each.id} (${weightOf(each)})`));
  return `it and ${beside} ask for more than there is. All others get what they ask for, and of the rest its ${weightOf(most)} gives it ${percent(most.due[MINUTE])}.`;
}

/** The largest service gap beside its bound, and what that says of the last minute; where there is no gap, why. */
function gapOf(tiers, tenants) {
  const known = tiers.filter((each) => each.gap != null && each.bound);
  if (known.length === 0) return noGap(tiers);
  const worst = known.reduce((a, b) => (a.gap / a.bound >= b.gap / b.bound ? a : b));
  const ratio = worst.gap / worst.bound;
  const age = worst.gap_age_s > 2 ? `, ${seconds(worst.gap_age_s)} ago` : "";
  return html`The service gap between tenants that wait is <strong>${percent(ratio)}</strong> of its bound
    (tier ${worst.id}${age}: ${count(worst.gap)} of ${count(worst.bound)} service units)${ratio > 1 ? ": it is above what the order promises." : tenants.some(isHeldShort) ? ". That is within its promise, which is too wide to judge one minute." : ", so the order keeps its promise."}`;
}

function noGap(tiers) {
  const together = tiers.filter((each) => each.gap_state === "not_throughout");
  if (together.length > 0) {
    return `There is no service gap: tenants of tier ${listed(together.map((each) => each.id))} waited at once, but the queue of one of them emptied in between, so the order promises nothing between them.`;
  }
  return "There is no service gap: in no tier do two tenants wait at once, besides those at their own limits.";
}

/** Backends that are lost, and those that take nothing because they are drained. */
function NotAvailable({ backends }) {
  const [drained, lost] = [backends.filter((each) => each.draining), backends.filter((each) => !each.available && !each.draining)];
  const changed = useChanged("backends", [...drained, ...lost].map((each) => each.id).sort());
  const named = (some) => some.map((each, at) => html`${at > 0 ? ", " : ""}<a class="name" href=${link("backend", each.id)}>${each.id}</a>${sinceWhen(each)}${each.trouble ? ` (${each.trouble})` : ""}${changedBy(changed.get(each.id))}`);
  return html`${lost.length > 0 ? html`<p><strong class="bad">${plural(lost.length, "backend")} not available:</strong> ${named(lost)}.</p>` : null}
    ${drained.length > 0 ? html`<p><strong class="warn">${plural(drained.length, "backend")} drained:</strong> ${named(drained)}.</p>` : null}`;
}

/** `found`: the backend that limits the pool, by the looks of the last minute; null or missing: none does. */
function bottleneck(backends, found) {
  if (found == null) return html`${backends.some((each) => each.available) ? "No backend limits the pool." : ""}${slowest(backends, null)}`;
  const others = found.full.length - 1;
  const rest = others === 0 ? "" : others === backends.length - 1 ? " All others take no more, either." : ` ${plural(others, "other")} ${others === 1 ? "takes" : "take"} no more, either.`;
  if (found.bound_by === "unhealthy") return html`What the pool lacks is <a href=${link("backend", found.backend)}><strong>${found.backend}</strong></a>, which was not available for most of the last minute.${rest}`;
  return html`The bottleneck is <a href=${link("backend", found.backend)}><strong>${found.backend}</strong></a>, by the last minute: ${bound(found.bound_by, backends.find((each) => each.id === found.backend)?.reserves)}.${rest}${slowest(backends, found.backend)}`;
}

export const SLOWER = 2; // so many times the time per output token is said (gateway/live/bottleneck.py)
const tokenS = (each) => each.token_s ?? each.step_measured_s;

/** That one backend is much slower than another, which full slots do not say. */
function slowest(backends, named) {
  const measured = backends.filter(tokenS).sort((a, b) => tokenS(a) - tokenS(b));
  if (measured.length < 2) return "";
  const [fast, slow] = [measured[0], measured.at(-1)];
  const times = tokenS(slow) / tokenS(fast);
  if (times < SLOWER) return "";
  const what = slow.id === named ? " It" : html` <a href=${link("backend", slow.id)}>${slow.id}</a>`;
  return html`${what} takes ${times.toFixed(times < 9.95 ? 1 : 0)} times as long for an output token as ${fast.id}: ${seconds(tokenS(slow))}, not ${seconds(tokenS(fast))}.`;
}

export const entries = (object) => Object.entries(object || {}).map(([id, value]) => ({ ...value, id }));

function shareColumns(hides = ["middle", "", "middle"]) {
  return WINDOWS.map((label, at) => ({
    id: `share-${at}`,
    label: `Share, ${label}`,
    note: "of the pool: got / due",
    kind: "share-column",
    hide: hides[at],
    value: (each) => each.share?.[at] ?? 0,
    cell: (each) => html`<${ShareBar} got=${each.share?.[at]} due=${each.due?.[at]} waits=${each.queued > 0} />`,
  }));
}

const queueColumns = [
  { id: "queued", label: "Queued", kind: "number", value: (each) => each.queued || 0, cell: (each) => count(each.queued || 0) },
  { id: "in-flight", label: "In flight", kind: "number", value: (each) => each.in_flight || 0, cell: (each) => count(each.in_flight || 0) },
];

function Tiers({ tiers }) {
  const columns = [
    { id: "id", label: "Tier", value: (each) => each.id, cell: (each) => html`<a class="name" href=${link("tier", each.id)}>${each.id}</a>` },
    { id: "weight", label: "Weight", kind: "number", value: (each) => each.weight, cell: (each) => decimal(each.weight) },
    ...shareColumns(),
    { id: "gap", label: "Service gap / bound", kind: "meter-column", note: "between two of its tenants that wait, in service units over weight", value: (each) => (each.bound ? each.gap / each.bound : null),
      cell: (each) => (each.bound ? html`<${Meter} value=${each.gap} limit=${each.bound} text=${`${short(each.gap)} / ${short(each.bound)}`} />` : NONE) },
    { id: "jain", label: "Jain's index", kind: "number", hide: "wide", note: "of its tenants' service: 1 is even", value: (each) => each.jain, cell: (each) => decimal(each.jain) },
    { id: "met", label: "In time", kind: "number", note: "of requests with a target, since the start", value: attained, cell: (each) => percent(attained(each)) },
    ...queueColumns,
  ];
  return html`<h2>Tiers <small class="dim">bar: part of the pool's service that it got; mark: part that is due</small></h2>
    <${Table} label="Tiers" columns=${columns} rows=${tiers} keyOf=${(each) => each.id} sort=${{ id: "share-1", down: true }} />`;
}

function Groups({ groups }) {
  if (groups.length === 0) return null;
  const columns = [
    { id: "id", label: "Group", value: (each) => each.id, cell: (each) => html`<a class="name" href=${link("group", each.id)}>${each.id}</a>` },
    { id: "tier", label: "Tier", value: (each) => each.tier, cell: (each) => each.tier },
    { id: "weight", label: "Weight", kind: "number", value: (each) => each.weight, cell: (each) => decimal(each.weight) },
    ...shareColumns(),
    { id: "due", label: "Its due is", hide: "roomy", value: (each) => dueBy(each), cell: (each) => due(dueBy(each)) },
    ...queueColumns,
  ];
  return html`<h2>Groups <small class="dim">of tenants that sent anything in the last 15 minutes</small></h2>
    <${Table} label="Groups" columns=${columns} rows=${groups} keyOf=${(each) => each.id} sort=${{ id: "share-1", down: true }} />`;
}

const attained = (each) => (each.attainment?.requests ? each.attainment.met / each.attainment.requests : null);

export function Tenants({ tenants }) {
  const [filter, setFilter] = useState("");
  const wanted = filter.trim().toLowerCase();
  const rows = wanted === "" ? tenants : tenants.filter((each) => each.id.toLowerCase().includes(wanted) || String(each.tier).toLowerCase().includes(wanted) || String(each.group ?? "").toLowerCase().includes(wanted));
  return html`<div class="bar"><h2>Tenants <small class="dim">${count(tenants.length)}, bar: got; mark: due</small></h2>
      <label>Filter <input type="search" value=${filter} onInput=${(event) => setFilter(event.target.value)} placeholder="tenant or tier" /></label></div>
    <${Table} label="Tenants" columns=${TENANT_COLUMNS} rows=${rows} keyOf=${(each) => each.id} sort=${{ id: "share-1", down: true }}
      empty=${wanted ? "No tenant has this in its name." : "No tenant sent anything in the last 15 minutes."} />`;
}

const pair = (values) => (values == null ? NONE : html`${seconds(values[0])} <span class="dim">/ ${seconds(values[1])}</span>`);
const QUANTILES = `median / 99 %, last 15 min, ${COUNTED}`;

/** Why the oldest request of a tenant waits; its own limit leads to the setting. */
export function WaitCause({ tenant }) {
  if (tenant.waits === "tenant_limit") return html`<a href=${`${link("tenant", tenant.id)}?setting=in_flight_max`}>${wait(tenant.waits)}</a>`;
  return wait(tenant.waits);
}

const TENANT_COLUMNS = [
  { id: "id", label: "Tenant", value: (each) => each.id, cell: (each) => html`<${TenantLink} id=${each.id} /><${Hurt} hurt=${hurtOf(each)} />` },
  { id: "tier", label: "Tier", value: (each) => each.tier, cell: (each) => each.tier },
  { id: "weight", label: "Weight", kind: "number", hide: "middle", value: (each) => each.weight, cell: (each) => decimal(each.weight) },
  ...shareColumns(["long", "", "long"]), // a tenant's own page has all three at any width
  { id: "due", label: "Its due is", kind: "wraps", hide: "roomy", value: (each) => dueBy(each), cell: (each) => due(dueBy(each)) },
  ...queueColumns,
  { id: "oldest", label: "Oldest wait", kind: "number", value: (each) => each.oldest_wait_s, cell: (each) => seconds(each.oldest_wait_s) },
  { id: "waits", label: "Waits because", kind: "wraps", lead: true, value: (each) => each.waits, cell: (each) => (each.waits == null ? NONE : html`<${WaitCause} tenant=${each} />`) },
  { id: "pace", label: "Output", card: "Output tokens/s", kind: "number", note: "tokens/s", value: (each) => each.output_tokens_per_s || 0, cell: (each) => short(each.output_tokens_per_s || 0) },
  { id: "ttft", label: "TTFT", card: "TTFT, 15 min", kind: "number", note: `time to first token: ${QUANTILES}`, value: (each) => each.ttft_s?.[1], cell: (each) => pair(each.ttft_s) },
  { id: "tpot", label: "TPOT", kind: "number", hide: "desk", note: `time per output token: ${QUANTILES}`, value: (each) => each.tpot_s?.[1], cell: (each) => pair(each.tpot_s) },
  { id: "cached", label: "Cached", kind: "number", hide: "desk", note: "of its prompt tokens, last 15 min", value: (each) => each.cached_ratio, cell: (each) => percent(each.cached_ratio) },
  { id: "met", label: "In time", kind: "number", hide: "desk", note: "of requests with a target, last 15 min", value: (each) => each.attainment_ratio, cell: (each) => percent(each.attainment_ratio) },
  { id: "refused", label: "Refused", kind: "number", note: "last minute", value: (each) => each.refused || 0, cell: (each) => count(each.refused || 0) },
];

const sinceWhen = ({ unavailable_since: since }) => (since == null ? "" : ` since ${clock(since)}`);

export function Health({ backend: each }) {
  if (each.draining) return html`<span class="warn">draining</span>`;
  if (!each.available) return html`<span class="bad">not available</span>${sinceWhen(each)}${each.trouble ? html` <span class="dim">${each.trouble}</span>` : null}`;
  return html`<span class="ok">healthy</span>${each.slow_ratio >= SLOWER ? html`, <span class="warn">slow</span> <span class="dim">${each.slow_ratio.toFixed(1)} times as long for a token as is usual here</span>` : null}`;
}

/** Why a backend takes no more now, and how much of the last minute it took no more while requests waited. */
function takesNoMore(each) {
  const ratio = each.full_ratio;
  return html`${bound(each.bound_by, each.reserves)}${ratio ? html` <span class="dim">· took no more in ${percent(ratio)} of the last min</span>` : null}`;
}

function Backends({ backends }) {
  const columns = [
    { id: "id", label: "Backend", value: (each) => each.id, cell: (each) => html`<a class="name" href=${link("backend", each.id)}>${each.id}</a>` },
    { id: "health", label: "Health", kind: "wraps", bare: true, value: (each) => String(each.available), cell: (each) => html`<${Health} backend=${each} />` },
    { id: "bound", label: "Why it takes no more", kind: "wraps", bare: true, value: (each) => each.bound_by, cell: takesNoMore },
    { id: "slots", label: "Slots", kind: "meter-column", note: "requests in flight, of its limit", value: (each) => each.in_flight || 0,
      cell: (each) => html`<${Meter} value=${each.in_flight} limit=${each.requests_limit} />${["learnt", "assumed"].includes(each.size) ? html` <span class="dim">${each.size}</span>` : null}` },
    { id: "kv", label: "KV tokens", kind: "meter-column", note: "reserved, of its KV cache", value: (each) => each.tokens || 0,
      cell: (each) => html`<${Meter} value=${each.tokens} limit=${each.tokens_limit} text=${`${short(each.tokens || 0)} of ${short(each.tokens_limit)}`} />` },
    { id: "step", label: "Step", kind: "number", note: "of the engine: predicted / measured", value: (each) => each.step_s,
      cell: (each) => html`${seconds(each.step_s)} <span class="dim">/ ${seconds(each.step_measured_s)}</span>` },
    { id: "token", label: "Time per output token", card: "Time per output token, 1 min", kind: "number", hide: "long", note: "of one sequence, last minute", value: (each) => each.token_s, cell: (each) => seconds(each.token_s) },
    { id: "queued", label: "Queued there", kind: "number", note: "requests inside the engine", value: (each) => each.queued_there || 0, cell: (each) => count(each.queued_there || 0) },
    { id: "external", label: "External load", kind: "number", note: "past this gateway", value: (each) => each.external_requests || 0, cell: externalLoad },
  ];
  return html`<h2>Backends</h2><${Table} label="Backends" columns=${columns} rows=${backends} keyOf=${(each) => each.id} sort=${{ id: "id", down: false }} size=${32} />`;
}

export const externalLoad = (each) => (each.external_requests ? `${plural(each.external_requests, "request")}, ${plural(each.external_tokens || 0, "token")}` : "none");
