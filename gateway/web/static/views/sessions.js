// Sessions of agents: those of a tenant, and what their contexts take up of the engines' KV pools.

import { entries } from "./now.js";
import { html, link, Meter, Table, useLive } from "../ui.js";
import { clock, count, NONE, percent, plural, seconds, short } from "../words.js";

const STATES = ["running", "idle", "held", "paused"];
const TONES = { running: "ok", held: "warn" };

const HowToName = () => html`No session of an agent is known. A call names its session with the header <code>x-session-id</code>; Claude Code, Codex and
  OpenCode send their own (<code>docs/agents.md</code>).`;

const counted = (states) => STATES.map((state) => `${count(states[state] ?? 0)} ${state}`).join(", ");
const total = (states) => STATES.reduce((sum, state) => sum + (states[state] ?? 0), 0);

/** The sessions of a tenant's agents in one pool. */
export function TenantSessions({ pool, tenant }) {
  const { document: state } = useLive();
  const { sessions = [], session_states: states = {} } = tenant;
  const isOff = state?.group == null && state?.pools?.[pool]?.sessions == null;
  if (sessions.length === 0) {
    return html`<h2>Sessions</h2><p class="dim">${isOff ? html`No turn of an agent waits for room in this pool: <code>scheduling.hold_sessions</code> is off.` : html`<${HowToName} />`}</p>`;
  }
  const columns = [
    { id: "id", label: "Session", note: "as the gateway knows it", value: (each) => each.id, cell: (each) => html`<span class="name">${each.id}</span>${each.parent == null ? null : html` <small class="dim">of <span class="name">${each.parent}</span></small>`}` },
    { id: "state", label: "State", lead: true, value: (each) => each.state, cell: (each) => html`<span class=${TONES[each.state] ?? ""}>${each.state}</span> <span class="dim">for ${seconds(Math.max(0, (state?.at ?? 0) - each.since_at))}</span>` },
    { id: "context", label: "Context", card: "Context tokens", note: "tokens", kind: "number", value: (each) => each.context_tokens, cell: (each) => count(each.context_tokens) },
    { id: "turns", label: "Turns", kind: "number", value: (each) => each.turns, cell: (each) => count(each.turns) },
    { id: "pauses", label: "Pauses", note: "to make room for others", kind: "number", value: (each) => each.pauses, cell: (each) => count(each.pauses) },
    { id: "backend", label: "Backend", note: "of its context", value: (each) => each.backend, cell: (each) => (each.backend == null ? NONE : html`<span class="name">${each.backend}</span>`) },
    { id: "until", label: "It is held because", kind: "wraps", bare: true, value: (each) => each.until_at, cell: (each) => whyHeld(each, state?.at) },
  ];
  const known = total(states);
  return html`<h2>Sessions <small class="dim">of its agents: ${counted(states)}</small></h2>
    <${Table} label="Sessions" columns=${columns} rows=${sessions} keyOf=${(each) => each.id} sort=${{ id: "until", down: false }} />
    ${known > sessions.length ? html`<p class="dim">These are the ${count(sessions.length)} that are held or were used last, of ${count(known)}.</p>` : null}`;
}

function whyHeld(session, at) {
  if (session.state !== "held") return NONE;
  const where = session.backend == null ? "in any KV pool" : html`in the KV pool of <span class="name">${session.backend}</span>`;
  const until = session.until_at > at ? `until about ${clock(session.until_at)} at the latest` : "it is next, once a session that runs rests";
  return html`its ${plural(session.needs_tokens, "token")} have no room ${where}; ${until}`;
}

/** What the contexts of sessions take up at each engine, and whether turns are held there. */
export function WorkingSets({ pools }) {
  const holding = entries(pools).filter((pool) => pool.sessions != null);
  if (holding.length === 0) return null;
  const rows = holding.flatMap((pool) => entries(pool.backends).filter((each) => each.working_set != null).map((each) => ({ ...each.working_set, id: each.id, pool: pool.id })));
  const columns = [
    { id: "id", label: "Backend", value: (each) => each.id, cell: (each) => html`<a class="name" href=${link("backend", each.id)}>${each.id}</a>` },
    { id: "tokens", label: "Working set", kind: "meter-column", note: "tokens of contexts, of what they may have", value: (each) => each.tokens,
      cell: (each) => (each.tokens_max == null ? `${short(each.tokens)} of an unknown size` : html`<${Meter} value=${each.tokens} limit=${each.tokens_max} text=${`${short(each.tokens)} of ${short(each.tokens_max)}`} />`) },
    { id: "eta", label: "They may have", note: "of the KV pool, as learnt", value: (each) => each.eta, cell: (each) => (each.pool_tokens == null ? NONE : `${percent(each.eta)} of ${short(each.pool_tokens)}`) },
    { id: "busy", label: "Busy", note: "of the last 10 s", kind: "number", value: (each) => each.busy_ratio, cell: (each) => percent(each.busy_ratio) },
    { id: "again", label: "Computed again", note: "contexts, of its busy time", kind: "number", value: (each) => each.recomputed_ratio, cell: (each) => percent(each.recomputed_ratio) },
  ];
  return html`<h2>Working sets <small class="dim">of agents' sessions</small></h2>
    ${holding.map((pool) => html`<p key=${pool.id}><span class="name">${pool.id}</span>: ${holds(pool.sessions)}</p>`)}
    <${Table} label="Working sets" columns=${columns} rows=${rows} keyOf=${(each) => each.id} sort=${{ id: "id", down: false }} size=${32} />
    <p class="dim">Turns begin to wait where an engine is busy for more than 90 % of the time, and spends more than 10 % of that on
      computing contexts again, if waiting costs less (<code>docs/agents.md</code>).</p>`;
}

function holds(sessions) {
  if (total(sessions) === 0) return html`<${HowToName} />`;
  const said = sessions.holding ? html`<strong class="warn">turns are held</strong> until their contexts have room` : "no turn is held";
  const again = sessions.recomputed_ratio == null ? "" : ` Of what had been computed before, ${percent(sessions.recomputed_ratio)} was computed again since the start.`;
  return html`${said}. Sessions: ${counted(sessions)}.${again}`;
}
