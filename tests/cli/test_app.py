"""The program as it is started: help, version, exit statuses, and how quickly it answers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import spec_sdk
from tests.cli.conftest import Result

PYTHON = [sys.executable, "-m", "spec_sdk"]
FAKE = """
import sys
from tests.cli import fakes
fakes.install(pause={pause})
from spec_sdk.app import main
sys.exit(main())
"""


def start(*arguments: str, pause: float) -> subprocess.Popen[str]:
    """The program in a process of its own, with the fake pipeline."""
    root = Path(spec_sdk.__file__).parent.parent
    return subprocess.Popen(
        [sys.executable, "-c", FAKE.format(pause=pause), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
    )


def test_help_says_what_there_is(cli: Callable[..., Result]) -> None:
    result = cli("--help")
    assert result.status == 0
    for word in ("usage: python -m spec_sdk", "easyspec_tree", "prompt_lookup", "--multirun", "compare=", "verifier="):
        assert word in result.out
    assert max(map(len, result.out.splitlines())) <= 80
    assert result.err == ""


def test_a_directory_that_is_gone_is_one_line(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f"import os, runpy; os.rmdir({str(gone)!r}); runpy.run_module('spec_sdk', run_name='__main__')"
    root = str(Path(spec_sdk.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", script, "prompt=a"],
        cwd=gone,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (
        2,
        "error: the current directory is not there any more; change to one that is\n",
    )


def test_version(cli: Callable[..., Result]) -> None:
    assert cli("--version") == Result(0, f"spec-sdk {spec_sdk.__version__}\n", "")


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--cfg", "job"], ["pipeline=nosuch"], ["sampling.top_p=2"], ["max_new_token=1"], ["--nosuch"]],
)
def test_answers_that_need_no_model_do_not_import_torch(arguments: list[str]) -> None:
    code = "import sys; from spec_sdk.app import main; s = main(); sys.exit(99 if 'torch' in sys.modules else s)"
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert done.returncode == (0 if arguments[0] in ("--help", "--cfg") else 2)
    assert (done.returncode == 2) == done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == (done.returncode == 2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["drafter=none"], "pipeline suffix, overridden: drafter"), (["task=plugins"], "task plugins"), (["-m"], "sweep")],
)
def test_something_is_said_before_torch_is_imported(arguments: list[str], said: str) -> None:
    """Which takes seconds. It goes to stderr, whether or not that is a terminal: stdout stays as it is."""
    code = """
import sys
class Said(Exception): pass
class Told:
    def write(self, text):
        assert 'torch' not in sys.modules
        raise Said(text)
    flush = isatty = lambda self: None
sys.stderr = Told()
from spec_sdk.app import _run
try:
    _run(sys.argv[1:])
except Said as text:
    print(text, end="")
"""
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert done.stdout == f"spec-sdk {spec_sdk.__version__}: {said}", done.stderr


def test_cfg_prints_the_config(cli: Callable[..., Result]) -> None:
    result = cli("--cfg", "job", "pipeline=vanilla", "prompt=it's ${x}, is it?")
    assert result.status == 0
    shown = yaml.safe_load(result.out)
    assert shown["drafter"] == {"name": "none"}
    assert "hydra" not in shown
    assert cli("--cfg", "job", "--package", "model").out.startswith("target:")
    assert cli("--cfg", "job", "--package", "modle").error == "--package: there is no 'modle' in the config"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nosuch"], "unrecognized arguments: --nosuch; see --help"),
        (["--cfg", "everything"], "argument --cfg/-c: invalid choice: 'everything'"),
        (["--experimental-rerun", "x.pickle"], "--experimental-rerun reads a pickle"),
        (["--shell-completion"], "--shell-completion: say one of install=bash"),
        (["--config-name", "x"], "--config-path and --config-name are not offered"),
    ],
)
def test_flags_are_refused_in_one_line(cli: Callable[..., Result], arguments: list[str], message: str) -> None:
    result = cli(*arguments)
    assert result.status == 2
    assert result.error.startswith(message)
    assert result.out == ""


def test_hydras_own_help_is_there() -> None:
    done = subprocess.run([*PYTHON, "--hydra-help"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Hydra" in done.stdout


@pytest.mark.parametrize(
    ("sent", "status", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_ctrl_c_and_sigterm_keep_text_and_metrics(
    own_directory: Path, sent: signal.Signals, status: int, word: str
) -> None:
    process = start("output_dir=out", "max_new_tokens=300", pause=0.05)
    assert process.stdout is not None and process.stderr is not None
    began = process.stdout.read(12)
    process.send_signal(sent)
    out, err = process.communicate(timeout=60)
    assert process.returncode == status
    assert "Traceback" not in err
    assert err.rstrip().endswith(word)
    metrics = json.loads((own_directory / "out" / "metrics.json").read_text())
    [record] = metrics["prompts"]
    assert record["finish_reason"] == "interrupted"
    assert 12 <= record["new_tokens"] < 300
    assert began + out == record["text"] + "\n"
    events = [json.loads(line) for line in (own_directory / "out" / "events.jsonl").read_text().splitlines()]
    assert events[-1]["event"] == "request_end"
    assert sorted(p.name for p in (own_directory / "out").iterdir()) == ["config.yaml", "events.jsonl", "metrics.json"]


@pytest.mark.parametrize(("sent", "status", "word"), [("SIGINT", 130, "interrupted"), ("SIGTERM", 143, "terminated")])
def test_a_signal_that_an_import_would_lose_ends_the_command(sent: str, status: int, word: str) -> None:
    """Before a run has anything to keep; afterwards it is an exception, as above."""
    code = f"""
