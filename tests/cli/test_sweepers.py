"""Sweeps by other launchers and sweepers than Hydra's own: the same table, summary.json and exit status.

The tests of joblib and Optuna are skipped where they are not installed (the extra ``sweep``).
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher

from spec_sdk.cli.objective import best_of, known_metrics, values_of
from spec_sdk.cli.outcomes import Outcome, read_outcomes
from spec_sdk.cli.sweep_end import SweepEnd
from spec_sdk.errors import UserError
from tests.cli.conftest import Result
from tests.support.tiny_checkpoints import write_checkpoint

Cli = Callable[..., Result]
FAILS = "sampling.temperature: -1.0 must be 0 (greedy) or more and finite"


def summary(directory: str = "out") -> dict[str, Any]:
    read: dict[str, Any] = json.loads((Path(directory) / "summary.json").read_text())
    return read


@pytest.fixture
def joblib() -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")


@pytest.fixture
def optuna() -> None:
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    logs: Any = pytest.importorskip("optuna.logging")
    # it writes to the stderr of the first test
    logs.disable_default_handler()


@pytest.mark.usefixtures("fake", "joblib")
def test_joblib_keeps_table_summary_and_status(cli: Cli) -> None:
    """One worker is this very process."""
    result = cli(
        *("-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=1", "sampling.temperature=0,-1"),
        *("prompt=a", "max_new_tokens=4", "output_dir=out"),
    )
    assert result.status == 2
    assert result.error == FAILS
    assert [(job["status"], job["error"]) for job in summary()["jobs"]] == [(0, None), (2, FAILS)]
    assert summary()["jobs"][0]["summary"]["new_tokens"] == 4
    assert [line.split()[-1] for line in result.err.splitlines() if "temperature=" in line][-2:] == ["ok", "error"]
    assert sorted(p.name for p in Path("out").iterdir()) == [
        "0-sampling.temperature=0",
        "multirun.yaml",
        "summary.json",
    ]


@pytest.mark.usefixtures("joblib")
def test_joblib_in_processes_of_its_own(own_directory: Path) -> None:
    (own_directory / "model").mkdir()
    write_checkpoint(own_directory / "model")
    command = [sys.executable, "-m", "spec_sdk", "-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    given = ["pipeline=vanilla", "model.target=model", "prompt=a", "max_new_tokens=3,-1", "output_dir=out"]
    done = subprocess.run(
        [*command, *given], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr and "2 jobs in out" in done.stderr
    assert [job["status"] for job in summary()["jobs"]] == [0, 2]
    assert summary()["jobs"][1]["error"] == "max_new_tokens: -1 must be 1 or more"
    assert summary()["jobs"][0]["summary"]["new_tokens"] <= 3


@pytest.mark.usefixtures("joblib")
@pytest.mark.parametrize(
    ("sent", "send", "workers", "lengths", "status", "word"),
    [
        # as a terminal does it, to processes too that idle since there is no job for them
        (signal.SIGINT, os.killpg, 4, "3,4", 130, "interrupted"),
        (signal.SIGTERM, os.kill, 2, "3,4,5", 143, "terminated"),
    ],
)
def test_jobs_of_joblib_that_run_when_a_sweep_is_ended_keep_what_they_have(
    own_directory: Path,
    sent: signal.Signals,
    send: Callable[[int, int], None],
    workers: int,
    lengths: str,
    status: int,
    word: str,
) -> None:
    """And nothing is half-written; the jobs behind them do not begin."""
    (own_directory / "model").mkdir()
    write_checkpoint(own_directory / "model", max_position_embeddings=8192)
    (own_directory / "prompts.jsonl").write_text('{"prompt": "a"}\n' * 9999)
    command = [sys.executable, "-m", "spec_sdk", "-m", "hydra/launcher=joblib", f"hydra.launcher.n_jobs={workers}"]
    given = ["pipeline=vanilla", "model.target=model", "prompt_file=prompts.jsonl", "ignore_eos=true", "output_dir=out"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    # another program's, and an earlier run's
    for name in ("downloads/.film.partial", ".sync.partial/whole", "old/.events.jsonl.x.partial"):
        (own_directory / "out" / name).parent.mkdir(parents=True)
        (own_directory / "out" / name).write_text("half")
    jobs = [own_directory / "out" / name for name in ("0-max_new_tokens=3", "1-max_new_tokens=4")]
    with (
        open("stderr", "w") as told,
        subprocess.Popen(
            [*command, *given, f"max_new_tokens={lengths}"],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=told,
            start_new_session=True,
        ) as sweep,
    ):
        while not all(any(job.glob(".events.jsonl.*.partial")) for job in jobs):
            assert sweep.poll() is None, Path("stderr").read_text()
            time.sleep(0.05)
        # something is answered by then
        time.sleep(1)
        send(sweep.pid, sent)
        assert sweep.wait(60) == status, Path("stderr").read_text()
    assert "Traceback" not in Path("stderr").read_text()
    assert [(job["job"], job["status"], job["error"]) for job in summary()["jobs"]] == [
        ("max_new_tokens=3", status, word),
        ("max_new_tokens=4", status, word),
    ]
    for job in jobs:
        metrics = json.loads((job / "metrics.json").read_text())
        assert metrics["summary"]["prompts"] > 1 and metrics["prompts"][0]["finish_reason"] == "length"
        events = [json.loads(line) for line in (job / "events.jsonl").read_text().splitlines()]
        assert sum(event["event"] == "request_start" for event in events) == metrics["summary"]["prompts"]
    assert not (own_directory / "out" / ".ending").exists()
    assert sorted(path.name for path in Path("out").rglob("*.partial")) == [
        ".events.jsonl.x.partial",
        ".film.partial",
        ".sync.partial",
    ]


@pytest.mark.usefixtures("fake", "optuna")
def test_optuna_finds_the_best_trial(cli: Cli) -> None:
    """The fake pipeline answers with as many tokens as it may, in 0.35 seconds for three of them."""
    result = cli(
        *("-m", "hydra/sweeper=optuna", "hydra/sweeper/sampler=grid", "hydra.sweeper.direction=maximize"),
        *("sweep.metric=new_tokens", "max_new_tokens=3,12,6", "prompt=a", "output_dir=out"),
    )
    assert result.status == 0, result.err
    assert "Traceback" not in result.err
    assert sorted(job["metric"]["new_tokens"] for job in summary()["jobs"]) == [3, 6, 12]
    [best] = summary()["best"]
    assert (best["job"], best["metric"]) == ("max_new_tokens=12", {"new_tokens": 12.0})
    assert Path(best["output_dir"], "metrics.json").is_file()
    # a table, or where it is too wide an entry of a list
    table = result.err[result.err.index("3 jobs in") :]
    assert table.count("ok, best") == 1 and re.search(r"max_new_tokens=12\b[^=]*ok, best", table)
    assert "best_value: 12.0" in Path("out/optimization_results.yaml").read_text()


@pytest.mark.usefixtures("fake", "optuna")
def test_optuna_gives_up_at_a_failed_trial(cli: Cli) -> None:
    result = cli(
        *(
            "-m",
            "hydra/sweeper=optuna",
            "hydra.sweeper.n_jobs=1",
            "hydra.sweeper.n_trials=5",
            "sweep.metric=new_tokens",
        ),
        *("sweep.metric=steps", "sampling.temperature=choice(-1.0)", "prompt=a", "max_new_tokens=4", "output_dir=out"),
    )
    assert (result.status, result.error) == (2, FAILS)
    assert [job["status"] for job in summary()["jobs"]] == [2]
    assert summary()["best"] == [] and "1 job in out" in result.err


@pytest.mark.usefixtures("fake", "optuna")
def test_optuna_goes_on_where_trials_may_fail(cli: Cli) -> None:
    result = cli(
        *("-m", "hydra/sweeper=optuna", "hydra.sweeper.max_failure_rate=1", "hydra.sweeper.sampler.seed=0"),
        *("hydra.sweeper.n_jobs=1", "hydra.sweeper.n_trials=6", "sweep.metric=new_tokens"),
        *("sampling.temperature=-1.0,0", "prompt=a", "max_new_tokens=4", "output_dir=out"),
    )
    assert result.status == 2 and "Traceback" not in result.err
    statuses = [job["status"] for job in summary()["jobs"]]
    assert len(statuses) == 6 and set(statuses) == {0, 2}
    assert result.err.count(f"error: {FAILS}") == statuses.count(2)
    assert len(summary()["best"]) == statuses.count(0)


@pytest.mark.usefixtures("fake", "optuna")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "sweep.metric: hydra/sweeper=optuna needs a number to optimise; say which, such as sweep.metric=tokens"),
        (["sweep.metric=tokens_per_secnd"], "sweep.metric: unknown metric 'tokens_per_secnd', did you mean 'tokens_pe"),
        (["sweep.metric=speedup"], "sweep.metric: speedup is over plain decoding, which compare=true runs too; add it"),
        (["sweep.metric=[]"], "sweep.metric: [] must be a name, a list of names, or null"),
        (["sweep.metric=steps", "hydra.sweeper.direction=up"], "hydra.sweeper.direction: unknown 'up'"),
        (["sweep.metric=[steps,drafted]"], "hydra.sweeper.direction: 1 for 2 metrics (sweep.metric); give one for"),
        (["sweep.metric=steps", "hydra.sweeper.storage=sqlite:///x.db"], "hydra.sweeper.storage: not offered"),
        (["sweep.metric=steps", "hydra.sweeper.n_trials=0"], "hydra/sweeper=optuna, hydra/launcher=basic: ValueError"),
        (["sweep.metric=steps", "hydra.sweeper.n_trials=x"], "config: Error merging override hydra.sweeper.n_trials=x"),
    ],
)
def test_what_optuna_cannot_do_is_one_line(cli: Cli, arguments: list[str], message: str) -> None:
    result = cli("-m", "hydra/sweeper=optuna", "max_new_tokens=3,4", "prompt=a", "output_dir=out", *arguments)
    assert result.status == 2
    assert result.error.startswith(message)
    assert not Path("out").exists()


@pytest.mark.usefixtures("fake")
def test_a_metric_without_a_sweeper_that_optimises_is_shown(cli: Cli) -> None:
    result = cli("-m", "sweep.metric=stage_s.verify", "max_new_tokens=3,6", "prompt=a", "output_dir=out")
    assert result.status == 0
    assert [job["metric"]["stage_s.verify"] for job in summary()["jobs"]] == pytest.approx([0.2, 0.4])
    assert "best" not in summary()
    assert "stage_s.verify" in result.err


@pytest.mark.usefixtures("fake")
def test_a_metric_that_a_job_has_not_fails_it(cli: Cli) -> None:
    result = cli("-m", "sweep.metric=attention.hit_rate", "max_new_tokens=3,6", "prompt=a", "output_dir=out")
    assert result.status == 2
    assert "error: sweep.metric: this job has no attention.hit_rate" in result.err
    assert [job["status"] for job in summary()["jobs"]] == [2, 2]


@pytest.mark.usefixtures("fake")
def test_a_launcher_that_breaks_keeps_the_jobs_that_ran(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    basic: Any = Plugins.instance().class_name_to_class["hydra._internal.core_plugins.basic_launcher.BasicLauncher"]
    launch = basic.launch

    def breaks(self: Launcher, job_overrides: Any, initial_job_idx: int) -> Any:
        launch(self, job_overrides[:1], initial_job_idx)
        raise OSError("a worker was killed")

    monkeypatch.setattr(basic, "launch", breaks)
    result = cli("-m", "max_new_tokens=3,6", "prompt=a", "output_dir=out")
    assert result.status == 2
    assert result.error == "hydra/sweeper=basic, hydra/launcher=basic: OSError: a worker was killed"
    assert [job["status"] for job in summary()["jobs"]] == [0]
    assert "1 job in out" in result.err


def test_a_job_whose_process_is_ended_is_not_ok(
    cli: Cli, fake: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Ray ends its workers: SystemExit, in whatever line they are at."""
    fake()

    def ended(*_: object) -> int:
        raise SystemExit(1)

    monkeypatch.setattr("spec_sdk.cli.sweep_job.run_task", ended)
    with pytest.raises(SystemExit):
        cli("-m", "max_new_tokens=3,6", "prompt=a", "output_dir=out")
    [job] = read_outcomes(Path("out"))
    assert (job.status, job.error) == (143, "terminated")


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    ("arguments", "job"),
    [
        (["hydra.sweep.dir=theirs/${now:%Y}"], "theirs/????/0-max_new_tokens=3"),
        (["output_dir=out", "hydra.sweep.subdir=jobs/${hydra.job.num}"], "out/jobs/0"),
        (["hydra.sweep.dir=theirs", "hydra.sweep.subdir=${hydra.job.override_dirname}"], "theirs/max_new_tokens=3,*=a"),
    ],
)
def test_hydras_directories_are_honoured(cli: Cli, arguments: list[str], job: str) -> None:
    result = cli("-m", *arguments, "max_new_tokens=3,6", "prompt=a")
    assert result.status == 0, result.err
    [directory] = Path().glob(job)
    assert (directory / "metrics.json").is_file()
    assert not Path("None").exists() and not Path("outputs").exists()


