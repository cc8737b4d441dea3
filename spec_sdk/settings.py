"""The settings of one run: the composed YAML, typed and checked.

Plugin nodes (``drafter``, ``verifier`` …) stay mappings: the registry checks them against the plugin's own config.
Imports no torch until all values are checked, so that a mistyped value is answered at once.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spec_sdk.config.option import any_of, option
from spec_sdk.errors import UserError, did_you_mean
from spec_sdk.files import expanded
from spec_sdk.options import merge_options, paths_to
from spec_sdk.sampling_params import SamplingParams

DTYPES = {
    "auto": "what suits the backend: bfloat16 on a GPU that computes in it, else float32",
    "float32": "",
    "bfloat16": "",
    "float16": "",
}
PLUGIN_NODES = (
    "drafter",
    "verifier",
    "sampler",
    "constraint",
    "predictor",
    "attention_verifier",
    "policy",
    "backend",
    "task",
)
"""The kinds of plugin, as the top-level keys that choose them (:data:`spec_sdk.contracts.PLUGIN_KINDS`)."""

PIPELINE_NODES = tuple(kind for kind in PLUGIN_NODES if kind not in ("constraint", "backend", "task"))
"""Those of them that make up a pipeline: what answers may be, where it runs and what is done with it are no part of it.
"""

NAME = re.compile(r"[\w][\w.+-]{0,99}")
"""What a pipeline may be called."""


@dataclass
class PipelineSettings:
    """What a pipeline's YAML says of itself."""

    name: str = ""
    summary: str = ""
    overridden: list[str] = option([], "keys that were given other values than the pipeline has; composing writes it")

    @property
    def in_words(self) -> str:
        """The name, and what was changed."""
        return f"{self.name}, overridden: {', '.join(self.overridden)}" if self.overridden else self.name


@dataclass
class ModelSettings:
    """The target and the draft model."""

    target: str = option(
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        "a directory, a .gguf file, or a Hugging Face hub id (org/name, or org/name:Q8_0 for a GGUF file)",
    )
    draft: str = option(
        "auto",
        "the draft model, named in the same way",
        means={
            "auto": "one that an installed package brings, trained for the target; without one: cut",
            "cut": "a subset of the target's own layers",
        },
    )
    draft_layers: Any = option(
        "auto", "for cut: a named cut or a list of layers", means={"auto": "chosen by measured acceptance"}
    )
    dtype: str = option("auto", "of hidden states, and of weights and KV cache not in few bits", choices=DTYPES)
    weights: str = option(
        "auto",
        "the bits of the target's matrices",
        choices={
            "auto": "what GGUF, GPTQ, AWQ and compressed-tensors store in few bits as it is stored, "
            "where the backend has fast kernels for them; others in model.dtype",
            "dense": "all in model.dtype",
            "int8": "8 bits, and the forms that auto names as they are stored",
            "int4": "4 bits, 8 for embedding and output head, and the forms that auto names as they are stored",
        },
    )
    draft_weights: str = option(
        "auto",
        "the bits of a draft model's matrices; one that is cut out of the target has the target's",
        choices={
            "auto": "as stored, where the backend has fast kernels for them; others as model.weights says",
            "dense": "all in model.dtype",
            "int8": "8 bits, and those of a file of few bits as they are stored",
            "int4": "4 bits, 8 for embedding and output head, and those of a file of few bits as they are stored",
        },
    )
    kv_cache: str = option(
        "auto",
        "K and V of tokens, of the target and of draft models",
        choices={
            "auto": "bfloat16 where backend=cpu's native kernels round rows to 8 bits, else exact",
            "exact": "in model.dtype",
            "bfloat16": "16 bits",
            "int8": "8 bits, with a scale for every head and token",
        },
    )
    context: int | None = option(
        None, "longest text in tokens, prompt and answer", minimum=2, means={None: "as much as the model says it can"}
    )


@dataclass
class RunSettings:
    """Options that belong to no group."""

    prompt: str | None = option(None, "the text to answer; - reads standard input")
    prompt_file: str | None = option(
        None,
        "a text file (one prompt), or .jsonl (.ndjson) whose lines have `prompt`, `messages` (a chat) or `turns` (the "
        "first is used); spec_bench_sample, summaries_sample and copies_sample come with spec-sdk; - reads standard "
        "input",
    )
    prompt_limit: int | None = option(
        None, "answer only the first so many prompts", minimum=1, means={None: "all of them"}
    )
    audio: Any = option(
        None,
        "a sound file to transcribe (WAV, FLAC, …), or a list of them, with a Whisper model as model.target; prompt is "
        "then what was said before; task=transcribe also takes .jsonl files that list them",
    )
    language: str | None = option(None, "of the audio, such as en", means={None: "the model finds it out"})
    translate: bool = option(False, "translate the audio into English")
    chat: Any = option(
        "auto", "apply the model's chat template", choices={True: "", False: "", "auto": "if it has one"}
    )
    max_new_tokens: int = option(128, "per prompt", minimum=1)
    ignore_eos: bool = option(False, "go on after the model's end token")
    deterministic: bool = option(
        False,
        "greedy answers and their logits are plain decoding's to the bit, whatever is drafted, reused or answered "
        "beside them; what cannot promise that is refused",
    )
    forced_tokens: bool = option(
        True,
        "take tokens that a constraint leaves no choice about at once; false: each is drawn, or drafted and verified",
    )
    compare: bool = option(False, "also run plain decoding (vanilla) on the same prompts, and report the ratio")
    error_bounds: bool = option(
        False,
        "speculation on attention: also estimate the bounds on the last hidden state (a norm per layer and pass, and "
        "about a dozen passes once)",
    )
    output_dir: str | None = option(
        None,
        "where metrics, config and events go",
        means={None: "outputs/<date>/<time>-<pipeline>, of another task than generate -<task>"},
    )
    save_prompts: bool = option(
        True,
        "keep the prompts' texts in a run's files; otherwise only their ids (answers are kept all the same)",
    )
    json: bool = option(False, "task=plugins, task=check, task=doctor: print JSON instead of text")
    plugin: str | None = option(
        None, "task=check: the plugin to check, NAME, or KIND/NAME where several kinds have one of that name"
    )


