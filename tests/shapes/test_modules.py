"""Shapes of every public module: parameters, arguments and results.

B batch · T query length · S key length · N query heads · K key/value heads · H head width
D model width · F hidden width · V vocabulary (U of the source) · C classes
E width of an encoder output · L layers · M largest number of tokens · R rank of LoRA
`...` any batch axes
"""

import inspect

import jax
import pytest
from flax import nnx

from attention import masks, modules
from attention.modules import (
    ACTIVATIONS,
    INITIALIZERS,
    NORMS,
    POOLINGS,
    POSITIONS,
    AlibiScores,
    Block,
    CacheSpec,
    Classifier,
    ClassToken,
    Context,
    CrossAttention,
    Decoder,
    Embedding,
    Encoder,
    EncoderDecoder,
    FeedForward,
    LanguageModel,
    Layers,
    LearnedPositions,
    MaskedLanguageModel,
    MeanPooling,
    PatchEmbedding,
    PredictionHead,
    Relative,
    RelativeScores,
    Residual,
    Rotary,
    SelfAttention,
    TransformerConfig,
    apply_lora,
    drop,
    layer_norm,
    linear,
    lora_factors,
    make_output,
    recurrent,
    rms_norm,
    select_parameters,
    transformer_block,
    unstack_layers,
)
from attention.modules.recurrent import (
    ATTENTIONS,
    CELLS,
    AdditiveAttention,
    BahdanauStep,
    LuongStep,
    MultiplicativeAttention,
    RecurrentConfig,
    RecurrentDecoder,
    RecurrentEncoder,
    RecurrentEncoderDecoder,
    RecurrentLayer,
)
from tests.shapes.shapes import SIZE, check, check_tree, module, shapes

D, F, N, K, H, V, U, C, E, L, M, R = (getattr(SIZE, name) for name in "DFNKHVUCELMR")
HEADS = {"num_heads": N, "num_kv_heads": K, "head_width": H}

# Names that are not functions or classes of arrays: types, registries, and functions of trees,
# masks and axis names, which do not change a shape.
WITHOUT_SHAPES = {
    *("ACTIVATIONS", "FEED_FORWARDS", "INITIALIZERS", "MIXERS", "NORMS", "POOLINGS", "POSITIONS"),
    *("ATTENTIONS", "CELLS", "CacheSpec", "Context", "DecoderCache", "LoRAFactors", "MakeLayer"),
    *("Output", "PositionEncoding", "RecurrentCache", "RecurrentConfig", "Relative"),
    *("TransformerConfig", "Attention", "add_losses", "and_mask", "apply_layer", "new_cache"),
    *("label_parameters", "map_axes", "name_axis", "select_parameters", "split_rng"),
}


def config(**changes):
    """Config of a small Transformer."""
    sizes = {"width": D, "hidden": F, "max_length": M, "encoder_layers": 2, "decoder_layers": L}
    return TransformerConfig(**(HEADS | sizes | changes))


def layer(build, /, *, returning=(), **line):
    """Line of a layer: every argument but `inputs` is a field of the context."""

    def call(module, inputs, **fields):
        return module(inputs, context=Context(**fields, returning=returning))

    return module(build, call, **line)


def language_model(rngs, **changes):
    return LanguageModel.from_config(config(**changes), vocab_size=V, rngs=rngs)


def translator(rngs, **changes):
    sizes = {"source_vocab_size": U, "target_vocab_size": V}
    return EncoderDecoder.from_config(config(**changes), **sizes, rngs=rngs)


def recurrent_translator(rngs, **changes):
    settings = RecurrentConfig(embedding_width=D, hidden=F, max_length=M, **changes)
    sizes = {"source_vocab_size": U, "target_vocab_size": V}
    return RecurrentEncoderDecoder.from_config(settings, **sizes, rngs=rngs)


def feed_forward(index, rngs):
    del index
    return FeedForward(D, F, rngs=rngs)


def read_after(model, tokens, **options):
    """Read tokens with a new cache of M slots."""
    return model(tokens, cache=model.new_cache(tokens.shape[:-1], M, **options))


