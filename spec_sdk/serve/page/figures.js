// Running figures: of the steps that came so far, and at the end the server's own.

const shown = (id, text) => { document.getElementById(id).textContent = text; };
const fixed = (value, digits) => (Number.isFinite(value) ? value.toFixed(digits) : "–");

export class Figures {
  #began = performance.now();
  #first = null;
  #firstTokens = 0;
  tokens = 0;
  passes = 0;
  drafted = 0;
  accepted = 0;

  constructor() {
    for (const id of ["rate", "mat", "acceptance", "counts", "first"]) shown(id, "–");
  }

  add(step) {
    const now = performance.now();
    this.tokens += step.tokens.length;
    this.passes += 1;
    this.drafted += depthOf(step);
    this.accepted += step.tokens.filter((token) => token.source === "drafted").length;
    if (this.#first === null) [this.#first, this.#firstTokens] = [now, this.tokens];
    this.#show((now - this.#first) / 1000);
  }

  #show(seconds) {
    shown("rate", seconds > 0 ? fixed((this.tokens - this.#firstTokens) / seconds, 1) : "–");
    shown("mat", fixed(this.tokens / this.passes, 2));
    shown("acceptance", percent(this.accepted / this.drafted));
    shown("counts", `${this.tokens} / ${this.passes}`);
    shown("first", `${fixed((this.#first - this.#began) / 1000, 2)} s`);
  }

  /** What the server says of the whole answer. */
  close(speculation, usage) {
    shown("mat", fixed(speculation.mean_accepted_tokens ?? NaN, 2));
    shown("acceptance", percent(speculation.acceptance_rate ?? NaN));
    shown("counts", `${usage.completion_tokens} / ${speculation.target_passes}`);
  }
}

export const percent = (share) => (Number.isFinite(share) ? `${Math.round(100 * share)} %` : "–");

/** Whether a constraint left no other token, so that nobody drafted it. */
export const isForced = (node) => node.drafters.length === 1 && node.drafters[0] === "forced";

/** Levels of a tree that were drafted. */
export function depthOf(step) {
  const depths = [];
  for (const node of step.nodes) {
    depths.push(node.parent === null ? 0 : depths[node.parent] + (isForced(node) ? 0 : 1));
  }
  return Math.max(...depths);
}
