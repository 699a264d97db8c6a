// One backend: what it is limited by, how fast it is, and what runs there.

import { get, path } from "../api.js";
import { Drain } from "./engines.js";
import { OWN_LIMITS } from "./hurt.js";
import { History } from "./history.js";
import { entries, externalLoad, Health } from "./now.js";
import { Changes } from "./changes.js";
import { Remove } from "./making.js";
import { PhaseLegend, Phases } from "./requests.js";
import { Settings } from "./settings.js";
import { Figure, html, link, Table, TenantLink, useLive, usePolled } from "../ui.js";
import { bound, count, decimal, NONE, percent, plural, seconds, short } from "../words.js";

const POLL_MS = 2000;
const LIMIT = 1000; // requests in flight that are looked through

export function Backend({ id }) {
  const { document: state } = useLive();
  const pools = entries(state?.pools).filter((pool) => pool.backends?.[id]);
  const [stored, again] = usePolled((signal) => readStored(id, signal), [id], POLL_MS);
  if (state === null) return html`<p class="dim" aria-busy="true">Waiting for the first second…</p>`;
  return html`<p><a href=${link("engines")}>All backends</a></p><div class="bar"><h1>${id} <small class="dim">backend</small></h1>
      <${Drain} backend=${stored.value?.fields} again=${again} look="" /></div>
    ${pools.length === 0 ? html`<p>There is no such backend in any pool${stored.value ? html`: <span class="bad">${stored.value.fields.trouble || stored.value.fields.state}</span>` : ""}.</p>` : null}
    ${pools.map((pool) => html`<${InPool} key=${pool.id} pool=${pool} backend=${{ ...pool.backends[id], id }} />`)}
    ${pools.length > 0 ? html`<${History} of=${`backend:${id}`} /><${InFlight} id=${id} />` : null}
    ${stored.value ? html`<${Settings} kind="backends" id=${id} settings=${{ ...stored.value, backend: pools[0]?.backends[id] }} now=${[]} again=${again} />
      <${Changes} kind="backends" id=${id} settings=${stored.value} />
      <${Remove} kind="backends" id=${id} settings=${stored.value} loses="It is drained first, and removed when its requests have ended." leads=${link("engines")} />` : null}`;
}

/** Its settings, where the file or the API has it; null: a discovery found it, or nothing knows it. */
async function readStored(id, signal) {
  try {
    const { body, etag } = await get(path("backends", id), { signal });
    return { fields: body, etag, isStored: true, origin: body.origin };
  } catch (error) {
    if (error.status === 404) return null;
    throw error;
  }
}

// What the limit is: as told, or what the gateway has seen to run there so far.
export function slots(backend) {
  return { learnt: "slots, learnt from what ran there", assumed: "slots, assumed: it does not say how many it has" }[backend.size] ?? "slots";
}

function InPool({ pool, backend }) {
  return html`<section aria-label=${`In the pool ${pool.id}`}>
    <div class="verdict"><p><${Health} backend=${backend} />${backend.bound_by == null ? ": it takes more requests." : html`: it takes no more, because ${bound(backend.bound_by, backend.reserves)}.`}</p>
      <p>${restart(pool, backend)}</p>
      ${slower(backend)}</div>
    <h2>Now <small class="dim">in the pool ${pool.id}</small></h2>
    <dl class="figures">
      <${Figure} label="requests in flight" value=${`${count(backend.in_flight)} of ${count(backend.requests_limit)}`} note=${slots(backend)} />
      <${Figure} label="tokens reserved" value=${`${short(backend.tokens)} of ${short(backend.tokens_limit)}`} note="of its KV cache" />
      <${Figure} label="requests queued inside the engine" value=${count(backend.queued_there)} />
      <${Figure} label="load past this gateway" value=${externalLoad(backend)} />
      <${Figure} label="step, predicted now" value=${seconds(backend.step_s)} />
      <${Figure} label="step, measured" value=${seconds(backend.step_measured_s)} note="time per output token of one sequence" />
      ${backend.token_s == null ? null : html`<${Figure} label="time per output token, last minute" value=${seconds(backend.token_s)}
        note=${backend.slow_ratio == null ? "" : `${decimal(backend.slow_ratio)} times the pool's median`} />`}
      ${backend.full_ratio == null ? null : html`<${Figure} label="took no more, last minute" value=${percent(backend.full_ratio)} note="of the looks at which requests waited" />`}
      ${reserved(backend.reserves)}
    </dl></section>`;
}

