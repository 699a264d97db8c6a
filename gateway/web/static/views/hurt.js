// Which tenants are hurt now, and why: one word for each, the gravest, and a sentence.

import { all, get } from "../api.js";
import { html, link, usePolled } from "../ui.js";
import { clock, count, listed, percent, plural, refusal, seconds, time, wait } from "../words.js";
import { Actor, differenceOf, gaveMore, WRITTEN_OVER } from "./changes.js";

const MINUTE = 1; // the window that sentences are about
/** Of its requests, so many are in time where the 99th percentile is, which is shown beside each target. */
const IN_TIME = 0.99;
const BUDGET = "budget_spent";
export const OWN_LIMITS = ["tenant_limit", "key_limit"];

export const isShort = (got, part) => part != null && (got || 0) < part - Math.max(0.01, 0.1 * part);
export const shareOf = (each) => each.share?.[MINUTE] || 0;
/** Whether it waits although it got less than its due of the last minute. */
export const isHeldShort = (each) => each.queued > 0 && isShort(shareOf(each), each.due?.[MINUTE]);

/** The budget of which the largest part is used, by tenant and by group: of which tokens or money, and whose. */
export function mostUsed(budgets) {
  const most = { tenant: new Map(), group: new Map() };
  for (const each of budgets) {
    const ratio = Number(each.limit) ? each.used / each.limit : 1;
    const [kind, id] = each.tenant ? ["tenant", each.tenant] : ["group", each.group];
    if (!id || most[kind].get(id)?.ratio >= ratio) continue;
    const whose = each.key ? `key ${each.key}` : kind === "group" ? `group ${id}` : "";
    const limit = each.unit === "cost" ? `${each.limit} of cost` : `${count(each.limit)} tokens`;
    most[kind].set(id, {
      ratio, isSpent: each.remaining <= 0, of: `${each.unit} per ${each.period}${whose ? `, ${whose.split(" ", 1)[0]}` : ""}`,
      text: `${whose ? `its ${whose}` : "it"} may use ${limit} per ${each.period}, until ${time(each.renewed_at).slice(0, -3)}`,
    });
  }
  return ({ id, group }) => {
    const [own, its] = [most.tenant.get(id), most.group.get(group)];
    return own && !(its?.ratio > own.ratio) ? own : its;
  };
}

/** {word, why} of a row of the live document; null: it is not hurt. `used`: the budget of which the most is used. */
export function hurtOf(each, used = undefined) {
  const { refused = 0, refused_by: by = {} } = each;
  const calls = `${plural(refused, "call")} refused in the last minute`;
  if (used?.isSpent || by[BUDGET]) return { word: "over budget", why: `${refused ? calls : "its next call will be refused"}${used ? `: ${used.text}` : ""}` };
  if (refused) {
    const reasons = Object.entries(by).sort(([, a], [, b]) => b - a).map(([reason]) => refusal(reason));
    return { word: "refused", why: `${calls}${reasons.length > 0 ? `: ${listed(reasons, 2)}` : ""}` };
  }
  const waits = each.queued > 0 ? `${plural(each.queued, "request")} ${each.queued === 1 ? "waits" : "wait"}, the oldest for ${seconds(each.oldest_wait_s)}` : "";
  if (each.attainment_ratio != null && each.attainment_ratio < IN_TIME) {
    return { word: "late", why: `${percent(each.attainment_ratio)} of its requests were in time in the last 15 min${waits && each.waits ? `; ${waits}: ${wait(each.waits)}${OWN_LIMITS.includes(each.waits) ? "" : besideDue(each)}` : ""}` };
  }
  if (waits && (OWN_LIMITS.includes(each.waits) || isHeldShort(each))) {
    const cause = OWN_LIMITS.includes(each.waits) ? wait(each.waits) : `it got ${percent(shareOf(each))} in the last minute, and ${percent(each.due?.[MINUTE])} is due`;
    return { word: "held", why: `${waits}: ${cause}` };
  }
  return null;
}

/** Whether it gets too little, or asks for too much. */
function besideDue(each) {
  const isDue = each.due?.[MINUTE];
  if (isHeldShort(each)) return `, and it got ${percent(shareOf(each))} in the last minute of the ${percent(isDue)} that is due`;
  return each.due_by?.[MINUTE] === "weight" ? `; it gets what is due by its weight, ${percent(isDue)}, and asks for more` : "";
}

const GRAVEST = ["over budget", "refused", "late", "held"];
export const gravity = (hurt) => (hurt === null ? null : GRAVEST.length - GRAVEST.indexOf(hurt.word));

export const Hurt = ({ hurt }) => (hurt === null ? null : html`<span class="hurt" title=${hurt.why}>${hurt.word}</span>`);

const SAID_MAX = 3;
const BUDGETS_MS = 10000;
const RECENT_S = 3600;
const CHANGES_MAX = 100; // the newest

