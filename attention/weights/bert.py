"""BERT as a masked language model (Devlin et al. 2019)."""

from flax import nnx

from attention.modules import MaskedLanguageModel, TransformerConfig
from attention.weights import rules
from attention.weights.rules import Family, Rule, Settings


def config(settings: Settings) -> TransformerConfig:
    """Return the config of a checkpoint."""
    settings.require("position_embedding_type", "absolute")
    settings.require("is_decoder", False)
    return TransformerConfig(
        width=settings["hidden_size"],
        num_heads=settings["num_attention_heads"],
        hidden=settings["intermediate_size"],
        activation=settings.activation("hidden_act", "gelu"),
        norm_placement="post",
        norm_epsilon=settings.get("layer_norm_eps", 1e-12),
        positions="learned",
        max_length=settings["max_position_embeddings"],
        encoder_layers=settings["num_hidden_layers"],
        tie="output" if settings.get("tie_word_embeddings", True) else "none",
        output_bias=True,
        embedding_scale=1.0,
        embedding_norm=True,
        num_token_types=settings.get("type_vocab_size", 2),
        dropout=settings.get("hidden_dropout_prob", 0.1),
        attention_dropout=settings.get("attention_probs_dropout_prob", 0.1),
    )


def build(settings: Settings, config: TransformerConfig, rngs: nnx.Rngs) -> MaskedLanguageModel:
    """Return the model of a checkpoint."""
    size = settings["vocab_size"]
    return MaskedLanguageModel.from_config(config, vocab_size=size, has_head=True, rngs=rngs)


def table(settings: Settings) -> list[Rule]:
    """Return the rules of a checkpoint."""
    del settings
    ours, theirs, tables = "encoder.layers.{i}", "bert.encoder.layer.{i}", "bert.embeddings"
    projections = ("self.query", "self.key", "self.value", "output.dense")
    return [
        Rule("embedding.tokens", f"{tables}.word_embeddings.weight"),
        Rule("embedding.positions.table", f"{tables}.position_embeddings.weight"),
        Rule("embedding.token_types", f"{tables}.token_type_embeddings.weight"),
        *rules.norm("embedding.norm", f"{tables}.LayerNorm"),
        *rules.attention(f"{ours}.self_attention.sublayer", f"{theirs}.attention", projections),
        *rules.norm(f"{ours}.self_attention.norm", f"{theirs}.attention.output.LayerNorm"),
        *rules.linear(f"{ours}.feed_forward.sublayer.up", f"{theirs}.intermediate.dense"),
        *rules.linear(f"{ours}.feed_forward.sublayer.down", f"{theirs}.output.dense"),
        *rules.norm(f"{ours}.feed_forward.norm", f"{theirs}.output.LayerNorm"),
        *rules.linear("head.linear", "cls.predictions.transform.dense"),
        *rules.norm("head.norm", "cls.predictions.transform.LayerNorm"),
        Rule("embedding.bias", "cls.predictions.bias"),
        *rules.linear("output", "cls.predictions.decoder"),
    ]


BERT = Family(
    config,
    build,
    table,
    copies={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
        "cls.predictions.bias": "cls.predictions.decoder.bias",  # of an output that is not tied
    },
    ignored=(
        "bert.pooler.*",
        "bert.embeddings.position_ids",
        "cls.seq_relationship.*",
        "cls.predictions.bias",  # of no use beside the bias of an output that is not tied
    ),
    renames=((r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias")),
)
