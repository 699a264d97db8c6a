// Usage: who spent the money, by group, tenant, key, model, day or month; a row leads to what it is made of.

import { useEffect } from "preact/hooks";
import { all, ask, get } from "../api.js";
import { ownGroup } from "../session.js";
import { attempt, Figure, html, link, Meter, Table, usePolled } from "../ui.js";
import { count, money, NONE, percent, plural } from "../words.js";

const BY = [["group", "Group"], ["tenant", "Tenant"], ["key", "Key"], ["model", "Model"], ["day", "Day"], ["month", "Month"]];
const PERIODS = [["", "in all"], ["day", "per day"], ["month", "per month"]];
const FILTERS = ["group", "tenant", "key", "model"];
const NOTHING = { group: "no group", key: "no key", model: "no model" };
/** What a row of a division is made of. */
const NEXT = { group: "tenant", tenant: "key", key: "model", model: "tenant", day: "tenant", month: "tenant" };
const PAGES = 20; // of a thousand rows: as many as the gateway sums up

const dayOf = (date) => date.toISOString().slice(0, 10);
const today = () => new Date(new Date().toISOString().slice(0, 10));
const shifted = (date, { months = 0, days = 0 }) => new Date(Date.UTC(date.getUTCFullYear(), date.getUTCMonth() + months, (months ? 1 : date.getUTCDate()) + days));
const firstOfMonth = (date) => new Date(Date.UTC(date.getUTCFullYear(), date.getUTCMonth(), 1));

/** Spans of days that are asked for most, in UTC as budgets and prices. */
const SPANS = {
  "Today": () => [today(), today()],
  "Last 7 days": () => [shifted(today(), { days: -6 }), today()],
  "This month": () => [firstOfMonth(today()), today()],
  "Last month": () => [shifted(firstOfMonth(today()), { months: -1 }), shifted(firstOfMonth(today()), { days: -1 })],
};

/** What the address asks for, and addresses that ask for something else. */
function readAsked(query) {
  const [first, last] = SPANS["This month"]().map(dayOf);
  const by = BY.some(([id]) => id === query.get("by")) ? query.get("by") : ownGroup() === null ? "group" : "tenant";
  const asked = { by, period: query.get("period") || "", first: query.get("first") || first, last: query.get("last") || last };
  for (const name of FILTERS) if (query.has(name)) asked[name] = query.get(name);
  const address = (changes) => `${link("usage")}?${new URLSearchParams(Object.entries({ ...asked, ...changes }).filter(([name, value]) => value != null && (value !== "" || FILTERS.includes(name))))}`;
  return { asked, address };
}

/** The same as the API's query. */
function queryOf({ by, period, first, last, ...filters }) {
  const isPeriod = by === "day" || by === "month";
  const divided = isPeriod ? { period: by } : { by, ...(period ? { period } : {}) };
  return new URLSearchParams({ ...divided, first_day: first, last_day: last, ...filters });
}

export function Usage({ query }) {
  const { asked, address } = readAsked(query);
  const question = `/usage/sums?${queryOf(asked)}`;
  const [answer, again] = usePolled(async (signal) => {
    const { body } = await get(`${question}&limit=1`, { signal });
    return { question, ...body, items: body.next_cursor === null ? body.items : await all(question, { pages: PAGES, signal }) };
  }, [question], 0);
  const found = answer.value?.question === question ? answer.value : null;
  const isOfNoGroup = !query.has("by") && asked.by === "group" && found?.items.length > 0 && found.items.every((each) => !each.group);
  useEffect(() => {
    if (isOfNoGroup) location.replace(address({ by: "tenant" }));
  }, [isOfNoGroup]);
  return html`<h1>Usage <small class="dim">${asked.first === asked.last ? asked.first : `${asked.first} to ${asked.last}`}, in UTC</small></h1>
    <${Question} asked=${asked} address=${address} />
    ${answer.error ? html`<p class="bad" role="alert">${answer.error.message}</p>` : null}
    ${found ? html`<${Answer} asked=${asked} address=${address} found=${found} again=${again} />` : answer.error ? null : html`<p class="dim" aria-busy="true">Adding up…</p>`}`;
}

