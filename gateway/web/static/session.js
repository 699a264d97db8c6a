// Who is signed in. The key is in memory and in this tab's sessionStorage; there is no cookie, so a request from another
// page carries no key.

import { Problem, get, post, useKey } from "./api.js";

const STORED = "fairlead.key";
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

export function signOut(error = null) {
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
  const stored = sessionStorage.getItem(STORED);
  if (stored === null) changed({ isBusy: false });
  else await signIn(stored);
}

function refusal(error) {
  if (!(error instanceof Problem)) return String(error);
  if (error.status === 401) return "The gateway does not know this key.";
  return error.message;
}
