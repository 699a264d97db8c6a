// Entries are made and removed: tenants, groups, aliases and prices, each by a form and a button of the same kind.

import { useState } from "preact/hooks";
import { path, post, remove } from "../api.js";
import { mayChange } from "../session.js";
import { attempt, html, link, notify } from "../ui.js";

/** A button that is pressed twice. */
export function Sure({ label, of, act, look = "quiet" }) {
  const [isSure, setSure] = useState(false);
  if (!isSure) return html`<button class=${look} aria-label=${`${label} ${of}`} onClick=${() => setSure(true)}>${label}</button>`;
  return html`<button class="danger" aria-label=${`Really ${label.toLowerCase()} ${of}`} onClick=${act}>Really ${label.toLowerCase()}</button>
    <button class="quiet" onClick=${() => setSure(false)}>Keep it</button>`;
}

/** What goes on to a view when an action is done, unless the user has left the action's own view by then. */
function fromHere() {
  const here = location.hash;
  return (place) => {
    if (location.hash === here) location.hash = place;
  };
}

/** Removes an entry that was made here. What the file declares can only be removed there. */
export function Remove({ kind, id, settings, loses = "", leads }) {
  if (!mayChange(kind) || !settings.isStored || settings.origin !== "admin") return null;
  const act = async () => {
    const goTo = fromHere();
    const isDone = await attempt(async () => {
      await remove(path(kind, id), settings.etag);
      return true;
    });
    if (!isDone) return;
    notify(`${id} is removed.`);
    goTo(leads);
  };
  return html`<p class="bar"><span class="dim">${loses}</span><span><${Sure} label="Remove" of=${id} act=${act} /></span></p>`;
}

/** A form that makes an entry of a kind and leads to its view.
 *
 * inputs: [{name, label, placeholder, options: [[value, text]], value: of the text (undefined: it is none)}].
 */
export function Make({ kind, view, title, inputs, fields = (given) => given, prefix = "" }) {
  const [given, setGiven] = useState({});
  const [isBusy, setBusy] = useState(false);
  if (!mayChange(kind)) return null;
  const values = inputs.map((each) => [each.name, each.value ? each.value(given[each.name] ?? "") : (given[each.name] ?? "").trim() || undefined]);
  const isReady = inputs.every((each, at) => each.isOptional || values[at][1] !== undefined);
  const submit = async (event) => {
    event.preventDefault();
    if (!isReady) return;
    setBusy(true);
    const { id, ...rest } = Object.fromEntries(values.filter(([, value]) => value !== undefined));
    const goTo = fromHere();
    const made = await attempt(() => post(path(kind), fields({ id: prefix + id, ...rest })));
    setBusy(false);
    if (!made) return;
    notify(`${made.body.id} is made.`);
    goTo(link(view, made.body.id));
  };
  const set = (name) => (event) => setGiven({ ...given, [name]: event.target.value });
  return html`<form class="ask fields" aria-label=${title} onSubmit=${submit}>
    ${inputs.map((each) => html`<label key=${each.name}>${each.label}${" "}${each.name === "id" && prefix ? html`<code>${prefix}</code>` : null}${each.options
      ? html`<select value=${given[each.name] ?? ""} onChange=${set(each.name)}>${each.options.map(([value, text]) => html`<option key=${value} value=${value}>${text}</option>`)}</select>`
      : html`<input type="text" value=${given[each.name] ?? ""} placeholder=${each.placeholder || ""} onInput=${set(each.name)} />`}</label>`)}
    <button class="primary" disabled=${isBusy || !isReady}>${title}</button></form>`;
}
