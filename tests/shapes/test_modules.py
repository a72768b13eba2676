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
    Context,
    Embedding,
    FeedForward,
    Layers,
    SelfAttention,
    linear,
    lora_factors,
    recurrent,
    select_parameters,
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
    return modules.TransformerConfig(**(HEADS | sizes | changes))


def layer(build, signature, /, *, returning=(), **line):
    """Line of a layer: every argument but `inputs` is a field of the context."""

    def call(module, inputs, **fields):
        return module(inputs, context=Context(**fields, returning=returning))

    return module(build, signature, call, **line)


def language_model(rngs, **changes):
    return modules.LanguageModel.from_config(config(**changes), vocab_size=V, rngs=rngs)


def translator(rngs):
    sizes = {"source_vocab_size": U, "target_vocab_size": V}
    return modules.EncoderDecoder.from_config(config(), **sizes, rngs=rngs)


def recurrent_translator(rngs):
    settings = recurrent.RecurrentConfig(embedding_width=D, hidden=F, max_length=M)
    sizes = {"source_vocab_size": U, "target_vocab_size": V}
    return recurrent.RecurrentEncoderDecoder.from_config(settings, **sizes, rngs=rngs)


def patch_embedding(rngs):
    images = {"image_shape": (3 * SIZE.T, 3 * SIZE.S, 2), "patch_size": 3}
    return modules.PatchEmbedding(D, **images, rngs=rngs)


def self_attention(rngs):
    return SelfAttention(D, **HEADS, rngs=rngs)


def feed_forward(rngs):
    return FeedForward(D, F, rngs=rngs)


def feed_forward_layers(rngs):
    return Layers(lambda index, rngs: FeedForward(D, F, rngs=rngs), L, rngs=rngs)


def read_after_empty_cache(attention, inputs):
    spec = modules.CacheSpec(batch=inputs.shape[:-2], size=M)
    return attention(inputs, context=Context(cache=attention.new_cache(spec)))


def read_after(model, tokens, slots=M, **options):
    """Read tokens with a new cache."""
    return model(tokens, cache=model.new_cache(tokens.shape[:-1], slots, **options))


def prefill_and_step(model, inputs, lengths):
    state, _ = model.prefill(inputs, lengths, max_tokens=M - SIZE.S)
    return model.step(state, inputs[:, 0])[0]


def step_after_start(step, state, token, context):
    return step(step.start(state), token, lambda state: context)


FEATURES = {"features": "[..., T, D]"}
WEIGHTS = {"self_attention": {"weights": "[..., N, T, T]"}}
CROSS = {"cross_attention": {"weights": "[..., N, T, S]"}}
CACHE = {"key_slots": "[..., K, M, H]", "value_slots": "[..., K, M, H]", "lengths": "int32 [...]"}

