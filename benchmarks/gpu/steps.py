"""The steps of the GPU suite: what is run, for how long at most, and what it needs besides torch and triton."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

HYDRA = ("hydra", "omegaconf", "pluggy", "structlog", "gguf", "jinja2", "tokenizers", "accelerate")
"""What the application imports, beyond torch."""

ON_KIT_MODEL = ("backend=cuda", "model.dtype=bfloat16", "model.target={model}")
"""Options of a pipeline on the kit's model."""


@dataclass(frozen=True)
class Step:
    """One command, run with the suite's own Python.

    ``command``: arguments after ``python``; ``{results}`` is the directory for JSON and plots, ``{prompts}`` and
    ``{model}`` are the kit's files, or empty where the kit is missing. ``limit_s``: killed after so many seconds.
    ``needs``: modules without which it is left out. ``needs_model``: left out without the kit's model.
    """

    name: str
    command: tuple[str, ...]
    limit_s: int
    needs: Sequence[str] = ()
    needs_model: bool = False


STEPS = (
    Step("ceilings", ("-m", "benchmarks.gpu.ceilings", "--output", "{results}/ceilings.json"), 60),
    Step(
        "kernel_tests",
        ("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/kernels"),
        300,
        needs=("pytest", "pytest_timeout", "transformers", *HYDRA),
    ),
    Step(
        "pipeline_tests",
        ("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/pipelines/test_tiny_pipelines.py"),
        240,
        needs=("pytest", "pytest_timeout", "transformers", *HYDRA),
    ),
    Step(
        "sampling_tests",
        ("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/samplers/test_on_gpu.py"),
        240,
        needs=("pytest", "pytest_timeout", "transformers", *HYDRA),
    ),
    Step(
        "sampling",
        ("benchmarks/sampling.py", "--device=cuda", "--seconds=240", "--output={results}/sampling.json"),
        400,
        needs=("transformers", "pluggy", "structlog", "omegaconf"),
    ),
    Step(
        "tree_verdicts",
        (
            "benchmarks/tree_verdicts.py",
            "--device=cuda",
            "--seconds=150",
            "--output={results}/tree_verdicts.json",
        ),
        300,
        needs=("pluggy", "structlog", "omegaconf"),
    ),
    Step(
        "sampling_tables",
        (
            "benchmarks/sampling_tables.py",
            "--prompts={prompts}",
            "--output={results}/sampling_tables.json",
            *ON_KIT_MODEL,
            "model.draft_layers=smollm2-135m-24",
        ),
        540,
        needs=("transformers", *HYDRA),
        needs_model=True,
    ),
    Step(
        "tree_attention",
        ("benchmarks/tree_attention.py", "--device=cuda", "--output={results}/tree_attention.json"),
        540,
    ),
    Step(
        "layer_parallel",
        ("benchmarks/layer_parallel.py", "--device=cuda", "--output={results}/layer_parallel.json"),
        400,
    ),
    Step(
        "speculative_decode",
        ("-m", "benchmarks.speculative_decode", "--output={results}/speculative_decode.json"),
        240,
        needs=("pluggy",),
    ),
    Step(
        "pipelines",
        (
            "benchmarks/pipelines.py",
            "--prompts={prompts}",
            "--count=6",
            "--new-tokens=64",
            "--output={results}/pipelines.json",
            *ON_KIT_MODEL,
            "model.draft_layers=smollm2-135m-24",
        ),
        300,
        needs=HYDRA,
        needs_model=True,
    ),
    Step(
        "levels",
        (
            "-m",
            "benchmarks.levels",
            "--prompts={prompts}",
            "--count=2",
            "--output={results}/levels.json",
            *ON_KIT_MODEL,
            "model.draft_layers=smollm2-135m-24",
        ),
        120,
        needs=HYDRA,
        needs_model=True,
    ),
    Step(
        "easyspec",
        (
            "benchmarks/easyspec.py",
            "table2",
            "--draft=cut",
            "--prompts={prompts}",
            "--output={results}/easyspec-table2.json",
            *ON_KIT_MODEL,
            "model.draft_layers=smollm2-135m-24",
        ),
        300,
        needs=HYDRA,
        needs_model=True,
    ),
    Step(
        "easyspec_ablation",
        (
            "benchmarks/easyspec.py",
            "ablation",
            "--prompts={prompts}",
            "--count=2",
            "--output={results}/easyspec-ablation.json",
            *ON_KIT_MODEL,
        ),
        540,
        needs=HYDRA,
        needs_model=True,
    ),
    Step(
        "tree_attention_tiles",
        (
            "benchmarks/tree_attention.py",
            "--device=cuda",
            "--tune",
            "--seconds=400",
            "--output={results}/tree_attention_tiles.json",
        ),
        540,
    ),
)
