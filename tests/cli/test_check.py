"""task=check: the conformance kit on an installed plugin of any kind, from the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch

from spec_sdk import plugin_source
from spec_sdk.contracts import (
    PLUGIN_KINDS,
    Budget,
    Constraint,
    Drafter,
    Growth,
    Matcher,
    Policy,
    Request,
    Sampler,
    Task,
)
from spec_sdk.errors import UserError
from spec_sdk.registry import Registry
from spec_sdk.testing import check_task
from spec_sdk.testing.plugins import MAKERS
from spec_sdk.tree import TokenTree, TreeBuilder

Cli = Callable[..., Any]


class Greedily(Drafter):
    """Says that it drew what it took to be the most probable token."""

    name = "greedily"

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        tree, size = TreeBuilder(request.pending_token), 6

        q_V = torch.full((size,), 1 / size)
        tree.add(0, (request.pending_token + 1) % size, "with_replacement", q_V, self.name)
        return tree.build().tree


class Crashes(Policy):
    """Fails in the middle of an answer."""

    name = "crashes"

    def budget(self, request: Request) -> Budget:
        if request.step:
            raise KeyError("no such step")
        return Budget(2)


class Prints(Policy):
    name = "prints"

    def budget(self, request: Request) -> Budget:
        print("a budget")
        return Budget(2)


class Lists(Sampler):
    name = "lists"

    def probabilities(self, logits_NV: torch.Tensor) -> Any:
        return logits_NV.softmax(-1).tolist()


class Litters(Task):
    """Writes where it should not, and returns nothing."""

    name = "litters"

    def run(self, app: Any) -> Any:
        Path("left").write_text("")


@pytest.fixture(autouse=True)
def theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another package's plugins, beside those that are installed."""
    registry = Registry.discover.__wrapped__(Registry)
    for plugin in (Greedily, Crashes, Prints, Lists, Litters, Nowhere, Uncompiled, FailsAtOnce, Exits):
        registry.register(plugin, "their-package", "1.0")
    assert not registry.problems
    monkeypatch.setattr(Registry, "discover", lambda: registry)
    monkeypatch.setattr(plugin_source, "entries_of_others", lambda: [EntryPoint("theirs", "theirs", "spec_sdk")])


class Nowhere(Drafter):
    """Can be made for no model."""

    name = "nowhere"

    def __init__(self, config: Any, models: Any) -> None:
        raise KeyError("weights")

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        return TokenTree.root_only(request.pending_token)


class Uncompiled(Constraint):
    name = "uncompiled"

    def compile(self, tokenizer: Any, vocabulary: int) -> Matcher:
        raise KeyError("grammar")


class FailsAtOnce(Constraint):
    name = "fails_at_once"

    def compile(self, tokenizer: Any, vocabulary: int) -> Matcher:
        class Fails(Matcher):
            def apply(self, logits_NV: Any, answer: Any, paths: Any) -> None:
                raise KeyError("state")

        return Fails()


class Exits(Task):
    name = "exits"

    def run(self, app: Any) -> int:
        sys.exit(3)


def test_there_are_checks_for_every_kind_of_plugin() -> None:
    assert set(MAKERS) == set(PLUGIN_KINDS)


def test_a_sound_drafter_passes_with_the_options_of_a_run(cli: Cli) -> None:
    done = cli("task=check", "plugin=prompt_lookup", "drafter.max_ngram=2", "task.draws=20")
    assert done.status == 0, done.err
    title, *lines = done.out.splitlines()
    assert title.startswith("drafter prompt_lookup (spec-sdk ")
    assert len(lines) == 6 and all(line.startswith("pass  ") for line in lines)
    assert "all are chosen, the same under 20 seeds" in done.out
    assert done.err.endswith("6 of 6 checks passed\n")


