"""README.md of a trained draft model: what it is for, what it learned from, what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spec_sdk.model.checkpoint import Checkpoint
from spec_sdk.training.method import TrainingMethod

_COLUMNS = {
    "loss": "loss (nats)",
    "acceptance_rate": "acceptance rate",
    "mean_accepted_tokens": "MAT",
    "mean_accepted_tokens_sampled": "MAT at temperature 1",
}


def model_card(
    name: str,
    made: TrainingMethod,
    target: Checkpoint,
    facts: Mapping[str, str],
    data: Mapping[str, Any],
    curve: Sequence[Mapping[str, Any]],
    depth: int,
) -> str:
    """The card, in Markdown. ``facts``: what else there is to tell of the training, a row of a table each."""
    untrained, trained = curve[0], curve[-1]
    rows = {made.untrained: untrained, "trained": trained}
    kinds = sorted(trained["kinds"])
    table = [
        f"| | {' | '.join(_COLUMNS.values())} |",
        "|---" * (len(_COLUMNS) + 1) + "|",
        *(f"| {label} | {_cells(point)} |" for label, point in rows.items()),
        *(f"| {kind} | {_cells(trained['kinds'][kind])} |" for kind in kinds),
    ]
    counts = ", ".join(f"{kind} {count}" for kind, count in sorted(data["kinds"].items()))
    return "\n".join(
        [
            f"# {name}",
            "",
            f"This is {made.thing} for **{target.name}** (`{target.reference}`), trained by `task=train_draft` of "
            "spec-sdk on the target's own answers.",
            "",
            "```",
            f"python -m spec_sdk pipeline={made.pipeline} model.target={target.reference} {made.option}=DIRECTORY",
            "```",
            "",
            "| | |",
            "|---|---|",
            *(f"| {key} | {value} |" for key, value in facts.items()),
            f"| data | {data['answer_tokens']} tokens of {data['samples']} answers, {data['held_out']} of them held "
            f"out; seed {data['seed']} |",
            f"| samples by kind | {counts} |",
            "",
            "## Measured on held-out answers",
            "",
            f"{trained['positions']} tokens; chains of {depth} drafted tokens. The acceptance rate is the share of "
            "greedy tokens that are the draft model's first choice. MAT, mean accepted tokens, counts tokens per pass "
            "of the target; 1 is plain decoding. Measured before the weights were rounded for storing.",
            "",
            *table,
            *_by_step(trained),
            "",
            "## License",
            "",
            _origin_of_weights(made, target),
            "",
        ]
    )


def _origin_of_weights(made: TrainingMethod, target: Checkpoint) -> str:
    theirs = f"its license ({license_of(target)}) holds for them too."
    if made.init_from is None:
        return f"The weights begin as those of {target.name}, and were trained on what it wrote: {theirs}"
    return (
        f"The weights begin as those of `{made.init_from}`, whose license holds for them. They were trained on what "
        f"{target.name} wrote: {theirs}"
    )


def _by_step(point: Mapping[str, Any]) -> list[str]:
    lines = {
        "acceptance_rate_by_step": "Acceptance rate of each token of a chain, those before it being the target's",
        "mean_accepted_tokens_by_depth": "MAT with chains of 1, 2 … tokens",
        "mean_accepted_tokens_sampled_by_depth": "The same at temperature 1",
    }
    listed = {text: [value for value in point.get(key, ()) if value is not None] for key, text in lines.items()}
    known = [f"- {text}: {', '.join(f'{value:.3f}' for value in values)}" for text, values in listed.items() if values]
    return ["", *known] if known else []


def license_of(target: Checkpoint) -> str:
    """What the target's own card says; a pointer to where to look if it has none beside its files."""
    card = target.directory / "README.md"
    if card.is_file():
        for line in card.read_text(encoding="utf-8", errors="replace").splitlines()[:60]:
            key, _, value = line.partition(":")
            if key.strip() == "license" and value.strip():
                return value.strip()
    return "not stated beside its files; see where the target comes from"


def _cells(point: Mapping[str, Any]) -> str:
    return " | ".join("–" if point[key] is None else f"{point[key]:.3f}" for key in _COLUMNS)


def file_size(path: Path) -> str:
    """For people: 22.5 MB."""
    return f"{path.stat().st_size / 1e6:.1f} MB"
