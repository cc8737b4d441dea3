"""What a plugin is: one small class per kind. Everything else (models, caches, trees, metrics) is given to it.

A plugin class sets ``name`` (what YAML and the command line call it) and ``Config`` (a dataclass of its options, with
defaults). Its YAML is merged onto that dataclass, so an unknown option or a wrong type is refused before anything runs.

Legend: B batch, N tree nodes, P prefix length, L layers, H query heads, G KV heads, D head dim, M model dim,
S cache slots, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

if TYPE_CHECKING:
    from spec_sdk.model.attention_mask import AttentionMask
    from spec_sdk.model.models import Models
    from spec_sdk.ops import Ops
    from spec_sdk.ranks import Ranks
    from spec_sdk.tree import DraftLaw, TokenTree

Random = float | torch.Generator
"""A random number of [0, 1), or the generator to take one from."""
Guarantee = Literal["exact", "distribution", "relaxed"]
GUARANTEES: tuple[Guarantee, ...] = ("exact", "distribution", "relaxed")


def weakest(*guarantees: Guarantee) -> Guarantee:
    """The guarantee of a whole is the weakest of its parts': exact > distribution > relaxed."""
    return max(guarantees, key=GUARANTEES.index)


@dataclass
class NoOptions:
    """The config of a plugin that has no options."""


class Plugin:
    """What all kinds share. ``kind`` is set by the base class of each kind, ``name`` by the plugin."""

    kind: ClassVar[str]
    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    Config: ClassVar[type] = NoOptions


@dataclass(frozen=True)
class SamplingParams:
    """How logits become probabilities. ``temperature`` 0 is greedy; 0 / 1.0 / 0.0 switch top_k / top_p / min_p off.

    ``repetition_penalty``: before all else, the logits of the tokens that stand before (prompt, output and the drafted
    tokens of the path) are divided by it where they are positive, and multiplied by it where not; 1.0 is off.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0


LARGEST_TREE = 4096
"""Most nodes of a tree where nothing else is said."""


@dataclass(frozen=True)
class Budget:
    """How much to draft in this cycle: at most ``depth`` tokens on a path; a depth of 0 is a plain decoding step.

    ``nodes``: most nodes of the tree, the root included: the rows of the target's pass.
    """

    depth: int
    nodes: int = LARGEST_TREE


@dataclass(frozen=True)
class Verdict:
    """What a verifier decided.

    ``path``: accepted nodes in order, beginning with the root, node 0.
    ``next_token``: the token after the last accepted node: the bonus token, or the one resampled after a rejection.
    """

    path: list[int]
    next_token: int
    tree: TokenTree

    @property
    def tokens(self) -> list[int]:
        """The tokens to emit: the accepted drafted tokens, then ``next_token``."""
        return [self.tree.token_N[i] for i in self.path[1:]] + [self.next_token]


@dataclass
class Request:
    """One prompt being answered, as plugins see it.

    ``tokens`` is the prefix: prompt and output so far. The last is the pending token, whose KV is in no cache yet.
    ``rng`` is the only source of randomness: a CPU generator, seeded per request.
    ``target`` is the target model's own session (embedding, head, forward, cache) for drafters that draft with it.
    """

    tokens: list[int]
    prompt_length: int
    max_new_tokens: int
    sampler: Sampler
    rng: torch.Generator
    stop_ids: frozenset[int] = frozenset()
    target: Any = None
    step: int = 0

    @property
    def pending_token(self) -> int:
        return self.tokens[-1]

    @property
    def new_tokens(self) -> int:
        return len(self.tokens) - self.prompt_length

    def uniforms(self, count: int) -> torch.Tensor:
        """The next ``count`` random numbers of [0, 1): float64, on the CPU."""
        return torch.rand(count, generator=self.rng, dtype=torch.float64)


class Drafter(Plugin, ABC):
    """Proposes tokens. One instance per request.

    ``hidden_layers``: target layers (0 = embedding output, i = output of block i) whose hidden states it wants.
    ``models`` gives access to the draft model (:meth:`Models.draft`), loaded once and shared by all requests.
    """

    kind = "drafter"
    hidden_layers: tuple[int, ...] = ()
    draft_name: str | None = None
    """The draft model's label for reports; None for a drafter without a model."""
    branches: bool = False
    """Whether its trees may branch. A verifier that takes chains only is refused beside such a drafter."""
    every_rank: bool = False
    """With several processes: whether all of them must draft, since drafting itself is spread over them or runs the
    target (``request.target``). Otherwise the leader drafts alone and the others are told the tree."""

    def __init__(self, config: Any, models: Models) -> None:
        self.config = config
        self.models = models

    def leader_alone(self, ranks: Ranks) -> AbstractContextManager[None]:
        """What its calls run under: unless it drafts on every rank, an operation of all ranks is an error."""
        return nullcontext() if self.every_rank else ranks.alone(f"drafter '{self.name}', which is not every_rank,")

    def start(self, request: Request, prompt_hidden: Mapping[int, torch.Tensor] | None = None) -> None:
        """Prepare for ``request`` (prefill). ``prompt_hidden``: layer → states [P, M] of all but the pending token.

        Called with the target's prefill. A drafter without ``hidden_layers`` may instead be started right before its
        first ``propose``, if the policy begins with plain steps: ``request.tokens`` then holds output too, and
        ``observe`` was not called for it.
        """

    @abstractmethod
    def propose(self, request: Request, budget: Budget) -> TokenTree:
        """Return a tree whose root is the pending token, with a depth of at most ``budget.depth`` (>= 1).

        It has at most ``budget.nodes`` nodes; ``depth`` is less than that, so a chain need not look at it.
        """

    def observe(
        self, request: Request, committed: Sequence[int], path_hidden: Mapping[int, torch.Tensor] | None = None
    ) -> None:
        """``committed`` tokens were just appended to ``request.tokens``. Record only; mend the own cache in propose."""


