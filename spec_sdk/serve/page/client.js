// The server, as any client sees it: its model, and answers as streams of server-sent events.

/** What is told in one line when a request is refused or fails. */
export class Refused extends Error {
  constructor(status, message) {
    super(status ? `${message} (status ${status})` : message);
    this.status = status;
  }
}

const headers = (key) => (key ? { Authorization: `Bearer ${key}` } : {});

async function fetched(path, options) {
  let reply;
  try {
    reply = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "The server cannot be reached. Is it still running?");
  }
  if (reply.ok) return reply;
  let message = reply.statusText || "refused";
  try {
    message = (await reply.json()).error.message;
  } catch { /* no error of ours: what a proxy says is its status */ }
  throw new Refused(reply.status, message);
}

/** The one model that is served, with its pipeline. */
export async function model(key) {
  return (await (await fetched("v1/models", { headers: headers(key) })).json()).data[0];
}

/** The chunks of an answer, one after the other. `signal` cancels it. */
export async function* chunks(chat, body, key, signal) {
  const reply = await fetched(chat ? "v1/chat/completions" : "v1/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headers(key) },
    body: JSON.stringify(body),
    signal,
  });
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    let got;
    try {
      got = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Refused(0, "The connection broke before the answer’s end.");
    }
    if (got.done) throw new Refused(0, "The answer was cut off before its end.");
    const events = (rest + got.value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      if (event === "data: [DONE]") return;
      const chunk = JSON.parse(event.slice("data: ".length));
      if (chunk.error) throw new Refused(0, chunk.error.message);
      yield chunk;
    }
  }
}
