// Parts that all views share. Everything is text to Preact: no name can become markup.

import { h } from "preact";
import { useEffect, useState } from "preact/hooks";
import htm from "htm";
import { live } from "./live.js";
import { count, percent } from "./words.js";

export const html = htm.bind(h);

/** The live document, again at every event. */
export function useLive() {
  const [, again] = useState(0);
  useEffect(() => live.subscribe(() => again((n) => n + 1)), []);
  return live;
}

/** The address behind #, as parts and a query: #/tenant/a%2Fb?x=1 is [["tenant", "a/b"], {x: "1"}]. */
export function parseRoute(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean).map((each) => {
    try {
      return decodeURIComponent(each);
    } catch {
      return each;
    }
  });
  return { parts, query: new URLSearchParams(query) };
}

export function useRoute() {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const changed = () => setHash(location.hash);
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return parseRoute(hash);
}

export const link = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;

export const TenantLink = ({ id }) => html`<a class="name" href=${link("tenant", id)}>${id}</a>`;

/** What is got as a bar, and what is due as a mark across it, on a scale that ends at `scale`. */
export function ShareBar({ got, due, scale = 1, waits = false }) {
  const part = (value) => `${Math.min(100, (100 * (value || 0)) / (scale || 1))}%`;
  const isShort = waits && due != null && (got || 0) < due - Math.max(0.01, 0.1 * due);
  const said = `${percent(got)} of the service, due ${percent(due)}`;
  return html`<div class=${isShort ? "share short" : "share"} title=${said}>
    <div class="track" aria-hidden="true">
      <div class="got" style=${{ width: part(got) }}></div>
      ${due == null ? null : html`<div class="due" style=${{ left: part(due) }}></div>`}
    </div>
    <span class="number">${percent(got)}<span class="dim due-text"> / ${percent(due)}</span></span>
  </div>`;
}

/** How much of a limit is used. */
export function Meter({ value, limit, text }) {
  const ratio = limit ? Math.min(1, (value || 0) / limit) : 0;
  return html`<div class=${`meter ${ratio >= 0.995 ? "full" : ""}`}>
    <div class="track" aria-hidden="true"><div class="got" style=${{ width: `${100 * ratio}%` }}></div></div>
    <span class="number">${text ?? `${count(value)} of ${count(limit)}`}</span>
  </div>`;
}

export function Figure({ label, value, note, tone }) {
  return html`<div class=${`figure ${tone || ""}`}><dt>${label}</dt><dd>${value}${note ? html` <small>${note}</small>` : null}</dd></div>`;
}

/** A table that is sorted by a click on a column's head and has pages of `size` rows, so that its cost has an end.
 *
 * columns: [{id, label, value(row) to sort by, cell(row), kind: "number" or "text", title, hide: class}]
 */