class Sampler(Plugin, ABC):
    """Turns logits into probabilities, and holds the arithmetic of acceptance and resampling.

    All logits that it is given are penalised already (:meth:`penalise`, called by the scheduler for the target's and
    by drafters for their own).
    """

    kind = "sampler"
    guarantee: ClassVar[Guarantee] = "exact"

    def __init__(self, config: Any, params: SamplingParams) -> None:
        self.config = config
        self.params = params

    @property
    def greedy(self) -> bool:
        return self.params.temperature == 0

    def cautions(self, dtype: torch.dtype) -> list[str]:
        """What to warn of before a run with a model of this dtype, a line each."""
        return []

    def penalise(self, logits_NV: torch.Tensor, prefix: Sequence[int], paths: Sequence[Sequence[int]]) -> torch.Tensor:
        """Apply the repetition penalty; ``logits_NV`` is written to, and returned.

        Row i is what follows ``prefix`` (prompt and output, the pending token included) and then ``paths[i]``, the
        drafted tokens. Every token of these is penalised once, however often it occurs. Token ids beyond V are passed
        over.
        """
        penalty = self.params.repetition_penalty
        if penalty == 1:
            return logits_NV
        vocabulary = logits_NV.shape[-1]
        common = {token for token in prefix if token < vocabulary}
        pairs = [(i, t) for i, path in enumerate(paths) for t in {*path} - common if t < vocabulary]
        device = logits_NV.device
        # two assignments, so that the long prefix is sent once and not once per row
        for rows, columns in (
            (slice(None), torch.tensor(sorted(common), dtype=torch.long, device=device)),
            (torch.tensor([i for i, _ in pairs], dtype=torch.long, device=device),
             torch.tensor([t for _, t in pairs], dtype=torch.long, device=device)),
        ):  # fmt: skip
            if columns.numel():
                score = logits_NV[rows, columns]
                logits_NV[rows, columns] = torch.where(score < 0, score * penalty, score / penalty)
        return logits_NV

    @abstractmethod
    def probabilities(self, logits_NV: torch.Tensor) -> torch.Tensor:
        """Logits [N, V] → probabilities [N, V] in float32 (temperature, top-k, top-p, min-p; one-hot when greedy).

        Raises :class:`~spec_sdk.errors.UnusableLogits`, naming the row, for logits that are NaN, +inf, or -inf
        throughout.
        """

    def choices(self, logits_NV: torch.Tensor) -> list[int]:
        """Each row's token under greedy sampling, the lowest id on ties: all that a verifier needs at temperature 0.

        A sampler that can tell without making probabilities should override this.
        """
        return [int(token) for token in self.probabilities(logits_NV).argmax(-1).tolist()]

    def law(self, logits_V: torch.Tensor) -> DraftLaw:
        """The law of a token drawn from these draft logits [V], which are kept as they are. Worked out when read."""
        from spec_sdk.tree import DraftLaw

        return DraftLaw(logits_V, lambda row_V: self.probabilities(row_V[None])[0].cpu())

    def draw_from(self, law: DraftLaw, random: Random) -> int:
        """One token of a drafter's law. A sampler that can draw from logits should override this."""
        return self.draw(law.q_V, random)

    def rejection(
        self, tree: TokenTree, logits_NV: torch.Tensor, uniform_D: torch.Tensor, step: int = 0
    ) -> tuple[list[int], int] | None:
        """The fused path of multi-step rejection sampling: accepted path and next token; None if there is none.

        The rule is that of ``multi_step``, and on a chain of ``chain_rejection``. ``uniform_D`` [draws + 1], float64,
        on the CPU, one random number for each draw of the tree (node by node, in draw order) and the last one for the
        next token; those of draws that are never tried are left unused. With the same numbers every sampler without
        loss must give the same tokens as the arithmetic below does.
        """
        return None

    @abstractmethod
    def draw(self, p_V: torch.Tensor, random: Random) -> int:
        """One token from the distribution ``p_V`` [V], by inversion: the first whose cumulated mass exceeds ``random``.

        A sampler may draw otherwise, but then gives other tokens for the same random numbers.
        """

    @abstractmethod
    def accepts(self, p: float, q: float, random: Random) -> bool:
        """Accept a token of target probability p drawn with probability q: with probability min(1, p/q).

        For a chosen token q is 1: it is accepted with probability p.
        """

    @abstractmethod
    def residual(self, p_V: torch.Tensor, q_V: torch.Tensor) -> torch.Tensor:
        """The residual distribution norm(max(p - q, 0)) [V], from which to go on after a drawn token was rejected."""

    @abstractmethod
    def without(self, p_V: torch.Tensor, token: int) -> torch.Tensor:
        """``p_V`` [V] with ``token`` set to zero, renormalised: the residual after a chosen token was rejected."""


