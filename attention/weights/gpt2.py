"""GPT-2 (Radford et al. 2019)."""

from attention.modules import TransformerConfig
from attention.weights import rules
from attention.weights.rules import Family, Rule, Settings


def config(settings: Settings) -> TransformerConfig:
    """Return the config of a checkpoint."""
    for name in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        settings.require(name, False)
    width = settings["n_embd"]
    return TransformerConfig(
        width=width,
        num_heads=settings["n_head"],
        hidden=settings.get("n_inner") or 4 * width,
        activation=settings.activation("activation_function", "gelu_new"),
        norm_epsilon=settings.get("layer_norm_epsilon", 1e-5),
        positions="learned",
        max_length=settings["n_positions"],
        decoder_layers=settings["n_layer"],
        tie="output" if settings.get("tie_word_embeddings", True) else "none",
        attention_scale=None if settings.get("scale_attn_weights", True) else 1.0,
        embedding_scale=1.0,
        dropout=settings.get("resid_pdrop", 0.1),
        attention_dropout=settings.get("attn_pdrop", 0.1),
    )


def table(settings: Settings) -> list[Rule]:
    """Return the rules of a checkpoint: matrices are stored as `[inputs, outputs]`."""
    del settings
    ours, theirs = "decoder.layers.{i}", "transformer.h.{i}"
    attention, projection = f"{ours}.self_attention.sublayer", f"{theirs}.attn.c_attn"
    projections = []
    for name in ("query", "key", "value"):
        projections += [
            Rule(f"{attention}.{name}.kernel", f"{projection}.weight", rules.matrix(), axis=1),
            Rule(f"{attention}.{name}.bias", f"{projection}.bias", rules.FLAT, axis=0),
        ]
    return [
        Rule("embedding.tokens", "transformer.wte.weight"),
        Rule("embedding.positions.table", "transformer.wpe.weight"),
        *projections,
        Rule(f"{attention}.output.kernel", f"{theirs}.attn.c_proj.weight", rules.matrix(2)),
        Rule(f"{attention}.output.bias", f"{theirs}.attn.c_proj.bias"),
        *rules.norm(f"{ours}.self_attention.norm", f"{theirs}.ln_1"),
        Rule(f"{ours}.feed_forward.sublayer.up.kernel", f"{theirs}.mlp.c_fc.weight"),
        Rule(f"{ours}.feed_forward.sublayer.up.bias", f"{theirs}.mlp.c_fc.bias"),
        Rule(f"{ours}.feed_forward.sublayer.down.kernel", f"{theirs}.mlp.c_proj.weight"),
        Rule(f"{ours}.feed_forward.sublayer.down.bias", f"{theirs}.mlp.c_proj.bias"),
        *rules.norm(f"{ours}.feed_forward.norm", f"{theirs}.ln_2"),
        *rules.norm("decoder.norm", "transformer.ln_f"),
        *rules.linear("output", "lm_head"),
    ]


GPT2 = Family(
    config,
    rules.language_model,
    table,
    copies={"lm_head.weight": "transformer.wte.weight"},
    ignored=("transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias"),
    renames=((r"^(h\.|wte\.|wpe\.|ln_f\.)", r"transformer.\1"),),
)
