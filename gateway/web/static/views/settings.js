// Settings of a tenant, a group, a tier or an alias: each is edited where it stands. What a change does is said before it is made, and it can
// be undone.

import { useEffect, useRef, useState } from "preact/hooks";
import { patch, path, post, put, remove } from "../api.js";
import { mayChange, ownGroup } from "../session.js";
import { attempt, html, notify } from "../ui.js";
import { count, decimal, NONE, percent, plural, seconds } from "../words.js";

/** A target that a tenant has from its tier, in words. */
const ofTier = (target) => ({ tier }) => {
  const value = tier?.envelope?.[target];
  return value == null ? "no target, as its tier" : `${seconds(value / 1000)}, of its tier ${tier.id}`;
};

/** What its in-flight limit has to do with what waits now. */
function inFlight(now) {
  const held = now.some((each) => each.waits === "tenant_limit");
  const text = `It has ${plural(sum(now, "in_flight"), "request")} in flight and ${count(sum(now, "queued"))} queued now.`;
  return held ? `${text} They wait for this limit: a higher one lets more of them start, where backends have room.` : text;
}

const LIMITS = [
  { name: "in_flight_max", label: "In-flight limit", unit: "requests in flight", used: inFlight },
  { name: "requests_per_minute_max", label: "Requests per minute" },
  { name: "tokens_per_minute_max", label: "Tokens per minute" },
  { name: "tokens_per_day_max", label: "Tokens per day" },
  { name: "tokens_per_month_max", label: "Tokens per month" },
  { name: "cost_per_day_max", label: "Cost per day", isAmount: true, step: "any", unit: "in the price lists' currency" },
  { name: "cost_per_month_max", label: "Cost per month", isAmount: true, step: "any", unit: "in the price lists' currency" },
];
const TIER = { name: "tier", label: "Tier", options: (settings) => settings.tiers.map((each) => [each.id, `${each.id} (weight ${decimal(each.weight)})`]), shares: true, isOperators: true, isFixed: (settings) => settings.fields.group != null };
/** The group that a tenant is in, whose tier it has then. */
const GROUP = {
  name: "group", label: "Group", shares: true, isOperators: true, none: () => "none",
  options: (settings) => [[null, "none"], ...settings.groups.map((each) => [each.id, each.id])],
  edit: (group, settings) => ({ group, tier: group === null ? settings.fields.tier : null }),
};
const TENANT_FIELDS = [
  GROUP,
  TIER,
  { name: "weight", label: "Weight", min: 1e-6, max: 1e6, step: "any", isRequired: true, shares: true },
  { name: "envelope.ttft_ms", label: "TTFT target", unit: "ms", step: "any", none: ofTier("ttft_ms") },
  { name: "envelope.tpot_ms", label: "TPOT target", unit: "ms", step: "any", none: ofTier("tpot_ms") },
  ...LIMITS,
  { name: "queued_requests_max", label: "Queue limit", unit: "requests queued", isOperators: true, none: () => "the gateway's limit", used: (now) => `${plural(sum(now, "queued"), "request")} queued now.` },
  { name: "queued_bytes_max", label: "Queue limit, bytes", unit: "bytes", isOperators: true, none: () => "the gateway's limit" },
];
const TIER_FIELDS = [
  { name: "weight", label: "Weight", min: 1e-6, max: 1e6, step: "any", isRequired: true, shares: true },
  { name: "envelope.ttft_ms", label: "TTFT target", unit: "ms", step: "any", none: () => "no target", about: "Requests with a target are sent early enough to meet it, where weights let them." },
  { name: "envelope.tpot_ms", label: "TPOT target", unit: "ms", step: "any", none: () => "no target", about: "A backend gets only so many requests that its steps stay below the target." },
  { name: "on_miss", label: "Late requests", options: () => [["wait", "wait all the same"], ["reject", "are rejected at once"]], about: "A request is late that would miss its target." },
  { name: "reserve_ratio", label: "Reserve", unit: "of every backend", min: 0, max: 0.99, step: "any", isRequired: true, about: "This part of every backend is kept free for the tier. All reserves together are less than 1." },
  { name: "priority", label: "Priority", min: -100, max: 100, step: 1, isRequired: true, about: "Tiers of lower priority are shed first. Below 0 a tier is shed when others are late or queues are full." },
  { name: "preemptible", label: "Preemptible", options: () => [[false, "no"], [true, "yes"]], about: "Its requests without any output yet return to the queue for one that would miss its target." },
];
const GROUP_FIELDS = [
  { ...TIER, shares: false, effect: "Its tenants move with it: from then on they share that tier, and have its targets." },
  { name: "weight", label: "Weight", min: 1e-6, max: 1e6, step: "any", isRequired: true, shares: true },
  ...LIMITS,
];

