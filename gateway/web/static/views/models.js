// Models: names that clients use for them (aliases), and what their tokens cost (price lists).

import { useState } from "preact/hooks";
import { all, get, patch, path } from "../api.js";
import { FIELDS } from "../fields.js";
import { mayChange } from "../session.js";
import { attempt, Figure, html, link, notify, Table, useLive, usePolled } from "../ui.js";
import { Changes } from "./changes.js";
import { Compared, TOKENS } from "./history.js";
import { Make, Remove, Sure } from "./making.js";
import { byReason, entries } from "./now.js";
import { amountOf, namesOf, partsOf, Settings } from "./settings.js";
import { Unserved, unservedOf, useServed } from "./unserved.js";
import { count, listed, NONE } from "../words.js";

const POLL_MS = 10000;

export function Models() {
  const [aliases] = usePolled((signal) => all("/aliases", { signal }), [], POLL_MS);
  const [prices] = usePolled((signal) => all("/prices", { signal }), [], POLL_MS);
  const served = useServed();
  const { document: state } = useLive();
  return html`<h1>Models</h1>
    <${Compared} of=${entries(state?.pools).sort((a, b) => (b.tokens_per_s || 0) - (a.tokens_per_s || 0)).map((each) => `pool:${each.id}`)} charts=${[TOKENS]} which="by pool, " />
    <h2>Aliases <small class="dim">names that clients use, and the models that they stand for</small></h2>
    ${aliases.error ? html`<p class="bad" role="alert">${aliases.error.message}</p>` : null}
    ${aliases.value ? html`<${Table} label="Aliases" columns=${aliasColumns(served)} rows=${aliases.value} keyOf=${(each) => each.id} sort=${{ id: "id", down: false }}
      empty="There is no alias. Make one to replace a model without telling its clients, to have a second choice, or to try a new one with a part of the calls." />` : null}
    <${Make} kind="aliases" view="alias" title="Make an alias" inputs=${[
      { name: "id", label: "Name", placeholder: "chat" },
      { name: "models", label: "Models, in order", placeholder: "large, small", value: namesOf },
    ]} />
    <h2>Prices <small class="dim">of a million tokens</small></h2>
    ${prices.error ? html`<p class="bad" role="alert">${prices.error.message}</p>` : null}
    ${prices.value ? html`<${Table} label="Prices" columns=${PRICE_COLUMNS} rows=${prices.value} keyOf=${(each) => each.id} sort=${{ id: "id", down: false }}
      empty="There is no price list. Make one, and Usage has the cost of its calls, of past days too." />` : null}
    <${Make} kind="prices" view="price" title="Make a price list" inputs=${[
      { name: "id", label: "Model", placeholder: "llama-8b" },
      { name: "currency", label: "Currency", placeholder: prices.value?.[0]?.currency ?? "EUR", value: (text) => text.trim().toUpperCase() || prices.value?.[0]?.currency },
      ...AMOUNTS,
    ]} fields=${({ id, currency, ...period }) => ({ id, currency, periods: [period] })} />`;
}

const AMOUNTS = FIELDS.periods.filter((field) => field.isAmount)
  .map(({ name, label, example, isRequired }) => ({ name, label, placeholder: example || "as prompt", isOptional: !isRequired, value: amountOf }));

const aliasColumns = (served) => [
  { id: "id", label: "Alias", value: (each) => each.id, cell: (each) => html`<a class="name" href=${link("alias", each.id)}>${each.id}</a>` },
  { id: "models", label: "Models, in order", kind: "text", value: (each) => each.models.join(", "), cell: (each) => html`<span class="name">${each.models.join(", ")}</span>${unservedOf(each, served).length > 0 ? html` <span class="bad">no backend serves ${listed(unservedOf(each, served))}</span>` : null}` },
  { id: "split", label: "Split by weight", kind: "text", cell: (each) => partsOf(each.split) || NONE },
  { id: "shadow", label: "Copies to", kind: "text", value: (each) => each.shadow?.model, cell: (each) => each.shadow?.model ?? NONE },
];

const today = () => new Date().toISOString().slice(0, 10);
/** The period that is in force: the latest that has begun. */
const present = (each) => each.periods.filter((period) => (period.valid_from ?? "") <= today()).sort((a, b) => (a.valid_from ?? "").localeCompare(b.valid_from ?? "")).at(-1);

const PRICE_COLUMNS = [
  { id: "id", label: "Model", value: (each) => each.id, cell: (each) => html`<a class="name" href=${link("price", each.id)}>${each.id}</a>` },
  { id: "currency", label: "Currency", value: (each) => each.currency, cell: (each) => each.currency },
  { id: "prompt", label: "Prompt, now", kind: "number", value: (each) => Number(present(each)?.prompt ?? -1), cell: (each) => present(each)?.prompt ?? NONE },
  { id: "output", label: "Output, now", kind: "number", value: (each) => Number(present(each)?.output ?? -1), cell: (each) => present(each)?.output ?? NONE },
  { id: "periods", label: "Periods", kind: "number", value: (each) => each.periods.length, cell: (each) => each.periods.length },
];

