// What if: the recorded calls of the last minutes, played again under another order, with other settings or with more or fewer
// engines, beside what happened.

import { useState } from "preact/hooks";
import { all, get, path, post, remove } from "../api.js";
import { FIELDS } from "../fields.js";
import { may } from "../session.js";
import { attempt, html, Table, TenantLink, useLive, usePolled } from "../ui.js";
import { count, decimal, listed, NONE, order, ORDER_NAMES, percent, plural, seconds, short } from "../words.js";
import { SessionFields, sessionFigures, sessionsAsked, sessionsSaid } from "./what-if-sessions.js";

const MINUTES = 60; // as many as are recorded
const POLL_MS = 700;
const ENGINES_MAX = 1024; // of a simulation (gateway/steering/what_if/changes.py)
/** The kinds of entries that a simulation reads, and the settings that change it (gateway/admin/models/what_ifs.py). */
const LIMITS = ["in_flight_max", "requests_per_minute_max", "tokens_per_minute_max"];
const PLAYED = { tenants: ["weight", "tier", "group", ...LIMITS], groups: ["weight", "tier", ...LIMITS], tiers: ["weight", "reserve_ratio"], aliases: [] };
const ONE_OF = { tenants: "tenant", groups: "group", tiers: "tier", aliases: "alias" };
const EMPTY = { of: "", setting: "", value: "" };
const shown = { id: null, isOwn: true }; // the last one of this tab, also after a look at another view

export function WhatIf() {
  const [id, setId] = useState(shown.id);
  const [minutes, setMinutes] = useState(String(MINUTES));
  const begun = (next) => {
    Object.assign(shown, next);
    setId(next.id);
  };
  return html`<h1>What if <small class="dim">the calls of the last ${minutes === "1" ? "minute" : `${minutes || MINUTES} minutes`}, played again in simulation</small></h1>
    ${may("operator") ? html`<${Ask} begun=${begun} minutes=${minutes} setMinutes=${setMinutes} />` : html`<p>To ask this, the role operator is needed.</p>`}
    ${shown.isOwn ? null : html`<div class="verdict warning" role="alert"><p><strong>This is not what you asked:</strong> another what-if was running, and only one does at a time. Play yours again when it is over.</p></div>`}
    ${id === null ? null : html`<${Answer} key=${id} id=${id} />`}`;
}

