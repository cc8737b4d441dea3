"""Which files are begun first, so that no process is left alone with a long one at the end.

A pytest plugin, loaded by ``tests/conftest.py``. ``make test`` gives files to processes in the order of collection
(``--no-loadscope-reorder``; xdist's own order is by the number of tests, which has the long files of few tests last).
"""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest

LONGEST = (
    "tests/docs/test_commands.py",
    "tests/model/test_compiled_decoder.py",
    "tests/pipelines/test_greedy_losslessness.py",
    "tests/kernels/test_compiles.py",
    "tests/ttnn/test_attention_speculation.py",
    "tests/distributed/test_ranks.py",
    "tests/kernels/test_cached_attention.py",
    "tests/losslessness/test_node_budgets.py",
    "tests/golden/test_golden.py",
    "tests/draft_heads/test_drafter.py",
    "tests/native/test_losslessness.py",
    "tests/training/test_several_processes.py",
    "tests/training/test_head_command.py",
    "tests/speech/test_whisper_pipelines.py",
    "tests/cli/test_bench.py",
    "tests/kernels/test_tree_attention.py",
    "tests/engine/test_batches.py",
    "tests/samplers/test_equal_tokens.py",
    "tests/ttnn/test_simulated.py",
    "tests/cli/test_app.py",
    "tests/docs/test_examples.py",
    "tests/pipelines/test_tiny_pipelines.py",
    "tests/losslessness/test_random_trees.py",
    "tests/losslessness/test_drafters.py",
    "tests/drafters/test_layer_skip.py",
    "tests/pipelines/test_reproducibility.py",
    "tests/model/test_runner_conformance.py",
    "tests/losslessness/test_growth_conformance.py",
    "tests/executors/test_pipelines_without_torch.py",
    "tests/kernels/test_visible_blocks.py",
    "tests/cli/test_accuracy.py",
    "tests/bench/peers/test_transformers_worker.py",
    "tests/executors/test_conformance.py",
    "tests/cli/test_example_plugin.py",
    "tests/kernels/test_speculative_attention.py",
    "tests/advice/test_predictions.py",
    "tests/training/test_resuming.py",
    "tests/kernels/test_recovery.py",
    "tests/model/test_smollm2.py",
    "tests/losslessness/test_wrong_rules.py",
    "tests/losslessness/test_chi_square.py",
    "tests/distributed/test_placement.py",
    "tests/losslessness/test_layer_skip.py",
    "tests/speech/test_transcribe_task.py",
    "tests/kernels/test_skipped_blocks.py",
    "tests/model/test_session.py",
    "tests/samplers/test_losslessness.py",
    "tests/cli/test_sweepers.py",
    "tests/docs/test_site.py",
    "tests/speech/test_transcriber.py",
    "tests/distributed/test_lost_process.py",
    "tests/losslessness/test_odd_distributions.py",
    "tests/training/test_command.py",
    "tests/doctor/test_broken_environments.py",
    "tests/doctor/test_triton.py",
    "tests/cli/test_composing.py",
    "tests/cli/test_advise.py",
    "tests/native/test_rounded_rows.py",
    "tests/kernels/test_speculative_compiles.py",
    "tests/samplers/test_compiles.py",
    "tests/doctor/test_task.py",
    "tests/cli/test_hydra_options.py",
    "tests/distributed/test_loading.py",
    "tests/cli/test_bench_peers.py",
)
"""Those that take more than ten seconds of a core, the longest first; no test knows of it."""


def begin_with_the_longest(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In the processes that run them, the files of :data:`LONGEST` first."""
    if hasattr(config, "workerinput"):
        place = {name: number for number, name in enumerate(LONGEST)}
        items.sort(key=lambda item: place.get(item.nodeid.partition("::")[0], len(LONGEST)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests and all the libraries stay until the end: looking again and again for what of them could go
    takes a third of collecting them.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_sessionfinish() -> None:
    """The libraries' own looks at what was left over, at the end of the process, see all of it."""
    gc.unfreeze()
