// The page: a prompt goes to the server, and what comes back is shown as it comes.

import { Answer, Palette } from "./answer.js";
import { Refused, chunks, model } from "./client.js";
import { Figures } from "./figures.js";
import { Steps } from "./steps.js";

const of = (id) => document.getElementById(id);
const NUMBERS = ["max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "repetition_penalty"];
let running = null;

/** The body of the request that the form describes. What is left empty is as the server was started. */
function body() {
  const text = of("prompt").value;
  const asked = of("chat").checked ? { messages: [{ role: "user", content: text }] } : { prompt: text };
  for (const name of NUMBERS) if (of(name).value !== "") asked[name] = Number(of(name).value);
  if (of("stop").value !== "") asked.stop = of("stop").value;
  return { ...asked, stream: true, stream_options: { include_usage: true, include_speculation: true } };
}

async function run() {
  running = new AbortController();
  const palette = new Palette();
  const answer = new Answer(of("answer"), of("legend"), palette, (index) => steps.go(index));
  const steps = new Steps(palette, (index) => answer.mark(index));
  const figures = new Figures();
  let [text, count, state] = ["", 0, "stopped"];
  fault("");
  busy(true);
  of("state").textContent = "waiting";
  try {
    for await (const chunk of chunks(of("chat").checked, body(), of("key").value, running.signal)) {
      for (const choice of chunk.choices) {
        text += choice.text ?? choice.delta?.reasoning_content ?? choice.delta?.content ?? "";
        for (const step of choice.speculation?.steps ?? []) {
          of("state").textContent = "writing";
          answer.add(step, count++);
          steps.add(step);
          figures.add(step);
        }
        if (choice.finish_reason) state = choice.finish_reason === "length" ? "ended at its limit of tokens" : "complete";
      }
      if (chunk.usage) figures.close(chunk.usage.speculation, chunk.usage);
    }
    answer.close(text);
  } catch (error) {
    if (error.name === "AbortError") state = "stopped";
    else {
      state = count ? "broken off" : "";
      told(error);
    }
  } finally {
    of("state").textContent = state;
    busy(false);
    running = null;
  }
}

function busy(now) {
  of("run").disabled = now;
  of("stop-run").disabled = !now;
  of("answer").setAttribute("aria-busy", now);
}

/** A line that says what went wrong; none for an empty one. */
function fault(line) {
  of("error").textContent = line;
  of("error").hidden = !line;
}

function told(error) {
  fault(error instanceof Refused ? error.message : `This page failed: ${error.message}`);
  if (error.status === 401) {
    of("with-key").hidden = false;
    of("key").focus();
  }
}

/** Say what is served; ask for a key where the server wants one. */
async function greet() {
  try {
    const served = await model(of("key").value);
    of("about").textContent = `${served.id}, pipeline ${served.pipeline} (${served.guarantee})`;
    document.title = `${served.id} – spec-sdk`;
    of("as-chat").hidden = !served.chat_template;
    of("chat").checked &&= served.chat_template;
    of("max_tokens").max = served.max_model_len;
    fault("");
  } catch (error) {
    told(error);
  }
}

of("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!running) run();
});
of("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) of("ask").requestSubmit();
});
of("stop-run").addEventListener("click", () => running?.abort());
of("key").addEventListener("change", greet);
greet();