/** Text as names, and parts of a split as text and back: "large 9, small 1". */
export const namesOf = (text) => {
  const names = text.split(",").map((each) => each.trim()).filter(Boolean);
  return names.length > 0 ? names : undefined;
};
export const partsOf = (split) => Object.entries(split || {}).map(([name, weight]) => `${name} ${weight}`).join(", ");
const splitOf = (text) => {
  const parts = text.split(",").map((each) => /^\s*(\S.*?)\s+(\d+(?:\.\d+)?)\s*$/.exec(each));
  if (text.trim() === "") return {};
  return parts.every(Boolean) ? Object.fromEntries(parts.map(([, name, weight]) => [name, Number(weight)])) : undefined;
};
const ALIAS_FIELDS = [
  { name: "models", label: "Models, in order", isText: true, isRequired: true, parse: namesOf, about: "The first is tried first; the next where it has no backend, or would miss the tier's target." },
  { name: "split", label: "Split by weight", isText: true, parse: splitOf, none: () => "none: the first model is tried first", about: "Like: large 9, small 1. One of the models is tried first, by weight.",
    edit: (split, settings) => ({ split: { ...Object.fromEntries(Object.keys(settings.fields.split).map((name) => [name, null])), ...split } }) },
  { name: "sticky", label: "The same model for", options: () => [["tenant", "every call of a tenant"], ["session", "every call of a session"]] },
  { name: "shadow.model", label: "Copies to", isText: true, none: () => "no model", about: "Copies of calls go there as well; their answers are dropped.",
    edit: (model, settings) => ({ shadow: model === null ? null : { ...(settings.fields.shadow || {}), model } }) },
  { name: "shadow.ratio", label: "Part of the calls that is copied", min: 0.000001, max: 1, step: "any", none: () => "1, with a model" },
  { name: "shadow.in_flight_max", label: "Copies at once", none: () => "1, with a model" },
];
const FIELDS = { tenants: TENANT_FIELDS, groups: GROUP_FIELDS, tiers: TIER_FIELDS, aliases: ALIAS_FIELDS }; // by the API's name of the kind
const ORIGINS = { declared: "from the configuration file", admin: "made here", overridden: "changed here; the file says otherwise" };
/** The name of a field inside of a sentence. */
const lowered = (field) => (/^[A-Z]{2}/.test(field.label) ? field.label : field.label.toLowerCase());
const PREVIEW_MS = 200; // after the last key

const sum = (rows, name) => rows.reduce((total, each) => total + (each[name] || 0), 0);
const valueOf = (fields, name) => name.split(".").reduce((inner, part) => inner?.[part], fields) ?? null;
const nested = (name, value) => name.split(".").reduceRight((inner, part) => ({ [part]: inner }), value);

/** `kind` is the API's. `settings`: {fields, etag, isStored, origin, tiers, groups, members}; `now`: its rows of the live document. */
export function Settings({ kind, id, settings, now, again, wanted = null }) {
  const [edited, setEdited] = useState(null);
  const place = useRef(null);
  useEffect(() => {
    if (!FIELDS[kind].some((field) => field.name === wanted)) return;
    if (mayEdit(kind, FIELDS[kind].find((field) => field.name === wanted), settings)) setEdited(wanted);
    place.current.querySelector(`[data-field="${wanted}"]`).scrollIntoView({ block: "center" });
  }, [kind, id, wanted]);
  return html`<h2>Settings <small class="dim">${settings.isStored ? ORIGINS[settings.origin] : "none of its own: these are the defaults"}</small></h2>
    <dl class="settings" ref=${place}>${FIELDS[kind].map((field) => html`<${Setting} key=${field.name} kind=${kind} id=${id} field=${field} settings=${settings} now=${now}
      isWanted=${wanted === field.name} isEdited=${edited === field.name} edit=${() => setEdited(field.name)} close=${() => setEdited(null)} again=${again} />`)}</dl>`;
}

/** Whether the caller may edit this field: a group's administrator leaves some to operators. */
const mayEdit = (kind, field, settings) => mayChange(kind) && !(field.isOperators && ownGroup() !== null) && !field.isFixed?.(settings);
const isNone = (value) => value === null || (typeof value === "object" && Object.keys(value).length === 0);

function shown(field, value, settings) {
  if (isNone(value)) return html`<span class="dim">${without(field, settings)}</span>`;
  return `${said(field, value, settings)}${field.unit ? ` ${field.unit}` : ""}`;
}

/** What holds where a setting has no value of its own. */
const without = (field, settings) => field.none?.(settings) ?? "no limit";

