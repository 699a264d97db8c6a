// Groups: all of them, and one with what it gets, what it may spend, its settings, its tenants and its administrators' keys.

import { all, get, path } from "../api.js";
import { may, ownGroup } from "../session.js";
import { Budgets } from "./budgets.js";
import { Changes } from "./changes.js";
import { History } from "./history.js";
import { Keys } from "./keys.js";
import { Make, Remove } from "./making.js";
import { dueBy, entries, Tenants } from "./now.js";
import { Settings } from "./settings.js";
import { Figure, html, link, ShareBar, Table, TenantLink, useLive, usePolled } from "../ui.js";
import { count, decimal, due, NONE, seconds } from "../words.js";

const WINDOWS = ["10 s", "1 min", "15 min"];
const MINUTE = 1; // the window that sentences are about
const POLL_MS = 10000;

export function Groups() {
  const { document: state } = useLive();
  const [groups] = usePolled((signal) => all("/groups", { signal }), [], POLL_MS);
  const [tiers] = usePolled((signal) => all("/tiers", { signal }), [], POLL_MS);
  const pools = entries(state?.pools);
  const live = (id, name) => pools.reduce((total, pool) => total + (pool.groups?.[id]?.[name] || 0), 0);
  const columns = [
    { id: "id", label: "Group", value: (each) => each.id, cell: (each) => html`<a class="name" href=${link("group", each.id)}>${each.id}</a>` },
    { id: "tier", label: "Tier", value: (each) => each.tier, cell: (each) => html`<a href=${link("tier", each.tier)}>${each.tier}</a>` },
    { id: "weight", label: "Weight", kind: "number", value: (each) => each.weight, cell: (each) => decimal(each.weight) },
    ...pools.map((pool) => ({ id: `share-${pool.id}`, label: `Share of ${pool.id}, 1 min`, note: "of the pool: got / due", kind: "share-column",
      value: (each) => pool.groups?.[each.id]?.share?.[MINUTE] ?? 0, cell: (each) => shareOf(pool.groups?.[each.id]) })),
    { id: "queued", label: "Queued", kind: "number", value: (each) => live(each.id, "queued"), cell: (each) => count(live(each.id, "queued")) },
    { id: "in-flight", label: "In flight", kind: "number", value: (each) => live(each.id, "in_flight"), cell: (each) => count(live(each.id, "in_flight")) },
  ];
  const tierOptions = (tiers.value || []).map((each) => [each.id, each.id]);
  const known = tierOptions.some(([id]) => id === "default") ? tierOptions : [["default", "default"], ...tierOptions];
  return html`<h1>Groups <small class="dim">tenants that share their tier as one</small></h1>
    ${groups.error ? html`<p class="bad" role="alert">${groups.error.message}</p>` : null}
    ${groups.value ? html`<${Table} label="Groups" columns=${columns} rows=${groups.value} empty="There is no group. Make one for a team: its tenants share their tier as one, whatever their number, and have limits together." keyOf=${(each) => each.id} sort=${{ id: "id", down: false }} />` : null}
    <${Make} kind="groups" view="group" title="Make a group" inputs=${[
      { name: "id", label: "Name", placeholder: "research" },
      { name: "tier", label: "Tier", options: known, value: (text) => text || known[0][0] },
    ]} />`;
}

const shareOf = (group) => (group === undefined ? NONE : html`<${ShareBar} got=${group.share?.[MINUTE]} due=${group.due?.[MINUTE]} waits=${group.queued > 0} />`);

