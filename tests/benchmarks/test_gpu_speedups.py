"""What pipelines gain at a rate of acceptance, tried out on tiny models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.gpu import speedups
from spec_sdk.contracts import Verifier
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_verifiers.greedy import Greedy

TINY = ["--device=cpu", "--target=tiny", "--draft=tiny", "--tokens=20", "--rounds=1"]


def test_coins_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(speedups, "PIPELINES", {"sd_chain": speedups.PIPELINES["sd_chain"]})
    output = tmp_path / "speedups.json"
    assert speedups.main([*TINY, "--rates", "0", "1", f"--output={output}"]) == 0
    report = json.loads(output.read_text())
    nothing, everything = (report["pipelines"]["sd_chain"][rate] for rate in ("0", "1"))
    assert nothing["tokens_per_cycle"] == 1 and everything["tokens_per_cycle"] == pytest.approx(20 / 4)
    for found in (nothing, everything):
        assert found["over_plain"] == pytest.approx(report["plain"]["token_ms"] / found["token_ms"])
    assert "sd_chain, 100% of drafted tokens accepted" in capsys.readouterr().out
    assert "coins" not in Verifier.decided.__qualname__


def test_what_there_is_no_time_for_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speedups, "PIPELINES", {"sd_chain": speedups.PIPELINES["sd_chain"]})
    from argparse import Namespace

    options = Namespace(
        device="cpu", target="tiny", draft="tiny", rates=[0.8], tokens=8, rounds=1, seed=0, seconds=-1.0, output=None
    )
    assert speedups.measure(options)["left_out"] == ["sd_chain at 0.8"]


@pytest.mark.parametrize(("rate", "path"), [(1.0, [0, 1, 2]), (0.0, [0])])
def test_the_first_child_whose_coin_says_so_is_accepted(rate: float, path: list[int]) -> None:
    decided = speedups.by_coins(rate, 0)
    tree = TokenTree.chain(7, [8, 9])
    verdict = decided(Greedy(None), tree, ([0, 1], 5))
    assert (verdict.path, verdict.next_token) == (path, 5)


def test_a_drafted_token_is_accepted_at_the_rate() -> None:
    builder = TreeBuilder(0)
    for token in (1, 2):
        builder.add(0, token, "chosen")
    tree, decided = builder.build().tree, speedups.by_coins(0.3, 1)
    accepted = [decided(Greedy(None), tree, ([0], 5)).path for _ in range(4000)]
    # the second child is asked where the first was not accepted
    for expected, tail in ((0.3, [1]), (0.7 * 0.3, [2])):
        assert sum(path[1:] == tail for path in accepted) / len(accepted) == pytest.approx(expected, abs=0.03)
