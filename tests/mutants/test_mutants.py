"""The tests of ``make test`` find every wrong variant of the engine that was thought of.

A survivor is a hole in the tests: close it with a test, not by changing the mutant. A mutant whose old text is gone is
to be made anew of the code that took its place.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.conftest import FULL
from tests.mutants.accuracy import ACCURACY
from tests.mutants.adapting import ADAPTING
from tests.mutants.advising import ADVISING
from tests.mutants.amx import AMX
from tests.mutants.api import API
from tests.mutants.assistants import ASSISTANTS
from tests.mutants.bench import BENCH
from tests.mutants.block_heads import BLOCK_HEADS
from tests.mutants.checkpoints import CHECKPOINTS
from tests.mutants.constraining import CONSTRAINING
from tests.mutants.deterministic import DETERMINISTIC
from tests.mutants.deterministic_cuda import DETERMINISTIC_CUDA
from tests.mutants.draft_heads import DRAFT_HEADS
from tests.mutants.experts import EXPERTS
from tests.mutants.exporting import EXPORTING
from tests.mutants.families import FAMILIES
from tests.mutants.gpt_oss import GPT_OSS
from tests.mutants.gpu_graphs import GPU_GRAPHS
from tests.mutants.growth import GROWTH
from tests.mutants.hybrids import HYBRIDS
from tests.mutants.hydra import HYDRA
from tests.mutants.interleaved import INTERLEAVED
from tests.mutants.latents import LATENTS
from tests.mutants.layer_kinds import LAYER_KINDS
from tests.mutants.lookups import LOOKUPS
from tests.mutants.medusa import MEDUSA
from tests.mutants.model import MODEL
from tests.mutants.mtp import MTP
from tests.mutants.mutant import ROOT, Mutant
from tests.mutants.native_attention import NATIVE_ATTENTION
from tests.mutants.native_growing import NATIVE_GROWING
from tests.mutants.native_recurrent import NATIVE_RECURRENT
from tests.mutants.native_sampling import NATIVE_SAMPLING
from tests.mutants.nearly_llamas import NEARLY_LLAMAS
from tests.mutants.papers import PAPERS
from tests.mutants.path_levels import PATH_LEVELS
from tests.mutants.peagle import PEAGLE
from tests.mutants.quantised import QUANTISED
from tests.mutants.ranks import RANKS
from tests.mutants.recurrent import RECURRENT
from tests.mutants.recurrent_checkpoints import RECURRENT_CHECKPOINTS
from tests.mutants.retrieval import RETRIEVAL
from tests.mutants.running import KILLED, SURVIVED, copy_tree, run_mutant, run_tests
from tests.mutants.samplers import SAMPLERS
from tests.mutants.scheduling import SCHEDULING
from tests.mutants.self_drafting import SELF_DRAFTING
from tests.mutants.serving import SERVING
from tests.mutants.speech import SPEECH
from tests.mutants.sweeps import SWEEPS
from tests.mutants.training import TRAINING
from tests.mutants.trees_ahead import TREES_AHEAD
from tests.mutants.ttnn import TTNN
from tests.mutants.ttnn_attention import TTNN_ATTENTION
from tests.mutants.varied import VARIED
from tests.mutants.verifiers import VERIFIERS
from tests.mutants.waiting import WAITING
from tests.mutants.whole_pass import WHOLE_PASS

TREES = "tests/tree/test_refusals.py"
LISTS = (
    VERIFIERS,
    SAMPLERS,
    CONSTRAINING,
    GROWTH,
    NATIVE_GROWING,
    WHOLE_PASS,
    NATIVE_SAMPLING,
    SELF_DRAFTING,
    SCHEDULING,
    MODEL,
    GPU_GRAPHS,
    INTERLEAVED,
    PATH_LEVELS,
    TREES_AHEAD,
    DETERMINISTIC_CUDA,
    LAYER_KINDS,
    EXPERTS,
    GPT_OSS,
    FAMILIES,
    NEARLY_LLAMAS,
    RECURRENT_CHECKPOINTS,
    LATENTS,
    HYBRIDS,
    CHECKPOINTS,
    SPEECH,
    API,
    SERVING,
    QUANTISED,
    WAITING,
    RANKS,
    ADAPTING,
    ADVISING,
    ACCURACY,
    ASSISTANTS,
    RECURRENT,
    RETRIEVAL,
    LOOKUPS,
    TRAINING,
    DRAFT_HEADS,
    MEDUSA,
    HYDRA,
    MTP,
    BLOCK_HEADS,
    BENCH,
    SWEEPS,
    PAPERS,
    PEAGLE,
    TTNN,
    TTNN_ATTENTION,
    EXPORTING,
    DETERMINISTIC,
    AMX,
    NATIVE_ATTENTION,
    NATIVE_RECURRENT,
    VARIED,
)
MUTANTS = {mutant.name: mutant for mutants in LISTS for mutant in mutants}


def uncommented(source: str) -> str:
    """C++ without the comments of single lines."""
    return re.sub(r"//.*", "", source)


@functools.cache
def parsed(source: str) -> str:
    return ast.dump(ast.parse(source))


def test_there_are_forty_of_different_names() -> None:
    assert len(MUTANTS) == sum(map(len, LISTS)) >= 40


@pytest.mark.parametrize("name", MUTANTS)
def test_the_mutant_can_be_made(name: str) -> None:
    """Its old text is there once, what comes of it is other code that compiles, and its killers exist."""
    mutant = MUTANTS[name]
    source = (ROOT / mutant.file).read_text()
    patched = mutant.patched(source)
    if mutant.file.endswith(".py"):
        tree = ast.parse(patched)
        assert ast.dump(tree) != parsed(source)
        compile(tree, mutant.file, "exec")
    else:
        assert uncommented(patched) != uncommented(source)
    for killer in mutant.killers:
        assert (ROOT / killer.split("::")[0]).is_file(), killer
        # they are there to show that something else changed, not what is right
        assert not killer.startswith(("tests/golden", "tests/mutants"))


def test_every_killer_is_in_the_first_tier(request: pytest.FixtureRequest) -> None:
    """``make test`` runs it: a killer of the full tier alone would find nothing there."""
    here = {item.nodeid for item in request.session.items if item.get_closest_marker("full") is None}
    killers = {killer for mutant in MUTANTS.values() for killer in mutant.killers}
    if not FULL:
        # these are run in a process of their own, which takes as long to collect them
        killers = {killer for killer in killers if "_cases.py" not in killer}
    # where but a part of the tests is run the others have to be collected, which takes a while
    elsewhere = killers - beginnings(here)
    assert elsewhere - beginnings(collected(elsewhere)) == set()


def beginnings(tests: Iterable[str]) -> set[str]:
    """All that names one of ``tests``, or what it is a part of."""
    return {test[: match.start()] for test in tests for match in re.finditer(r"$|\[|::", test)}


def collected(killers: Iterable[str]) -> list[str]:
    """The first tier's tests in the files of ``killers``: of a single case it is not known what others there are."""
    files = sorted({killer.partition("::")[0] for killer in killers})
    if not files:
        return []
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "not full", "-p", "no:xdist", *files]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    found = [line for line in told.stdout.splitlines() if "::" in line]
    assert found, told.stdout[-3000:] + told.stderr[-3000:]
    return found