export function Group({ id }) {
  const { document: state } = useLive();
  const [settings, again] = usePolled((signal) => readSettings(id, signal), [id], POLL_MS);
  const pools = entries(state?.pools).filter((pool) => pool.groups?.[id]);
  if (settings.value === null && settings.error?.status === 404) {
    return html`<h1>${id} <small class="dim">group</small></h1><p role="alert">There is no such group. <a href=${link("groups")}>See all.</a></p>`;
  }
  const group = settings.value?.fields;
  const tier = group === undefined ? "" : may("viewer") ? html`, tier <a href=${link("tier", group.tier)}>${group.tier}</a>` : `, tier ${group.tier}`;
  return html`<h1>${id} <small class="dim">group${tier}</small></h1>
    ${settings.error ? html`<p class="bad" role="alert">${settings.error.message}</p>` : null}
    ${pools.map((pool) => html`<${InPool} key=${pool.id} pool=${pool} group=${pool.groups[id]} members=${entries(pool.tenants).filter((each) => each.group === id)} />`)}
    ${pools.length === 0 ? html`<p class="dim">None of its tenants sent anything in the last 15 minutes.</p>` : null}
    <${History} of=${`group:${id}`} />
    ${settings.value ? html`<${Members} id=${id} members=${settings.value.members} />
      <${Settings} kind="groups" id=${id} settings=${settings.value} now=${pools.map((pool) => pool.groups[id])} again=${again} />` : null}
    <${Budgets} of="group" id=${id} />
    ${ownGroup() === null ? html`<${Keys} group=${id} /><${Changes} kind="groups" id=${id} settings=${settings.value} />` : null}
    ${settings.value ? html`<${Remove} kind="groups" id=${id} settings=${settings.value} loses="A group without tenants can be removed; keys of its administrators go with it." leads=${link("groups")} />` : null}`;
}

async function readSettings(id, signal) {
  const isOwn = ownGroup() !== null;
  const [{ body, etag }, tenants, tiers] = await Promise.all([
    get(path("groups", id), { signal }), all("/tenants", { signal }), isOwn ? [] : all("/tiers", { signal }),
  ]);
  return { fields: body, etag, isStored: true, origin: body.origin, tiers, members: tenants.filter((each) => each.group === id) };
}

function InPool({ pool, group, members }) {
  const oldest = members.reduce((most, each) => Math.max(most, each.oldest_wait_s ?? -1), -1);
  const reason = dueBy(group);
  return html`<section aria-label=${`In the pool ${pool.id}`}>
    <h2>Now <small class="dim">in the pool ${pool.id}</small></h2>
    <dl class="figures">
      <${Figure} label="requests queued" value=${count(group.queued || 0)} />
      <${Figure} label="oldest wait" value=${seconds(oldest < 0 ? null : oldest)} />
      <${Figure} label="requests in flight" value=${count(group.in_flight || 0)} />
    </dl>
    <dl class="shares">${WINDOWS.map((label, at) => html`<dt key=${`t${label}`}>Got / due, ${label}</dt>
      <dd key=${`d${label}`}><${ShareBar} got=${group.share?.[at]} due=${group.due?.[at]} waits=${group.queued > 0} /></dd>`)}</dl>
    ${reason === null ? null : html`<p class="dim">Its due of the last minute is ${due(reason)}.</p>`}
    <${Tenants} tenants=${members} />
  </section>`;
}

/** All of its tenants, also those that send nothing. */
function Members({ id, members }) {
  const columns = [
    { id: "id", label: "Tenant", value: (each) => each.id, cell: (each) => html`<${TenantLink} id=${each.id} />` },
    { id: "weight", label: "Weight", kind: "number", value: (each) => each.weight, cell: (each) => decimal(each.weight) },
    { id: "in-flight", label: "In-flight limit", kind: "number", value: (each) => each.in_flight_max, cell: (each) => count(each.in_flight_max) },
    { id: "day", label: "Tokens per day", kind: "number", value: (each) => each.tokens_per_day_max, cell: (each) => count(each.tokens_per_day_max) },
    { id: "month", label: "Tokens per month", kind: "number", value: (each) => each.tokens_per_month_max, cell: (each) => count(each.tokens_per_month_max) },
    { id: "cost", label: "Cost per month", kind: "number", value: (each) => Number(each.cost_per_month_max ?? 0), cell: (each) => each.cost_per_month_max ?? NONE },
  ];
  return html`<h2>Its tenants <small class="dim">${count(members.length)}</small></h2>
    <${Table} label="Its tenants" columns=${columns} rows=${members} keyOf=${(each) => each.id} sort=${{ id: "id", down: false }} empty="It has none." />
    <${Make} kind="tenants" view="tenant" title="Make a tenant" prefix=${`${id}/`} fields=${(given) => ({ ...given, group: id })} inputs=${[{ name: "id", label: "Name", placeholder: "alice" }]} />`;
}
