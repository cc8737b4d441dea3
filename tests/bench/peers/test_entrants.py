"""Peers in a benchmark: their names, which weights each is given, and what is measured of an answer."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spec_sdk.bench.candidate import Ask, CandidateError
from spec_sdk.bench.conversations import Conversation
from spec_sdk.bench.interleaved import Plan
from spec_sdk.bench.peers.candidate import PeerCandidate
from spec_sdk.bench.peers.entrants import PEERS, PeerModels, checked_peers, peers_of
from spec_sdk.bench.peers.longest_text import longest_text
from spec_sdk.bench.peers.weights import Weights
from spec_sdk.errors import UserError
from spec_sdk.model.tokenizer import Tokenizer
from tests.bench.peers.echo import ECHO
from tests.support.text_checkpoints import VOCABULARY, write_text_checkpoint

MODELS = PeerModels("model.gguf", "bfloat16", "cpu", "auto", "auto", 321, lambda bits: True)


def test_names_are_checked() -> None:
    assert checked_peers(None, "task.peers") == [] and checked_peers("llama_cpp", "task.peers") == ["llama_cpp"]
    assert checked_peers(list(PEERS), "task.peers") == list(PEERS)
    with pytest.raises(UserError, match="task.peers: unknown peer 'llamacpp', did you mean 'llama_cpp'"):
        checked_peers(["transformers", "llamacpp"], "task.peers")
    with pytest.raises(UserError, match="task.peers: llama_cpp stands there twice"):
        checked_peers(["llama_cpp", "transformers", "llama_cpp"], "task.peers")


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Commands, drafts and facts of the peers that would be started, by name."""

    class Started:
        def __init__(self, name: str, command: list[str], draft: str | None, facts: Any, steps_are_groups: bool = True):
            self.command, self.draft, self.weights, self.counted = command, draft, facts["weights"], steps_are_groups

    def of(weights: Weights, models: PeerModels = MODELS) -> dict[str, Any]:
        monkeypatch.setattr("spec_sdk.bench.peers.weights.weights_for_peers", lambda target, dtype: weights)
        monkeypatch.setattr("spec_sdk.bench.peers.candidate.PeerCandidate", Started)
        return {e.name: e.open() for e in peers_of([n for n in PEERS if "assistant" not in n], models, None, "/a/py")}

    return of


def test_each_is_given_the_weights_that_the_run_has(opened: Any) -> None:
    weights = Weights(Path("/m/dir"), Path("/m/f16.gguf"), Path("/m/q4.gguf"), 4)
    found = opened(weights)
    worker = [sys.executable, "-m", "spec_sdk.bench.peers.transformers_worker", "/m/dir", "--dtype", "bfloat16"]
    assert found["transformers"].command == worker and found["transformers"].weights == "bfloat16"
    assert found["transformers_lookup"].command == [*worker, "--lookup", "10"]
    assert found["transformers_lookup"].draft == "prompt lookup, 10 tokens"
    llama = ["/a/py", "-m", "spec_sdk.bench.peers.llama_worker", "/m/q4.gguf", "--context", "321"]
    assert found["llama_cpp"].command == llama and found["llama_cpp"].weights == "as in the file"
    assert found["llama_cpp_lookup"].command == [*llama, "--lookup", "2"]
    assert [peer.counted for peer in found.values()] == [True, True, True, False]
    dense = opened(weights, replace(MODELS, kept_in_bits=lambda bits: False))
    assert dense["llama_cpp"].command[3] == "/m/f16.gguf" and dense["llama_cpp"].weights == "F16"
    gpu = opened(weights, replace(MODELS, device="cuda:0"))
    assert gpu["transformers"].command[-2:] == ["--device", "cuda:0"]
    assert gpu["llama_cpp_lookup"].command[-4:] == ["--device", "cuda:0", "--lookup", "10"]
    with pytest.raises(CandidateError, match="it takes a GGUF file; give one as model.target"):
        opened(Weights(Path("/m/dir")))


def test_an_assistant_is_the_run_s_draft_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPEC_SDK_CACHE", str(tmp_path / "cache"))
    write_text_checkpoint(tmp_path / "model")
    started: list[list[str]] = []
    monkeypatch.setattr(
        "spec_sdk.bench.peers.candidate.PeerCandidate", lambda name, command, draft, facts: started.append(command)
    )
    models = replace(MODELS, target=str(tmp_path / "model"), assistant="cut", draft_layers=[0, 2], dtype="float32")
    peers_of(["transformers_assistant"], models, None, None)[0].open()
    assert started[0][-2] == "--assistant" and (Path(started[0][-1]) / "model.safetensors").is_file()


def echo(*facts: Any, **more: Any) -> PeerCandidate:
    return PeerCandidate("echo", [sys.executable, "-c", ECHO.replace('os.environ["MINE"]', "1")], *facts, **more)


def test_an_answer_is_measured() -> None:
    peer = echo("a draft", {"program": "echo"})
    try:
        facts = peer.facts()
        assert facts.draft == "a draft" and facts.facts == {"program": "echo", "threads": [], "mine": 1}
        assert facts.guarantee is None and peer.refusal(1.0, 1) is None
        assert peer.refusal(0.0, 2) == "it answers one prompt at a time"
        found = peer.answer(Ask([7, 8, 9, 10], 3, stop_ids=frozenset([10])))
        assert found.tokens == [7, 8, 9] and found.finish_reason == "length" and found.steps == 2
        assert found.first_tokens == 1 and 0 < (found.first_token_s or 0) <= found.seconds
        assert found.decode_s is None and (found.resident_bytes or 0) > 1 << 20
        assert peer.answer(Ask([7, 8, 9], 3, stop_ids=frozenset([9]))).finish_reason == "stop"
    finally:
        peer.close()
    one_by_one = echo(steps_are_groups=False)
    assert one_by_one.answer(Ask([7, 8], 2)).steps is None
    one_by_one.close()


def test_a_peer_whose_process_ended_fails_at_every_prompt() -> None:
    dying = ECHO.replace('os.environ["MINE"]', "1").replace("    take(request.tokens[:1])", "    sys.exit('no memory')")
    peer = PeerCandidate("dying", [sys.executable, "-c", dying])
    for _ in range(2):
        with pytest.raises(CandidateError, match="^no memory$"):
            peer.answer(Ask([7], 1))
    peer.close()


def test_what_cannot_be_started_is_said_in_a_line() -> None:
    with pytest.raises(CandidateError, match="^there-is-no-such-python: No such file or directory$"):
        PeerCandidate("none", ["there-is-no-such-python", "-m", "spec_sdk.bench.peers.llama_worker"])


def test_the_longest_text_counts_all_turns_and_their_answers(tmp_path: Path) -> None:
    write_text_checkpoint(tmp_path / "model")
    tokenizer = Tokenizer(tmp_path / "model", VOCABULARY)
    talks = (
        Conversation("1", "qa", ("How many horses are there in the town?",)),
        Conversation("2", "qa", ("a", "b", "c")),
    )
    first = len(talks[0].tokens(tokenizer, None, []))
    last = len(talks[1].tokens(tokenizer, None, ["", ""]))
    short, long = (Plan(talks, tokenizer, None, context=4096, new_tokens=n) for n in (1, 80))
    assert longest_text(short) == max(first + 17, last + 3 * 17)
    assert longest_text(long) == last + 3 * (80 + 10 + 16)
    assert longest_text(replace(long, context=100)) == 100
