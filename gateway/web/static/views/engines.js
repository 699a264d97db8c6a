// Engines and replicas: all backends with their limits, drained and taken back, added and removed, and who leads.

import { all, patch, path } from "../api.js";
import { LINES } from "../plot.js";
import { mayChange } from "../session.js";
import { Compared, KV, SLOTS } from "./history.js";
import { Make } from "./making.js";
import { entries, Health, SLOWER } from "./now.js";
import { WorkingSets } from "./sessions.js";
import { attempt, Figure, html, link, Meter, notify, Table, useLive, usePolled } from "../ui.js";
import { bound, count, NONE, seconds, short, time } from "../words.js";

const POLL_MS = 5000;
const FROM = { given: "given", learnt: "learnt from what ran there", assumed: "assumed: it does not say" };

export function Engines() {
  const { document: state } = useLive();
  const [answer, again] = usePolled((signal) => all("/backends", { signal }), [], POLL_MS);
  const kept = new Map((answer.value ?? []).map((each) => [each.id, each]));
  const live = new Map(entries(state?.pools).flatMap((pool) => entries(pool.backends).map((each) => [each.id, { ...each, pool: pool.id }])));
  const rows = [...new Set([...kept.keys(), ...live.keys()])].map((id) => ({ id, stored: kept.get(id) ?? null, live: live.get(id) ?? null }));
  const columns = [
    { id: "id", label: "Backend", value: (each) => each.id, cell: (each) => html`<a class="name" href=${link("backend", each.id)}>${each.id}</a>` },
    { id: "health", label: "Health", kind: "text", bare: true, value: (each) => each.live?.available ?? false, cell: (each) => (each.live ? html`<${Health} backend=${each.live} />` : html`<span class="bad">${each.stored.state}</span> <span class="dim">${each.stored.trouble ?? ""}</span>`) },
    { id: "pool", label: "Pool", value: (each) => each.live?.pool ?? each.stored?.pool, cell: (each) => html`<span class="name">${each.live?.pool ?? each.stored?.pool ?? NONE}</span>` },
    { id: "origin", label: "Known by", value: (each) => each.stored?.origin ?? "discovery", cell: (each) => origin(each.stored) },
    { id: "slots", label: "Slots", kind: "meter-column", note: "requests in flight, of its limit", value: (each) => each.live?.requests_limit,
      cell: (each) => (each.live ? html`<${Meter} value=${each.live.in_flight} limit=${each.live.requests_limit} />` : NONE) },
    { id: "size", label: "The limit is", value: (each) => each.live?.size, cell: (each) => (each.live ? FROM[each.live.size] ?? each.live.size : NONE) },
    { id: "kv", label: "KV tokens", kind: "meter-column", note: "reserved, of its KV cache", value: (each) => each.live?.tokens,
      cell: (each) => (each.live ? html`<${Meter} value=${each.live.tokens} limit=${each.live.tokens_limit} text=${`${short(each.live.tokens)} of ${short(each.live.tokens_limit)}`} />` : NONE) },
    { id: "token", label: "Time per output token", kind: "number", note: "of one sequence, last minute", value: (each) => each.live?.token_s, cell: (each) => html`<span class=${(each.live?.slow_ratio ?? 1) < SLOWER ? "" : "warn"}>${seconds(each.live?.token_s)}</span>` },
    { id: "bound", label: "Takes no more, because", kind: "wraps", bare: true, value: (each) => each.live?.bound_by, cell: (each) => (each.live ? bound(each.live.bound_by, each.live.reserves) : NONE) },
    ...(mayChange("backends") ? [{ id: "drain", label: html`<span class="only-read">Drain</span>`, cell: (each) => html`<${Drain} backend=${each.stored} again=${again} />` }] : []),
  ];
  return html`<h1>Engines <small class="dim">${count(rows.length)} backends, and the processes in front of them</small></h1>
    ${answer.error ? html`<p class="bad" role="alert">${answer.error.message}</p>` : null}
    <${Replicas} cluster=${state?.cluster} />
    <${Compared} of=${rows.filter((each) => each.live).sort((a, b) => oddness(b.live) - oddness(a.live) || a.id.localeCompare(b.id)).map((each) => `backend:${each.id}`)} charts=${[SLOTS, KV]}
      which=${rows.length > LINES.length ? "of those that are not available, and the slowest, " : ""} />
    <h2>Backends</h2>
    <${Table} label="Backends" columns=${columns} rows=${rows} keyOf=${(each) => each.id} sort=${{ id: "id", down: false }} size=${32} empty="None is known. Add one here, or name it in the configuration file." />
    <${Make} kind="backends" view="backend" title="Add a backend" inputs=${[
      { name: "id", label: "Name", placeholder: "vllm-2" },
      { name: "url", label: "URL", placeholder: "http://vllm-2:8000" },
      { name: "requests_running_max", label: "Its --max-num-seqs", placeholder: "not known", value: (text) => (text ? Number(text) : undefined), isOptional: true },
    ]} />
    <${WorkingSets} pools=${state?.pools} />
    <p class="dim">A backend that was added here is removed on its own view. One of the file is removed there, and one of a discovery by its Service.</p>`;
}

/** Those that are not available come first, then the slowest. */
const oddness = (live) => (live.available ? (live.slow_ratio ?? 0) : Number.MAX_VALUE);

const origin = (stored) => (stored === null ? "discovery" : { declared: "the file", admin: "this API", overridden: "the file, changed here" }[stored.origin]);

/** Takes a backend out of rotation, or back. What runs there goes on. */
export function Drain({ backend, again, look = "quiet" }) {
  if (backend === null || backend === undefined || !mayChange("backends")) return null;
  const set = async (draining) => {
    const isDone = await attempt(() => patch(path("backends", backend.id), { draining }));
    again();
    if (isDone) notify(draining ? `${backend.id} gets no new requests. What runs there goes on.` : `${backend.id} gets requests again.`, { undo: () => set(!draining) });
  };
  const label = backend.draining ? "Take back" : "Drain";
  return html`<button class=${look} aria-label=${`${label} ${backend.id}`} onClick=${() => set(!backend.draining)}>${label}</button>`;
}

/** The processes of this order, and the one that leads. */
function Replicas({ cluster }) {
  const members = cluster?.members ?? [];
  if (members.length < 2) return html`<p class="dim">One process serves: it decides for itself.</p>`;
  const columns = [
    { id: "name", label: "Process", value: (each) => each.name, cell: (each) => html`<span class="name">${each.name}</span>` },
    { id: "role", label: "Role", value: (each) => each.role, cell: (each) => (each.role === "leader" ? html`<strong class="ok">leader</strong>` : each.role === "follower" ? "follower" : html`<span class="warn">${each.role}</span>`) },
    { id: "address", label: "Address", cell: (each) => html`<span class="name">${each.address ?? NONE}</span>` },
    { id: "since", label: "Since", value: (each) => each.since, cell: (each) => time(each.since) },
  ];
  return html`<h2>Processes of one order</h2>
    <dl class="figures"><${Figure} label="leader" value=${html`<span class="name">${cluster.leader ?? "none"}</span>`} tone=${cluster.leader ? "" : "bad"} />
      <${Figure} label="leaderships so far" value=${count(cluster.epoch)} />
      <${Figure} label="round trip to the leader" value=${seconds(cluster.round_trip_s)} note=${cluster.round_trip_s == null ? "this is the leader" : ""} /></dl>
    <${Table} label="Processes" columns=${columns} rows=${members} keyOf=${(each) => each.name} sort=${{ id: "name", down: false }} />`;
}