SUBLAYERS = {
    "linear": module(
        lambda rngs: linear({"embed": D}, {"heads": N, "head": H}, rngs=rngs),
        "inputs: [..., D] -> [..., N, H]",
        parameters="kernel: [D, N, H], bias: [N, H]",
    ),
    "layer_norm": module(
        lambda rngs: modules.layer_norm(D, rngs=rngs),
        "inputs: [..., D] -> [..., D]",
        parameters="scale: [D], bias: [D]",
    ),
    "rms_norm": module(
        lambda rngs: modules.rms_norm(D, rngs=rngs),
        "inputs: bfloat16 [..., D] -> bfloat16 [..., D]",
        parameters="scale: [D]",
    ),
    "Norm": module(
        lambda rngs: modules.Norm(D, is_centred=False, param_dtype="bfloat16", rngs=rngs),
        "inputs: [..., D] -> [..., D]",
        parameters="scale: bfloat16 [D]",
    ),
    "drop": shapes(
        lambda inputs, rng: modules.drop(inputs, 0.1, rng),
        "inputs: [..., D], rng: key [] -> [..., D]",
    ),
    "FeedForward": layer(
        feed_forward,
        "inputs: [..., T, D] -> [..., T, D]",
        parameters="up.kernel: [D, F], up.bias: [F], down.kernel: [F, D], down.bias: [D]",
    ),
    "FeedForward: gated, no biases": layer(
        lambda rngs: FeedForward(D, F, gated=True, use_bias=False, rngs=rngs),
        "inputs: [..., T, D] -> [..., T, D]",
        parameters="up.kernel: [D, F], gate.kernel: [D, F], down.kernel: [F, D]",
    ),
    "SelfAttention": layer(
        self_attention,
        "inputs: [..., T, D], lengths: int32 [...]",
        returning=("weights", "logsumexp"),
        parameters="query.kernel: [D, N, H], query.bias: [N, H], key.kernel: [D, K, H], "
        "key.bias: [K, H], value.kernel: [D, K, H], value.bias: [K, H], "
        "output.kernel: [N, H, D], output.bias: [D]",
        returns=FEATURES | {"attention": {"weights": "[..., N, T, T]", "logsumexp": "[..., N, T]"}},
    ),
    "SelfAttention: rotary, window, positions": layer(
        lambda rngs: SelfAttention(D, **HEADS, rotary=modules.Rotary(), window=2, rngs=rngs),
        "inputs: [..., T, D], positions: int32 [..., T] -> features: [..., T, D]",
    ),
    "SelfAttention: default sizes": layer(
        lambda rngs: SelfAttention(2 * N, num_heads=N, use_bias=False, qk_norm="rms", rngs=rngs),
        "inputs: [..., T, 2*N] -> features: [..., T, 2*N]",
        parameters="query.kernel: [2*N, N, 2], key.kernel: [2*N, N, 2], "
        "value.kernel: [2*N, N, 2], output.kernel: [N, 2, 2*N], "
        "query_norm.scale: [2], key_norm.scale: [2]",
    ),
    "SelfAttention: cache": module(
        self_attention,
        "inputs: [..., T, D]",
        read_after_empty_cache,
        returns=FEATURES | {"cache": CACHE},
    ),
    "CrossAttention": layer(
        lambda rngs: modules.CrossAttention(
            D, **HEADS, value_width=SIZE.Hv, source_width=E, rngs=rngs
        ),
        "inputs: [..., T, D], encoder_output: [..., S, E]",
        returning=("weights",),
        parameters="query.kernel: [D, N, H], query.bias: [N, H], key.kernel: [E, K, H], "
        "key.bias: [K, H], value.kernel: [E, K, Hv], value.bias: [K, Hv], "
        "output.kernel: [N, Hv, D], output.bias: [D]",
        returns=FEATURES | {"attention": {"weights": "[..., N, T, S]"}},
    ),
    "Residual": layer(
        lambda rngs: modules.Residual(modules.rms_norm(D, rngs=rngs), feed_forward(rngs)),
        "inputs: [..., T, D] -> features: [..., T, D]",
        parameters="norm.scale: [D], sublayer.up.kernel: [D, F], sublayer.up.bias: [F], "
        "sublayer.down.kernel: [F, D], sublayer.down.bias: [D]",
    ),
    "Block": layer(
        lambda rngs: modules.Block(first=feed_forward(rngs), second=modules.rms_norm(D, rngs=rngs)),
        "inputs: [..., T, D] -> features: [..., T, D]",
        parameters="first.up.kernel: [D, F], first.up.bias: [F], first.down.kernel: [F, D], "
        "first.down.bias: [D], second.scale: [D]",
    ),
    "transformer_block": layer(
        lambda rngs: modules.transformer_block(config(), cross=True, rngs=rngs),
        "inputs: [..., T, D], encoder_output: [..., S, D]",
        returning=("weights",),
        returns=FEATURES | {"attention": WEIGHTS | CROSS},
    ),
    "Layers": layer(
        feed_forward_layers,
        "inputs: [..., T, D]",
        returning=("hidden_states",),
        parameters="blocks.0.up.kernel: [L, D, F], blocks.0.up.bias: [L, F], "
        "blocks.0.down.kernel: [L, F, D], blocks.0.down.bias: [L, D]",
        returns=FEATURES | {"hidden_states": ["[..., T, D]"] * (L + 1)},
    ),
    "unstack_layers": module(
        feed_forward_layers,
        "",
        modules.unstack_layers,
        returns={"blocks": [{"up": {"kernel": "[D, F]", "bias": "[F]"}}] * L},
    ),
    **{
        f"linear: {name}": module(
            lambda rngs, init=init: linear({"embed": D}, {"x": F}, kernel_init=init, rngs=rngs),
            "inputs: [..., D] -> [..., F]",
        )
        for name, init in modules.INITIALIZERS.items()
    },
    **{
        f"FeedForward: {name}": layer(
            lambda rngs, name=name: FeedForward(D, F, activation=name, rngs=rngs),
            "inputs: [..., T, D] -> [..., T, D]",
        )
        for name in modules.ACTIVATIONS
    },
}

