// Now: what every tier and tenant gets beside what it is due, what waits, and what each backend is limited by.

import { useState } from "preact/hooks";
import { FirstUse } from "./first-use.js";
import { Figure, html, link, Meter, ShareBar, Table, TenantLink, useLive } from "../ui.js";
import { bound, count, decimal, listed, NONE, order, percent, plural, refusal, seconds, short, wait } from "../words.js";

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
    ${name === undefined ? html`<p>There is no pool: no backend is known.</p>` : html`<${Pool} key=${name} name=${name} pool=${state.pools[name]} />`}`;
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

function Pool({ name, pool }) {
  const tenants = entries(pool.tenants);
  const tiers = entries(pool.tiers);
  const backends = entries(pool.backends);
  const refused = Object.entries(pool.refused || {}).filter(([, number]) => number > 0);
  const refusedSum = refused.reduce((sum, [, number]) => sum + number, 0);
  return html`<section class="pool" aria-labelledby="pool-name">
    <h1 id="pool-name">${name} <small class="dim">next is ${order(pool.policy)}</small></h1>
    <dl class="figures">
      <${Figure} label="queued" value=${count(pool.queued || 0)} />
      <${Figure} label="oldest wait" value=${seconds(pool.oldest_wait_s)} />
      <${Figure} label="running" value=${count(pool.in_flight || 0)} />
      <${Figure} label="tokens per second" value=${short(pool.tokens_per_s || 0)} />
      <${Figure} label="refused in the last minute" value=${count(refusedSum)} tone=${refusedSum ? "warn" : ""}
        note=${refused.map(([reason, number]) => `${count(number)} ${refusal(reason)}`).join(", ")} />
    </dl>
    <${Verdict} tenants=${tenants} tiers=${tiers} backends=${backends} />
    <${Tiers} tiers=${tiers} />
    <${Tenants} tenants=${tenants} />
    <${Backends} backends=${backends} />
  </section>`;
}

/** Who gets the most and is that right; which backend is the bottleneck: as sentences. */
function Verdict({ tenants, tiers, backends }) {
  return html`<div class="verdict">
    <p>${mostServed(tenants)}</p>
    <p>${gapOf(tiers)}</p>
    <p>${bottleneck(backends)}</p>
  </div>`;
}

const isShort = (got, due) => due != null && (got || 0) < due - Math.max(0.01, 0.1 * due);

function mostServed(tenants) {
  const most = tenants.reduce((best, each) => (shareOf(each) > (best ? shareOf(best) : 0) ? each : best), null);
  if (most === null) return "Nothing was served in the last minute.";
  const got = shareOf(most);
  const due = most.due?.[MINUTE];
  const waiting = tenants.filter((each) => each.queued > 0 && isShort(shareOf(each), each.due?.[MINUTE]));
  const start = html`<${TenantLink} id=${most.id} /> gets the most: <strong>${percent(got)}</strong> of the last minute`;
  if (due == null || isShort(got, due)) return html`${start}, which is less than its due: ${percent(due)}.`;
  if (waiting.length === 0) {
    return html`${start}, and that is right: ${got > due * 1.1 + 0.01 ? "no tenant that waits gets less than its due." : `${percent(due)} is its due.`}`;
  }
  const isOne = waiting.length === 1;
  const limited = waiting.filter((each) => each.waits === "tenant_limit").length;
  const why = limited === 0 ? "." : limited === waiting.length ? `, by ${isOne ? "its" : "their"} own limit.` : `, ${count(limited)} of them by their own limits.`;
  return html`${start}; ${percent(due)} is its due. ${listed(waiting.map((each) => each.id))}
    ${isOne ? " waits and gets less than its due" : " wait and get less than their due"}${why}`;
}

const shareOf = (each) => each.share?.[MINUTE] || 0;

function gapOf(tiers) {
  const known = tiers.filter((each) => each.gap != null && each.bound);
  if (known.length === 0) return "No two tenants wait at once, so there is no service gap.";
  const worst = known.reduce((a, b) => (a.gap / a.bound >= b.gap / b.bound ? a : b));
  const ratio = worst.gap / worst.bound;
  return html`The service gap between tenants that wait is <strong>${percent(ratio)}</strong> of its bound
    (tier ${worst.id}: ${count(worst.gap)} of ${count(worst.bound)} service units)${ratio <= 1 ? ", so the order keeps its promise." : ": it is above what the order promises."}`;
}

function bottleneck(backends) {
  const down = backends.filter((each) => !each.available && !each.draining);
  const bindings = backends.filter((each) => each.bound_by != null && each.available);
  const start = down.length > 0 ? `${listed(down.map((each) => each.id))} ${down.length === 1 ? "is" : "are"} not available. ` : "";
  if (bindings.length === 0) return `${start}${backends.length > down.length ? "No backend is at its limit." : ""}`;
  const most = bindings.reduce((a, b) => (load(a) >= load(b) ? a : b));
  const rest = bindings.length - 1;
  const others = rest === 0 ? "" : rest === backends.length - 1 ? " All others are at a limit, too." : ` ${plural(rest, "other")} ${rest === 1 ? "is" : "are"} at a limit, too.`;
  return html`${start}The bottleneck is <strong>${most.id}</strong>: ${bound(most.bound_by)}.${others}`;
}

const load = (each) =>
  Math.max((each.in_flight || 0) / (each.requests_limit || Infinity), (each.tokens || 0) / (each.tokens_limit || Infinity), (each.queued_there || 0) > 0 ? 1 : 0);

export const entries = (object) => Object.entries(object || {}).map(([id, value]) => ({ ...value, id }));

function shareColumns(rows, hides = ["middle", "", "middle"]) {
  return WINDOWS.map((label, at) => {
    const scale = Math.max(0.02, ...rows.map((each) => Math.max(each.share?.[at] || 0, each.due?.[at] || 0)));
    return {
      id: `share-${at}`,
      label,
      kind: "share-column",
      hide: hides[at],
      title: `Part of the pool's service in the last ${label}, and the part that is due`,
      value: (each) => each.share?.[at] ?? 0,
      cell: (each) => html`<${ShareBar} got=${each.share?.[at]} due=${each.due?.[at]} scale=${scale} waits=${each.queued > 0} />`,
    };
  });
}

