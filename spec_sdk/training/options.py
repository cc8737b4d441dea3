"""The options of ``task=train_draft``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spec_sdk.config.option import option
from spec_sdk.errors import UserError
from spec_sdk.training.sample_plan import SHIPPED_OPENINGS


@dataclass
class TrainDraftConfig:
    """Options of ``task=train_draft``."""

    method: str = option(
        "model",
        "what is trained",
        choices={
            "model": "a draft model of some of the target's layers, for model.draft",
            "eagle3": "an EAGLE-3 head, for drafter.checkpoint",
        },
    )
    output: str | None = option(None, "the directory of the draft model or head")
    work: str | None = option(
        None, "the directory of data and of the training's state", means={None: "OUTPUT-training"}
    )
    data: str | None = option(None, "the directory of the target's answers", means={None: "WORK/data"})
    only: str | None = option(
        None,
        "one part of the work",
        choices={
            "data": "have the target answer",
            "features": "keep the target's hidden states, for a head",
            "train": "on what is there",
        },
        means={None: "all"},
    )
    tokens: int = option(300_000, "of answers, at least, unless prompts run out", minimum=1)
    prompts: Any = option(None, "a file of prompts or a list of them, text or .jsonl", means={None: "no files"})
    held_out_prompts: Any = option(
        None, "the same, of which the answers only measure, all of them", means={None: "no files"}
    )
    openings: str | None = option(
        SHIPPED_OPENINGS,
        "a YAML file, kind: [beginnings of prompts], which the target goes on from; many_kinds comes with spec-sdk",
        means={None: "none, only task.prompts"},
    )
    temperature: Any = option(
        0.0,
        "of the answers to train on, or a list of which every answer has one by chance, such as [0, 0, 0.8]",
        minimum=0,
        maximum=2,
        means={0.0: "greedy"},
    )
    prompt_temperature: float = option(0.8, "of the prompts that the target writes", minimum=0, maximum=2)
    prompt_tokens: int = option(64, "that the target adds to an opening, at most", minimum=1)
    answer_tokens: int = option(256, "of an answer, at most", minimum=2)
    batch: int = option(40, "answers that are written at a time", minimum=1)
    labels: int = option(16, "of the target's most probable tokens kept for each token", minimum=1)
    held_out: float = option(0.04, "share of the other answers that only measure", minimum=0, below=1)
    shard_tokens: int = option(16_384, "answer tokens in a file of the data: what a killed run loses", minimum=1)
    features: str | None = option(
        None,
        "the directory of the target's hidden states that a head reads",
        means={None: "DATA-features"},
    )
    features_gb: float = option(
        16.0, "most of them on disk, in 10^9 bytes; answers beyond it are left out", above=0, maximum=1e6
    )
    taps: list[int] | None = option(
        None,
        "the target layers that a head reads: 0 the embedding, i what leaves the i-th layer",
        minimum=0,
        means={None: "2, half of them, and the third from the end"},
    )
    unrolled: int = option(4, "drafted tokens of a chain that a head learns, each from its own states", minimum=1)
    step_weight: float = option(0.8, "of a chain's token in the loss, against the one before it", above=0, maximum=1)
    seed: int = option(0, "of prompts, answers and the order of training", minimum=0, maximum=2**31 - 1)
    layers: Any = option(
        None,
        "of the target that the draft model begins with: a number, evenly spread, or a list",
        means={None: "6; a head has one layer, which begins as the target's last"},
    )
    init_from: str | None = option(
        None,
        "a trained draft model or head to go on from: a directory, or a Hugging Face hub id",
        means={None: "the target's layers"},
    )
    mlp_size: int | None = option(None, "units kept of each MLP, those of the largest weights", minimum=1)
    kv_heads: int | None = option(None, "KV heads kept of each layer, with their query heads", minimum=1)
    vocabulary: int | None = option(
        None, "tokens that can be drafted, the most probable ones of the data", minimum=16, means={None: "all"}
    )
    drafted_vocabulary: int | None = option(
        None,
        "of task.vocabulary, how many the draft model in the directory drafts; evaluations measure all of them",
        minimum=16,
        means={None: "all of them"},
    )
    complements: Any = option(
        None,
        "directories of draft models to complement: this one learns from what they get wrong, for drafter=merged",
        means={None: "none"},
    )
    right_weight: float = option(
        0.2, "with complements: of a token that one of them gets right; that of others is 1", minimum=0, maximum=1
    )
    steps: int = option(2000, "of the optimiser", minimum=1)
    batch_tokens: int = option(4096, "of prompts and answers in a step", minimum=1)
    width: int = option(512, "tokens of a packed row; longer samples are cut off", minimum=2)
    learning_rate: float = option(6e-4, "at its highest", above=0, maximum=1)
    warmup: int = option(100, "steps until then", minimum=0)
    weight_decay: float = option(0.01, "of AdamW", minimum=0, maximum=1)
    clip: float = option(1.0, "largest norm of a step's derivatives", above=0, maximum=1e9)
    precision: str = option(
        "auto",
        "of matrix products while training",
        choices={"auto": "bfloat16 where the processor multiplies it", "float32": "", "bfloat16": ""},
    )
    depth: int = option(5, "drafted tokens of the chains that evaluations measure", minimum=1)
    evaluate_every: int = option(250, "steps", minimum=1)
    evaluation_tokens: int = option(8192, "held-out answer tokens that an evaluation reads", minimum=1)
    save_every: int = option(100, "steps after which the training's state is kept", minimum=1)
    stored: str | None = option(
        None,
        "the weights in the directory",
        choices={"int8": "8 bits", "int4": "4 bits", "bfloat16": "", "float32": ""},
        means={None: "int8, and bfloat16 for a head"},
    )
    whole: bool | None = option(
        None,
        "embedding and output head in the directory too, a head's output rows; false: the target lends them",
        means={None: "false, and true for a head, which others then read too"},
    )


_OF_HEADS = ("taps", "features", "features_gb", "unrolled", "step_weight")
_OF_MODELS = ("layers", "drafted_vocabulary", "complements", "right_weight")
_OF_SHAPE = ("layers", "mlp_size", "kv_heads", "taps")


def check_method(config: TrainDraftConfig) -> None:
    """Raise UserError for options of the other way of ``task.method``."""
    others, of = (_OF_HEADS, "eagle3") if config.method == "model" else (_OF_MODELS, "model")
    default = TrainDraftConfig()
    for name in others:
        if getattr(config, name) != getattr(default, name):
            raise UserError(f"task.{name}: is an option of task.method={of}; leave it out with method={config.method}")
    for name in _OF_SHAPE if config.init_from is not None else ():
        if getattr(config, name) is not None:
            raise UserError(f"task.{name}: what task.init_from names has its own; leave it out")
    if config.only == "features" and config.method == "model":
        raise UserError("task.only: a draft model learns from no features; use method=eagle3, or only=train")
    drafted, learned = config.drafted_vocabulary, config.vocabulary
    if drafted is not None and learned is not None and drafted > learned:
        raise UserError(f"task.drafted_vocabulary: {drafted} tokens are more than task.vocabulary has, {learned}")
    if config.method == "eagle3" and config.stored in ("int8", "int4"):
        raise UserError(f"task.stored: heads are stored as bfloat16 or float32, not as {config.stored}")


def temperatures_of(config: TrainDraftConfig) -> list[float]:
    """The one temperature, or those of the list. Raises UserError for a list of none, and for what is no number."""
    given = config.temperature if isinstance(config.temperature, list) else [config.temperature]
    if not given or not all(isinstance(one, int | float) for one in given):
        raise UserError(f"task.temperature: {config.temperature!r} must be a number or a list of them")
    return [float(one) for one in given]


def file_names(files: Any, option: str) -> list[str]:
    """One name or a list of them. Raises UserError, naming ``option``, for anything else."""
    names = [files] if isinstance(files, str) else files or []
    if not isinstance(names, list) or not all(isinstance(name, str) and name.strip() for name in names):
        raise UserError(f"{option}: {files!r} must be a file or a list of files")
    return names