class Verifier(Plugin, ABC):
    """Decides which path of a scored tree to keep."""

    kind = "verifier"
    guarantee: ClassVar[Guarantee]
    chains_only: ClassVar[bool] = False
    """Whether it takes chains only, no trees with branches."""
    exact_when_greedy: ClassVar[bool] = False
    """Whether at temperature 0 it keeps the target's own choices, whatever it guarantees when sampling."""

    def __init__(self, config: Any) -> None:
        self.config = config

    def guarantee_under(self, params: SamplingParams) -> Guarantee:
        """What this verifier guarantees with these sampling parameters (a sampled rule may be exact when greedy).

        Raises UserError for parameters that it cannot serve.
        """
        return "exact" if self.exact_when_greedy and params.temperature == 0 else self.guarantee

    @abstractmethod
    def verify(self, tree: TokenTree, logits_NV: torch.Tensor, request: Request) -> Verdict:
        """``logits_NV[i]`` are the target's logits for the token after node i, the repetition penalty applied."""


@dataclass(frozen=True)
class PartialAttention:
    """Attention over part of the keys, with the softmax statistics that let it be combined with the rest.

    ``o_BNHD`` normalised output over the keys seen, ``m_BNH`` their largest score, ``l_BNH`` sum of exp(score - m).
    """

    o_BNHD: torch.Tensor
    m_BNH: torch.Tensor
    l_BNH: torch.Tensor


