"""``--multirun``: one directory per job, one table, and a job that fails costs the others nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from spec_sdk.cli.jobs import run_task
from spec_sdk.cli.sweep_job import directory_name
from spec_sdk.run_report.finding import read_runs
from spec_sdk.settings import Settings
from tests.cli.conftest import Result
from tests.cli.fakes import FakePipeline

Cli = Callable[..., Result]
pytestmark = pytest.mark.usefixtures("fake")


def summary(directory: str = "out") -> list[dict[str, Any]]:
    jobs: list[dict[str, Any]] = json.loads((Path(directory) / "summary.json").read_text())["jobs"]
    return jobs


def test_every_job_has_its_directory_and_its_row(cli: Cli) -> None:
    result = cli("--multirun", "pipeline=vanilla,sd_chain,easyspec_paper", "max_new_tokens=7", "output_dir=out")
    assert result.status == 0
    names = ["pipeline=vanilla", "pipeline=sd_chain", "pipeline=easyspec_paper"]
    assert [job["job"] for job in summary()] == names
    for i, name in enumerate(names):
        metrics = json.loads(Path(f"out/{i}-{name}/metrics.json").read_text())
        assert f"pipeline={metrics['pipeline']}" == name
        assert summary()[i]["summary"] == metrics["summary"]
    table = result.err[result.err.index("3 jobs in out") :].splitlines()
    for name in names:
        [row] = [line.split() for line in table if name in line]
        assert row[0] == name and row[-1] == "ok"
    assert max(map(len, table[1:])) <= 80
    assert [job["plugins"]["drafter"]["name"] for job in summary()] == ["none", "draft_model", "easyspec"]
    assert ["verifier", "multi_step"] in [line.split() for line in table]
    assert "job 0  drafter none" in table and "job 2  drafter easyspec (width=4)" in table


def test_a_sweep_that_compares_has_the_ratios(cli: Cli) -> None:
    """In the table, and in summary.json; without compare=true there is no such column."""
    result = cli("-m", "pipeline=vanilla,suffix", "max_new_tokens=7", "compare=true", "output_dir=out")
    table = result.err[result.err.index("2 jobs in out") :].splitlines()
    assert any("ratio" in line.split() for line in table[1:3])
    [row] = [line.split() for line in table if "pipeline=suffix" in line]
    assert row[-2:] == ["2.33×", "ok"]
    assert [job["speedup"] for job in summary()] == [pytest.approx(7 / 3)] * 2
    assert max(map(len, table[1:])) <= 80
    plain = cli("-m", "pipeline=vanilla,suffix", "max_new_tokens=7", "output_dir=plain")
    assert "ratio" not in plain.err and [job["speedup"] for job in summary("plain")] == [None, None]


def test_a_sweep_tells_rounded_rows_from_exact_ones(
    cli: Cli, fake: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = ("-m", "pipeline=vanilla,suffix", "max_new_tokens=7", "output_dir=out")
    exact = cli(*sweep)
    assert "rows" not in exact.err and [job["rounds_rows"] for job in summary()] == [False, False]
    fake(rounds_rows=True)
    assert "rows       in 8 bits" in cli(*sweep).err.splitlines()

    def some_round(settings: Settings, *_: Any) -> FakePipeline:
        return FakePipeline(settings.pipeline.name, settings.sampling, rounds_rows=settings.pipeline.name == "suffix")

    monkeypatch.setattr(sys.modules["spec_sdk.pipeline"], "build_pipeline", some_round)
    told = cli(*sweep).err.splitlines()
    assert [job["rounds_rows"] for job in summary()] == [False, True]
    assert [line.partition("rows ")[2] for line in told if line.startswith(("job 0  ", "job 1  "))] == [
        "exact",
        "in 8 bits",
    ]


def test_options_of_what_jobs_choose(cli: Cli) -> None:
    """The pipeline that a sweep does not run has no say in what its jobs' pipelines know."""
    result = cli("-m", "pipeline=sd_chain,easyspec_paper", "drafter.width=2", "policy.depth=3", "output_dir=out")
    assert result.status == 0, result.err
    assert [job["plugins"]["drafter"]["width"] for job in summary()] == [2, 2]
    assert [job["plugins"]["policy"]["depth"] for job in summary()] == [3, 3]
    kinds = cli("-m", "drafter=draft_model,easyspec", "drafter.width=3", "output_dir=kinds")
    assert kinds.status == 0, kinds.err
    assert [job["plugins"]["drafter"]["width"] for job in summary("kinds")] == [3, 3]


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (("pipeline=sd_chain,prompt_lookup", "drafter.width=2,3"), "of drafter 'prompt_lookup'"),
        (("policy=fixed,heuristic", "policy.depth=2"), "of policy 'heuristic'"),
        (("pipeline=sd_chain,easyspec_paper", "drafter.wdth=2"), "of drafter 'draft_model', did you mean 'width'"),
    ],
)
def test_a_job_that_lacks_an_option_is_told_by_its_own_plugin(cli: Cli, overrides: tuple[str, ...], told: str) -> None:
    result = cli("-m", *overrides, "output_dir=out")
    assert result.status == 2 and told in result.err, result.err
    assert not Path("out").exists()


