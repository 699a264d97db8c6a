// First use: a gateway whose backend is the embedded engine offers two demo tenants, one quiet and one that floods.

import { useState } from "preact/hooks";
import { post, remove } from "../api.js";
import { may } from "../session.js";
import { attempt, html, TenantLink } from "../ui.js";

export function FirstUse({ gateway }) {
  const [isBusy, setBusy] = useState(false);
  if (gateway?.demo == null) return null; // other backends than the embedded engine, or several processes
  const act = async (action) => {
    setBusy(true);
    await attempt(action);
    setBusy(false);
  };
  const button = !may("operator")
    ? null
    : gateway.demo
      ? html`<button disabled=${isBusy} onClick=${() => act(() => remove("/demo"))}>Stop the demo</button>`
      : html`<button class="primary" disabled=${isBusy} onClick=${() => act(() => post("/demo"))}>Start two demo tenants</button>`;
  return html`<section class="verdict first-use" aria-label="First use">
    ${gateway.demo
      ? html`<p><${TenantLink} id="demo-flood" /> sends as much as it can, and <${TenantLink} id="demo-quiet" /> now and then. The quiet one hardly waits,
          though the flood would fill the engine.</p>`
      : html`<p>The backend is the embedded engine: it answers with made-up words at the pace of a real GPU.
          Two demo tenants show what fairness does, one quiet and one that floods, for two minutes.</p>`}
    ${button}
  </section>`;
}