@dataclass
class SweepSettings:
    """What the jobs of a sweep give to a sweeper that optimises, and which of them run."""

    metric: Any = option(
        None,
        "what a sweeper such as Optuna optimises: a number of metrics.json's summary (tokens_per_second, "
        "stage_s.verify), or speedup, where compare=true; a list for several objectives",
        means={None: "nothing"},
    )
    resume: bool = option(
        False, "of an earlier sweep into the same output_dir: run only the jobs that did not end well, or have changed"
    )

    def names(self) -> tuple[str, ...]:
        """The metrics, none or some."""
        metrics = self.metric if isinstance(self.metric, list) else [self.metric]
        return tuple(metrics) if self.metric is not None else ()


RUN_OPTIONS = tuple(f.name for f in dataclasses.fields(RunSettings))
"""Those that belong to no group."""


@dataclass(frozen=True)
class Settings:
    """All that a task needs to know.

    ``audio``: the files to transcribe, None for text. ``chat`` is None for auto. ``output_dir`` is where to write; it
    is made when there is something to write. ``resolved`` is the whole config as plain data, and ``kept`` is what of
    it goes beside the results. ``overrides`` are what it was composed from, as Hydra read them: those of the command
    line, and where YAML was looked for.
    """

    pipeline: PipelineSettings
    model: ModelSettings
    sampling: SamplingParams
    sweep: SweepSettings
    drafter: Mapping[str, Any]
    verifier: Mapping[str, Any]
    sampler: Mapping[str, Any]
    constraint: Mapping[str, Any]
    predictor: Mapping[str, Any]
    attention_verifier: Mapping[str, Any]
    policy: Mapping[str, Any]
    backend: Mapping[str, Any]
    task: Mapping[str, Any]
    prompt: str | None
    prompt_file: str | None
    prompt_limit: int | None
    audio: tuple[str, ...] | None
    language: str | None
    translate: bool
    chat: bool | None
    max_new_tokens: int
    ignore_eos: bool
    compare: bool
    error_bounds: bool
    output_dir: Path
    save_prompts: bool
    json: bool
    plugin: str | None = None
    deterministic: bool = False
    forced_tokens: bool = True
    resolved: Mapping[str, Any] = field(default_factory=dict, repr=False)
    overrides: tuple[str, ...] = ()

    @property
    def speculates_on_attention(self) -> bool:
        """Whether the target's attention is predicted."""
        return self.predictor.get("name") != "none"

    @property
    def kept(self) -> Mapping[str, Any]:
        """The whole config, the prompt left out where prompts are not to be kept."""
        return self.resolved if self.save_prompts else {**self.resolved, "prompt": None}

    @classmethod
    def from_config(cls, config: Mapping[str, Any], default_output_dir: Path) -> Settings:
        """Check the composed and resolved config. Raises UserError for the first thing that is wrong, by its path."""
        refuse_targets(config)
        groups = ("pipeline", "model", "sampling", "sweep")
        for key in config:
            if key not in (*groups, *PLUGIN_NODES, *RUN_OPTIONS):
                meant = paths_to(str(key), config)
                hint = f", did you mean {any_of([repr(path) for path in meant])}?" if meant else ""
                hint = hint or did_you_mean(str(key), [*groups, *PLUGIN_NODES, *RUN_OPTIONS])
                raise UserError(f"{key}: unknown option{hint}")
        pipeline: PipelineSettings = merge_options(
            PipelineSettings, _group(config, "pipeline"), "pipeline", "the pipeline"
        )
        if not NAME.fullmatch(pipeline.name):
            raise UserError(
                f"pipeline.name: {pipeline.name[:80]!r} must be 1 to 100 letters, digits, '_', '-', '+' or '.', the "
                "first of them a letter or digit: results are named after it"
            )
        model = merge_options(ModelSettings, _group(config, "model"), "model", "the model")
        _check_model(model)
        sampling = checked_sampling(_group(config, "sampling"))
        sweep = sweep_of(config)
        run = checked_run({k: config[k] for k in RUN_OPTIONS if k in config})
        plugins: dict[str, Any] = {kind: _group(config, kind) for kind in PLUGIN_NODES}
        if run.plugin is not None and plugins["task"].get("name") != "check":
            raise UserError("plugin: it says which plugin task=check looks at; add task=check, or leave it out")
        values = dataclasses.asdict(run)
        values["audio"] = (run.audio,) if isinstance(run.audio, str) else run.audio and tuple(run.audio)
        values["chat"] = None if run.chat == "auto" else run.chat
        values["output_dir"] = default_output_dir if run.output_dir is None else expanded(run.output_dir, "output_dir")
        return cls(pipeline=pipeline, model=model, sampling=sampling, sweep=sweep, **plugins, **values, resolved=config)


