"""A pipeline: the plugins that a config chose, put together around one target model."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from spec_sdk.bench.pass_costs import MeasuredCosts
from spec_sdk.compiled_constraints import CompiledConstraints, compiled_for
from spec_sdk.config.overrides import parse
from spec_sdk.contracts import (
    AttentionVerifier,
    Backend,
    BlockRunner,
    Drafter,
    Guarantee,
    Policy,
    Predictor,
    Sampler,
    SamplingParams,
    Verifier,
    weakest,
)
from spec_sdk.engine.token_engine import TokenEngine, TokenRequest
from spec_sdk.errors import PluginFault, UserError
from spec_sdk.model.config import EncoderConfig
from spec_sdk.model.executor import Executor
from spec_sdk.model.lipschitz import EstimateOfRun
from spec_sdk.model.model_source import ModelSource
from spec_sdk.model.models import Models
from spec_sdk.model.predictable import check_predictable
from spec_sdk.model.runners.attention_speculative import AttentionSpeculativeRunner
from spec_sdk.model.runners.sequential import SequentialRunner
from spec_sdk.model.runners.speculative_groups import SpeculativeGroupsRunner
from spec_sdk.model.tokenizer import Tokenizer
from spec_sdk.parallel.placement import Placement, placement
from spec_sdk.parallel.spread_session import follow
from spec_sdk.plain_decoding import NeverSpeculate, NoDrafting, PlainDraws
from spec_sdk.ranks import DeviceGroups, Ranks, launched_processes
from spec_sdk.registry import Registry
from spec_sdk.settings import ModelSettings, Settings
from spec_sdk.version import __version__

TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """Loaded models and chosen plugins, ready to answer prompts.

    ``make_drafter`` and ``make_target_runner`` give new ones per engine, ``make_sampler`` one per sampling parameters.
    ``guarantee`` is the weakest of verifier's, sampler's and target runner's under the run's sampling parameters.
    ``slots``: prompts that :attr:`engine` answers at once. ``deterministic``: greedy answers and their logits are plain
    decoding's to the bit. ``takes_forced``: tokens that a constraint leaves no choice about are taken at once.
    """

    name: str
    models: Models
    backend: Backend
    sampling: SamplingParams
    make_sampler: Callable[[SamplingParams], Sampler]
    verifier: Verifier
    policy: Policy
    make_drafter: Callable[[], Drafter]
    make_target_runner: Callable[[], BlockRunner]
    slots: int = 1
    deterministic: bool = False
    takes_forced: bool = True
    _engines: list[TokenEngine] = dataclasses.field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def ranks(self) -> Ranks:
        """The processes that run this pipeline together."""
        return self.backend.ranks

    @property
    def device_groups(self) -> list[int]:
        """Processes of each device group."""
        return self.models.device_groups

    @property
    def guarantee(self) -> Guarantee:
        return self.guarantee_under(self.sampling)

    def guarantee_under(self, sampling: SamplingParams) -> Guarantee:
        """What holds of an answer with these sampling parameters."""
        sampler = self.make_sampler(sampling)
        runner = self.engine.target.runner
        return weakest(self.verifier.guarantee_under(sampling), sampler.guarantee, runner.guarantee)

    @property
    def target_name(self) -> str:
        return self.models.target.name

    @property
    def draft_name(self) -> str | None:
        """The draft model's label; None without one."""
        return self.engine.drafter.draft_name

    @property
    def encoder(self) -> EncoderConfig | None:
        """The target's encoder, if it is an encoder–decoder model."""
        return self.models.target.executor.config.encoder

    @property
    def tokenizer(self) -> Tokenizer:
        return self.models.target.tokenizer

    @property
    def constraints(self) -> CompiledConstraints:
        """Compiles what answers may consist of; pipelines of one target share what was compiled."""
        return compiled_for(self.tokenizer, self.models.target.executor.vocabulary)

    @property
    def dtype(self) -> str:
        return next(name for name, dtype in TORCH_DTYPES.items() if dtype == self.models.dtype)

    @property
    def memory(self) -> Mapping[str, int | None]:
        """Bytes in memory: ``target_weights``, None where the executor does not say, and the target's ``kv_cache``."""
        return {
            "target_weights": self.models.target.executor.weight_bytes,
            "kv_cache": self.engine.target.cache.nbytes,
        }

    @property
    def rounds_rows(self) -> bool:
        """Whether the target rounds rows before it multiplies them with some of its weights: another model by that."""
        return self.models.target.executor.rounds_rows

    @property
    def context(self) -> int:
        """Most tokens, prompt and output together, that the target can hold."""
        return self.models.target.executor.config.max_context

    @property
    def engine(self) -> TokenEngine:
        """The engine of :meth:`stream`."""
        self.prepare()
        return self._engines[0]

    def prepare(self) -> None:
        """Load the models and make the caches that :meth:`stream` needs, if it is not done yet.

        Raises UserError for a draft model or options that do not fit. With several processes all of them prepare the
        same pipelines in the same order.
        """
        if not self._engines:
            self._engines.append(self.new_engine(self.slots))

    def new_engine(self, slots: int = 1) -> TokenEngine:
        """An engine with caches of its own, which answers up to ``slots`` prompts at once.

        With several processes all of them make the same engines in the same order.
        """
        target = self.models.session(self.models.target, self.make_target_runner(), spread=True)
        drafter = self.make_drafter()
        self.policy.prepare(self.costs_of(drafter), drafter.branches)
        return TokenEngine(
            target=target,
            drafter=drafter,
            verifier=self.verifier,
            policy=self.policy,
            make_sampler=self.make_sampler,
            sampling=self.sampling,
            stop_ids=self.tokenizer.stop_ids if self.tokenizer is not None else frozenset(),
            slots=slots,
            clock=self.backend.clock(),
            ops=self.backend.ops,
            takes_forced=self.takes_forced,
        )

    def costs_of(self, drafter: Drafter) -> MeasuredCosts:
        """What passes of the target and of this drafter's model cost on this machine."""
        target, draft = self.models.target.executor, drafter.draft_session
        return MeasuredCosts(
            self.backend, target, draft, drafter.catches_up, drafter.longest_catch_up, drafter.weighs_time
        )

    def vanilla(self) -> Pipeline:
        """Plain decoding with the same target, sampler and backend: the baseline of every comparison. Not with the same
        verifier: what a relaxed or a wrong one does is a part of what is compared.
        """
        return dataclasses.replace(
            self,
            name="vanilla",
            verifier=PlainDraws(None),
            make_drafter=lambda: NoDrafting(None, self.models),
            policy=NeverSpeculate(None),
            make_target_runner=SequentialRunner,
        )

    def stream(self, prompt: Sequence[int], **options: Any) -> Iterator[list[int]]:
        """Answer one prompt; yields the new tokens of every step. Closing the iterator early is allowed.

        ``options`` are those of a :class:`TokenRequest`; ``request_id`` is 0 if not given, so that an answer depends on
        its request alone, whatever was asked before. Raises what :meth:`TokenEngine.add` does.
        """
        return self.engine.stream(TokenRequest(prompt, **{"request_id": 0, **options}))

    def follow(self) -> None:
        """Take part, as one of several processes, in what the leader does with the engines, until it has done all."""
        follow(self.ranks, self.models.spread)


