// A step's token tree, left to right by depth: what was kept, what was rejected, and what the target added.

import { OWN } from "./answer.js";
import { percent } from "./figures.js";

const SVG = "http://www.w3.org/2000/svg";
const ROW = 30, BOX = 22, GAP = 26, MARGIN = 10, CHARACTER = 7.3, LONGEST = 18;
const MARKS = { "\n": "⏎", "\t": "⇥", " ": "␣" };

/** A token as it can be seen: spaces and line breaks as marks, long ones cut. */
export function visible(text) {
  const marked = [...text].map((c) => MARKS[c] ?? (c < " " ? "�" : c));
  if (!marked.length) return "∅";
  // the space before a word is what most tokens begin with
  if (marked.length > 1 && marked[0] === "␣" && marked[1] !== "␣") marked[0] = "·";
  return marked.length > LONGEST ? `${marked.slice(0, LONGEST - 1).join("")}…` : marked.join("");
}

export const quoted = (text) => `‘${text.replaceAll("\n", "⏎").replaceAll("\t", "⇥")}’`;

/** What became of every node: kept, rejected (a child of a kept one) or unreached. */
function fates(step) {
  const kept = new Set(step.path);
  // an answer that ended before its path did says nothing of what comes after
  const ended = step.tokens.length < step.path.length;
  return step.nodes.map((node, i) => {
    if (kept.has(i)) return "kept";
    if (!kept.has(node.parent) || (ended && node.parent === step.path.at(-1))) return "unreached";
    return "rejected";
  });
}

const SAID = { kept: "accepted", rejected: "rejected", unreached: "not reached" };

/** Boxes with place and width: those of the tree, and last the target's own token, if it added one. */
function layout(step) {
  const own = step.tokens.find((token) => token.node === null);
  const fate = fates(step);
  const boxes = step.nodes.map((node, i) => ({
    text: visible(node.text), raw: node.text, parent: node.parent, fate: i ? fate[i] : "root",
    draft: node.draft_probability, target: node.target_probability, drafters: node.drafters, children: [],
  }));
  if (own) {
    boxes.push({
      text: visible(own.piece), raw: own.piece, parent: step.path.at(-1), fate: "own", source: own.source,
      draft: null, target: own.probability, drafters: [], children: [],
    });
  }
  boxes.forEach((box, i) => {
    box.depth = box.parent === null ? 0 : boxes[box.parent].depth + 1;
    if (box.parent !== null) boxes[box.parent].children.push(i);
    box.note = box.draft === null ? "" : box.draft.toFixed(2).replace(/^0/, "");
    box.width = 16 + CHARACTER * [...box.text].length + (box.note ? 28 : 0);
  });
  // pre-order, so that a subtree's leaves lie together; parents stand where their kept child does, or in the middle
  let leaf = 0;
  const place = (i) => {
    const box = boxes[i];
    if (!box.children.length) {
      box.row = leaf++;
      return;
    }
    box.children.forEach(place);
    const straight = box.children.find((child) => ["kept", "own"].includes(boxes[child].fate));
    const rows = box.children.map((child) => boxes[child].row);
    box.row = straight === undefined ? (rows[0] + rows.at(-1)) / 2 : boxes[straight].row;
  };
  place(0);
  const widths = [];
  for (const box of boxes) widths[box.depth] = Math.max(widths[box.depth] ?? 0, box.width);
  const left = [MARGIN];
  for (const width of widths) left.push(left.at(-1) + width + GAP);
  for (const box of boxes) Object.assign(box, { x: left[box.depth], y: MARGIN + ROW * box.row });
  return { boxes, width: left.at(-1) - GAP + MARGIN, height: 2 * MARGIN + ROW * leaf - (ROW - BOX) };
}

function made(name, attributes, parent) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  parent.append(element);
  return element;
}

