"""The GPU suite's order, budget, resuming, killing and results, on steps that need no GPU."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

import benchmarks.gpu.__main__ as suite
from benchmarks.gpu import kit, report, running
from benchmarks.gpu.steps import STEPS, Step, ordered
from spec_sdk.app import main
from tests.support.text_checkpoints import write_text_checkpoint


def step(name: str, code: str = "", *, value: float = 1, least_s: int = 1, limit_s: int = 30, needs: str = "") -> Step:
    """A step that runs ``code``."""
    return Step(name, ("-c", code), value, 1, least_s, limit_s, needs=needs.split())


PASSES = step("passes", "print('some figures'); print('the last line')")
FAILS = step("fails", "raise SystemExit('it broke')")
NEEDS_MORE = step("needs_more", "1/0", needs="no_such_module")


@pytest.fixture(autouse=True)
def empty_kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kit directory of our own."""
    monkeypatch.setattr(kit, "KIT", tmp_path / "kit")
    return tmp_path / "kit"


def run(
    steps: list[Step], results: Path, budget_s: float = 60, resume: Path | None = None, out: Path | None = None
) -> int:
    deadline = time.monotonic() + budget_s
    return suite.run_suite(steps, results, "Some GPU", os.environ, deadline=deadline, resume=resume, out=out)


def told(results: Path) -> dict[str, dict[str, str]]:
    content = json.loads((results / report.NAME).read_text())
    assert content["schema_version"] == report.SCHEMA_VERSION
    assert content["device"] == "Some GPU"
    steps: dict[str, dict[str, str]] = content["steps"]
    return steps


def statuses(results: Path) -> dict[str, str]:
    return {name: result["status"] for name, result in told(results).items()}


