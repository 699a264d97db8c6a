// Requests that wait, run or have ended, longest first, each with why it waits; one of them by its x-request-id.

import { useState } from "preact/hooks";
import { get, path, remove } from "../api.js";
import { may } from "../session.js";
import { attempt, Figure, html, link, notify, Table, TenantLink, usePolled } from "../ui.js";
import { count, NONE, seconds, time, wait } from "../words.js";

const STATES = [["queued", "Waiting"], ["running", "Running"], ["ended", "Ended"]];
const POLL_MS = 1000;
const LIMIT = 200;

export function Requests({ query }) {
  const state = STATES.some(([id]) => id === query.get("state")) ? query.get("state") : "queued";
  const tenant = query.get("tenant") || "";
  const [answer, again] = usePolled(async (signal) => {
    const asked = new URLSearchParams({ state, limit: String(LIMIT), ...(tenant ? { tenant } : {}) });
    return (await get(`/requests?${asked}`, { signal })).body;
  }, [state, tenant], POLL_MS);
  const address = (changes) => {
    const next = new URLSearchParams(Object.entries({ state, tenant, ...changes }).filter(([, value]) => value));
    return `${link("requests")}?${next}`;
  };
  return html`<h1>Requests</h1>
    <div class="bar">
      <nav class="tabs" aria-label="State of requests">${STATES.map(([id, label]) => html`<a key=${id} class="chip" href=${address({ state: id })} aria-current=${id === state ? "page" : undefined}>${label}</a>`)}</nav>
      <${Find} />
      <form onSubmit=${(event) => { event.preventDefault(); location.hash = address({ tenant: new FormData(event.target).get("tenant").trim() }); }}>
        <label>Tenant <input type="search" name="tenant" value=${tenant} placeholder="all" /></label> <button>Show</button></form>
    </div>
    ${answer.error ? html`<p class="bad" role="alert">${answer.error.message}</p>` : null}
    ${answer.value ? html`<${List} state=${state} items=${answer.value.items} again=${again} />` : answer.error ? null : html`<p class="dim" aria-busy="true">Asking…</p>`}
    ${answer.value?.next_cursor ? html`<p class="dim">These are the first ${count(LIMIT)}.</p>` : null}`;
}

function Find() {
  const [id, setId] = useState("");
  const submit = (event) => {
    event.preventDefault();
    if (id.trim()) location.hash = link("request", id.trim());
  };
  return html`<form onSubmit=${submit}><label>Find by x-request-id <input type="search" name="id" value=${id} onInput=${(event) => setId(event.target.value)} /></label> <button>Find</button></form>`;
}

/** Its time so far by phase: in the queue, reading its prompt, writing. */
export function Phases({ phases, scale }) {
  const parts = [["queue", phases?.queue_s], ["prefill", phases?.prefill_s], ["decode", phases?.decode_s]].filter(([, value]) => value != null);
  const total = parts.reduce((sum, [, value]) => sum + value, 0);
  const said = parts.map(([name, value]) => `${name} ${seconds(value)}`).join(", ");
  return html`<div class="phases" title=${said}><div class="track" aria-hidden="true">${parts.map(
    ([name, value]) => html`<div key=${name} class=${name} style=${{ width: `${(100 * value) / (scale || total || 1)}%` }}></div>`,
  )}</div><span>${said || NONE}</span></div>`;
}

const total = (each) => (each.phases?.queue_s || 0) + (each.phases?.prefill_s || 0) + (each.phases?.decode_s || 0);

function why(each) {
  if (each.waits) {
    return html`${each.waits.text || wait(each.waits.reason)}${each.waits.start_s == null ? null : html` <span class="dim nowrap">Starts in about ${seconds(each.waits.start_s)}.</span>`}`;
  }
  return each.outcome || (each.state === "queued" ? "It is being sent." : NONE);
}

async function cancel(id, again) {
  const isDone = await attempt(async () => {
    await remove(path("requests", id));
    return true;
  });
  if (isDone) notify(`${id} is cancelled.`);
  again();
}

function CancelButton({ id, again, look = "quiet" }) {
  const [isSure, setSure] = useState(false);
  if (!isSure) return html`<button class=${look} aria-label=${`Cancel ${id}`} onClick=${() => setSure(true)}>Cancel</button>`;
  return html`<button class="danger" aria-label=${`Really cancel ${id}`} onClick=${() => cancel(id, again)}>Really cancel</button>
    <button class="quiet" onClick=${() => setSure(false)}>Keep</button>`;
}

