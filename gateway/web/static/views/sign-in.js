// Sign-in at an identity provider, or by an admin key or a token.

import { useState } from "preact/hooks";
import { PROVIDERS } from "../providers.js";
import { html } from "../ui.js";
import { session, signIn } from "../session.js";

export function SignIn() {
  const [key, setKey] = useState("");
  const submit = (event) => {
    event.preventDefault();
    signIn(key);
  };
  return html`<main class="sign-in" id="main">
    <h1>fairlead</h1>
    ${PROVIDERS.map((label, number) => html`<p key=${number}><a class="button" href=${`/oidc/begin?provider=${number}`}>Sign in with ${label}</a></p>`)}
    <form onSubmit=${submit}>
      <label for="key">Admin key or token (JWT)</label>
      <input id="key" name="key" type="password" autocomplete="current-password" spellcheck=${false} required autofocus
        value=${key} onInput=${(event) => setKey(event.target.value)} aria-describedby="key-help" />
      <button class="primary" disabled=${session.isBusy}>Sign in</button>
      <p class="bad" role="alert">${session.error}</p>
      <p class="dim" id="key-help">The first admin key is in the file that <code>admin.key_file</code> names. A key for others:${" "}
        <code>fairlead admin create keys role=viewer</code>. A gateway without a configuration has no key file:${" "}
        <code>fairlead admin link</code>, on its machine, prints a link that signs in. This tab keeps the key until it is closed.</p>
    </form>
  </main>`;
}
