// Requests that wait, run or have ended, longest first, each with why it waits or how it ended; one of them by its
// x-request-id.

import { useState } from "preact/hooks";
import { get, path, remove } from "../api.js";
import { may } from "../session.js";
import { Compared, QUEUED, WAIT } from "./history.js";
import { entries } from "./now.js";
import { attempt, Figure, html, link, notify, Table, TenantLink, useLive, usePolled } from "../ui.js";
import { clock, count, money, NONE, outcome, OUTCOME_NAMES, seconds, time, wait } from "../words.js";

const STATES = [["queued", "Queued"], ["running", "In flight"], ["ended", "Ended"]];
const POLL_MS = 1000;
const LIMIT = 200;
const FILTERS = [
  { id: "tenant", label: "Tenant" },
  { id: "model", label: "Model" },
  { id: "backend", label: "Backend" },
  { id: "key", label: "Key" },
  { id: "outcome", label: "Outcome", of: "ended", options: OUTCOME_NAMES },
];

export function Requests({ query }) {
  const { document: now } = useLive();
  const state = STATES.some(([id]) => id === query.get("state")) ? query.get("state") : "queued";
  const filters = Object.fromEntries(FILTERS.map(({ id }) => [id, query.get(id) || ""]));
  const asked = String(new URLSearchParams(Object.entries({ state, limit: LIMIT, ...filters }).filter(([id, value]) => value && (id !== "outcome" || state === "ended"))));
  const [answer, again] = usePolled(async (signal) => (await get(`/requests?${asked}`, { signal })).body, [asked], POLL_MS);
  const address = (changes) => {
    const next = new URLSearchParams(Object.entries({ state, ...filters, ...changes }).filter(([, value]) => value));
    return `${link("requests")}?${next}`;
  };
  const show = (event) => {
    event.preventDefault();
    location.hash = address(Object.fromEntries([...new FormData(event.target)].map(([id, value]) => [id, value.trim()])));
  };
  const isFiltered = Object.values(filters).some(Boolean);
  return html`<h1>Requests</h1>
    <${Compared} of=${entries(now?.pools).sort((a, b) => (b.queued || 0) - (a.queued || 0)).map((each) => `pool:${each.id}`)} charts=${[QUEUED, WAIT]} which="by pool, " />
    <div class="bar">
      <nav class="tabs" aria-label="State of requests">${STATES.map(([id, label]) => html`<a key=${id} class="chip" href=${address({ state: id })} aria-current=${id === state ? "page" : undefined}>${label}</a>`)}</nav>
      <${Find} />
    </div>
    <form class="controls" key=${asked} aria-label="Filters" onSubmit=${show}>
      ${FILTERS.filter(({ of }) => !of || of === state).map(({ id, label, options }) => html`<label key=${id}>${label} ${options
        ? html`<select name=${id}><option value="">all</option>${options.map(([value, text]) => html`<option key=${value} value=${value} selected=${value === filters[id]}>${text}</option>`)}</select>`
        : html`<input type="search" name=${id} defaultValue=${filters[id]} placeholder="all" />`}</label>`)}
      <button>Show</button>${isFiltered ? html` <a href=${`${link("requests")}?state=${state}`}>Show all</a>` : null}
    </form>
    ${answer.error ? html`<p class="bad" role="alert">${answer.error.message}</p>` : null}
    ${answer.value ? html`<${List} state=${state} isFiltered=${isFiltered} items=${answer.value.items} again=${again} />` : answer.error ? null : html`<p class="dim" aria-busy="true">Asking…</p>`}
    ${answer.value?.next_cursor ? html`<p class="dim">These are the first ${count(LIMIT)}.</p>` : null}`;
}

const EMPTY = {
  queued: "No request waits: those that came have a slot of a backend, or have ended.",
  running: "No request is in flight. Try it sends one.",
  ended: "No request has ended since the gateway started. The last 10,000 are kept.",
};

function Find() {
  const [id, setId] = useState("");
  const submit = (event) => {
    event.preventDefault();
    if (id.trim()) location.hash = link("request", id.trim());
  };
  return html`<form onSubmit=${submit}><label>Find by x-request-id <input type="search" name="id" value=${id} onInput=${(event) => setId(event.target.value)} /></label> <button>Find</button></form>`;
}