function Tiers({ tiers }) {
  const columns = [
    { id: "id", label: "Tier", value: (each) => each.id, cell: (each) => html`<a class="name" href=${link("tier", each.id)}>${each.id}</a>` },
    { id: "weight", label: "Weight", kind: "number", value: (each) => each.weight, cell: (each) => decimal(each.weight) },
    ...shareColumns(tiers),
    { id: "gap", label: "Service gap / bound", value: (each) => (each.bound ? each.gap / each.bound : null),
      title: "Largest difference of service between tenants that wait, in service units over weight, beside the bound of the order",
      cell: (each) => (each.bound ? html`<${Meter} value=${each.gap} limit=${each.bound} text=${`${short(each.gap)} / ${short(each.bound)}`} />` : NONE) },
    { id: "jain", label: "Jain", kind: "number", hide: "wide", title: "Jain's index of the tenants' service: 1 is even", value: (each) => each.jain, cell: (each) => decimal(each.jain) },
    { id: "met", label: "In time", kind: "number", title: "Requests with an envelope that met it, since start", value: attained, cell: (each) => percent(attained(each)) },
    { id: "queued", label: "Queued", kind: "number", value: (each) => each.queued || 0, cell: (each) => count(each.queued || 0) },
    { id: "running", label: "Running", kind: "number", value: (each) => each.in_flight || 0, cell: (each) => count(each.in_flight || 0) },
  ];
  return html`<h2>Tiers <small class="dim">bar: part of the service that it got; mark: part that is due by weight</small></h2>
    <${Table} label="Tiers" columns=${columns} rows=${tiers} keyOf=${(each) => each.id} sort=${{ id: "share-1", down: true }} />`;
}

const attained = (each) => (each.attainment?.requests ? each.attainment.met / each.attainment.requests : null);

export function Tenants({ tenants }) {
  const [filter, setFilter] = useState("");
  const wanted = filter.trim().toLowerCase();
  const rows = wanted === "" ? tenants : tenants.filter((each) => each.id.toLowerCase().includes(wanted) || String(each.tier).toLowerCase().includes(wanted));
  return html`<div class="bar"><h2>Tenants <small class="dim">${count(tenants.length)}, got / due</small></h2>
      <label>Filter <input type="search" value=${filter} onInput=${(event) => setFilter(event.target.value)} placeholder="tenant or tier" /></label></div>
    <${Table} label="Tenants" columns=${tenantColumns(rows)} rows=${rows} keyOf=${(each) => each.id} sort=${{ id: "share-1", down: true }}
      empty=${wanted ? "No tenant has this in its name." : "No tenant sent anything in the last 15 minutes."} />`;
}

const pair = (values) => (values == null ? NONE : html`${seconds(values[0])} <span class="dim">/ ${seconds(values[1])}</span>`);

