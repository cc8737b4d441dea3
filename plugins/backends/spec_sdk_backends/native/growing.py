"""A draft model's or head's token tree, or drawn chain, in one native call, root and levels, where Python would take as
long between its passes as these do.

Legend: B requests, N rows of a pass, W children of a node, R tokens that can be drafted, X nodes, M model dim, V
vocabulary, C positions, D head dim.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch

from spec_sdk.errors import UnusableLogits
from spec_sdk.model.decoder import Decoder
from spec_sdk.model.draft_heads.eagle3 import Eagle3Head
from spec_sdk.model.kv_cache import KVCache
from spec_sdk.model.rounded_kv_cache import RoundedKVCache
from spec_sdk.ops.draft_logits import DraftLogits
from spec_sdk.ops.grown_paths import (
    GrownLevel,
    GrownPaths,
    OutputRows,
    ProbablePaths,
    RowsToCommit,
    ToppedLogits,
)
from spec_sdk.ops.linear import Projection
from spec_sdk_backends.native.attention import MOST_ROWS
from spec_sdk_backends.native.crossover import most_rows
from spec_sdk_backends.native.decoder import NativeDecoder, addresses_of, block_of, shape_of, unknown_stages
from spec_sdk_backends.native.feed_forward import is_native, matrix_of
from spec_sdk_backends.native.head_block import NativeHeadBlock
from spec_sdk_backends.native.laid_out import LaidOut
from spec_sdk_backends.native.latent_decoder import RUN_AT_ONCE
from spec_sdk_backends.native.library import library
from spec_sdk_backends.native.lookup import entering_lookup, tokens_of
from spec_sdk_backends.native.structures import (
    DTYPES,
    Block,
    Cache,
    DraftModel,
    Gain,
    Growing,
    Matrix,
    Shaping,
    address,
)
from spec_sdk_backends.native.top import MOST_KEPT

_INT64, _DOUBLE = ctypes.c_int64, ctypes.c_double
_HEAD_STAGES = (
    "entering",
    "normed_embedding",
    "before_output",
    "scaled",
    "recurrent",
    "forward_pass",
    "logits_with",
    "head",
    "embed",
    "_norm",
    "_feature_norm",
)


def native_path_grower(decoder: Decoder) -> NativePathGrower | None:
    """None for a decoder with parts or stages that the kernels lack."""
    if isinstance(decoder, Eagle3Head):
        known = isinstance(decoder.at_once, NativeHeadBlock) and not any(
            getattr(type(decoder), stage) is not getattr(Eagle3Head, stage) for stage in _HEAD_STAGES
        )
    else:
        known = type(decoder) in RUN_AT_ONCE
    if not known or unknown_stages(decoder) is not None:
        return None
    made = NativePathGrower(decoder)
    return made if made.takes_any else None


class NativePathGrower(LaidOut):
    """Feeds what is committed, and the levels of the most probable paths behind it, or of a drawn one."""

    def __init__(self, decoder: Decoder) -> None:
        self._is_head = isinstance(decoder, Eagle3Head)
        if isinstance(decoder, NativeDecoder):
            self._shape, self._blocks = decoder.native_shape, decoder.native_blocks
        else:
            assert isinstance(decoder, Eagle3Head)
            self._shape, self._blocks = shape_of(decoder), (Block * 1)(block_of(decoder, 0, decoder.attention_norm_M))
        super().__init__(decoder)

    def _read_weights(self) -> tuple[Any, ...]:
        return (self._decoder.embedding.held,)

    def _lay_out(self) -> int:
        decoder = self._decoder
        embedding = entering = None
        feeds_normed, logit_scale = False, 1.0
        if isinstance(decoder, Eagle3Head):
            variant = decoder.variant
            feeds_normed, logit_scale = variant.norm_output, variant.logit_scale
            embedding = decoder.embedding_norm_M
            entering = decoder.blocks[0].input_norm_M if variant.norm_before_residual else None
        gains = embedding, entering, decoder.final_norm_M
        lookup = entering_lookup(decoder)
        if lookup is None or decoder.config.logit_softcap is not None:
            return 0
        if not all(Gain.suits(gain, decoder.dtype) for gain in gains):
            return 0
        self._tokens = tokens_of(decoder.embedding)
        self._model = DraftModel(
            self._shape,
            ctypes.addressof(self._blocks),
            decoder.layers,
            lookup,
            *(Gain.of(gain, decoder.dtype) for gain in gains),
            int(feeds_normed),
            logit_scale,
        )
        return min(MOST_ROWS, most_rows(decoder.dtype))

    def __call__(self, rows: RowsToCommit, cache: Any, output: OutputRows, paths: ProbablePaths) -> GrownPaths | None:
        self._follow()
        columns = sum(head.outputs for head in output.heads)
        matrices = self._matrices(output.heads)
        if matrices is None or not self._takes(rows, cache, columns, paths):
            return None
        decoder, dtype, count = self._decoder, self._decoder.dtype, len(rows.tokens)
        width, most = paths.width, paths.most_fed
        logits_XR = torch.empty((most, columns), dtype=dtype)
        logprob_XW = torch.empty((most, width), dtype=torch.float32)
        token_XW = torch.empty((most, width), dtype=torch.int64)
        state_XM = features_NM = None
        if self._is_head:
            assert rows.features_NM is not None
            features_NM = rows.features_NM.contiguous()
            state_XM = torch.empty((most, decoder.config.hidden_size), dtype=dtype)
        tokens, nodes, levels = (_INT64 * count)(*rows.tokens), _INT64 * most, (_INT64 * paths.depth)()
        node_token, node_parent = nodes(), nodes()
        tables = decoder.rotary_tables(cache.capacity)
        cosines, sines = addresses_of(tables)
        token_R, group = output.token_R, None
        if paths.groups and max(map(len, paths.groups)) > 1:
            group = (_INT64 * decoder.layers)(*(i for i, layers in enumerate(paths.groups) for _ in layers))
        draws, uniform, shaping, probability = paths.draws, None, None, (_DOUBLE * most)()
        if draws is not None:
            uniform = (_DOUBLE * paths.depth)(*draws.uniforms)
            shaping = Shaping.of(draws.shaping, draws.shaping.temperature * draws.temperature)
        growing = Growing(
            rows.slot,
            rows.prefix,
            count,
            ctypes.addressof(tokens),
            None if features_NM is None else features_NM.data_ptr(),
            len(matrices),
            ctypes.addressof(matrices),
            None if token_R is None else token_R.data_ptr(),
            ctypes.addressof(cosines),
            ctypes.addressof(sines),
            paths.depth,
            width,
            paths.nodes,
            None if group is None else ctypes.addressof(group),
            paths.least_reach,
            None if uniform is None else ctypes.addressof(uniform),
            None if shaping is None else address(shaping),
            0 if draws is None else draws.vocabulary,
            logits_XR.data_ptr(),
            logprob_XW.data_ptr(),
            token_XW.data_ptr(),
            ctypes.addressof(probability),
            None if state_XM is None else state_XM.data_ptr(),
            ctypes.addressof(node_token),
            ctypes.addressof(node_parent),
            ctypes.addressof(levels),
        )
        storage = Cache.of(cache.k_LSGCD, cache.v_LSGCD)
        library().spec_grow(
            DTYPES[dtype], address(self._model), address(growing), address(storage), torch.get_num_threads()
        )
        vocabulary = decoder.vocabulary

        def logits_of(first: int, nodes: int) -> DraftLogits:
            own = slice(first, first + nodes)
            logits_KR = logits_XR[own]
            if draws is not None:
                drawn_KW, probability_K = tuple(map(tuple, token_XW[own, :1].tolist())), tuple(probability[own])
                if min(drawn_KW) < (0,):
                    raise UnusableLogits(0)
                return DraftLogits(logits_KR, token_R, vocabulary, drawn_KW=drawn_KW, probability_K=probability_K)
            return ToppedLogits(logits_KR, token_R, vocabulary, logprob_KW=logprob_XW[own], token_KW=token_XW[own])

        grown, first = list[GrownLevel](), 1
        for fed in levels:
            if not fed:
                break
            own = slice(first - 1, first - 1 + fed)
            grown.append(GrownLevel(node_token[own], node_parent[own], logits_of(first, fed)))
            first += fed
        return GrownPaths(logits_of(0, 1), grown, state_XM)

    def _takes(self, rows: RowsToCommit, cache: Any, columns: int, paths: ProbablePaths) -> bool:
        return (
            0 < len(rows.tokens) <= self._most_rows
            # a pass says what is wrong with a token that there is not
            and min(rows.tokens) >= 0
            and max(rows.tokens) < self._tokens
            and 0 < paths.width <= min(self._most_rows, MOST_KEPT, columns)
            and (paths.draws is None or (paths.width == 1 and paths.draws.shaping.temperature > 0))
            and (paths.groups is None or [*chain(*paths.groups)] == [*range(self._decoder.layers)])
            and type(cache) in (KVCache, RoundedKVCache)
        )

    def _matrices(self, heads: Sequence[Projection]) -> Any:
        """The output heads for the kernels; None where one lies in another form."""
        known = [matrix_of(head) for head in heads if is_native(head)]
        return (Matrix * len(known))(*known) if len(known) == len(heads) else None
