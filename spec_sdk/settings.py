"""The settings of one run: the composed YAML, typed and checked.

Plugin nodes (``drafter``, ``verifier`` …) stay mappings: the registry checks them against the plugin's own config.
Imports no torch until all values are checked, so that a mistyped value is answered at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spec_sdk.errors import UserError, did_you_mean
from spec_sdk.files import expanded
from spec_sdk.options import merge_options

if TYPE_CHECKING:
    from spec_sdk.contracts import SamplingParams

DTYPES = ("float32", "bfloat16", "float16")
PLUGIN_NODES = ("drafter", "verifier", "sampler", "predictor", "attention_verifier", "policy", "backend", "task")
"""The kinds of plugin, as the top-level keys that choose them (:data:`spec_sdk.contracts.PLUGIN_KINDS`)."""


@dataclass
class PipelineSettings:
    """What a pipeline's YAML says of itself."""

    name: str = ""
    summary: str = ""


@dataclass
class ModelSettings:
    """Model references. ``draft_layers`` is the name of a cut or a list of layers."""

    target: str = ""
    draft: str = "cut"
    draft_layers: Any = "auto"
    dtype: str = "float32"


@dataclass
class SamplingSettings:
    """The YAML side of :class:`spec_sdk.contracts.SamplingParams`."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0


@dataclass
class RunSettings:
    """Options that belong to no group."""

    prompt: str | None = None
    prompt_file: str | None = None
    prompt_limit: int | None = None
    chat: Any = "auto"
    max_new_tokens: int = 128
    ignore_eos: bool = False
    compare: bool = False
    error_bounds: bool = False
    output_dir: str | None = None
    json: bool = False


@dataclass(frozen=True)
class Settings:
    """All that a task needs to know.

    ``chat`` is None for auto. ``output_dir`` is where to write; it is made when there is something to write.
    ``resolved`` is the whole config as plain data, to be kept beside the results.
    """

    pipeline: PipelineSettings
    model: ModelSettings
    sampling: SamplingParams
    drafter: Mapping[str, Any]
    verifier: Mapping[str, Any]
    sampler: Mapping[str, Any]
    predictor: Mapping[str, Any]
    attention_verifier: Mapping[str, Any]
    policy: Mapping[str, Any]
    backend: Mapping[str, Any]
    task: Mapping[str, Any]
    prompt: str | None
    prompt_file: str | None
    prompt_limit: int | None
    chat: bool | None
    max_new_tokens: int
    ignore_eos: bool
    compare: bool
    error_bounds: bool
    output_dir: Path
    json: bool
    resolved: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], default_output_dir: Path) -> Settings:
        """Check the composed and resolved config. Raises UserError for the first thing that is wrong, by its path."""
        refuse_targets(config)
        groups = ("pipeline", "model", "sampling")
        run_keys = [f.name for f in dataclasses.fields(RunSettings)]
        for key in config:
            if key not in (*groups, *PLUGIN_NODES, *run_keys):
                raise UserError(f"{key}: unknown option{did_you_mean(str(key), [*groups, *PLUGIN_NODES, *run_keys])}")
        pipeline = merge_options(PipelineSettings, _group(config, "pipeline"), "pipeline", "the pipeline")
        model = merge_options(ModelSettings, _group(config, "model"), "model", "the model")
        _check_model(model)
        sampling = checked_sampling(_group(config, "sampling"))
        run = checked_run({k: config[k] for k in run_keys if k in config})
        plugins: dict[str, Any] = {kind: _group(config, kind) for kind in PLUGIN_NODES}
        values = dataclasses.asdict(run)
        values["chat"] = None if run.chat == "auto" else run.chat
        values["output_dir"] = default_output_dir if run.output_dir is None else expanded(run.output_dir, "output_dir")
        params = sampling_params(sampling)
        return cls(pipeline=pipeline, model=model, sampling=params, **plugins, **values, resolved=config)


def checked_sampling(values: Mapping[str, Any]) -> SamplingSettings:
    """The options of ``sampling``, typed. Raises UserError for one that is unknown or wrong."""
    sampling: SamplingSettings = merge_options(SamplingSettings, values, "sampling", "sampling")
    _check_sampling(sampling)
    return sampling


def checked_run(values: Mapping[str, Any]) -> RunSettings:
    """The options that belong to no group, typed. Raises UserError for one that is unknown or wrong."""
    run: RunSettings = merge_options(RunSettings, values, "", "spec-sdk")
    _check_run(run)
    return run


def sampling_params(sampling: SamplingSettings) -> SamplingParams:
    """What a request's sampler is given of checked options."""
    from spec_sdk.contracts import SamplingParams

    return SamplingParams(**dataclasses.asdict(sampling))


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
    if not isinstance(node, Mapping):
        what = f"{node!r} is not a group of options" if key in config else "nothing is chosen"
        raise UserError(f"{key}: {what}; name one of the files of conf/{key}/, or set its options as {key}.<option>=…")
    return node


def _require(condition: bool, path: str, value: Any, valid: str) -> None:
    if not condition:
        raise UserError(f"{path}: {value!r} must be {valid}")


def _check_model(model: ModelSettings) -> None:
    _require(bool(model.target.strip()), "model.target", model.target, "a directory, a .gguf file or a hub id")
    _require(bool(model.draft.strip()), "model.draft", model.draft, "'cut', a directory, a .gguf file or a hub id")
    if model.dtype not in DTYPES:
        raise UserError(f"model.dtype: unknown dtype '{model.dtype}'{did_you_mean(model.dtype, DTYPES)}")
    layers = model.draft_layers
    numbers = isinstance(layers, list) and all(isinstance(i, int) and not isinstance(i, bool) for i in layers)
    _require(isinstance(layers, str) or numbers, "model.draft_layers", layers, "the name of a cut or a list of layers")


def _check_sampling(sampling: SamplingSettings) -> None:
    temperature = sampling.temperature
    _require(0 <= temperature < float("inf"), "sampling.temperature", temperature, "0 (greedy) or more")
    _require(sampling.top_k >= 0, "sampling.top_k", sampling.top_k, "0 (off) or more")
    _require(0 < sampling.top_p <= 1, "sampling.top_p", sampling.top_p, "above 0 and at most 1 (off)")
    _require(0 <= sampling.min_p <= 1, "sampling.min_p", sampling.min_p, "between 0 (off) and 1")
    penalty = sampling.repetition_penalty
    _require(0 < penalty < float("inf"), "sampling.repetition_penalty", penalty, "above 0; 1.0 is off")
    _require(0 <= sampling.seed < 2**63, "sampling.seed", sampling.seed, "between 0 and 2^63 - 1")


def _check_run(run: RunSettings) -> None:
    _require(run.max_new_tokens >= 1, "max_new_tokens", run.max_new_tokens, "1 or more")
    limit = run.prompt_limit
    _require(limit is None or limit >= 1, "prompt_limit", limit, "1 or more, or null for all prompts")
    _require(isinstance(run.chat, bool) or run.chat == "auto", "chat", run.chat, "true, false or auto")
    directory = run.output_dir
    _require(directory is None or bool(directory.strip()), "output_dir", directory, "a directory, or null")
    if run.prompt is not None and run.prompt_file is not None:
        raise UserError("prompt_file: prompt is given too; give one of the two")
