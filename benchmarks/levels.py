"""All levels of speculation together beside each of them alone: same prompts, same process.

    python -m benchmarks.levels --count 8 --new-tokens 32
    python -m benchmarks.levels --count 8 --new-tokens 32 backend.activations=exact

The second is for weights in few bits on CPUs, where plain decoding rounds rows and a predicted attention's model does
not.
Token (a tree from a draft model), token and layer (EasySpec), attention (ALSpec), and all three in one pipeline. Per
pipeline: mean accepted tokens, acceptance rate, attention hit rate by pass and by row (a tree pass hits in a layer only
if all its rows do), and tokens per second over plain decoding's, which takes turns with it. Quality: answers equal to
plain decoding's, and the likelihood of what was written under the exact model, beside that of plain decoding's own
text. Also which kernel served the attention level, counted. Writes results/levels.json.
"""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.places import RESULTS
from benchmarks.support.fidelity import Passage
from benchmarks.support.kernel_counts import counted_kernels
from spec_sdk.bench.answers import Answer, answer, events_of, long_prompts, tokens_of
from spec_sdk.bench.conversations import spread
from spec_sdk.bench.reports import write_report
from spec_sdk.bench.scripts import build, pipeline_facts, run_script, script_parser
from spec_sdk.metrics import summarise
from spec_sdk.model.runners.sequential import SequentialRunner
from spec_sdk.model.session import common_prefix
from spec_sdk.tables import number, percent

ALONE: Mapping[str, tuple[str, ...]] = {
    "token": ("pipeline=sd_chain", "verifier=multi_step", "drafter.width=4"),
    "token + layer, chain": ("pipeline=easyspec_chain",),
    "token + layer, tree": ("pipeline=easyspec_paper",),
}
ATTENTION: Mapping[str, tuple[str, ...]] = {
    "attention": ("pipeline=alspec",),
    "all three": ("pipeline=alspec_easyspec_tree",),
}


def settings(size: int, thresholds: Sequence[float]) -> Iterator[tuple[str, tuple[str, ...], float | None]]:
    """Name, options and λ of every pipeline measured."""
    for name, options in ALONE.items():
        yield name, options, None
    for name, options in ATTENTION.items():
        for threshold in thresholds:
            attention = (f"predictor.size={size}", f"attention_verifier.threshold={threshold}")
            yield f"{name}, λ = {threshold:g}", (*options, *attention), threshold


def row_hit_rate(cycles: Sequence[Mapping[str, Any]], threshold: float) -> float | None:
    """Share of layers and tree nodes whose own prediction was close enough, whatever the pass's other rows were."""
    errors = []
    for attention in (cycle["attention"] for cycle in cycles if cycle["attention"] is not None):
        rows = attention["row_error"] or [None if error is None else [error] for error in attention["error"]]
        errors += [error for layer in rows if layer is not None for error in layer]
    return sum(error < threshold for error in errors) / len(errors) if errors else None


def quality(answers: Sequence[Answer], expected: Sequence[Answer], passages: Sequence[Passage]) -> dict[str, Any]:
    """Against plain decoding's answers, and by the exact model's likelihood of every token written."""
    exact = SequentialRunner()
    ours, theirs = (
        [statistics.fmean(p.nll(exact, a.tokens)) for p, a in zip(passages, given, strict=True)]
        for given in (answers, expected)
    )
    pairs = [(a.tokens, b.tokens) for a, b in zip(answers, expected, strict=True)]
    return {
        "prompts_with_equal_tokens": sum(a == b for a, b in pairs),
        "tokens_before_first_difference": statistics.fmean(common_prefix(a, b) for a, b in pairs),
        "nll": statistics.fmean(ours),
        "nll_of_vanilla": statistics.fmean(theirs),
    }


def served(counts: Mapping[str, Counter[int]], predictions: int) -> list[dict[str, Any]]:
    """Per fused kernel its calls, with more than one row and in all, and their share of the predictions made."""
    return [
        {
            "kernel": name,
            "calls": calls.total(),
            "calls_with_several_rows": sum(n for rows, n in calls.items() if rows > 1),
            "most_rows": max(calls),
            "share_of_predictions": calls.total() / predictions,
        }
        for name, calls in counts.items()
        if calls and predictions
    ]


