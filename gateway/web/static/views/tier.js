// One tier: what it gets beside what it is due, its settings, which an operator edits in place, and its tenants.

import { useState } from "preact/hooks";
import { get, path } from "../api.js";
import { mayChange } from "../session.js";
import { Changes } from "./changes.js";
import { History } from "./history.js";
import { entries, Tenants } from "./now.js";
import { defaultsOf, Settings } from "./settings.js";
import { Figure, html, ShareBar, useLive, usePolled } from "../ui.js";
import { count, decimal, NONE, percent, short } from "../words.js";

const WINDOWS = ["10 s", "1 min", "15 min"];

export function Tier({ id }) {
  const { document: state } = useLive();
  const [settings, again] = usePolled((signal) => readSettings(id, signal), [id], 10000);
  const pools = entries(state?.pools).filter((pool) => pool.tiers?.[id]);
  const [isNew, setNew] = useState(false);
  if (settings.value?.isStored === false && state !== null && pools.length === 0 && !isNew) {
    return html`<h1>${id} <small class="dim">tier</small></h1><p role="alert">No tier of this name has settings or tenants.</p>
      ${mayChange("tiers") ? html`<p><button onClick=${() => setNew(true)}>Give ${id} settings</button></p>` : null}`;
  }
  return html`<h1>${id} <small class="dim">tier</small></h1>
    ${settings.error ? html`<p class="bad" role="alert">${settings.error.message}</p>` : null}
    ${pools.map((pool) => html`<${InPool} key=${pool.id} pool=${pool} tier=${pool.tiers[id]} />`)}
    <${History} of=${`tier:${id}`} />
    ${settings.value ? html`<${Settings} kind="tiers" id=${id} settings=${settings.value} now=${pools.map((pool) => pool.tiers[id])} again=${again} />` : null}
    ${pools.map((pool) => html`<${Tenants} key=${pool.id} tenants=${entries(pool.tenants).filter((each) => each.tier === id)} />`)}
    <${Changes} kind="tiers" id=${id} settings=${settings.value} />`;
}

/** Its stored settings, or the defaults where it has none. */
async function readSettings(id, signal) {
  try {
    const { body, etag } = await get(path("tiers", id), { signal });
    return { fields: body, etag, isStored: true, origin: body.origin };
  } catch (error) {
    if (error.status !== 404) throw error;
    return { fields: defaultsOf("tiers"), etag: null, isStored: false, origin: null };
  }
}

function InPool({ pool, tier }) {
  const { requests = 0, met = 0 } = tier.attainment || {};
  return html`<section aria-label=${`In the pool ${pool.id}`}>
    <h2>Now <small class="dim">in the pool ${pool.id}</small></h2>
    <dl class="figures">
      <${Figure} label="requests queued" value=${count(tier.queued || 0)} />
      <${Figure} label="requests in flight" value=${count(tier.in_flight || 0)} />
      <${Figure} label="requests in time, since the start" value=${requests ? percent(met / requests) : NONE} note=${requests ? `of ${count(requests)} with a target` : "none had a target"} />
      <${Figure} label="service gap / bound" value=${tier.bound ? `${short(tier.gap)} / ${short(tier.bound)}` : NONE} tone=${tier.bound && tier.gap > tier.bound ? "bad" : ""}
        note=${tier.bound ? "service units over weight" : "not measured now"} />
      <${Figure} label="Jain's index" value=${decimal(tier.jain)} note="1 is even" />
    </dl>
    <dl class="shares">${WINDOWS.map((label, at) => html`<dt key=${`t${label}`}>Got / due, ${label}</dt>
      <dd key=${`d${label}`}><${ShareBar} got=${tier.share?.[at]} due=${tier.due?.[at]} waits=${tier.queued > 0} /></dd>`)}</dl>
  </section>`;
}