def test_prompts_that_are_not_to_be_saved_are_in_no_file(cli: Cli) -> None:
    """But in names of jobs, where the prompt itself is swept."""
    result = cli("-m", "pipeline=suffix,mixed", "prompt=SECRET words", "save_prompts=false", "output_dir=out")
    assert result.status == 0, result.err
    kept = [path for path in Path("out").rglob("*") if path.is_file()]
    assert Path("out/multirun.yaml") in kept
    assert [path for path in kept if b"SECRET" in path.read_bytes()] == []
    assert [job["summary"]["prompts"] for job in summary()] == [1, 1]


def test_the_default_directory_is_one_for_the_whole_sweep(cli: Cli) -> None:
    cli("-m", "max_new_tokens=3,4")
    [sweep] = Path("outputs").glob("*/*")
    assert sweep.name.endswith("-sweep")
    assert sorted(p.name for p in sweep.iterdir() if p.is_dir()) == ["0-max_new_tokens=3", "1-max_new_tokens=4"]


def test_a_killed_sweep_does_not_pass_for_an_earlier_one(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """While its jobs run there is no summary of the one before; a sweep that is refused leaves what lay there."""
    assert cli("-m", "max_new_tokens=3,4", "output_dir=out").status == 0
    assert cli("-m", "pipeline=vanila", "output_dir=out").status == 2 and len(summary()) == 2
    there: list[bool] = []

    def looked(*arguments: Any) -> int:
        there.append(Path("out", "summary.json").exists())
        return 0

    monkeypatch.setattr("spec_sdk.cli.sweep_job.run_task", looked)
    assert cli("-m", "max_new_tokens=5,6", "output_dir=out").status == 0
    assert there == [False, False] and [job["job"] for job in summary()] == ["max_new_tokens=5", "max_new_tokens=6"]


def reported(directory: str = "out") -> tuple[list[str], list[str]]:
    """Whose numbers a report has, and what it says of the other jobs."""
    runs, failed = read_runs([directory])
    return [run.path.name for run in runs], failed


def test_a_job_that_begins_anew_leaves_no_earlier_results_as_its_own(cli: Cli, fake: Callable[..., None]) -> None:
    sweep = ("-m", "pipeline=vanilla,suffix", "output_dir=out")
    assert cli(*sweep, "max_new_tokens=5").status == 0
    before = Path("out/0-pipeline=vanilla/metrics.json").read_text()
    assert cli(*sweep, "max_new_tokens=900").status == 2
    assert [(job["status"], job["summary"]) for job in summary()] == [(2, None), (2, None)]
    names, failed = reported()
    assert names == [] and len(failed) == 2 and all("max_new_tokens" in line for line in failed)
    assert Path("out/0-pipeline=vanilla/earlier_metrics.json").read_text() == before, "they are lost to nobody"
    assert cli(*sweep, "max_new_tokens=5").status == 0
    assert reported() == (["0-pipeline=vanilla", "1-pipeline=suffix"], [])
    assert list(Path("out").rglob("earlier_*")) == []


def test_a_sweep_that_is_interrupted_keeps_the_jobs_of_an_earlier_one_that_it_had_not_begun(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = ("-m", "max_new_tokens=3,4,5,6", "output_dir=out")
    assert cli(*sweep).status == 0
    before = summary()

    def interrupted(config: Any, overrides: Sequence[str], directory: Path, *_: Any) -> int:
        if "max_new_tokens=4" in overrides:
            raise KeyboardInterrupt
        return run_task(config, overrides, directory)

    with monkeypatch.context() as patched:
        patched.setattr("spec_sdk.cli.sweep_job.run_task", interrupted)
        result = cli(*sweep)
    assert result.status == 130 and "of an earlier sweep 2 did not run again" in result.err
    assert [(job["job"], job["status"], job.get("earlier", False)) for job in summary()] == [
        ("max_new_tokens=3", 0, False),
        ("max_new_tokens=4", 130, False),
        ("max_new_tokens=5", 0, True),
        ("max_new_tokens=6", 0, True),
    ]
    assert summary()[1]["summary"] is None
    assert [job["summary"] for job in summary()[2:]] == [job["summary"] for job in before[2:]]
    names, [interrupted_job] = reported()
    assert names == [f"{i}-max_new_tokens={3 + i}" for i in (0, 2, 3)] and "interrupted" in interrupted_job
    assert cli(*sweep).status == 0
    assert [job.get("earlier") for job in summary()] == [None] * 4


def as_killed_at_its_second_job() -> None:
    """What a whole sweep left, as one that began anew and was killed leaves it."""
    Path("out/summary.json").rename("out/earlier_summary.json")
    Path("out/1-max_new_tokens=4/metrics.json").rename("out/1-max_new_tokens=4/earlier_metrics.json")


def test_an_earlier_job_that_a_killed_sweep_began_anew_is_not_taken_for_whole(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = ("-m", "max_new_tokens=3,4,5", "output_dir=out")
    assert cli(*sweep).status == 0
    as_killed_at_its_second_job()
    monkeypatch.setattr("spec_sdk.cli.sweep_job.run_task", Mock(side_effect=KeyboardInterrupt))
    assert cli(*sweep).status == 130
    assert [job["job"] for job in summary()] == ["max_new_tokens=3", "max_new_tokens=5"]


def interrupted_at(second: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the jobs that run; the first time that it comes to ``second``, Ctrl-C does."""
    ran, yet_to_come = list[str](), {second}

    def counted(config: Any, overrides: Sequence[str], directory: Path, *others: Any) -> int:
        ran.append(directory.name)
        if directory.name in yet_to_come:
            yet_to_come.clear()
            raise KeyboardInterrupt
        return run_task(config, overrides, directory, *others)

    monkeypatch.setattr("spec_sdk.cli.sweep_job.run_task", counted)
    return ran


@pytest.mark.parametrize("killed", [False, True])
def test_a_sweep_that_is_resumed_runs_the_jobs_that_did_not_end_well(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    sweep = ("-m", "max_new_tokens=3,4,5", "prompt=a", "output_dir=out", "sweep.metric=new_tokens")
    names = [f"{i}-max_new_tokens={i + 3}" for i in range(3)]
    ran = interrupted_at(names[1], monkeypatch)
    with monkeypatch.context() as patched:
        if killed:
            patched.setattr("spec_sdk.cli.sweep.Sweep._summarise", Mock(side_effect=RuntimeError("killed")))
        assert cli(*sweep).status == (1 if killed else 130)
    assert Path("out/summary.json").exists() != killed and ran == names[:2]
    before = Path(f"out/{names[0]}/metrics.json").read_text()
    result = cli(*sweep, "sweep.resume=true")
    assert result.status == 0 and ran[2:] == names[1:], result.err
    assert "job 0 ended in an earlier sweep" in result.err
    assert Path(f"out/{names[0]}/metrics.json").read_text() == before
    assert [(job["status"], job["metric"]) for job in summary()] == [(0, {"new_tokens": i + 3.0}) for i in range(3)]
    assert list(Path("out").rglob("earlier_*")) == []
    # nothing is left to do; another prompt is another sweep, and so is one that does not resume
    del ran[:]
    assert cli(*sweep, "sweep.resume=true").status == 0 and ran == []
    assert cli(*sweep, "sweep.resume=true", "prompt=b").status == 0 and ran == names
    assert cli(*sweep, "prompt=b").status == 0 and ran == names * 2


def test_jobs_whose_prompts_have_changed_run_when_a_sweep_is_resumed(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a file of the same name holds now is another job."""
    Path("b.jsonl").write_text('{"prompt": "one"}\n')
    sweep = ("-m", "prompt_file=spec_bench_sample,b.jsonl", "prompt_limit=1", "output_dir=out")
    assert cli(*sweep).status == 0
    ran = interrupted_at("", monkeypatch)
    Path("b.jsonl").write_text('{"prompt": "two"}\n')
    assert cli(*sweep, "sweep.resume=true").status == 0 and ran == ["1-prompt_file=b.jsonl"]


def test_a_sweep_that_is_resumed_and_interrupted_again_loses_nobody(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = ("-m", "max_new_tokens=3,4,5", "prompt=a", "output_dir=out")
    assert cli(*sweep).status == 0
    Path("out/1-max_new_tokens=4/config.yaml").unlink()
    ran = interrupted_at("1-max_new_tokens=4", monkeypatch)
    assert cli(*sweep, "sweep.resume=true").status == 130
    assert cli(*sweep, "sweep.resume=true").status == 0 and ran == ["1-max_new_tokens=4"] * 2
    assert [job["status"] for job in summary()] == [0, 0, 0]


def test_a_job_that_a_killed_sweep_began_anew_runs_when_it_is_resumed(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = ("-m", "max_new_tokens=3,4", "output_dir=out")
    assert cli(*sweep).status == 0
    as_killed_at_its_second_job()
    ran = interrupted_at("", monkeypatch)
    assert cli(*sweep, "sweep.resume=true").status == 0 and ran == ["1-max_new_tokens=4"]
    assert all(job["summary"] for job in summary())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "sweep.resume: say which sweep is to go on: output_dir=…, its directory"),
        (["sweep.resume=true,false", "output_dir=out"], "sweep.resume: of all jobs the same; true or false"),
    ],
)
def test_what_cannot_be_resumed_is_one_line(cli: Cli, arguments: list[str], told: str) -> None:
    result = cli("-m", "max_new_tokens=3,4", "sweep.resume=true", *arguments)
    assert (result.status, result.error) == (2, told)


def test_a_failed_job_does_not_lose_the_others(cli: Cli) -> None:
    result = cli("-m", "sampling.temperature=0,-1,1", "max_new_tokens=4", "output_dir=out")
    assert result.status == 2
    assert result.error == "sampling.temperature: -1.0 must be 0 (greedy) or more and finite"
    assert [job["status"] for job in summary()] == [0, 2, 0]
    assert summary()[1]["error"] == "sampling.temperature: -1.0 must be 0 (greedy) or more and finite"
    assert summary()[1]["summary"] is None
    assert not Path("out/1-sampling.temperature=-1").exists()
    assert Path("out/2-sampling.temperature=1/metrics.json").exists()


def test_a_bug_in_one_job_is_status_1_and_the_others_run(cli: Cli, fake: Callable[..., None]) -> None:
    fake(fail_at=1, failure=RuntimeError("a bug"))
    Path("two.jsonl").write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    Path("one.jsonl").write_text('{"prompt": "one"}\n')
    result = cli("-m", "prompt_file=two.jsonl,one.jsonl,missing.jsonl", "max_new_tokens=4", "output_dir=out")
    assert result.status == 1
    assert "RuntimeError: a bug" in result.err
    assert [job["status"] for job in summary()] == [1, 0, 2]


@pytest.mark.parametrize(
    ("common", "told"),
    [
        ("max_new_tokens=0", "error: max_new_tokens: 0 must be 1 or more"),
        ("sampling.top_p=2", "error: sampling.top_p: 2.0 must be above 0"),
        ("language=en", "error: language: it says how audio is transcribed"),
    ],
)
def test_what_is_wrong_with_all_jobs_is_said_once(cli: Cli, common: str, told: str) -> None:
    result = cli("-m", "pipeline=vanilla,suffix", common, "output_dir=out")
    assert result.status == 2 and result.err.count(told) == result.err.count("error: ") == 1
    assert not Path("out").exists()


def test_a_wrong_value_among_others_costs_its_own_jobs(cli: Cli) -> None:
    """Also of an option that those beside it might make right."""
    result = cli("-m", "max_new_tokens=0,7", "sampling.temperature=0,-1", "output_dir=out")
    assert result.status == 2 and result.err.count("error: ") == 3
    assert [job["job"] for job in summary() if job["error"] is None] == ["max_new_tokens=7,sampling.temperature=0"]


def test_a_choice_that_does_not_exist_is_refused_before_anything_runs(cli: Cli) -> None:
    result = cli("-m", "pipeline=vanilla,vanila", "output_dir=deep/out")
    assert (result.status, result.out) == (2, "")
    assert result.error == "pipeline: unknown pipeline 'vanila', did you mean 'vanilla'?"
    assert not Path("deep").exists()


def test_an_empty_directory_that_was_there_before_stays(cli: Cli) -> None:
    Path("out").mkdir()
    cli("-m", "pipeline=vanila", "output_dir=out")
    assert list(Path("out").iterdir()) == []


def test_options_of_a_replaced_plugin_are_forgotten_in_sweeps_too(cli: Cli) -> None:
    cli("-m", "pipeline=easyspec_paper", "drafter=prompt_lookup,easyspec", "max_new_tokens=3", "output_dir=out")
    config = Path("out/0-drafter=prompt_lookup/config.yaml").read_text()
    assert "width" not in config
    assert "width: 4" in Path("out/1-drafter=easyspec/config.yaml").read_text()


def test_a_prompt_that_hydra_cannot_read_is_one_text_in_every_job(cli: Cli) -> None:
    assert cli("-m", "prompt=it's one, not ${two}", "max_new_tokens=3,4", "output_dir=out").status == 0
    assert "it's one, not ${two}" in Path("out/1-max_new_tokens=4/config.yaml").read_text()


def test_directory_names_are_tame() -> None:
    assert directory_name(3, "model.target=/a b/c;d") == "3-model.target=_a_b_c_d"
    assert len(directory_name(3, "x" * 500)) == 120
