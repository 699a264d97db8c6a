// Budgets of a tenant or a group, and when each will be spent.

import { useEffect, useState } from "preact/hooks";
import { all } from "../api.js";
import { html, Table, usePolled } from "../ui.js";
import { count, decimal, NONE, percent, seconds, short, time } from "../words.js";

const POLL_MS = 3000;
const PACE_MS = 60000; // the pace is that of the last minute

/** Which budgets it has, and when each will be spent at the pace of the last minute. `of`: tenant or group. */
export function Budgets({ of, id, title = "Budgets" }) {
  const [budgets] = usePolled(async (signal) => (await all("/state/budgets", { signal })).filter((each) => each[of] === id), [of, id], POLL_MS);
  const [seen, setSeen] = useState([]);
  useEffect(() => {
    if (budgets.value === null) return;
    const now = Date.now();
    setSeen((before) => [...before.filter(([at]) => now - at <= PACE_MS), [now, budgets.value]]);
  }, [budgets.value]);
  if (budgets.value === null || budgets.value.length === 0) return null;
  const columns = [
    { id: "of", label: "Budget", cell: (each) => `${each.key ? `key ${each.key}, ` : ""}${each.unit} per ${each.period}` },
    { id: "used", label: "Used", kind: "number", cell: (each) => amount(each, each.used) },
    { id: "reserved", label: "Reserved", kind: "number", note: "for requests queued and in flight", cell: (each) => amount(each, each.reserved) },
    { id: "limit", label: "Limit", kind: "number", cell: (each) => amount(each, each.limit) },
    { id: "left", label: "Left", kind: "number", cell: (each) => `${amount(each, each.remaining)} (${percent(Number(each.limit) ? each.remaining / each.limit : null)})` },
    { id: "pace", label: "Pace", kind: "number", cell: (each) => paceOf(each, pace(each, seen)) },
    { id: "end", label: "At this pace", cell: (each) => spentWhen(each, pace(each, seen)) },
    { id: "renewed", label: "Renewed", cell: (each) => time(each.renewed_at) },
  ];
  return html`<h2>${title}</h2><${Table} label=${title} columns=${columns} rows=${budgets.value} keyOf=${(each) => `${each.key} ${each.unit} ${each.period}`} sort=${{}} />`;
}

/** An amount of a budget: a number of tokens, or money as text. */
const amount = (budget, value) => (budget.unit === "cost" ? value : count(value));

/** Tokens, or money, per second since the oldest look of the last minute; null with one look. */
function pace(budget, seen) {
  if (seen.length < 2) return null;
  const [at, first] = seen[0];
  const [now] = seen.at(-1);
  const before = first.find((each) => each.key === budget.key && each.unit === budget.unit && each.period === budget.period);
  return before === undefined ? null : Math.max(0, budget.used - before.used) / ((now - at) / 1000);
}

const paceOf = (budget, perSecond) =>
  perSecond === null ? NONE : budget.unit === "cost" ? `${decimal(3600 * perSecond)} an hour` : `${short(perSecond)} tokens/s`;

function spentWhen(budget, perSecond) {
  if (budget.remaining <= 0) return html`<strong class="bad">spent</strong>`;
  if (perSecond === null) return "being measured";
  if (perSecond === 0) return "is not spent";
  const leftS = budget.remaining / perSecond;
  const untilS = budget.renewed_at - Date.now() / 1000;
  return leftS < untilS ? html`<span class="warn">spent in ${seconds(leftS)}</span>` : "lasts until it is renewed";
}