EMBEDDINGS = {
    "Embedding": module(
        lambda rngs: Embedding(
            V,
            D,
            positions=modules.LearnedPositions(M, D, rngs=rngs),
            num_token_types=2,
            output_bias=True,
            rngs=rngs,
        ),
        "tokens: int32 [..., T], positions: int32 [..., T], token_types: int32 [..., T] "
        "-> [..., T, D]",
        parameters="tokens: [V, D], token_types: [2, D], positions.table: [M, D], bias: [V]",
    ),
    "Embedding: unembed": module(
        lambda rngs: Embedding(V, D, rngs=rngs),
        "features: [..., T, D] -> [..., T, V]",
        Embedding.unembed,
    ),
    "PatchEmbedding": module(
        patch_embedding,
        "images: [..., 3*T, 3*S, 2] -> [..., T*S, D]",
        parameters="projection.kernel: [3*3*2, D], projection.bias: [D]",
    ),
    "LearnedPositions": module(
        lambda rngs: modules.LearnedPositions(M, D, rngs=rngs),
        "positions: int32 [..., T] -> [..., T, D]",
        lambda module, positions: module(positions, D),
        parameters="table: [M, D]",
    ),
    "Rotary": shapes(
        modules.Rotary(scaling="yarn", factor=2.0),
        "vectors: [..., T, N, H], positions: int32 [..., T] -> [..., T, N, H]",
    ),
    "RelativeScores": module(
        lambda rngs: modules.RelativeScores(
            N, modules.Relative(num_buckets=14), causal=True, rngs=rngs
        ),
        "-> table: [N, 14]",
        parameters="table: [N, 14]",
    ),
    "AlibiScores": module(lambda rngs: modules.AlibiScores(N), "-> slopes: [N]", parameters=""),
}

