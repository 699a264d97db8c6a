// The admin API, asked with the caller's key. Answers are JSON; a refusal is a Problem (RFC 9457).

export const ROOT = "/admin/v1";

/** What the API refused, or that it could not be asked (`status` 0). */
export class Problem extends Error {
  constructor(status, body = {}) {
    super(body.detail || `The gateway answered with status ${status}.`);
    this.status = status;
    this.errors = body.errors || [];
  }
}

let key = null;
let onUnauthorized = () => {};

/** Every later call has this key; `lost` is called when the gateway does not know it any more. */
export function useKey(given, lost = () => {}) {
  key = given;
  onUnauthorized = lost;
}

/** A response whose status is a success. Throws a Problem. */
export async function ask(method, path, { body, etag, signal, accept } = {}) {
  const headers = { "X-Fairlead-Page": "1" }; // no other site can send it: a session by a cookie counts with it alone
  if (key !== null) headers.Authorization = `Bearer ${key}`;
  if (accept) headers.Accept = accept;
  if (etag) headers["If-Match"] = etag;
  if (body !== undefined) {
    headers["Content-Type"] = method === "PATCH" ? "application/merge-patch+json" : "application/json";
  }
  let response;
  try {
    response = await fetch(ROOT + path, {
      method,
      headers,
      signal,
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store",
      credentials: "same-origin",
      redirect: "error",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { detail: "The gateway cannot be reached." });
  }
  if (response.ok) return response;
  const problem = new Problem(response.status, await response.json().catch(() => ({})));
  if (response.status === 401) onUnauthorized(problem);
  throw problem;
}

async function read(method, path, options) {
  const response = await ask(method, path, options);
  return {
    body: response.status === 204 ? null : await response.json(),
    etag: response.headers.get("ETag"),
    location: response.headers.get("Location"),
  };
}

export const get = (path, options) => read("GET", path, options);
export const post = (path, body = {}) => read("POST", path, { body });
export const patch = (path, body, etag) => read("PATCH", path, { body, etag });
export const put = (path, body, etag) => read("PUT", path, { body, etag });
export const remove = (path, etag) => read("DELETE", path, { etag });

/** A path of parts that may hold anything, a slash too. */
export const path = (...parts) => parts.map((each) => `/${encodeURIComponent(each)}`).join("");

/** All items of a list that comes in pages, at most `pages` of them. */
export async function all(listPath, { pages = 10, signal } = {}) {
  const items = [];
  let cursor = null;
  for (let page = 0; page < pages; page += 1) {
    const query = new URLSearchParams({ limit: "1000", ...(cursor === null ? {} : { cursor }) });
    const { body } = await get(`${listPath}${listPath.includes("?") ? "&" : "?"}${query}`, { signal });
    items.push(...body.items);
    cursor = body.next_cursor;
    if (cursor === null) break;
  }
  return items;
}