def prefill_and_step(model, inputs, lengths):
    state, _ = model.prefill(inputs, lengths, max_tokens=M - SIZE.S)
    return model.step(state, inputs[:, 0])[0]


FEATURES = {"features": "[..., T, D]"}
WEIGHTS = {"self_attention": {"weights": "[..., N, T, T]"}}
CROSS = {"cross_attention": {"weights": "[..., N, T, S]"}}
CACHE = {"key_slots": "[..., K, M, H]", "value_slots": "[..., K, M, H]", "lengths": "int32 [...]"}
ATTENTION = {
    "query.kernel": "[D, N, H]",
    "query.bias": "[N, H]",
    "key.kernel": "[D, K, H]",
    "key.bias": "[K, H]",
    "value.kernel": "[D, K, H]",
    "value.bias": "[K, H]",
    "output.kernel": "[N, H, D]",
    "output.bias": "[D]",
}
MLP = {
    "up.kernel": "[D, F]",
    "up.bias": "[F]",
    "down.kernel": "[F, D]",
    "down.bias": "[D]",
}

SUBLAYERS = {
    "linear": module(
        lambda rngs: linear({"embed": D}, {"heads": N, "head": H}, rngs=rngs),
        lambda module, inputs: module(inputs),
        parameters={"kernel": "[D, N, H]", "bias": "[N, H]"},
        inputs="[..., D]",
        returns="[..., N, H]",
    ),
    "layer_norm": module(
        lambda rngs: layer_norm(D, rngs=rngs),
        parameters={"scale": "[D]", "bias": "[D]"},
        inputs="[..., D]",
        returns="[..., D]",
    ),
    "rms_norm": module(
        lambda rngs: rms_norm(D, rngs=rngs),
        parameters={"scale": "[D]"},
        inputs="bfloat16 [..., D]",
        returns="bfloat16 [..., D]",
    ),
    "drop": shapes(
        lambda inputs, rng: drop(inputs, 0.1, rng),
        inputs="[..., D]",
        rng="key []",
        returns="[..., D]",
    ),
    "FeedForward": layer(
        lambda rngs: FeedForward(D, F, rngs=rngs),
        parameters=MLP,
        inputs="[..., T, D]",
        returns="[..., T, D]",
    ),
    "FeedForward: gated, no biases": layer(
        lambda rngs: FeedForward(D, F, gated=True, use_bias=False, rngs=rngs),
        parameters={"up.kernel": "[D, F]", "gate.kernel": "[D, F]", "down.kernel": "[F, D]"},
        inputs="[..., T, D]",
        returns="[..., T, D]",
    ),
    "SelfAttention": layer(
        lambda rngs: SelfAttention(D, **HEADS, rngs=rngs),
        returning=("weights", "logsumexp"),
        parameters=ATTENTION,
        inputs="[..., T, D]",
        lengths="int32 [...]",
        returns=FEATURES | {"attention": {"weights": "[..., N, T, T]", "logsumexp": "[..., N, T]"}},
    ),
    "SelfAttention: rotary, window, positions": layer(
        lambda rngs: SelfAttention(D, **HEADS, rotary=Rotary(), window=2, rngs=rngs),
        inputs="[..., T, D]",
        positions="int32 [..., T]",
        returns=FEATURES,
    ),
    "SelfAttention: default sizes": layer(
        lambda rngs: SelfAttention(2 * N, num_heads=N, use_bias=False, qk_norm="rms", rngs=rngs),
        parameters={
            "query.kernel": "[2*N, N, 2]",
            "key.kernel": "[2*N, N, 2]",
            "value.kernel": "[2*N, N, 2]",
            "output.kernel": "[N, 2, 2*N]",
            "query_norm.scale": "[2]",
            "key_norm.scale": "[2]",
        },
        inputs="[..., T, 2*N]",
        returns={"features": "[..., T, 2*N]"},
    ),
    "SelfAttention: cache": module(
        lambda rngs: SelfAttention(D, **HEADS, rngs=rngs),
        lambda module, inputs: module(
            inputs,
            context=Context(cache=module.new_cache(CacheSpec(batch=inputs.shape[:-2], size=M))),
        ),
        inputs="[..., T, D]",
        returns=FEATURES | {"cache": CACHE},
    ),
    "CrossAttention": layer(
        lambda rngs: CrossAttention(D, **HEADS, value_width=SIZE.Hv, source_width=E, rngs=rngs),
        returning=("weights",),
        parameters=ATTENTION
        | {
            "key.kernel": "[E, K, H]",
            "value.kernel": "[E, K, Hv]",
            "value.bias": "[K, Hv]",
            "output.kernel": "[N, Hv, D]",
        },
        inputs="[..., T, D]",
        encoder_output="[..., S, E]",
        returns=FEATURES | {"attention": {"weights": "[..., N, T, S]"}},
    ),
    "Residual": layer(
        lambda rngs: Residual(layer_norm(D, rngs=rngs), FeedForward(D, F, rngs=rngs)),
        parameters={"norm.scale": "[D]", "norm.bias": "[D]"}
        | {f"sublayer.{path}": text for path, text in MLP.items()},
        inputs="[..., T, D]",
        returns=FEATURES,
    ),
    "Block": layer(
        lambda rngs: Block(first=FeedForward(D, F, rngs=rngs), second=FeedForward(D, F, rngs=rngs)),
        parameters={f"{name}.{path}": MLP[path] for name in ("first", "second") for path in MLP},
        inputs="[..., T, D]",
        returns=FEATURES,
    ),
    "transformer_block": layer(
        lambda rngs: transformer_block(config(), cross=True, rngs=rngs),
        returning=("weights",),
        inputs="[..., T, D]",
        encoder_output="[..., S, D]",
        returns=FEATURES | {"attention": WEIGHTS | CROSS},
    ),
    "Layers": layer(
        lambda rngs: Layers(feed_forward, L, rngs=rngs),
        returning=("hidden_states",),
        parameters={f"blocks.0.{path}": text.replace("[", "[L, ") for path, text in MLP.items()},
        inputs="[..., T, D]",
        returns=FEATURES | {"hidden_states": ["[..., T, D]"] * (L + 1)},
    ),
    "unstack_layers": module(
        lambda rngs: Layers(feed_forward, L, rngs=rngs),
        unstack_layers,
        returns={"blocks": [{"up": {"kernel": "[D, F]", "bias": "[F]"}}] * L},
    ),
    **{
        f"linear: {name}": module(
            lambda rngs, init=init: linear({"embed": D}, {"x": F}, kernel_init=init, rngs=rngs),
            lambda module, inputs: module(inputs),
            inputs="[..., D]",
            returns="[..., F]",
        )
        for name, init in INITIALIZERS.items()
    },
    **{
        f"FeedForward: {name}": layer(
            lambda rngs, name=name: FeedForward(D, F, activation=name, rngs=rngs),
            inputs="[..., T, D]",
            returns="[..., T, D]",
        )
        for name in ACTIVATIONS
    },
    **{
        f"Norm: {name}": module(
            lambda rngs, norm=norm: norm(D, rngs=rngs), inputs="[..., D]", returns="[..., D]"
        )
        for name, norm in NORMS.items()
    },
}