def test_every_step_is_reported_and_a_table_comes_last(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run([PASSES, FAILS, NEEDS_MORE], tmp_path) == 1
    assert statuses(tmp_path) == {"passes": "passed", "fails": "failed", "needs_more": "left out"}
    assert "it broke" in told(tmp_path)["fails"]["output"]
    assert "no_such_module" in told(tmp_path)["needs_more"]["reason"]
    table = capfd.readouterr().out.splitlines()[-5:]
    assert table[0].split() == ["step", "status", "seconds", "last", "line"]
    assert table[1].endswith("the last line")


def test_what_is_left_out_or_skipped_is_no_failure(tmp_path: Path) -> None:
    assert run([PASSES, NEEDS_MORE, step("long", least_s=1000)], tmp_path) == 0


def test_the_most_valuable_seconds_come_first() -> None:
    first, second = step("cheap", value=2), step("dear", value=1)
    assert ordered([second, first]) == [first, second]
    rates = [one.value / one.expected_s for one in STEPS]
    assert rates == sorted(rates, reverse=True)
    names = [one.name for one in STEPS]
    assert names[:4] == ["kernel_smoke", "ceilings", "headline_1b", "headline"]
    assert sum(one.expected_s for one in STEPS[:10]) <= suite.BUDGET_S


def test_a_steps_figures_fit_together_and_into_a_budget() -> None:
    for one in STEPS:
        assert 0 < one.least_s <= one.expected_s <= one.limit_s <= suite.BUDGET_S - suite.RESERVE_S, one.name


def test_what_does_not_fit_is_skipped_with_the_option_to_run_it_and_what_fits_still_runs(tmp_path: Path) -> None:
    assert run([step("long", least_s=40), PASSES], tmp_path, budget_s=30) == 0
    assert statuses(tmp_path) == {"long": "skipped", "passes": "passed"}
    assert re.fullmatch(r"(2\d|30) s left, it needs 40: --resume, or --only long", told(tmp_path)["long"]["reason"])


def test_a_step_gets_at_most_what_is_left(tmp_path: Path) -> None:
    assert run([step("hangs", "import time; time.sleep(600)", least_s=0), PASSES], tmp_path, budget_s=1.5) == 1
    assert statuses(tmp_path) == {"hangs": "timed out", "passes": "skipped"}


def test_the_budget_reaches_benchmarks_with_a_limit_of_their_own(tmp_path: Path) -> None:
    asks = Step("asks", ("-c", "import sys; print(sys.argv)", "{seconds}", "{workers}"), 1, 1, 1, 10)
    run([asks], tmp_path, budget_s=60)
    seconds, workers = re.findall(r"'(\d+)'", told(tmp_path)["asks"]["output"])
    assert (int(seconds), int(workers)) == (8, running.workers())
    assert 1 <= int(workers) <= running.MOST_WORKERS


@pytest.mark.parametrize("waits", [True, False], ids=["over its limit", "after its end"])
def test_a_step_leaves_no_process_behind(tmp_path: Path, waits: bool) -> None:
    """Neither a child of one that hangs nor one that a step forgot, though the child ignores polite signals."""
    survived = str(tmp_path / "survived")
    child = (
        "import pathlib, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"time.sleep(4); pathlib.Path({survived!r}).touch()"
    )
    call = "run" if waits else "Popen"
    started = time.monotonic()
    run(
        [
            step(
                "slow",
                f"import subprocess, sys; subprocess.{call}([sys.executable, '-c', {child!r}])",
                limit_s=2 if waits else 60,
            )
        ],
        tmp_path,
    )
    assert statuses(tmp_path) == {"slow": "timed out" if waits else "passed"}
    time.sleep(max(0.0, 6 - (time.monotonic() - started)))
    assert not Path(survived).exists()


def test_a_step_is_a_group_in_the_suites_own_session(tmp_path: Path) -> None:
    """So that whoever ends the session's processes ends the step's too."""
    run([step("group", "import os; print(os.getsid(0), os.getpgid(0) == os.getpid())")], tmp_path)
    assert told(tmp_path)["group"]["output"].split() == [str(os.getsid(0)), "True"]


@pytest.mark.parametrize("told_by", [signal.SIGTERM, signal.SIGKILL])
def test_a_suite_that_is_ended_takes_its_step_along(tmp_path: Path, told_by: signal.Signals) -> None:
    """Also by the signal that it cannot see, as a lent machine sends one: the step would keep the GPU busy."""
    code = (
        "import os; from pathlib import Path; from benchmarks.gpu import running; "
        "from benchmarks.gpu.steps import Step; running.end_on_signals(); "
        "waits = 'import os, time; print(os.getpid(), flush=True); time.sleep(60)'; "
        "hangs = Step('hangs', ('-c', waits), 1, 1, 1, 60); "
        f"running.run_step(hangs, 60, Path({str(tmp_path)!r}), os.environ, {{}})"
    )
    outer = subprocess.Popen([sys.executable, "-c", code], cwd=kit.ROOT)
    log = tmp_path / "hangs.log"
    for _ in range(300):
        if log.is_file() and log.read_text().strip():
            break
        time.sleep(0.1)
    inner = int(log.read_text())
    outer.send_signal(told_by)
    assert outer.wait(20) == (128 + told_by if told_by == signal.SIGTERM else -told_by)
    until = time.monotonic() + 10
    while time.monotonic() < until and is_running(inner):
        time.sleep(0.1)
    assert not is_running(inner)


def is_running(process: int) -> bool:
    """Whether it is there, and no zombie that nobody waits for."""
    try:
        state = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return state.rpartition(")")[2].split()[0] != "Z"


def test_resuming_runs_only_what_has_not_passed(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    count = step("count", f"open({str(trace)!r}, 'a').write('x')")
    results = tmp_path / "results"
    run([count], results)
    run([count], results, resume=results / report.NAME)
    assert trace.read_text() == "x"
    run([count], results)
    assert trace.read_text() == "xx"


def test_resuming_elsewhere_goes_on_where_the_budget_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """From a copy of the report alone, on a machine without git; what failed before comes after what was never run."""
    monkeypatch.setenv("PATH", "")
    later = step("later", "print('ran')", least_s=40)
    assert run([PASSES, FAILS, later], tmp_path / "first", budget_s=20) == 1
    assert statuses(tmp_path / "first") == {"passes": "passed", "fails": "failed", "later": "skipped"}
    carried = tmp_path / "carried.json"
    carried.write_bytes((tmp_path / "first" / report.NAME).read_bytes())
    capfd.readouterr()
    assert run([PASSES, FAILS, later], tmp_path / "second", resume=carried) == 1
    assert statuses(tmp_path / "second") == {"passes": "passed", "fails": "failed", "later": "passed"}
    said = re.findall(r"^==> (\w+)(: passed)?", capfd.readouterr().out, re.MULTILINE)
    assert said == [("passes", ": passed"), ("later", ""), ("fails", "")]


def test_a_pass_of_other_sources_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run([PASSES], tmp_path)
    monkeypatch.setattr(report, "digest_of_sources", lambda: "other")
    run([PASSES], tmp_path, resume=tmp_path / report.NAME)
    assert "passes: passed in an earlier call, before the sources changed" in capfd.readouterr().out


def test_another_devices_report_is_not_continued(tmp_path: Path) -> None:
    other = {"schema_version": report.SCHEMA_VERSION, "device": "Other", "steps": {"passes": {"status": "passed"}}}
    (tmp_path / report.NAME).write_text(json.dumps(other))
    run([PASSES], tmp_path, resume=tmp_path / report.NAME)
    assert told(tmp_path)["passes"]["output"]


def test_the_archive_holds_reports_logs_and_what_steps_wrote(tmp_path: Path) -> None:
    writes = Step(
        "writes", ("-c", "import sys; open(sys.argv[1], 'w').write('[]')", "{results}/writes.json"), 1, 1, 1, 9
    )
    run([writes], tmp_path)
    with tarfile.open(tmp_path / report.ARCHIVE) as archive:
        assert sorted(archive.getnames()) == ["suite.json", "table.txt", "writes.json", "writes.log"]


def test_what_comes_back_is_the_archive_and_the_most_valuable_files(tmp_path: Path) -> None:
    """No more files than are let back, and there after every step, in case the whole command is cut off."""
    out = tmp_path / "out"
    out.mkdir()
    writing = "import sys; open(sys.argv[1], 'w').write('[]')"
    many = [Step(f"s{i}", ("-c", writing, f"{{results}}/s{i}.json"), 1, 1, 1, 9) for i in range(7)]
    looks = step("looks", f"import os; print(sorted(os.listdir({str(out)!r})))")
    run([many[0], looks, *many[1:]], tmp_path / "results", out=out)
    assert "'gpu-results.tar.gz', 's0.json', 'suite.json', 'table.txt'" in told(tmp_path / "results")["looks"]["output"]
    assert len(list(out.iterdir())) == report.MOST_FILES
    assert (out / report.ARCHIVE).read_bytes() == (tmp_path / "results" / report.ARCHIVE).read_bytes()


def test_a_directory_that_an_earlier_run_of_a_step_left_is_removed(tmp_path: Path) -> None:
    """A benchmark that goes on where it was would measure nothing anew."""
    writes = Step(
        "writes", ("-c", "import os, sys; os.mkdir(sys.argv[1]); print('made')", "{results}/writes"), 1, 1, 1, 9
    )
    for _ in range(2):
        assert run([writes], tmp_path) == 0
    assert told(tmp_path)["writes"]["output"].strip() == "made"


def test_pipelines_of_the_suite_can_be_put_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """On a tiny model and the CPU."""
    write_text_checkpoint(tmp_path / "model", num_hidden_layers=30)
    (tmp_path / "prompts.jsonl").write_text('{"turns": ["a b c a b"], "task": "one"}\n')
    (one,) = [step for step in STEPS if step.name == "pipelines"]
    values = {"results": tmp_path, "prompts": tmp_path / "prompts.jsonl", "model": tmp_path / "model"}
    typed = [part.format(**values) for part in one.command]
    assert typed[:2] == ["-m", "spec_sdk"]
    assert main([*typed[2:], "backend=cpu", "model.dtype=float32", "max_new_tokens=3"]) == 0
    assert "alspec predictor.size=32" in capfd.readouterr().out
    summary = json.loads((tmp_path / "pipelines" / "summary.json").read_text())
    assert summary


def test_the_plan_needs_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert suite.main(["--plan", "--budget", "170"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[0] for row in rows] == [one.name for one in STEPS]
    # 160 s without the reserve: 113 of them, and 47 of headline's 89
    assert {row[-1] for row in rows[:3]} == {"runs"} and " ".join(rows[3][5:]) == "runs, cut off after 47 s"
    assert {row[-1] for row in rows[4:]} == {"skipped"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "no_such"], "unknown step 'no_such'; there are kernel_smoke, "),
        (["--budget", "5"], "--budget 5: 10 s of it are kept back"),
        (["--resume", "nowhere.json"], "--resume nowhere.json: there is no such file"),
    ],
)
def test_wrong_options_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        suite.main(arguments)
    assert ended.value.code == 2 and message in capsys.readouterr().err