@pytest.mark.usefixtures("fake")
def test_the_directory_of_one_run_is_honoured(cli: Cli) -> None:
    assert cli("hydra.run.dir=mine", "prompt=a", "max_new_tokens=3").status == 0
    assert Path("mine/metrics.json").is_file() and not Path("None").exists()


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-m", "hydra.run.dir=x"], "hydra.run.dir: a sweep writes into output_dir, which Hydra calls hydra.sweep.dir"),
        (["-m", "hydra.sweep.dir=x", "output_dir=y"], "hydra.sweep.dir: output_dir is given too; give one of the two"),
        (["-m", "hydra.sweep.dir=''"], "hydra.sweep.dir: '' must be a directory"),
        (["-m", "hydra.sweep.subdir=x"], "hydra.sweep.subdir: 'x' must be a path below the sweep's directory with"),
        (["-m", "hydra.sweep.subdir=/x/${hydra.job.num}"], "hydra.sweep.subdir: '/x/${hydra.job.num}' must be a path"),
        (["-m", "hydra.sweep.subdir=../${hydra.job.num}"], "hydra.sweep.subdir: '../${hydra.job.num}' must be a path"),
        (["hydra.run.dir=x", "output_dir=y"], "hydra.run.dir: output_dir is given too; give one of the two"),
        (["hydra.sweep.dir=x"], "hydra.sweep.dir: only a sweep has it; add --multirun"),
        (["hydra/launcher=basic"], "hydra/launcher: only a sweep has it; add --multirun"),
        (["sweep.metric=tokens_per_second"], "sweep.metric: only a sweep has it; add --multirun"),
        (["hydra.sweeper.max_batch_size=2"], "hydra.sweeper.max_batch_size: only a sweep has it; add --multirun"),
    ],
)
def test_other_directories_are_refused(cli: Cli, arguments: list[str], message: str) -> None:
    result = cli(*arguments, "prompt=a")
    assert result.status == 2
    assert result.error.startswith(message)
    assert [path.name for path in Path().iterdir()] == []


