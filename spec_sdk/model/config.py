"""What a checkpoint says of its model: shapes, rotary positions, attention, and which optional parts it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from spec_sdk.errors import UserError
from spec_sdk.ops.feed_forward import Activation, Routing
from spec_sdk.ops.types import AttentionSpec

RopeKind = Literal["linear", "llama3", "yarn", "longrope", "dynamic"]


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched for a context longer than the trained one.

    ``linear`` divides all by ``factor``. ``llama3`` (Llama 3.1) divides only those whose wavelength exceeds
    ``original_max_position / low_freq_factor``, keeps those below ``original_max_position / high_freq_factor`` and
    interpolates between. ``yarn`` (Peng et al. 2023, §3.2) keeps those that turn more than ``beta_fast`` times in the
    original context, divides those that turn less than ``beta_slow`` times, and interpolates between; ``truncate``
    rounds the ramp's ends to whole dimensions. ``longrope`` (Ding et al. 2024) divides each by a number of its own, and
    ``dynamic`` (NTK-aware) raises the base as far as the context asks for.

    ``attention_factor`` multiplies cosines and sines. ``context``: the longest text that will be served, in tokens. In
    transformers the frequencies of ``longrope`` and ``dynamic`` follow the length that a text has reached, so that keys
    in a cache were rotated by other frequencies than those that come later. Here they follow from ``context``, once for
    all positions.
    """

    kind: RopeKind
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    context: int = 0


@dataclass(frozen=True)
class Experts:
    """A mixture of experts in the place of MLPs: ``count`` of them, which are chosen and weighted as ``routing`` says.

    ``corrected``: a bias is added to scores for the choice; ``biased``: router and experts have biases.
    ``shared_intermediate_size``: of the expert that every token has besides, if there is one; ``shared_gated``: what
    that gives has a weight. ``layers``: those that have a mixture; the others have an MLP. ``beside_mlp``: those with a
    mixture have an MLP, too, with norms of its own for either.
    """

    count: int
    routing: Routing
    intermediate_size: int
    shared_intermediate_size: int | None
    layers: tuple[int, ...]
    corrected: bool = False
    shared_gated: bool = True
    biased: bool = False
    beside_mlp: bool = False

    @property
    def per_token(self) -> int:
        """How many of them a token has."""
        return self.routing.per_token


