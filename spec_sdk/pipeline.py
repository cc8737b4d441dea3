"""A pipeline: the plugins that a config chose, put together around one target model."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from spec_sdk.contracts import (
    AttentionVerifier,
    Backend,
    Budget,
    Drafter,
    Guarantee,
    Policy,
    Predictor,
    Request,
    Sampler,
    SamplingParams,
    Verifier,
    weakest,
)
from spec_sdk.errors import UserError
from spec_sdk.model.lipschitz import EstimateOfRun
from spec_sdk.model.models import Models
from spec_sdk.model.runners.attention_speculative import AttentionSpeculativeRunner
from spec_sdk.model.runners.base import BlockRunner
from spec_sdk.model.runners.sequential import SequentialRunner
from spec_sdk.model.runners.speculative_groups import SpeculativeGroupsRunner
from spec_sdk.model.session import Session
from spec_sdk.model.tokenizer import Tokenizer
from spec_sdk.ranks import DeviceGroups, Ranks, launched_processes
from spec_sdk.scheduler import Emit, Scheduler
from spec_sdk.tree import TokenTree

if TYPE_CHECKING:
    from spec_sdk.registry import Registry
    from spec_sdk.settings import Settings

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SEED_STRIDE = 1_000_003
"""Distance between the seeds of successive requests, so that prompts of one run draw different numbers."""


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """Loaded models and chosen plugins, ready to answer prompts.

    ``make_drafter`` and ``make_target_runner`` give new ones per request, ``make_policy`` a policy, which may share
    with those of earlier requests what it learned; verifier and sampler serve all. ``guarantee`` is the weakest of
    verifier's, sampler's and target runner's under these sampling parameters.
    """

    name: str
    models: Models
    backend: Backend
    sampler: Sampler
    verifier: Verifier
    make_drafter: Callable[[], Drafter]
    make_policy: Callable[[], Policy]
    make_target_runner: Callable[[], BlockRunner]
    draft_name: str | None

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
        runner = self.make_target_runner()
        return weakest(self.verifier.guarantee_under(self.sampling), self.sampler.guarantee, runner.guarantee)

    @property
    def sampling(self) -> SamplingParams:
        return self.sampler.params

    @property
    def target_name(self) -> str:
        return self.models.target.name

    @property
    def tokenizer(self) -> Tokenizer:
        return self.models.target.tokenizer

    @property
    def dtype(self) -> str:
        return next(name for name, dtype in DTYPES.items() if dtype == self.models.dtype)

    @property
    def context(self) -> int:
        """Most tokens, prompt and output together, that the target can hold."""
        return self.models.target.decoder.config.max_context

    def vanilla(self) -> Pipeline:
        """Plain decoding with the same target, sampler and backend: the baseline of every comparison."""
        return dataclasses.replace(
            self,
            name="vanilla",
            make_drafter=lambda: NoDrafting(None, self.models),
            make_policy=lambda: NeverSpeculate(None),
            make_target_runner=SequentialRunner,
            draft_name=None,
        )

    def stream(
        self,
        prompt: Sequence[int],
        *,
        request_id: int = 0,
        max_new_tokens: int,
        ignore_eos: bool = False,
        emit: Emit = lambda event: None,
        session: Session | None = None,
    ) -> Iterator[list[int]]:
        """Answer one prompt; yields the new tokens of every cycle. Closing the iterator early is allowed.

        ``session``: the target's, to be used in place of a new one; it gets a new runner.
        Raises UserError for an empty prompt, or one that leaves no room in the context.
        """
        if not prompt:
            raise UserError("prompt: it is empty")
        if len(prompt) >= self.context:
            raise UserError(f"prompt: {len(prompt)} tokens do not fit {self.target_name}'s context of {self.context}")
        target = session or self.models.session(self.models.target)
        target.runner = self.make_target_runner()
        request = Request(
            tokens=list(prompt),
            prompt_length=len(prompt),
            max_new_tokens=max_new_tokens,
            sampler=self.sampler,
            rng=torch.Generator().manual_seed(self.sampling.seed + SEED_STRIDE * request_id),
            stop_ids=frozenset() if ignore_eos else self.tokenizer.stop_ids,
            target=target,
        )
        target.cache.reserve(min(len(prompt) + max_new_tokens, self.context))
        return Scheduler(
            target, self.make_drafter(), self.verifier, self.make_policy(), self.backend.synchronize, self.ranks
        ).run(request, emit, request_id)


class NoDrafting(Drafter):
    """The drafter of a vanilla baseline."""

    name = "none"

    def propose(self, request: Request, budget: Budget) -> TokenTree:
        return TokenTree.root_only(request.pending_token)


class NeverSpeculate(Policy):
    """The policy of a vanilla baseline."""

    name = "never"

    def budget(self, request: Request) -> Budget:
        return Budget(0)


def build_pipeline(settings: Settings, registry: Registry) -> Pipeline:
    """Choose, configure and load what ``settings`` name. Raises UserError for whatever does not fit together."""

    def choose(kind: str, node: Mapping[str, Any]) -> tuple[Any, Any]:
        return registry.configure(kind, node)

    make_verifier, verifier_config = choose("verifier", settings.verifier)
    make_sampler, sampler_config = choose("sampler", settings.sampler)
    make_drafter, drafter_config = choose("drafter", settings.drafter)
    make_policy, policy_config = choose("policy", settings.policy)
    make_backend, backend_config = choose("backend", settings.backend)
    verifier: Verifier = make_verifier(verifier_config)
    sampler: Sampler = make_sampler(sampler_config, settings.sampling)
    verifier.guarantee_under(settings.sampling)
    for caution in sampler.cautions(DTYPES[settings.model.dtype]):
        print(f"warning: {caution}", file=sys.stderr)
    policy: Policy = make_policy(policy_config)
    attention = _attention_level(settings, registry)
    backend: Backend = make_backend(backend_config)
    ranks = backend.ranks
    if launched_processes() > 1 and ranks.size == 1:
        raise UserError(
            f"backend: {launched_processes()} processes were launched, and backend '{backend.name}' uses one; "
            "use backend=accelerate, or launch one"
        )
    groups = None
    if attention is not None and ranks.size > 1:
        if ranks.size % 2:
            raise UserError(
                f"predictor: speculation on attention takes two device groups of one size, and {ranks.size} processes "
                "were launched; launch an even number, or use predictor=none"
            )
        groups = ranks.halves()
    models = Models(
        settings.model.target,
        settings.model.draft,
        settings.model.draft_layers,
        backend.ops,
        backend.device,
        DTYPES[settings.model.dtype],
        ranks,
        None if groups is None else groups.group,
    )
    if attention is not None:
        attention.verifier.check(models.target.decoder.layers)

    def new_drafter() -> Drafter:
        drafter: Drafter = make_drafter(drafter_config, models)
        return drafter

    # built once here so that a bad draft model or option is refused before the first prompt; where the leader drafts
    # alone the others need no draft model
    drafter = new_drafter() if ranks.is_leader else NoDrafting(None, models)
    if ranks.decide(lambda: drafter.every_rank) and not ranks.is_leader:
        drafter = new_drafter()
    drafts = ranks.is_leader or drafter.every_rank
    if verifier.chains_only and drafter.branches:
        raise UserError(
            f"verifier '{verifier.name}' takes chains, and drafter '{drafter.name}' drafts trees with these options; "
            "use verifier=multi_step, or make it a chain (drafter.width=1)"
        )
    return Pipeline(
        name=settings.pipeline.name,
        models=models,
        backend=backend,
        sampler=sampler,
        verifier=verifier,
        make_drafter=new_drafter if drafts else lambda: NoDrafting(None, models),
        make_policy=policy.for_request,
        make_target_runner=SequentialRunner if attention is None else lambda: attention.runner(groups),
        draft_name=drafter.draft_name,
    )


@dataclasses.dataclass(frozen=True)
class _AttentionLevel:
    """The plugins that speculate on attention. A predictor serves one request, as its runner does."""

    make_predictor: Callable[[], Predictor]
    verifier: AttentionVerifier
    estimate: EstimateOfRun

    def runner(self, groups: DeviceGroups | None) -> BlockRunner:
        """The target's runner for one request: over two device groups, or on one device without any."""
        if groups is None:
            return AttentionSpeculativeRunner(self.make_predictor(), self.verifier, estimate=self.estimate)
        # the derivatives that it takes do not go through a sum over processes
        estimate = self.estimate if groups.group.size == 1 else None
        return SpeculativeGroupsRunner(self.make_predictor(), self.verifier, groups, estimate)


def _attention_level(settings: Settings, registry: Registry) -> _AttentionLevel | None:
    """What speculates on attention; None if nothing does."""
    if settings.predictor.get("name") == "none":
        return None
    make_predictor: Any
    make_verifier: Any
    make_predictor, predictor_config = registry.configure("predictor", settings.predictor)
    make_verifier, verifier_config = registry.configure("attention_verifier", settings.attention_verifier)
    verifier: AttentionVerifier = make_verifier(verifier_config)
    make_predictor(predictor_config)
    return _AttentionLevel(lambda: make_predictor(predictor_config), verifier, EstimateOfRun())