// The time in an engine's own queue is not told apart from that of its prefill: an answer shows its first token alone.
const PHASES = [["queue", "queue", "in the queue here"], ["prefill", "first token", "inside the engine, until its first token: its wait there and its prefill"], ["decode", "decode", "writing"]];

/** Its time so far by phase, as a bar of which `scale` seconds are the whole. */
export function Phases({ phases, scale }) {
  const parts = PHASES.map(([name, label]) => [name, phases?.[`${name}_s`], label]).filter(([, value]) => value != null);
  const whole = scale || parts.reduce((sum, [, value]) => sum + value, 0) || 1;
  return html`<div class="phases"><div class="track" aria-hidden="true">${parts.map(
    ([name, value]) => html`<div key=${name} class=${name} style=${{ width: `${(100 * value) / whole}%` }}></div>`,
  )}</div><span>${parts.map(([, value, label]) => `${label} ${seconds(value)}`).join(", ") || NONE}</span></div>`;
}

export const PhaseLegend = () => html`<p class="legend dim">${PHASES.map(([name, label, meaning]) => html`<span key=${name}><i class=${name} aria-hidden="true"></i>${label}: ${meaning}</span>`)}</p>`;

const total = (each) => (each.phases?.queue_s || 0) + (each.phases?.prefill_s || 0) + (each.phases?.decode_s || 0);

/** Why it waits, and what is known of its start: two lines, also where one is empty, so that rows keep their height. */
function Why({ each }) {
  if (!each.waits) return each.outcome ? outcome(each.outcome) : each.state === "queued" ? "It is being sent." : NONE;
  return html`<div class="why"><span><${Reason} each=${each} /></span><span class="dim">${startOf(each.waits) || "\u00a0"}</span></div>`;
}

/** The reason as a sentence; a limit of the tenant itself leads to its setting. */
function Reason({ each }) {
  const text = each.waits.text || wait(each.waits.reason);
  return each.waits.reason === "tenant_limit" ? html`<a href=${`${link("tenant", each.tenant)}?setting=in_flight_max`}>${text}</a>` : text;
}

function startOf({ reason, ahead_requests: ahead, start_s: startS }) {
  const place = ahead > 0 && reason !== "own_queue" ? `${count(ahead)} of its own tenant ahead. ` : "";
  return startS == null ? place : `${place}Starts in about ${seconds(startS)}.`;
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
  if (!isSure) return html`<button class=${look} aria-label=${`Cancel this request, ${id}`} onClick=${() => setSure(true)}>Cancel this request</button>`;
  return html`<button class="danger" aria-label=${`Really cancel ${id}`} onClick=${() => cancel(id, again)}>Really cancel</button>
    <button class="quiet" onClick=${() => setSure(false)}>Keep it</button>`;
}