@dataclass(frozen=True)
class LatentAttention:
    """K and V of all heads are made of one vector of a token, its latent (multi-head latent attention: DeepSeek-V2,
    arXiv:2405.04434, §2.1).

    ``kv_lora_rank``: dims of the latent. A head has ``qk_nope_head_dim`` dims of Q and K without rotary positions,
    ``qk_rope_head_dim`` with them, of which all heads share the key's, and ``v_head_dim`` of V. ``q_lora_rank``: of the
    latent that Q is made of; None where it is made of the hidden state. ``biased``: what makes latents has biases.
    ``k_b_transposed``: what makes K of a latent is stored transposed, head by head, as in GGUF files.

    The cache has latent and shared key in the place of K and V (§2.1.2), so that attention is of one KV head of
    ``width`` dims.
    """

    kv_lora_rank: int
    q_lora_rank: int | None
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    biased: bool = False
    k_b_transposed: bool = False

    @property
    def qk_head_dim(self) -> int:
        """Of a head of Q and K."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def width(self) -> int:
        """What the cache has of a token."""
        return self.kv_lora_rank + self.qk_rope_head_dim


@dataclass(frozen=True)
class GlobalHeads:
    """Heads of the layers without a window, where those with one have heads of another shape (Gemma 4).

    ``values_are_keys``: what makes K makes V, which has a norm of its own and no rotary positions.
    """

    kv_heads: int
    head_dim: int
    values_are_keys: bool = False


@dataclass(frozen=True)
class LayerInputs:
    """What layers are told of a row's token beside the hidden state: ``size`` numbers each (per-layer embeddings, Gemma
    3n and 4).

    ``vocabulary``: tokens of their embedding, which has a row's numbers for ``embedded`` layers one behind the other;
    ``places``: which of them each of the model's layers is.
    """

    size: int
    vocabulary: int
    embedded: int
    places: tuple[int, ...]

    @property
    def width(self) -> int:
        """Numbers of a row, for all layers of the embedding."""
        return self.size * self.embedded


@dataclass(frozen=True)
class ShortConvolutions:
    """Layers of which each row gets a gated convolution over the last ``tokens`` tokens, in the place of attention."""

    layers: tuple[int, ...]
    tokens: int


@dataclass(frozen=True)
class GatedDeltaNets:
    """Layers with a state that follows the gated delta rule, in the place of attention.

    ``tokens``: how many a convolution before it sees. ``value_heads`` are a multiple of ``key_heads``, and neighbours
    share one; ``tiled``: those share one whose numbers have the same remainder, as in GGUF files.
    """

    layers: tuple[int, ...]
    tokens: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    tiled: bool = False

    @property
    def keys(self) -> int:
        """Width of all key heads together."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """Width of all value heads together."""
        return self.value_heads * self.value_dim


@dataclass(frozen=True)
class SpaceScales:
    """What numbers inside a state space are multiplied by: gates, x, b and c before the convolution, steps before their
    bias, and what the output projection is given.
    """

    gate: float = 1.0
    x: float = 1.0
    b: float = 1.0
    c: float = 1.0
    step: float = 1.0
    output: float = 1.0


@dataclass(frozen=True)
class StateSpaces:
    """Mamba-2's layers in the place of attention. ``tokens``: how many a convolution before the state sees.

    ``heads`` are a multiple of ``groups``. ``convolution_bias``: it has one. ``step_limit``: of the steps.
    ``normed``: there is a norm behind the gate. ``beside_attention``: the layers have attention too, both of the same
    input, and what both give is added.
    """

    layers: tuple[int, ...]
    tokens: int
    groups: int
    heads: int
    state_dim: int
    head_dim: int
    convolution_bias: bool = True
    step_limit: tuple[float, float] = (0.0, float("inf"))
    normed: bool = True
    scales: SpaceScales = SpaceScales()
    beside_attention: bool = False

    @property
    def inner(self) -> int:
        """Width of all heads together."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """Of the convolution."""
        return self.inner + 2 * self.groups * self.state_dim

    @property
    def projected(self) -> int:
        """What a row's input projection gives."""
        return self.inner + self.channels + self.heads


Recurrent = ShortConvolutions | GatedDeltaNets | StateSpaces


@dataclass(frozen=True)
class EncoderConfig:
    """The encoder of an encoder–decoder model, to whose output every decoder block has a cross-attention.

    ``features`` and ``input_frames``: height and length of what it is given, for speech mel bins and frames;
    ``frames``: the states that it makes of them.
    """

    num_layers: int
    num_heads: int
    intermediate_size: int
    features: int
    input_frames: int
    frames: int


@dataclass(frozen=True)
class Rope:
    """Rotary positions: the base of the frequencies, and how they are stretched.

    ``dims``: how many dimensions of a head are rotated, the others standing still; None for all of them.
    ``proportional``: these turn as fast as they would if all of a head were. ``head_dim``: of a head of its layers,
    where others' are of another size.
    """

    theta: float
    scaling: RopeScaling | None = None
    dims: int | None = None
    proportional: bool = False
    head_dim: int | None = None


@dataclass(frozen=True)
class LayerKind:
    """What layers of one model may differ in, beside their weights. Layers of one kind can be computed as one."""

    attention: AttentionSpec
    rope: Rope


