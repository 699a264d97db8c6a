// Models that an alias stands for and that no backend serves: its calls go on to the next model, or get 503.

import { all } from "../api.js";
import { may } from "../session.js";
import { html, link, useLive, usePolled } from "../ui.js";
import { listed } from "../words.js";

const POLL_MS = 10000;

/** The models that backends serve; null: not known, for a backend of a discovery has no entry that lists its adapters. */
export function useServed() {
  const { document: state } = useLive();
  const [stored] = usePolled((signal) => all("/backends", { signal }), [], POLL_MS);
  if (state === null || stored.value === null) return null;
  const known = new Set(stored.value.map((each) => each.id));
  const pools = Object.entries(state.pools || {});
  if (pools.some(([, pool]) => Object.keys(pool.backends || {}).some((id) => !known.has(id)))) return null;
  return new Set([...pools.map(([name]) => name), ...stored.value.flatMap((each) => each.models || [])]);
}

export const unservedOf = (alias, served) => (served === null ? [] : [...new Set([...alias.models, ...Object.keys(alias.split || {})])].filter((model) => !served.has(model)));

/** A sentence for each alias that stands for models which no backend serves. */
export function Unserved({ only = null }) {
  return may("viewer") ? html`<${Sentences} only=${only} />` : null;
}

function Sentences({ only }) {
  const served = useServed();
  const [aliases] = usePolled((signal) => all("/aliases", { signal }), [], POLL_MS);
  return (aliases.value || []).filter((alias) => only === null || alias.id === only).map((alias) => {
    const missing = unservedOf(alias, served);
    if (missing.length === 0) return null;
    const isAll = alias.models.every((model) => missing.includes(model));
    return html`<p key=${alias.id}><strong class="bad">The alias <a href=${link("alias", alias.id)}>${alias.id}</a></strong> stands for ${listed(missing)}, which no backend serves:
      ${isAll ? " its calls get 503" : " these calls go on to its other models"}.</p>`;
  });
}