/** Whether it may be restarted now, and what the others take meanwhile. */
function restart(pool, backend) {
  const running = backend.in_flight || 0;
  const others = entries(pool.backends).filter((each) => each.id !== backend.id && each.available && !each.draining);
  if (running === 0 && (backend.draining || !backend.available)) return html`<strong>It may be restarted:</strong> nothing runs there, and it gets no new requests.`;
  const ends = `${plural(running, "request")} ${running === 1 ? "runs" : "run"} there and ${running === 1 ? "ends" : "end"} before`;
  if (backend.draining) return html`<strong>It may be restarted soon:</strong> ${ends}; it gets no new ones.`;
  if (others.length === 0) return html`<strong>Do not restart it:</strong> no other backend of this pool is available, and every request would wait.`;
  const slots = others.reduce((sum, each) => sum + each.requests_limit, 0);
  const free = others.reduce((sum, each) => sum + Math.max(0, each.requests_limit - (each.in_flight || 0)), 0);
  const queued = entries(pool.tenants).filter((each) => !OWN_LIMITS.includes(each.waits)).reduce((sum, each) => sum + (each.queued || 0), 0); // a tenant's own limit stays
  const waits = queued > 0 || free < running;
  return html`<strong>To restart it, drain it first</strong>: ${ends}. Without it ${count(slots)} of ${count(slots + backend.requests_limit)} slots are left, ${count(free)} of them free now${waits
    ? html`<strong class="warn">, and ${queued > 0 ? `${plural(queued, "request")} ${queued === 1 ? "waits" : "wait"} already` : "more runs here"}: all would wait longer</strong>` : ", which is enough for what runs here"}.`;
}

/** Slots that are kept free for tiers. */
function reserved(reserves) {
  const kept = Object.entries(reserves || {});
  return kept.length === 0 ? null : html`<${Figure} label="slots reserved for tiers" value=${kept.map(([tier, slots]) => `${tier} ${count(slots)}`).join(", ")} />`;
}

const FAR = 1.5; // a prediction of a step that is off by this is said

function slower({ step_s: predicted, step_measured_s: measured, step_error_ratio: usual }) {
  const ratio = usual ?? (predicted && measured ? predicted / measured : 1);
  if (Math.max(ratio, 1 / ratio) < FAR) return null;
  return html`<p>Its step is predicted ${decimal(ratio)} times as long as it is measured${usual == null ? "" : " (last minute)"}: it may get ${ratio > 1 ? "fewer" : "more"} requests than targets allow.</p>`;
}

function InFlight({ id }) {
  const [answer] = usePolled(async (signal) => {
    const { body } = await get(`/requests?state=running&limit=${LIMIT}`, { signal });
    return body.items.filter((each) => each.backend === id);
  }, [id], POLL_MS);
  if (answer.value === null) return null;
  const scale = Math.max(0.001, ...answer.value.map((each) => each.age_s || 0));
  const columns = [
    { id: "id", label: "Request", cell: (each) => html`<a class="name" href=${link("request", each.id)}>${each.id}</a>` },
    { id: "tenant", label: "Tenant", value: (each) => each.tenant, cell: (each) => html`<${TenantLink} id=${each.tenant} />` },
    { id: "age", label: "Age", kind: "number", value: (each) => each.age_s, cell: (each) => seconds(each.age_s) },
    { id: "phases", label: "Time by phase", kind: "phase-column", bare: true, cell: (each) => html`<${Phases} phases=${each.phases} scale=${scale} />` },
    { id: "prompt", label: "Prompt", card: "Prompt tokens", note: "tokens", kind: "number", value: (each) => each.prompt_tokens, cell: (each) => count(each.prompt_tokens) },
    { id: "output", label: "Output", card: "Output tokens", note: "tokens / at most", kind: "number", value: (each) => each.output_tokens,
      cell: (each) => html`${count(each.output_tokens)} <span class="dim">/ ${each.output_tokens_max == null ? NONE : count(each.output_tokens_max)}</span>` },
  ];
  return html`<h2>Requests in flight there <small class="dim">${count(answer.value.length)}</small></h2><${PhaseLegend} />
    <${Table} label="Requests in flight there" columns=${columns} rows=${answer.value} keyOf=${(each) => each.id} sort=${{ id: "age", down: true }} empty="None at this moment." />`;
}