EMBEDDINGS = {
    "Embedding": module(
        lambda rngs: Embedding(
            V,
            D,
            positions=LearnedPositions(M, D, rngs=rngs),
            num_token_types=2,
            output_bias=True,
            rngs=rngs,
        ),
        parameters={
            "tokens": "[V, D]",
            "token_types": "[2, D]",
            "positions.table": "[M, D]",
            "bias": "[V]",
        },
        tokens="int32 [..., T]",
        positions="int32 [..., T]",
        token_types="int32 [..., T]",
        returns="[..., T, D]",
    ),
    "Embedding: unembed": module(
        lambda rngs: Embedding(V, D, rngs=rngs),
        lambda module, features: module.unembed(features),
        features="[..., T, D]",
        returns="[..., T, V]",
    ),
    "PatchEmbedding": module(
        lambda rngs: PatchEmbedding(
            D, image_shape=(3 * SIZE.T, 3 * SIZE.S, 2), patch_size=3, rngs=rngs
        ),
        lambda module, images: module(images),
        parameters={"projection.kernel": "[3*3*2, D]", "projection.bias": "[D]"},
        images="[..., 3*T, 3*S, 2]",
        returns="[..., T*S, D]",
    ),
    "LearnedPositions": module(
        lambda rngs: LearnedPositions(M, D, rngs=rngs),
        lambda module, positions: module(positions, D),
        parameters={"table": "[M, D]"},
        positions="int32 [..., T]",
        returns="[..., T, D]",
    ),
    "Rotary": shapes(
        Rotary(scaling="yarn", factor=2.0),
        vectors="[..., T, N, H]",
        positions="int32 [..., T]",
        returns="[..., T, N, H]",
    ),
    "RelativeScores": module(
        lambda rngs: RelativeScores(N, Relative(num_buckets=14), causal=True, rngs=rngs),
        parameters={"table": "[N, 14]"},
        returns={"table": "[N, 14]"},
    ),
    "AlibiScores": module(lambda rngs: AlibiScores(N), parameters={}, returns={"slopes": "[N]"}),
}

