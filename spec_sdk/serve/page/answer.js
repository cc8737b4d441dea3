// The answer, token by token, in the colours of where they came from.

export const OWN = { bonus: "bonus", correction: "correction", plain: "nothing drafted" };
const ABOUT = {
  bonus: "the target’s own token behind a path that was kept whole",
  correction: "the target’s own token in the place of what it rejected",
  plain: "the target’s own token; nothing was drafted",
};
const COLOURS = 6;

/** Drafters in the order in which they first come, each with a colour of its own. */
export class Palette {
  #places = new Map();

  /** The class of a node or token that these drafters proposed; several share the first one's colour. */
  of(drafters) {
    const name = drafters.join(" + ") || "drafted";
    if (!this.#places.has(name)) this.#places.set(name, this.#places.size % COLOURS);
    return `d${this.#places.get(name)}`;
  }
}

/** Where a token came from: a name for people, and the class that colours it. */
export function sourceOf(token, step, palette) {
  if (token.node === null) return { name: OWN[token.source], look: token.source, about: ABOUT[token.source] };
  const drafters = step.nodes[token.node].drafters;
  const name = drafters.join(" + ") || "drafted";
  const about = token.source === "forced" ? "what is asked for leaves no other token" : `drafted by ${name}, and accepted`;
  return { name, look: `drafted ${palette.of(drafters)}`, about };
}

export class Answer {
  #place;
  #legend;
  #palette;
  #counts = new Map();
  #spans = [];
  #marked = [];

  /** `choose(step)` is called with the index of the step whose token is clicked. */
  constructor(place, legend, palette, choose) {
    [this.#place, this.#legend, this.#palette] = [place, legend, palette];
    place.replaceChildren();
    legend.replaceChildren();
    place.onclick = (event) => {
      const step = event.target.dataset?.step;
      if (step !== undefined) choose(Number(step));
    };
  }

  /** Append the tokens of a step. */
  add(step, index) {
    const atEnd = this.#place.scrollHeight - this.#place.scrollTop - this.#place.clientHeight < 40;
    for (const token of step.tokens) {
      const source = sourceOf(token, step, this.#palette);
      const span = document.createElement("span");
      // text only, whatever the model writes
      span.textContent = token.text;
      span.className = source.look;
      span.dataset.step = index;
      span.title = source.about;
      this.#place.append(span);
      this.#spans.push(span);
      this.#count(source);
    }
    if (atEnd) this.#place.scrollTop = this.#place.scrollHeight;
  }

  /** The text that stands: a stop string is cut off, half a character at the end comes out as U+FFFD. */
  close(text) {
    let left = text.length;
    for (const span of this.#spans) {
      span.textContent = span.textContent.slice(0, left);
      left -= span.textContent.length;
    }
    if (left > 0 && this.#spans.length) this.#spans.at(-1).textContent += text.slice(text.length - left);
  }

  /** Mark the tokens of one step, and bring them into view. */
  mark(index) {
    for (const span of this.#marked) span.classList.remove("marked");
    this.#marked = this.#spans.filter((span) => Number(span.dataset.step) === index);
    for (const span of this.#marked) span.classList.add("marked");
    if (!this.#marked.length) return;
    const [shown, found] = [this.#place, this.#marked[0]].map((element) => element.getBoundingClientRect());
    if (found.top < shown.top || found.bottom > shown.bottom) this.#place.scrollTop += found.top - shown.top - shown.height / 2;
  }

  #count(source) {
    let entry = this.#counts.get(source.name);
    if (!entry) {
      const item = document.createElement("li");
      const key = document.createElement("span");
      key.className = `key ${source.look}`;
      const number = document.createElement("b");
      item.append(key, `${source.name} `, number);
      item.title = source.about;
      this.#legend.append(item);
      this.#counts.set(source.name, (entry = { number, count: 0 }));
    }
    entry.number.textContent = ++entry.count;
  }
}
