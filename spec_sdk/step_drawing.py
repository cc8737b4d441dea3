"""A step of an answer for a terminal: its token tree, what was kept of it, the answer in the colours of its sources.

Colours repeat what marks say: ``*`` accepted, ``+`` the target's own token, nothing: not accepted.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.text import Text
from rich.tree import Tree

from spec_sdk.api.step import NewToken, Step
from spec_sdk.counted import counted
from spec_sdk.tables import number, percent

KEPT, OWN, REST = "bold green", "bold", "dim"
LONGEST = 24
"""Characters of a token, quotes included."""


def step_drawing(step: Step) -> RenderableType:
    """A line on what became of the step, and its tree."""
    return Group(Text(in_words(step), style="bold"), _tree(step))


def in_words(step: Step) -> str:
    """What was drafted and kept, in how much time."""
    drafted = sum(not node.forced for node in step.nodes[1:])
    kept, forced = (sum(token.source == source for token in step.tokens) for source in ("drafted", "forced"))
    own = next((token for token in step.tokens if token.node is None), None)
    tree = f"{drafted} drafted, {kept} accepted" if drafted else "nothing drafted"
    tree = f"{forced} forced, {tree}" if forced else tree
    ending = f"then {_shown(own.piece)} ({own.source})" if own else "there the answer ended"
    seconds = ", ".join(f"{stage} {1000 * getattr(step, f'{stage}_s'):.0f}" for stage in ("draft", "verify", "recover"))
    return f"step {step.number}: {tree}, {ending}; ms: {seconds}"


def answer_drawing(steps: Iterable[Step], terminal: bool) -> Text:
    """The answer so far: drafted tokens in colour, the target's own as they are. A ``terminal`` is shown nothing that
    it would obey.
    """
    text = Text(overflow="fold")
    for step in steps:
        for token in step.tokens:
            shown = "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in token.text)
            text.append(shown if terminal else token.text, style=KEPT if token.source == "drafted" else "")
    return text


def figures(steps: Iterable[Step]) -> str:
    """Of all steps together, in one line."""
    steps = list(steps)
    tokens = [token for step in steps for token in step.tokens]
    seconds = sum(step.draft_s + step.verify_s + step.recover_s for step in steps)
    drafted = sum(_depth(step) for step in steps)
    accepted = sum(token.source == "drafted" for token in tokens)
    rate = number(len(tokens) / seconds if seconds else None, 1)
    share = percent(accepted / drafted if drafted else None)
    return (
        f"{counted(len(tokens), 'token')} in {len(steps)} target pass{'es' * (len(steps) != 1)}: "
        f"{number(len(tokens) / len(steps) if steps else None)} per pass; acceptance rate {share}; "
        f"{rate} tokens/s; {_sources(tokens)}"
    )


def _sources(tokens: Iterable[NewToken]) -> str:
    counts: dict[str, int] = {}
    for token in tokens:
        counts[token.source] = counts.get(token.source, 0) + 1
    return ", ".join(f"{count} {source}" for source, count in sorted(counts.items()))


def _depth(step: Step) -> int:
    depths: list[int] = []
    for node in step.nodes:
        depths.append(0 if node.parent is None else depths[node.parent] + (not node.forced))
    return max(depths)


def _tree(step: Step) -> Tree:
    kept = set(step.path)
    branches: list[Tree] = []
    for place, node in enumerate(step.nodes):
        chances = (("draft", node.draft_probability), ("target", node.target_probability))
        about = "  ".join(
            [" + ".join(node.drafters), *(f"{who} {chance:.2f}" for who, chance in chances if chance is not None)]
        )
        mark, style = ("* ", KEPT) if place in kept else ("  ", REST)
        label = Text.assemble((mark + _shown(node.text), style), (f"  {about}" if place else "", "dim"))
        branches.append(Tree(label) if node.parent is None else branches[node.parent].add(label))
    for token in step.tokens:
        if token.node is None:
            chance = "" if token.probability is None else f"  target {token.probability:.2f}"
            label = Text.assemble(("+ " + _shown(token.piece), OWN), (f"  {token.source}{chance}", "dim"))
            branches[step.path[-1]].add(label)
    return branches[0]


def _shown(text: str) -> str:
    """As a Python literal, so that spaces, line breaks and what a terminal obeys can be seen; long ones are cut."""
    shown = repr(text)
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST - 2]}…{shown[0]}"