def test_what_cannot_be_looked_at_is_skipped(cli: Cli) -> None:
    done = cli("task=check", "plugin=typical", "task.draws=20")
    assert done.status == 0, done.err
    skipped = [line for line in done.out.splitlines() if line.startswith("skip  ")]
    assert len(skipped) == 3 and all(line.endswith("(it guarantees no distribution)") for line in skipped)
    assert done.err.endswith("3 of 6 checks passed, 3 skipped\n")
    found = json.loads(cli("task=check", "plugin=typical", "task.draws=20", "json=true").out)
    assert [check["passed"] for check in found["checks"]].count(None) == 3


def test_a_wrong_drafter_of_another_package_fails(cli: Cli) -> None:
    done = cli("task=check", "plugin=greedily", "task.draws=60")
    assert done.status == 1
    assert done.out.startswith("drafter greedily (their-package 1.0)\n")
    failed = [line for line in done.out.splitlines() if line.startswith("FAIL")]
    assert len(failed) == 2
    assert "do not follow the declared q_V (χ² probability" in failed[0]
    assert "the joint distribution of the tokens that a cycle emits is off the target's by" in failed[1]


def test_what_a_plugin_raises_is_told_with_its_place_as_json_too(cli: Cli) -> None:
    done = cli("task=check", "plugin=policy/crashes", "json=true")
    assert done.status == 1, done.err
    found = json.loads(done.out)
    assert found["plugin"] == {"kind": "policy", "name": "crashes", "package": "their-package", "version": "1.0"}
    failed = [check["evidence"] for check in found["checks"] if check["passed"] is False]
    assert failed and failed[0].startswith("KeyError: 'no such step' (test_check.py, line ")


def test_what_a_plugin_prints_is_no_part_of_the_json(cli: Cli) -> None:
    done = cli("task=check", "plugin=prints", "json=true")
    assert json.loads(done.out)["plugin"]["name"] == "prints" and "a budget" in done.err


def test_probabilities_of_another_type_are_named_by_every_check_that_asks_for_them(cli: Cli) -> None:
    done = cli("task=check", "plugin=lists")
    failed = [line for line in done.out.splitlines() if line.startswith("FAIL")]
    assert len(failed) == 5
    for line in failed:
        assert (
            ": sampler 'lists': its probabilities are of type list, and no tensor, they must be floating-point" in line
        )
        assert line.endswith("as the logits")


@pytest.mark.parametrize(
    ("plugin", "failed", "fault"),
    [
        ("nowhere", 1, "FAIL  is made for a model: KeyError: 'weights' (test_check.py, line "),
        ("uncompiled", 1, "FAIL  is made for a model: KeyError: 'grammar' (test_check.py, line "),
        ("fails_at_once", 4, "KeyError: 'state' (test_check.py, line "),
        ("exits", 2, "it called sys.exit(3), where it is to return its exit status"),
    ],
)
def test_whatever_fails_is_a_line_and_the_others_follow(cli: Cli, plugin: str, failed: int, fault: str) -> None:
    done = cli("task=check", f"plugin={plugin}")
    assert done.status == 1 and fault in done.out, done.out + done.err
    lines = done.out.splitlines()[1:]
    assert sum(line.startswith("FAIL  ") for line in lines) == failed
    assert done.err.endswith(f"{len(lines) - failed} of {len(lines)} checks passed\n")


def test_what_was_left_out_is_hinted_at(cli: Cli) -> None:
    left_out = " (some plugins of their-package could not be loaded: see task=plugins)"
    assert left_out not in cli("task=check", "plugin=mine").error

    class Mine(Drafter):
        name = "mine"

    Registry.discover().register(Mine, "their-package", "1.0")
    done = cli("task=check", "plugin=theirs")
    assert done.status == 2 and done.error.endswith(left_out), done.err
    why = "'mine' of their-package could not be loaded: it is abstract, it lacks propose_one (or propose)"
    for arguments in (("task=check", "plugin=mine"), ("task=check", "plugin=drafter/mine"), ("drafter=mine",)):
        done = cli(*arguments)
        assert done.status == 2 and done.error == f"{'drafter' if len(arguments) == 1 else 'plugin'}: {why}", done.err


