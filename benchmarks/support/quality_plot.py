"""The trade-off of attention-level speculation as a drawing (SVG): what λ buys, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.support import plots

PANELS = (
    ("attentions replaced (%)", lambda row: 100 * row["approximated"]),
    ("KL(exact ‖ speculating), mean, nats", lambda row: row["answers"]["kl_mean"]),
    ("top-1 agreement (%)", lambda row: 100 * row["answers"]["top1_agreement"]),
    ("perplexity of articles", lambda row: row["text"]["perplexity"]),
    (
        "answers equal to plain decoding's (%)",
        lambda row: 100 * row["free"]["prompts_with_equal_tokens"] / row["free"]["prompts"],
    ),
)

NEEDLE_PANELS = (
    ("needles found (%)", lambda row: 100 * row["needle"]["found"] / row["needle"]["asked"]),
    ("right answers, nats per token", lambda row: row["needle"]["nll_per_token"]),
)


def plot(report: Mapping[str, Any], path: Path) -> None:
    """Five figures over λ, one line per predictor; KL over the share replaced, dynamic against static layers; and the
    needle test over λ, where it was made.
    """
    needles = bool(report["needle_texts"])
    if (figure := plots.new_figure(17 if needles else 13, 7.5)) is None:
        return
    figure.suptitle(
        f"Attention-level speculation is relaxed, not lossless: {report['target']}, {report['dtype']}, "
        f"2 x {report['size']} keys; {len(report['prompts'])} prompts x {report['new_tokens']}, "
        f"{len(report['articles'])} articles x {report['text_tokens']} tokens",
        fontsize=10,
    )
    axes = figure.subplots(2, 4 if needles else 3)
    for axis, (label, value) in zip(axes[:, :3].flat, PANELS, strict=False):
        _over_threshold(axis, report, label, value)
    axes[0, 1].set_yscale("symlog", linthresh=1e-3)
    axes[0, 1].set_ylim(bottom=0)
    axes[1, 0].axhline(report["exact"]["text"]["perplexity"], color="grey", linestyle=":", label="exact")
    axes[1, 0].legend()
    _dynamic_and_static(axes[1, 2], report)
    if needles:
        for axis, (label, value) in zip(axes[:, 3], NEEDLE_PANELS, strict=True):
            _over_threshold(axis, report, label, value)
    plots.save(figure, path)


def _over_threshold(axis: Any, report: Mapping[str, Any], label: str, value: Any) -> None:
    for name, found in report["predictors"].items():
        rows = found["thresholds"]
        # ∞ has no place on a scale of numbers: thresholds stand at even distances
        axis.plot(range(len(rows)), [value(row) for row in rows], marker="o", label=name)
        names = ["∞" if row["threshold"] == "inf" else f"{row['threshold']:g}" for row in rows]
        axis.set_xticks(range(len(rows)), names)
    axis.set_xlabel("λ")
    axis.set_title(label, fontsize=10)
    axis.grid(alpha=0.3)
    axis.legend()


def _dynamic_and_static(axis: Any, report: Mapping[str, Any]) -> None:
    for name, found in report["predictors"].items():
        rows = [row for row in found["thresholds"] if row["threshold"] != "inf"]
        shares = [100 * row["approximated"] for row in rows]
        axis.plot(shares, [row["answers"]["kl_mean"] for row in rows], marker="o", label=f"{name}, verified")
        for rule in dict.fromkeys(row["rule"] for row in found["static"]):
            picked = [row for row in found["static"] if row["rule"] == rule]
            shares = [100 * row["approximated"] for row in picked]
            label = f"{name}, static: {rule}"
            axis.plot(shares, [row["answers"]["kl_mean"] for row in picked], "--", marker="s", label=label)
    axis.set_xlabel("attentions replaced (%)")
    axis.set_title("KL: verdicts against static layers", fontsize=10)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
