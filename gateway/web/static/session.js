// Who is signed in. A key is in memory and in this tab's sessionStorage. After a sign-in at an identity provider there is a
// cookie in its place, which no script can read and which counts for requests of this page alone (api.js).

import { Problem, get, post, useKey } from "./api.js";

const STORED = "fairlead.key";
const BY_COOKIE = "fairlead.by-cookie"; // that there may be a session, for all tabs
const REFUSALS = {
  "no-role": "The identity provider knows you, but none of your roles has one here.",
  failed: "The identity provider does not answer the gateway. Try it again, or sign in by a key.",
};
const ROLES = { viewer: 1, operator: 2, admin: 3 };
/** Which role changes entries of a kind; a group's administrator changes the tenants of its group, and their keys. */
const CHANGED_BY = { tenants: "operator", groups: "operator", tiers: "operator", aliases: "operator", prices: "operator", backends: "operator", keys: "admin" };
const OF_GROUPS = ["tenants", "keys"];

export const session = { caller: null, error: null, isBusy: true };
const listeners = new Set();

export const onSession = (listener) => {
  listeners.add(listener);
  return () => listeners.delete(listener);
};

function changed(values) {
  Object.assign(session, values);
  for (const each of listeners) each();
}

/** Whether the caller may do what this role may. */
export const may = (role) => session.caller !== null && ROLES[session.caller.role] >= ROLES[role];

/** The group that the caller administers; null for all other roles. */
export const ownGroup = () => session.caller?.group ?? null;

/** Whether the caller may change entries of this kind. */
export const mayChange = (kind) => (ownGroup() === null ? may(CHANGED_BY[kind]) : OF_GROUPS.includes(kind));

/** Sign in by a key or token. Tells what is wrong in `session.error`. */
export async function signIn(key) {
  changed({ isBusy: true, error: null });
  const given = key.trim();
  if (!/^[\x21-\x7e]+$/.test(given)) {
    changed({ isBusy: false, error: "A key has letters, digits and signs of ASCII, without spaces." });
    return;
  }
  useKey(given);
  try {
    const { body } = await get("/me");
    sessionStorage.setItem(STORED, given);
    useKey(given, () => signOut("The gateway does not know this key any more. Sign in again."));
    changed({ caller: body, isBusy: false });
  } catch (error) {
    useKey(null);
    if (error.status === 401 || error.status === 403) sessionStorage.removeItem(STORED);
    changed({ caller: null, isBusy: false, error: refusal(error) });
  }
}

/** Sign in by the session of a cookie; null where it is over. */
async function signInByCookie(isNew = false) {
  useKey(null);
  try {
    const { body } = await get("/me");
    localStorage.setItem(BY_COOKIE, "1");
    useKey(null, () => signOut("Your session is over. Sign in again."));
    changed({ caller: body, isBusy: false });
  } catch (error) {
    if (error.status === 401) localStorage.removeItem(BY_COOKIE);
    changed({ caller: null, isBusy: false, error: error.status !== 401 ? error.message : isNew ? "The browser did not keep the session: are cookies off?" : null });
  }
}

export function signOut(error = null) {
  if (localStorage.getItem(BY_COOKIE) !== null) {
    localStorage.removeItem(BY_COOKIE);
    fetch("/oidc/sign-out", { method: "POST", headers: { "X-Fairlead-Page": "1" } }).catch(() => {});
  }
  sessionStorage.removeItem(STORED);
  useKey(null);
  changed({ caller: null, error, isBusy: false });
}

/** At the start: by the one-time link of the address, else by the key that this tab had. */
export async function resume() {
  const once = /^#once=(.+)$/.exec(location.hash);
  if (once !== null) {
    history.replaceState(null, "", location.pathname); // the link is used up: it stays in no history
    try {
      const { body } = await post("/sign-in", { once: decodeURIComponent(once[1]) });
      await signIn(body.key);
    } catch (error) {
      changed({ isBusy: false, error: error.status === 0 ? error.message : "This link was used, or is older than ten minutes. The command “fairlead admin link” prints a new one." });
    }
    return;
  }
  const way = /^#sign-in=([a-z-]+)$/.exec(location.hash)?.[1];
  if (way !== undefined) history.replaceState(null, "", location.pathname);
  const stored = sessionStorage.getItem(STORED);
  if (way === "done") await signInByCookie(true);
  else if (way !== undefined) changed({ isBusy: false, error: REFUSALS[way] ?? "The sign-in was refused, or took longer than ten minutes. Try it again." });
  else if (stored !== null) await signIn(stored);
  else if (localStorage.getItem(BY_COOKIE) !== null) await signInByCookie();
  else changed({ isBusy: false });
}

function refusal(error) {
  if (!(error instanceof Problem)) return String(error);
  if (error.status === 401) return "The gateway does not know this key.";
  return error.message;
}
