"""What the code of a third party's plugin raises is a line that names plugin, method and place, and nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from spec_sdk.registry import Registry
from tests.cli.conftest import Result
from tests.support.tiny_checkpoints import write_checkpoint

Install = Callable[..., Registry]
Cli = Callable[..., Result]
CODE = """
import torch
from spec_sdk.contracts import Constraint, Matcher
from spec_sdk.hookspecs import hookimpl
from spec_sdk.policy import FixedPolicy
from spec_sdk_drafters.prompt_lookup import PromptLookup
from spec_sdk_growth.static import StaticGrowth
from spec_sdk_predictors.attention_sink import AttentionSink
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_verifiers.multi_step import MultiStep

def fails(*_, **__):
    raise KeyError("a state")

class Raises(Matcher):
    def begin(self):
        return self
    def apply(self, logits_NV, answer, paths):
        fails()

class Constrained(Constraint):
    def compile(self, tokenizer, vocabulary):
        return Raises()

class Mine({base}):
    name = "mine"
    {body}

@hookimpl
def spec_sdk_plugins():
    return [Mine]
"""
LINE = CODE.splitlines().index('    raise KeyError("a state")') + 1
KINDS = [
    ("drafter", "PromptLookup", "propose_one", ["pipeline=prompt_lookup", "drafter=mine"]),
    ("policy", "FixedPolicy", "budgets", ["pipeline=prompt_lookup", "policy=mine"]),
    ("verifier", "MultiStep", "verify", ["pipeline=prompt_lookup", "verifier=mine"]),
    ("sampler", "ReferenceSampler", "probabilities", ["sampler=mine", "sampling.temperature=1"]),
    ("predictor", "AttentionSink", "always_exact", ["pipeline=alspec", "predictor=mine"]),
    ("growth", "StaticGrowth", "grow", ["pipeline=sd_chain", "model.draft=model", "drafter.growth=mine"]),
]


def line(plugin: str, method: str) -> str:
    """What is told of ``fails``, called by that method."""
    raised = f"KeyError: 'a state' (theirs/__init__.py, line {LINE})"
    return f"{plugin}: its {method} raised {raised}; HYDRA_FULL_ERROR=1 shows more"


@pytest.fixture
def model(own_directory: Path) -> Path:
    """In the current directory."""
    write_checkpoint(own_directory / "model")
    return own_directory / "model"


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize(("kind", "base", "method", "given"), KINDS)
def test_what_a_plugin_raises_is_a_line(
    cli: Cli, install: Install, kind: str, base: str, method: str, given: list[str]
) -> None:
    install("theirs", CODE.format(base=base, body=f"def {method}(self, *_, **__): fails()"))
    result = cli("model.target=model", *given, "prompt=a b a b a b", "max_new_tokens=5", "output_dir=out")
    assert (result.status, result.error) == (1, line(f"{kind} 'mine'", method))


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize(
    ("body", "method"), [("pass", "apply"), ("def compile(self, *_): fails()", "compile")], ids=["apply", "compile"]
)
def test_what_a_constraint_or_its_matcher_raises_is_a_line(cli: Cli, install: Install, body: str, method: str) -> None:
    install("theirs", CODE.format(base="Constrained", body=body))
    result = cli("model.target=model", "constraint={name: mine}", "prompt=a", "output_dir=out")
    assert (result.status, result.error) == (1, line("constraint 'mine'", method))


@pytest.mark.usefixtures("model")
def test_what_was_answered_before_is_kept_and_the_traceback_is_there_for_whoever_wants_it(
    cli: Cli, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """count = 0
    def start(self, *of):
        Mine.count += 1
        fails() if Mine.count == 2 else super().start(*of)
"""
    install("theirs", CODE.format(base="PromptLookup", body=body))
    Path("two.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    given = ("pipeline=prompt_lookup", "drafter=mine", "model.target=model", "prompt_file=two.jsonl", "ignore_eos=true")
    result = cli(*given, "max_new_tokens=5", "output_dir=out")
    assert (result.status, result.error) == (1, line("drafter 'mine'", "start"))
    told = json.loads(Path("out/metrics.json").read_text())["prompts"]
    assert [(record["finish_reason"], record["new_tokens"]) for record in told] == [("length", 5), ("error", 0)]
    assert told[0]["text"] and told[0]["text"] in result.out
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    monkeypatch.setattr("theirs.Mine.count", 0)
    result = cli(*given, "max_new_tokens=5", "output_dir=out")
    assert result.status == 1
    assert result.err.rstrip().endswith("KeyError: 'a state'\nin drafter 'mine'") and "Traceback" in result.err


@pytest.mark.usefixtures("model")
def test_what_our_own_code_raises_below_a_plugin_stays_a_traceback(cli: Cli, install: Install) -> None:
    body = "def propose_one(self, request): return super().propose_one(None)"
    install("theirs", CODE.format(base="PromptLookup", body=body))
    result = cli("pipeline=prompt_lookup", "drafter=mine", "model.target=model", "prompt=a", "output_dir=out")
    assert result.status == 1 and "error: " not in result.err
    assert "Traceback" in result.err and result.err.rstrip().endswith("in drafter 'mine'")


@pytest.mark.usefixtures("model")
def test_a_sweep_has_the_line_too(cli: Cli, install: Install) -> None:
    install("theirs", CODE.format(base="PromptLookup", body="def propose_one(self, *_): fails()"))
    cli("-m", "pipeline=prompt_lookup", "drafter=mine", "max_new_tokens=3,4", "model.target=model", "output_dir=out")
    jobs = json.loads(Path("out/summary.json").read_text())["jobs"]
    assert [(job["status"], job["error"]) for job in jobs] == [(1, line("drafter 'mine'", "propose_one"))] * 2
