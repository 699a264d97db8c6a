// What was changed of a tenant or a tier, by whom: its part of the audit log.

import { get } from "../api.js";
import { FIELDS } from "../fields.js";
import { html, Table, usePolled } from "../ui.js";
import { decimal, NONE, time } from "../words.js";

/** `kind` is the API's; settings with another `etag` have them read again. */
export function Changes({ kind, id, settings }) {
  const [audit] = usePolled(async (signal) => {
    const { body } = await get(`/audit?kind=${kind}&limit=1000`, { signal });
    return body.items.filter((each) => each.name === id);
  }, [kind, id, settings?.etag], 0);
  if (audit.value === null || audit.value.length === 0) return null;
  const columns = [
    { id: "at", label: "When", cell: (each) => time(each.at) },
    { id: "actor", label: "By", cell: (each) => html`<${Actor} of=${each} />` },
    { id: "what", label: "What", kind: "text", cell: differenceOf },
  ];
  return html`<h2>Changes</h2><${Table} label="Changes" columns=${columns} rows=${audit.value} keyOf=${(each) => each.revision} sort=${{}} size=${10} />`;
}

/** What a difference begins with that is written over what the file declares. */
export const WRITTEN_OVER = "set instead of the file's: ";

/** By whom a change was made: the label of the key, where it has one. */
export const Actor = ({ of: { actor, actor_label: label } }) => html`<span class="name" title=${actor}>${label ?? actor}</span>`;

/** What an entry of the audit log says was done. */
export function differenceOf(each) {
  if (each.kind === "notes") return each.name;
  return each.before == null && each.after == null ? each.action : difference(each);
}

/** What a change changed: "weight: 1 → 3". Of an entry that the file declares, the log has what was written over it alone:
 * the first such change has nothing before it, and its undo nothing after it.
 */
function difference({ kind, before, after, declared }) {
  if (after === null) return declared ? "back to what the configuration file says" : "removed";
  if (before === null && !declared) {
    const given = [...flat(after)].filter(([name]) => name !== "created_at").map(([name, value]) => `${name}: ${text(value)}`);
    return given.length > 0 ? `made, with ${given.join(", ")}` : "made";
  }
  const [was, is] = [flat(before ?? declared), flat(after)];
  const differ = [...new Set([...was.keys(), ...is.keys()])].filter((name) => JSON.stringify(was.get(name) ?? null) !== JSON.stringify(is.get(name) ?? null));
  const told = (name, value, other) => text(value ?? without(kind, name, other));
  const said = differ.map((name) => `${name}: ${told(name, was.get(name), is.get(name))} → ${told(name, is.get(name), was.get(name))}`).join(", ") || NONE;
  return before === null ? `${WRITTEN_OVER}${said}` : said;
}

/** Whether a change gave an entry more, and nothing less: greater weights and limits. */
export function gaveMore({ kind, before, after, declared }) {
  if (after == null || (before ?? declared) == null) return false;
  const [was, is] = [flat(before ?? declared), flat(after)];
  const valued = (name, one, other) => one.get(name) ?? without(kind, name, other.get(name));
  const differ = [...new Set([...was.keys(), ...is.keys()])].map((name) => [name, valued(name, was, is), valued(name, is, was)]).filter(([, old, now]) => JSON.stringify(old) !== JSON.stringify(now));
  return differ.length > 0 && differ.every(([name, old, now]) => (name === "weight" || name.endsWith("_max")) && (now === "no limit" || now > old));
}

/** Fields by name, those inside of others with a dot: envelope.ttft_ms. */
function flat(fields, above = "", found = new Map()) {
  for (const [name, value] of Object.entries(fields)) {
    if (value !== null && typeof value === "object" && !Array.isArray(value)) flat(value, `${above}${name}.`, found);
    else found.set(above + name, value);
  }
  return found;
}

/** What holds where a field has no value, beside its `other` one. */
function without(kind, name, other) {
  if (typeof other === "boolean") return !other;
  const field = FIELDS[kind]?.find((each) => each.name === name);
  return field?.default ?? (name.endsWith("_max") ? "no limit" : "none");
}

const text = (value) => (value == null ? NONE : typeof value === "number" ? decimal(value) : typeof value === "object" ? JSON.stringify(value) : String(value));