def test_a_smoke_run_leaves_out_what_needs_a_gpu(tmp_path: Path) -> None:
    can = Step("can", ("-c", "import sys; print(sys.argv[1:])", "--device=cuda"), 1, 1, 1, 9, on_cpu=("--device=cpu",))
    deadline = time.monotonic() + 60
    suite.run_suite([can, PASSES], tmp_path, "Some GPU", os.environ, deadline=deadline, on_cpu=True)
    assert statuses(tmp_path) == {"can": "passed", "passes": "left out"}
    assert told(tmp_path)["can"]["output"].strip() == "['--device=cuda', '--device=cpu']"


@pytest.fixture
def parts(empty_kit: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Eleven parts of a model, of two bytes and a last one."""
    monkeypatch.setattr(kit, "PART_BYTES", 2)
    (empty_kit / "model").mkdir(parents=True)
    model = empty_kit / "model" / "m.gguf"
    model.write_bytes(b"hello world, and more")
    return kit.split(model)


def test_the_model_is_joined_once_all_parts_are_there(parts: list[Path]) -> None:
    """In the order of their numbers, in whichever they come."""
    assert len(parts) == 11 and kit.bytes_of(parts[:-1]) == 20
    contents = {part: part.read_bytes() for part in parts}
    for part in parts:
        part.unlink()
    for part in reversed(parts):
        assert kit.model() is None
        part.write_bytes(contents[part])
    joined = kit.model()
    assert joined is not None and joined.name == "m.gguf" and joined.read_bytes() == b"hello world, and more"
    assert kit.model() == joined


def test_a_model_whose_parts_were_changed_is_not_used(parts: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    """Until the right part comes; a joined file that another one broke off is made anew."""
    right = parts[3].read_bytes()
    parts[3].write_bytes(b"??")
    assert kit.model() is None and "the parts of m.gguf are not those" in capsys.readouterr().out
    parts[3].write_bytes(right)
    (parts[3].parent / "m.gguf").write_bytes(b"hello")
    joined = kit.model()
    assert joined is not None and joined.read_bytes() == b"hello world, and more"


def test_the_kit_says_whether_it_can_travel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what git does not ignore."""
    monkeypatch.setattr(kit, "ROOT", tmp_path)
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    for name, text in ((".gitignore", "*.txt"), ("ignored.txt", ""), ("some.py", "x" * 100)):
        (tmp_path / name).write_text(text)
    assert kit.bytes_of(kit.travelling()) == 105
    assert kit.room(2**20, 2**20, kit.MOST_BYTES - 2 * 2**20).endswith("room for the wheels and a part (64 MiB)")
    assert kit.room(2 * 2**20, 2**20, kit.MOST_BYTES) == (
        "warning: tree 2.0, wheels 1.0, largest part 64.0 MiB: 3.0 MiB more than the 64 that travel in one call"
    )


def test_the_kit_announces_the_plugins(empty_kit: Path) -> None:
    site = Path(kit.unpack()[-1])
    assert "drafters = spec_sdk_drafters" in (site / "spec_sdk-0.0.0.dist-info" / "entry_points.txt").read_text()


def test_the_steps_files_and_tests_exist() -> None:
    for one in STEPS:
        for part in one.command:
            if part.startswith(("tests/", "benchmarks/")):
                path, _, function = part.partition("::")
                assert (kit.ROOT / path).exists(), f"{one.name}: {part}"
                assert not function or f"\ndef {function}(" in (kit.ROOT / path).read_text(), f"{one.name}: {part}"
            if part.startswith("benchmarks."):
                assert (kit.ROOT / (part.replace(".", "/") + ".py")).exists(), f"{one.name}: {part}"
    assert len({one.name for one in STEPS}) == len(STEPS)


def test_pipelines_run_as_a_gpu_is_used() -> None:
    for one in STEPS:
        if one.needs_model:
            assert {"backend=cuda", "model.dtype=bfloat16"} <= set(one.command), one.name
            typed = " ".join(one.command)
            # of several pipelines each says so
            assert typed.count("sampler=exact") == max(1, typed.count('"') // 2), one.name


def test_the_steps_are_documented() -> None:
    page = (kit.ROOT / "docs" / "gpu_suite.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert rows == [step.name for step in STEPS]
