"""An encoder that scores the tokens at masked positions of a text."""

from collections.abc import Callable
from functools import partial

from flax import nnx
from jax import Array

from attention.modules.config import TransformerConfig
from attention.modules.context import Output, constrain_logits
from attention.modules.embeddings import Embedding
from attention.modules.feed_forward import activation_of
from attention.modules.linear import linear
from attention.modules.transformer import Encoder, MakeLayer, embed_and_apply
from attention.modules.vocabulary import make_output, score_vocabulary


class PredictionHead(nnx.Module):
    """A linear layer, an activation and a norm before the scores (Devlin et al. 2019)."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        """Make the head with the activation and the norm of a config."""
        self.linear = linear(
            {"embed": config.width},
            {"hidden": config.width},
            **config.linear_options(rngs),
        )
        self.activation = config.activation
        self.norm = config.make_norm(rngs)

    def __call__(self, features: Array) -> Array:
        """Map `[..., D]` to `[..., D]`."""
        return self.norm(activation_of(self.activation)(self.linear(features)))


class MaskedLanguageModel(nnx.Module):
    """Embed tokens, encode them, and score each position (Devlin et al. 2019, section 3.1)."""

    def __init__(
        self,
        embedding: Embedding,
        encoder: Encoder,
        *,
        head: Callable[[Array], Array] | None = None,
        output: Callable[[Array], Array] | None = None,
    ) -> None:
        """Assemble a model.

        Args:
            embedding: of the tokens.
            encoder: maps `[..., T, D]` to `[..., T, D]`.
            head: maps features before they are scored, such as `PredictionHead`.
            output: maps features to scores of the vocabulary; None for the embedding.
        """
        self.embedding = embedding
        self.encoder = encoder
        self.head = head
        self.output = output

    @classmethod
    def from_config(
        cls,
        config: TransformerConfig,
        *,
        vocab_size: int,
        rngs: nnx.Rngs,
        has_head: bool = False,
        make_layer: MakeLayer | None = None,
    ) -> "MaskedLanguageModel":
        """Make a Transformer, with the `PredictionHead` of BERT if `has_head`."""
        return cls(
            Embedding.from_config(vocab_size, config, rngs=rngs),
            Encoder.from_config(config, rngs=rngs, make_layer=make_layer),
            head=PredictionHead(config, rngs=rngs) if has_head else None,
            output=make_output(config, vocab_size, rngs),
        )

    def encode(
        self, tokens: Array, *, token_types: Array | None = None, **options: object
    ) -> Output:
        """Map tokens `[..., T]` to contextual features `[..., T, D]`.

        Args:
            tokens: ids.
            token_types: `[..., T]`, as in `Embedding`.
            options: fields of `Context`, and `embedding_positions`, as in `embed_and_apply`.
                Without a mask or lengths padding is attended to.

        Raises:
            ValueError: more tokens than `max_length`.
        """
        embedding = partial(self.embedding, token_types=token_types)
        return embed_and_apply(embedding, self.encoder, tokens, **options)

    def logits(self, features: Array) -> Array:
        """Map features `[..., D]` to scores of the vocabulary `[..., V]`."""
        features = features if self.head is None else self.head(features)
        return score_vocabulary(self.output, self.embedding, features)

    def __call__(self, tokens: Array, **options: object) -> Output:
        """Score every position of `[..., T]`: an output with logits `[..., T, V]`.

        The options are those of `encode`.
        """
        output = self.encode(tokens, **options)
        return output._replace(logits=constrain_logits(self.logits(output.features), options))