/** A value in words. A tier is its name alone. */
function said(field, value, settings) {
  if (isNone(value)) return NONE;
  if (Array.isArray(value)) return value.join(", ");
  if (typeof value === "object") return partsOf(value);
  if (typeof value === "number") return decimal(value);
  const option = field.name === "tier" ? undefined : field.options?.(settings).find(([each]) => each === value);
  return option === undefined ? String(value) : option[1];
}

function Setting({ kind, id, field, settings, now, isWanted, isEdited, edit, close, again }) {
  const value = valueOf(settings.fields, field.name);
  const button = useRef(null);
  const wasEdited = useRef(false);
  useEffect(() => {
    if (wasEdited.current && !isEdited) button.current?.focus();
    wasEdited.current = isEdited;
  }, [isEdited]);
  return html`<div class=${isEdited ? "setting edited" : isWanted ? "setting wanted" : "setting"} data-field=${field.name}>
    <dt>${field.label}</dt>
    <dd>${isEdited
      ? html`<${Editor} kind=${kind} id=${id} field=${field} value=${value} settings=${settings} now=${now} close=${close} again=${again} />`
      : html`<span>${shown(field, value, settings)}</span>${mayEdit(kind, field, settings)
          ? html` <button ref=${button} class="quiet" aria-label=${`Edit ${lowered(field)}`} onClick=${edit}>Edit</button>`
          : null}`}</dd>
  </div>`;
}

/** The text of an amount; undefined where it is none. */
export const amountOf = (text) => (AMOUNT.test(text.trim()) ? text.trim() : undefined);

const AMOUNT = /^\d{1,9}(\.\d{1,6})?$/; // text, as the API has it: a floating-point number would round it

/** The value that was typed or chosen; null is the default; undefined where it is none that the field may have. */
function parsed(field, draft, options) {
  if (options) return options.find(([each]) => String(each) === draft)?.[0];
  if (field.parse) return field.parse(draft);
  if (draft.trim() === "") return field.isRequired ? undefined : null;
  if (field.isAmount) return amountOf(draft);
  if (field.isText) return draft.trim();
  const number = Number(draft);
  const isAllowed = Number.isFinite(number) && (field.min === undefined ? number > 0 : number >= field.min) && number <= (field.max ?? Infinity);
  return isAllowed ? number : undefined;
}

/** A value as it is typed, or as an option is named. */
function draftOf(value, isOption) {
  if (value === null) return isOption ? "null" : "";
  if (Array.isArray(value)) return value.join(", ");
  return typeof value === "object" ? partsOf(value) : String(value);
}

function Editor({ kind, id, field, value, settings, now, close, again }) {
  const [draft, setDraft] = useState(draftOf(value, field.options !== undefined));
  const [isBusy, setBusy] = useState(false);
  const input = useRef(null);
  useEffect(() => input.current.focus(), []);
  const options = field.options?.(settings);
  const wanted = parsed(field, draft, options);
  const isReady = wanted !== undefined && JSON.stringify(wanted) !== JSON.stringify(value);
  const submit = async (event) => {
    event.preventDefault();
    if (!isReady) return close();
    setBusy(true);
    const isDone = await attempt(() => change(kind, id, field, wanted, settings, again));
    setBusy(false);
    if (isDone) close();
  };
  const onKeyDown = (event) => {
    if (event.key === "Escape") close();
  };
  const label = field.label;
  return html`<form class="editor" onSubmit=${submit} onKeyDown=${onKeyDown}>
    ${options
      ? html`<select ref=${input} aria-label=${label} value=${draft} onChange=${(event) => setDraft(event.target.value)}>
          ${options.map(([each, text]) => html`<option key=${each} value=${String(each)}>${text}</option>`)}</select>`
      : field.isText
        ? html`<input ref=${input} type="text" aria-label=${label} value=${draft} placeholder=${field.isRequired ? "" : without(field, settings)} onInput=${(event) => setDraft(event.target.value)} />`
        : html`<input ref=${input} type="number" aria-label=${label} value=${draft} min=${field.min ?? (field.step ? 0 : 1)} max=${field.max}
          step=${field.step || 1} placeholder=${field.isRequired ? "" : without(field, settings)} onInput=${(event) => setDraft(event.target.value)} />`}
    ${field.unit || ""}
    <button class="primary" disabled=${isBusy || !isReady}>Save</button>
    <button type="button" onClick=${close}>Cancel</button>
    <div class="effect" aria-live="polite">${field.shares
      ? ownGroup() !== null
        ? html`<${InGroup} id=${id} weight=${isReady ? wanted : null} members=${settings.members} />`
        : html`<${Effect} kind=${kind} id=${id} field=${field} wanted=${isReady ? wanted : undefined} />`
      : html`<p class="dim">${field.effect ?? `${field.about ? `${field.about} ` : ""}This changes no tenant's due share. ${field.used?.(now) || ""}`}</p>`}</div>
  </form>`;
}

