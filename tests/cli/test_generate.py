"""``task=generate`` with a pipeline that spells a fixed answer: what is streamed, written, compared, refused."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from spec_sdk.errors import UserError
from spec_sdk.files import StagedFile
from spec_sdk.prompts import check_length
from tests.cli.conftest import Result
from tests.cli.fakes import ANSWER, CONTEXT

Cli = Callable[..., Result]
pytestmark = pytest.mark.usefixtures("fake")


def metrics(directory: str | Path = "out") -> dict[str, Any]:
    value: dict[str, Any] = json.loads((Path(directory) / "metrics.json").read_text())
    return value


def test_text_goes_to_stdout_and_all_else_to_stderr(cli: Cli) -> None:
    result = cli("prompt=hello", "max_new_tokens=31", "output_dir=out")
    assert result.status == 0
    assert result.out == ANSWER[:30] + "\n"
    for words in ("prompt 1/1, 31/31 tokens", "tokens/s", "accepted tokens (MAT)", "guarantee", "exact", "in out"):
        assert words in result.err


def test_metrics_have_the_agreed_names(cli: Cli) -> None:
    cli("prompt=hello", "max_new_tokens=7", "output_dir=out", "sampling.seed=5")
    written = metrics()
    assert set(written) == {
        *(
            "schema_version",
            "pipeline",
            "overridden",
            "plugins",
            "deterministic",
            "guarantee",
            "models",
            "backend",
            "backend_choice",
            "dtype",
            "rounds_rows",
            "memory",
            "machine",
        ),
        *("sampling", "max_new_tokens", "prompts", "summary"),
    }
    assert written["schema_version"] == 1
    assert written["memory"] == {"target_weights": 1000, "kv_cache": 200}
    assert written["models"] == {"target": "fake-target", "draft": "fake-draft"}
    assert written["sampling"]["seed"] == 5
    [record] = written["prompts"]
    assert record == {
        "id": 1,
        "prompt": "hello",
        "prompt_tokens": len("<user>hello</user>"),
        "new_tokens": 7,
        "token_ids": [*map(ord, ANSWER[:6]), 0],
        "text": ANSWER[:6],
        "finish_reason": "stop",
        "prefill_s": 0.25,
        "decode_s": pytest.approx(3 * 0.35),
        "steps": 3,
        "drafted": 6,
        "accepted": 4,
        "acceptance_rate": pytest.approx(4 / 6),
        "mean_accepted_tokens": pytest.approx(7 / 3),
        "stage_s": {"draft": pytest.approx(0.3), "verify": pytest.approx(0.6), "recover": pytest.approx(0.15)},
        "host_reads_per_step": 1.0,
        "attention": None,
    }
    assert written["summary"]["tokens_per_second"] == pytest.approx(7 / 1.05)


def test_results_name_what_ran(cli: Cli) -> None:
    """Every plugin with the options that do not have their defaults, and which of the pipeline's keys were changed."""
    overrides = ["pipeline=easyspec_paper", "drafter.width=2", "policy=adaptive", "policy.max=3", "sampler=reference"]
    result = cli(*overrides, "backend.threads=1", "prompt=hello", "max_new_tokens=4", "output_dir=out")
    written = metrics()
    assert written["pipeline"] == "easyspec_paper"
    assert written["overridden"] == ["drafter.width", "sampler", "policy"]
    assert written["plugins"] == {
        "drafter": {"name": "easyspec", "width": 2},
        "verifier": {"name": "multi_step"},
        "sampler": {"name": "reference"},
        "policy": {"name": "adaptive", "max": 3},
        "predictor": {"name": "none"},
        "backend": {"name": "cpu", "threads": 1},
    }
    facts = [line.split(maxsplit=1) for line in result.err.splitlines()]
    assert ["pipeline", "easyspec_paper, overridden: drafter.width, sampler, policy"] in facts
    assert ["drafter", "easyspec (width=2)"] in facts and ["policy", "adaptive (max=3)"] in facts
    assert yaml.safe_load(Path("out/config.yaml").read_text())["pipeline"]["overridden"] == written["overridden"]
    # its default is 1: the pipeline's 4 was changed all the same
    cli("pipeline=easyspec_paper", "drafter.width=1", "prompt=hello", "max_new_tokens=4", "output_dir=out")
    assert metrics()["plugins"]["drafter"] == {"name": "easyspec", "width": 1}


