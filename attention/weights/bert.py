"""BERT as a masked language model (Devlin et al. 2019)."""

from attention.modules import MaskedLanguageModel, TransformerConfig
from attention.weights import rules


def _config(settings: rules.Settings) -> TransformerConfig:
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


def _rules(_: rules.Settings) -> list[rules.Rule]:
    ours, theirs, tables = "encoder.layers.{i}", "bert.encoder.layer.{i}", "bert.embeddings"
    names = ("self.query", "self.key", "self.value", "output.dense")
    dense = ("intermediate.dense", "output.dense")
    return [
        rules.Rule("embedding.tokens", f"{tables}.word_embeddings.weight"),
        rules.Rule("embedding.positions.table", f"{tables}.position_embeddings.weight"),
        rules.Rule("embedding.token_types", f"{tables}.token_type_embeddings.weight"),
        *rules.norm("embedding.norm", f"{tables}.LayerNorm"),
        *rules.residual(f"{ours}.self_attention", f"{theirs}.attention", "output.LayerNorm", names),
        *rules.residual(f"{ours}.feed_forward", theirs, "output.LayerNorm", dense),
        *rules.linear("head.linear", "cls.predictions.transform.dense"),
        *rules.norm("head.norm", "cls.predictions.transform.LayerNorm"),
        rules.Rule("embedding.bias", "cls.predictions.bias"),
        *rules.linear("output", "cls.predictions.decoder"),
    ]


BERT = rules.Family(
    _config,
    rules.from_config(MaskedLanguageModel, "vocab_size", has_head=True),
    _rules,
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
