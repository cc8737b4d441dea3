"""``task=tune_layers``: which layers of the draft model to run in parallel, found by measuring on this machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spec_sdk.contracts import Task, option
from spec_sdk.counted import counted
from spec_sdk.errors import UserError
from spec_sdk.files import write_atomically, write_json
from spec_sdk.prompts import check_length, encode_prompt, read_prompts
from spec_sdk.registry import Registry
from spec_sdk.run_output import check_writable
from spec_sdk.say import say
from spec_sdk.settings import Settings
from spec_sdk.tables import number, print_table

if TYPE_CHECKING:
    from spec_sdk.layer_tuning import AcceptanceMeter, CycleTimes, Strategy
    from spec_sdk.model.executor import Executor
    from spec_sdk.pipeline import Pipeline


@dataclass
class TuneLayersConfig:
    """Options of ``task=tune_layers``."""

    prompts: int = option(3, "how many of the given prompts to measure on, evenly spread", minimum=1)
    tokens: int = option(32, "tokens the target answers each with; policy.depth or more", minimum=1)
    positions: int = option(16, "places of each answer at which to draft", minimum=0, means={0: "every one"})
    max_size: int = option(6, "most layers in a group", minimum=2)
    candidates: int = option(
        8, "merges tried per step after the first, the most promising ones", minimum=0, means={0: "all"}
    )


class TuneLayers(Task):
    """Finds groups of draft layers for ``drafter=easyspec`` by acceptance and speed, and writes them as YAML."""

    name = "tune_layers"
    Config = TuneLayersConfig
    config: TuneLayersConfig
    without = ("compare", "constraint", "error_bounds")

    def run(self, app: Settings) -> int:
        """Progress and a table go to stderr, the best groups to stdout as an override; returns 0.

        The run's directory gets ``drafter/tuned.yaml``, which ``--config-dir`` makes ``drafter=tuned``, and
        ``tuning.json``: the times and the path of scores. Raises UserError for bad input.
        """
        depth, width = self._check(app)
        asked = read_prompts(app)
        asked = asked[:: max(1, len(asked) // self.config.prompts)][: self.config.prompts]
        check_writable(app.output_dir)

        from spec_sdk.layer_tuning import measure_times
        from spec_sdk.pipeline import build_pipeline

        pipeline = build_pipeline(app, Registry.discover())
        prompts = [encode_prompt(pipeline.tokenizer, prompt, app.chat) for prompt in asked]
        for i, prompt in enumerate(prompts):
            check_length(len(prompt), self.config.tokens + depth, pipeline.context, i, len(prompts))
        models = pipeline.models
        draft = models.draft(app.drafter.get("draft"))
        if pipeline.draft_name != draft.name:
            say(f"pipeline={pipeline.name} does not draft with {draft.name}: its groups are for drafter=easyspec")
        # a level cannot have more different tokens than there are
        width = min(width, draft.executor.vocabulary, models.target.executor.vocabulary)
        began = time.perf_counter()
        meters = self._meters(pipeline, draft.executor, prompts, depth, width)
        shortest = min(prompts, key=len)
        times = measure_times(
            models.session(draft),
            models.session(models.target),
            shortest,
            depth,
            width,
            self.config.max_size,
            pipeline.backend.synchronize,
        )
        say(_described(times, depth, width))
        path, others = self._search(meters, times, draft.executor.layers, depth)
        best = max([path[-1], *others.values()], key=lambda strategy: strategy.score)
        show(path[0], path[-1], others, times)
        app.output_dir.mkdir(parents=True, exist_ok=True)
        self._write(app, pipeline, draft.name, best, path, others, times)
        say(f"{time.perf_counter() - began:.0f} s in all")
        if all(len(group) == 1 for group in best.groups):
            say("on this machine, with this draft model, no merge pays: the groups below are plain drafting")
        say(f"to use it: --config-dir {app.output_dir} drafter=tuned, or this override:")
        print(override_of(best))
        return 0

    def _check(self, app: Settings) -> tuple[int, int]:
        """Drafted tokens and tree width of the pipeline to tune for. Raises UserError for values out of range."""
        config = self.config
        depth, width = app.policy.get("depth", 5), app.drafter.get("width", 1)
        if not isinstance(depth, int) or depth < 2:
            raise UserError(f"policy.depth: {depth} must be 2 or more for task=tune_layers: the first token is precise")
        if config.tokens < depth:
            raise UserError(f"task.tokens: {config.tokens} must be {depth} (policy.depth) or more")
        return depth, width if isinstance(width, int) and width >= 1 else 1

    def _meters(
        self, pipeline: Pipeline, executor: Executor, prompts: Sequence[Sequence[int]], depth: int, width: int
    ) -> list[AcceptanceMeter]:
        """The target's own text for every prompt, read by the draft model."""
        from spec_sdk.layer_tuning import AcceptanceMeter

        vanilla, meters = pipeline.vanilla(), []
        for i, prompt in enumerate(prompts):
            say(f"prompt {i + 1}/{len(prompts)}: the target answers")
            stream = vanilla.stream(prompt, request_id=i, max_new_tokens=self.config.tokens)
            answer = [token for tokens in stream for token in tokens]
            if len(answer) < depth:
                say(f"prompt {i + 1}/{len(prompts)}: left out, its answer has only {counted(len(answer), 'token')}")
                continue
            most = self.config.positions or None
            meters.append(AcceptanceMeter(executor, prompt, answer, depth, width, most))
        if not meters:
            raise UserError(f"prompt: no answer has the {depth} tokens (policy.depth) that drafting is measured on")
        return meters

    def _search(
        self, meters: Sequence[AcceptanceMeter], times: CycleTimes, layers: int, depth: int
    ) -> tuple[list[Strategy], dict[int, Strategy]]:
        """The greedy path, and the named strategies of every size for comparison."""
        from spec_sdk.layer_tuning import Groups, Strategy, greedy_merging, mean_accepted
        from spec_sdk.model.layer_groups import describe_groups, easyspec_groups

        def evaluate(groups: Groups) -> Strategy:
            accepted = mean_accepted(meters, groups)
            return Strategy(groups, accepted, times.tokens_per_second(groups, accepted, depth))

        path: list[Strategy] = []
        for strategy in greedy_merging(layers, evaluate, self.config.max_size, self.config.candidates):
            say(
                f"step {len(path)}: {strategy.score:.2f} tokens/s, {strategy.accepted:.2f} accepted, fuzzy pass "
                f"{1000 * times.fuzzy(strategy.groups):.2f} ms: {describe_groups(strategy.groups)}"
            )
            path.append(strategy)
        sizes = range(2, min(self.config.max_size, layers) + 1)
        return path, {size: evaluate(easyspec_groups(layers, size)) for size in sizes}

    def _write(
        self,
        app: Settings,
        pipeline: Pipeline,
        draft_name: str,
        best: Strategy,
        path: Sequence[Strategy],
        others: dict[int, Strategy],
        times: CycleTimes,
    ) -> None:
        import yaml

        folder = app.output_dir / "drafter"
        folder.mkdir(exist_ok=True)
        known = {key: value for key, value in app.drafter.items() if key not in ("name", "groups")}
        if app.drafter.get("name") != "easyspec":
            known = {key: known[key] for key in ("draft", "width") if key in known}
        node = yaml.safe_dump({"name": "easyspec", **known}, sort_keys=False)
        groups = yaml.safe_dump(best.groups, default_flow_style=True, width=10**6).strip()
        write_atomically(
            folder / "tuned.yaml",
            f"# found by task=tune_layers for {draft_name} drafting for {pipeline.target_name}\n"
            f"# on {pipeline.backend.describe()}, {pipeline.dtype}: {best.score:.2f} tokens/s expected, "
            f"{path[0].score:.2f} with every layer alone\n"
            f"{node}groups: {groups}\n",
        )
        write_json(
            app.output_dir / "tuning.json",
            {
                "target": pipeline.target_name,
                "draft": draft_name,
                "machine": pipeline.backend.describe(),
                "dtype": pipeline.dtype,
                "times_s": {
                    "plain": times.plain,
                    "calibration": times.calibration,
                    "target": times.target,
                    "saved_by_group_size": dict(times.saved),
                },
                "best": _record(best),
                "path": [_record(strategy) for strategy in path],
                "easyspec": {size: _record(strategy) for size, strategy in others.items()},
            },
        )