def main() -> int:
    parser = script_parser(__doc__, count=8, new_tokens=32, output=RESULTS / "levels.json")
    parser.add_argument("--shortest", type=int, default=600, help="tokens of the shortest prompt taken")
    parser.add_argument("--longest", type=int, default=1200, help="tokens of the longest prompt taken")
    parser.add_argument("--size", type=int, default=64, help="predictor.size: half the keys read")
    parser.add_argument("--thresholds", type=float, nargs="+", default=[0.1, 0.25], help="λ")
    arguments = parser.parse_intermixed_args()
    vanilla = build("pipeline=vanilla", *arguments.overrides)
    prompts = spread(long_prompts(vanilla, arguments.prompts, arguments.shortest, arguments.longest), arguments.count)
    answer(vanilla, prompts[:1], 8)
    expected = answer(vanilla, prompts, arguments.new_tokens)
    baseline = summarise(events_of(expected))
    passages = [
        Passage(vanilla.models.session(vanilla.models.target), tokens_of(vanilla, prompt)) for prompt in prompts
    ]
    report: dict[str, Any] = {
        "schema_version": 1,
        "benchmark": "levels",
        **pipeline_facts(vanilla),
        "overrides": arguments.overrides,
        "size": arguments.size,
        "prompts": len(prompts),
        "new_tokens": arguments.new_tokens,
        "vanilla": {**baseline, **quality(expected, expected, passages)},
        "pipelines": {},
    }
    print(
        f"{report['machine']}; {report['target']}, {report['dtype']}; {len(prompts)} prompts x {arguments.new_tokens}"
    )
    print(f"vanilla: {baseline['tokens_per_second']:.1f} tokens/s, nll of its text {report['vanilla']['nll']:.3f}")
    names = ("MAT", "accept", "hits", "by row", "equal", "common", "nll", "ratio")
    print(f"{'':22}" + "".join(f"{name:>8}" for name in names) + "  kernel")
    for name, options, threshold in settings(arguments.size, arguments.thresholds):
        pipeline = build(*options, *arguments.overrides)
        answer(pipeline, prompts[:1], 8)
        answers, beside = [], []
        with counted_kernels() as counts:
            # in turn, so that both meet the same load on a shared machine
            for prompt in prompts:
                answers += answer(pipeline, [prompt], arguments.new_tokens)
                beside += answer(vanilla, [prompt], arguments.new_tokens)
        cycles = [event for event in events_of(answers) if event["event"] == "cycle"]
        predictions = sum(hit is not None for c in cycles if c["attention"] for hit in c["attention"]["hit"])
        summary = summarise(events_of(answers))
        entry = {
            "options": options,
            "guarantee": pipeline.guarantee,
            "draft": pipeline.draft_name,
            "speedup": summary["tokens_per_second"] / summarise(events_of(beside))["tokens_per_second"],
            **quality(answers, expected, passages),
            "row_hit_rate": None if threshold is None else row_hit_rate(cycles, threshold),
            "kernels": served(counts, predictions),
            **summary,
        }
        report["pipelines"][name] = entry
        columns = [
            f"{entry['mean_accepted_tokens']:.2f}",
            number(entry["acceptance_rate"]),
            percent(entry["attention"] and entry["attention"]["hit_rate"]),
            percent(entry["row_hit_rate"]),
            f"{entry['prompts_with_equal_tokens']}/{len(prompts)}",
            f"{entry['tokens_before_first_difference']:.1f}",
            f"{entry['nll']:.3f}",
            f"{entry['speedup']:.2f}",
        ]
        kernels = ", ".join(f"{k['kernel']} {k['share_of_predictions']:.0%}" for k in entry["kernels"])
        print(f"{name:22}" + "".join(f"{column:>8}" for column in columns) + f"  {kernels or '-'}", flush=True)
    write_report(arguments.output, report)
    return 0


if __name__ == "__main__":
    sys.exit(run_script(main))
