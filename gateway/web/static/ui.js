// Parts that all views share. Everything is text to Preact: no name can become markup.

import { h } from "preact";
import { useEffect, useState } from "preact/hooks";
import htm from "htm";
import { live } from "./live.js";
import { count, NONE, percent } from "./words.js";

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

/** What is got as a bar, and what is due as a mark across it, on a scale of the whole pool. */
export function ShareBar({ got, due, waits = false }) {
  const part = (value) => `${Math.min(100, 100 * (value || 0))}%`;
  const isShort = waits && due != null && (got || 0) < due - Math.max(0.01, 0.1 * due);
  return html`<div class=${isShort ? "share short" : "share"}>
    <div class="track" aria-hidden="true">
      <div class="got" style=${{ width: part(got) }}></div>
      ${due == null ? null : html`<div class="due" style=${{ left: part(due) }}></div>`}
    </div>
    <span class="number">${percent(got)}<span class="dim due-text"> / ${percent(due)}</span></span>
  </div>`;
}

/** How much of a limit is used; with `isPart` a part of a whole, which may be all of it. */
export function Meter({ value, limit, text, isPart = false }) {
  const ratio = limit ? Math.min(1, (value || 0) / limit) : 0;
  return html`<div class=${`meter ${ratio >= 0.995 && !isPart ? "full" : ""}`}>
    <div class="track" aria-hidden="true"><div class="got" style=${{ width: `${100 * ratio}%` }}></div></div>
    <span class="number">${text ?? `${count(value)} of ${count(limit)}`}</span>
  </div>`;
}

export function Figure({ label, value, note, tone }) {
  return html`<div class=${`figure ${tone || ""}`}><dt>${label}</dt><dd>${value}${note ? html` <small>${note}</small>` : null}</dd></div>`;
}

/** A table that is sorted by a click on a column's head and has pages of `size` rows, so that its cost has an end. On a
 * narrow screen every row is a card, which begins with the cell of the column `lead`.
 *
 * columns: [{id, label, note: a second line in the head, value(row) to sort by, cell(row), kind: "number" or "text",
 * hide: class, lead, card: its name on cards, bare: cards do not name it}]. A cell that is NONE is left out of a card.
 */
export function Table({ label, columns, rows, keyOf, sort, size = 25, empty = "There are none.", rowClass }) {
  const [by, setBy] = useState(sort);
  const [page, setPage] = useState(0);
  const column = columns.find((each) => each.id === by.id) || columns[0];
  const sorted = column.value ? sortedBy(rows, column.value, by.down) : rows;
  const last = Math.max(0, Math.ceil(rows.length / size) - 1);
  const at = Math.min(page, last); // rows may have gone
  const visible = sorted.slice(at * size, (at + 1) * size);
  const order = (id, down) => {
    setBy({ id, down });
    setPage(0);
  };
  const toggle = (each) => order(each.id, by.id === each.id ? !by.down : each.kind === "number");
  return html`<${SortChoice} label=${label} columns=${columns} by=${by} order=${order} count=${rows.length} />
    <div class="scroll cards" role="region" aria-label=${label} tabindex="0">
      <table>
        <thead><tr>${columns.map((each) => html`<th key=${each.id} scope="col" class=${`${each.kind || ""} ${each.hide || ""}`}
          aria-sort=${by.id === each.id ? (by.down ? "descending" : "ascending") : undefined}>
          ${each.value ? html`<button class="sort" onClick=${() => toggle(each)}>${each.label}</button>` : html`<span class="head-text">${each.label}</span>`}
          ${each.note ? html`<small class="note">${each.note}</small>` : null}</th>`)}</tr></thead>
        <tbody>
          ${visible.map((row) => html`<tr key=${keyOf(row)} class=${rowClass?.(row)}>${columns.map((each, number) => cellOf(each, row, number === 0))}</tr>`)}
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

function cellOf(column, row, isHead) {
  const content = column.cell(row);
  const name = `${column.kind || ""} ${column.hide || ""}${column.lead ? " lead" : ""}${content === NONE ? " none" : ""}`;
  if (isHead) return html`<th key=${column.id} scope="row" class=${name}>${content}</th>`;
  return html`<td key=${column.id} class=${name} data-label=${column.bare || typeof column.label !== "string" ? undefined : column.card || column.label}>${content}</td>`;
}

/** What the heads of columns are on a wide screen. */
function SortChoice({ label, columns, by, order, count: rows }) {
  const sortable = columns.filter((each) => each.value);
  if (sortable.length < 2 || rows < 2) return null;
  const chosen = sortable.find((each) => each.id === by.id);
  return html`<label class="sort-choice">Sort by <select aria-label=${`${label}: sort by`} value=${chosen?.id ?? ""}
    onChange=${(event) => order(event.target.value, sortable.find((each) => each.id === event.target.value)?.kind === "number")}>
    ${chosen ? null : html`<option value="">as listed</option>`}
    ${sortable.map((each) => html`<option key=${each.id} value=${each.id}>${each.label}</option>`)}</select></label>`;
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

/** A button that puts text into the clipboard. */
export function Copy({ text, label = "Copy" }) {
  const [isDone, setDone] = useState(false);
  const act = async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      notify("This browser gives no clipboard to a page without TLS: mark the text and copy it.", { tone: "bad" });
      return;
    }
    setDone(true);
  };
  return html`<button type="button" onClick=${act}>${isDone ? "Copied" : label}</button>`;
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
