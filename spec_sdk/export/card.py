"""README.md of an exported draft: what it is, for which target, how deep to draft, and how to serve it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spec_sdk.counted import counted
from spec_sdk.export.recommended_depth import RecommendedDepth
from spec_sdk.export.serving import DIRECTORY, Serving


def export_card(
    name: str, facts: Mapping[str, str], depth: RecommendedDepth, at_once: bool, servings: Sequence[Serving], ours: str
) -> str:
    """The card, in Markdown. ``facts``: a row of a table each; ``at_once``: one pass makes all drafts; ``ours``: the
    override that drafts with it here.
    """
    lines = [f"# {name}", "", "Written by `task=export` of spec-sdk.", "", "| | |", "|---|---|"]
    lines += [f"| {key} | {value} |" for key, value in facts.items()]
    lines += ["", "## Serving", ""]
    if any(each.command for each in servings):
        lines += [
            f"`{DIRECTORY}` stands for this directory. The commands follow from the source of vLLM 0.33 and SGLang "
            "0.5.23. They were not run: check the acceptance that the program reports.",
            "",
        ]
    for each in servings:
        lines += [f"{each.program}:", "", "```", each.command, "```", ""] if each.command else []
        lines += [f"{each.program} does not serve it: {each.why}.", ""] if not each.command else []
    lines += ["spec-sdk:", "", "```", f"python -m spec_sdk {ours}", "```", "", "## Depth", "", *_depth(depth, at_once)]
    return "\n".join(lines) + "\n"


def _depth(depth: RecommendedDepth, at_once: bool) -> list[str]:
    if not depth.rates:
        return [
            f"{counted(depth.depth, 'token')} at a time: {depth.origin}. Nothing was measured: "
            "`task=export task.measure=4` does."
        ]
    mats = depth.mean_accepted_tokens
    cost = "One pass of the draft makes them all, and" if at_once else "A drafted token"
    rows = [f"| {i} | {rate:.3f} | {mat:.3f} |" for i, (rate, mat) in enumerate(zip(depth.rates, mats, strict=True), 1)]
    return [
        f"Draft {counted(depth.depth, 'token')} at a time. Greedy acceptance was measured ({depth.origin}):",
        "",
        "| token of the chain | accepted, those before it being accepted | tokens per target pass, a chain this long |",
        "|---|---|---|",
        *rows,
        "",
        f"{cost} is taken to cost {depth.cost:.3f} target passes, its share of the weights that are read. With many "
        "requests at a time, or another share, another depth may be better.",
    ]