def test_a_pipeline_as_it_is_was_not_overridden(cli: Cli) -> None:
    """Nor by what is no part of it, or by an override that says what it says itself."""
    said_again = ["policy=break_even", "drafter.min_probability=0.05"]
    for overrides in ([], ["sampling.temperature=1", "backend.threads=1"], said_again):
        cli(*overrides, "prompt=hello", "max_new_tokens=4", "output_dir=out")
        assert metrics()["overridden"] == []
    assert metrics()["plugins"]["drafter"] == {"name": "suffix"}


def test_a_predictor_is_named_with_its_verifier(cli: Cli) -> None:
    cli("pipeline=alspec", "attention_verifier.threshold=0.2", "prompt=hello", "max_new_tokens=4", "output_dir=out")
    assert metrics()["plugins"]["attention_verifier"] == {"name": "l2_threshold", "threshold": 0.2}
    assert metrics()["overridden"] == ["attention_verifier.threshold"]
    result = cli("pipeline=alspec", "attention_verifier.threshold=inf", "prompt=hello", "output_dir=out")
    assert metrics()["plugins"]["attention_verifier"] == {"name": "l2_threshold", "threshold": ".inf"}
    assert "l2_threshold (threshold=.inf)" in result.err


def test_what_a_pipeline_of_ones_own_sets_is_part_of_it(cli: Cli) -> None:
    """Of a directory of YAML too, whose options for a replaced plugin are forgotten as well."""
    Path("mine/pipeline").mkdir(parents=True)
    Path("mine/pipeline/mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /drafter: easyspec\npipeline: {name: mine}\n"
        "max_new_tokens: 5\nsampling: {temperature: 0.5}\ndrafter: {width: 3}\n"
    )
    run = ["--config-dir", "mine", "pipeline=mine", "prompt=hello", "output_dir=out"]
    cli(*run)
    assert metrics()["overridden"] == []
    cli(*run, "sampling.temperature=0", "sampling.seed=3", "max_new_tokens=4")
    assert metrics()["overridden"] == ["max_new_tokens", "sampling.temperature"]
    assert cli(*run, "drafter=prompt_lookup").status == 0
    assert metrics()["overridden"] == ["drafter"]


def test_prompts_have_their_ids_and_texts_unless_told_otherwise(cli: Cli) -> None:
    chat = [{"role": "system", "content": "brief"}, {"role": "user", "content": "two"}]
    lines = [{"prompt": "one", "question_id": 81}, {"messages": chat, "id": "x"}]
    Path("p.jsonl").write_text("\n".join(map(json.dumps, lines)))
    run = ["pipeline=alspec", "prompt_file=p.jsonl", "max_new_tokens=4", "compare=true"]
    cli(*run, "output_dir=out")
    records = metrics()["prompts"]
    assert [(record["id"], record["prompt"]) for record in records] == [(81, "one"), ("x", chat)]
    assert records[1]["prompt_tokens"] == len("<system>brief</system><user>two</user>")
    compared = metrics()["comparison"]["prompts"]
    assert [(record["id"], record["prompt"]) for record in compared] == [(81, None), ("x", None)]
    cli(*run, "output_dir=bare", "save_prompts=false")
    assert [(record["id"], record["prompt"]) for record in metrics("bare")["prompts"]] == [(81, None), ("x", None)]
    cli("prompt=a secret", "max_new_tokens=4", "output_dir=secret", "save_prompts=false")
    assert not any("a secret" in path.read_text() for path in Path("secret").iterdir())