function Question({ asked, address }) {
  const isPeriod = asked.by === "day" || asked.by === "month";
  const shown = ownGroup() === null ? BY : BY.filter(([id]) => id !== "group");
  return html`<div class="controls">
      <nav class="tabs" aria-label="Sums by">${shown.map(([id, label]) => html`<a key=${id} class="chip" href=${address({ by: id, ...(id === "day" || id === "month" ? { period: "" } : {}) })} aria-current=${id === asked.by ? "page" : undefined}>${label}</a>`)}</nav>
      ${isPeriod ? null : html`<nav class="tabs" aria-label="Sums per">${PERIODS.map(([id, label]) => html`<a key=${id} class="chip" href=${address({ period: id })} aria-current=${id === asked.period ? "page" : undefined}>${label}</a>`)}</nav>`}
      <nav class="tabs" aria-label="Days">${Object.entries(SPANS).map(([label, span]) => {
        const [first, last] = span().map(dayOf);
        return html`<a key=${label} class="chip" href=${address({ first, last })} aria-current=${first === asked.first && last === asked.last ? "page" : undefined}>${label}</a>`;
      })}</nav>
      <form onSubmit=${(event) => { event.preventDefault(); location.hash = address(Object.fromEntries(new FormData(event.target))); }}>
        <label>From <input type="date" name="first" value=${asked.first} max=${asked.last} required /></label>${" "}
        <label>to <input type="date" name="last" value=${asked.last} min=${asked.first} required /></label> <button>Show</button></form>
    </div>
    ${FILTERS.some((name) => name in asked) ? html`<p class="pools" role="group" aria-label="Shown is only">Only${FILTERS.filter((name) => name in asked).map((name) => html`<a key=${name} class="chip" href=${address({ [name]: null })}
      aria-label=${`Show more than the ${name} ${asked[name] || NOTHING[name]}`}>${name} <strong>${asked[name] || NOTHING[name]}</strong> ×</a>`)}</p>` : null}`;
}

function Answer({ asked, address, found, again }) {
  const { total, items } = found;
  const currency = total.currency ?? "";
  const scale = Number(total.cost ?? 0);
  const costOf = (each) => Number(each.cost ?? 0);
  const tokens = (each) => each.prompt_tokens + each.output_tokens;
  const part = scale > 0 ? costOf : tokens;
  const whole = part(total);
  const amount = (each) => money(each.cost, scale);
  const isPeriod = asked.by === "day" || asked.by === "month";
  const name = (each) => (isPeriod ? each.period : (asked.by === "key" && each.key_label) || each[asked.by]);
  const columns = [
    { id: "name", label: BY.find(([id]) => id === asked.by)[1], value: name, cell: (each) => html`<a class="name" title=${each[asked.by]} href=${address(within(asked, each))}>${name(each) || NOTHING[asked.by]}</a>` },
    ...(asked.by === "key" ? [{ id: "tenant", label: "Tenant", value: (each) => each.tenant, cell: (each) => each.tenant }] : []),
    ...(["tenant", "key"].includes(asked.by) && ownGroup() === null ? [{ id: "group", label: "Group", hide: "desk", value: (each) => each.group, cell: (each) => each.group || NONE }] : []),
    ...(asked.period && !isPeriod ? [{ id: "period", label: asked.period === "day" ? "Day" : "Month", value: (each) => each.period, cell: (each) => each.period }] : []),
    { id: "cost", label: "Cost", kind: "number", value: costOf, cell: (each) => (each.cost === null ? NONE : html`<span class="nowrap" title=${`${each.cost} ${each.currency}`}>${amount(each)} ${each.currency}</span>`) },
    { id: "part", label: scale > 0 ? "Of the cost" : "Of the tokens", kind: "meter-column", value: part, cell: (each) => html`<${Meter} value=${part(each)} limit=${whole} text=${percent(whole ? part(each) / whole : null)} isPart />` },
    { id: "requests", label: "Requests", kind: "number", value: (each) => each.requests, cell: (each) => count(each.requests) },
    { id: "prompt", label: "Prompt", card: "Prompt tokens", note: "tokens", kind: "number", hide: "middle", value: (each) => each.prompt_tokens, cell: (each) => count(each.prompt_tokens) },
    { id: "cached", label: "Cached", card: "Cached tokens", note: "of these", kind: "number", hide: "desk", value: (each) => each.cached_tokens, cell: (each) => count(each.cached_tokens) },
    { id: "output", label: "Output", card: "Output tokens", note: "tokens", kind: "number", hide: "middle", value: (each) => each.output_tokens, cell: (each) => count(each.output_tokens) },
  ];
  const isByTime = isPeriod || asked.period !== "";
  return html`<p class="verdict" role="status">${sentence(asked, found, { name, part, whole, amount, address })}</p>
    <dl class="figures">
      <${Figure} label="cost" value=${total.cost === null ? NONE : `${amount(total)} ${currency}`} />
      <${Figure} label="requests" value=${count(total.requests)} />
      <${Figure} label="prompt tokens" value=${count(total.prompt_tokens)} note=${`${percent(total.prompt_tokens ? total.cached_tokens / total.prompt_tokens : null)} cached`} />
      <${Figure} label="output tokens" value=${count(total.output_tokens)} />
      ${total.unpriced_tokens ? html`<${Figure} label="tokens without a price" value=${count(total.unpriced_tokens)} note="in no cost" tone="warn" />` : null}
    </dl>
    <${Table} key=${`${asked.by} ${asked.period}`} label="Sums" columns=${columns} rows=${items} keyOf=${(each) => JSON.stringify([each.period, each.group, each.tenant, each.key, each.model])}
      sort=${isByTime ? {} : { id: scale > 0 ? "cost" : "part", down: true }} empty="Nothing was used on these days." />
    <p class="bar"><span class="dim">${total.currency === null ? "No model has a price: set one in Models, and past days have their cost, too." : "By the price of each day; a corrected price corrects past days."}</span>
      <span><button onClick=${again}>Add up again</button> <button onClick=${() => download(asked)}>Download as CSV</button></span></p>`;
}

