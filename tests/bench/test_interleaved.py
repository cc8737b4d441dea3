"""Candidates side by side: order, conversations, failures, going on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from spec_sdk.bench.candidate import Ask, Candidate, CandidateError, Measured
from spec_sdk.bench.conversations import Conversation
from spec_sdk.bench.interleaved import InterleavedRun, Plan
from spec_sdk.bench.progress_lines import ProgressLines
from spec_sdk.bench.reading import BenchRun
from spec_sdk.bench.records import Record, Setting
from spec_sdk.model.tokenizer import Tokenizer
from tests.bench.answers import Scripted, measured, run_of
from tests.support.text_checkpoints import VOCABULARY, write_text_checkpoint

NEW = 4
TALKS = (
    Conversation("a", "mt_bench", ("one", "two")),
    Conversation("b", "qa", ("three",)),
    Conversation("c", "qa", ("x",)),
)


class Silent:
    """Progress that nobody sees; counts."""

    def __init__(self) -> None:
        self.expected = self.made = 0

    def begin(self, answers: int) -> None:
        self.expected = answers

    def at(self, setting: Setting, round: int, prompt: str) -> None: ...

    def answered(self, candidate: str, answers: int) -> None:
        self.made += answers


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = tmp_path_factory.mktemp("words")
    write_text_checkpoint(directory)
    return Tokenizer(directory, VOCABULARY)


def plan(tokenizer: Tokenizer, **more: Any) -> Plan:
    return Plan(TALKS, tokenizer, None, **{"context": 512, "new_tokens": NEW, **more})


def run(the_plan: Plan, candidates: Sequence[Candidate], found: BenchRun | None = None) -> tuple[list[Record], Silent]:
    records: list[Record] = []
    progress = Silent()
    InterleavedRun(the_plan, candidates, records.extend, progress, found=found).run()
    assert progress.made == progress.expected
    return records, progress


def say(text: str, tokenizer: Tokenizer) -> Any:
    return lambda ask: measured(tokenizer.encode(text)[: ask.new_tokens])


def timed(asked: Sequence[tuple[str, Ask]]) -> list[tuple[str, Ask]]:
    """What was asked besides warming up, which every candidate does once."""
    names = {name for name, _ in asked}
    return list(asked[len(names) :])


def test_all_answer_a_prompt_before_the_next_in_rotating_order(tokenizer: Tokenizer) -> None:
    asked: list[tuple[str, Ask]] = []
    candidates = [Scripted(name, say(name, tokenizer), asked) for name in ("vanilla", "ours", "theirs")]
    records, progress = run(plan(tokenizer), candidates)
    order = [name for name, _ in timed(asked)]
    assert order == [
        *("vanilla", "vanilla", "ours", "ours", "theirs", "theirs"),
        *("ours", "theirs", "vanilla"),
        *("theirs", "vanilla", "ours"),
    ]
    assert progress.made == 12
    assert [r["record"] for r in records[:3]] == ["warm_up"] * 3
    answers = [r for r in records if r["record"] == "answer"]
    assert [(r["prompt"], r["turn"]) for r in answers if r["candidate"] == "ours"] == [
        ("a", 0),
        ("a", 1),
        ("b", 0),
        ("c", 0),
    ]


def test_the_second_turn_follows_the_candidates_own_answer(tokenizer: Tokenizer) -> None:
    asked: list[tuple[str, Ask]] = []
    run(plan(tokenizer), [Scripted(name, say(name, tokenizer), asked) for name in ("vanilla", "ours")])
    second = [tokenizer.decode(ask.tokens) for name, ask in timed(asked) if name == "ours"][1]
    answer = tokenizer.decode(tokenizer.encode("ours")[:NEW])
    assert second == f"<user>one\n<assistant>{answer}\n<user>two\n<assistant>"


def test_warming_up_asks_nothing_that_is_timed(tokenizer: Tokenizer) -> None:
    ours = Scripted("vanilla", say("x", tokenizer))
    records, _ = run(plan(tokenizer), [ours])
    warm, prompts = ours.asked[0][1].tokens, [ask.tokens for _, ask in ours.asked[1:]]
    assert warm not in prompts and warm[0] not in {prompt[0] for prompt in prompts}
    assert sum(r["record"] == "answer" for r in records) == 4 == len(prompts)


def test_every_setting_and_round_begins_anew_with_seeds_of_its_own(tokenizer: Tokenizer) -> None:
    ours = Scripted("vanilla", say("x", tokenizer))
    records, _ = run(plan(tokenizer, temperatures=[0.0, 1.0], batch_sizes=[1, 2], rounds=2), [ours])
    assert ours.begun == [1] * 4 + [2] * 4
    answers = [r for r in records if r["record"] == "answer"]
    of_one = [r for r in answers if (r["temperature"], r["batch_size"], r["turn"]) == (1.0, 1, 0)]
    assert [r["seed"] for r in of_one] == [0, 1, 2, 3, 4, 5]
    batches = [(r["first"], r["prompts"]) for r in records if r["record"] == "batch" and r["temperature"] == 0]
    assert batches == [(0, ["a", "b"]), (2, ["c"])] * 2
    assert {r["turn"] for r in answers if r["batch_size"] == 2} == {0}


def test_failures_are_recorded_and_the_rest_goes_on(tokenizer: Tokenizer) -> None:
    def reply(ask: Ask) -> Measured:
        text = tokenizer.decode(ask.tokens)
        if "two" in text:
            raise CandidateError("tired")
        if "three" in text:
            raise ZeroDivisionError("a bug")
        return measured([5])

    records, _ = run(plan(tokenizer), [Scripted("vanilla", reply)])
    failures = [r for r in records if r["record"] == "failure"]
    assert [(f["prompt"], f["turn"], f["reason"], f["error"]) for f in failures] == [
        ("a", 1, "error", "tired"),
        ("b", 0, "error", "ZeroDivisionError: a bug"),
    ]
    assert [(r["prompt"], r["turn"]) for r in records if r["record"] == "answer"] == [("a", 0), ("c", 0)]


def test_prompts_that_do_not_fit_and_settings_that_are_refused(tokenizer: Tokenizer) -> None:
    length = len(TALKS[0].tokens(tokenizer, None, []))
    records, _ = run(
        plan(tokenizer, context=length + NEW, batch_sizes=[1, 2]), [Scripted("vanilla", say("x", tokenizer), most=1)]
    )
    failures = [r for r in records if r["record"] == "failure"]
    assert ("refused", 2, None) in {(f["reason"], f["batch_size"], f["prompt"]) for f in failures}
    assert [(f["prompt"], f["turn"]) for f in failures if f["reason"] == "too_long"][0] == ("a", 1)
    assert all("exceed the context" in f["error"] for f in failures if f["reason"] == "too_long")


def test_answers_without_tokens(tokenizer: Tokenizer) -> None:
    records, _ = run(plan(tokenizer), [Scripted("vanilla", lambda ask: measured([]))])
    assert sum(r["record"] == "answer" for r in records) == 4


def test_nothing_finished_is_asked_again(tokenizer: Tokenizer) -> None:
    names = ("vanilla", "ours")
    whole, _ = run(plan(tokenizer), [Scripted(name, say(name, tokenizer)) for name in names])
    # cut off inside the second candidate's conversation: its first turn is there, its second is not
    until = next(i for i, r in enumerate(whole) if (r["record"], r["candidate"]) == ("answer", "ours"))
    asked: list[tuple[str, Ask]] = []
    again = [Scripted(name, say(name, tokenizer), asked) for name in names]
    records, progress = run(plan(tokenizer), again, run_of(whole[: until + 1], names))
    assert progress.made == 6
    kept = [(r["candidate"], r["prompt"], r["turn"]) for r in records if r["record"] == "answer"]
    assert kept == [
        *(("ours", "a", 0), ("ours", "a", 1)),
        *(("ours", "b", 0), ("vanilla", "b", 0), ("vanilla", "c", 0), ("ours", "c", 0)),
    ]
    finished = [Scripted(name, say(name, tokenizer)) for name in names]
    assert run(plan(tokenizer), finished, run_of(whole, names))[0] == []
    assert all(not candidate.asked for candidate in finished)


def test_time_left_is_told(tmp_path: Path) -> None:
    clock = iter(range(0, 1000, 30))
    with (tmp_path / "lines").open("w+") as file:
        lines = ProgressLines(2, file, lambda: next(clock))
        lines.begin(4)
        lines.at(Setting(0.0, 1), 1, "81")
        for _ in range(4):
            lines.answered("suffix", 1)
        file.seek(0)
        told = file.read().splitlines()
    assert told[0] == "4 answers to make"
    assert told[1].startswith("1 of 4 answers: temperature 0, batch size 1, round 2 of 2, prompt 81, suffix, about ")
    assert told[1].endswith("min left")
    assert told[-1] == "4 of 4 answers: temperature 0, batch size 1, round 2 of 2, prompt 81, suffix"
