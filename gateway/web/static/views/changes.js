// What was changed of a tenant or a tier, by whom: its part of the audit log.

import { get } from "../api.js";
import { html, Table, usePolled } from "../ui.js";
import { decimal, NONE, time } from "../words.js";

/** `kind` is the API's; settings with another `etag` have them read again. */
export function Changes({ kind, id, settings }) {
  const isDeclared = ["declared", "overridden"].includes(settings?.origin);
  const [audit] = usePolled(async (signal) => {
    const { body } = await get(`/audit?kind=${kind}&limit=1000`, { signal });
    return body.items.filter((each) => each.name === id);
  }, [kind, id, settings?.etag], 0);
  if (audit.value === null || audit.value.length === 0) return null;
  const columns = [
    { id: "at", label: "When", cell: (each) => time(each.at) },
    { id: "actor", label: "By", cell: (each) => each.actor },
    { id: "what", label: "What", kind: "text", cell: (each) => difference(each.before, each.after, isDeclared) },
  ];
  return html`<h2>Changes</h2><${Table} label="Changes" columns=${columns} rows=${audit.value} keyOf=${(each) => each.revision} sort=${{}} size=${10} />`;
}

/** What an entry of the audit log says was done. */
export function differenceOf({ action, kind, before, after, name }) {
  if (kind === "notes") return name;
  if (before === null && after === null) return action;
  return `${action}: ${difference(before, after, false)}`;
}

/** What a change changed: "weight: 1 → 3". Of an entry that the file declares, the log has what was written over it alone:
 * the first such change has nothing before it, and its undo nothing after it.
 */
function difference(before, after, isDeclared) {
  if (after === null) return isDeclared ? "back to what the configuration file says" : "its settings were removed";
  if (before === null && isDeclared) return `set instead of the file's: ${[...flat(after)].map(([name, value]) => `${name}: ${text(value)}`).join(", ")}`;
  const [was, is] = [flat(before || {}), flat(after)];
  const names = [...new Set([...was.keys(), ...is.keys()])];
  const said = names
    .filter((name) => JSON.stringify(was.get(name) ?? null) !== JSON.stringify(is.get(name) ?? null))
    .map((name) => `${name}: ${text(was.get(name))} → ${text(is.get(name))}`);
  return `${before === null ? "made; " : ""}${said.join(", ")}` || NONE;
}

/** Fields by name, those inside of others with a dot: envelope.ttft_ms. */
function flat(fields, above = "", found = new Map()) {
  for (const [name, value] of Object.entries(fields)) {
    if (value !== null && typeof value === "object" && !Array.isArray(value)) flat(value, `${above}${name}.`, found);
    else found.set(above + name, value);
  }
  return found;
}

const text = (value) => (value == null ? "default" : typeof value === "number" ? decimal(value) : typeof value === "object" ? JSON.stringify(value) : String(value));

