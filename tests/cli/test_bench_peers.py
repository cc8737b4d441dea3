"""``task=bench task.peers=…`` on a tiny checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from spec_sdk.bench.reading import read_bench
from spec_sdk.model.source_cache import cache_root
from tests.support.text_checkpoints import write_text_checkpoint

PROMPTS = [{"question_id": 1, "category": "writing", "turns": ["a b c a b c a b", "again a b c"]}]
SMALL = ["task=bench", "model.target=model", "prompt_file=p.jsonl", "max_new_tokens=8", "output_dir=out"]


@pytest.fixture
def place(own_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # native kernels are compiled once on a machine, and not for this
    (own_directory / "cache").mkdir()
    (cache_root() / "native").mkdir(parents=True, exist_ok=True)
    (own_directory / "cache" / "native").symlink_to(cache_root() / "native")
    monkeypatch.setenv("SPEC_SDK_CACHE", str(own_directory / "cache"))
    write_text_checkpoint(own_directory / "model", max_position_embeddings=512, num_hidden_layers=4)
    (own_directory / "p.jsonl").write_text("".join(json.dumps(line) + "\n" for line in PROMPTS))
    return own_directory


def test_peers_answer_beside_pipelines(cli: Callable[..., Any], place: Path) -> None:
    peers = "task.peers=[transformers_assistant,llama_cpp,transformers]"
    options = ["task.pipelines=[vanilla]", "task.temperatures=[0,1]", "task.batch_sizes=[1,2]", "ignore_eos=true"]
    result = cli(*SMALL, peers, *options)
    # what peers fail at is not ours
    assert result.status == 0, result.err
    assert "llama_cpp is left out: it takes a GGUF file; give one as model.target" in result.err
    assert max(map(len, result.out.splitlines())) <= 80 and "transformers_assistant" in result.out
    assert not [p for p in psutil.Process().children() if "transformers_worker" in " ".join(p.cmdline())]

    run = read_bench(place / "out")
    assert run.names == ["vanilla", "transformers_assistant", "llama_cpp", "transformers"]
    assert run.head.data["peers"] == {"transformers_python": None, "llama_python": None, "assistant": "auto"}
    assert [run.kind_of(name) for name in run.names] == ["pipeline", "peer", "peer", "peer"]
    assistant = run.candidates["transformers_assistant"]
    assert assistant.draft == "model, 3 of 4 layers" and assistant.facts["assistant_layers"] == 3
    assert run.candidates["transformers"].facts["weights"] == "float32"
    answers = {(a.candidate, a.temperature, a.turn): a for a in run.answers if a.batch_size == 1}
    assert len(answers) == 3 * 2 * 2
    for name in ("transformers_assistant", "transformers"):
        for turn in (0, 1):
            assert answers[name, 0.0, turn].tokens == answers["vanilla", 0.0, turn].tokens
            assert answers[name, 0.0, turn].prompt_tokens == answers["vanilla", 0.0, turn].prompt_tokens
            assert len(answers[name, 1.0, turn].tokens) == 8 and (answers[name, 1.0, turn].resident_bytes or 0) > 0
    assert answers["transformers", 0.0, 0].steps == 8 and answers["transformers", 0.0, 0].drafted is None
    assert {(c.candidate, c.equal) for c in run.checks if c.candidate != "vanilla"} == {
        ("transformers_assistant", True),
        ("transformers", True),
    }
    # several at once is not what they do
    refused = {f.candidate for f in run.failures if f.reason == "refused" and f.batch_size == 2}
    assert refused == {"transformers_assistant", "transformers"}
    summary = json.loads((place / "out" / "summary.json").read_text())
    (figures,) = (
        f
        for f in summary["figures"]
        if (f["candidate"], f["setting"], f["task"]) == ("transformers", {"temperature": 0.0, "batch_size": 1}, "all")
    )
    assert figures["speedup"]["median"] > 0 and figures["mean_accepted_tokens"] == 1
    assert figures["nodes_per_cycle"] is None and figures["acceptance_rate"] is None


def test_names_are_refused_before_anything_is_loaded(cli: Callable[..., Any], place: Path) -> None:
    result = cli(*SMALL, "task.peers=[transformers, llamacpp]")
    assert result.status == 2 and not (place / "out").exists()
    assert "error: task.peers: unknown peer 'llamacpp', did you mean 'llama_cpp'?" in result.err


def test_an_interpreter_that_is_not_there_leaves_its_peer_out(cli: Callable[..., Any], place: Path) -> None:
    options = ["task.peers=[transformers]", "task.transformers_python=no-such-python", "task.pipelines=[vanilla]"]
    result = cli(*SMALL, *options)
    assert result.status == 0, result.err
    assert "transformers is left out: no-such-python: No such file or directory" in result.err
    (failure,) = read_bench(place / "out").failures
    assert (failure.candidate, failure.reason) == ("transformers", "not_started")
