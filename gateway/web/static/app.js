// The page: its head, and the view that the address names.

import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { live } from "./live.js";
import { onSession, ownGroup, resume, session, signOut } from "./session.js";
import { html, link, Notices, useLive, useRoute } from "./ui.js";
import { Audit } from "./views/audit.js";
import { Backend } from "./views/backend.js";
import { Engines } from "./views/engines.js";
import { Group, Groups } from "./views/groups.js";
import { Alias, Models, Price } from "./views/models.js";
import { Now } from "./views/now.js";
import { OneRequest, Requests } from "./views/requests.js";
import { SignIn } from "./views/sign-in.js";
import { Tenant } from "./views/tenant.js";
import { AllTenants } from "./views/tenants.js";
import { Tier } from "./views/tier.js";
import { TryIt } from "./views/try-it.js";
import { Usage } from "./views/usage.js";
import { WhatIf } from "./views/what-if.js";

const THEME = "fairlead.theme";
const THEMES = { auto: "light dark", light: "light", dark: "dark" };
const VIEWS = [["now", "Now"], ["tenants", "Tenants"], ["requests", "Requests"], ["engines", "Engines"], ["groups", "Groups"], ["models", "Models"], ["usage", "Usage"], ["what-if", "What if"], ["try", "Try it"], ["audit", "Changes"]];
const OF_GROUP = [["now", "Now"], ["usage", "Usage"], ["try", "Try it"]]; // of the administrator of a group, for which "now" is its group
const FOR_GROUP = ["now", "group", "tenant", "usage", "try"];
const views = () => (ownGroup() === null ? VIEWS : OF_GROUP);

function Shell() {
  const [, again] = useState(0);
  useEffect(() => {
    const forget = onSession(() => again((n) => n + 1));
    resume();
    return forget;
  }, []);
  const isIn = session.caller !== null;
  useEffect(() => {
    if (isIn) live.start(ownGroup());
    return () => live.stop();
  }, [isIn]);
  if (!isIn) return session.isBusy ? html`<main id="main" class="sign-in" aria-busy="true"><p class="dim">Signing in…</p></main>` : html`<${SignIn} />`;
  return html`<${Signed} />`;
}

function Signed() {
  const { parts, query } = useRoute();
  const view = parts[0] || "now";
  useEffect(() => {
    document.title = `${parts[1] || (views().find(([id]) => id === view) || ["", view])[1]} – fairlead`;
  });
  return html`<a class="skip" href="#main" onClick=${skip}>To the content</a>
    <${Head} view=${view} />
    <main id="main" tabindex="-1"><${View} key=${parts.join("/")} view=${view} parts=${parts} query=${query} /></main>
    <${Notices} />`;
}

function View({ view, parts, query }) {
  const group = ownGroup();
  if (group !== null && !FOR_GROUP.includes(view)) {
    return html`<p role="alert">This is not for the administrator of a group. <a href=${link("now")}>See your group.</a></p>`;
  }
  switch (view) {
    case "now":
      if (group !== null) return html`<${Group} id=${group} />`;
      return html`<${Now} pool=${parts[1]} />`;
    case "tenant":
      return html`<${Tenant} id=${parts[1] || ""} setting=${query.get("setting")} />`;
    case "engines":
      return html`<${Engines} />`;
    case "audit":
      return html`<${Audit} query=${query} />`;
    case "tenants":
      return html`<${AllTenants} query=${query} />`;
    case "backend":
      return html`<${Backend} id=${parts[1] || ""} />`;
    case "tier":
      return html`<${Tier} id=${parts[1] || ""} />`;
    case "group":
      return html`<${Group} id=${parts[1] || ""} />`;
    case "groups":
      return html`<${Groups} />`;
    case "models":
      return html`<${Models} />`;
    case "alias":
      return html`<${Alias} id=${parts[1] || ""} />`;
    case "price":
      return html`<${Price} id=${parts[1] || ""} />`;
    case "requests":
      return html`<${Requests} query=${query} />`;
    case "request":
      return html`<${OneRequest} id=${parts[1] || ""} />`;
    case "usage":
      return html`<${Usage} query=${query} />`;
    case "what-if":
      return html`<${WhatIf} />`;
    case "try":
      return html`<${TryIt} query=${query} />`;
    default:
      return html`<p>There is no such view. <a href=${link("now")}>See what is now.</a></p>`;
  }
}

function skip(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

function Head({ view }) {
  const { document: state } = live;
  useLive();
  return html`<header class="head">
    <a class="brand" href=${link("now")}>fairlead</a>
    <${Views} view=${view} />
    <${Stream} />
    <span class="where dim">${state?.gateway ? `${state.gateway.name} · ${state.gateway.role} · ${state.gateway.version}` : ""}</span>
    <${Theme} />
    <span class="caller"><span><span class="name" title=${session.caller.name}>${session.caller.label ?? session.caller.name}</span> <span class="dim">role ${session.caller.role}${session.caller.group ? `, group ${session.caller.group}` : ""}</span></span>
      <button class="quiet" onClick=${() => signOut()}>Sign out</button></span>
  </header>`;
}

/** The views. A narrow screen has them in one line that scrolls, with the present one in the middle. */
function Views({ view }) {
  const place = useRef(null);
  useEffect(() => {
    const strip = place.current;
    const now = strip.querySelector("[aria-current]");
    if (now) strip.scrollLeft = now.offsetLeft - (strip.clientWidth - now.offsetWidth) / 2;
  }, [view]);
  return html`<nav ref=${place} aria-label="Views">${views().map(([id, label]) => html`<a key=${id} href=${link(id)} aria-current=${view === id ? "page" : undefined}>${label}</a>`)}</nav>`;
}

/** Whether what is shown is of now; a button stops it, so that it can be read. */
function Stream() {
  const text = live.isPaused ? "paused" : live.status;
  return html`<span class=${`stream ${live.isPaused ? "paused" : live.status}`}>
    <span role="status" title=${live.error || ""}>${text}</span>
    <button class="quiet" aria-pressed=${live.isPaused} onClick=${() => live.setPaused(!live.isPaused)}>${live.isPaused ? "Go on" : "Pause"}</button>
  </span>`;
}

function Theme() {
  const [theme, setTheme] = useState(document.documentElement.dataset.theme || "auto");
  const choose = (event) => {
    setTheme(event.target.value);
    applyTheme(event.target.value);
    localStorage.setItem(THEME, event.target.value);
  };
  return html`<label class="theme"><span class="only-read">Colours</span>
    <select value=${theme} onChange=${choose}>${Object.keys(THEMES).map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select></label>`;
}

function applyTheme(theme) {
  document.documentElement.dataset.theme = theme;
  document.documentElement.style.colorScheme = THEMES[theme];
}

const chosen = localStorage.getItem(THEME) || "auto";
applyTheme(Object.hasOwn(THEMES, chosen) ? chosen : "auto");
render(html`<${Shell} />`, document.getElementById("app"));