/** The days that are asked for, in words where there are some. */
const spanOf = ({ first, last }) => Object.keys(SPANS).find((label) => SPANS[label]().map(dayOf).join() === [first, last].join()) ?? (first === last ? first : `${first} to ${last}`);

/** What was spent, and on whom the most of it. */
function sentence(asked, { total, items }, { name, part, whole, amount, address }) {
  const { by, period } = asked;
  if (total.requests === 0) return "Nothing was used on these days.";
  const spent = total.cost === null ? `${count(whole)} tokens were used` : `${amount(total)} ${total.currency} were spent`;
  const most = items.reduce((best, each) => (best === null || part(each) > part(best) ? each : best), null);
  const on = by === "day" || by === "month" ? "on" : "by";
  const where = period ? `, ${most.period}` : "";
  return html`${spanOf(asked)}: <strong>${spent}</strong> in ${plural(total.requests, "request")}; the most, <strong>${percent(whole ? part(most) / whole : null)}</strong>, ${on} <strong>${name(most) || NOTHING[by]}</strong>${by === "key" ? ` of ${most.tenant}` : ""}${where}${by === "group" && !name(most) ? html`: <a href=${address(within(asked, most))}>see its tenants</a>` : ""}.`;
}

/** The address of what a row is made of. */
function within(asked, each) {
  const next = { by: NEXT[asked.by], period: "" };
  const period = each.period;
  if (period !== null) Object.assign(next, period.length === 10 ? { first: period, last: period } : { first: maxOf(`${period}-01`, asked.first), last: minOf(lastOf(period), asked.last) });
  for (const name of FILTERS) if (each[name] != null && (name !== "group" || asked.by === "group")) next[name] = each[name];
  return next;
}

const maxOf = (a, b) => (a > b ? a : b);
const minOf = (a, b) => (a < b ? a : b);
const lastOf = (month) => dayOf(shifted(new Date(`${month}-01`), { months: 1, days: -1 }));

/** The file is asked for with the caller's key, so it comes as bytes and not by a link. */
const download = (asked) => attempt(async () => {
  const response = await ask("GET", `/usage/export?format=csv&${queryOf(asked)}`);
  const address = URL.createObjectURL(await response.blob());
  const anchor = Object.assign(document.createElement("a"), { href: address, download: `usage-${asked.first}-${asked.last}-by-${asked.by}.csv` });
  anchor.click();
  URL.revokeObjectURL(address);
});
