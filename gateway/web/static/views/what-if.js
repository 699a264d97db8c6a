// What if: the recorded trace of the last hour, played again under another order or other weights, beside what happened.

import { useState } from "preact/hooks";
import { get, post } from "../api.js";
import { may } from "../session.js";
import { attempt, html, Table, TenantLink, useLive, usePolled } from "../ui.js";
import { count, decimal, NONE, percent, seconds, short } from "../words.js";

const POLICIES = ["", "vtc", "lcf", "drr", "fifo", "slack", "dlpm", "equinox", "justitia"]; // policies/fairness
const POLL_MS = 700;
const shown = { id: null }; // the last one of this tab, also after a look at another view

export function WhatIf() {
  const [id, setId] = useState(shown.id);
  const begun = (next) => {
    shown.id = next;
    setId(next);
  };
  return html`<h1>What if <small class="dim">the calls of the last hour, played again in simulation</small></h1>
    ${may("operator") ? html`<${Ask} begun=${begun} />` : html`<p>To ask this, the role operator is needed.</p>`}
    ${id === null ? null : html`<${Answer} key=${id} id=${id} />`}`;
}

function Ask({ begun }) {
  const { document: state } = useLive();
  const [policy, setPolicy] = useState("");
  const [weights, setWeights] = useState([["", ""]]);
  const [minutes, setMinutes] = useState("60");
  const [isBusy, setBusy] = useState(false);
  const tenants = [...new Set(Object.values(state?.pools || {}).flatMap((pool) => Object.keys(pool.tenants || {})))].sort();
  const set = (at, part, value) => {
    const next = weights.map((each, index) => (index === at ? (part === 0 ? [value, each[1]] : [each[0], value]) : each));
    setWeights(next.at(-1)[0] && next.at(-1)[1] ? [...next, ["", ""]] : next);
  };
  const submit = async (event) => {
    event.preventDefault();
    const chosen = Object.fromEntries(weights.filter(([id, weight]) => id && weight).map(([id, weight]) => [id, Number(weight)]));
    setBusy(true);
    const made = await attempt(() => post("/what-ifs", {
      ...(policy ? { policy } : {}), ...(Object.keys(chosen).length ? { weights: chosen } : {}), minutes: Number(minutes),
    }));
    setBusy(false);
    if (made) begun(made.body.id);
  };
  return html`<form class="ask" onSubmit=${submit}>
    <label>Order <select value=${policy} onChange=${(event) => setPolicy(event.target.value)}>${POLICIES.map((each) => html`<option key=${each} value=${each}>${each || "as it is"}</option>`)}</select></label>
    <fieldset><legend>Weights</legend>
      ${weights.map(([id, weight], at) => html`<span class="weight" key=${at}>
        <input list="tenants" aria-label=${`Tenant ${at + 1}`} value=${id} placeholder="tenant" onInput=${(event) => set(at, 0, event.target.value)} />
        <input type="number" aria-label=${`Weight of tenant ${at + 1}`} value=${weight} min="0.000001" max="1000000" step="any" placeholder="weight" onInput=${(event) => set(at, 1, event.target.value)} /></span>`)}
      <datalist id="tenants">${tenants.map((each) => html`<option key=${each} value=${each}></option>`)}</datalist>
    </fieldset>
    <label>Of the last <input type="number" value=${minutes} min="1" max="60" required onInput=${(event) => setMinutes(event.target.value)} /> minutes</label>
    <button class="primary" disabled=${isBusy}>Play it</button>
  </form>`;
}

function Answer({ id }) {
  const [isOver, setOver] = useState(false);
  const [answer] = usePolled(async (signal) => {
    const { body } = await get(`/what-ifs/${encodeURIComponent(id)}`, { signal });
    if (body.state !== "running") setOver(true);
    return body;
  }, [id, isOver], isOver ? 0 : POLL_MS);
  const each = answer.value;
  if (answer.error) return html`<p class="bad" role="alert">${answer.error.message}</p>`;
  if (each === null) return html`<p class="dim">Asking…</p>`;
  if (each.state === "failed") return html`<p class="bad" role="alert">${each.error}</p>`;
  if (each.state === "running") {
    return html`<p role="status">It is played… <progress max="1" value=${each.progress ?? undefined}>${percent(each.progress)}</progress></p>`;
  }
  return html`<${Comparison} answer=${each} />`;
}