@dataclass(frozen=True)
class SpeculativeAttention:
    """What one speculative attention call yields: the prediction, the exact attention, and how far they are apart.

    ``predicted_BNHD``, ``exact_BNHD``: normalised attention, in the dtype of the queries.
    ``difference_sq_BN``, ``norm_sq_BN``: ‖Â − A‖² and ‖A‖² in float32, over the H heads of a query together.
    ``chunk_lse_BNHC``: for predictors that learn, the log-sum-exp of the scaled scores over each chunk of *committed*
    keys (:attr:`Predictor.chunk` keys each, the last one maybe fewer); tree slots belong to none.
    """

    predicted_BNHD: torch.Tensor
    exact_BNHD: torch.Tensor
    difference_sq_BN: torch.Tensor
    norm_sq_BN: torch.Tensor
    chunk_lse_BNHC: torch.Tensor | None = None

    @staticmethod
    def measured(
        predicted_BNHD: torch.Tensor,
        exact_BNHD: torch.Tensor,
        dtype: torch.dtype,
        chunk_lse_BNHC: torch.Tensor | None = None,
    ) -> SpeculativeAttention:
        """Both attentions as ``dtype``, with the two squared norms taken in float32 before they are rounded to it."""
        exact = exact_BNHD.float()
        return SpeculativeAttention(
            predicted_BNHD=predicted_BNHD.to(dtype),
            exact_BNHD=exact_BNHD.to(dtype),
            difference_sq_BN=(predicted_BNHD.float() - exact).square().sum((-1, -2)),
            norm_sq_BN=exact.square().sum((-1, -2)),
            chunk_lse_BNHC=chunk_lse_BNHC,
        )


Announce = Callable[[torch.Tensor], None]
"""Called once, with a prediction [B, N, H, D], as soon as there is one: another device may go on with it already."""


class Predictor(Plugin, ABC):
    """Predicts attention from few KV entries (the attention level's guess). One instance per request.

    What it keeps between passes follows the cache: :meth:`commit` tells which rows of a pass stayed, :meth:`truncate`
    tells of every roll back (of prefill, the next mask's prefix does). One that keeps nothing need only say ``predict``
    and ``always_exact``.

    ``chunk``: keys per chunk of the statistics that :meth:`learn` gets back from the exact pass; 0: it learns nothing.
    """

    kind = "predictor"
    chunk: int = 0

    def __init__(self, config: Any) -> None:
        self.config = config

    @abstractmethod
    def always_exact(self, prefix: int) -> bool:
        """True if at this prefix length the prediction covers every key: no guess, and left out of the hit rate."""

    @abstractmethod
    def predict(
        self,
        layer: int,
        q_BNHD: torch.Tensor,
        k_BGSD: torch.Tensor,
        v_BGSD: torch.Tensor,
        mask: AttentionMask,
        ops: Ops,
    ) -> PartialAttention:
        """Attention of the N queries over the keys this predictor selects."""

    def speculate(
        self,
        layer: int,
        q_BNHD: torch.Tensor,
        k_BGSD: torch.Tensor,
        v_BGSD: torch.Tensor,
        mask: AttentionMask,
        ops: Ops,
        announce: Announce | None = None,
    ) -> SpeculativeAttention:
        """The prediction and the exact attention of one layer; called only where ``always_exact`` is False.

        ``announce`` gets the very prediction that is returned, before the exact attention is computed if that can be.
        This one computes the exact attention anew. A predictor whose keys a kernel can read first, and reuse, overrides
        it: no key is then read twice.
        """
        prediction = self.predict(layer, q_BNHD, k_BGSD, v_BGSD, mask, ops)
        if announce is not None:
            announce(prediction.o_BNHD.to(q_BNHD.dtype))
        exact_BNHD = ops.tree_attention(q_BNHD, k_BGSD, v_BGSD, mask)
        chunk_lse_BNHC = ops.chunk_lse(q_BNHD, k_BGSD[:, :, : mask.prefix], self.chunk) if self.chunk else None
        return SpeculativeAttention.measured(prediction.o_BNHD, exact_BNHD, q_BNHD.dtype, chunk_lse_BNHC)

    def learn(self, layer: int, chunk_lse_BNHC: torch.Tensor) -> None:
        """The statistics of the exact pass that was just made (see :class:`SpeculativeAttention`).

        Its rows are the nodes of a tree, most of which may be dropped: what counts is known at :meth:`commit`.
        """

    def commit(self, path: Sequence[int]) -> None:
        """These rows of the last pass were accepted, in this order: their keys now end the prefix."""

    def truncate(self, length: int) -> None:
        """Only the first ``length`` committed keys are left; 0 forgets everything."""