def outcome(number: int, **metric: float) -> Outcome:
    return Outcome(number, f"job {number}", 0, None, "", metric)


@pytest.mark.parametrize(
    ("directions", "best"), [(["maximize", "minimize"], [0, 2]), (["minimize", "minimize"], [1, 2])]
)
def test_the_best_of_several_objectives_surpass_each_other_in_none(directions: list[str], best: list[int]) -> None:
    rated = [outcome(0, a=3, b=2), outcome(1, a=1, b=2), outcome(2, a=2, b=1), outcome(3, a=2, b=3)]
    failed = Outcome(4, "failed", 2, "why", "")
    assert [one.number for one in best_of([*rated, failed], directions)] == best


def test_the_best_of_one_objective(tmp_path: Path) -> None:
    rated = [outcome(0, a=3), outcome(1, a=1), outcome(2, a=3)]
    assert [one.number for one in best_of(rated, ["maximize"])] == [0, 2]
    assert [one.number for one in best_of(rated, ["minimize"])] == [1]
    assert best_of(rated, []) == []


def test_outcomes_of_many_writers_are_all_kept(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: outcome(number, a=number).append(tmp_path), range(50)))
    assert read_outcomes(tmp_path) == [outcome(number, a=float(number)) for number in range(50)]


def test_metrics_by_name(tmp_path: Path) -> None:
    assert {"tokens_per_second", "stage_s.draft", "attention.hit_rate", "speedup"} <= set(known_metrics())
    with pytest.raises(UserError, match=r"writes no metrics\.json"):
        values_of(tmp_path, ["steps"])
    kept = {"summary": {"steps": 3, "acceptance_rate": None}, "comparison": {"speedup": 1.5}}
    (tmp_path / "metrics.json").write_text(json.dumps(kept))
    assert values_of(tmp_path, ["speedup", "steps"]) == {"speedup": 1.5, "steps": 3.0}
    with pytest.raises(UserError, match=r"^sweep\.metric: this job has no acceptance_rate; there are: speedup, steps$"):
        values_of(tmp_path, ["acceptance_rate"])


def test_a_second_signal_ends_a_sweep_whose_jobs_have_yet_to_keep_what_they_have(tmp_path: Path) -> None:
    end, before = SweepEnd(tmp_path), signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with end.heard(sheltered=True), end.opened() as held:
            fcntl.flock(held, fcntl.LOCK_SH)
            begun = time.perf_counter()
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
            threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
            with pytest.raises(KeyboardInterrupt):
                until = begun + 30
                while time.perf_counter() < until:
                    time.sleep(0.01)
            assert 1.4 < time.perf_counter() - begun < 20 and end.told() == signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)
    assert list(tmp_path.iterdir()) == []