def joined_backend(settings: Settings, registry: Registry, beside: Iterable[Settings] = ()) -> Backend:
    """The backend that ``settings`` name, all processes of a launched run joined.

    ``beside``: those of pipelines that will use the same models. Raises UserError, RankLost.
    """
    make: Any
    make, config = registry.configure("backend", settings.backend)
    backend: Backend = make(config)
    backend.join()
    if any(each.speculates_on_attention for each in (settings, *beside)):
        backend.keep_rows_exact()
    return backend


def build_pipeline(
    settings: Settings,
    registry: Registry,
    backend: Backend | None = None,
    *,
    slots: int = 1,
    given: Mapping[str, ModelSource] | None = None,
    beside: Pipeline | None = None,
) -> Pipeline:
    """Choose, configure and load what ``settings`` name. Raises UserError for whatever does not fit together.

    ``backend``: the run's, if it was made before (:func:`joined_backend`). ``given``: models by reference that are in
    memory already. ``beside``: a pipeline of the same target and backend, whose models are used and not loaded again.
    """

    def choose(kind: str, node: Mapping[str, Any]) -> tuple[Any, Any]:
        return registry.configure(kind, node)

    make_verifier, verifier_config = choose("verifier", settings.verifier)
    make_sampler, sampler_config = choose("sampler", settings.sampler)
    make_drafter, drafter_config = choose("drafter", settings.drafter)
    make_policy, policy_config = choose("policy", settings.policy)
    verifier: Verifier = make_verifier(verifier_config)

    def new_sampler(params: SamplingParams) -> Sampler:
        sampler: Sampler = make_sampler(sampler_config, params)
        return sampler

    verifier.check(settings.sampling)
    for caution in new_sampler(settings.sampling).cautions(TORCH_DTYPES[settings.model.dtype]):
        print(f"warning: {caution}", file=sys.stderr)
    policy: Policy = make_policy(policy_config)
    attention = _attention_level(settings, registry)
    if beside is not None:
        backend = beside.backend
    backend = backend or joined_backend(settings, registry)
    if settings.deterministic and beside is None:
        backend.be_deterministic()
    ranks = backend.ranks
    if launched_processes() > 1 and ranks.size == 1:
        raise UserError(
            f"backend: {launched_processes()} processes were launched, and backend '{backend.name}' uses one; "
            "use backend=accelerate, or launch one"
        )
    check_alike(settings, ranks)
    two = attention is not None and ranks.size > 1
    place = placement(backend.groups, ranks.size, two)
    groups = _device_groups(place, ranks, settings) if two else None
    if beside is not None:
        models = beside.models.drafting_with(settings.model.draft, settings.model.draft_layers, given or {})
    else:
        models = loaded_models(settings.model, backend, place, groups, given)
    if settings.error_bounds and models.target.executor.config.encoder is not None:
        raise UserError("error_bounds: they are estimated for decoders without cross-attention; leave them out")
    if settings.error_bounds and (uncommon := models.target.executor.config.uncommon_blocks) is not None:
        raise UserError(f"error_bounds: they are not estimated for {uncommon}; leave them out")
    if attention is not None:
        attention.check(models.target.executor)
        if models.target.executor.rounds_rows:
            _check_rows(settings)
    if settings.deterministic and models.target.executor.bits_vary is not None:
        raise UserError(
            f"deterministic: the bits of {models.target.name} are not promised: {models.target.executor.bits_vary}"
        )

    def new_drafter() -> Drafter:
        # where the leader drafts alone the others need no draft model
        drafter: Drafter = make_drafter(drafter_config, models) if ranks.is_leader else NoDrafting(None, models)
        every_rank, sessions = ranks.decide(lambda: (drafter.every_rank, len(models.spread)))
        if place.draft is not None and len(place.draft) > 1 and not every_rank:
            raise UserError(
                f"backend.groups.draft: drafter '{settings.drafter.get('name')}' drafts on rank 0 alone; use [0], or "
                "leave it out"
            )
        if every_rank and not ranks.is_leader:
            if place.draft is None or ranks.rank in place.draft:
                drafter = make_drafter(drafter_config, models)
            models.skip_sessions(sessions)
        return drafter

    pipeline = Pipeline(
        name=settings.pipeline.name,
        models=models,
        backend=backend,
        sampling=settings.sampling,
        make_sampler=new_sampler,
        verifier=verifier,
        policy=policy,
        make_drafter=new_drafter,
        make_target_runner=SequentialRunner
        if attention is None
        else lambda: attention.runner(groups, backend, models.target.executor),
        slots=slots,
        deterministic=settings.deterministic,
        takes_forced=settings.forced_tokens,
    )
    pipeline.prepare()
    check_chains(verifier, pipeline.engine.drafter)
    check_wishes(pipeline.engine.drafter, models.target.executor.layers)
    if settings.deterministic and pipeline.guarantee == "relaxed":
        relaxed = (
            f"verifier '{verifier.name}'" if attention is None else f"predictor '{settings.predictor.get('name')}'"
        )
        raise UserError(
            f"deterministic: with {relaxed} an answer is not plain decoding's; use "
            f"{'verifier=multi_step' if attention is None else 'predictor=none'}"
        )
    return pipeline