function Ask({ begun, minutes, setMinutes }) {
  const { document: state } = useLive();
  const [policy, setPolicy] = useState("");
  const [engines, setEngines] = useState("");
  const [pool, setPool] = useState("");
  const [rows, setRows] = useState([EMPTY]);
  const [sessions, setSessions] = useState({});
  const [isBusy, setBusy] = useState(false);
  const [stored] = usePolled(readStored, [], 0);
  const pools = Object.keys(state?.pools || {}).sort();
  const known = { ...(stored.value || NOTHING), tenants: namesOfTenants(state) };
  const set = (at, part) => {
    const next = rows.map((each, index) => (index === at ? { ...each, ...part } : each));
    setRows(next.at(-1).value ? [...next, EMPTY] : next);
  };
  const submit = async (event) => {
    event.preventDefault();
    const changes = { ...(Number(engines) ? { engines: Number(engines) } : {}), ...changesOf(rows, known) };
    setBusy(true);
    const next = await attempt(() => ask({
      ...(policy ? { policy } : {}), ...(pool ? { pool } : {}), ...(Object.keys(changes).length ? { changes } : {}), ...sessionsAsked(sessions), minutes: Number(minutes),
    }));
    setBusy(false);
    if (next) begun(next);
  };
  return html`<form class="ask" onSubmit=${submit}>
    ${pools.length > 1 ? html`<label>Pool <select value=${pool} onChange=${(event) => setPool(event.target.value)}>
      <option value="">the one with most calls</option>${pools.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select></label>` : null}
    <label>Order <select value=${policy} aria-describedby="order" onChange=${(event) => setPolicy(event.target.value)}>
      <option value="">as it is</option>${ORDER_NAMES.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select></label>
    <label>Engines more (+) or fewer (−) <input type="number" value=${engines} min=${-ENGINES_MAX} max=${ENGINES_MAX} placeholder="0" onInput=${(event) => setEngines(event.target.value)} /></label>
    <fieldset><legend>Settings that differ</legend>${rows.map((each, at) => html`<${Change} key=${at} number=${at + 1} change=${each} known=${known} set=${(part) => set(at, part)} />`)}</fieldset>
    <label>Of the last <input type="number" value=${minutes} min="1" max=${MINUTES} required onInput=${(event) => setMinutes(event.target.value)} /> minutes</label>
    <button class="primary" disabled=${isBusy}>Play it</button>
    <p class="order dim" id="order" aria-live="polite">${policy ? `Next is ${order(policy)}.` : "The order stays as it is."}</p>
    <details><summary>What the orders are</summary><ul class="orders">${ORDER_NAMES.map((each) => html`<li key=${each}>${each}: next is ${order(each)}</li>`)}</ul></details>
    <${SessionFields} given=${sessions} setGiven=${setSessions} />
  </form>`;
}

const NOTHING = { groups: [], tiers: [], aliases: [] };

async function readStored(signal) {
  const [groups, tiers, aliases] = await Promise.all(["/groups", "/tiers", "/aliases"].map((each) => all(each, { signal })));
  return { groups, tiers: tiers.some((each) => each.id === "default") ? tiers : [{ id: "default" }, ...tiers], aliases };
}

const namesOfTenants = (state) => [...new Set(Object.values(state?.pools || {}).flatMap((pool) => Object.keys(pool.tenants || {})))].sort().map((id) => ({ id }));

/** One setting that differs: of which entry, which one, and its value. */
function Change({ number, change, known, set }) {
  const [kind, id] = change.of === "" ? ["", ""] : JSON.parse(change.of);
  const settings = kind === "aliases" ? [...splitOf(known, id).keys()].map((model) => [model, `weight of ${model}`]) : (PLAYED[kind] || []).map((name) => [name, fieldOf(kind, name).label]);
  const choices = { tier: known.tiers, group: known.groups }[kind === "aliases" ? "" : change.setting];
  const options = (list) => list.map((each) => html`<option key=${each.id} value=${each.id}>${each.id}</option>`);
  return html`<span class="change">
    <select aria-label=${`Change ${number} of`} value=${change.of} onChange=${(event) => set({ ...EMPTY, of: event.target.value, setting: firstSetting(event.target.value, known) })}>
      <option value="">tenant, group, tier or alias</option>
      ${Object.keys(PLAYED).map((each) => (known[each].length === 0 ? null : html`<optgroup key=${each} label=${each}>${known[each].map((entry) => html`<option key=${entry.id} value=${JSON.stringify([each, entry.id])}>${entry.id}</option>`)}</optgroup>`))}</select>
    <select aria-label=${`Setting of change ${number}`} value=${change.setting} disabled=${kind === ""} onChange=${(event) => set({ setting: event.target.value, value: "" })}>
      ${settings.map(([name, label]) => html`<option key=${name} value=${name}>${label}</option>`)}</select>
    ${choices ? html`<select aria-label=${`Value of change ${number}`} value=${change.value} onChange=${(event) => set({ value: event.target.value })}><option value=""></option>${options(choices)}</select>`
      : html`<input type="number" aria-label=${`Value of change ${number}`} value=${change.value} min="0" max="1000000000" step="any" placeholder=${nowOf(known, kind, id, change.setting)} onInput=${(event) => set({ value: event.target.value })} />`}</span>`;
}

const fieldOf = (kind, name) => FIELDS[kind].find((each) => each.name === name);

/** The weight of each model of an alias: all calls go to the first where there is no split. */
function splitOf(known, id) {
  const alias = known.aliases.find((each) => each.id === id) || { models: [], split: {} };
  const split = Object.entries(alias.split || {});
  const weights = new Map(alias.models.map((model, at) => [model, split.length === 0 && at === 0 ? 1 : 0]));
  for (const [model, weight] of split) weights.set(model, weight);
  return weights;
}

function firstSetting(of, known) {
  const [kind, id] = of === "" ? ["", ""] : JSON.parse(of);
  return kind === "aliases" ? [...splitOf(known, id).keys()][0] ?? "" : PLAYED[kind]?.[0] ?? "";
}

/** What a setting is now, where the page knows it. */
function nowOf(known, kind, id, setting) {
  const now = kind === "aliases" ? splitOf(known, id).get(setting) : known[kind]?.find((each) => each.id === id)?.[setting];
  return now == null ? "value" : `now ${decimal(now)}`;
}

/** The rows as the API takes them; several of one entry become one. */
function changesOf(rows, known) {
  const found = {};
  for (const { of, setting, value } of rows.filter((each) => each.of && each.value !== "")) {
    const [kind, id] = JSON.parse(of);
    const entries = (found[kind] ??= Object.create(null));
    if (kind === "aliases") {
      entries[id] ??= { split: Object.fromEntries(splitOf(known, id)) };
      entries[id].split[setting] = Number(value);
    } else {
      entries[id] = { ...entries[id], [setting]: ["tier", "group"].includes(setting) ? value : Number(value) };
    }
  }
  return found;
}

/** A new what-if, as {id, isOwn}; or the one that runs, which is shown then, so that it can be stopped. Throws a Problem. */
async function ask(wanted) {
  try {
    return { id: (await post("/what-ifs", wanted)).body.id, isOwn: true };
  } catch (error) {
    const running = error.status === 409 && /\b[0-9a-f]{16}\b/.exec(error.message);
    if (!running) throw error;
    return { id: running[0], isOwn: false };
  }
}

function Answer({ id }) {
  const [isOver, setOver] = useState(false);
  const [answer, again] = usePolled(async (signal) => {
    const { body } = await get(path("what-ifs", id), { signal });
    if (body.state !== "running") setOver(true);
    return body;
  }, [id, isOver], isOver ? 0 : POLL_MS);
  const each = answer.value;
  if (answer.error) return html`<p class="bad" role="alert">${answer.error.message}</p>`;
  if (each === null) return html`<p class="dim">Asking…</p>`;
  if (each.state === "running") return html`<${Progress} id=${id} each=${each} again=${again} />`;
  if (each.state === "done") return html`<${Comparison} answer=${each} />`;
  return html`<p class="bad" role="alert">${each.state === "stopped" ? "It was stopped." : each.error}</p>`;
}

function Progress({ id, each, again }) {
  const [isStopped, setStopped] = useState(false);
  const stop = async () => {
    setStopped(true);
    await attempt(() => remove(path("what-ifs", id)));
    again();
  };
  return html`<p role="status">It is played: ${percent(each.progress)}${" "}
    <progress max="1" value=${each.progress ?? undefined}>${percent(each.progress)}</progress>${" "}
    ${may("operator") ? html`<button disabled=${isStopped} onClick=${stop}>Stop</button>` : null}</p>`;
}

const FIGURES = [
  ["Requests", (run) => count(run.requests)],
  ["Served", (run) => count(run.served)],
  ["Tokens per second, prompt + output", (run) => short(run.throughput_tokens_per_s)],
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
  const trusted = trust(answer);
  return html`<${Verdict} answer=${answer} sums=${sums} trusted=${trusted} />
    ${trusted.isFar ? html`<div class="verdict warning" role="alert"><p><strong>Do not trust the seconds of this replay.</strong> ${trusted.text}</p></div>` : null}
    <details><summary>What was simulated</summary><dl class="settings">${Object.entries(answer.setting || {}).map(
      ([name, value]) => html`<div class="setting" key=${name}><dt>${name}</dt><dd>${value}</dd></div>`,
    )}</dl></details>
    <h2>All together</h2>
    <div class="scroll narrow" role="region" aria-label="All together" tabindex="0"><table>
      <thead><tr><th scope="col">Figure</th>${runs.map((name) => html`<th key=${name} scope="col" class="number">${name}</th>`)}</tr></thead>
      <tbody>${[...FIGURES, ...sessionFigures(runs.map((name) => answer[name]))].map(([label, text]) => html`<tr key=${label}><th scope="row">${label}</th>
        ${runs.map((name) => html`<td key=${name} class=${`number ${name}`}>${text(answer[name])}</td>`)}</tr>`)}</tbody></table></div>
    <h2>By tenant</h2>
    <${Table} label="By tenant" columns=${columns} rows=${rows} keyOf=${(row) => row.id} sort=${{ id: "share-happened", down: true }} />`;
}

const POINT = 0.01; // a change of a share below it is none
const CHANGED = 0.1; // nor one of a wait by less than this part of it
const CHANGED_LATE = 0.25; // nor of the slowest, which are few
const SAID_MAX = 3;

/** Which tenants gain and lose: in due shares, as weights part them now, and in waits. */
function Verdict({ answer, sums, trusted }) {
  const { tenants, groups, tiers } = answer.changes || {};
  const asked = askedFor(answer);
  const [preview] = usePolled(async () => {
    if (!tenants && !groups && !tiers) return null;
    const { body } = await post("/preview", { tenants: tenants || {}, groups: groups || {}, tiers: tiers || {} });
    return body.pools[answer.pool]?.tenants ?? null;
  }, [answer.id], 0);
  const due = moved(Object.entries(preview.value || {}).map(([id, each]) => [id, each.share_then - each.share_now]));
  const served = moved(servedMoved(answer, sums));
  const waits = waitsMoved(answer);
  return html`<div class="verdict"><p class="dim">${asked}</p><p><strong>${due || served || waits}</strong>${due ? " This is of the shares that are due now." : ""}</p>
    ${due || served ? html`<p>${waits}</p>` : html`<p>No tenant's share of what is served changes by half a point or more.</p>`}
    <p>${servedOf(answer)}</p>
    ${trusted.isFar ? null : html`<p>${trusted.text}</p>`}
    <p class="dim">“instead” is compared with “replayed”: both are simulated, one with what was asked and one with the present settings. ${loops(answer)}</p></div>`;
}

/** What was asked, in words. */
function askedFor({ policy, weights, changes, sessions }) {
  const { engines = 0, ...kinds } = changes || {};
  const said = Object.entries(kinds).flatMap(([kind, of]) => Object.entries(of).map(([id, each]) => {
    const values = kind === "aliases" ? Object.entries(each.split).map(([model, weight]) => `${model} ${decimal(weight)}`) : Object.entries(each).map(([name, value]) => `${fieldOf(kind, name)?.label.toLowerCase() ?? name} ${value ?? "as by default"}`);
    return `${ONE_OF[kind]} ${id}: ${values.join(", ")}`;
  }));
  const parts = [
    policy ? `order ${policy}` : "",
    engines ? `${plural(Math.abs(engines), "engine")} ${engines > 0 ? "more" : "fewer"}` : "",
    ...Object.entries(weights || {}).map(([id, weight]) => `tenant ${id}: weight ${decimal(weight)}`),
    ...said,
    ...sessionsSaid(sessions),
  ].filter(Boolean);
  return parts.length === 0 ? "Asked: nothing else than what is." : `Asked: ${parts.join("; ")}.`;
}

/** How many calls are served, with the asked settings and without. */
function servedOf({ replayed, instead }) {
  if (!replayed || !instead) return "";
  if (instead.served === replayed.served && instead.requests === replayed.requests) return "As many calls are served: a weight or an engine changes how long they wait.";
  return `${count(instead.served)} of ${plural(instead.requests, "call")} are served, and ${count(replayed.served)} of ${count(replayed.requests)} with the present settings.`;
}

/** By how much tenants' shares of what is served grow. */
function servedMoved({ replayed, instead }, sums) {
  if (!replayed || !instead) return [];
  const part = (run, name, id) => (sums[name] ? (run.tenants[id]?.service || 0) / sums[name] : 0);
  return Object.keys(instead.tenants).map((id) => [id, part(instead, "instead", id) - part(replayed, "replayed", id)]);
}

/** Changes of shares as a sentence; nothing where there are none. */
function moved(changes) {
  const largest = changes.filter(([, points]) => Math.abs(points) >= POINT / 2).sort(([, a], [, b]) => Math.abs(b) - Math.abs(a));
  if (largest.length === 0) return "";
  const said = largest.slice(0, SAID_MAX).sort(([, a], [, b]) => b - a).map(([id, points]) => `${id} ${points > 0 ? "gains" : "loses"} ${pointsOf(points)}`);
  return `${said.join(", ")}${largest.length > SAID_MAX ? `, and ${largest.length - SAID_MAX} more change` : ""}.`;
}

function pointsOf(points) {
  const value = Math.abs(points / POINT);
  return `${value.toFixed(value < 9.5 && value % 1 > 0.05 && value % 1 < 0.95 ? 1 : 0)} ${Math.round(value * 10) === 10 ? "point" : "points"}`;
}

/** Which tenants wait shorter and longer for their first token. */
function waitsMoved({ replayed, instead }) {
  if (!replayed || !instead) return "";
  const median = waitsOf(replayed, instead, "ttft_p50_s", CHANGED, "median time to first token");
  return median || ["No tenant's median time to first token changes by a tenth or more.", waitsOf(replayed, instead, "ttft_p99_s", CHANGED_LATE, "time to first token of the slowest in a hundred")].filter(Boolean).join(" ");
}

function waitsOf(replayed, instead, figure, least, name) {
  const changed = Object.entries(instead.tenants)
    .map(([id, { [figure]: then }]) => ({ id, then, now: replayed.tenants[id]?.[figure] }))
    .filter(({ now, then }) => now && then && Math.abs(then - now) >= least * now)
    .sort((a, b) => Math.abs(b.then - b.now) - Math.abs(a.then - a.now));
  const said = (rows) => listed(rows.map(({ id, now, then }) => `${id} (${seconds(now)} → ${seconds(then)})`), SAID_MAX);
  const [shorter, longer] = [changed.filter(({ now, then }) => then < now), changed.filter(({ now, then }) => then > now)];
  return [shorter.length > 0 ? `Shorter ${name}: ${said(shorter)}.` : "", longer.length > 0 ? `Longer ${name}: ${said(longer)}.` : ""].filter(Boolean).join(" ");
}

/** How near the simulation of the present settings is to what was measured, and why it is not (docs/results/prediction.md). */
function trust({ happened, replayed, trust: judged }) {
  if (judged?.figure === "too_few_calls") return { isFar: true, text: "Too few calls were recorded: a judgement takes 20 of a tenant." };
  const [measured, simulated] = [happened?.ttft_p50_s, replayed?.ttft_p50_s];
  const text = !measured || !simulated ? "No first token was measured." : `“replayed” has a median TTFT of ${seconds(simulated)}, and ${seconds(measured)} was measured.`;
  if (judged?.is_trusted) return { isFar: false, text: `${text} The simulation is near what happened.` };
  return { isFar: true, text: `${judged ? `${farIn(judged)} ` : ""}${text} Read which tenants gain and lose, not the seconds.` };
}

/** How many calls wait for an answer in the replay, as they did. */
function loops({ closed_loop_calls: closed, replayed }) {
  if (!closed || !replayed) return "All calls come when they came.";
  const whole = replayed.requests;
  return `${count(closed)} of ${count(whole)} calls came once their client had an answer: they come after its simulated end. ${closed < whole ? "The others come when they came." : ""}`;
}

const farIn = ({ factor, figure, tenant }) =>
  `It differs from what happened by a factor of ${decimal(factor)} in ${figure === "output_tokens_per_s" ? "tokens written per second" : `the median TTFT of ${tenant}`}.`;

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
