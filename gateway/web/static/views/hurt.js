// Which tenants are hurt now, and why: one word for each, the gravest, and a sentence.

import { html, link } from "../ui.js";
import { listed, percent, plural, refusal, seconds, wait } from "../words.js";

const MINUTE = 1; // the window that sentences are about
/** Of its requests, so many are in time where the 99th percentile is, which is shown beside each target. */
const IN_TIME = 0.99;
const BUDGET = "budget_spent";
const OWN_LIMITS = ["tenant_limit", "key_limit"];

export const isShort = (got, part) => part != null && (got || 0) < part - Math.max(0.01, 0.1 * part);
export const shareOf = (each) => each.share?.[MINUTE] || 0;
/** Whether it waits although it got less than its due of the last minute. */
export const isHeldShort = (each) => each.queued > 0 && isShort(shareOf(each), each.due?.[MINUTE]);

/** {word, why} of a row of the live document; null: it is not hurt. `isSpent`: a budget of it is spent. */
export function hurtOf(each, isSpent = false) {
  const { refused = 0, refused_by: by = {} } = each;
  const calls = `${plural(refused, "call")} refused in the last minute`;
  if (isSpent || by[BUDGET]) return { word: "over budget", why: refused ? calls : "its next call will be refused" };
  if (refused) {
    const reasons = Object.entries(by).sort(([, a], [, b]) => b - a).map(([reason]) => refusal(reason));
    return { word: "refused", why: `${calls}${reasons.length > 0 ? `: ${listed(reasons, 2)}` : ""}` };
  }
  if (each.attainment_ratio != null && each.attainment_ratio < IN_TIME) {
    return { word: "late", why: `${percent(each.attainment_ratio)} of its requests were in time in the last 15 min` };
  }
  if (each.queued > 0 && (OWN_LIMITS.includes(each.waits) || isHeldShort(each))) {
    const waits = `${plural(each.queued, "request")} ${each.queued === 1 ? "waits" : "wait"}, the oldest for ${seconds(each.oldest_wait_s)}`;
    const cause = OWN_LIMITS.includes(each.waits) ? wait(each.waits) : `it got ${percent(shareOf(each))} in the last minute, and ${percent(each.due?.[MINUTE])} is due`;
    return { word: "held", why: `${waits}: ${cause}` };
  }
  return null;
}

const GRAVEST = ["over budget", "refused", "late", "held"];
export const gravity = (hurt) => (hurt === null ? null : GRAVEST.length - GRAVEST.indexOf(hurt.word));

export const Hurt = ({ hurt }) => (hurt === null ? null : html`<span class="hurt" title=${hurt.why}>${hurt.word}</span>`);

const SAID_MAX = 3;

/** Which tenants of a pool are hurt and why, as a sentence; the gravest first. */
export function whoIsHurt(tenants) {
  const hurt = tenants.map((each) => ({ id: each.id, ...hurtOf(each) })).filter((each) => each.word);
  if (hurt.length === 0) return tenants.length === 0 ? null : html`<p><strong class="ok">No tenant is hurt:</strong> none is over budget, refused, late or held back.</p>`;
  hurt.sort((a, b) => gravity(b) - gravity(a) || a.id.localeCompare(b.id));
  const said = hurt.slice(0, SAID_MAX).map(({ id, word, why }, at) => html`${at > 0 ? "; " : ""}<a class="name" href=${link("tenant", id)}>${id}</a> is <strong>${word}</strong> (${why})`);
  return html`<p class="who-is-hurt"><strong class="bad">${plural(hurt.length, "tenant")} ${hurt.length === 1 ? "is" : "are"} hurt:</strong> ${said}${hurt.length > SAID_MAX
    ? html`; <a href=${`${link("tenants")}?hurt=1`}>and ${hurt.length - SAID_MAX} more</a>` : ""}.</p>`;
}