const FIGURES = [
  ["Requests", (run) => count(run.requests)],
  ["Served", (run) => count(run.served)],
  ["Tokens per second", (run) => short(run.throughput_tokens_per_s)],
  ["TTFT, median", (run) => seconds(run.ttft_p50_s)],
  ["TTFT, 99th percentile", (run) => seconds(run.ttft_p99_s)],
  ["Jain's index", (run) => decimal(run.jain)],
  ["Largest service gap / its bound", (run) => (run.difference_max == null ? NONE : `${short(run.difference_max)} / ${short(run.difference_bound)}`)],
];
const RUNS = ["happened", "replayed", "instead"]; // in this order

/** What happened, the same calls simulated with the present settings, and with those that were asked. */
function Comparison({ answer }) {
  const runs = RUNS.filter((name) => answer[name]);
  const ids = [...new Set(runs.flatMap((name) => Object.keys(answer[name].tenants)))];
  const sums = Object.fromEntries(runs.map((name) => [name, total(answer[name].tenants)]));
  const rows = ids.map((id) => ({ id, runs: Object.fromEntries(runs.map((name) => [name, answer[name].tenants[id] || {}])) }));
  const columns = [
    { id: "id", label: "Tenant", value: (row) => row.id, cell: (row) => html`<${TenantLink} id=${row.id} />` },
    ...ofEach(runs, "share", "Share", (tenant, run) => (sums[run] ? (tenant.service || 0) / sums[run] : null), percent),
    ...ofEach(runs, "ttft", "TTFT median", (tenant) => tenant.ttft_p50_s, seconds),
    ...ofEach(runs, "late", "TTFT 99 %", (tenant) => tenant.ttft_p99_s, seconds),
  ];
  return html`<div class="verdict"><p><strong>Compare “instead” with “replayed”</strong>: both are simulated, one with what was asked and one with the present settings. Calls come when they came, so a weight changes how long they wait more than what is served.</p>
      <p>${trust(answer)}</p></div>
    <details><summary>What was simulated</summary><dl class="settings">${Object.entries(answer.setting || {}).map(
      ([name, value]) => html`<div class="setting" key=${name}><dt>${name}</dt><dd>${value}</dd></div>`,
    )}</dl></details>
    <h2>All together</h2>
    <div class="scroll narrow" role="region" aria-label="All together" tabindex="0"><table>
      <thead><tr><th scope="col">Figure</th>${runs.map((name) => html`<th key=${name} scope="col" class="number">${name}</th>`)}</tr></thead>
      <tbody>${FIGURES.map(([label, text]) => html`<tr key=${label}><th scope="row">${label}</th>
        ${runs.map((name) => html`<td key=${name} class=${`number ${name}`}>${text(answer[name])}</td>`)}</tr>`)}</tbody></table></div>
    <h2>By tenant</h2>
    <${Table} label="By tenant" columns=${columns} rows=${rows} keyOf=${(row) => row.id} sort=${{ id: "share-happened", down: true }} />`;
}

const NEAR = 1.5; // the most by which a median is still called near

/** How near the simulation of the present settings is to what was measured, and why it is not (docs/results/live.md). */
function trust({ happened, replayed }) {
  const [measured, simulated] = [happened?.ttft_p50_s, replayed?.ttft_p50_s];
  if (!measured || !simulated) return "How near the simulation is to what happened is not known: no first token was measured.";
  const said = `“replayed” has a median TTFT of ${seconds(simulated)}, and ${seconds(measured)} was measured`;
  if (Math.max(simulated / measured, measured / simulated) <= NEAR) return `${said}: the simulation is near what happened.`;
  const slower = 1 - (replayed.throughput_tokens_per_s || 0) / happened.throughput_tokens_per_s;
  const pace = Math.abs(slower) < 0.005 ? "" : `The simulated backends serve ${percent(Math.abs(slower))} ${slower > 0 ? "fewer" : "more"} tokens per second. `;
  return `${said}. ${pace}A real client that waits for its answer calls later where answers come later; here its calls come when they came, so waits grow beyond what they would be. Read which tenants gain and lose, not the seconds.`;
}

/** One figure of a tenant as a column for each run; the first says which figure it is. */
const ofEach = (runs, id, label, value, text) =>
  runs.map((run, at) => ({
    id: `${id}-${run}`,
    label: at === 0 ? `${label}: ${run}` : run,
    kind: "number",
    hide: run,
    value: (row) => value(row.runs[run], run),
    cell: (row) => text(value(row.runs[run], run)),
  }));

const total = (tenants) => Object.values(tenants).reduce((sum, each) => sum + (each.service || 0), 0);