MODELS = {
    "Encoder": layer(
        lambda rngs: Encoder.from_config(config(), rngs=rngs),
        returning=("weights", "hidden_states"),
        inputs="[..., T, D]",
        lengths="int32 [...]",
        returns=FEATURES | {"attention": [WEIGHTS] * 2, "hidden_states": ["[..., T, D]"] * 3},
    ),
    "Decoder": layer(
        lambda rngs: Decoder.from_config(config(), rngs=rngs),
        returning=("weights",),
        inputs="[..., T, D]",
        encoder_output="[..., S, D]",
        returns=FEATURES | {"attention": [WEIGHTS | CROSS] * L},
    ),
    "Decoder: cross-attention in every second layer": layer(
        lambda rngs: Decoder.from_config(
            config(per_layer=[{"cross_attention": False}, {}]), rngs=rngs
        ),
        returning=("weights",),
        inputs="[..., T, D]",
        encoder_output="[..., S, D]",
        returns=FEATURES | {"attention": [WEIGHTS, WEIGHTS | CROSS]},
    ),
    "make_output": module(
        lambda rngs: make_output(config(tie="none", output_bias=True), V, rngs),
        lambda module, features: module(features),
        parameters={"kernel": "[D, V]", "bias": "[V]"},
        features="[..., T, D]",
        returns="[..., T, V]",
    ),
    "LanguageModel": module(
        language_model,
        lambda model, tokens: model(tokens, returning=("weights", "hidden_states")),
        tokens="int32 [..., T]",
        returns=FEATURES
        | {
            "logits": "[..., T, V]",
            "attention": [WEIGHTS] * L,
            "hidden_states": ["[..., T, D]"] * (L + 1),
        },
    ),
    "LanguageModel: packed": module(
        language_model,
        lambda model, tokens, segments, positions: model(
            tokens, mask=masks.segments(segments), embedding_positions=positions
        ),
        tokens="int32 [..., T]",
        segments="int32 [..., T]",
        positions="int32 [..., T]",
        returns={"logits": "[..., T, V]"},
    ),
    "LanguageModel: cache": module(
        language_model,
        read_after,
        tokens="int32 [..., T]",
        returns={
            "logits": "[..., T, V]",
            "cache": {"layers": [{"self_attention": CACHE, "feed_forward": None}] * L},
        },
    ),
    "LanguageModel: ring": module(
        lambda rngs: language_model(rngs, positions="alibi", decoder_layers=1),
        lambda model, tokens: model(tokens, cache=model.new_cache(tokens.shape[:-1], 2, ring=True)),
        tokens="int32 [..., T]",
        returns={
            "logits": "[..., T, V]",
            "cache": {
                "layers": [
                    {"self_attention": {"key_slots": "[..., K, 2, H]"}, "feed_forward": None}
                ]
            },
        },
    ),
    "LanguageModel: prefill, step": module(
        language_model,
        prefill_and_step,
        inputs="int32 [B, S]",
        lengths="int32 [B]",
        returns={"logits": "[B, V]", "features": "[B, 1, D]"},
    ),
    "MaskedLanguageModel": module(
        lambda rngs: MaskedLanguageModel.from_config(
            config(num_token_types=2), vocab_size=V, has_head=True, rngs=rngs
        ),
        tokens="int32 [..., T]",
        token_types="int32 [..., T]",
        returns=FEATURES | {"logits": "[..., T, V]"},
    ),
    "PredictionHead": module(
        lambda rngs: PredictionHead(config(), rngs=rngs),
        features="[..., T, D]",
        parameters={
            "linear.kernel": "[D, D]",
            "linear.bias": "[D]",
            "norm.scale": "[D]",
            "norm.bias": "[D]",
        },
        returns="[..., T, D]",
    ),
    "MeanPooling": module(
        lambda rngs: MeanPooling(),
        parameters={},
        features="[..., S, D]",
        lengths="int32 [...]",
        returns="[..., D]",
    ),
    "ClassToken": module(
        lambda rngs: ClassToken(D, rngs=rngs),
        lambda module, vectors, lengths: module.before(vectors, lengths),
        parameters={"vector": "[1, D]"},
        vectors="[..., S, D]",
        lengths="int32 [...]",
        returns=("[..., 1 + S, D]", "int32 [...]"),
    ),
    "ClassToken: features": module(
        lambda rngs: ClassToken(D, rngs=rngs),
        features="[..., 1 + S, D]",
        lengths="int32 [...]",
        returns="[..., D]",
    ),
    "Classifier": module(
        lambda rngs: Classifier.from_config(
            config(),
            Embedding.from_config(V, config(), rngs=rngs),
            num_classes=C,
            pooling="class_token",
            rngs=rngs,
        ),
        lambda model, inputs, lengths: model(
            inputs, lengths=lengths, returning=("weights", "hidden_states")
        ),
        inputs="int32 [..., S]",
        lengths="int32 [...]",
        returns={
            "logits": "[..., C]",
            "features": "[..., 1 + S, D]",
            "hidden_states": ["[..., 1 + S, D]"] * 3,
            "attention": [{"self_attention": {"weights": "[..., N, 1 + S, 1 + S]"}}] * 2,
        },
    ),
    "Classifier: images": module(
        lambda rngs: Classifier.from_config(
            config(),
            PatchEmbedding.from_config(
                config(positions="learned"),
                image_shape=(3 * SIZE.T, 3 * SIZE.S, 2),
                patch_size=3,
                rngs=rngs,
            ),
            num_classes=C,
            rngs=rngs,
        ),
        lambda model, inputs: model(inputs),
        inputs="[..., 3*T, 3*S, 2]",
        returns={"logits": "[..., C]", "features": "[..., T*S, D]"},
    ),
    "EncoderDecoder": module(
        translator,
        lambda model, source, target, source_lengths: model(
            source,
            target,
            source_lengths=source_lengths,
            returning=("weights", "hidden_states"),
        ),
        source="int32 [..., S]",
        target="int32 [..., T]",
        source_lengths="int32 [...]",
        returns=FEATURES
        | {
            "logits": "[..., T, V]",
            "attention": [WEIGHTS | CROSS] * L,
            "hidden_states": ["[..., T, D]"] * (L + 1),
            "encoder": {
                "features": "[..., S, D]",
                "attention": [{"self_attention": {"weights": "[..., N, S, S]"}}] * 2,
                "hidden_states": ["[..., S, D]"] * 3,
            },
        },
    ),
    "EncoderDecoder: prefill, step": module(
        translator,
        prefill_and_step,
        inputs="int32 [B, S]",
        lengths="int32 [B]",
        returns={"logits": "[B, V]", "features": "[B, 1, D]"},
    ),
    **{
        f"LanguageModel: positions {name}": module(
            lambda rngs, name=name: language_model(rngs, positions=name),
            lambda model, tokens: model(tokens),
            tokens="int32 [..., T]",
            returns={"logits": "[..., T, V]"},
        )
        for name in POSITIONS
    },
    **{
        f"Classifier: pooling {name}": module(
            lambda rngs, name=name: Classifier.from_config(
                config(),
                Embedding(V, D, rngs=rngs),
                num_classes=C,
                pooling=name,
                rngs=rngs,
            ),
            lambda model, inputs: model(inputs),
            inputs="int32 [..., S]",
            returns={"logits": "[..., C]"},
        )
        for name in POOLINGS
    },
}

