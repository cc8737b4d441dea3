"""``generate``: batches, samples, prompts of every kind, and what the command line gives for the same."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from spec_sdk import Answer, Engine, Request, SamplingParams, UserError
from spec_sdk.app import main
from spec_sdk.contracts import Drafter
from tests.api.conftest import OVERRIDES, PROMPTS

TIMES = ("prefill_s", "decode_s", "stage_s", "host_reads_per_step")


def tokens(answers: list[Answer]) -> list[list[int]]:
    assert all(answer.error is None for answer in answers)
    return [answer.tokens for answer in answers]


def test_a_batch_has_every_prompts_own_answer_in_order(engine: Engine) -> None:
    alone = [engine.generate(prompt)[0] for prompt in PROMPTS]
    assert len({tuple(answer.tokens) for answer in alone}) == len(PROMPTS)
    together = engine.generate(PROMPTS)
    assert tokens(together) == tokens(alone)
    for answer in together:
        assert answer.text == engine.tokenizer.decode(answer.tokens)
        assert answer.finish_reason == "length" and len(answer.tokens) == 12
    assert sum(answer.metrics["steps"] for answer in together) < 12 * len(PROMPTS)


def test_more_prompts_than_fit_at_once_wait(checkpoint: Path, engine: Engine) -> None:
    one = Engine.from_pipeline("easyspec_paper", target=checkpoint, overrides=OVERRIDES, max_num_seqs=1)
    assert tokens(one.generate(PROMPTS)) == tokens(engine.generate(PROMPTS))
    assert one.pipeline.engine.target.cache.slots == 1


def test_answers_come_one_by_one_in_order(checkpoint: Path, engine: Engine) -> None:
    """Each when it and those before it are there; what goes on is cancelled where nobody asks for more."""
    two = Engine.from_pipeline("easyspec_paper", target=checkpoint, overrides=OVERRIDES, max_num_seqs=2)
    whole = tokens(engine.generate(PROMPTS))
    assert tokens(list(two.answers(PROMPTS))) == tokens(list(two.answers(iter(PROMPTS)))) == whole  # type: ignore[arg-type]
    assert tokens(list(two.answers(PROMPTS[0]))) == whole[:1]
    some = two.answers([Request(PROMPTS[0], max_new_tokens=2), *PROMPTS[1:]])
    assert next(some).tokens == whole[0][:2] and two.pipeline.engine.busy
    some.close()
    assert not two.pipeline.engine.busy
    refused, answered = two.answers([Request(PROMPTS[0], max_new_tokens=0), PROMPTS[1]])
    assert refused.error is not None and answered.tokens == whole[1]


def test_memory_is_taken_for_as_many_as_are_served(checkpoint: Path) -> None:
    one = Engine.from_pipeline("vanilla", target=checkpoint, overrides=["max_new_tokens=4"])
    one.generate("a")
    assert one.pipeline.engine.target.cache.slots == 1
    one.generate(["a", "b", "c"])
    assert one.pipeline.engine.target.cache.slots == 3


@pytest.mark.parametrize("sampling", [[], ["sampling.temperature=0.8", "sampling.seed=7"]], ids=["greedy", "sampled"])
def test_answers_and_metrics_are_the_command_lines(
    checkpoint: Path, tmp_path: Path, sampling: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.jsonl").write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    options = [*sampling, "max_new_tokens=9", "drafter.width=3"]
    arguments = ["pipeline=easyspec_paper", f"model.target={checkpoint}", "prompt_file=p.jsonl", "output_dir=out"]
    assert main([*arguments, *options]) == 0
    written = json.loads((tmp_path / "out" / "metrics.json").read_text())
    engine = Engine.from_pipeline("easyspec_paper", target=checkpoint, overrides=options)
    answers = engine.generate(PROMPTS)

    def same(record: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in record.items() if key not in TIMES}

    for number, (record, answer) in enumerate(zip(written["prompts"], answers, strict=True), start=1):
        assert (record.pop("id"), record.pop("prompt")) == (number, PROMPTS[number - 1])
        assert set(answer.metrics) == {*record, "guarantee"}
        assert same(answer.metrics) == {**same(record), "guarantee": written["guarantee"]}
        assert (answer.text, answer.tokens) == (record["text"], record["token_ids"])
    assert engine.guarantee == written["guarantee"]


def test_prompts_are_texts_chats_or_token_ids(engine: Engine) -> None:
    text = PROMPTS[0]
    chat = [{"role": "user", "content": text}]
    expected = engine.generate(text)[0].tokens
    ids = engine.tokenizer.chat(chat)
    assert tokens(engine.generate(chat)) == [expected] == tokens(engine.generate(ids))
    assert tokens(engine.generate([text, chat, ids])) == [expected] * 3
    plain = engine.generate(text, chat=False)[0]
    assert plain.metrics["prompt_tokens"] == len(engine.tokenizer.encode(text)) < len(ids)
    assert engine.generate([]) == []


def test_every_request_has_options_of_its_own(engine: Engine) -> None:
    params = SamplingParams(temperature=1.0, seed=3)
    asked = [
        Request(PROMPTS[0], max_new_tokens=3),
        Request(PROMPTS[0], sampling=params),
        Request(PROMPTS[0], temperature=1.0, seed=3, repetition_penalty=1.0),
        PROMPTS[0],
    ]
    short, sampled, again, whole = tokens(engine.generate(asked, max_new_tokens=8))
    assert whole[:3] == short and len(whole) == 8
    assert sampled == again != whole
    assert engine.generate(PROMPTS[0], sampling=params, max_new_tokens=8)[0].metrics["guarantee"] == "distribution"


def test_samples_of_one_prompt_differ_and_a_seed_repeats_them(engine: Engine) -> None:
    options: Any = {"n": 3, "temperature": 1.0, "seed": 5}
    answers = engine.generate(PROMPTS[:2], **options)
    assert [answer.sample for answer in answers] == [0, 1, 2, 0, 1, 2]
    assert len({tuple(answer.tokens) for answer in answers}) == 6
    assert tokens(engine.generate(PROMPTS[1], **options)) == tokens(answers[3:])
    assert tokens(engine.generate(PROMPTS[1], temperature=1.0, seed=5)) == tokens(answers[3:4])


def test_without_a_seed_every_call_draws_anew(engine: Engine) -> None:
    first, second = (engine.generate(PROMPTS[0], temperature=1.0)[0].tokens for _ in range(2))
    assert first != second


def test_stop_tokens_end_an_answer_and_ignore_eos_goes_on(engine: Engine) -> None:
    whole = engine.generate(PROMPTS[0])[0].tokens
    place = next(i for i, token in enumerate(whole) if token not in whole[:i] and i > 0)
    stopped = engine.generate(PROMPTS[0], stop_token_ids=[whole[place]])[0]
    assert stopped.tokens == whole[: place + 1] and stopped.finish_reason == "stop"


def test_one_refused_prompt_does_not_lose_the_others(engine: Engine) -> None:
    asked: list[Any] = [PROMPTS[0], "", [10**6], Request("a", temperature=-1), "x " * 5000, PROMPTS[1]]
    answers = engine.generate(asked)
    assert tokens([answers[0], answers[-1]]) == tokens(engine.generate(PROMPTS[:2]))
    refused = answers[1:-1]
    assert [answer.finish_reason for answer in refused] == ["error"] * 4
    assert all(isinstance(answer.error, UserError) and answer.metrics == {} for answer in refused)
    assert str(refused[3].error).startswith("prompt 5 of 6: its ")
    assert not engine.pipeline.engine.busy


def test_one_failing_request_does_not_lose_the_others(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine.from_pipeline("prompt_lookup", target=checkpoint, overrides=["max_new_tokens=6", "ignore_eos=true"])
    expected = tokens(engine.generate(PROMPTS[:2]))
    propose_one = type(engine.pipeline.engine.drafter).propose_one

    def failing(self: Drafter, request: Any, budget: Any) -> Any:
        if request.prompt_length > 60:
            raise RuntimeError("a bug of this drafter")
        return propose_one(self, request, budget)

    monkeypatch.setattr(type(engine.pipeline.engine.drafter), "propose_one", failing)
    monkeypatch.setattr(
        type(engine.pipeline.engine.drafter),
        "propose",
        lambda self, requests, budgets: [_named(self, r, b) for r, b in zip(requests, budgets, strict=True)],
    )
    long = [7] * 70
    first, failed, last = engine.generate([PROMPTS[0], long, PROMPTS[1]])
    assert tokens([first, last]) == expected
    assert failed.finish_reason == "error" and "a bug of this drafter" in str(failed.error)
    with pytest.raises(Exception, match="a bug of this drafter"):
        engine.generate(long)
    assert not engine.pipeline.engine.busy


def _named(drafter: Any, request: Any, budget: Any) -> Any:
    from spec_sdk.contracts import RequestError

    try:
        return drafter.propose_one(request, budget)
    except RuntimeError as error:
        raise RequestError(request.id, error) from error


def test_a_plugin_that_fails_over_the_end_of_a_request_is_told_and_hangs_nobody(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine.from_pipeline("prompt_lookup", target=checkpoint, overrides=["max_new_tokens=6", "ignore_eos=true"])
    expected = engine.generate(PROMPTS[0])[0].tokens

    def failing(self: Drafter, requests: Any) -> None:
        raise RuntimeError("a bug at the end")

    with monkeypatch.context() as patch:
        patch.setattr(type(engine.pipeline.engine.drafter), "finish", failing)
        with pytest.raises(RuntimeError, match="a bug at the end"):
            engine.generate(PROMPTS[0])
        stream = engine.stream(PROMPTS[0])
        next(stream)
        with pytest.raises(RuntimeError, match="a bug at the end"):
            stream.close()
    assert engine.generate(PROMPTS[0])[0].tokens == expected


def test_observers_of_plugin_packages_see_every_event(checkpoint: Path) -> None:
    from spec_sdk.hookspecs import hookimpl
    from spec_sdk.registry import Registry

    class Observer:
        def __init__(self) -> None:
            self.seen: list[str] = []

        @hookimpl
        def spec_sdk_event(self, event: dict[str, Any]) -> None:
            self.seen.append(event["event"])

    observer, manager = Observer(), Registry.discover()._manager
    manager.register(observer)
    try:
        Engine.from_pipeline("vanilla", target=checkpoint).generate("a", max_new_tokens=2, ignore_eos=True)
    finally:
        manager.unregister(observer)
    assert observer.seen == ["request_start", "prefill", "cycle", "cycle", "request_end"]


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy], ids=["pickle", "copy", "deepcopy"])
def test_an_engine_is_neither_pickled_nor_copied(engine: Engine, copied: Any) -> None:
    """As a library that spreads work over processes tries to: what to do instead is said."""
    with pytest.raises(TypeError, match="an Engine is neither pickled nor copied: make one in each process, by Engine"):
        copied(engine)
