// The live document: one stream of server-sent events, whose first event is the whole and whose later ones are merge
// patches (RFC 7396). EventSource can send no key, so the stream is read by fetch.

import { ask, path } from "./api.js";

const RETRY_MS = [500, 1000, 2000, 4000];
const SILENCE_MS = 40000; // the gateway sends at least a comment every 15 s

const newObject = () => Object.create(null); // a name like __proto__ is a name here

/** The patch merged into the target, which is changed where it is an object. */
export function merged(target, patch) {
  if (patch === null || typeof patch !== "object" || Array.isArray(patch)) return patch;
  const object = target !== null && typeof target === "object" && !Array.isArray(target) ? target : newObject();
  for (const name of Object.keys(patch)) {
    if (patch[name] === null) delete object[name];
    else object[name] = merged(object[name], patch[name]);
  }
  return object;
}

/** Splits text that arrives in pieces into events: `{event, data}`. */
export class EventParser {
  #rest = "";
  #event = "message";
  #data = [];

  *feed(text) {
    const lines = (this.#rest + text).split("\n");
    this.#rest = lines.pop();
    for (const each of lines) {
      const line = each.endsWith("\r") ? each.slice(0, -1) : each;
      if (line === "") {
        if (this.#data.length > 0) yield { event: this.#event, data: this.#data.join("\n") };
        this.#event = "message";
        this.#data = [];
      } else if (line.startsWith("event:")) this.#event = line.slice(6).trim();
      else if (line.startsWith("data:")) this.#data.push(line.slice(5).replace(/^ /, ""));
    }
  }
}

class Live {
  document = null;
  status = "connecting"; // live, retrying
  error = null;
  isPaused = false;
  at = 0; // when the last event came, by this machine's clock (ms)
  #listeners = new Set();
  #abort = null;
  #path = "/live";
  #frame = 0;

  subscribe(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  setPaused(isPaused) {
    this.isPaused = isPaused;
    this.#tell();
  }

  /** `group`: the part of this group alone; null: the whole. */
  start(group = null) {
    this.stop();
    this.#path = group === null ? "/live" : `${path("groups", group)}/live`;
    this.document = null;
    this.#abort = new AbortController();
    this.#run(this.#abort.signal);
  }

  stop() {
    this.#abort?.abort();
    this.#abort = null;
  }

  async #run(signal) {
    for (let failures = 0; !signal.aborted; failures += 1) {
      try {
        await this.#read(signal, () => (failures = 0));
        this.error = null;
      } catch (error) {
        if (signal.aborted || error.status === 401 || error.status === 403) return;
        this.error = error.message;
      }
      if (signal.aborted) return;
      this.status = "retrying";
      this.#tell();
      await new Promise((done) => setTimeout(done, RETRY_MS[Math.min(failures, RETRY_MS.length - 1)]));
    }
  }

  async #read(signal, onData) {
    const response = await ask("GET", this.#path, { signal, accept: "text/event-stream" });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    const parser = new EventParser();
    for (;;) {
      let timer;
      const silence = new Promise((_, fail) => {
        timer = setTimeout(() => fail(new Error("The gateway says nothing any more.")), SILENCE_MS);
      });
      let piece;
      try {
        piece = await Promise.race([reader.read(), silence]);
      } catch (error) {
        reader.cancel().catch(() => {});
        throw error;
      } finally {
        clearTimeout(timer);
      }
      if (piece.done) return;
      for (const { event, data } of parser.feed(piece.value)) {
        onData();
        this.#apply(event, JSON.parse(data));
      }
    }
  }

  #apply(event, data) {
    if (event === "state") this.document = merged(null, data);
    else if (event === "patch" && this.document !== null) this.document = merged(this.document, data);
    else return;
    this.status = "live";
    this.error = null;
    this.at = Date.now();
    if (!this.isPaused) this.#tell();
  }

  #tell() {
    if (this.#frame) return; // several events in one frame are one paint
    this.#frame = setTimeout(() => {
      this.#frame = 0;
      for (const each of this.#listeners) each();
    }, 0);
  }
}

export const live = new Live();
