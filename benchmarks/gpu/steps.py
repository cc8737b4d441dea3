"""The steps of the GPU suite: what each runs, is worth, takes, and needs besides torch and triton."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

ENGINE = ("pluggy", "structlog", "omegaconf")
"""What models and kernels import, beyond torch and triton."""
HYDRA = ("hydra", "omegaconf", "pluggy", "structlog", "gguf", "jinja2", "tokenizers", "accelerate")
"""What the application imports, beyond torch."""
TESTS = ("pytest", "pytest_timeout", "xdist", "transformers", *HYDRA)

ON_KIT_MODEL = ("backend=cuda", "model.dtype=bfloat16", "sampler=exact", "model.target={model}")
"""Options of a pipeline on the kit's model: those that a GPU is used with."""
CUT = "model.draft_layers=smollm2-135m-24"

SHORT_SINK = "predictor.size=32"
"""Many of Spec-Bench's prompts are shorter than 2 x 128 tokens, where the default prediction is trivially exact."""
PIPELINES = ", ".join(
    f'"{name} sampler=exact"'
    for name in (
        "sd_chain",
        "easyspec_tree",
        "prompt_lookup",
        "suffix",
        "specinfer_tree",
        "easyspec_chain",
        "easyspec_paper",
        f"alspec {SHORT_SINK}",
        f"alspec_easyspec_tree {SHORT_SINK}",
    )
)

PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "{workers}")
"""In many processes: nearly all of the tests' time is the compilation of kernel variants, which takes a core each."""
QUICK = ("--quick", "--device=cpu")


@dataclass(frozen=True)
class Step:
    """One command, run with the suite's own Python.

    ``command``: arguments after ``python``. In them ``{results}`` is the directory for JSON and plots, ``{prompts}``
    and ``{model}`` are the kit's files, or empty where the kit is missing, ``{workers}`` is how many processes tests
    take, and ``{seconds}`` how long a benchmark that keeps a limit of its own may begin new cases.

    ``value`` over ``expected_s`` decides the order. ``expected_s``: on one H200, or an estimate. ``least_s``: not begun
    with less time left than this, because nothing useful would come of it. ``limit_s``: killed after so many seconds,
    or when the budget is spent. ``needs``: modules without which it is left out. ``needs_model``: left out without the
    kit's model. ``{results}/<name>``, if a step makes it, is removed before it runs again. ``on_cpu``: further
    arguments that make it a small run without a GPU; None where there is no such run.
    """

    name: str
    command: tuple[str, ...]
    value: float
    expected_s: int
    least_s: int
    limit_s: int
    needs: Sequence[str] = ()
    needs_model: bool = False
    on_cpu: tuple[str, ...] | None = None


def ordered(steps: Iterable[Step]) -> list[Step]:
    """Most value per second first."""
    return sorted(steps, key=lambda step: -step.value / step.expected_s)


def _headline(
    name: str, options: Sequence[str], value: float, expected_s: float, least_s: float, limit_s: float
) -> Step:
    """A step of benchmarks.gpu.headline, on one shape."""
    return Step(
        name,
        ("-m", "benchmarks.gpu.headline", *options, "--seconds={seconds}", f"--output={{results}}/{name}.json"),
        value=value,
        expected_s=expected_s,
        least_s=least_s,
        limit_s=limit_s,
        needs=ENGINE,
        on_cpu=("--device=cpu", "--shape=tiny", "--tokens=8"),
    )


def _bit_equal(
    name: str, part: str, count: str, pipelines: Sequence[str], value: float, last: Sequence[str] = ()
) -> Step:
    """A step of benchmarks.bit_equal, on ``count`` prompts."""
    return Step(
        name,
        (
            "-m",
            "benchmarks.bit_equal",
            part,
            "--prompts={prompts}",
            f"--count={count}",
            "--new-tokens=64",
            "--pipelines",
            *pipelines,
            f"--output={{results}}/{name}.json",
            *ON_KIT_MODEL,
            "model.weights=dense",
            *last,
        ),
        value=value,
        expected_s=60,
        least_s=40,
        limit_s=200,
        needs=HYDRA,
        needs_model=True,
    )


