// One tenant: what it gets, what it was promised, what it may spend, and its settings, which an operator edits in place.

import { useState } from "preact/hooks";
import { all, get, path } from "../api.js";
import { may, mayChange, ownGroup } from "../session.js";
import { Budgets } from "./budgets.js";
import { Changes } from "./changes.js";
import { History } from "./history.js";
import { Keys } from "./keys.js";
import { Remove } from "./making.js";
import { hurtOf, sinceAbout, useSince, useUsed } from "./hurt.js";
import { byReason, dueBy, WaitCause } from "./now.js";
import { Figure, html, link, ShareBar, useLive, usePolled } from "../ui.js";
import { count, COUNTED, due, NONE, percent, seconds, short } from "../words.js";
import { TenantSessions } from "./sessions.js";
import { defaultsOf, Settings } from "./settings.js";

const WINDOWS = ["10 s", "1 min", "15 min"];
const MINUTE = 1; // the window that sentences are about

export function Tenant({ id, setting }) {
  const { document: state } = useLive();
  const [settings, again] = usePolled((signal) => readSettings(id, signal), [id], 10000);
  const pools = Object.entries(state?.pools || {}).filter(([, pool]) => pool.tenants?.[id]);
  const tier = settings.value?.tier;
  const envelope = settings.value === null ? {} : envelopeOf(settings.value.fields, tier);
  const [isNew, setNew] = useState(false);
  // A tenant needs no settings to call, so a name without them may be one; a name that did nothing is most likely mistyped.
  if (settings.value?.isStored === false && state !== null && pools.length === 0 && !isNew) {
    return html`<${Unknown} id=${id} makes=${() => setNew(true)} />`;
  }
  return html`<h1>${id} <small class="dim">tenant${settings.value ? placeOf(settings.value.fields) : ""}</small></h1>
    ${settings.error ? html`<p class="bad" role="alert">${settings.error.message}</p>` : null}
    ${pools.map(([name, pool]) => html`<${InPool} key=${name} name=${name} tenant=${{ ...pool.tenants[id], id }} envelope=${envelope} />`)}
    ${pools.length === 0 ? html`<p class="dim">It sent nothing in the last 15 minutes.</p>` : null}
    ${may("viewer") ? html`<p><a href=${`${link("requests")}?tenant=${encodeURIComponent(id)}`}>Its requests</a></p>` : null}
    ${settings.error?.status === 404 ? null : html`<${History} of=${`tenant:${id}`} />`}
    ${settings.value ? html`<${Settings} kind="tenants" id=${id} settings=${settings.value} now=${pools.map(([, pool]) => pool.tenants[id])} again=${again} wanted=${setting} />` : null}
    <${Budgets} of="tenant" id=${id} />
    ${settings.value?.fields.group && ownGroup() === null ? html`<${Budgets} of="group" id=${settings.value.fields.group} title="Budgets of its group" />` : null}
    <${Keys} tenant=${id} />
    ${may("viewer") ? html`<${Changes} kind="tenants" id=${id} settings=${settings.value} />` : null}
    ${settings.value ? html`<${Remove} kind="tenants" id=${id} settings=${settings.value} loses="Its keys go with it, and its queued requests are rejected." leads=${link("now")} />` : null}`;
}

/** No tenant of this name is stored, and none of it sent anything of late. */
function Unknown({ id, makes }) {
  return html`<h1>${id}</h1>
    <p role="alert">No tenant of this name has settings, and none sent anything in the last 15 minutes.</p>
    ${mayChange("tenants") ? html`<p><button onClick=${makes}>Give ${id} settings</button></p>` : null}`;
}

/** Its group and its tier, with ways there. */
function placeOf({ group, tier }) {
  const ofTier = may("viewer") ? html`, tier <a href=${link("tier", tier)}>${tier}</a>` : `, tier ${tier}`;
  return html`${group ? html`, group <a href=${link("group", group)}>${group}</a>` : ""}${ofTier}`;
}

/** Its stored settings, or the defaults where it has none, with its tier's, and what it can be in. */
async function readSettings(id, signal) {
  if (ownGroup() !== null) return readOfGroup(id, signal);
  const [tiers, groups] = await Promise.all([all("/tiers", { signal }), all("/groups", { signal })]);
  try {
    const { body, etag } = await get(path("tenants", id), { signal });
    return { fields: body, etag, isStored: true, origin: body.origin, tier: tiers.find((each) => each.id === body.tier), tiers, groups };
  } catch (error) {
    if (error.status !== 404) throw error;
    return { fields: defaultsOf("tenants"), etag: null, isStored: false, origin: null, tier: tiers.find((each) => each.id === "default"), tiers, groups };
  }
}

/** As a group's administrator sees it, which may not read tiers: with all tenants of the group. */
async function readOfGroup(id, signal) {
  const [{ body, etag }, members] = await Promise.all([get(path("tenants", id), { signal }), all("/tenants", { signal })]);
  return { fields: body, etag, isStored: true, origin: body.origin, tiers: [], groups: [], members };
}

const envelopeOf = (fields, tier) => ({
  ttft_ms: fields.envelope?.ttft_ms ?? tier?.envelope?.ttft_ms ?? null,
  tpot_ms: fields.envelope?.tpot_ms ?? tier?.envelope?.tpot_ms ?? null,
});

/** A latency beside its target: the 99th percentile may be above it. */
function Latency({ label, values, targetMs }) {
  const isLate = values != null && targetMs != null && values[1] * 1000 > targetMs;
  return html`<${Figure} label=${`${label}, last 15 min: median / 99 %, ${COUNTED}`} value=${values == null ? NONE : `${seconds(values[0])} / ${seconds(values[1])}`}
    tone=${targetMs == null || values == null ? "" : isLate ? "warn" : "ok"} note=${targetMs == null ? "no target" : `target ${seconds(targetMs / 1000)}`} />`;
}

function InPool({ name, tenant, envelope }) {
  const used = useUsed([tenant]);
  const hurt = hurtOf(tenant, used(tenant));
  const since = useSince(hurt === null ? [] : [tenant.id]);
  return html`<section aria-label=${`In the pool ${name}`}>
    ${hurt === null ? null : html`<p class="verdict"><strong class="bad">It is ${hurt.word}:</strong> ${hurt.why}${sinceAbout(since.get(tenant.id))}.</p>`}
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
      <${Figure} label="refused in the last minute" value=${count(tenant.refused || 0)} tone=${tenant.refused ? "warn" : ""} note=${byReason(tenant.refused_by)[0]} />
    </dl>
    <dl class="shares">${WINDOWS.map((label, at) => html`<dt key=${`t${label}`}>Got / due, ${label}</dt>
      <dd key=${`d${label}`}><${ShareBar} got=${tenant.share?.[at]} due=${tenant.due?.[at]} waits=${tenant.queued > 0} /></dd>`)}</dl>
    ${whyDue(tenant)}
    <${TenantSessions} pool=${name} tenant=${tenant} />
  </section>`;
}

/** Why its share of the last minute is due, and what its weight alone would give it. */
function whyDue(tenant) {
  const reason = dueBy(tenant);
  if (reason === null) return null;
  const weight = tenant.by_weight?.[MINUTE];
  return html`<p class="dim">Its due of the last minute is ${due(reason)}.${weight == null || reason === "weight" ? "" : ` By its weight alone, were all to ask for all there is, it would be ${percent(weight)}.`}</p>`;
}
