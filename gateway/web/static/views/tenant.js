// One tenant: what it gets, what it was promised, what it may spend, and its settings, which an operator edits in place.

import { useEffect, useState } from "preact/hooks";
import { all, get, path } from "../api.js";
import { Plot } from "../plot.js";
import { Changes } from "./changes.js";
import { dueBy, WaitCause } from "./now.js";
import { Figure, html, link, ShareBar, Table, useLive, usePolled } from "../ui.js";
import { count, decimal, due, NONE, percent, seconds, short, time } from "../words.js";
import { Settings } from "./settings.js";

const WINDOWS = ["10 s", "1 min", "15 min"];
const MINUTE = 1; // the window that sentences are about

export function Tenant({ id, setting }) {
  const { document: state, history } = useLive();
  const [settings, again] = usePolled((signal) => readSettings(id, signal), [id], 10000);
  const pools = Object.entries(state?.pools || {}).filter(([, pool]) => pool.tenants?.[id]);
  const rows = history.get(id) || [];
  const tier = settings.value?.tier;
  const envelope = settings.value === null ? {} : envelopeOf(settings.value.fields, tier);
  return html`<h1>${id} <small class="dim">tenant${settings.value ? html`, tier <a href=${link("tier", settings.value.fields.tier)}>${settings.value.fields.tier}</a>` : ""}</small></h1>
    ${settings.error ? html`<p class="bad" role="alert">${settings.error.message}</p>` : null}
    ${pools.map(([name, pool]) => html`<${InPool} key=${name} name=${name} tenant=${{ ...pool.tenants[id], id }} envelope=${envelope} />`)}
    ${pools.length === 0 ? html`<p class="dim">It sent nothing in the last 15 minutes.</p>` : null}
    <p><a href=${`${link("requests")}?tenant=${encodeURIComponent(id)}`}>Its requests</a></p>
    ${rows.length > 1
      ? html`<div class="plots"><${Plot} label="Output tokens per second" rows=${rows.map(([at, pace]) => [at, pace])} />
          <${Plot} label="Requests queued" rows=${rows.map(([at, , queued]) => [at, queued])} /></div>`
      : null}
    ${settings.value ? html`<${Settings} kind="tenants" id=${id} settings=${settings.value} now=${pools.map(([, pool]) => pool.tenants[id])} again=${again} wanted=${setting} />` : null}
    <${Budgets} id=${id} />
    <${Keys} id=${id} />
    <${Changes} kind="tenants" id=${id} etag=${settings.value?.etag} />`;
}

/** Its stored settings, or the defaults where it has none, with its tier's and the names of all tiers. */
async function readSettings(id, signal) {
  const tiers = await all("/tiers", { signal });
  try {
    const { body, etag } = await get(path("tenants", id), { signal });
    return { fields: body, etag, isStored: true, origin: body.origin, tier: tiers.find((each) => each.id === body.tier), tiers };
  } catch (error) {
    if (error.status !== 404) throw error;
    const fields = { tier: "default", weight: 1, envelope: {} };
    return { fields, etag: null, isStored: false, origin: null, tier: tiers.find((each) => each.id === "default"), tiers };
  }
}

const envelopeOf = (fields, tier) => ({
  ttft_ms: fields.envelope?.ttft_ms ?? tier?.envelope?.ttft_ms ?? null,
  tpot_ms: fields.envelope?.tpot_ms ?? tier?.envelope?.tpot_ms ?? null,
});

/** A latency beside its target: the 99th percentile may be above it. */
function Latency({ label, values, targetMs }) {
  const isLate = values != null && targetMs != null && values[1] * 1000 > targetMs;
  return html`<${Figure} label=${`${label}, last 15 min: median / 99 %`} value=${values == null ? NONE : `${seconds(values[0])} / ${seconds(values[1])}`}
    tone=${targetMs == null || values == null ? "" : isLate ? "warn" : "ok"} note=${targetMs == null ? "no target" : `target ${seconds(targetMs / 1000)}`} />`;
}

function InPool({ name, tenant, envelope }) {
  return html`<section aria-label=${`In the pool ${name}`}>
    <h2>Now <small class="dim">in the pool ${name}</small></h2>
    <dl class="figures">
      <${Figure} label="requests queued" value=${count(tenant.queued || 0)} note=${tenant.waits == null ? "" : html`<${WaitCause} tenant=${tenant} />`} />
      <${Figure} label="oldest wait" value=${seconds(tenant.oldest_wait_s)} />
      <${Figure} label="requests in flight" value=${count(tenant.in_flight || 0)} />
      <${Figure} label="output tokens per second, last 10 s" value=${short(tenant.output_tokens_per_s || 0)} />
      <${Latency} label="TTFT" values=${tenant.ttft_s} targetMs=${envelope.ttft_ms} />
      <${Latency} label="TPOT" values=${tenant.tpot_s} targetMs=${envelope.tpot_ms} />
      <${Figure} label="requests in time, last 15 min" value=${percent(tenant.attainment_ratio)} />
      <${Figure} label="prompt tokens from a cache, last 15 min" value=${percent(tenant.cached_ratio)} />
      <${Figure} label="refused in the last minute" value=${count(tenant.refused || 0)} tone=${tenant.refused ? "warn" : ""} />
    </dl>
    <dl class="shares">${WINDOWS.map((label, at) => html`<dt key=${`t${label}`}>Got / due, ${label}</dt>
      <dd key=${`d${label}`}><${ShareBar} got=${tenant.share?.[at]} due=${tenant.due?.[at]} waits=${tenant.queued > 0} /></dd>`)}</dl>
    ${whyDue(tenant)}
  </section>`;
}