STEPS = ordered(
    (
        Step(
            "kernel_smoke",
            (
                *PYTEST,
                "tests/kernels/test_gpu.py::test_half_precision",
                "tests/kernels/test_gpu.py::test_speculative_attention_in_a_graph_says_the_same_every_time",
                "tests/kernels/test_tree_attention.py::test_growing_tree_in_creation_order",
                "tests/kernels/test_cached_attention.py::test_every_request_has_its_own",
                "tests/kernels/test_speculative_attention.py::test_trees_in_one_piece_and_in_two",
                "tests/kernels/test_fused_on_gpu.py",
                "tests/kernels/test_fused_block.py",
                "tests/kernels/test_few_rows.py",
                "tests/kernels/test_interleaved.py",
                "tests/kernels/test_visible_blocks.py::test_a_list_has_the_blocks_that_a_row_sees",
                "tests/kernels/test_recovery.py::test_what_was_missed_is_redone_and_nothing_else",
                "tests/samplers/test_verdict_tables.py::test_a_captured_step_has_its_verdict",
                "tests/kernels/test_kept_tokens.py::test_rows_share_out_samplings",
                "tests/kernels/test_row_drawing.py::test_every_number_gives_a_token_that_may_come",
                "tests/samplers/test_on_gpu.py::test_nothing_waits_for_the_host_and_no_distribution_is_written",
            ),
            value=250,
            expected_s=30,
            least_s=20,
            limit_s=150,
            needs=TESTS,
            on_cpu=(),
        ),
        Step(
            "same_bits",
            (
                *PYTEST,
                "tests/kernels/test_deterministic_cuda.py::test_on_this_gpu",
                "tests/kernels/test_fixed_tiles.py",
                "tests/kernels/test_aligned_attention.py",
            ),
            value=70,
            expected_s=40,
            least_s=30,
            limit_s=200,
            needs=TESTS,
        ),
        _bit_equal("bit_equal", "proof", "8", ("suffix", "easyspec_paper"), value=40, last=(CUT,)),
        _bit_equal("bit_equal_cost", "cost", "3", ("suffix",), value=20),
        Step(
            "ceilings",
            ("-m", "benchmarks.gpu.ceilings", "--output", "{results}/ceilings.json"),
            value=30,
            expected_s=5,
            least_s=5,
            limit_s=60,
        ),
        Step(
            "matrix_vector",
            ("-m", "benchmarks.gpu.matrix_vector", "--seconds={seconds}", "--output={results}/matrix_vector.json"),
            value=30,
            expected_s=23,
            least_s=20,
            limit_s=90,
            needs=ENGINE,
        ),
        Step(
            "few_rows",
            ("-m", "benchmarks.gpu.few_rows", "--seconds={seconds}", "--output={results}/few_rows.json"),
            value=30,
            expected_s=95,
            least_s=35,
            limit_s=120,
            needs=ENGINE,
        ),
        Step(
            "in_bits",
            ("-m", "benchmarks.gpu.in_bits", "--seconds={seconds}", "--output={results}/in_bits.json"),
            value=160,
            expected_s=80,
            least_s=35,
            limit_s=120,
            needs=ENGINE,
        ),
        Step(
            "few_rows_passes",
            ("-m", "benchmarks.gpu.few_rows_passes", "--seconds={seconds}", "--output={results}/few_rows_passes.json"),
            value=80,
            expected_s=40,
            least_s=25,
            limit_s=120,
            needs=ENGINE,
        ),
        Step(
            "kept_tokens",
            ("-m", "benchmarks.gpu.kept_tokens", "--seconds={seconds}", "--output={results}/kept_tokens.json"),
            value=45,
            expected_s=15,
            least_s=15,
            limit_s=90,
            needs=ENGINE,
            on_cpu=QUICK,
        ),
        _headline("headline", (), value=280, expected_s=89, least_s=45, limit_s=240),
        _headline("headline_4_bits", ("--bits=4",), value=185, expected_s=60, least_s=35, limit_s=150),
        _headline("headline_1b", ("--shape=1b",), value=260, expected_s=78, least_s=40, limit_s=150),
        Step(
            "graph_steps",
            ("-m", "benchmarks.gpu.graph_steps", "--seconds={seconds}", "--output={results}/graph_steps.json"),
            value=90,
            expected_s=30,
            least_s=20,
            limit_s=220,
            needs=ENGINE,
            on_cpu=("--device=cpu", "--shape=tiny", "--prefix=40", "--rounds=1"),
        ),
        Step(
            "speedups",
            ("-m", "benchmarks.gpu.speedups", "--seconds={seconds}", "--output={results}/speedups.json"),
            value=150,
            expected_s=60,
            least_s=45,
            limit_s=150,
            needs=HYDRA,
            on_cpu=("--device=cpu", "--target=tiny", "--draft=tiny", "--tokens=24", "--rounds=1", "--rates", "0.8"),
        ),
        Step(
            "pipeline_tests",
            (*PYTEST, "tests/pipelines/test_tiny_pipelines.py", "tests/kernels/test_cuda_graphs.py"),
            value=60,
            expected_s=65,
            least_s=45,
            limit_s=240,
            needs=TESTS,
        ),
        Step(
            "kernel_tests",
            (
                *PYTEST,
                "tests/kernels",
                # these compile for other GPUs than the one that is here
                "--ignore=tests/kernels/test_compiles.py",
                "--ignore=tests/kernels/test_speculative_compiles.py",
                "--ignore=tests/kernels/test_deterministic_compiles.py",
            ),
            value=160,
            expected_s=140,
            least_s=100,
            limit_s=300,
            needs=TESTS,
        ),
        Step(
            "sampling_tests",
            (*PYTEST, "tests/samplers/test_on_gpu.py", "tests/samplers/test_verdict_tables.py"),
            value=60,
            expected_s=30,
            least_s=25,
            limit_s=240,
            needs=TESTS,
        ),
        Step(
            "speculative_decode",
            ("-m", "benchmarks.speculative_decode", "--output={results}/speculative_decode.json"),
            value=42,
            expected_s=45,
            least_s=40,
            limit_s=240,
            needs=("pluggy",),
            on_cpu=QUICK,
        ),
        Step(
            "pipelines",
            (
                "-m",
                "spec_sdk",
                "task=bench",
                f"task.pipelines=[{PIPELINES}]",
                "prompt_file={prompts}",
                "prompt_limit=4",
                "max_new_tokens=64",
                "output_dir={results}/pipelines",
                # plain decoding takes part, and it is greedy: no sampler is for all
                *(option for option in ON_KIT_MODEL if option != "sampler=exact"),
            ),
            value=54,
            expected_s=40,
            least_s=35,
            limit_s=300,
            needs=HYDRA,
            needs_model=True,
        ),
        Step(
            "graphs",
            (
                "-m",
                "benchmarks.compiled",
                "--prompts={prompts}",
                "--count=2",
                "--pipelines=vanilla,sd_chain,easyspec_paper",
                "--seconds=2",
                "--output={results}/graphs.json",
                *ON_KIT_MODEL,
                CUT,
            ),
            value=55,
            expected_s=60,
            least_s=40,
            limit_s=240,
            needs=HYDRA,
            needs_model=True,
        ),
        Step(
            "sampling",
            ("-m", "benchmarks.sampling", "--device=cuda", "--seconds={seconds}", "--output={results}/sampling.json"),
            value=60,
            expected_s=120,
            least_s=30,
            limit_s=300,
            needs=("transformers", *ENGINE),
            on_cpu=QUICK,
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
                CUT,
            ),
            value=32,
            expected_s=120,
            least_s=90,
            limit_s=240,
            needs=HYDRA,
            needs_model=True,
        ),
        Step(
            "tree_verdicts",
            (
                "-m",
                "benchmarks.tree_verdicts",
                "--device=cuda",
                "--seconds={seconds}",
                "--output={results}/tree_verdicts.json",
            ),
            value=35,
            expected_s=100,
            least_s=30,
            limit_s=240,
            needs=ENGINE,
            on_cpu=QUICK,
        ),
        Step(
            "layer_parallel",
            (
                "-m",
                "benchmarks.layer_parallel",
                "--device=cuda",
                "--seconds={seconds}",
                "--output={results}/layer_parallel.json",
            ),
            value=36,
            expected_s=90,
            least_s=40,
            limit_s=300,
            on_cpu=QUICK,
        ),
        Step(
            "tree_attention",
            (
                "-m",
                "benchmarks.tree_attention",
                "--device=cuda",
                "--seconds={seconds}",
                "--output={results}/tree_attention.json",
            ),
            value=120,
            expected_s=80,
            least_s=50,
            limit_s=150,
            on_cpu=QUICK,
        ),
        Step(
            "sampling_tables",
            (
                "-m",
                "benchmarks.sampling_tables",
                "--prompts={prompts}",
                "--output={results}/sampling_tables.json",
                *ON_KIT_MODEL,
                CUT,
            ),
            value=36,
            expected_s=240,
            least_s=200,
            limit_s=500,
            needs=("transformers", *HYDRA),
            needs_model=True,
        ),
        Step(
            "easyspec",
            (
                "-m",
                "benchmarks.easyspec",
                "table2",
                "--draft=cut",
                "--prompts={prompts}",
                "--count=4",
                "--output={results}/easyspec-table2.json",
                *ON_KIT_MODEL,
                CUT,
            ),
            value=20,
            expected_s=180,
            least_s=150,
            limit_s=300,
            needs=HYDRA,
            needs_model=True,
        ),
        Step(
            "easyspec_ablation",
            (
                "-m",
                "benchmarks.easyspec",
                "ablation",
                "--prompts={prompts}",
                "--count=1",
                "--output={results}/easyspec-ablation.json",
                *ON_KIT_MODEL,
            ),
            value=20,
            expected_s=350,
            least_s=300,
            limit_s=520,
            needs=HYDRA,
            needs_model=True,
        ),
        Step(
            "tree_attention_tiles",
            (
                "-m",
                "benchmarks.tree_attention",
                "--device=cuda",
                "--tune",
                "--seconds={seconds}",
                "--output={results}/tree_attention_tiles.json",
            ),
            value=40,
            expected_s=83,
            least_s=45,
            limit_s=100,
        ),
    )
)
