// Going through the steps: the strip of all of them, slider, buttons, play; and what is told of the one in view.

import { OWN } from "./answer.js";
import { depthOf, isForced } from "./figures.js";
import { drawTree, quoted } from "./tree.js";

const PACE_MS = 700;
const KEY = "Numbers are draft probabilities, bars the target’s. Struck out: rejected. Dotted: not reached. Dashed: the target’s own token.";
const SVG = "http://www.w3.org/2000/svg";
const of = (id) => document.getElementById(id);
const ms = (seconds) => `${(1000 * seconds).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
const several = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

export class Steps {
  #steps = [];
  #at = -1;
  #following = true;
  #timer = null;
  #due = false;
  #palette;
  #changed;

  /** `changed(index)` is called when another step comes into view. */
  constructor(palette, changed) {
    [this.#palette, this.#changed] = [palette, changed];
    of("strip").replaceChildren();
    of("tree").replaceChildren();
    for (const id of ["verdict", "node", "seconds"]) of(id).textContent = "";
    of("step-number").textContent = "–";
    of("split").hidden = true;
    for (const id of ["previous", "play", "next", "slider"]) of(id).disabled = true;
    of("slider").oninput = () => this.go(Number(of("slider").value) - 1);
    of("previous").onclick = () => this.go(this.#at - 1);
    of("next").onclick = () => this.go(this.#at + 1);
    of("play").onclick = () => (this.#timer ? this.#pause() : this.#play());
    of("strip").onclick = (event) => {
      const place = of("strip").getBoundingClientRect();
      this.go(Math.floor(((event.clientX - place.left) / place.width) * this.#steps.length));
    };
    this.#pause();
  }

  /** One more step; it comes into view unless an earlier one was chosen. Drawn once a frame, however many come. */
  add(step) {
    this.#steps.push(step);
    if (this.#due) return;
    this.#due = true;
    requestAnimationFrame(() => {
      this.#due = false;
      this.#strip();
      for (const id of ["play", "slider"]) of(id).disabled = false;
      of("slider").max = this.#steps.length;
      if (this.#following) this.#show(this.#steps.length - 1);
      else this.#buttons();
    });
  }

  get(index) {
    return this.#steps[index];
  }

  /** Bring a step into view because somebody asked for it. */
  go(index) {
    if (!this.#steps.length) return;
    this.#pause();
    const chosen = Math.min(Math.max(index, 0), this.#steps.length - 1);
    this.#following = chosen === this.#steps.length - 1;
    this.#show(chosen);
  }

  #play() {
    if (this.#at >= this.#steps.length - 1) this.#show(0);
    this.#following = false;
    of("play").textContent = "Pause";
    this.#timer = setInterval(() => {
      if (this.#at < this.#steps.length - 1) this.#show(this.#at + 1);
      if (this.#at === this.#steps.length - 1) {
        this.#following = true;
        this.#pause();
      }
    }, PACE_MS);
  }

  #pause() {
    clearInterval(this.#timer);
    this.#timer = null;
    of("play").textContent = "Play";
  }

  #show(index) {
    this.#at = index;
    const step = this.#steps[index];
    of("slider").value = index + 1;
    of("slider").setAttribute("aria-valuetext", `Step ${step.number} of ${this.#steps.at(-1).number}`);
    of("step-number").textContent = `${step.number} of ${this.#steps.at(-1).number}`;
    of("verdict").textContent = verdictOf(step);
    of("node").textContent = KEY;
    drawTree(of("tree"), step, this.#palette, (told) => { of("node").textContent = told || KEY; });
    this.#times(step);
    this.#buttons();
    for (const [i, bar] of [...of("strip").children].entries()) bar.classList.toggle("chosen", i === index);
    this.#changed(index);
  }

  #buttons() {
    of("previous").disabled = this.#at <= 0;
    of("next").disabled = this.#at >= this.#steps.length - 1;
    of("step-number").textContent = `${this.#steps[this.#at].number} of ${this.#steps.at(-1).number}`;
  }

  #times(step) {
    const all = step.draft_s + step.verify_s + step.recover_s;
    of("split").hidden = false;
    for (const stage of ["draft", "verify", "recover"]) {
      of("split").querySelector(`.${stage}`).style.flexGrow = step[`${stage}_s`] / all;
    }
    of("seconds").textContent =
      `${ms(all)}: draft ${ms(step.draft_s)}, verify ${ms(step.verify_s)}, recover ${ms(step.recover_s)}`;
  }

  /** For every step a column: as high as its draft was deep, filled as far as tokens came of it. */
  #strip() {
    const strip = of("strip");
    const most = Math.max(2, ...this.#steps.map((step) => Math.max(depthOf(step) + 1, step.tokens.length)));
    strip.setAttribute("viewBox", `0 0 ${Math.max(this.#steps.length, 24)} ${most}`);
    for (let i = strip.children.length; i < this.#steps.length; i++) {
      const column = document.createElementNS(SVG, "g");
      column.append(document.createElementNS(SVG, "rect"), document.createElementNS(SVG, "rect"));
      strip.append(column);
    }
    for (const [i, step] of this.#steps.entries()) {
      const [deep, kept] = strip.children[i].children;
      const heights = [depthOf(step) + 1, step.tokens.length];
      for (const [j, bar] of [deep, kept].entries()) {
        const about = { class: j ? "kept" : "deep", x: i + 0.1, width: 0.8, y: most - heights[j], height: heights[j] };
        for (const [name, value] of Object.entries(about)) bar.setAttribute(name, value);
      }
    }
  }
}

/** What the verifier made of a step, in a sentence. */
export function verdictOf(step) {
  const forced = step.tokens.filter((token) => token.source === "forced").length;
  const drafted = step.nodes.filter((node, i) => i && !isForced(node)).length;
  const kept = step.path.length - 1 - forced;
  const own = step.tokens.find((token) => token.node === null);
  const hits = step.attention_hits?.filter((hit) => hit !== null) ?? [];
  const attention = hits.length
    ? ` Attention was predicted in ${several(hits.length, "layer")}, rightly in ${hits.filter(Boolean).length}.` : "";
  if (!drafted) {
    const added = own ? `The target wrote ${quoted(own.piece)} itself.` : "";
    return `Nothing was drafted. ${forced ? `${several(forced, "token")} forced. ` : ""}${added}${attention}`.trim();
  }
  const ending = own ? `; the target added ${quoted(own.piece)} (${OWN[own.source]}).` : "; there the answer ended.";
  const tree = `${forced ? `${several(forced, "token")} forced. ` : ""}${several(drafted, "token")} drafted, ${several(depthOf(step), "level")} deep. `;
  return `${tree}${kept ? `${kept} accepted` : "None accepted"}${ending} ${several(step.tokens.length, "token")} from one pass.${attention}`;
}