MODELS = {
    "Encoder": layer(
        lambda rngs: modules.Encoder.from_config(config(), rngs=rngs),
        "inputs: [..., T, D], lengths: int32 [...]",
        returning=("weights", "hidden_states"),
        returns=FEATURES | {"attention": [WEIGHTS] * 2, "hidden_states": ["[..., T, D]"] * 3},
    ),
    "Decoder": layer(
        lambda rngs: modules.Decoder.from_config(config(), rngs=rngs),
        "inputs: [..., T, D], encoder_output: [..., S, D]",
        returning=("weights",),
        returns=FEATURES | {"attention": [WEIGHTS | CROSS] * L},
    ),
    "Decoder: cross-attention in every second layer": layer(
        lambda rngs: modules.Decoder.from_config(
            config(per_layer=[{"cross_attention": False}, {}]), rngs=rngs
        ),
        "inputs: [..., T, D], encoder_output: [..., S, D]",
        returning=("weights",),
        returns=FEATURES | {"attention": [WEIGHTS, WEIGHTS | CROSS]},
    ),
    "make_output": module(
        lambda rngs: modules.make_output(config(tie="none", output_bias=True), V, rngs),
        "features: [..., T, D] -> [..., T, V]",
        parameters="kernel: [D, V], bias: [V]",
    ),
    "LanguageModel": module(
        language_model,
        "tokens: int32 [..., T]",
        returning=("weights", "hidden_states"),
        returns=FEATURES
        | {
            "logits": "[..., T, V]",
            "attention": [WEIGHTS] * L,
            "hidden_states": ["[..., T, D]"] * (L + 1),
        },
    ),
    "LanguageModel: packed": module(
        language_model,
        "tokens: int32 [..., T], segments: int32 [..., T], positions: int32 [..., T] "
        "-> logits: [..., T, V]",
        lambda model, tokens, segments, positions: model(
            tokens, mask=masks.segments(segments), embedding_positions=positions
        ),
    ),
    "LanguageModel: cache": module(
        language_model,
        "tokens: int32 [..., T]",
        read_after,
        returns={
            "logits": "[..., T, V]",
            "cache": {"layers": [{"self_attention": CACHE, "feed_forward": None}] * L},
        },
    ),
    "LanguageModel: ring": module(
        lambda rngs: language_model(rngs, positions="alibi"),
        "tokens: int32 [..., T]",
        read_after,
        slots=2,
        ring=True,
        returns={
            "logits": "[..., T, V]",
            "cache": {
                "layers": [
                    {"self_attention": {"key_slots": "[..., K, 2, H]"}, "feed_forward": None}
                ]
                * L
            },
        },
    ),
    "LanguageModel: prefill, step": module(
        language_model,
        "inputs: int32 [B, S], lengths: int32 [B] -> logits: [B, V], features: [B, 1, D]",
        prefill_and_step,
    ),
    "MaskedLanguageModel": module(
        lambda rngs: modules.MaskedLanguageModel.from_config(
            config(num_token_types=2), vocab_size=V, has_head=True, rngs=rngs
        ),
        "tokens: int32 [..., T], token_types: int32 [..., T] "
        "-> logits: [..., T, V], features: [..., T, D]",
    ),
    "PredictionHead": module(
        lambda rngs: modules.PredictionHead(config(), rngs=rngs),
        "features: [..., T, D] -> [..., T, D]",
        parameters="linear.kernel: [D, D], linear.bias: [D], norm.scale: [D], norm.bias: [D]",
    ),
    "MeanPooling": module(
        lambda rngs: modules.MeanPooling(),
        "features: [..., S, D], lengths: int32 [...] -> [..., D]",
        parameters="",
    ),
    "ClassToken": module(
        lambda rngs: modules.ClassToken(D, rngs=rngs),
        "vectors: [..., S, D], lengths: int32 [...] -> [..., 1 + S, D], int32 [...]",
        modules.ClassToken.before,
        parameters="vector: [1, D]",
    ),
    "ClassToken: features": module(
        lambda rngs: modules.ClassToken(D, rngs=rngs),
        "features: [..., 1 + S, D], lengths: int32 [...] -> [..., D]",
    ),
    "Classifier": module(
        lambda rngs: modules.Classifier(
            config(), Embedding(V, D, rngs=rngs), num_classes=C, pooling="class_token", rngs=rngs
        ),
        "inputs: int32 [..., S], lengths: int32 [...]",
        returning=("weights", "hidden_states"),
        returns={
            "logits": "[..., C]",
            "features": "[..., 1 + S, D]",
            "hidden_states": ["[..., 1 + S, D]"] * 3,
            "attention": [{"self_attention": {"weights": "[..., N, 1 + S, 1 + S]"}}] * 2,
        },
    ),
    "Classifier: images": module(
        lambda rngs: modules.Classifier(config(), patch_embedding(rngs), num_classes=C, rngs=rngs),
        "inputs: [..., 3*T, 3*S, 2] -> logits: [..., C], features: [..., T*S, D]",
    ),
    "EncoderDecoder": module(
        translator,
        "source: int32 [..., S], target: int32 [..., T], source_lengths: int32 [...]",
        returning=("weights", "hidden_states"),
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
        "inputs: int32 [B, S], lengths: int32 [B] -> logits: [B, V], features: [B, 1, D]",
        prefill_and_step,
    ),
}