def _record(strategy: Strategy) -> dict[str, Any]:
    return {"groups": strategy.groups, "accepted": strategy.accepted, "tokens_per_second": strategy.score}


def _described(times: CycleTimes, depth: int, width: int) -> str:
    saved = ", ".join(f"{size}: {1000 * seconds:.2f}" for size, seconds in times.saved.items())
    return (
        f"cycle of {depth} levels of {width}: calibration {1000 * times.calibration:.1f} ms, a plain draft pass "
        f"{1000 * times.plain:.1f} ms, target {1000 * times.target:.1f} ms; ms saved per group of {saved}"
    )


def show(plain: Strategy, found: Strategy, others: dict[int, Strategy], times: CycleTimes) -> None:
    """The found strategy beside plain drafting and the named ones."""
    from spec_sdk.model.layer_groups import describe_groups

    named = [("every layer alone", plain), *((f"easyspec, size {n}", s) for n, s in others.items()), ("found", found)]
    rows = [
        [
            name,
            number(strategy.score),
            number(strategy.accepted),
            number(1000 * times.fuzzy(strategy.groups), 2, " ms"),
            describe_groups(strategy.groups),
        ]
        for name, strategy in named
    ]
    print_table("", ["strategy", "tokens/s", "accepted", "fuzzy pass", "groups"], rows, numbers=False)


def override_of(strategy: Strategy) -> str:
    """The strategy as a command-line override, without spaces."""
    groups = ",".join("[" + ",".join(map(str, group)) + "]" for group in strategy.groups)
    return f"drafter.groups=[{groups}]"
