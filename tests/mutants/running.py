"""Runs tests in a patched copy of the repository, in a process of their own, and proves that the copy was imported."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from tests.mutants.mutant import ROOT, Mutant

COPIED = ("spec_sdk", "plugins", "conf", "benchmarks", "tests", "docs/serving_plugin", "pyproject.toml")
SECONDS = 300
KILLED, SURVIVED, NOT_PROVEN = 1, 0, 90
"""Exit statuses: a test failed; all passed; other code ran than was to run, or no test got as far as failing."""
PROOF = '''
"""A pytest plugin: exits with status {status} unless the code of this copy, the mutant's included, was run."""
import sys
from pathlib import Path

from hypothesis import Phase, settings

# that an example fails is enough: no time is spent on making it smaller
settings.register_profile("mutants", phases=[Phase.explicit, Phase.generate], database=None)
settings.load_profile("mutants")
COPY, MUTATED = Path({copy!r}), Path({mutated!r})
calls = dict(passed=0, failed=0, skipped=0)

def pytest_runtest_logreport(report):
    if report.when == "call":
        calls[report.outcome] += 1

def pytest_sessionfinish(session, exitstatus):
    if exitstatus not in (0, 1):
        return
    files = {{Path(m.__file__) for name, m in list(sys.modules.items())
             if (top := name.split(".")[0]) in ("benchmarks", "conf", "tests") or top.startswith("spec_sdk")
             if getattr(m, "__file__", None)}}
    strangers = sorted(str(file) for file in files if COPY not in file.parents)
    if strangers:
        print(f"imported from elsewhere: {{strangers[:3]}}")
    if MUTATED not in files:
        print(f"{{MUTATED}} was not imported")
    if not calls["passed" if exitstatus == 0 else "failed"]:
        print(f"no test was run: {{calls}}")
        session.exitstatus = {status}
    if strangers or MUTATED not in files:
        session.exitstatus = {status}
'''


def copy_tree(directory: Path) -> None:
    """What the tests need of the repository, with compiled modules: those of unchanged files stay valid."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, directory / name)
        else:
            shutil.copy2(source, directory / name)


def run_tests(
    directory: Path,
    tests: Sequence[str],
    mutated: str,
    limit_s: float = 2 * SECONDS,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> subprocess.CompletedProcess[str]:
    """Run ``tests`` in the copy at ``directory`` up to the first failure; ``mutated`` is the module to be proven."""
    proof = PROOF.format(copy=str(directory), mutated=str(directory / mutated), status=NOT_PROVEN)
    (directory / "proof_of_the_copy.py").write_text(proof)
    rooms = [directory, *sorted(path for path in (directory / "plugins").iterdir() if path.is_dir())]
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "SPEC_SDK_TEST"))}
    inherited |= {
        "PYTHONPATH": os.pathsep.join(map(str, rooms)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }
    options = ["-q", "-x", "-m", "not full", "-p", "proof_of_the_copy", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, f"--timeout={SECONDS}", *tests],
        cwd=directory,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=limit_s,
    )


def run_mutant(mutant: Mutant, directory: Path) -> subprocess.CompletedProcess[str]:
    """Copy the repository to ``directory``, make the mutant of it, and run its killers there."""
    copy_tree(directory)
    file, more = directory / mutant.file, dict[str, str]()
    file.write_text(mutant.patched(file.read_text()))
    if mutant.module != mutant.file:
        # kernels of a mutant are not kept where others are looked for
        more["SPEC_SDK_CACHE"] = str(directory / "cache")
    return run_tests(directory, mutant.killers, mutant.module, environment=more)