Space = Literal["heads", "residual"]
SPACES: tuple[Space, ...] = ("heads", "residual")


@dataclass(frozen=True)
class AttentionVerdict:
    """``hit``: go on with the prediction; a bool tensor without dimensions, so that no device has to be waited for.

    ``error_BN``: the relative error ‖Â − A‖ / ‖A‖ per batch row and query.
    """

    hit: torch.Tensor
    error_BN: torch.Tensor


class AttentionVerifier(Plugin, ABC):
    """Decides per layer whether predicted attention is close enough to the exact one.

    ``space``: where the runner measures the two norms: ``heads``, what the attention kernel returns, all heads of a
    token together (ALSpec, §3.2), or ``residual``, after the output projection.
    """

    kind = "attention_verifier"
    guarantee: ClassVar[Guarantee] = "relaxed"
    space: Space = "heads"

    def __init__(self, config: Any) -> None:
        self.config = config

    def check(self, layers: int) -> None:
        """Raise UserError if the options name a layer that a target of this many layers does not have."""

    def speculates(self, layer: int) -> bool:
        """False for a layer that is never predicted, and left out of the hit rate."""
        return True

    @abstractmethod
    def verify(self, layer: int, difference_sq_BN: torch.Tensor, norm_sq_BN: torch.Tensor) -> AttentionVerdict:
        """``difference_sq_BN`` is ‖Â − A‖² and ``norm_sq_BN`` ‖A‖², float32, for every live row of the pass.

        A pass with several rows hits only if every one of them does.
        """


def relative_error(difference_sq_BN: torch.Tensor, norm_sq_BN: torch.Tensor) -> torch.Tensor:
    """‖Â − A‖ / ‖A‖ from the two squared norms. 0 where both are zero."""
    return (difference_sq_BN / norm_sq_BN.clamp_min(torch.finfo(torch.float32).tiny)).sqrt()


class Policy(Plugin, ABC):
    """How much to speculate next."""

    kind = "policy"

    def __init__(self, config: Any) -> None:
        self.config = config

    @abstractmethod
    def budget(self, request: Request) -> Budget:
        """Called before each cycle. Depth 0 makes a plain decoding step: the drafter is not called.

        Also called once after the target's prefill: 0 there leaves the drafter's own prefill for later. So it must not
        count its calls; what a policy learns, it learns in ``observe``. It may depend on anything that is past, and
        on no random number that is yet to be drawn: then adapting leaves the law of the output as it is.
        """

    def observe(self, event: Mapping[str, Any]) -> None:
        """The ``prefill`` event, then each ``cycle`` event as it ends (see events.py), for policies that adapt."""

    def for_request(self) -> Policy:
        """The policy of one request. Those of a run may share what they learned; by default they share nothing."""
        return type(self)(self.config)


class Backend(Plugin, ABC):
    """Where tensors live and which kernels run."""

    kind = "backend"

    def __init__(self, config: Any) -> None:
        self.config = config

    @property
    @abstractmethod
    def device(self) -> torch.device: ...

    @property
    @abstractmethod
    def ops(self) -> Ops: ...

    @abstractmethod
    def describe(self) -> str:
        """The machine in a few words, for reports: CPU or GPU name, cores or memory."""

    @property
    def ranks(self) -> Ranks:
        """The processes that compute together: the device group that holds the target. This one alone by default."""
        from spec_sdk.ranks import ALONE

        return ALONE

    def synchronize(self) -> None:
        """Wait for queued work, so that a clock read means something."""


class Task(Plugin, ABC):
    """What ``task=…`` runs. Receives the resolved, validated application config.

    ``every_rank``: it runs on every rank of a launched run; otherwise a launcher with several processes is refused.
    """

    kind = "task"
    every_rank: ClassVar[bool] = False

    def __init__(self, config: Any) -> None:
        self.config = config

    @abstractmethod
    def run(self, app: Any) -> int:
        """Do the work; return the exit status. ``app`` is the :class:`spec_sdk.settings.Settings` of this run."""


PLUGIN_KINDS: Mapping[str, type[Plugin]] = {
    base.kind: base for base in (Drafter, Verifier, Sampler, Predictor, AttentionVerifier, Policy, Backend, Task)
}
