"""What the threshold λ of attention-level speculation costs in quality, and what it buys in hits.

    python -m benchmarks.alspec_quality          # 12 minutes on two idle cores; a smoke run:
    python -m benchmarks.alspec_quality --needle-texts 0 --count 2 --new-tokens 8 --text-tokens 8 --calibration 1

Relaxed, not lossless: from λ = 0 (nothing accepted) to ∞ (every prediction taken) the target strays from the exact one.
For each λ, by teacher forcing (the exact model's own greedy answers, and articles as they were written, fed one token
per pass after a plain prefill): hit rate, KL divergence and top-1 agreement with the exact model, perplexity. By free
generation: answers equal to plain decoding's, and the needle test (docs/needle.md): needles found, and the negative
log-likelihood of the right answers. Then the same for static layers (ALSpec, §2) that replace as many
attentions as the dynamic verdicts do: those accepted most often on other prompts (the paper's choice), those of the
least mean error there, and layers evenly spread.

Writes results/alspec_quality.json, a plot (.svg) beside it, and one answer shaded by hit rate (.html, Fig. 8).
Needs ``pip install 'spec-sdk[benchmarks]'`` for the plot.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.places import RESULTS
from benchmarks.support.fidelity import Fidelity, Passage, hit_rates, nll, perplexity
from benchmarks.support.quality_plot import plot
from spec_sdk.attention_html import ShadedAnswer, attention_page, shaded_pieces
from spec_sdk.bench.answers import Prompt, answer, long_prompts, tokens_of
from spec_sdk.bench.conversations import spread
from spec_sdk.bench.reports import write_report
from spec_sdk.bench.scripts import build, pipeline_facts, run_script, script_parser
from spec_sdk.metrics import request_metrics
from spec_sdk.model.runners.sequential import SequentialRunner
from spec_sdk.model.session import common_prefix
from spec_sdk.needles import Haystack, build_haystack
from spec_sdk.needles import measure as measure_needles
from spec_sdk.pipeline import Pipeline

THRESHOLDS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, math.inf)
KINDS = ("answers", "text")
SUMMARIZE = "Summarize: "
"""What Spec-Bench puts before its articles."""


@dataclass(frozen=True)
class Reference:
    """A passage and the exact model's logits [N, V] for it."""

    passage: Passage
    exact_NV: torch.Tensor


