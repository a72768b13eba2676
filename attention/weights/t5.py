"""T5 of versions 1.0 (Raffel et al. 2020) and 1.1 (Shazeer 2020)."""

from flax import nnx

from attention.modules import EncoderDecoder, Relative, TransformerConfig
from attention.weights import rules


def _config(settings: rules.Settings) -> TransformerConfig:
    width, tied = settings["d_model"], settings.get("tie_word_embeddings", True)
    if not tied:
        settings.require("scale_decoder_outputs", False)
    kind = settings.get("feed_forward_proj", "relu")
    gated, activation = kind.startswith("gated-"), kind.removeprefix("gated-")
    activation = "gelu_new" if kind == "gated-gelu" else activation
    settings.require("is_gated_act", gated)
    return TransformerConfig(
        width=width,
        num_heads=settings["num_heads"],
        head_width=settings["d_kv"],
        hidden=settings["d_ff"],
        activation=settings.activation("dense_act_fn", activation),
        gated=gated,
        norm="rms",
        norm_epsilon=settings.get("layer_norm_epsilon", 1e-6),
        positions="relative",
        relative=Relative(
            num_buckets=settings.get("relative_attention_num_buckets", 32),
            max_distance=settings.get("relative_attention_max_distance", 128),
        ),
        encoder_layers=settings["num_layers"],
        decoder_layers=settings.get("num_decoder_layers") or settings["num_layers"],
        tie="all" if tied else "embeddings",
        use_bias=False,
        attention_scale=1.0,
        embedding_scale=1.0,
        logit_scale=width**-0.5 if settings.get("scale_decoder_outputs", tied) else 1.0,
        dropout=settings.get("dropout_rate", 0.1),
        attention_dropout=settings.get("dropout_rate", 0.1),
    )


def _build(settings: rules.Settings, config: TransformerConfig, rngs: nnx.Rngs) -> EncoderDecoder:
    model = rules.encoder_decoder(settings, config, rngs)
    for embedding in (model.source_embedding, model.target_embedding):
        embedding.max_length = None  # the last bucket is for all larger distances
    return model


def _rules(settings: rules.Settings) -> list[rules.Rule]:
    up = "wi_1" if settings.get("feed_forward_proj", "relu").startswith("gated-") else "wi"
    listed = [rules.Rule("target_embedding.tokens", "shared.weight")]
    decoder = (("self_attention", "SelfAttention"), ("cross_attention", "EncDecAttention"))
    for stack, attentions in (("encoder", decoder[:1]), ("decoder", decoder)):
        ours, theirs = f"{stack}.layers.{{i}}", f"{stack}.block.{{i}}.layer"
        table = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        listed.append(rules.Rule(f"{stack}.score.table", table, rules.transposed()))
        for number, (name, long) in enumerate(attentions):
            names = [f"{long}.{each}" for each in "qkvo"]
            listed += rules.residual(f"{ours}.{name}", f"{theirs}.{number}", "layer_norm", names)
        block = f"{theirs}.{len(attentions)}"
        names = [f"DenseReluDense.{each}" for each in (up, "wo", "wi_0")]
        listed += rules.residual(f"{ours}.feed_forward", block, "layer_norm", names)
        listed += rules.norm(f"{stack}.norm", f"{stack}.final_layer_norm")
    return [*listed, *rules.linear("output", "lm_head")]


T5 = rules.Family(
    _config,
    _build,
    _rules,
    copies={
        "lm_head.weight": "shared.weight",
        "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
    },
    ignored=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
)