ADAPTATION = {
    "lora_factors": module(
        lambda rngs: SelfAttention(D, **HEADS, rngs=rngs),
        lambda module, rng: lora_factors(module, "query.kernel", "output.kernel", rank=R, rng=rng),
        rng="key []",
        returns={
            "query.kernel": {"down": "[D, R]", "up": "[R, N*H]"},
            "output.kernel": {"down": "[N*H, R]", "up": "[R, D]"},
        },
    ),
    "lora_factors: stacked layers": module(
        lambda rngs: Layers(feed_forward, L, rngs=rngs),
        lambda module, rng: lora_factors(module, "*.up.kernel", rank=R, rng=rng),
        rng="key []",
        returns={"blocks.0.up.kernel": {"down": "[L, D, R]", "up": "[L, R, F]"}},
    ),
    "lora_factors: a matrix without axis names": shapes(
        lambda kernel, rng: lora_factors({"kernel": kernel}, "*", rank=R, rng=rng),
        kernel="[D, F]",
        rng="key []",
        returns={"kernel": {"down": "[D, R]", "up": "[R, F]"}},
    ),
    "apply_lora": module(
        lambda rngs: SelfAttention(D, **HEADS, rngs=rngs),
        lambda module, rng: apply_lora(
            module, lora_factors(module, "query.kernel", rank=R, rng=rng)
        ),
        rng="key []",
        returns={"query": {"kernel": "[D, N, H]"}},
    ),
}