/** What a tenant gets of its group by its weight, while all of them wait; all that a group's administrator can be told. */
function InGroup({ id, weight, members }) {
  const part = (own) => {
    const all = members.reduce((total, each) => total + (each.id === id ? own : each.weight), 0);
    return percent(own / all);
  };
  const now = members.find((each) => each.id === id)?.weight;
  if (weight === null || now === undefined) return html`<p class="dim">What a change will do is said here before it is made.</p>`;
  return html`<p><strong>Share of the group, while all of its tenants wait: ${part(now)} now, ${part(weight)} then.</strong></p>
    <p class="dim">What the group gets stays as it is.</p>`;
}

/** What each tenant, group or tier gets by its weight, now and then. */
function Effect({ kind, id, field, wanted }) {
  const [effect, setEffect] = useState(null);
  useEffect(() => {
    setEffect(null);
    if (wanted === undefined) return undefined;
    let isGone = false;
    const timer = setTimeout(async () => {
      try {
        const { body } = await post("/preview", { [kind]: { [id]: { [field.name]: wanted } } });
        if (!isGone) setEffect({ pools: Object.entries(body.pools).map(([pool, each]) => [pool, each[kind]]) });
      } catch (error) {
        if (!isGone) setEffect({ error });
      }
    }, PREVIEW_MS);
    return () => {
      isGone = true;
      clearTimeout(timer);
    };
  }, [kind, id, field.name, wanted]);
  if (wanted === undefined) return html`<p class="dim">What a change will do is said here before it is made.</p>`;
  if (effect === null) return html`<p class="dim">Looking ahead…</p>`;
  if (effect.error) return html`<p class="bad">${effect.error.message}</p>`;
  if (effect.pools.length === 0) return html`<p class="dim">No pool serves it now, so no share changes.</p>`;
  return effect.pools.map(([pool, shares]) => html`<${PoolEffect} key=${pool} kind=${kind} id=${id} pool=${pool} shares=${shares} />`);
}

const NOUNS = { tenants: "this tenant", groups: "this group", tiers: "this tier" };
const OTHERS = 4; // those that gain or lose most

function PoolEffect({ kind, id, pool, shares }) {
  const own = shares[id];
  const others = Object.entries(shares)
    .filter(([name, each]) => name !== id && Math.abs(each.share_then - each.share_now) >= 0.0005)
    .sort(([, a], [, b]) => Math.abs(b.share_then - b.share_now) - Math.abs(a.share_then - a.share_now));
  return html`<p><strong>${own ? `Share of ${pool}: ${percent(own.share_now)} now, ${percent(own.share_then)} then.` : `It sends nothing to ${pool} now.`}</strong></p>
    ${own && !own.asks_all ? html`<p class="dim">${kind === "tenants" ? "It gets what it asks" : "Its tenants get what they ask"} for now, and would whatever its weight.</p>` : null}
    ${own?.asks_all && others.length === 0
      ? html`<p class="dim">No share changes: all others get what they ask for, and ${NOUNS[kind]} the rest.</p>`
      : null}
    ${others.length > 0
      ? html`<p class="dim">${others.slice(0, OTHERS).map(([name, each]) => `${name}: ${percent(each.share_now)} → ${percent(each.share_then)}`).join(" · ")}
          ${others.length > OTHERS ? ` · and ${others.length - OTHERS} more` : ""}</p>`
      : null}`;
}

/** What is given as a whole has no nulls. */
const withoutNulls = (fields) => Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== null));

/** Make the change, and offer to undo it. Throws a Problem. */
async function change(kind, id, field, wanted, settings, again) {
  const before = valueOf(settings.fields, field.name);
  const at = path(kind, id);
  const edit = field.edit ?? ((value) => nested(field.name, value));
  let made;
  try {
    made = settings.isStored
      ? await patch(at, edit(wanted, settings), settings.etag)
      : await put(at, withoutNulls(edit(wanted, settings)));
  } catch (error) {
    if (error.status === 412) throw new Error("It was changed meanwhile, by another operator or in another tab. What is there now is shown.");
    throw error;
  } finally {
    again();
  }
  const undo = () =>
    attempt(async () => {
      // An entry that this change made, or that the file alone had, goes back to what it was by its removal. That is not
      // for a group's administrator, which leaves the old value in the place of the file's.
      if (settings.isStored && (settings.origin !== "declared" || ownGroup() !== null)) await patch(at, edit(before, { ...settings, fields: { ...settings.fields, split: made.body.split } }), made.etag);
      else await remove(at, made.etag);
      notify(`${id}: ${lowered(field)} is ${said(field, before, settings)} again.`);
      again();
    });
  notify(`${id}: ${lowered(field)} ${said(field, before, settings)} → ${said(field, wanted, settings)}.`, { undo });
  return true;
}