import os, signal, sys
import spec_sdk.app, spec_sdk.__main__
from spec_sdk.cli.jobs import hear_signals
def losing():
    try:
        os.kill(os.getpid(), signal.{sent})
    except BaseException as error:
        return type(error).__name__
def main():
    if 'late' in sys.argv:
        hear_signals()
    print('lost', losing(), flush=True)
    return 0
spec_sdk.app.main = main
sys.exit(spec_sdk.__main__.main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", f"{word}\n")
    late = subprocess.run([sys.executable, "-c", code, "late"], capture_output=True, text=True)
    raised = {"SIGINT": "KeyboardInterrupt", "SIGTERM": "Terminated"}[sent]
    assert (late.returncode, late.stdout, late.stderr) == (0, f"lost {raised}\n", "")


def test_ctrl_c_ends_a_sweep_and_keeps_its_table(own_directory: Path) -> None:
    arguments = ["--multirun", "pipeline=vanilla,sd_chain", "output_dir=out", "max_new_tokens=300"]
    process = start(*arguments, pause=0.05)
    assert process.stdout is not None
    process.stdout.read(6)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    [job] = json.loads((own_directory / "out" / "summary.json").read_text())["jobs"]
    assert (job["job"], job["status"], job["error"]) == ("pipeline=vanilla", 130, "interrupted")
    assert job["summary"]["new_tokens"] >= 6


def test_a_closed_stdout_is_no_crash(own_directory: Path) -> None:
    process = start("output_dir=out", "max_new_tokens=300", pause=0.02)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(6)
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 141
    assert "Traceback" not in err
    deadline = time.monotonic() + 60
    while not (own_directory / "out" / "metrics.json").exists():
        assert time.monotonic() < deadline
    assert json.loads((own_directory / "out" / "metrics.json").read_text())["prompts"][0]["new_tokens"] < 300


@pytest.mark.parametrize(
    ("arguments", "closed", "status"),
    [("--version", ">&-", 0), ("max_new_tokens=abc", "2>&-", 2), ("--version", "<&- >&- 2>&-", 0)],
)
def test_streams_that_were_never_open(arguments: str, closed: str, status: int) -> None:
    """What would be written there goes nowhere: no traceback, and nothing of stderr on stdout."""
    command = f"exec {sys.executable} -m spec_sdk {arguments} {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")


@pytest.mark.parametrize(
    ("task", "option"),
    [
        ("watch", "compare=true"),
        ("advise", "compare=true"),
        ("estimate", "constraint=json_schema"),
        ("estimate", "prompt=hello"),
        ("cost_curve", "prompt_file=-"),
        ("needle", "constraint=json_schema"),
        ("train_draft", "error_bounds=true"),
    ],
)
def test_an_option_that_the_task_would_pass_over_is_refused(cli: Callable[..., Result], task: str, option: str) -> None:
    name = option.partition("=")[0]
    asked = [] if name.startswith("prompt") else ["prompt=hi"]
    result = cli(f"task={task}", option, *asked, "output_dir=out")
    assert result.status == 2 and f"{name}: task={task} does nothing with it; leave it out" in result.err
    assert not Path("out").exists()