const TENANT_SHARES = ["middle", "", "long"]; // a tenant's own page has all three at any width

function tenantColumns(rows) {
  return [
    { id: "id", label: "Tenant", value: (each) => each.id, cell: (each) => html`<${TenantLink} id=${each.id} />` },
    { id: "tier", label: "Tier", hide: "small", value: (each) => each.tier, cell: (each) => each.tier },
    { id: "weight", label: "Weight", kind: "number", hide: "middle", value: (each) => each.weight, cell: (each) => decimal(each.weight) },
    ...shareColumns(rows, TENANT_SHARES),
    { id: "queued", label: "Queued", kind: "number", value: (each) => each.queued || 0, cell: (each) => count(each.queued || 0) },
    { id: "running", label: "Running", kind: "number", value: (each) => each.in_flight || 0, cell: (each) => count(each.in_flight || 0) },
    { id: "oldest", label: "Oldest wait", kind: "number", value: (each) => each.oldest_wait_s, cell: (each) => seconds(each.oldest_wait_s) },
    { id: "waits", label: "Waits because", value: (each) => each.waits, cell: (each) => wait(each.waits) },
    { id: "pace", label: "Tokens/s", kind: "number", title: "Output tokens per second", value: (each) => each.output_tokens_per_s || 0, cell: (each) => short(each.output_tokens_per_s || 0) },
    { id: "ttft", label: "TTFT", kind: "number", title: "Time to first token: median / 99th percentile of 15 minutes", value: (each) => each.ttft_s?.[1], cell: (each) => pair(each.ttft_s) },
    { id: "tpot", label: "TPOT", kind: "number", hide: "wide", title: "Time per output token: median / 99th percentile of 15 minutes", value: (each) => each.tpot_s?.[1], cell: (each) => pair(each.tpot_s) },
    { id: "cached", label: "Cached", kind: "number", hide: "wide", title: "Part of its prompt tokens that was in a prefix cache", value: (each) => each.cached_ratio, cell: (each) => percent(each.cached_ratio) },
    { id: "met", label: "In time", kind: "number", hide: "wide", title: "Requests with an envelope that met it", value: (each) => each.attainment_ratio, cell: (each) => percent(each.attainment_ratio) },
    { id: "refused", label: "Refused", kind: "number", title: "In the last minute", value: (each) => each.refused || 0, cell: (each) => count(each.refused || 0) },
  ];
}

function health(each) {
  if (!each.available) return html`<span class="bad">not available</span>${each.trouble ? html` <span class="dim">${each.trouble}</span>` : null}`;
  if (each.draining) return html`<span class="warn">draining</span>`;
  return html`<span class="ok">healthy</span>`;
}

function Backends({ backends }) {
  const columns = [
    { id: "id", label: "Backend", value: (each) => each.id, cell: (each) => each.id },
    { id: "health", label: "Health", value: (each) => String(each.available), cell: health },
    { id: "slots", label: "Slots", title: "Requests that run there, of the limit", value: (each) => each.in_flight || 0, cell: (each) => html`<${Meter} value=${each.in_flight} limit=${each.requests_limit} />` },
    { id: "kv", label: "KV tokens", title: "Tokens that are reserved there, of its KV cache", value: (each) => each.tokens || 0,
      cell: (each) => html`<${Meter} value=${each.tokens} limit=${each.tokens_limit} text=${`${short(each.tokens || 0)} of ${short(each.tokens_limit)}`} />` },
    { id: "bound", label: "Takes no more because", value: (each) => each.bound_by, cell: (each) => bound(each.bound_by) },
    { id: "step", label: "Step", kind: "number", title: "Time of an engine step: predicted now / measured", value: (each) => each.step_s,
      cell: (each) => html`${seconds(each.step_s)} <span class="dim">/ ${seconds(each.step_measured_s)}</span>` },
    { id: "queued", label: "Queued there", kind: "number", title: "Requests that wait inside the engine", value: (each) => each.queued_there || 0, cell: (each) => count(each.queued_there || 0) },
    { id: "external", label: "External load", kind: "number", title: "Requests and tokens that came past this gateway", value: (each) => each.external_requests || 0,
      cell: (each) => `${plural(each.external_requests || 0, "request")}, ${plural(each.external_tokens || 0, "token")}` },
  ];
  return html`<h2>Backends</h2><${Table} label="Backends" columns=${columns} rows=${backends} keyOf=${(each) => each.id} sort=${{ id: "id", down: false }} size=${32} />`;
}