function List({ state, items, again }) {
  const scale = Math.max(0.001, ...items.map(total));
  const columns = [
    { id: "id", label: "Request", cell: (each) => html`<a class="name" href=${link("request", each.id)}>${each.id}</a>` },
    { id: "tenant", label: "Tenant", value: (each) => each.tenant, cell: (each) => html`<${TenantLink} id=${each.tenant} />` },
    { id: "model", label: "Model", hide: "middle", value: (each) => each.model, cell: (each) => html`<span class="name">${each.model}</span>` },
    { id: "age", label: state === "ended" ? "Took" : "Age", kind: "number", value: (each) => each.age_s, cell: (each) => seconds(each.age_s) },
    ...(state === "running" ? [] : [{ id: "why", label: state === "ended" ? "Outcome" : "Why it waits", kind: "text", cell: why }]),
    { id: "phases", label: "Time by phase", cell: (each) => html`<${Phases} phases=${each.phases} scale=${scale} />` },
    ...(state === "queued" ? [] : [{ id: "backend", label: "Backend", value: (each) => each.backend, cell: (each) => each.backend ?? NONE }]),
    { id: "prompt", label: "Prompt", kind: "number", title: "Tokens", value: (each) => each.prompt_tokens, cell: (each) => count(each.prompt_tokens) },
    { id: "output", label: "Output", kind: "number", title: "Tokens so far, of at most", value: (each) => each.output_tokens, cell: (each) => html`${count(each.output_tokens)} <span class="dim">/ ${count(each.output_tokens_max)}</span>` },
    ...(may("operator") && state !== "ended" ? [{ id: "cancel", label: html`<span class="only-read">Cancel</span>`, cell: (each) => html`<${CancelButton} key=${each.id} id=${each.id} again=${again} />` }] : []),
  ];
  return html`<${Table} key=${state} label="Requests" columns=${columns} rows=${items} keyOf=${(each) => each.id} sort=${{}} size=${50} empty="There are none." />`;
}

export function OneRequest({ id }) {
  const [answer, again] = usePolled(async (signal) => (await get(path("requests", id), { signal })).body, [id], POLL_MS);
  const each = answer.value;
  const isUnknown = answer.error?.status === 404;
  return html`<p><a href=${link("requests")}>All requests</a></p><h1>${id} <small class="dim">request</small></h1>
    ${answer.error && !(isUnknown && each) ? html`<p class="bad" role="alert">${isUnknown ? "There is no such request: it never came here, or is older than the last 10,000 that ended." : answer.error.message}</p>` : null}
    ${each ? html`<${Details} each=${each} again=${again} />` : null}`;
}

function Details({ each, again }) {
  const isOver = each.state === "ended";
  return html`
    ${each.waits ? html`<div class="verdict"><p><strong>It waits: ${each.waits.text || wait(each.waits.reason)}</strong></p>
      <p>${each.waits.ahead ? html`The next turn is that of <${TenantLink} id=${each.waits.ahead} />. ` : null}
      ${each.waits.start_s == null ? "When it starts cannot be predicted." : `It should start in about ${seconds(each.waits.start_s)}.`}</p></div>` : null}
    <dl class="figures">
      <${Figure} label="state" value=${each.state} note=${[each.outcome, each.status].filter((value) => value != null).join(", ")} />
      <${Figure} label="tenant" value=${html`<${TenantLink} id=${each.tenant} />`} />
      <${Figure} label="backend" value=${each.backend ?? NONE} note=${`process ${each.process}`} />
      <${Figure} label=${isOver ? "took" : "age"} value=${seconds(each.age_s)} note=${`arrived ${time(each.arrived_at)}`} />
      <${Figure} label="prompt tokens" value=${count(each.prompt_tokens)} />
      <${Figure} label="output tokens" value=${count(each.output_tokens)} note=${`at most ${count(each.output_tokens_max)}`} />
      <${Figure} label="slack" value=${seconds(each.slack_s)} note=${each.slack_s == null ? "no envelope" : "until its next token is due"} />
    </dl>
    <${Phases} phases=${each.phases} />
    <p class="dim">${each.endpoint} · model ${each.model} · pool ${each.pool}</p>
    ${may("operator") && !isOver ? html`<p><${CancelButton} id=${each.id} again=${again} look="danger" /></p>` : null}`;
}

