// What if, of sessions of agents: what differs for them, and what became of them in a simulation.

import { html } from "../ui.js";
import { count, decimal, listed, NONE, seconds } from "../words.js";

const ROOM_MIN = 0.01; // as kv_scale, of gateway/admin/models/what_ifs.py
const SCALE = { min: 0.1, max: 10 };

/** What the form says of sessions, as the API takes it; nothing where nothing differs. `given`: what stands in its fields. */
export function sessionsAsked(given) {
  const asked = Object.entries(given).filter(([, value]) => value !== "").map(([name, value]) => [name, name === "held" ? value === "true" : Number(value)]);
  return asked.length === 0 ? {} : { sessions: Object.fromEntries(asked) };
}

/** What was asked of sessions, in words. */
export function sessionsSaid({ kv_scale: scale = 1, held = null, room_ratio: room = null } = {}) {
  return [
    scale === 1 ? "" : `KV cache of each engine times ${decimal(scale)}`,
    held === null ? "" : `turns of agents ${held ? "wait for room" : "never wait for room"}`,
    room === null ? "" : `${decimal(room)} of the KV cache for contexts`,
  ];
}

export function SessionFields({ given, setGiven }) {
  const set = (name, value) => setGiven({ ...given, [name]: value });
  const number = (name, label, hint, limits) => html`<label>${label} <input type="number" step="any" ...${limits} value=${given[name] ?? ""} placeholder=${hint} onInput=${(event) => set(name, event.target.value)} /></label>`;
  return html`<details><summary>Agents and KV cache</summary>
    ${number("kv_scale", "KV cache of each engine, times", "1", SCALE)}
    <label>Turns of agents <select value=${given.held ?? ""} onChange=${(event) => set("held", event.target.value)}>
      <option value="">as they are</option><option value="true">wait for room, where that pays</option><option value="false">never wait for room</option></select></label>
    ${number("room_ratio", "Part of the KV cache for contexts", "as learnt", { min: ROOM_MIN, max: 1 })}</details>`;
}

const FIGURES = [
  ["Sessions: held / paused at once, at most", (found) => `${count(found.held_max)} / ${count(found.paused_max)}`],
  ["Turns that waited for room (mean)", (found) => `${count(found.held_turns)} (${found.held_mean_s == null ? NONE : seconds(found.held_mean_s)})`],
  ["Wait of a turn: median / 99th percentile", (found) => `${seconds(found.turn_wait_p50_s)} / ${seconds(found.turn_wait_p99_s)}`],
  ["Session, median", (found) => seconds(found.session_p50_s)],
  ["Pauses (after a quantum)", (found) => `${count(found.pauses)} (${count(found.yields)})`],
  ["Part of the KV cache for contexts, at the end", (found) => listed(Object.values(found.etas).map((eta) => decimal(eta)), 4) || NONE],
];

/** Figures of sessions as rows; none where no call was of one. */
export function sessionFigures(runs) {
  if (!runs.some((run) => run.sessions)) return [];
  return FIGURES.map(([label, text]) => [label, (run) => (run.sessions ? text(run.sessions) : NONE)]);
}
