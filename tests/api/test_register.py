"""A plugin class of the program itself, without a package: in a notebook's cell, say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from spec_sdk import Engine, UserError, register
from spec_sdk.app import main
from spec_sdk.contracts import Budget, Drafter, DraftLogits, Growing, Growth, Request, option
from spec_sdk.tree import TokenTree, TreeBuilder
from tests.support.registered_plugins import no_plugin_stays as no_plugin_stays


@pytest.fixture(autouse=True)
def alone(no_plugin_stays: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other package is there either: what one brings must not be what has these found."""
    monkeypatch.setattr("spec_sdk.plugin_source.entries_of_others", lambda: [])
    monkeypatch.setattr("spec_sdk.config.parts_defaults.entries_of_others", lambda: [])


@dataclass
class OneTokenConfig:
    token: int = option(5, "the token that is proposed", minimum=0)


def drafter_of(tokens: int) -> type[Drafter]:
    class OneToken(Drafter):
        """Proposes a token, so many times."""

        name = "one_token"
        Config = OneTokenConfig

        def propose_one(self, request: Request, budget: Budget) -> TokenTree:
            chain = [self.config.token] * min(tokens, budget.depth)
            return TokenTree.chain(request.pending_token, chain, drafter=self.name)

    return OneToken


def drafted(checkpoint: Path, *overrides: str) -> list[int]:
    """The tokens of the first step's tree but its root."""
    engine = Engine.from_pipeline("suffix", target=checkpoint, overrides=["policy=fixed", *overrides])
    [answer] = engine.generate("Name three colours.", max_new_tokens=8, trace=True)
    return [node.token for node in answer.steps[0].nodes[1:]]


def test_an_engine_takes_it_by_its_name_with_its_options(checkpoint: Path) -> None:
    assert register(drafter_of(1)).name == "one_token"
    assert drafted(checkpoint, "drafter=one_token", "drafter.token=7") == [7]
    with pytest.raises(UserError, match=r"drafter\.token: -1 must be 0 or more"):
        drafted(checkpoint, "drafter=one_token", "drafter.token=-1")


def test_command_lines_of_the_same_process_know_it(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    register(drafter_of(1))
    assert main(["task=check", "plugin=one_token"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("drafter one_token (this program)\n") and "FAIL" not in out and out.count("pass  ") == 6
    assert main(["task=plugins"]) == 0
    assert "one_token (this program)\n      Proposes a token, so many times." in capsys.readouterr().out
    assert main(["drafter=one_token", f"model.target={checkpoint}", "prompt=Hello", "max_new_tokens=4"]) == 0


def test_the_cell_may_run_again(checkpoint: Path) -> None:
    register(drafter_of(1))
    register(drafter_of(3))
    assert drafted(checkpoint, "drafter=one_token") == [5, 5, 5]


def test_a_part_of_a_drafter_too(checkpoint: Path) -> None:
    @dataclass
    class RootConfig:
        width: int = option(1, "children of the root", minimum=1)

    @register
    class Root(Growth):
        """The most probable first tokens."""

        name = "root_alone"
        Config = RootConfig
        branches = True

        def grow(self, fed: TreeBuilder, root: DraftLogits, depth: int, request: Request, drafter: str) -> Growing:
            yield from ()
            for token in root.top(self.config.width)[1].flatten().tolist():
                fed.add(0, token, "chosen", drafter=drafter)
            return fed.build().tree

    overrides = ["drafter=draft_model", "drafter.growth=root_alone", "model.draft=cut", "model.draft_layers=[0]"]
    assert len(drafted(checkpoint, *overrides)) == 1
    assert len(drafted(checkpoint, *overrides, "drafter.width=3")) == 3


def test_what_is_no_plugin_is_refused_and_the_one_before_stays(checkpoint: Path) -> None:
    register(drafter_of(1))

    class Nothing(Drafter):
        name = "one_token"

    with pytest.raises(UserError, match="^register: .*Nothing is abstract, it lacks propose_one"):
        register(Nothing)
    assert drafted(checkpoint, "drafter=one_token") == [5]
    with pytest.raises(UserError, match="^register: 5 is not a subclass of spec_sdk.contracts.Plugin"):
        register(5)  # type: ignore[type-var]


def test_a_name_of_a_package_is_not_taken_over() -> None:
    other = drafter_of(1)
    other.name = "suffix"
    with pytest.raises(UserError, match="^register: .*OneToken is ignored: spec-sdk has a drafter 'suffix' too"):
        register(other)