def checked_sampling(values: Mapping[str, Any]) -> SamplingParams:
    """The options of ``sampling``, typed. Raises UserError for one that is unknown or wrong."""
    sampling: SamplingParams = merge_options(SamplingParams, values, "sampling", "sampling")
    return sampling


def sweep_of(config: Mapping[str, Any]) -> SweepSettings:
    """The options ``sweep.*`` of a resolved config, typed. Raises UserError for one that is unknown or wrong."""
    sweep: SweepSettings = merge_options(SweepSettings, _group(config, "sweep"), "sweep", "sweeps")
    names = sweep.names()
    named = sweep.metric is None or (names and all(isinstance(name, str) and name.strip() for name in names))
    _require(bool(named), "sweep.metric", sweep.metric, "a name, a list of names, or null")
    return sweep


def checked_run(values: Mapping[str, Any]) -> RunSettings:
    """The options that belong to no group, typed. Raises UserError for one that is unknown or wrong."""
    run: RunSettings = merge_options(RunSettings, values, "", "spec-sdk")
    _check_run(run)
    return run


def check_common(config: Mapping[str, Any], swept: Collection[str]) -> None:
    """Raise UserError for options of no plugin that are wrong in every job of a sweep: none of the ``swept`` ones is
    beside them, which might make them right.
    """
    if not any(key.partition(".")[0] == "sampling" for key in swept):
        checked_sampling(_group(config, "sampling"))
    if set(RUN_OPTIONS).isdisjoint(swept):
        checked_run({key: config[key] for key in RUN_OPTIONS if key in config})


def refuse_targets(config: Any) -> None:
    """Raise UserError if the key ``_target_`` stands anywhere in ``config``: YAML never names Python objects."""
    for path in _targets(config, ""):
        raise UserError(f"{path}: '_target_' is not allowed; choose a plugin by its name instead (see task=plugins)")


def _targets(node: Any, path: str) -> Iterator[str]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            here = f"{path}.{key}" if path else str(key)
            if key == "_target_":
                yield here
            yield from _targets(value, here)
    elif isinstance(node, list | tuple):
        for i, value in enumerate(node):
            yield from _targets(value, f"{path}[{i}]")


def _group(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    node = config.get(key)
    if key == "pipeline" and key not in config:
        raise UserError("pipeline.name: the pipeline's YAML does not set it; write 'pipeline: {name: …}' there")
    if not isinstance(node, Mapping):
        raise UserError(no_group(key, f"{node!r} is not a group of options" if key in config else "nothing is chosen"))
    return node


def no_group(key: str, what: str) -> str:
    """The line where a group of options should stand and does not; ``what`` is wrong with what does."""
    named = f"name one of the files of conf/{key}/, or " if key in (*PLUGIN_NODES, "model", "pipeline") else ""
    return f"{key}: {what}; {named}set its options as {key}.<option>=…"


def _require(condition: bool, path: str, value: Any, valid: str) -> None:
    if not condition:
        raise UserError(f"{path}: {value!r} must be {valid}")


def _check_model(model: ModelSettings) -> None:
    _require(bool(model.target.strip()), "model.target", model.target, "a directory, a .gguf file or a hub id")
    references = "'auto', 'cut', a directory, a .gguf file or a hub id"
    _require(bool(model.draft.strip()), "model.draft", model.draft, references)
    layers = model.draft_layers
    numbers = isinstance(layers, list) and all(isinstance(i, int) and not isinstance(i, bool) for i in layers)
    _require(isinstance(layers, str) or numbers, "model.draft_layers", layers, "the name of a cut or a list of layers")


def _check_run(run: RunSettings) -> None:
    audio = run.audio if isinstance(run.audio, list) else [run.audio]
    named = run.audio is None or (audio and all(isinstance(name, str) and name.strip() for name in audio))
    _require(bool(named), "audio", run.audio, "a sound file or a list of them")
    for key in ("language", "translate"):
        if getattr(run, key) and run.audio is None:
            raise UserError(f"{key}: it says how audio is transcribed, and there is none; give audio=FILE.wav")
    directory = run.output_dir
    _require(directory is None or bool(directory.strip()), "output_dir", directory, "a directory, or null")
    if run.prompt is not None and run.prompt_file is not None:
        raise UserError("prompt_file: prompt is given too; give one of the two")
    if run.prompt_file is not None and run.audio is not None:
        raise UserError("prompt_file: audio is given too; give one of the two")