/** Why its share of the last minute is due, and what its weight alone would give it. */
function whyDue(tenant) {
  const reason = dueBy(tenant);
  if (reason === null) return null;
  const weight = tenant.by_weight?.[MINUTE];
  return html`<p class="dim">Its due of the last minute is ${due(reason)}.${weight == null || reason === "weight" ? "" : ` By its weight alone, were all to ask for all there is, it would be ${percent(weight)}.`}</p>`;
}

// -- budgets ----------------------------------------------------------------------------------------------

const POLL_MS = 3000;
const PACE_MS = 60000; // the pace is that of the last minute

/** Which budgets it has, and when each will be spent at the pace of the last minute. */
function Budgets({ id }) {
  const [budgets] = usePolled(async (signal) => (await all("/state/budgets", { signal })).filter((each) => each.tenant === id), [id], POLL_MS);
  const [seen, setSeen] = useState([]);
  useEffect(() => {
    if (budgets.value === null) return;
    const now = Date.now();
    setSeen((before) => [...before.filter(([at]) => now - at <= PACE_MS), [now, budgets.value]]);
  }, [budgets.value]);
  if (budgets.value === null || budgets.value.length === 0) return null;
  const columns = [
    { id: "of", label: "Budget", cell: (each) => `${each.key ? `key ${each.key}, ` : ""}${each.unit} per ${each.period}` },
    { id: "used", label: "Used", kind: "number", cell: (each) => amount(each, each.used) },
    { id: "reserved", label: "Reserved", kind: "number", note: "for requests queued and in flight", cell: (each) => amount(each, each.reserved) },
    { id: "limit", label: "Limit", kind: "number", cell: (each) => amount(each, each.limit) },
    { id: "left", label: "Left", kind: "number", cell: (each) => `${amount(each, each.remaining)} (${percent(Number(each.limit) ? each.remaining / each.limit : null)})` },
    { id: "pace", label: "Pace", kind: "number", cell: (each) => paceOf(each, pace(each, seen)) },
    { id: "end", label: "At this pace", cell: (each) => spentWhen(each, pace(each, seen)) },
    { id: "renewed", label: "Renewed", cell: (each) => time(each.renewed_at) },
  ];
  return html`<h2>Budgets</h2><${Table} label="Budgets" columns=${columns} rows=${budgets.value} keyOf=${(each) => `${each.key} ${each.unit} ${each.period}`} sort=${{}} />`;
}

/** An amount of a budget: a number of tokens, or money as text. */
const amount = (budget, value) => (budget.unit === "cost" ? value : count(value));

/** Tokens, or money, per second since the oldest look of the last minute; null with one look. */
function pace(budget, seen) {
  if (seen.length < 2) return null;
  const [at, first] = seen[0];
  const [now] = seen.at(-1);
  const before = first.find((each) => each.key === budget.key && each.unit === budget.unit && each.period === budget.period);
  return before === undefined ? null : Math.max(0, budget.used - before.used) / ((now - at) / 1000);
}

const paceOf = (budget, perSecond) =>
  perSecond === null ? NONE : budget.unit === "cost" ? `${decimal(3600 * perSecond)} an hour` : `${short(perSecond)} tokens/s`;

function spentWhen(budget, perSecond) {
  if (budget.remaining <= 0) return html`<strong class="bad">spent</strong>`;
  if (perSecond === null) return "being measured";
  if (perSecond === 0) return "is not spent";
  const leftS = budget.remaining / perSecond;
  const untilS = budget.renewed_at - Date.now() / 1000;
  return leftS < untilS ? html`<span class="warn">spent in ${seconds(leftS)}</span>` : "lasts until it is renewed";
}

// -- keys -------------------------------------------------------------------------------------------------

function Keys({ id }) {
  const [keys] = usePolled((signal) => all(`/keys?tenant=${encodeURIComponent(id)}`, { signal }), [id], 30000);
  if (keys.value === null) return null;
  const columns = [
    { id: "label", label: "Key", value: (each) => each.label || each.id, cell: (each) => each.label || each.id },
    { id: "last", label: "Ends with", cell: (each) => html`<code>…${each.last_four}</code>` },
    { id: "models", label: "Models", cell: (each) => (each.models === null ? "all" : each.models.join(", ")) },
    { id: "made", label: "Made", value: (each) => each.created_at, cell: (each) => time(each.created_at) },
    { id: "ends", label: "Expires", value: (each) => each.expires_at, cell: (each) => (each.expires_at === null ? "never" : time(each.expires_at)) },
    { id: "state", label: "State", cell: (each) => (each.revoked ? html`<span class="bad">revoked</span>` : "valid") },
  ];
  return html`<h2>Keys</h2><${Table} label="Keys" columns=${columns} rows=${keys.value} keyOf=${(each) => each.id} sort=${{ id: "made", down: true }}
    empty="No key was made for it here. Keys of a file, and tokens of an identity provider, are not listed." />`;
}