def _check_rows(settings: Settings) -> None:
    """Say of a target that rounds rows, and whose attention is predicted, what that leads to. Raises UserError for
    derivatives of rounded rows.
    """
    if settings.error_bounds:
        raise UserError("error_bounds: rounded rows have no derivatives; use backend.activations=exact")
    print(
        "warning: rows are rounded to 8 bits, which last bits of attention tip: threshold 0 is not plain decoding "
        "token by token; backend.activations=exact leaves them as they are",
        file=sys.stderr,
    )


def _device_groups(place: Placement, ranks: Ranks, settings: Settings) -> DeviceGroups:
    """The two of a target whose attention is speculated on by several processes. Raises UserError."""
    if ranks.size % 2:
        raise UserError(
            f"predictor: speculation on attention takes two device groups of one size, and {ranks.size} processes "
            "were launched; launch an even number, or use predictor=none"
        )
    groups = ranks.halves(place.first)
    if groups.group.size > 1 and settings.error_bounds:
        # the derivatives that they take do not go through a sum over processes
        raise UserError("error_bounds: they are estimated where a device group is one process; launch two")
    return groups


def loaded_models(
    model: ModelSettings,
    backend: Backend,
    place: Placement | None = None,
    groups: DeviceGroups | None = None,
    given: Mapping[str, ModelSource] | None = None,
) -> Models:
    """The target, and draft models when they are first asked for. Raises UserError."""
    ranks = backend.ranks
    return Models(
        model.target,
        model.draft,
        model.draft_layers,
        load=backend.load,
        ops=backend.ops,
        device=backend.device,
        dtype=TORCH_DTYPES[model.dtype],
        ranks=ranks,
        group=None if groups is None else groups.group,
        context=model.context,
        given=given,
        weights=model.weights,
        kv_cache=model.kv_cache,
        draft_weights=model.draft_weights,
        draft_ranks=None if place is None or place.draft is None else ranks.among(place.draft),
    )