ADAPTATION = {
    "lora_factors": module(
        self_attention,
        "rng: key []",
        lambda module, rng: lora_factors(module, "query.kernel", "output.kernel", rank=R, rng=rng),
        returns={
            "query.kernel": {"down": "[D, R]", "up": "[R, N*H]"},
            "output.kernel": {"down": "[N*H, R]", "up": "[R, D]"},
        },
    ),
    "lora_factors: stacked layers": module(
        feed_forward_layers,
        "rng: key []",
        lambda module, rng: lora_factors(module, "*.up.kernel", rank=R, rng=rng),
        returns={"blocks.0.up.kernel": {"down": "[L, D, R]", "up": "[L, R, F]"}},
    ),
    "lora_factors: experts": module(
        lambda rngs: modules.name_axis(feed_forward_layers(rngs).blocks[0], "experts"),
        "rng: key []",
        lambda module, rng: lora_factors(module, "up.kernel", rank=R, rng=rng),
        returns={"up.kernel": {"down": "[L, D, R]", "up": "[L, R, F]"}},
    ),
    "lora_factors: a matrix without axis names": shapes(
        lambda kernel, rng: lora_factors({"kernel": kernel}, "*", rank=R, rng=rng),
        "kernel: [D, F], rng: key []",
        returns={"kernel": {"down": "[D, R]", "up": "[R, F]"}},
    ),
    "apply_lora": module(
        self_attention,
        "rng: key []",
        lambda module, rng: modules.apply_lora(
            module, lora_factors(module, "query.kernel", rank=R, rng=rng)
        ),
        returns={"query": {"kernel": "[D, N, H]"}},
    ),
}

RECURRENT = {
    "RecurrentEncoder": layer(
        lambda rngs: recurrent.RecurrentEncoder(D, F, rngs=rngs),
        "inputs: [..., S, D], lengths: int32 [...] -> features: [..., S, 2*F]",
    ),
    "RecurrentDecoder": layer(
        lambda rngs: recurrent.RecurrentDecoder(
            linear({"embed": 2 * F}, {"hidden": F}, rngs=rngs),
            recurrent.AdditiveAttention(F, 2 * F, rngs=rngs),
            recurrent.BahdanauStep(D, F, 2 * F, cell=recurrent.CELLS["gru"], rngs=rngs),
        ),
        "inputs: [..., T, D], encoder_output: [..., S, 2*F]",
        returning=("weights", "logsumexp", "largest_score"),
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
            "state: [..., F], encoder_output: [..., S, E] -> [..., 1, 1, E]",
            lambda module, state, encoder_output: module(state, module.precompute(encoder_output)),
            parameters=parameters,
        )
        for attention, parameters in {
            recurrent.AdditiveAttention: "query.kernel: [F, F], key.kernel: [E, F], key.bias: [F], "
            "vector: [1, F]",
            recurrent.MultiplicativeAttention: "query.kernel: [F, E]",
        }.items()
    },
    "BahdanauStep": module(
        lambda rngs: recurrent.BahdanauStep(D, F, C, cell=recurrent.CELLS["gru"], rngs=rngs),
        "state: [..., F], token: [..., D], context: [..., C] -> [..., F], [..., F + D + C]",
        step_after_start,
    ),
    "LuongStep": module(
        lambda rngs: recurrent.LuongStep(D, F, C, cell=recurrent.CELLS["lstm"], rngs=rngs),
        "state: [..., F], token: [..., D], context: [..., C]",
        step_after_start,
        returns=((("[..., F]", "[..., F]"), "[..., F]"), "[..., F]"),
    ),
    "RecurrentLayer": layer(
        lambda rngs: modules.RecurrentLayer(D, hidden=F, rngs=rngs),
        "inputs: [..., T, D], lengths: int32 [...] -> features: [..., T, D]",
        parameters="gate.kernel: [D, F], gate.bias: [F], candidate.kernel: [D, F], "
        "candidate.bias: [F], output.kernel: [F, D], output.bias: [D]",
    ),
    "RecurrentLayer: cache": layer(
        lambda rngs: modules.RecurrentLayer(D, hidden=F, rngs=rngs),
        "inputs: [..., T, D], cache: [..., F] -> features: [..., T, D], cache: [..., F]",
    ),
    "RecurrentEncoderDecoder": module(
        recurrent_translator,
        "source: int32 [..., S], target: int32 [..., T]",
        source_mask=None,
        encoder_mask=None,
        returning=("logsumexp", "hidden_states"),
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


@pytest.mark.parametrize("name", modules.POSITIONS)
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
