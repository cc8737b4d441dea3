"""``--help``: what the program is, the commonest options, what there is to choose from."""

from __future__ import annotations

import textwrap

from spec_sdk.config.composing import groups, options_of, pipeline_summaries
from spec_sdk.version import __version__

OPTIONS = (
    ("pipeline=NAME", "which pipeline runs (below); easyspec_tree by default"),
    ("prompt=TEXT", "what to answer; - reads standard input"),
    ("prompt_file=FILE", "a text (one prompt), .jsonl whose lines have 'prompt' or 'turns', or spec_bench_sample"),
    ("prompt_limit=N", "answer only the first N prompts"),
    ("max_new_tokens=N", "stop after N tokens per prompt; 128 by default"),
    ("compare=true", "also run plain decoding on the same prompts, and print the ratio"),
    ("model.target=MODEL", "a directory, a .gguf file or a Hugging Face id; SmolLM2-135M-Instruct by default"),
    ("model.draft=MODEL", "the draft model; 'cut' (the default) takes it out of the target's own layers"),
    ("model.dtype=TYPE", "float32, bfloat16 or float16"),
    ("sampling.temperature=T", "0 (the default) is greedy; also sampling.top_k, top_p, min_p and seed"),
    ("chat=auto", "apply the model's chat template: true, false, or auto (if it has one)"),
    ("ignore_eos=true", "go on after the model's end token"),
    ("output_dir=DIR", "where metrics, config and events go; outputs/<date>/<time>-<pipeline> by default"),
    ("task=plugins", "list every plugin with its package, guarantee and options (json=true: as JSON)"),
    ("task=tune_layers", "find the layers that easyspec should run in parallel, for this draft model and machine"),
    ("task=show_tree", "print the first token trees of a run, what was kept marked, and draw them (SVG)"),
    ("task=needle", "hide hashes and facts in a long text (task.context=N tokens), and count what the pipeline finds"),
    (
        "task=estimate",
        "would ALSpec pay? tokens/s from a table of latencies (task.latencies=h100, n150, PATH or measure)",
    ),
)

FLAGS = (
    ("-m, --multirun", "run every combination of comma-separated values, one directory each, one table at the end"),
    ("--cfg job", "print the config instead of running it"),
    ("--config-dir DIR", "look for YAML in DIR as well (DIR/pipeline/mine.yaml becomes pipeline=mine)"),
    ("--hydra-help", "what else Hydra's command line can do"),
    ("--version", "print the version"),
)

EXAMPLES = """\
  python -m spec_sdk prompt='Why is the sky blue?'
  python -m spec_sdk pipeline=sd_chain compare=true prompt_file=spec_bench_sample
  python -m spec_sdk drafter.width=2 policy.depth=6 sampling.temperature=0.8
  python -m spec_sdk --multirun pipeline=vanilla,sd_chain,easyspec_tree
"""


def help_text() -> str:
    """The whole of ``--help``, third parties' pipelines and plugins included."""
    choices = [(f"{group}=", ", ".join(options_of(group))) for group in groups() if group != "pipeline"]
    return "\n".join(
        [
            f"spec-sdk {__version__}: speculative decoding on three levels - tokens, layers, attention - in one loop.",
            "",
            "usage: python -m spec_sdk [option=value ...] [flags]",
            "",
            "Text goes to stdout; progress and tables to stderr.",
            "",
            "Options",
            _columns(OPTIONS),
            "",
            "Pipelines (pipeline=)",
            _columns(list(pipeline_summaries().items())),
            "",
            "Parts of a pipeline, each to be chosen anew; their options hang below them, as in drafter.width=4",
            _columns(choices),
            "",
            "Flags",
            _columns(FLAGS),
            "",
            "Examples",
            EXAMPLES,
        ]
    )


def _columns(rows: tuple[tuple[str, str], ...] | list[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in rows) + 4
    indent = " " * width
    lines = []
    for name, text in rows:
        lines.append(textwrap.fill(text, 110, initial_indent=f"  {name}".ljust(width), subsequent_indent=indent))
    return "\n".join(lines)
