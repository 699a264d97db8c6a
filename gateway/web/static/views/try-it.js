// Try it: one prompt to one model as a tenant, whose limits hold and which pays. Text of it is in this view alone.

import { useEffect, useRef, useState } from "preact/hooks";
import { ask } from "../api.js";
import { EventParser } from "../live.js";
import { may, ownGroup } from "../session.js";
import { Figure, html, link, useLive } from "../ui.js";
import { count, money, NONE, plural, seconds } from "../words.js";

const NEW = { state: "new", text: "", result: null, error: null };
const EXAMPLE = "Say in one sentence what a fair queue is.";

export function TryIt({ query }) {
  const [call, setCall] = useState(NEW);
  const running = useRef(null);
  useEffect(() => () => running.current?.abort(), []);
  if (!may("operator") && ownGroup() === null) return html`<h1>Try it</h1><p>To call as a tenant, the role operator is needed.</p>`;
  const submit = async (event) => {
    event.preventDefault();
    const asked = Object.fromEntries(new FormData(event.target));
    const abort = (running.current = new AbortController());
    setCall({ ...NEW, state: "running" });
    try {
      for await (const [name, value] of tried({ ...asked, max_tokens: Number(asked.max_tokens) }, abort.signal)) {
        setCall((before) => (name === "text" ? { ...before, text: before.text + value } : { ...before, state: "over", result: value }));
      }
      setCall((before) => (before.result === null ? { ...before, state: "over", error: "The gateway ended the call without a result." } : before));
    } catch (error) {
      if (abort !== running.current) return;
      setCall((before) => ({ ...before, state: "over", error: abort.signal.aborted ? "You stopped it." : [error.message, ...(error.errors || []).map((each) => `${each.field.replace("body.", "")} ${each.reason}`)].join(": ") }));
    }
  };
  return html`<h1>Try it <small class="dim">one prompt, as a tenant: its limits hold, and it pays</small></h1>
    <${Asked} query=${query} isRunning=${call.state === "running"} submit=${submit} stop=${() => running.current?.abort()} />
    ${call.state === "new" ? null : html`<${Answer} call=${call} />`}`;
}

/** The events of a call, by name and value. Throws a Problem. */
async function* tried(asked, signal) {
  const response = await ask("POST", "/trials", { body: asked, signal, accept: "text/event-stream" });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const parser = new EventParser();
  for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
    for (const { event, data } of parser.feed(piece.value)) yield [event, JSON.parse(data)];
  }
}

function Asked({ query, isRunning, submit, stop }) {
  const { document: state } = useLive();
  if (!state) return html`<p class="dim" aria-busy="true">Asking…</p>`;
  const pools = state.pools || {};
  const tenants = [...new Set(Object.values(pools).flatMap((pool) => Object.keys(pool.tenants || {})))].sort();
  return html`<form class="ask" onSubmit=${submit}>
    <label>Tenant <input name="tenant" list="tenants" required autocomplete="off" spellcheck=${false} defaultValue=${query.get("tenant") || ""} /></label>
    <datalist id="tenants">${tenants.map((each) => html`<option key=${each} value=${each}></option>`)}</datalist>
    <label>Model or alias <input name="model" list="models" required autocomplete="off" spellcheck=${false} defaultValue=${Object.keys(pools)[0] || ""} /></label>
    <datalist id="models">${Object.keys(pools).map((each) => html`<option key=${each} value=${each}></option>`)}</datalist>
    <label>At most <input type="number" name="max_tokens" min="1" max="4096" required defaultValue="256" /> tokens</label>
    <label class="prompt">Prompt <textarea name="prompt" rows="3" maxlength="10000" required defaultValue=${EXAMPLE}></textarea></label>
    ${isRunning ? html`<button key="stop" type="button" class="danger" onClick=${stop}>Stop</button>` : html`<button key="send" class="primary">Send it</button>`}
    <p class="dim order">The prompt and the answer are not stored. The audit log says that you called as this tenant.</p>
  </form>`;
}

function Answer({ call: { state, text, result, error } }) {
  const failed = error ?? result?.error;
  return html`<h2>Answer</h2>
    <p class="answer" aria-busy=${state === "running"}>${text || html`<span class="dim">${state === "running" ? "Waiting for the first token…" : "No text came."}</span>`}</p>
    <p class="bad" role="alert">${failed ? `${result?.status >= 400 ? `${result.status}: ` : ""}${failed}` : ""}</p>
    ${result === null ? null : html`<${Result} result=${result} />`}`;
}

function Result({ result }) {
  return html`<dl class="figures">
      <${Figure} label="In the queue" value=${seconds(result.queue_s)} />
      <${Figure} label="Time to first token" value=${seconds(result.ttft_s)} />
      <${Figure} label="In all" value=${seconds(result.duration_s)} />
      <${Figure} label="Tokens" value=${count(result.output_tokens)} note=${`after ${plural(result.prompt_tokens, "token")} of prompt`} />
      <${Figure} label="Cost" value=${result.cost === null ? NONE : `${money(result.cost, Number(result.cost))} ${result.currency}`} note=${result.cost === null ? "without a price" : null} />
    </dl>
    <p>Request ${ownGroup() === null ? html`<a href=${link("request", result.request_id)}>${result.request_id}</a>` : result.request_id}${result.backend === null ? "" : `, answered by ${result.backend}`}. Trace <code class="secret">${result.trace_id}</code></p>`;
}
