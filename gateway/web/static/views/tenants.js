// Tenants: all of them, also those that send nothing; which are hurt, what they get and have left, and when each was seen last.

import { useState } from "preact/hooks";
import { all } from "../api.js";
import { gravity, Hurt, hurtOf, mostUsed } from "./hurt.js";
import { Compared, TOKENS } from "./history.js";
import { Make } from "./making.js";
import { entries } from "./now.js";
import { mayChange } from "../session.js";
import { html, link, Meter, ShareBar, Table, TenantLink, useLive, usePolled } from "../ui.js";
import { count, NONE, percent } from "../words.js";

const MINUTE = 1; // the window of shares
const POLL_MS = 10000;
const PAGES = 20; // of a thousand entries
const DEFAULT_TIER = "default";

/** What is stored of tenants: settings, budgets and days of use. */
async function readStored(signal) {
  const lists = ["/tenants", "/state/budgets", "/usage/last-days", "/tiers", "/groups"].map((list) => all(list, { pages: PAGES, signal }));
  const [settings, budgets, days, tiers, groups] = await Promise.all(lists);
  return { settings, used: mostUsed(budgets), days: new Map(days.map((each) => [each.tenant, each.last_used_on])), tiers, groups };
}

/** A row for every tenant that has settings, called in the days that are kept, or is in the live document. */
function rowsOf(stored, pools) {
  const live = new Map();
  for (const [id, each] of pools.flatMap((pool) => Object.entries(pool.tenants || {}))) live.set(id, [...(live.get(id) || []), each]);
  const settings = new Map((stored?.settings || []).map((each) => [each.id, each]));
  const ids = new Set([...settings.keys(), ...(stored?.days.keys() ?? []), ...live.keys()]);
  return [...ids].map((id) => {
    const now = live.get(id) || [];
    const { tier = DEFAULT_TIER, group = null } = settings.get(id) || now[0] || {};
    const used = stored?.used({ id, group });
    const sum = (name) => now.reduce((total, each) => total + (each[name] || 0), 0);
    const hurts = (now.length > 0 ? now : [{}]).map((each) => hurtOf(each, used)).filter((each) => each !== null);
    return {
      id, tier, group, used, queued: sum("queued"), in_flight: sum("in_flight"), share: now.reduce((most, each) => Math.max(most, each.share?.[MINUTE] ?? 0), 0),
      busiest: now.reduce((most, each) => (most === null || (each.share?.[MINUTE] ?? 0) > (most.share?.[MINUTE] ?? 0) ? each : most), null),
      hurt: hurts.reduce((worst, each) => (worst === null || gravity(each) > gravity(worst) ? each : worst), null),
      seen: now.length > 0 ? "15 min" : (stored?.days.get(id) ?? null),
    };
  });
}

const isWanted = (each, text) => [each.id, each.tier, each.group ?? "", each.hurt?.word ?? ""].some((part) => part.toLowerCase().includes(text));

/** `query`: hurt=1 asks for those alone that are hurt. */
export function AllTenants({ query }) {
  const { document: state } = useLive();
  const [stored, again] = usePolled(readStored, [], POLL_MS);
  const [search, setSearch] = useState("");
  const rows = rowsOf(stored.value, entries(state?.pools));
  const isOfHurt = query.get("hurt") === "1";
  const hurt = rows.filter((each) => each.hurt !== null);
  const text = search.trim().toLowerCase();
  const shown = (isOfHurt ? hurt : rows).filter((each) => text === "" || isWanted(each, text));
  const tab = (asked, label) => html`<a class="chip" href=${link("tenants") + asked} aria-current=${isOfHurt === (asked !== "") ? "page" : undefined}>${label}</a>`;
  return html`<h1>Tenants <small class="dim">all that have settings or ever called</small></h1>
    <div class="bar">
      <nav class="tabs" aria-label="Which tenants">${tab("", `All ${count(rows.length)}`)}${tab("?hurt=1", `Hurt ${count(hurt.length)}`)}</nav>
      <label>Search <input type="search" value=${search} onInput=${(event) => setSearch(event.target.value)} placeholder="name, tier, group, state" /></label>
    </div>
    ${stored.error ? html`<p class="bad" role="alert">${stored.error.message}</p>` : null}
    <${Compared} of=${mostServed(rows)} charts=${[TOKENS]} which="of those that got the most in the last 15 minutes, " />
    <${Table} label="Tenants" columns=${COLUMNS} rows=${shown} keyOf=${(each) => each.id} sort=${{ id: "state", down: true }}
      empty=${text ? "No tenant has this in its name, tier, group or state." : isOfHurt ? "No tenant is hurt now." : "There is no tenant yet. Make one below, or call the gateway: a call makes its tenant known."} />
    <${NewTenant} stored=${stored.value} again=${again} />`;
}

