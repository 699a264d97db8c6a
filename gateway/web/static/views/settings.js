// Settings of a tenant, a group, a tier or an alias: each is edited where it stands. What a change does is said before it is made, and it can
// be undone.

import { useEffect, useRef, useState } from "preact/hooks";
import { patch, path, post, put, remove } from "../api.js";
import { FIELDS } from "../fields.js";
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

const FIRST = ["group", "tier", "weight", "envelope.ttft_ms", "envelope.tpot_ms"]; // what shares come from, and targets
const CHOICES = { true: "yes", false: "no" };

/** The fields of a kind as the gateway makes them of the sections that check them (gateway/admin/models/forms.py), and
 * what the page alone knows of some: `added`, by name. */
function fieldsOf(kind, added) {
  const rank = (field) => FIRST.indexOf(field.name) + 1 || FIRST.length + 1;
  const withOptions = (field) => (field.choices ? { ...field, options: () => field.choices.map((each) => [each, CHOICES[each] ?? each]) } : field);
  return FIELDS[kind].map((field) => ({ ...withOptions(field), ...added[field.name] })).sort((a, b) => rank(a) - rank(b));
}

/** What an entry of a kind has that sets nothing. */
export function defaultsOf(kind) {
  const fields = {};
  for (const { name, default: value } of FIELDS[kind]) {
    const [outer, inner] = name.split(".");
    if (inner) fields[outer] = { ...fields[outer], [inner]: value };
    else fields[outer] = value;
  }
  return fields;
}

const TIER = { options: (settings) => settings.tiers.map((each) => [each.id, `${each.id} (weight ${decimal(each.weight)})`]), shares: true, isOperators: true, isFixed: (settings) => settings.fields.group != null };
/** The group that a tenant is in, whose tier it has then. */
const GROUP = {
  shares: true, isOperators: true, none: () => "none",
  options: (settings) => [[null, "none"], ...settings.groups.map((each) => [each.id, each.id])],
  edit: (group, settings) => ({ group, tier: group === null ? settings.fields.tier : null }),
};
const WEIGHT = { shares: true };
const IN_FLIGHT = { used: inFlight };
const noTarget = { none: () => "no target" };

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
const FORMS = {
  tenants: fieldsOf("tenants", {
    group: GROUP,
    tier: TIER,
    weight: WEIGHT,
    "envelope.ttft_ms": { none: ofTier("ttft_ms") },
    "envelope.tpot_ms": { none: ofTier("tpot_ms") },
    in_flight_max: IN_FLIGHT,
    queued_requests_max: { none: () => "the gateway's limit", used: (now) => `${plural(sum(now, "queued"), "request")} queued now.` },
    queued_bytes_max: { none: () => "the gateway's limit" },
  }),
  groups: fieldsOf("groups", {
    tier: { ...TIER, shares: false, effect: "Its tenants move with it: from then on they share that tier, and have its targets." },
    weight: WEIGHT,
    in_flight_max: IN_FLIGHT,
  }),
  tiers: fieldsOf("tiers", {
    weight: WEIGHT,
    "envelope.ttft_ms": noTarget,
    "envelope.tpot_ms": noTarget,
    on_miss: { options: () => [["wait", "wait all the same"], ["reject", "are rejected at once"]] },
  }),
  aliases: fieldsOf("aliases", {
    models: { isText: true, parse: namesOf },
    split: { isText: true, parse: splitOf, none: () => "none: the first model is tried first", about: "Like: large 9, small 1. One of the models is tried first, by weight.",
      edit: (split, settings) => ({ split: { ...Object.fromEntries(Object.keys(settings.fields.split).map((name) => [name, null])), ...split } }) },
    sticky: { options: () => [["call", "calls, by lot"], ["tenant", "tenants: the same model for every call of one"], ["session", "sessions: the same model for every call of one"]] },
    "shadow.model": { none: () => "no model", edit: (model, settings) => ({ shadow: model === null ? null : { ...(settings.fields.shadow || {}), model } }) },
    "shadow.ratio": { none: () => "1, with a model" },
    "shadow.in_flight_max": { none: () => "1, with a model" },
  }),
  backends: fieldsOf("backends", {
    requests_running_max: { none: ({ backend }) => (backend == null ? "not known" : `${count(backend.requests_limit)}, ${{ learnt: "learnt from what ran there", assumed: "assumed until it is learnt" }[backend.size] ?? "as it says itself"}`) },
    kv_tokens_max: { none: ({ backend }) => (backend?.tokens_limit == null ? "not known" : `${count(backend.tokens_limit)} tokens, as it says itself`) },
    step_tokens_max: { none: () => "not known" },
  }),
}; // by the API's name of the kind
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
    if (!FORMS[kind].some((field) => field.name === wanted)) return;
    if (mayEdit(kind, FORMS[kind].find((field) => field.name === wanted), settings)) setEdited(wanted);
    place.current.querySelector(`[data-field="${wanted}"]`).scrollIntoView({ block: "center" });
  }, [kind, id, wanted]);
  return html`<h2>Settings <small class="dim">${settings.isStored ? ORIGINS[settings.origin] : "none of its own: these are the defaults"}</small></h2>
    <dl class="settings" ref=${place}>${FORMS[kind].map((field) => html`<${Setting} key=${field.name} kind=${kind} id=${id} field=${field} settings=${settings} now=${now}
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
  const { min = -Infinity, above = -Infinity, max = Infinity, below = Infinity } = field;
  return Number.isFinite(number) && number >= min && number > above && number <= max && number < below ? number : undefined;
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
        : html`<input ref=${input} type="number" aria-label=${label} value=${draft} min=${field.min ?? field.above} max=${field.max ?? field.below}
          step=${field.step} placeholder=${field.isRequired ? "" : without(field, settings)} onInput=${(event) => setDraft(event.target.value)} />`}
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
