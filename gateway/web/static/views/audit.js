// The audit log: every change with its author, by kind, author, name and text.

import { get } from "../api.js";
import { Actor, differenceOf } from "./changes.js";
import { html, link, Table, usePolled } from "../ui.js";
import { count, time } from "../words.js";

const POLL_MS = 10000;
const LIMIT = 1000;
const KINDS = ["tenants", "groups", "tiers", "keys", "backends", "pools", "prices", "aliases", "requests", "notices", "notes"];
const VIEWS = { tenants: "tenant", groups: "group", tiers: "tier", backends: "backend", aliases: "alias", prices: "price", requests: "request" };
const FIELDS = [["actor", "By"], ["name", "Of"], ["text", "What"]];

export function Audit({ query }) {
  const kind = KINDS.includes(query.get("kind")) ? query.get("kind") : "";
  const filters = Object.fromEntries(FIELDS.map(([id]) => [id, query.get(id) || ""]));
  const [answer] = usePolled(async (signal) => (await get(`/audit?limit=${LIMIT}${kind ? `&kind=${kind}` : ""}`, { signal })).body, [kind], POLL_MS);
  const show = (event) => {
    event.preventDefault();
    location.hash = `${link("audit")}?${new URLSearchParams([...new FormData(event.target)].map(([id, value]) => [id, value.trim()]).filter(([, value]) => value))}`;
  };
  const rows = (answer.value?.items ?? []).map((each) => ({ ...each, what: differenceOf(each) })).filter(
    (each) => has(`${each.actor} ${each.actor_label ?? ""}`, filters.actor) && has(each.name, filters.name) && has(each.what, filters.text),
  );
  const columns = [
    { id: "at", label: "When", value: (each) => -each.at, cell: (each) => html`<span class="name">${time(each.at)}</span>` },
    { id: "actor", label: "By", value: (each) => each.actor_label ?? each.actor, cell: (each) => html`<${Actor} of=${each} />` },
    { id: "kind", label: "Kind", value: (each) => each.kind, cell: (each) => each.kind },
    { id: "name", label: "Of", value: (each) => each.name, cell: (each) => (VIEWS[each.kind] ? html`<a class="name" href=${link(VIEWS[each.kind], each.name)}>${each.name}</a>` : html`<span class="name">${each.name}</span>`) },
    { id: "what", label: "What", kind: "text", lead: true, cell: (each) => each.what },
    { id: "replica", label: "At", hide: "wide", value: (each) => each.replica, cell: (each) => html`<span class="name">${each.replica ?? ""}</span>` },
  ];
  return html`<h1>Changes <small class="dim">who changed what, the newest first</small></h1>
    <form class="controls" key=${String(query)} aria-label="Filters" onSubmit=${show}>
      <label>Kind <select name="kind">${["", ...KINDS].map((each) => html`<option key=${each} value=${each} selected=${each === kind}>${each || "all"}</option>`)}</select></label>
      ${FIELDS.map(([id, label]) => html`<label key=${id}>${label} <input type="search" name=${id} defaultValue=${filters[id]} placeholder="all" /></label>`)}
      <button>Show</button>${String(query) ? html` <a href=${link("audit")}>Show all</a>` : null}</form>
    ${answer.error ? html`<p class="bad" role="alert">${answer.error.message}</p>` : null}
    ${answer.value ? html`<${Table} label="Changes" columns=${columns} rows=${rows} keyOf=${(each) => each.revision} sort=${{ id: "at", down: false }} size=${50} empty="None is like that." />` : answer.error ? null : html`<p class="dim" aria-busy="true">Asking…</p>`}
    ${answer.value?.next_cursor ? html`<p class="dim">These are of the newest ${count(LIMIT)}${kind ? ` of ${kind}` : ""}.</p>` : null}`;
}

const has = (text, part) => text.toLowerCase().includes(part.toLowerCase());
