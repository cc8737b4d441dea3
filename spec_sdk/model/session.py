"""A model at work on several requests: an executor and its KV cache, with a slot for each request.

The target is scored through a session, and a draft model drafts through one; what differs is the block runner. A
session works on host integers; what a pass is given is a value (:class:`~spec_sdk.ops.pass_inputs.PassInputs`).

Legend: B requests, N tokens or tree nodes, K nodes of a level, M model dim, F width of features, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F

from spec_sdk.common_prefix import common_prefix
from spec_sdk.errors import UserError
from spec_sdk.model.block_runner import AttentionReport, BlockRunner
from spec_sdk.model.config import EncoderConfig
from spec_sdk.model.context_vocabulary import ContextVocabulary
from spec_sdk.model.draft_levels import DraftedLevel, DraftLevels, TreeShape
from spec_sdk.model.encoder_input import EncoderInput, check_features
from spec_sdk.model.executor import Epilogue, Executor, LogitRows, PassOutput, PassPlan
from spec_sdk.model.kv_cache import KVCache
from spec_sdk.model.runners.sequential import PLAIN, SequentialRunner
from spec_sdk.ops import DraftLogits, LogitsToCome, host_reads
from spec_sdk.ops.grown_paths import ClosedTrees, GrownPaths, ProbablePaths, RowsToCommit
from spec_sdk.ops.pass_inputs import PassInputs, PassKind, RequestRows
from spec_sdk.tree import TokenTree, TreeBuilder

PREFILL_CHUNK = 1024
"""Tokens per prefill pass: bounds the memory of its mask and activations."""
EpilogueOf = Callable[[Sequence[int], LogitsToCome], Epilogue | None]
"""What a pass makes of its logits, by the numbers of the trees that it is over and what these logits will be."""


@dataclass(frozen=True)
class Scores:
    """What one target pass over a tree returns.

    ``logits_NV[i]``: for the token after node i. ``hidden``: layer → [N, M], as asked. ``reports``: at most one, of
    what the runner measured. ``made``: what the pass's epilogue made of all its requests [B, …].
    """

    logits_NV: torch.Tensor
    hidden: Mapping[int, torch.Tensor] = field(default_factory=dict)
    reports: Sequence[AttentionReport | None] = ()
    made: torch.Tensor | None = None

    @property
    def attention(self) -> AttentionReport | None:
        """What the runner measured, if it speculates on attention. May wait for the device, once."""
        return self.reports[0] if self.reports else None


class Session:
    """Feeds tokens and trees to a model and keeps its cache in step, for requests that each have a slot.

    ``runner`` executes the passes of :meth:`score` and :meth:`grow`; :meth:`prefill` and :meth:`feed` are plain.
    ``looks_at_logits``: whether anybody does; if not, passes are planned without them, and all that are returned have a
    vocabulary of 0.
    """

    def __init__(self, executor: Executor, runner: BlockRunner | None = None, *, looks_at_logits: bool = True) -> None:
        self.executor = executor
        self.runner = runner or PLAIN
        self._looks_at_logits = looks_at_logits
        self.context_vocabulary: ContextVocabulary | None = None
        """What adds to the logits those of tokens of a request's text, for a model that drafts few others."""
        self.fed_unknown = False
        """Whether it may be fed tokens that the model has no embedding of: it is fed its last one instead."""
        self.cache = executor.new_cache()
        self._tokens: dict[int, list[int]] = {}
        # how many of a slot's first tokens came in plain passes
        self._plain_length: dict[int, int] = {}
        # the encoder's input that a slot's cross-attention sees
        self._encoded: dict[int, torch.Tensor] = {}
        # what the rows after the prefix hold, until some of them are committed
        self._fed: dict[int, Sequence[int]] = {}
        # the slots whose last pass was one ahead
        self._ahead: set[int] = set()

    @property
    def context(self) -> int:
        """Most tokens the model can hold."""
        return self.executor.config.max_context

    @property
    def vocabulary(self) -> int:
        """Tokens that the model knows."""
        return self.executor.config.vocab_size

    @property
    def deepest_tree(self) -> int | None:
        """The most tokens behind a root that a tree may be deep; None: any number."""
        return self.executor.deepest_tree

    @property
    def encoder(self) -> EncoderConfig | None:
        """The encoder of an encoder–decoder model."""
        return self.executor.config.encoder

    @property
    def one_launch(self) -> bool:
        """Whether short passes are one launch each, with what :meth:`score` is told to make of their logits."""
        return self.executor.one_launch and self.context_vocabulary is None

    def length(self, slot: int = 0) -> int:
        """Committed tokens of a slot, whose K and V are in the cache."""
        return len(self._tokens.get(slot, ()))

    def tokens(self, slot: int = 0) -> list[int]:
        """The committed tokens of a slot."""
        return list(self._tokens.get(slot, ()))

    def reserve(self, slots: int, tokens: int) -> None:
        """Have room for ``slots`` requests of ``tokens`` tokens each, trees included, without a larger cache later.

        Raises UserError if there is no memory for it.
        """
        self.cache.reserve(slots, tokens)

    def open(
        self, slot: int, tokens: Sequence[int], keep: bool = True, encoder_input: EncoderInput | None = None
    ) -> int:
        """Give ``slot`` to a new request, and return how many of the first of its ``tokens`` are committed already.

        Those are what it has in common with what the slot's last request left; with ``keep`` false there are none.
        The encoder of an encoder–decoder model runs over ``encoder_input``, unless the last request had the same; a
        model without one takes no notice of it. Raises UserError, as :func:`check_features` does, for what the encoder
        cannot be given.
        """
        if self.context_vocabulary is not None:
            self.context_vocabulary.forget(slot)
        kept = self._truncate(slot, self.shared(slot, tokens, encoder_input) if keep else 0)
        self.runner.truncate(slot, 0)
        if self.encoder is not None and not self._has_encoded(slot, encoder_input):
            check_features(None if encoder_input is None else encoder_input.features_XT, self.encoder)
            assert encoder_input is not None
            self._encoded.pop(slot, None)
            self.cache.reserve(slot + 1, 0)
            self.executor.encode(encoder_input, self.cache, slot)
            self._encoded[slot] = encoder_input.features_XT
        return kept

    def shared(self, slot: int, tokens: Sequence[int], encoder_input: EncoderInput | None = None) -> int:
        """How many of the first of ``tokens`` the slot's cache holds as a prefill makes them, computed beside the same
        encoder input.
        """
        if self.encoder is not None and not self._has_encoded(slot, encoder_input):
            return 0
        shared = common_prefix(self._tokens.get(slot, []), tokens)
        if self.runner.guarantee != "exact":
            # behind them is what its last request made of it: an answer must not depend on that
            shared = min(shared, self._plain_length.get(slot, 0))
        return self.cache.keeps(slot, shared)

    def _has_encoded(self, slot: int, encoder_input: EncoderInput | None) -> bool:
        return encoder_input is not None and encoder_input.same_as(self._encoded.get(slot))

    def truncate(self, slot: int, length: int) -> int:
        """Forget all but the first ``length`` tokens of a slot, or all but as many as can be gone on from, which it
        returns: recurrent layers have few of their earlier states. Raises ValueError if fewer are committed.
        """
        return self._truncate(slot, length)

    def _truncate(self, slot: int, length: int) -> int:
        if not 0 <= length <= self.length(slot):
            raise ValueError(f"cannot roll back to {length} tokens: {self.length(slot)} are committed")
        length = self.cache.roll_back(slot, length)
        del self._tokens.setdefault(slot, [])[length:]
        self._plain_length[slot] = min(self._plain_length.get(slot, 0), length)
        self.runner.truncate(slot, length)
        self._ahead.discard(slot)
        return length

    def prefill(self, slot: int, tokens: Sequence[int], taps: Sequence[int] = ()) -> Mapping[int, torch.Tensor]:
        """Commit ``tokens`` in plain passes; return the asked hidden states, layer → [N, M]; of no tokens, no rows."""
        parts: dict[int, list[torch.Tensor]] = {layer: [] for layer in taps}
        for first in range(0, len(tokens), PREFILL_CHUNK):
            chunk = tokens[first : first + PREFILL_CHUNK]
            (output,) = self._run("chain", self._rows([slot], [chunk]), PassPlan(PLAIN, tuple(taps), "none"))
            self._keep([slot], [chunk])
            for layer, states in parts.items():
                states.append(output.hidden[layer][0])
        if not tokens:
            width, executor = self.executor.config.hidden_size, self.executor
            return dict.fromkeys(taps, torch.empty(0, width, dtype=executor.dtype, device=executor.device))
        return {layer: torch.cat(states) for layer, states in parts.items()}

    def prefill_scored(self, slot: int, tokens: Sequence[int], taps: Sequence[int] = ()) -> Scores:
        """Commit ``tokens`` in one plain pass; return its scores after each of them."""
        (output,) = self._run("chain", self._rows([slot], [tokens]), self._plan(PLAIN, tuple(taps)))
        self._keep([slot], [tokens])
        return self._scores(output)

    def prefill_together(
        self, slots: Sequence[int], tokens: Sequence[Sequence[int]], taps: Sequence[int]
    ) -> list[Mapping[int, torch.Tensor]]:
        """Commit each slot's ``tokens`` in plain passes, those of about one length in one; the hidden states that
        :meth:`prefill` returns, of each slot.
        """
        outputs = self._run("chain", self._rows(slots, tokens), PassPlan(PLAIN, tuple(taps), "none"))
        self._keep(slots, tokens)
        return [{layer: h_BNM[0] for layer, h_BNM in output.hidden.items()} for output in outputs]

    def feed(self, slots: Sequence[int], tokens: Sequence[Sequence[int]]) -> list[DraftLogits]:
        """Commit each slot's ``tokens`` in a plain pass and return the logits after its last one, K = 1."""
        outputs = self._run("chain", self._rows(slots, tokens), self._plan(PLAIN, logits="last"))
        self._keep(slots, tokens)
        return [self._logits(output) for output in outputs]

    def score(
        self,
        slots: Sequence[int],
        trees: Sequence[TokenTree],
        taps: Sequence[int] = (),
        epilogue: EpilogueOf | None = None,
    ) -> list[Scores]:
        """One pass over the trees, whose roots come after the committed tokens. Nothing is committed.

        ``epilogue``: what each pass makes of its logits, asked right before it; for sessions of :attr:`one_launch`.
        Raises ValueError, naming the node, for a token that the model does not have.
        """
        for tree in trees:
            if fault := token_fault(tree, self.vocabulary):
                raise ValueError(fault)
        requests = [
            RequestRows.tree(slot, self.length(slot), tree.token_N, tree.depth_N, tree.end_N)
            for slot, tree in zip(slots, trees, strict=True)
        ]
        outputs = self._run("tree", requests, self._plan(self.runner, tuple(taps)), epilogue=epilogue)
        self._fed.update((slot, tree.token_N) for slot, tree in zip(slots, trees, strict=True))
        return [self._scores(output) for output in outputs]

    def score_ahead(
        self, slots: Sequence[int], token_B: torch.Tensor, taps: Sequence[int], epilogue: EpilogueOf
    ) -> list[Scores] | None:
        """:meth:`score` for roots alone that come after the roots that the last pass over these slots scored, before
        those are committed: their tokens are read on the device, where they are negative for unusable ones. Ask
        :meth:`take_ahead` before they are committed.

        None, and nothing done, where more than a plain pass is needed, or a larger cache.
        """
        prefixes = [self.length(slot) + 1 for slot in slots]
        room = isinstance(self.cache, KVCache) and self.cache.slots > max(slots) and self.cache.capacity > max(prefixes)
        if not (self.scores_closed and room and max(prefixes) < self.context):
            return None
        requests = [RequestRows.tree(slot, prefix, [0], [0], [1]) for slot, prefix in zip(slots, prefixes, strict=True)]
        plan = self._plan(self.runner, tuple(taps))

        def fill(inputs: PassInputs) -> None:
            inputs.token_BN.copy_(token_B.clamp_min(0)[:, None])

        outputs = self._run("tree", requests, plan, epilogue=epilogue, fill=fill)
        self._ahead.update(slots)
        return [self._scores(output) for output in outputs]

    @property
    def scores_closed(self) -> bool:
        """Whether :meth:`score_closed` can be asked: where passes are plain, and one launch each."""
        return self.one_launch and type(self.runner) is SequentialRunner

    def score_closed(
        self, slots: Sequence[int], roots: Sequence[int], closed: ClosedTrees, taps: Sequence[int]
    ) -> list[Scores]:
        """:meth:`score` for trees that the host has not read, whose roots are these tokens: of all N rows that each may
        have. Ask :meth:`take_ahead` when they are known.

        For sessions that :attr:`scores_closed`.
        """
        N, unknown = closed.node_B3N.shape[2], [0] * closed.node_B3N.shape[2]
        # places behind a tree's last node are rows that see the prefix and themselves, and that no other row sees
        own_ends = range(1, N + 1)
        requests = [
            RequestRows.tree(slot, self.length(slot), [root, *unknown[1:]], unknown, own_ends)
            for slot, root in zip(slots, roots, strict=True)
        ]

        def fill(inputs: PassInputs) -> None:
            token_BN, depth_BN, end_BN = closed.node_B3N.to(self.executor.device).unbind(1)
            inputs.token_BN[:, 1:N].copy_(token_BN[:, 1:].clamp(0, self.vocabulary - 1))
            inputs.position_BN[:, :N].add_(depth_BN)
            inputs.key_position_BT[:, :N].add_(depth_BN)
            inputs.key_end_BT[:, :N].clamp_(min=end_BN)

        outputs = self._run("tree", requests, self._plan(self.runner, tuple(taps)), fill=fill)
        self._ahead.update(slots)
        return [self._scores(output) for output in outputs]

    def take_ahead(self, slots: Sequence[int], tokens: Sequence[Sequence[int]]) -> bool:
        """What :meth:`score_ahead` or :meth:`score_closed` scored for these slots, now that what is before it is
        committed, were these tokens of each.

        False, and nothing done, where another pass has written over one of them since.
        """
        if not self._ahead.issuperset(slots):
            return False
        self._ahead.difference_update(slots)
        self._fed.update(zip(slots, tokens, strict=True))
        return True

    def grow(self, slots: Sequence[int], trees: Sequence[TreeBuilder], new_nodes: Sequence[int]) -> list[DraftLogits]:
        """Feed each tree's ``new_nodes`` youngest nodes; return their logits. Nothing is committed.

        A tree's root is the last committed token. Node i of the builder lies in row ``i - 1`` after the prefix, so
        earlier nodes must have been fed in order.
        """
        requests = [
            RequestRows.growing(slot, self.length(slot), tree.token, tree.depth, *tree.intervals(), new)
            for slot, tree, new in zip(slots, trees, new_nodes, strict=True)
        ]
        outputs = self._run("growing", requests, self._plan(self.runner))
        self._fed.update((slot, tree.token[1:]) for slot, tree in zip(slots, trees, strict=True))
        return [self._logits(output) for output in outputs]

    def draft_levels(
        self,
        slots: Sequence[int],
        shape: TreeShape,
        roots: Sequence[DraftLogits],
        limit: int,
        draws: Sequence[Sequence[float]] = (),
        tell: Callable[[ClosedTrees], None] | None = None,
    ) -> list[list[DraftedLevel]] | None:
        """Trees of one shape behind each slot's committed tokens, all levels as one launch, with one read: of every
        request its levels. None where that cannot be; nothing is done then.

        Tokens from ``limit`` on are not drafted. ``roots``: the logits that :meth:`feed` gave, K = 1. ``draws``: where
        children are drawn, each request's random numbers, one for each node, level by level, and then the numbers of
        its sampling (:func:`~spec_sdk.ops.kept_tokens.numbers_of`).
        All levels but the last are fed, as by :meth:`grow`; nothing is committed. ``tell`` is called
        with the trees right after the launch.
        """
        reduced, tokens = roots[0].token_R is not None, roots[0].logits_KR.shape[-1]
        if not self.one_launch or len(shape.widths) < 2 or max(shape.widths) > min(limit, tokens):
            return None
        # a draw goes by the order of tokens, which a reduced head may have otherwise
        if reduced and (shape.drawn or self.executor.vocabulary > limit):
            return None
        root_BR = torch.cat([root.logits_KR for root in roots])
        places = [(slot, self.length(slot)) for slot in slots]
        levels = DraftLevels.of(shape, root_BR, tokens if reduced else limit, places, draws)
        self.cache.reserve(max(slots) + 1, levels.columns)
        self._ahead.difference_update(slots)
        drafted = self.executor.draft_levels(levels, self.cache, self.runner)
        if drafted is None:
            return None
        values, token_BX = drafted
        # before anything that is launched behind the levels, which need not be waited for
        reading = [host_reads.begin(part) for part in ((token_BX,) if shape.drawn else (token_BX, values))]
        if tell is not None:
            tell(shape.closed(token_BX))
        token_BX, *on_host = host_reads.read(*reading)
        values = values if shape.drawn else on_host[0]
        fed = sum(inputs.width for inputs in levels.inputs)
        self._fed.update((slot, token_X[:fed].tolist()) for slot, token_X in zip(slots, token_BX, strict=True))
        return [levels.split(*of_request) for of_request in zip(values, token_BX, strict=True)]

    @property
    def grows_paths(self) -> bool:
        """Whether :meth:`feed_and_grow` may feed more than its root."""
        return self.executor.grows_paths

    def feed_and_grow(
        self, slots: Sequence[int], tokens: Sequence[Sequence[int]], paths: Sequence[ProbablePaths]
    ) -> list[GrownPaths]:
        """:meth:`feed`, with the levels of each slot's ``paths`` fed besides where that is one call. Tell
        :meth:`keep_grown` which of them were asked for.
        """
        grown, groups = None, self.runner.attention_groups(self.executor.layers)
        if groups is not None and self._looks_at_logits:
            rows = [
                RowsToCommit(slot, self.length(slot), self._embedded(new))
                for slot, new in zip(slots, tokens, strict=True)
            ]
            grown = self._grow_paths(rows, [replace(own, groups=groups) for own in paths])
        if grown is None:
            return [GrownPaths(root) for root in self.feed(slots, tokens)]
        self._keep(slots, tokens)
        return grown

    def keep_grown(self, slot: int, tree: TreeBuilder, nodes: int) -> None:
        """Of what :meth:`feed_and_grow` fed, the first ``nodes`` are nodes 1 … of ``tree``, and no others count."""
        if nodes:
            self._fed[slot] = tree.token[1 : 1 + nodes]

    def _grow_paths(self, rows: Sequence[RowsToCommit], paths: Sequence[ProbablePaths]) -> list[GrownPaths] | None:
        context, last = self.context_vocabulary, max(own.prefix + len(own.tokens) - 1 for own in rows)
        # each may be fed the levels of the one with most
        deepest, most_fed = max(own.depth for own in paths), max(own.most_fed for own in paths)
        # the words of one text are no others' words
        if not self.grows_paths or last + deepest > self.context or (context is not None and len(rows) > 1):
            return None
        self.cache.reserve(max(own.slot for own in rows) + 1, last + most_fed)
        self._ahead.difference_update(own.slot for own in rows)
        output = None if context is None else context.output_rows(rows[0].slot)
        return self.executor.grow_paths(rows, self.cache, output, paths)

    def draft(
        self, slots: Sequence[int], trees: Sequence[TreeBuilder], new_nodes: Sequence[int], runner: BlockRunner
    ) -> list[DraftLogits]:
        """Feed each tree's ``new_nodes`` youngest nodes with another runner; return their logits.

        For a model that drafts for itself. Roots come after the committed tokens, as in :meth:`score`, and are the
        first to be fed; node i of the builder lies in row i after the prefix, so earlier nodes must have been fed in
        order. Nothing is committed: what the runner leaves in the cache is behind the prefix, where no later pass looks
        before it has written there itself.
        """
        requests = [
            RequestRows.growing(
                slot, self.length(slot), tree.token, tree.depth, *tree.intervals(), new, root_committed=False
            )
            for slot, tree, new in zip(slots, trees, new_nodes, strict=True)
        ]
        return [self._logits(output) for output in self._run("growing", requests, self._plan(runner))]

    def commit(self, slots: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        """Keep these rows of each slot's last pass or tree (offsets from its prefix) and drop the others."""
        self._commit(slots, paths)
        for slot, path in zip(slots, paths, strict=True):
            self.runner.commit(slot, path)

    def _commit(self, slots: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        self.cache.commit(slots, [self.length(slot) for slot in slots], paths)
        for slot, path in zip(slots, paths, strict=True):
            fed = self._fed.get(slot, ())
            self._tokens.setdefault(slot, []).extend(fed[row] for row in path)

    def _rows(self, slots: Sequence[int], tokens: Sequence[Sequence[int]]) -> list[RequestRows]:
        return [
            RequestRows.chain(slot, self.length(slot), self._embedded(new))
            for slot, new in zip(slots, tokens, strict=True)
        ]

    def _embedded(self, tokens: Sequence[int]) -> Sequence[int]:
        last = self.executor.vocabulary - 1
        return [min(token, last) for token in tokens] if self.fed_unknown else tokens

    def _keep(self, slots: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        """Commit all rows of plain passes, of which a runner's state knows nothing."""
        self._fed.update(zip(slots, tokens, strict=True))
        plain = [slot for slot in slots if self._plain_length.get(slot, 0) == self.length(slot)]
        self._commit(slots, [range(len(new)) for new in tokens])
        self._plain_length.update((slot, self.length(slot)) for slot in plain)

    def _plan(self, runner: BlockRunner, taps: tuple[int, ...] = (), logits: LogitRows = "all") -> PassPlan:
        return PassPlan(runner, taps, logits if self._looks_at_logits else "none")

    def _logits(self, output: PassOutput) -> DraftLogits:
        """Those of one request's rows."""
        return DraftLogits(output.logits_BNV[0], output.token_R, self.executor.vocabulary, self.executor.ops)

    def _scores(self, output: PassOutput) -> Scores:
        """Of one request's rows."""
        hidden = {layer: h_BNM[0] for layer, h_BNM in output.hidden.items()}
        return Scores(self._logits(output).full_KV, hidden, output.reports, output.made)

    def _run(
        self,
        kind: PassKind,
        requests: Sequence[RequestRows],
        plan: PassPlan,
        features: Sequence[torch.Tensor] | None = None,
        epilogue: EpilogueOf | None = None,
        fill: Callable[[PassInputs], None] | None = None,
    ) -> list[PassOutput]:
        """The requests' passes, several in one where they are of about one size; an output of B = 1 for each, but for
        what an epilogue made.

        ``features``: of each request [N, F], what its rows are fed besides tokens. ``fill`` writes to a pass's inputs
        what only the device knows.
        """
        for request in requests:
            if (largest := max(request.position)) >= self.context:
                raise UserError(f"position {largest} lies outside the model's context of {self.context} tokens")
        self._ahead.difference_update(request.slot for request in requests)
        self.cache.reserve(
            max(request.slot for request in requests) + 1,
            max(request.prefix + len(request.key_end) for request in requests),
        )
        outputs: dict[int, PassOutput] = {}
        executor, context = self.executor, self.context_vocabulary if plan.logits != "none" else None
        plan = plan if context is None else context.planned(plan)
        for group in groups_of_like_size([len(request.token) for request in requests]):
            together = [requests[i] for i in group]
            rows = executor.rows_of(max(len(request.token) for request in together))
            inputs = PassInputs.of(
                kind,
                together,
                executor.device,
                rows=rows,
                slots=executor.slots_of(max(len(request.key_end) for request in together)),
                features_BNM=None if features is None else padded([features[i] for i in group], rows),
            )
            if fill is not None:
                fill(inputs)
            own = plan
            if epilogue is not None:
                to_come = executor.vocabulary, executor.dtype, executor.device
                logits = LogitsToCome(inputs.batch, inputs.width, *to_come)
                own = replace(plan, epilogue=epilogue(group, logits))
            output = executor.forward(inputs, self.cache, own)
            for b, i in enumerate(group):
                outputs[i] = part_of(output, b, len(requests[i].token))
                if context is not None:
                    outputs[i] = context.completed(requests[i].slot, outputs[i])
        return [outputs[i] for i in range(len(requests))]


def part_of(output: PassOutput, request: int, live: int) -> PassOutput:
    """One request's part of a pass's output, without its padding: B = 1."""
    rows = max(x.shape[1] for x in (output.logits_BNV, *output.hidden.values()))
    if len(output.logits_BNV) == 1 and rows <= live:
        return output
    own = slice(request, request + 1)
    return PassOutput(
        output.logits_BNV[own, :live],
        {layer: h_BNM[own, :live] for layer, h_BNM in output.hidden.items()},
        output.reports[own] if output.reports else (),
        output.token_R,
        output.made,
    )


def padded(features: Sequence[torch.Tensor], rows: int) -> torch.Tensor:
    """Features [N, F] of several requests as [B, rows, F], zero where a request has fewer rows."""
    if len(features) == 1 and features[0].shape[0] == rows:
        return features[0][None]
    return torch.stack([F.pad(own_NF, (0, 0, 0, rows - own_NF.shape[0])) for own_NF in features])


def groups_of_like_size(sizes: Sequence[int]) -> list[list[int]]:
    """Indices of ``sizes`` by passes: those between two powers of two go together, so that padding is less than half.

    >>> groups_of_like_size([1, 5, 1, 8, 3])
    [[0, 2], [4], [1, 3]]
    """
    groups: dict[int, list[int]] = {}
    for i, size in enumerate(sizes):
        groups.setdefault((size - 1).bit_length(), []).append(i)
    return [groups[bits] for bits in sorted(groups)]


def token_fault(tree: TokenTree, vocabulary: int) -> str | None:
    """The first node of a tree whose token lies outside the vocabulary; None if none does."""
    if max(tree.token_N) < vocabulary:
        return None
    node = next(i for i, token in enumerate(tree.token_N) if token >= vocabulary)
    return f"tree node {node}: token {tree.token_N[node]} lies outside the vocabulary of {vocabulary}"