def test_a_part_that_was_left_out_is_told_of_by_name(cli: Cli) -> None:
    class Mine(Growth):
        name = "mine"

    Registry.discover().register(Mine, "their-package", "1.0")
    done = cli("pipeline=sd_chain", "drafter.growth=mine", "prompt=x")
    why = "drafter.growth: 'mine' of their-package could not be loaded: it is abstract, it lacks branches, grow"
    assert done.status == 2 and done.error.startswith(why), done.err


def test_parts_of_drafters_take_their_options(cli: Cli) -> None:
    done = cli("task=check", "plugin=beam", "drafter.width=3", "task.draws=20")
    assert done.status == 0, done.out + done.err
    assert done.out.startswith("growth beam (")
    done = cli("task=check", "plugin=beam", "drafter.widht=3")
    assert done.status == 2 and "drafter.widht: unknown option" in done.error


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("task=check", "plugin=multistep"), "plugin: unknown plugin 'multistep', did you mean 'multi_step'?"),
        (("task=check", "plugin=verifer/greedy"), "plugin: unknown kind 'verifer', did you mean 'verifier'?"),
        (("task=check", "plugin=sampler/greedy"), "plugin: unknown sampler 'greedy'; there are: exact, fused"),
        (("task=check",), "plugin: say which plugin to check, plugin=NAME (task=plugins lists them)"),
        (("plugin=exact",), "plugin: it says which plugin task=check looks at; add task=check, or leave it out"),
        (("task=check", "plugin=auto", "drafter=none"), "plugin: growth 'auto' is a part of drafters"),
        (
            ("task=check", "plugin=fixed", "policy=heuristic"),
            "plugin: policy 'fixed' is to be checked, and",
        ),
        (("task=check", "plugin=fixed", "policy.depth=-1"), "policy.depth: -1 must be 0 (plain decoding) or more"),
        (("task=check", "plugin=plugins", "task.options=3"), "task.options: 3 must be the options of the task"),
        (("task=check", "plugin=static"), "plugin: 'static' is the name of several plugins; say plugin=attention_veri"),
    ],
)
def test_bad_input_is_one_line(cli: Cli, arguments: tuple[str, ...], error: str) -> None:
    done = cli(*arguments)
    assert done.status == 2 and done.error.startswith(error), done.err


def test_tasks_are_run_in_a_directory_of_their_own(cli: Cli) -> None:
    done = cli("task=check", "plugin=plugins")
    assert done.status == 0, done.out
    assert "(exit status 0)" in done.out and "kind" not in done.out.splitlines()[1]
    done = cli("task=check", "plugin=litters")
    assert done.status == 1 and "it wrote left, which is not in the run's output directory" in done.out


@pytest.mark.parametrize(
    ("ends", "fault"),
    [
        (lambda: None, "it returned None, which is no exit status"),
        (lambda: 300, "it returned 300, which is no exit status"),
        (lambda: True, "it returned True, which is no exit status"),
    ],
)
def test_a_task_ends_with_an_exit_status(ends: Callable[[], Any], fault: str) -> None:
    from spec_sdk.config.composing import settings_for

    class Ends(Task):
        name = "ends"

        def run(self, app: Any) -> Any:
            return ends()

    with pytest.raises(AssertionError, match=fault):
        check_task(lambda: Ends(None), settings_for([]))


def test_a_run_of_a_task_that_returns_no_exit_status_names_it(cli: Cli) -> None:
    done = cli("task=litters")
    assert done.status and done.error == "task 'litters': its run returned None, which is no exit status"


def test_a_task_may_refuse_and_changes_no_setting() -> None:
    from spec_sdk.config.composing import settings_for

    class Refuses(Task):
        name = "refuses"

        def run(self, app: Any) -> int:
            raise UserError("task.input: name a file")

    class Changes(Task):
        name = "changes"

        def run(self, app: Any) -> int:
            app.resolved["prompt"] = "another"
            return 0

    check_task(lambda: Refuses(None), settings_for([]))
    with pytest.raises(AssertionError, match="it changed the run's settings"):
        check_task(lambda: Changes(None), settings_for([]))