const readEntry = (kind, id) => async (signal) => {
  const { body, etag } = await get(path(kind, id), { signal });
  return { fields: body, etag, isStored: true, origin: body.origin };
};

export function Alias({ id }) {
  const [settings, again] = usePolled(readEntry("aliases", id), [id], POLL_MS);
  return html`<p><a href=${link("models")}>All models</a></p><h1>${id} <small class="dim">alias</small></h1>
    ${settings.error ? html`<p class="bad" role="alert">${settings.error.message}</p>` : null}
    ${settings.value ? html`<${Unserved} only=${id} /><${PassedOn} alias=${id} />` : null}
    ${settings.value ? html`<${Settings} kind="aliases" id=${id} settings=${settings.value} now=${[]} again=${again} />` : null}
    <${Changes} kind="aliases" id=${id} settings=${settings.value} />
    ${settings.value ? html`<${Remove} kind="aliases" id=${id} settings=${settings.value} loses="Clients that use this name get 404 then." leads=${link("models")} />` : null}`;
}

/** How many of its calls went on from one of its models to the next, and why. */
function PassedOn({ alias }) {
  const { document: state } = useLive();
  const pools = entries(state?.pools).map((pool) => [pool.id, ...byReason(pool.passed_on?.[alias])]).filter(([, , sum]) => sum > 0);
  return html`<section aria-label="Passed on">
    <h2>Passed on <small class="dim">calls that went on to the next model in the last minute</small></h2>
    ${pools.length ? html`<dl class="figures">${pools.map(([pool, reasons, sum]) => html`<${Figure} key=${pool} label=${`from the pool ${pool}`} value=${count(sum)} note=${reasons} />`)}</dl>` : html`<p>None.</p>`}
  </section>`;
}

export function Price({ id }) {
  const [settings, again] = usePolled(readEntry("prices", id), [id], POLL_MS);
  return html`<p><a href=${link("models")}>All models</a></p><h1>${id} <small class="dim">price list</small></h1>
    ${settings.error ? html`<p class="bad" role="alert">${settings.error.message}</p>` : null}
    ${settings.value ? html`<${Periods} id=${id} settings=${settings.value} again=${again} />` : null}
    <${Changes} kind="prices" id=${id} settings=${settings.value} />
    ${settings.value ? html`<${Remove} kind="prices" id=${id} settings=${settings.value} loses="Calls of this model cost nothing then." leads=${link("models")} />` : null}`;
}

/** What a million tokens cost, from which day on. */
function Periods({ id, settings, again }) {
  const { currency, periods } = settings.fields;
  const write = async (next, etag = settings.etag) => attempt(() => patch(path("prices", id), { periods: next }, etag));
  const change = async (next, said) => {
    const made = await write(next);
    again();
    if (!made) return false;
    notify(`${id}: ${said}.`, { undo: async () => {
      if (await write(periods, made.etag)) notify(`${id}: the prices are as they were.`);
      again();
    } });
    return true;
  };
  const columns = [
    { id: "since", label: "From", value: (each) => each.valid_from ?? "", cell: (each) => each.valid_from ?? "the beginning" },
    { id: "prompt", label: "Prompt", kind: "number", cell: (each) => each.prompt },
    { id: "cached", label: "Cached prompt", kind: "number", cell: (each) => each.cached_prompt ?? each.prompt },
    { id: "output", label: "Output", kind: "number", cell: (each) => each.output },
    ...(mayChange("prices") && periods.length > 1 ? [{ id: "act", label: html`<span class="only-read">Change</span>`, cell: (each) => html`<${Sure} label="Remove" of=${each.valid_from ?? "the first period"}
      act=${() => change(periods.filter((other) => other !== each), "a period is removed")} />` }] : []),
  ];
  return html`<h2>Periods <small class="dim">${currency} for a million tokens</small></h2>
    <${Table} label="Periods" columns=${columns} rows=${periods} keyOf=${(each) => each.valid_from ?? ""} sort=${{ id: "since", down: false }} />
    ${mayChange("prices") ? html`<${NewPeriod} add=${(period) => change([...periods, period], `prices from ${period.valid_from} on are set`)} />` : null}`;
}

function NewPeriod({ add }) {
  const [given, setGiven] = useState({});
  const values = AMOUNTS.map((each) => [each.name, each.value(given[each.name] ?? "")]).filter(([, value]) => value !== undefined);
  const isReady = Boolean(given.valid_from) && AMOUNTS.every((each) => each.isOptional || each.value(given[each.name] ?? "") !== undefined);
  const submit = async (event) => {
    event.preventDefault();
    if (isReady && (await add({ valid_from: given.valid_from, ...Object.fromEntries(values) }))) setGiven({});
  };
  const set = (name) => (event) => setGiven({ ...given, [name]: event.target.value });
  return html`<form class="ask fields" aria-label="Add a period" onSubmit=${submit}>
    <label>From <input type="date" value=${given.valid_from ?? ""} onInput=${set("valid_from")} /></label>
    ${AMOUNTS.map((each) => html`<label key=${each.name}>${each.label} <input type="text" value=${given[each.name] ?? ""} placeholder=${each.placeholder} onInput=${set(each.name)} /></label>`)}
    <button class="primary" disabled=${!isReady}>Add a period</button></form>`;
}