@dataclass(frozen=True)
class ModelConfig:
    """A Llama-like model: its sizes, and which parts its blocks have. Names follow Hugging Face's config.json.

    ``architecture``: the ``model_type`` of config.json, by which :mod:`spec_sdk.model.architectures` knows its weights.
    ``max_context``: the most tokens that may be in the cache: the trained positions.

    ``windows``: the sliding window of every layer, None for those that see all; an empty tuple where all do.
    ``windowed_rope``: rotary positions of the layers with a window, where the others' are not theirs too.
    ``attention_scale``, ``attention_softcap``: of every layer's :class:`AttentionSpec`; ``logit_softcap``: the same for
    the logits; ``attention_sinks``: every layer has some. ``embedding_scale``: what embeddings are multiplied by,
    rounded to the model's dtype first where ``rounds_embedding_scale``; ``logit_scale``: the same for the logits.
    ``output_norms``: what a sub-layer gives is normalized before it is added. ``wide_qk_norm``: norms of Q and K are of
    all heads together. ``prefix``: what stands before the name of every tensor. ``encoder``: that of an
    encoder–decoder model, of which all else describes the decoder. ``recurrent``: which layers have a state in the
    place of attention; ``attention_gate``: what attention gives is multiplied by a gate that Q comes with. ``latent``:
    attention is over latents; ``num_kv_heads`` and ``head_dim`` are then those of the cache. ``without_attention``:
    layers that have an MLP or a mixture alone; ``without_mlp``: those that have attention or a state alone.

    ``global_heads``: heads of layers without a window, of which ``num_kv_heads`` and ``head_dim`` say nothing then, and
    ``global_rope`` their rotary positions; V has a norm without a gain in all layers of such a model, and what leaves a
    layer is multiplied by a number. ``kv_sources``: of each layer, which layer's K and V it attends to; an empty tuple
    where each has its own. ``wide_mlps``: layers whose MLPs are twice ``intermediate_size`` wide. ``layer_inputs``:
    what layers are told beside the hidden state.

    ``rotary_dims``: how many dimensions of a head are rotated, None for all; ``rotary_neighbours``: the checkpoint has
    the two of a rotary pair side by side; ``unrotated``: layers without rotary positions.

    ``state_scale``: hidden states, as the checkpoint's authors count them, are this times those that the decoder has.
    ``rms_norm_eps`` is that of the decoder's (:attr:`norm_eps_of_states`: of theirs). ``input_norm_scale`` and
    ``post_norm_scale``: what gains of the norms before attention and before MLPs are multiplied by, of a family with
    ``recurrent`` layers.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    max_context: int
    tie_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    windows: tuple[int | None, ...] = ()
    windowed_rope: Rope | None = None
    attention_scale: float | None = None
    attention_softcap: float | None = None
    attention_sinks: bool = False
    logit_softcap: float | None = None
    embedding_scale: float = 1.0
    rounds_embedding_scale: bool = True
    logit_scale: float = 1.0
    state_scale: float = 1.0
    input_norm_scale: float = 1.0
    post_norm_scale: float = 1.0
    rotary_dims: int | None = None
    rotary_neighbours: bool = False
    unrotated: tuple[int, ...] = ()
    activation: Activation = "silu"
    output_norms: bool = False
    wide_qk_norm: bool = False
    prefix: str = ""
    experts: Experts | None = None
    encoder: EncoderConfig | None = None
    recurrent: Recurrent | None = None
    attention_gate: bool = False
    latent: LatentAttention | None = None
    without_attention: tuple[int, ...] = ()
    without_mlp: tuple[int, ...] = ()
    global_heads: GlobalHeads | None = None
    global_rope: Rope | None = None
    kv_sources: tuple[int, ...] = ()
    wide_mlps: tuple[int, ...] = ()
    layer_inputs: LayerInputs | None = None

    @property
    def layer_parameters(self) -> list[int]:
        """Of each layer, how many numbers of its matrices one token multiplies with: of a mixture, the experts that it
        has.
        """
        M, width, experts, recurrent = self.hidden_size, self.num_heads * self.head_dim, self.experts, self.recurrent
        attention = (3 if self.attention_gate else 2) * M * width + 2 * M * self.num_kv_heads * self.head_dim
        if (latent := self.latent) is not None:
            H, entering = self.num_heads, M if latent.q_lora_rank is None else latent.q_lora_rank
            attention = (latent.q_lora_rank or 0) * M + H * latent.qk_head_dim * entering + latent.width * M
            attention += (
                H * latent.kv_lora_rank * (latent.qk_nope_head_dim + latent.v_head_dim) + H * latent.v_head_dim * M
            )
        counts = [attention] * self.num_layers
        if self.global_heads is not None:
            counts = [self._varied_attention(layer) for layer in range(self.num_layers)]
        if recurrent is not None:
            own = 4 * M * M
            if isinstance(recurrent, GatedDeltaNets):
                own = M * (2 * recurrent.keys + 3 * recurrent.values + 2 * recurrent.value_heads)
            elif isinstance(recurrent, StateSpaces):
                own = M * (recurrent.inner + recurrent.projected)
            for layer in recurrent.layers:
                counts[layer] = own + (attention if self.has_attention(layer) else 0)
        for layer in self.without_attention:
            counts[layer] = 0
        matrices = 2 if self.activation == "squared_relu" else 3
        width_of_experts = 0
        if experts is not None:
            width_of_experts = experts.per_token * experts.intermediate_size + (experts.shared_intermediate_size or 0)
        for layer in range(self.num_layers):
            if layer in self.without_mlp:
                continue
            sparse = experts is not None and layer in experts.layers
            if not sparse or (experts is not None and experts.beside_mlp):
                counts[layer] += matrices * M * self.intermediate_size * (2 if layer in self.wide_mlps else 1)
            if experts is not None and sparse:
                counts[layer] += matrices * M * width_of_experts + experts.count * M
            if self.layer_inputs is not None:
                # its part of the projection to all layers' inputs, and the two matrices of its own
                counts[layer] += 3 * M * self.layer_inputs.size
        return counts

    def _varied_attention(self, layer: int) -> int:
        """Numbers of a layer's matrices of attention where heads are of different shapes."""
        kv_heads, head_dim = self.heads_of(layer)
        made = 0 if self.kv_layer(layer) != layer else 1 if self.values_are_keys(layer) else 2
        return self.hidden_size * head_dim * (2 * self.num_heads + made * kv_heads)

    def is_global(self, layer: int) -> bool:
        """Whether a layer has no window."""
        return not self.windows or self.windows[layer] is None

    def heads_of(self, layer: int) -> tuple[int, int]:
        """KV heads of a layer, and dims of a head."""
        of = self.global_heads
        if of is None or not self.is_global(layer):
            return self.num_kv_heads, self.head_dim
        return of.kv_heads, of.head_dim

    def values_are_keys(self, layer: int) -> bool:
        """Whether what makes a layer's K makes its V."""
        return self.global_heads is not None and self.global_heads.values_are_keys and self.is_global(layer)

    def kv_layer(self, layer: int) -> int:
        """Whose K and V a layer attends to: mostly its own."""
        return self.kv_sources[layer] if self.kv_sources else layer

    @property
    def shared_kv_layers(self) -> frozenset[int]:
        """Layers whose K and V others attend to."""
        return frozenset(source for layer, source in enumerate(self.kv_sources) if source != layer)

    def is_recurrent(self, layer: int) -> bool:
        """Whether a layer has a state, in the place of attention or beside it."""
        return self.recurrent is not None and layer in self.recurrent.layers

    def has_attention(self, layer: int) -> bool:
        """Whether a layer has attention."""
        beside = isinstance(self.recurrent, StateSpaces) and self.recurrent.beside_attention
        return beside or not (self.is_recurrent(layer) or layer in self.without_attention)

    @property
    def uncommon_blocks(self) -> str | None:
        """What blocks have that only the decoder of such models computes, in one process; None for the usual ones."""
        if self.recurrent is not None:
            return "recurrent layers"
        if self.latent is not None:
            return "attention to latents"
        if self.global_heads is not None:
            return "heads of different shapes"
        if self.without_attention or self.without_mlp:
            return "layers of attention or an MLP alone"
        return "attention with an output gate" if self.attention_gate else None

    @property
    def rotary_head_dim(self) -> int:
        """Dims of a head of which rotary positions turn some."""
        return self.head_dim if self.latent is None else self.latent.qk_rope_head_dim

    @property
    def norm_eps_of_states(self) -> float:
        """What norms add to the mean square of hidden states that are as the checkpoint's authors count them."""
        return self.rms_norm_eps * self.state_scale**2

    @property
    def longest_context(self) -> int:
        """The most that ``max_context`` may be set to.

        The rotary positions of ``linear`` and ``dynamic`` reach ``factor`` times as far as the checkpoint says it was
        trained for.
        """
        scaling = self.rope_scaling
        if scaling is None or scaling.kind not in ("linear", "dynamic"):
            return self.max_context
        return max(self.max_context, int(scaling.factor * scaling.original_max_position))

    def layer_kind(self, layer: int) -> LayerKind:
        """How this layer attends, and its rotary positions."""
        window = self.windows[layer] if self.windows else None
        rope = Rope(self.rope_theta, self.rope_scaling, self.rotary_dims)
        if window is not None and self.windowed_rope is not None:
            rope = self.windowed_rope
        if self.global_heads is not None:
            rope = replace(rope if window is not None else self.global_rope or rope, head_dim=self.heads_of(layer)[1])
        if layer in self.unrotated:
            rope = Rope(self.rope_theta, dims=0)
        if window is not None and window >= self.max_context:
            # it hides nothing
            window = None
        return LayerKind(AttentionSpec(self.attention_scale, self.attention_softcap, window), rope)

    def of_layers(self, layers: Sequence[int]) -> ModelConfig:
        """The configuration of the model made of only these of its layers, in this order."""
        windows = tuple(self.windows[layer] for layer in layers) if self.windows else ()
        if not any(windows):
            windows = ()

        def numbered(chosen: Sequence[int]) -> tuple[int, ...]:
            return tuple(i for i, layer in enumerate(layers) if layer in chosen)

        experts = self.experts
        if experts is not None:
            experts = replace(experts, layers=numbered(experts.layers))
        recurrent = self.recurrent
        if recurrent is not None:
            stateful = numbered(recurrent.layers)
            recurrent = replace(recurrent, layers=stateful) if stateful else None
        inputs = self.layer_inputs
        if inputs is not None:
            inputs = replace(inputs, places=tuple(inputs.places[layer] for layer in layers))
        return replace(
            self,
            num_layers=len(layers),
            windows=windows,
            experts=experts,
            unrotated=numbered(self.unrotated),
            recurrent=recurrent,
            without_attention=numbered(self.without_attention),
            without_mlp=numbered(self.without_mlp),
            kv_sources=self._sources_among(layers),
            wide_mlps=numbered(self.wide_mlps),
            layer_inputs=inputs,
        )

    def _sources_among(self, layers: Sequence[int]) -> tuple[int, ...]:
        """``kv_sources`` of these layers alone: where a source is left out, the last one of its kind before it."""
        if not self.kv_sources:
            return ()
        found = []
        for place, layer in enumerate(layers, 1):
            kind, source = self.is_global(layer), self.kv_sources[layer]
            own = [i for i, each in enumerate(layers[:place]) if each <= source and self.kv_sources[each] == each]
            alike = [i for i in own if self.is_global(layers[i]) == kind]
            if not alike:
                raise UserError(
                    f"layer {layer} attends to K and V of layer {source}, so that it cannot be run without that one or "
                    "one like it before"
                )
            found.append(alike[-1])
        return tuple(found)

    def within(self, context: int) -> ModelConfig:
        """The model for texts of at most ``context`` tokens, which its rotary frequencies may follow from."""
        windowed, whole = self.windowed_rope, self.global_rope
        return replace(
            self,
            max_context=context,
            global_rope=whole and replace(whole, scaling=whole.scaling and replace(whole.scaling, context=context)),
            rope_scaling=self.rope_scaling and replace(self.rope_scaling, context=context),
            windowed_rope=windowed
            and replace(windowed, scaling=windowed.scaling and replace(windowed.scaling, context=context)),
        )