function about(box) {
  const probability = [
    box.draft === null ? "" : `draft probability ${box.draft.toPrecision(3)}`,
    box.target === null ? "" : `the target’s ${box.target.toPrecision(3)}`,
  ].filter(Boolean).join(", ");
  const told = box.fate === "root" ? "the last token so far"
    : box.fate === "own" ? `the target’s own token, ${OWN[box.source]}`
      : `${SAID[box.fate]}, drafted by ${box.drafters.join(" + ")}`;
  return `${quoted(box.raw)}: ${told}${probability ? `; ${probability}` : ""}`;
}

/** Draw a step's tree into `place`; `tell(text)` says what a node is when it is pointed at or reached by arrow keys, and then
 *  nothing. */
export function drawTree(place, step, palette, tell) {
  const { boxes, width, height } = layout(step);
  const svg = document.createElementNS(SVG, "svg");
  for (const [key, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}`, role: "tree" })) {
    svg.setAttribute(key, value);
  }
  svg.setAttribute("aria-label", `Token tree of step ${step.number}`);
  for (const kept of [false, true]) {
    for (const box of boxes) {
      if (box.parent === null || ["kept", "own"].includes(box.fate) !== kept) continue;
      const from = boxes[box.parent];
      const [x1, y1, x2, y2] = [from.x + from.width, from.y + BOX / 2, box.x, box.y + BOX / 2];
      const bend = x2 - GAP / 2;
      const line = `M${x1} ${y1}H${x2 - GAP}C${bend} ${y1} ${bend} ${y2} ${x2} ${y2}`;
      const colour = box.fate === "kept" ? palette.of(box.drafters) : "";
      made("path", { d: line, class: `edge ${box.fate} ${colour}` }, svg);
    }
  }
  const drawn = boxes.map((box, i) => {
    const colour = box.drafters.length ? palette.of(box.drafters) : "";
    const group = made("g", {
      class: `node ${box.fate} ${colour} ${box.source ?? ""}`, transform: `translate(${box.x} ${box.y})`,
      role: "treeitem", "aria-level": box.depth + 1, "aria-label": about(box), tabindex: i ? -1 : 0,
    }, svg);
    made("rect", { width: box.width, height: BOX, rx: 5 }, group);
    made("text", { x: 8, y: 15 }, group).textContent = box.text;
    if (box.note) made("text", { x: box.width - 6, y: 15, class: "note" }, group).textContent = box.note;
    if (box.target !== null && box.fate !== "root") {
      // how probable it is to the target: a bar along the lower edge
      made("rect", { class: "gauge", x: 5, y: BOX - 3, height: 2, width: (box.width - 10) * box.target, rx: 1 }, group);
    }
    group.addEventListener("pointerenter", () => tell(about(box)));
    group.addEventListener("pointerleave", () => tell(""));
    group.addEventListener("focus", () => tell(about(box)));
    return group;
  });
  const to = (from, i) => {
    if (i === undefined || i === null) return;
    drawn[from].setAttribute("tabindex", -1);
    drawn[i].setAttribute("tabindex", 0);
    drawn[i].focus();
  };
  svg.addEventListener("keydown", (event) => {
    const at = drawn.indexOf(event.target);
    if (at < 0) return;
    const level = boxes.map((_, i) => i).filter((i) => boxes[i].depth === boxes[at].depth);
    level.sort((a, b) => boxes[a].row - boxes[b].row);
    const straight = boxes[at].children.find((i) => ["kept", "own"].includes(boxes[i].fate));
    const next = {
      ArrowLeft: boxes[at].parent,
      ArrowRight: straight ?? boxes[at].children[0],
      ArrowUp: level[level.indexOf(at) - 1],
      ArrowDown: level[level.indexOf(at) + 1],
      Home: 0,
    };
    if (!(event.key in next)) return;
    event.preventDefault();
    to(at, next[event.key]);
  });
  place.replaceChildren(svg);
  // what was kept comes into view, however large the rest is
  const last = boxes.findLast((box) => ["own", "kept", "root"].includes(box.fate));
  place.scrollLeft = last.x + last.width + MARGIN - place.clientWidth;
  place.scrollTop = last.y - (place.clientHeight - BOX) / 2;
}