export function Table({ label, columns, rows, keyOf, sort, size = 25, empty = "There are none.", rowClass }) {
  const [by, setBy] = useState(sort);
  const [page, setPage] = useState(0);
  const column = columns.find((each) => each.id === by.id) || columns[0];
  const sorted = column.value ? sortedBy(rows, column.value, by.down) : rows;
  const last = Math.max(0, Math.ceil(rows.length / size) - 1);
  const at = Math.min(page, last); // rows may have gone
  const visible = sorted.slice(at * size, (at + 1) * size);
  const toggle = (each) => {
    setBy({ id: each.id, down: by.id === each.id ? !by.down : each.kind === "number" });
    setPage(0);
  };
  return html`<div class="scroll" role="region" aria-label=${label} tabindex="0">
      <table>
        <thead><tr>${columns.map((each) => html`<th key=${each.id} scope="col" class=${`${each.kind || ""} ${each.hide || ""}`}
          title=${each.title} aria-sort=${by.id === each.id ? (by.down ? "descending" : "ascending") : undefined}>
          ${each.value ? html`<button class="sort" onClick=${() => toggle(each)}>${each.label}</button>` : each.label}</th>`)}</tr></thead>
        <tbody>
          ${visible.map((row) => html`<tr key=${keyOf(row)} class=${rowClass?.(row)}>${columns.map((each, number) =>
            number === 0
              ? html`<th key=${each.id} scope="row" class=${`${each.kind || ""} ${each.hide || ""}`}>${each.cell(row)}</th>`
              : html`<td key=${each.id} class=${`${each.kind || ""} ${each.hide || ""}`}>${each.cell(row)}</td>`)}</tr>`)}
          ${rows.length === 0 ? html`<tr><td class="empty" colspan=${columns.length}>${empty}</td></tr>` : null}
        </tbody>
      </table>
    </div>
    ${last > 0
      ? html`<p class="pager"><button disabled=${at === 0} onClick=${() => setPage(at - 1)} aria-label=${`${label}: the rows before`}>Before</button>
          <button disabled=${at === last} onClick=${() => setPage(at + 1)} aria-label=${`${label}: the rows after`}>After</button>
          <span class="dim">${count(at * size + 1)} to ${count(at * size + visible.length)} of ${count(rows.length)}</span></p>`
      : null}`;
}

function sortedBy(rows, value, isDown) {
  const valued = rows.map((row) => [value(row), row]);
  valued.sort(([a], [b]) => {
    if (a == null || b == null) return (a == null) - (b == null); // what is not known comes last
    const order = typeof a === "string" ? a.localeCompare(b) : a - b;
    return isDown ? -order : order;
  });
  return valued.map(([, row]) => row);
}

// -- what was done, said at the foot of the page, with an undo --------------------------------------------

const notices = { shown: [], listeners: new Set(), next: 1 };

export function notify(text, { tone = "", undo = null } = {}) {
  const id = notices.next++;
  notices.shown = [...notices.shown.slice(-2), { id, text, tone, undo }];
  for (const each of notices.listeners) each();
  if (undo === null) setTimeout(() => dismiss(id), 8000);
  return id;
}

export function dismiss(id) {
  notices.shown = notices.shown.filter((each) => each.id !== id);
  for (const each of notices.listeners) each();
}

export function Notices() {
  const [, again] = useState(0);
  useEffect(() => {
    const listener = () => again((n) => n + 1);
    notices.listeners.add(listener);
    return () => notices.listeners.delete(listener);
  }, []);
  return html`<div class="notices" role="status">${notices.shown.map(
    (each) => html`<p key=${each.id} class=${`notice ${each.tone}`}><span>${each.text}</span>
      ${each.undo ? html`<button onClick=${() => { dismiss(each.id); each.undo(); }}>Undo</button>` : null}
      <button class="quiet" aria-label="Dismiss" onClick=${() => dismiss(each.id)}>×</button></p>`,
  )}</div>`;
}

/** Run what may be refused, and say what was. */
export async function attempt(action) {
  try {
    return await action();
  } catch (error) {
    if (error.name !== "AbortError") notify(error.message, { tone: "bad" });
    return undefined;
  }
}

/** What `ask(signal)` returns, asked again every `everyMs` while it is on the screen. */
export function usePolled(ask, inputs, everyMs) {
  const [result, setResult] = useState({ value: null, error: null });
  const [round, setRound] = useState(0);
  useEffect(() => {
    const abort = new AbortController();
    let timer = 0;
    const turn = async () => {
      try {
        if (!live.isPaused || round > 0) {
          const value = await ask(abort.signal);
          if (!abort.signal.aborted) setResult({ value, error: null });
        }
      } catch (error) {
        if (!abort.signal.aborted) setResult((before) => ({ value: before.value, error }));
      }
      if (!abort.signal.aborted && everyMs) timer = setTimeout(turn, everyMs);
    };
    turn();
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [...inputs, round]);
  return [result, () => setRound((n) => n + 1)];
}