def test_messages_need_a_chat_template(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("p.jsonl").write_text('{"messages": [{"role": "user", "content": "hi"}]}')
    assert cli("prompt_file=p.jsonl", "chat=false").error.startswith("chat: messages need the model's chat template")
    monkeypatch.setattr("tests.cli.fakes.FakeTokenizer.has_chat_template", False)
    assert cli("prompt_file=p.jsonl").error.startswith("prompt: this model has no chat template for messages")


def test_config_and_events_lie_beside_the_metrics(cli: Cli) -> None:
    cli("prompt=hello", "max_new_tokens=7", "output_dir=out")
    config = yaml.safe_load(Path("out/config.yaml").read_text())
    assert (config["prompt"], config["drafter"]["name"]) == ("hello", "suffix")
    events = [json.loads(line) for line in Path("out/events.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == ["request_start", "prefill", *["cycle"] * 3, "request_end"]
    assert {event["pipeline"] for event in events} == {"suffix"}
    assert all("timestamp" in event for event in events)


def test_the_directory_may_name_the_pipeline(cli: Cli) -> None:
    assert cli("pipeline=vanilla", "output_dir=out/${pipeline.name}", "max_new_tokens=4").status == 0
    assert metrics("out/vanilla")["pipeline"] == "vanilla"


def test_a_prompt_with_dollars_and_braces_is_written_as_it_was_typed(cli: Cli) -> None:
    cli("prompt=what is ${HOME}?", "max_new_tokens=4", "output_dir=out")
    assert yaml.safe_load(Path("out/config.yaml").read_text())["prompt"] == "what is ${HOME}?"


def test_the_default_directory_names_date_and_pipeline(cli: Cli) -> None:
    cli("max_new_tokens=3")
    cli("max_new_tokens=3")
    first, second = Path("outputs").glob("*/*")
    assert first != second
    for directory in (first, second):
        assert "suffix" in directory.name
        assert metrics(directory)["summary"]["new_tokens"] == 3


def test_compare_runs_plain_decoding_beside_it(cli: Cli) -> None:
    result = cli("max_new_tokens=7", "compare=true", "output_dir=out")
    assert result.out == ANSWER[:6] + "\n"
    assert "vanilla" in result.err and "ratio" in result.err and "2.33×" in result.err
    compared = metrics()["comparison"]
    assert compared["vanilla"]["mean_accepted_tokens"] == 1
    assert compared["speedup"] == pytest.approx(7 / 3)
    assert [record["steps"] for record in compared["prompts"]] == [7]
    events = [json.loads(line) for line in Path("out/events.jsonl").read_text().splitlines()]
    assert [e["pipeline"] for e in events if e["event"] == "request_end"] == ["suffix", "vanilla"]


def test_compared_pipelines_take_turns_at_the_prompts(cli: Cli) -> None:
    """A machine that slows down slows both; text is the first one's alone."""
    Path("prompts.jsonl").write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    result = cli("prompt_file=prompts.jsonl", "max_new_tokens=4", "compare=true", "output_dir=out")
    assert result.out == f"{ANSWER[:3]}\n\n{ANSWER[:3]}\n"
    events = [json.loads(line) for line in Path("out/events.jsonl").read_text().splitlines()]
    ends = [(e["pipeline"], e["request"]) for e in events if e["event"] == "request_end"]
    assert ends == [("suffix", 0), ("vanilla", 0), ("suffix", 1), ("vanilla", 1)]
    assert [len(metrics()["prompts"]), len(metrics()["comparison"]["prompts"])] == [2, 2]


def test_several_prompts_are_apart_by_a_blank_line(cli: Cli) -> None:
    Path("prompts.jsonl").write_text('{"prompt": "one"}\n\n{"turns": ["two", "more"]}\n{"prompt": "three"}\n')
    result = cli("prompt_file=prompts.jsonl", "prompt_limit=2", "max_new_tokens=4", "output_dir=out")
    assert result.out == f"{ANSWER[:3]}\n\n{ANSWER[:3]}\n"
    written = metrics()
    assert [record["prompt_tokens"] for record in written["prompts"]] == [len("<user>one</user>")] * 2
    assert written["summary"]["new_tokens"] == 8


def test_the_chat_template_can_be_left_out(cli: Cli) -> None:
    cli("prompt=hello", "chat=false", "max_new_tokens=4", "output_dir=out")
    assert metrics()["prompts"][0]["prompt_tokens"] == len("hello")


def test_json_is_not_promised_where_there_is_none(cli: Cli) -> None:
    refused = cli("prompt=hello", "json=true")
    assert (refused.status, refused.out) == (2, "")
    assert refused.error == "json: metrics.json in the output directory has the answers; leave it out"


def test_chat_without_a_template_is_refused(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.cli.fakes.FakeTokenizer.has_chat_template", False)
    assert cli("prompt=hello", "chat=true").error == "chat: this model has no chat template; use chat=false"
    assert cli("prompt=hello", "max_new_tokens=4").status == 0


def test_a_prompt_that_does_not_fit_is_refused_with_the_numbers(cli: Cli) -> None:
    room = CONTEXT - len("<user>hello</user>")
    error = cli("prompt=hello", f"max_new_tokens={room + 1}").error
    assert error == (
        f"prompt: its 18 tokens and max_new_tokens={room + 1} exceed the context of {CONTEXT}; "
        f"use max_new_tokens={room} or less"
    )
    assert cli("prompt=" + "x" * CONTEXT).error.endswith("; shorten it")
    Path("prompts.jsonl").write_text(json.dumps({"prompt": "fits"}) + "\n" + json.dumps({"prompt": "x" * CONTEXT}))
    assert cli("prompt_file=prompts.jsonl").error.startswith("prompt 2 of 2: its 413 tokens")
    assert not Path("outputs").exists()


def test_no_advice_to_shorten_what_cannot_be_shorter() -> None:
    with pytest.raises(UserError, match="its 1 token and .* exceed the context of 1; .* max_position_embeddings right"):
        check_length(1, 8, 1)


@pytest.mark.parametrize(
    ("directory", "message"),
    [
        ("taken", "output_dir: taken is a file, not a directory"),
        ("taken/x", "output_dir: "),
        ("/proc/x", "output_dir: /proc cannot be written to"),
    ],
)
def test_a_directory_that_cannot_be_made_is_refused_before_any_work(cli: Cli, directory: str, message: str) -> None:
    Path("taken").write_text("")
    result = cli(f"output_dir={directory}")
    assert (result.status, result.out) == (2, "")
    assert result.error.startswith(message)


def test_no_space_left_is_one_line_and_leaves_nothing(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(staged: StagedFile) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(staged.path))

    monkeypatch.setattr(StagedFile, "finish", full)
    result = cli("output_dir=out/deep", "max_new_tokens=4")
    assert result.status == 2
    assert "no space left on the device for " in result.error
    assert not Path("out").exists()


def test_a_failure_in_the_middle_keeps_what_was_done(cli: Cli, fake: Callable[..., None]) -> None:
    Path("prompts.jsonl").write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    fake(fail_at=1, failure=RuntimeError("a bug"))
    result = cli("prompt_file=prompts.jsonl", "max_new_tokens=4", "output_dir=out")
    assert result.status == 1
    assert "Traceback" in result.err and "RuntimeError: a bug" in result.err
    assert [record["finish_reason"] for record in metrics()["prompts"]] == ["stop", "interrupted"]


def test_a_comparison_that_is_cut_off_is_of_whole_answers(cli: Cli, fake: Callable[..., None]) -> None:
    Path("prompts.jsonl").write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    asked = ("prompt_file=prompts.jsonl", "max_new_tokens=7", "compare=true", "output_dir=out")
    whole = cli(*asked)
    assert whole.status == 0 and "compared by" not in whole.err
    assert metrics()["comparison"]["speedup"] == pytest.approx(7 / 3)
    fake(fail_at=1, fail_after=1, failure=KeyboardInterrupt())
    result = cli(*asked)
    assert result.status == 130 and "compared by the prompts that both finished: 1" in result.err
    assert metrics()["comparison"]["speedup"] == pytest.approx(7 / 3)
    assert metrics()["summary"]["new_tokens"] == 10
    fake(fail_at=0, fail_after=1, failure=KeyboardInterrupt())
    result = cli(*asked)
    assert result.status == 130 and "not compared: no prompt was answered by both" in result.err
    assert metrics()["comparison"]["speedup"] is None
    [tokens] = [line for line in result.err.splitlines() if line.startswith("new tokens")]
    assert tokens.split()[2:] == [str(metrics()["summary"]["new_tokens"])] != ["0"]


def test_an_interrupt_in_the_middle_of_a_cycle_is_status_130(cli: Cli, fake: Callable[..., None]) -> None:
    fake(fail_at=0, failure=KeyboardInterrupt())
    assert cli("output_dir=out").status == 130
    [record] = metrics()["prompts"]
    assert (record["finish_reason"], record["new_tokens"], record["prefill_s"]) == ("interrupted", 0, None)
    assert (record["acceptance_rate"], record["mean_accepted_tokens"]) == (None, None)


def test_observers_of_plugin_packages_see_every_event(cli: Cli, registry: Any) -> None:
    from spec_sdk.hookspecs import hookimpl

    class Observer:
        seen: list[str] = []

        @hookimpl
        def spec_sdk_event(self, event: dict[str, Any]) -> None:
            self.seen.append(f"{event['pipeline']}:{event['event']}")

    registry.register(Observer(), "mine")
    cli("max_new_tokens=3")
    assert Observer.seen == [f"suffix:{e}" for e in ("request_start", "prefill", "cycle", "request_end")]


def test_unknown_tasks_are_refused(cli: Cli) -> None:
    assert cli("task.name=generat").error == "task: unknown task 'generat', did you mean 'generate'?"