RECURRENT = {
    "RecurrentEncoder": layer(
        lambda rngs: RecurrentEncoder(D, F, rngs=rngs),
        inputs="[..., S, D]",
        lengths="int32 [...]",
        returns={"features": "[..., S, 2*F]"},
    ),
    "RecurrentDecoder": layer(
        lambda rngs: RecurrentDecoder(
            linear({"embed": 2 * F}, {"hidden": F}, rngs=rngs),
            AdditiveAttention(F, 2 * F, rngs=rngs),
            BahdanauStep(D, F, 2 * F, cell=CELLS["gru"], rngs=rngs),
        ),
        returning=("weights", "logsumexp", "largest_score"),
        inputs="[..., T, D]",
        encoder_output="[..., S, 2*F]",
        returns={
            "features": "[..., T, F + D + 2*F]",
            "attention": [
                {
                    "cross_attention": {
                        "weights": "[..., 1, T, S]",
                        "logsumexp": "[..., 1, T]",
                        "largest_score": "[..., 1, T]",
                    }
                }
            ],
        },
    ),
    **{
        attention.__name__: module(
            lambda rngs, attention=attention: attention(F, E, rngs=rngs),
            lambda module, state, encoder_output: module(state, module.precompute(encoder_output)),
            parameters=parameters,
            state="[..., F]",
            encoder_output="[..., S, E]",
            returns="[..., 1, 1, E]",
        )
        for attention, parameters in (
            (
                AdditiveAttention,
                {
                    "query.kernel": "[F, F]",
                    "key.kernel": "[E, F]",
                    "key.bias": "[F]",
                    "vector": "[1, F]",
                },
            ),
            (MultiplicativeAttention, {"query.kernel": "[F, E]"}),
        )
    },
    "BahdanauStep": module(
        lambda rngs: BahdanauStep(D, F, C, cell=CELLS["gru"], rngs=rngs),
        lambda module, state, token, context: module(
            module.start(state), token, lambda state: context
        ),
        state="[..., F]",
        token="[..., D]",
        context="[..., C]",
        returns=("[..., F]", "[..., F + D + C]"),
    ),
    "LuongStep": module(
        lambda rngs: LuongStep(D, F, C, cell=CELLS["lstm"], rngs=rngs),
        lambda module, state, token, context: module(
            module.start(state), token, lambda state: context
        ),
        state="[..., F]",
        token="[..., D]",
        context="[..., C]",
        returns=((("[..., F]", "[..., F]"), "[..., F]"), "[..., F]"),
    ),
    "RecurrentLayer": layer(
        lambda rngs: RecurrentLayer(D, hidden=F, rngs=rngs),
        parameters={
            "gate.kernel": "[D, F]",
            "gate.bias": "[F]",
            "candidate.kernel": "[D, F]",
            "candidate.bias": "[F]",
            "output.kernel": "[F, D]",
            "output.bias": "[D]",
        },
        inputs="[..., T, D]",
        lengths="int32 [...]",
        returns=FEATURES,
    ),
    "RecurrentLayer: cache": layer(
        lambda rngs: RecurrentLayer(D, hidden=F, rngs=rngs),
        inputs="[..., T, D]",
        cache="[..., F]",
        returns=FEATURES | {"cache": "[..., F]"},
    ),
    "RecurrentEncoderDecoder": module(
        recurrent_translator,
        lambda model, source, target: model(
            source,
            target,
            source_mask=None,
            encoder_mask=None,
            returning=("logsumexp", "hidden_states"),
        ),
        source="int32 [..., S]",
        target="int32 [..., T]",
        returns={
            "logits": "[..., T, V]",
            "features": "[..., T, F + D + 2*F]",
            "attention": [{"cross_attention": {"logsumexp": "[..., 1, T]"}}],
            "hidden_states": ["[..., T, D]", "[..., T, F + D + 2*F]"],
            "encoder": {
                "features": "[..., S, 2*F]",
                "hidden_states": ["[..., S, D]", "[..., S, 2*F]"],
            },
        },
    ),
    **{
        f"RecurrentEncoderDecoder: {cell}, {attention} attention": module(
            lambda rngs, cell=cell, attention=attention: recurrent_translator(
                rngs, cell=cell, attention=attention
            ),
            lambda model, source, target: model(
                source, target, source_mask=None, encoder_mask=None
            ),
            source="int32 [..., S]",
            target="int32 [..., T]",
            returns={"logits": "[..., T, V]"},
        )
        for cell in CELLS
        for attention in ATTENTIONS
    },
}

# The parameters that a language model has by its positions; its layers share them.
POSITION_PARAMETERS = {
    "learned": {"embedding.positions.table": "[M, D]"},
    "relative": {"decoder.score.table": "[N, 32]"},
}

SHAPES = SUBLAYERS | EMBEDDINGS | MODELS | ADAPTATION | RECURRENT


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name):
    check(SHAPES[name])


@pytest.mark.parametrize("name", POSITIONS)
def test_parameters_of_positions(name):
    plain, model = (
        select_parameters(
            jax.eval_shape(lambda each=each: language_model(nnx.Rngs(0), positions=each)), "*"
        )
        for each in ("none", name)
    )
    own = {path: leaf for path, leaf in model.items() if path not in plain}
    check_tree(own, POSITION_PARAMETERS.get(name, {}))


def test_every_public_module_has_a_line():
    names = {name for name in modules.__all__ if not inspect.ismodule(getattr(modules, name))}
    classes = inspect.getmembers(recurrent, inspect.isclass)
    names |= {name for name, each in classes if each.__module__ == recurrent.__name__}
    assert names - WITHOUT_SHAPES <= {line.split(":")[0] for line in SHAPES}