@dataclass
class Material:
    """What every setting is measured on: passages of each kind, the exact model's free answers, texts with needles."""

    kinds: dict[str, list[Reference]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    haystacks: list[Haystack] = field(default_factory=list)

    def exact(self, kind: str) -> dict[str, Any]:
        """The exact model on the passages of one kind."""
        every = [loss for r in self.kinds[kind] for loss in nll(r.exact_NV, r.passage.after)]
        return {"positions": len(every), "perplexity": perplexity(every)}


def reference(pipeline: Pipeline, before: Sequence[int], after: Sequence[int]) -> Reference:
    """``after`` scored by the exact model."""
    passage = Passage(pipeline.models.session(pipeline.models.target), before, after)
    return Reference(passage, passage.score(SequentialRunner())[0])


def answered(pipeline: Pipeline, prompt: Prompt, new_tokens: int) -> Reference:
    """A prompt with the exact model's own greedy answer."""
    passage = Passage(pipeline.models.session(pipeline.models.target), tokens_of(pipeline, prompt))
    passage.after = passage.greedy(SequentialRunner(), new_tokens, pipeline.tokenizer.stop_ids)
    return Reference(passage, passage.score(SequentialRunner())[0])


def measure(pipeline: Pipeline, material: Material, new_tokens: int) -> dict[str, Any]:
    """One setting's row: every passage scored, and every prompt answered freely."""
    row: dict[str, Any] = {}
    reports = []
    for kind, references in material.kinds.items():
        fidelity, told = Fidelity(), []
        for each in references:
            logits_NV, attention = each.passage.score(pipeline.make_target_runner())
            fidelity.add(each.exact_NV, logits_NV, each.passage.after)
            told += attention
        row[kind] = {**fidelity.summary(), "hit_rate": hit_rates(told)["hit_rate"]}
        reports += told
    passages = [each.passage for each in material.kinds["answers"]]
    stop_ids = pipeline.tokenizer.stop_ids
    pairs = [(p.greedy(pipeline.make_target_runner(), new_tokens, stop_ids), p.after) for p in passages]
    free = {
        "prompts": len(pairs),
        "prompts_with_equal_tokens": sum(ours == exact for ours, exact in pairs),
        "tokens_before_first_difference": statistics.fmean(common_prefix(*pair) for pair in pairs),
        "new_tokens": statistics.fmean(len(exact) for _, exact in pairs),
    }
    return {**hit_rates(reports), **row, "free": free}


def tradeoff(first: Pipeline, predictor: Sequence[str], material: Material, arguments: Any) -> list[dict[str, Any]]:
    """One row per λ."""
    rows = []
    for threshold in THRESHOLDS:
        pipeline = chosen(first, *predictor, f"attention_verifier.threshold={threshold}")
        row = measure(pipeline, material, arguments.new_tokens)
        row = {"threshold": "inf" if math.isinf(threshold) else threshold, **row}
        if material.haystacks:
            row["needle"] = needle_score(pipeline, material.haystacks)
        rows.append(row)
        print_row(f"λ = {threshold:g}", row)
    return rows


def needle_score(pipeline: Pipeline, haystacks: Sequence[Haystack]) -> dict[str, Any]:
    """Needles found, and nats per token of the right answers, over all texts."""
    first, *others = [measure_needles(pipeline, haystack) for haystack in haystacks]
    found: dict[str, Any] = sum(others, first).as_json()["all"]
    return found


def static(
    first: Pipeline,
    predictor: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    errors: Sequence[Sequence[float]],
    material: Material,
    arguments: Any,
) -> list[dict[str, Any]]:
    """Static layers in the place of verdicts: per λ as many layers as the dynamic run replaced, rounded down."""
    layers = len(errors)
    found = []
    for threshold in arguments.static:
        dynamic = next(row for row in rows if row["threshold"] == threshold)
        count = max(1, math.floor(layers * dynamic["approximated"]))
        measured: dict[tuple[int, ...], dict[str, Any]] = {}
        for rule, picked in picks(errors, threshold, count).items():
            options = ("attention_verifier=static", f"attention_verifier.layers={picked}")
            # two rules often pick the same layers
            row = measured.get(tuple(picked)) or measure(
                chosen(first, *predictor, *options), material, arguments.new_tokens
            )
            measured[tuple(picked)] = row
            found.append({"rule": rule, "threshold": threshold, "layers": picked, **row})
            print_row(f"{count} layers, {rule}", row)
    return found


def picks(errors: Sequence[Sequence[float]], threshold: float, count: int) -> dict[str, list[int]]:
    """``count`` layers by each rule, from every layer's errors on calibration prompts."""
    layers = range(len(errors))
    mean = [statistics.fmean(errors[layer]) for layer in layers]
    # where no prediction is accepted the error says which comes closest
    accepted = [(-sum(error < threshold for error in errors[layer]), mean[layer]) for layer in layers]
    spread = [int((i + 0.5) * len(errors) / count) for i in range(count)]
    return {
        "most accepted": sorted(sorted(layers, key=accepted.__getitem__)[:count]),
        "least error": sorted(sorted(layers, key=mean.__getitem__)[:count]),
        "evenly spread": spread,
    }


def calibration_errors(first: Pipeline, predictor: Sequence[str], prompts: Sequence[Reference]) -> list[list[float]]:
    """Per layer the relative errors along plain decoding: nothing is accepted, so all layers meet the exact states."""
    pipeline = chosen(first, *predictor, "attention_verifier.threshold=0")
    reports = [report for each in prompts for report in each.passage.score(pipeline.make_target_runner())[1]]
    return [[error for error in layer if error is not None] for layer in zip(*(r.error for r in reports), strict=True)]


def chosen(first: Pipeline, *overrides: str) -> Pipeline:
    """The attention level that these overrides name, on ``first``'s loaded weights."""
    return dataclasses.replace(first, make_target_runner=build("pipeline=alspec", *overrides).make_target_runner)


def print_row(name: str, row: Mapping[str, Any]) -> None:
    """One line under :func:`print_head`'s columns."""
    columns = [f"{row['approximated']:.1%}"]
    for kind in KINDS:
        part = row[kind]
        columns += [f"{part['kl_mean']:.4f}", f"{part['top1_agreement']:.1%}", f"{part['perplexity']:.3f}"]
    columns += [f"{row['free']['prompts_with_equal_tokens']}/{row['free']['prompts']}"]
    columns += [f"{row['free']['tokens_before_first_difference']:.1f}"]
    if needle := row.get("needle"):
        columns += [f"{needle['found']}/{needle['asked']}", f"{needle['nll_per_token']:.3f}"]
    print(f"{name:26}" + "".join(f"{column:>9}" for column in columns), flush=True)


def print_head() -> None:
    """Names of the columns: those of the answers, then those of the articles, then free generation's."""
    names = ["hits", *("KL", "top-1", "ppl") * 2, "equal", "common", "needles", "nll"]
    print(f"{'':26}" + "".join(f"{name:>9}" for name in names), flush=True)


def prompts_of(pipeline: Pipeline, arguments: argparse.Namespace) -> tuple[list[Prompt], list[Prompt], list[str]]:
    """Prompts to answer, others to calibrate on, and articles, none of which is calibrated on."""
    every = long_prompts(pipeline, arguments.prompts, arguments.shortest, arguments.longest)
    wanted = arguments.count + arguments.calibration
    if len(every) < wanted:
        raise SystemExit(f"error: {arguments.prompts} has {len(every)} prompts of that length; {wanted} are needed")
    taken = spread(every, wanted)
    calibration = spread(taken, arguments.calibration)
    measured = [prompt for prompt in taken if prompt not in calibration]
    articles = [p.text.removeprefix(SUMMARIZE) for p in every if p.task == "summarization" and p not in calibration]
    return measured, calibration, spread(articles, arguments.count)


def shaded(pipeline: Pipeline, prompt: Prompt, new_tokens: int, threshold: float) -> str:
    """The page of one answer, every token shaded by its hit rate."""
    [given] = answer(pipeline, [prompt], new_tokens)
    hit_rate = request_metrics(given.events)["attention"]["hit_rate"]
    page = ShadedAnswer(prompt.text, shaded_pieces(given.events, pipeline.tokenizer), hit_rate)
    facts = {"target": f"{pipeline.target_name}, {pipeline.dtype}", "guarantee": pipeline.guarantee, "λ": threshold}
    return attention_page("alspec: tokens by attention hit rate", facts, [page])


def main() -> int:
    arguments = parsed()
    began = time.monotonic()
    first = build("pipeline=alspec", *arguments.overrides)
    measured, calibration, articles = prompts_of(first, arguments)
    material = Material()
    material.kinds["answers"] = [answered(first, prompt, arguments.new_tokens) for prompt in measured]
    for article in articles:
        tokens = first.tokenizer.encode(article)
        at = len(tokens) - arguments.text_tokens
        material.kinds["text"].append(reference(first, tokens[:at], tokens[at:]))
    others = [answered(first, prompt, arguments.new_tokens) for prompt in calibration]
    material.haystacks = [
        build_haystack(first.tokenizer, arguments.needle_context, seed=seed) for seed in range(arguments.needle_texts)
    ]
    report: dict[str, Any] = {
        "schema_version": 1,
        "benchmark": "alspec_quality",
        "guarantee": "relaxed",
        **pipeline_facts(first),
        "overrides": arguments.overrides,
        "size": arguments.size,
        "prompts": [{"task": p.task, "tokens": len(tokens_of(first, p))} for p in measured],
        "articles": [len(first.tokenizer.encode(article)) for article in articles],
        "calibration_prompts": len(others),
        "new_tokens": arguments.new_tokens,
        "text_tokens": arguments.text_tokens,
        "needle_texts": [haystack.tokens for haystack in material.haystacks],
        "exact": {kind: material.exact(kind) for kind in KINDS},
        "predictors": {},
    }
    print(
        f"{report['machine']}; {report['target']}, {report['dtype']}; {len(measured)} prompts, {len(articles)} articles"
    )
    for name in arguments.predictors:
        predictor = [*arguments.overrides, f"predictor={name}", f"predictor.size={arguments.size}"]
        print(f"\n{name}, 2 x {arguments.size} keys; exact perplexity: ", end="")
        print(", ".join(f"{kind} {report['exact'][kind]['perplexity']:.3f}" for kind in KINDS))
        print_head()
        rows = tradeoff(first, predictor, material, arguments)
        errors = calibration_errors(first, predictor, others)
        found = static(first, predictor, rows, errors, material, arguments) if name in arguments.static_for else []
        mean = [statistics.fmean(layer) for layer in errors]
        report["predictors"][name] = {"thresholds": rows, "static": found, "calibration_mean_error_per_layer": mean}
    report["seconds"] = round(time.monotonic() - began)
    write_report(arguments.output, report)
    plot(report, arguments.output.with_suffix(".svg"))
    shading = chosen(
        first,
        *arguments.overrides,
        f"predictor={arguments.predictors[0]}",
        f"predictor.size={arguments.size}",
        f"attention_verifier.threshold={arguments.shade}",
    )
    page = shaded(shading, measured[-1], 2 * arguments.new_tokens, arguments.shade)
    arguments.output.with_suffix(".html").write_text(page, encoding="utf-8")
    return 0


def parsed() -> argparse.Namespace:
    parser = script_parser(__doc__, count=6, new_tokens=32, output=RESULTS / "alspec_quality.json")
    parser.add_argument("--calibration", type=int, default=3, help="other prompts, on which static layers are chosen")
    parser.add_argument("--text-tokens", type=int, default=32, help="of each article's end")
    parser.add_argument("--shortest", type=int, default=600, help="tokens of the shortest prompt taken")
    parser.add_argument("--longest", type=int, default=1200, help="tokens of the longest prompt taken")
    parser.add_argument("--size", type=int, default=64, help="predictor.size: half the keys read")
    parser.add_argument("--predictors", nargs="+", default=["attention_sink"], help="attention_sink, quest, h2o …")
    parser.add_argument(
        "--static", type=float, nargs="*", default=[0.1, 0.2, 0.25], help="λs to match by static layers"
    )
    parser.add_argument("--static-for", nargs="*", default=["attention_sink"], help="predictors to do that with")
    parser.add_argument("--needle-texts", type=int, default=2, help="texts with ten needles each; 0: no needle test")
    parser.add_argument("--needle-context", type=int, default=1024, help="tokens of such a prompt")
    parser.add_argument("--shade", type=float, default=0.2, help="λ of the shaded answer")
    return parser.parse_intermixed_args()


if __name__ == "__main__":
    sys.exit(run_script(main))
