// node calls.mjs URL KEY LIMITED_KEY: the ordinary calls of both packages; prints what came of each as JSON.
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const [url, key, limitedKey] = process.argv.slice(2);
const openai = (apiKey) => new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0, timeout: 30_000 });
const anthropic = (apiKey) => new Anthropic({ baseURL: url, apiKey, maxRetries: 0, timeout: 30_000 });
const messages = [{ role: "user", content: "Hello" }];
const chat = { model: "tiny", messages, max_tokens: 8, ignore_eos: true };
const message = { model: "tiny", messages, max_tokens: 8 };

async function all(stream) {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
}

const raised = (promise) => promise.then(() => null, (error) => ({
  name: error.constructor.name, status: error.status, requestId: error.requestID, code: error.code ?? null,
  type: error.type ?? null, retryAfter: error.headers?.get("retry-after") ?? null,
}));

const calls = {
  chat: async () => (await openai(key).chat.completions.create(chat)).usage.completion_tokens,
  chatStream: async () => {
    const events = await all(await openai(key).chat.completions.create({
      ...chat, stream: true, stream_options: { include_usage: true },
    }));
    return [events.at(-2).choices[0].finish_reason, events.at(-1).usage.completion_tokens];
  },
  completion: async () =>
    (await openai(key).completions.create({ model: "tiny", prompt: "a", max_tokens: 4 })).choices.length,
  response: async () =>
    (await openai(key).responses.create({ model: "tiny", input: "Hello", max_output_tokens: 8 })).usage.output_tokens,
  responseStream: async () => {
    const events = await all(await openai(key).responses.create({
      model: "tiny", input: "Hello", max_output_tokens: 8, stream: true,
    }));
    return [events[0].type, events.at(-1).response.usage.output_tokens];
  },
  models: async () => (await openai(key).models.list()).data.map((model) => model.id),
  requestId: async () => {
    const { request_id } = await openai(key).chat.completions.create(chat, { headers: { "x-request-id": "node-1" } })
      .withResponse();
    return request_id;
  },
  abort: async () => {
    const stream = await openai(key).chat.completions.create({ ...chat, max_tokens: 3000, stream: true });
    for await (const _ of stream) break; // which aborts the request
    return true;
  },
  message: async () => {
    const answer = await anthropic(key).messages.create(message);
    return [answer.stop_reason, answer.usage.output_tokens];
  },
  messageStream: async () => {
    const final = await anthropic(key).messages.stream(message).finalMessage();
    return [final.content[0].type, final.usage.output_tokens];
  },
  countTokens: async () => (await anthropic(key).messages.countTokens({ model: "tiny", messages })).input_tokens > 0,
  notFound: () => raised(openai(key).chat.completions.create({ ...chat, model: "none" })),
  badRequest: () => raised(openai(key).chat.completions.create({ ...chat, messages: [] })),
  unauthorized: () => raised(openai("sk-wrong").chat.completions.create(chat)),
  rateLimited: async () => {
    await raised(openai(limitedKey).chat.completions.create(chat));
    return raised(openai(limitedKey).chat.completions.create(chat));
  },
  messageNotFound: () => raised(anthropic(key).messages.create({ ...message, model: "none" })),
  messageUnauthorized: () => raised(anthropic("sk-wrong").messages.create(message)),
  messageRateLimited: async () => {
    await raised(anthropic(limitedKey).messages.create(message));
    return raised(anthropic(limitedKey).messages.create(message));
  },
};

const results = {};
for (const [name, call] of Object.entries(calls)) {
  try {
    results[name] = await call();
  } catch (error) {
    results[name] = { unexpected: String(error) };
  }
}
console.log(JSON.stringify(results));