function List({ state, isFiltered, items, again }) {
  const scale = Math.max(0.001, ...items.map(total));
  const dearest = Math.max(0, ...items.map((each) => Number(each.cost || 0)));
  const currency = items.find((each) => each.currency)?.currency;
  const columns = [
    { id: "id", label: "Request", cell: (each) => html`<a class="name" href=${link("request", each.id)}>${each.id}</a>` },
    { id: "tenant", label: "Tenant", value: (each) => each.tenant, cell: (each) => html`<${TenantLink} id=${each.tenant} />` },
    ...(state === "running" ? [] : [{ id: "why", label: state === "ended" ? "Outcome" : "Why it waits", kind: "text", lead: state === "queued", bare: state === "queued", cell: (each) => html`<${Why} each=${each} />` }]),
    ...(state === "ended" ? [{ id: "ended", label: "Ended", value: (each) => -each.ended_at, cell: (each) => html`<span class="name" title=${time(each.ended_at)}>${clock(each.ended_at)}</span>` }] : []),
    { id: "age", label: state === "ended" ? "Took" : "Age", kind: "number", value: (each) => each.age_s, cell: (each) => seconds(each.age_s) },
    { id: "phases", label: "Time by phase", kind: "phase-column", bare: true, cell: (each) => html`<${Phases} phases=${each.phases} scale=${scale} />` },
    ...(state === "queued" ? [] : [{ id: "backend", label: "Backend", value: (each) => each.backend, cell: (each) => (each.backend == null ? NONE : html`<a class="name" href=${link("backend", each.backend)}>${each.backend}</a>`) }]),
    { id: "model", label: "Model", hide: "wide", value: (each) => each.model, cell: (each) => html`<span class="name">${each.model}</span>` },
    { id: "prompt", label: "Prompt", hide: state === "ended" ? "roomy" : "", card: "Prompt tokens", note: "tokens", kind: "number", value: (each) => each.prompt_tokens, cell: (each) => count(each.prompt_tokens) },
    { id: "output", label: "Output", card: "Output tokens", note: "tokens / at most", kind: "number", value: (each) => each.output_tokens, cell: (each) => html`${count(each.output_tokens)} <span class="dim">/ ${count(each.output_tokens_max)}</span>` },
    ...(state === "ended" && currency ? [{ id: "cost", label: "Cost", note: currency, kind: "number", value: (each) => Number(each.cost || 0), cell: (each) => money(each.cost, dearest) }] : []),
    ...(may("operator") && state !== "ended" ? [{ id: "cancel", label: html`<span class="only-read">Cancel</span>`, cell: (each) => html`<${CancelButton} key=${each.id} id=${each.id} again=${again} />` }] : []),
  ];
  return html`<${PhaseLegend} />
    <${Table} key=${state} label="Requests" columns=${columns} rows=${items} keyOf=${(each) => each.id} sort=${{}} size=${50} empty=${isFiltered ? "None is like that." : EMPTY[state]} />`;
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
  const { document: state } = useLive();
  const isOneOfMany = (state?.cluster?.members || []).length > 1;
  return html`
    ${each.waits ? html`<div class="verdict waits"><p><strong>It waits: <${Reason} each=${each} /></strong></p><p>${turn(each.waits)}</p></div>` : null}
    <dl class="figures">
      <${Figure} label="state" value=${each.state === "running" ? "in flight" : each.state} note=${each.outcome == null ? "" : `${outcome(each.outcome)}; status ${each.status}`} />
      <${Figure} label="tenant" value=${html`<${TenantLink} id=${each.tenant} />`} />
      ${each.backend == null ? null : html`<${Figure} label="backend" value=${html`<a class="name" href=${link("backend", each.backend)}>${each.backend}</a>`} />`}
      <${Figure} label=${isOver ? "took" : "age"} value=${seconds(each.age_s)} note=${`arrived ${time(each.arrived_at)}`} />
      <${Figure} label="prompt tokens" value=${count(each.prompt_tokens)} />
      <${Figure} label="output tokens" value=${count(each.output_tokens)} note=${`at most ${count(each.output_tokens_max)}`} />
      ${each.cost == null ? null : html`<${Figure} label="cost" value=${`${money(each.cost, Number(each.cost))} ${each.currency}`} />`}
      ${each.slack_s == null ? null : html`<${Figure} label="slack" value=${seconds(Math.abs(each.slack_s))} tone=${each.slack_s < 0 ? "warn" : ""}
        note=${each.slack_s < 0 ? "late: its next token was due before" : "left until its next token is due by its target"} />`}
    </dl>
    <${PhaseLegend} />
    <${Phases} phases=${each.phases} />
    <p class="dim">${isOver ? `Ended ${time(each.ended_at)}. ` : ""}This page's address is a permanent link to it, while it is among the last 10,000 that ended.
      ${each.trace_id ? html` Its trace: <code class="name">${each.trace_id}</code>.` : null}${each.key ? html` Its key: <span class="name">${each.key}</span>.` : null}</p>
    <p class="dim">${each.endpoint} · model ${each.model} · pool ${each.pool}${isOneOfMany ? ` · accepted by the process ${each.process}` : ""}</p>
    ${may("operator") && !isOver ? html`<p><${CancelButton} id=${each.id} again=${again} look="danger" /></p>` : null}`;
}

/** Its place and its start; always one line, so that what is below it does not move. */
function turn(waits) {
  const { ahead_requests: before, ahead, start_s: startS } = waits;
  const place = before == null ? "" : before === 0 ? "None of its own tenant is ahead. " : `${count(before)} of its own tenant ahead. `;
  return html`${place}${startS == null ? "When it starts cannot be predicted." : html`It should start in about <strong>${seconds(startS)}</strong>.`}
    ${ahead ? html`${" "}<span class="dim">The next turn is that of <${TenantLink} id=${ahead} />.</span>` : null}`;
}