@pytest.mark.full
@pytest.mark.parametrize("name", MUTANTS)
def test_the_mutant_is_killed(name: str, tmp_path: Path) -> None:
    run = run_mutant(MUTANTS[name], tmp_path)
    assert run.returncode == KILLED, f"exit status {run.returncode}\n{run.stdout[-3000:]}{run.stderr[-3000:]}"


@pytest.mark.full
def test_only_a_failing_test_of_the_mutant_s_own_code_kills(tmp_path: Path) -> None:
    """Not a module that cannot be imported, nor a failure of tests that never came to the changed file."""
    unimportable = Mutant("", "spec_sdk/tree.py", "import sys\n", "import no_such_module\n", (TREES,))
    elsewhere = Mutant("", "spec_sdk/cli/sweep.py", "import re\n", "import re\n\nre.ASCII\n", (TREES,))
    for number, mutant in enumerate((unimportable, elsewhere)):
        (tmp_path / str(number)).mkdir()
        run = run_mutant(mutant, tmp_path / str(number))
        assert run.returncode not in (KILLED, SURVIVED), run.stdout[-3000:]


@pytest.mark.full
@pytest.mark.timeout(5400)
def test_without_a_mutant_all_killers_pass(tmp_path: Path) -> None:
    """In the same copy, so that it is the mutant that they fail over."""
    copy_tree(tmp_path)
    killers = dict.fromkeys(killer for mutant in MUTANTS.values() for killer in mutant.killers)
    run = run_tests(tmp_path, [*killers], "spec_sdk/tree.py", limit_s=5400)
    assert run.returncode == SURVIVED, run.stdout[-3000:] + run.stderr[-3000:]