const LONGEST = 2; // the window of 15 minutes: in that of one minute others come and go
const mostServed = (rows) => rows.filter((each) => each.busiest?.share?.[LONGEST] > 0).sort((a, b) => b.busiest.share[LONGEST] - a.busiest.share[LONGEST] || a.id.localeCompare(b.id)).map((each) => `tenant:${each.id}`);

const COLUMNS = [
  { id: "id", label: "Tenant", value: (each) => each.id, cell: (each) => html`<${TenantLink} id=${each.id} />` },
  { id: "state", label: "State", lead: true, value: (each) => gravity(each.hurt), cell: (each) => (each.hurt === null ? NONE : html`<${Hurt} hurt=${each.hurt} /> <span class="dim">${each.hurt.why}</span>`), kind: "text" },
  { id: "tier", label: "Tier", value: (each) => each.tier, cell: (each) => html`<a href=${link("tier", each.tier)}>${each.tier}</a>` },
  { id: "group", label: "Group", value: (each) => each.group, cell: (each) => (each.group === null ? NONE : html`<a href=${link("group", each.group)}>${each.group}</a>`) },
  { id: "share", label: "Share, 1 min", note: "of the pool: got / due", kind: "share-column", value: (each) => each.share,
    cell: (each) => (each.busiest === null ? NONE : html`<${ShareBar} got=${each.busiest.share?.[MINUTE]} due=${each.busiest.due?.[MINUTE]} waits=${each.queued > 0} />`) },
  { id: "queued", label: "Queued", kind: "number", value: (each) => each.queued, cell: (each) => count(each.queued) },
  { id: "in-flight", label: "In flight", kind: "number", value: (each) => each.in_flight, cell: (each) => count(each.in_flight) },
  { id: "budget", label: "Budget used", note: "of the one that is spent first", kind: "meter-column", value: (each) => each.used?.ratio,
    cell: (each) => (each.used === undefined ? NONE : html`<${Meter} value=${each.used.ratio} limit=${1} text=${html`${percent(each.used.ratio)} <span class="dim">${each.used.of}</span>`} />`) },
  { id: "seen", label: "Last seen", note: "its last call; days in UTC", value: (each) => (each.seen === "15 min" ? "9999" : each.seen), cell: (each) => (each.seen === "15 min" ? "in the last 15 min" : (each.seen ?? html`<span class="dim">never</span>`)) },
];

/** Makes a tenant and leads to its page, where its key and its limits are made. */
function NewTenant({ stored, again }) {
  if (stored === null || !mayChange("tenants")) return null;
  const ids = (list) => list.map((each) => each.id);
  const tiers = [...new Set([DEFAULT_TIER, ...ids(stored.tiers)])];
  const inputs = [
    { name: "id", label: "Name", placeholder: "search" },
    { name: "tier", label: "Tier", isOptional: true, options: tiers.map((id) => [id === DEFAULT_TIER ? "" : id, id]) },
    { name: "group", label: "Group", isOptional: true, options: [["", "none"], ...ids(stored.groups).map((id) => [id, id])] },
  ];
  const fields = ({ tier, group, ...rest }) => ({ ...rest, ...(group ? { group } : tier ? { tier } : {}) }); // a group's tier is its tenants'
  return html`<h2>A new tenant <small class="dim">its key and its limits are made on its page</small></h2>
    <${Make} kind="tenants" view="tenant" title="Make a tenant" inputs=${inputs} fields=${fields} />`;
}