def check_chains(verifier: Verifier, drafter: Drafter) -> None:
    """Raise UserError if the drafter's trees branch where the verifier takes chains."""
    if not (verifier.chains_only and drafter.branches):
        return
    if type(drafter).branches is True:
        advice = "or another drafter: this one drafts trees whatever its options"
    elif hasattr(getattr(getattr(drafter, "growth", None), "config", None), "width"):
        advice = "or make it a chain (drafter.width=1)"
    else:
        advice = "or options with which it drafts chains"
    raise UserError(
        f"verifier: '{verifier.name}' takes chains, and drafter '{drafter.name}' drafts trees; use "
        f"verifier=multi_step, {advice}"
    )


def check_wishes(drafter: Drafter, layers: int) -> None:
    """Raise PluginFault for a drafter that wants of a target of so many ``layers`` what it cannot give."""
    for layer in drafter.taps:
        if not isinstance(layer, int) or not 0 <= layer <= layers:
            raise PluginFault(f"drafter {drafter.name!r}: its taps have layer {layer!r}; the target's are 0 … {layers}")
    if not isinstance(drafter.target_top_k, int) or drafter.target_top_k < 0:
        raise PluginFault(
            f"drafter {drafter.name!r}: target_top_k is a whole number of 0 or more, not {drafter.target_top_k!r}"
        )