/** The budgets of tenants that are over one, as `mostUsed`: they are asked for while any is. */
export function useUsed(tenants) {
  const isOver = tenants.some((each) => each.refused_by?.[BUDGET]);
  const [budgets] = usePolled(async (signal) => (isOver ? all("/state/budgets", { signal }) : []), [isOver], isOver ? BUDGETS_MS : 0);
  return mostUsed(budgets.value || []);
}

/** What was changed of these entries of a kind in the last hour, by name: it is the first suspect, but where a tenant got
 * more by it.
 */
export function useChanged(kind, ids) {
  const [audit] = usePolled(async (signal) => (ids.length > 0 ? (await get(`/audit?kind=${kind}&limit=${CHANGES_MAX}`, { signal })).body.items : []), [ids.join()], ids.length > 0 ? BUDGETS_MS : 0);
  const since = Date.now() / 1000 - RECENT_S;
  return new Map((audit.value ?? []).filter((each) => each.at > since && !(kind === "tenants" && gaveMore(each))).reverse().map((each) => [each.name, each]));
}

export const changedBy = (each) => (each ? html`; changed at ${time(each.at).slice(11, 16)} by <${Actor} of=${each} />: ${differenceOf(each).replace(WRITTEN_OVER, "")}` : "");

const TROUBLED_S = 1; // a wait that is told
const CALM_S = 60; // so long a pause ends a trouble

/** Since when calls of these tenants have waited or were refused, by name, as far as it is recorded; in pauses of a minute at
 * most.
 */
export function useSince(ids) {
  const [answers] = usePolled((signal) => Promise.all(ids.map(async (id) => [id, begun((await get(`/history?of=${encodeURIComponent(`tenant:${id}`)}&range=1h`, { signal })).body)])), [ids.join("\n")], ids.length > 0 ? BUDGETS_MS : 0);
  return new Map(answers.value ?? []);
}

function begun({ from_s: from, step_s: stepS, pools }) {
  const all = Object.values(pools).map(({ values }) => values);
  const length = all[0]?.wait_s.length ?? 0;
  const isTroubled = (at) => all.some(({ wait_s: waits, refused }) => waits[at] >= TROUBLED_S || refused[at] > 0);
  let first = null;
  for (let at = length - 1, calm = 0; at >= 0 && calm * stepS <= CALM_S; at -= 1) {
    calm = isTroubled(at) ? 0 : calm + 1;
    if (calm === 0) first = at;
  }
  return first === null ? null : from + first * stepS;
}

export const sinceAbout = (unixS) => (unixS == null ? "" : `; so since about ${clock(unixS)}`);

const LONG_S = 5;

/** Where no target says that it is late, a long wait is said all the same. */
function longestWait(tenants, first) {
  const longest = tenants.reduce((most, each) => ((each.oldest_wait_s ?? 0) > (most?.oldest_wait_s ?? LONG_S) ? each : most), null);
  return longest && html` ${first} ${plural(longest.queued, "request")} of <a class="name" href=${link("tenant", longest.id)}>${longest.id}</a>${longest.attainment_ratio == null ? ", which has no target," : ""} ${longest.queued === 1 ? "waits" : "wait"}, the oldest for <strong>${seconds(longest.oldest_wait_s)}</strong>: ${wait(longest.waits)}.`;
}

/** Which tenants of a pool are hurt, why and since when, as a sentence; the gravest first. With it what was changed of tiers. */
export function WhoIsHurt({ tenants, tiers }) {
  const used = useUsed(tenants);
  const hurt = tenants.map((each) => ({ id: each.id, ...hurtOf(each, used(each)) })).filter((each) => each.word);
  hurt.sort((a, b) => gravity(b) - gravity(a) || a.id.localeCompare(b.id));
  const shown = hurt.slice(0, SAID_MAX);
  const changed = useChanged("tenants", hurt.map((each) => each.id).sort());
  const ofTiers = useChanged("tiers", hurt.length > 0 ? tiers.map((each) => each.id).sort() : []);
  const since = useSince(shown.map((each) => each.id).sort());
  if (hurt.length === 0) return tenants.length === 0 ? null : html`<p><strong class="ok">No tenant is hurt:</strong> none is over budget, refused, late or held back.${longestWait(tenants, "But")}</p>`;
  const said = shown.map(({ id, word, why }, at) => html`${at > 0 ? "; " : ""}<a class="name" href=${link("tenant", id)}>${id}</a> is <strong>${word}</strong> (${why}${sinceAbout(since.get(id))}${changedBy(changed.get(id))})`);
  return html`<p class="who-is-hurt"><strong class="bad">${plural(hurt.length, "tenant")} ${hurt.length === 1 ? "is" : "are"} hurt:</strong> ${said}${hurt.length > SAID_MAX
    ? html`; <a href=${`${link("tenants")}?hurt=1`}>and ${hurt.length - SAID_MAX} more</a>` : ""}.${longestWait(tenants.filter((each) => hurt.every(({ id }) => id !== each.id)), "Beside that,")}</p>
    ${tiers.filter((each) => ofTiers.has(each.id)).map((each) => html`<p>Tier <a class="name" href=${link("tier", each.id)}>${each.id}</a>${changedBy(ofTiers.get(each.id))}.</p>`)}`;
}
