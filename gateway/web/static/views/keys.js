// Keys of a tenant, or of a group's administrators: made, rotated and revoked by those that may.

import { useState } from "preact/hooks";
import { all, patch, path, post } from "../api.js";
import { FIELDS } from "../fields.js";
import { mayChange } from "../session.js";
import { attempt, Copy, html, notify, Table, usePolled } from "../ui.js";
import { time } from "../words.js";
import { Sure } from "./making.js";

const POLL_MS = 30000;
const DAY_S = 86400;
const [LABEL, EXPIRES_IN_S] = ["label", "expires_in_s"].map((name) => FIELDS.keys.find((field) => field.name === name));
const OVERLAP_S = 86400; // for which a rotated key goes on

/** The keys of a tenant; with `group`, those of its administrators. */
export function Keys({ tenant = null, group = null }) {
  const query = tenant === null ? "" : `?tenant=${encodeURIComponent(tenant)}`;
  const [keys, again] = usePolled(
    async (signal) => (await all(`/keys${query}`, { signal })).filter((each) => group === null || each.group === group),
    [tenant, group], POLL_MS,
  );
  const [secret, setSecret] = useState(null);
  if (keys.value === null) return null;
  const made = async (asked) => {
    const reply = await attempt(asked);
    if (reply) setSecret(reply.body.secret);
    again();
    return reply !== undefined;
  };
  const columns = [
    { id: "label", label: "Key", value: (each) => each.label || each.id, cell: (each) => each.label || each.id },
    { id: "last", label: "Ends with", cell: (each) => html`<code>…${each.last_four}</code>` },
    { id: "models", label: "Models", cell: (each) => (each.models === null ? "all" : each.models.join(", ")) },
    { id: "made", label: "Made", value: (each) => each.created_at, cell: (each) => time(each.created_at) },
    { id: "ends", label: "Expires", value: (each) => each.expires_at, cell: (each) => (each.expires_at === null ? "never" : time(each.expires_at)) },
    { id: "used", label: "Last used", value: (each) => each.last_used_on, cell: (each) => each.last_used_on ?? "never" },
    { id: "state", label: "State", cell: stateOf },
    ...(mayChange("keys") ? [{ id: "act", label: html`<span class="only-read">Change</span>`, cell: (each) => html`<${Actions} key=${each.id} each=${each} again=${again} made=${made} />` }] : []),
  ];
  return html`<h2>Keys${group === null ? "" : html` <small class="dim">of its administrators</small>`}</h2>
    <${Table} label="Keys" columns=${columns} rows=${keys.value} keyOf=${(each) => each.id} sort=${{ id: "made", down: true }}
      empty="No key was made for it here. Keys of a file, and tokens of an identity provider, are not listed." />
    ${secret === null ? null : html`<div class="verdict" role="status"><p>The new key, which is shown this once: <code class="secret">${secret}</code>${" "}
      <${Copy} text=${secret} />
      <button class="quiet" onClick=${() => setSecret(null)}>Hide it</button></p></div>`}
    ${mayChange("keys") ? html`<${NewKey} of=${group === null ? { tenant } : { role: "group-admin", group }} made=${made} />` : null}`;
}

const isOver = (each) => each.revoked || (each.expires_at !== null && each.expires_at * 1000 <= Date.now());

const stateOf = (each) => (each.revoked ? html`<span class="bad">revoked</span>` : isOver(each) ? html`<span class="warn">expired</span>` : "valid");

function Actions({ each, again, made }) {
  if (isOver(each)) return null;
  const name = each.label || each.id;
  const revoke = async () => {
    const isDone = await attempt(() => patch(path("keys", each.id), { revoked: true }));
    if (isDone) notify(`${name} is revoked.`);
    again();
  };
  return html`<button class="quiet" aria-label=${`Rotate ${name}`} onClick=${() => made(() => post(`${path("keys", each.id)}/rotate`, { overlap_s: OVERLAP_S }))}>Rotate</button>
    <${Sure} label="Revoke" of=${name} act=${revoke} />`;
}

function NewKey({ of, made }) {
  const [label, setLabel] = useState("");
  const [days, setDays] = useState("");
  const submit = async (event) => {
    event.preventDefault();
    const fields = { ...of, ...(label.trim() ? { label: label.trim() } : {}), ...(days ? { expires_in_s: Math.round(Number(days) * DAY_S) } : {}) };
    if (await made(() => post("/keys", fields))) setLabel("");
  };
  return html`<form class="ask fields" aria-label="Make a key" onSubmit=${submit}>
    <label>Label <input type="text" maxlength=${LABEL.maxLength} value=${label} onInput=${(event) => setLabel(event.target.value)} placeholder=${LABEL.example} /></label>
    <label>Days valid <input type="number" min="0.01" max=${EXPIRES_IN_S.max / DAY_S} step="any" value=${days} onInput=${(event) => setDays(event.target.value)} placeholder="for ever" /></label>
    <button>Make a key</button></form>`;
}