def check_alike(settings: Settings, ranks: Ranks) -> None:
    """Raise UserError on a process that was started with other options, or another version, than the leader.

    What a run reads and where it writes is the leader's business alone.
    """
    alone = ("audio", "prompt", "prompt_file", "prompt_limit", "output_dir", "save_prompts", "json")
    options = {key: value for key, value in settings.resolved.items() if key not in alone}
    # as it travels, so that the leader's is like this one
    own = json.loads(json.dumps({**options, "version": __version__}))
    leaders = ranks.decide(lambda: own)
    if own != leaders:
        name, here, there = _difference(own, leaders)
        raise UserError(
            f"process {ranks.rank} of {ranks.size} was started with other options than the leader: {name} is "
            f"{here!r} here and {there!r} there"
        )


def _difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[str, Any, Any]:
    """The first option that differs, by its whole name, and both values; of two plugins, which they are."""
    name = next(key for key in {**one, **other} if one.get(key) != other.get(key))
    here, there = one.get(name), other.get(name)
    if isinstance(here, dict) and isinstance(there, dict) and here.get("name") == there.get("name"):
        inner, here, there = _difference(here, there)
        name = f"{name}.{inner}"
    return name, here, there


@dataclasses.dataclass(frozen=True)
class _AttentionLevel:
    """The plugins that speculate on attention. A predictor serves one request."""

    make_predictor: Callable[[], Predictor]
    verifier: AttentionVerifier
    estimate: EstimateOfRun | None

    def check(self, target: Executor) -> None:
        """Raise UserError if the options name layers that the target does not have, or that cannot be predicted."""
        self.verifier.check(target.layers)
        chosen = [layer for layer in range(target.layers) if self.verifier.speculates(layer)]
        check_predictable(target.config, target.layers, chosen, self.make_predictor().name)

    def runner(self, groups: DeviceGroups | None, backend: Backend, target: Executor) -> BlockRunner:
        """The target's runner: over two device groups, or on one device without any, by the backend if it has one."""
        if groups is not None:
            return SpeculativeGroupsRunner(self.make_predictor, self.verifier, groups, self.estimate)
        # constants of error bounds are estimated by the general one alone
        own = None if self.estimate else backend.attention_runner(target, self.make_predictor, self.verifier)
        return own or AttentionSpeculativeRunner(self.make_predictor, self.verifier, estimate=self.estimate)


def check_options_of_attention(settings: Settings) -> None:
    """Raise UserError for what was asked of speculation on attention where nothing speculates on it.

    A pipeline's YAML may have options of a predictor that was taken out: what nobody typed is passed over.
    """
    for override in () if settings.speculates_on_attention else parse(settings.overrides):
        name = str(override.key_or_group)
        asked = settings.error_bounds if name == "error_bounds" else name.partition(".")[0] == "attention_verifier"
        if asked:
            raise UserError(
                f"{name}: it has no effect with predictor=none, where nothing speculates on attention; choose a "
                "predictor, as in predictor=attention_sink, or leave it out"
            )


def _attention_level(settings: Settings, registry: Registry) -> _AttentionLevel | None:
    """What speculates on attention; None if nothing does."""
    check_options_of_attention(settings)
    if not settings.speculates_on_attention:
        return None
    make_predictor: Any
    make_verifier: Any
    make_predictor, predictor_config = registry.configure("predictor", settings.predictor)
    make_verifier, verifier_config = registry.configure("attention_verifier", settings.attention_verifier)
    verifier: AttentionVerifier = make_verifier(verifier_config)
    estimate = EstimateOfRun() if settings.error_bounds else None
    return _AttentionLevel(lambda: make_predictor(predictor_config), verifier, estimate)
