"""The numbers that make a Transformer, checked before anything is built."""

from dataclasses import dataclass, field

from attention.modules.norm import NORMS
from attention.modules.positions import SCHEMES, Rotary
from attention.primitives.attend import IMPLEMENTATIONS
from attention.primitives.choice import one_of


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Sizes and choices shared by every block of a Transformer.

    Attributes:
        width: D, of the embeddings and of what flows between the blocks.
        num_heads: N query heads.
        num_kv_heads: K key/value heads, a divisor of N; None means N (multi-head attention), 1 is
            multi-query attention, what lies between is grouped-query attention.
        head_width: H; None means D / N.
        hidden: F, the inner width of the feed-forward layer.
        activation: "relu", "gelu" or "gated" (SiLU-gated linear units, Shazeer 2020).
        norm: where the norms stand, "pre" (inside the residual branch) or "post" (after the
            residual sum, Vaswani et al. 2017).
        norm_kind: "layer" (Ba et al. 2016) or "rms" (Zhang and Sennrich 2019).
        qk_norm: "none", or the kind of norm of each query and key before the two are multiplied
            (Henry et al. 2020; Dehghani et al. 2023, section 2).
        positions: "none"; "sinusoidal" or "learned", which are added to the embeddings; "rotary",
            which turn the queries and keys of self-attention; "alibi" or "relative" (buckets of
            T5, one table for all layers of a stack), which change its scores.
        rotary: base and scaling of rotary positions, a `Rotary` or a mapping of its fields.
        max_length: the longest sequence; the size of the table of learned positions.
        encoder_layers: number of encoder blocks.
        decoder_layers: number of decoder blocks.
        tie: which embeddings are one table: "none"; "output" (target and output); "all" (source
            too, learned positions included; Press and Wolf 2017).
        use_bias: whether the linear layers of blocks have biases.
        dropout: rate on embeddings and on the output of every sublayer.
        attention_dropout: rate on the attention weights.
        implementation: of attention, by name as in `attention.attend`; None lets it choose.
        remat: whether the backward pass computes the inside of each block again instead of
            remembering it: far less memory, and faster where memory is what the step waits for.
            Shallow stacks without it are no loop over layers, which would copy what is remembered.
    """

    width: int = 128
    num_heads: int = 4
    num_kv_heads: int | None = None
    head_width: int | None = None
    hidden: int = 512
    activation: str = "relu"
    norm: str = "pre"
    norm_kind: str = "layer"
    qk_norm: str = "none"
    positions: str = "sinusoidal"
    rotary: Rotary = field(default_factory=Rotary)
    max_length: int = 128
    encoder_layers: int = 2
    decoder_layers: int = 2
    tie: str = "output"
    use_bias: bool = True
    dropout: float = 0.0
    attention_dropout: float = 0.0
    implementation: str | None = None
    remat: bool = True

    def __post_init__(self) -> None:
        """Fills in what follows from the rest and refuses what does not fit, in one sentence."""
        for name in ("width", "num_heads", "hidden", "max_length"):
            _check(
                getattr(self, name) >= 1, f"{name} must be at least 1, got {getattr(self, name)}"
            )
        for name in ("encoder_layers", "decoder_layers"):
            _check(
                getattr(self, name) >= 0, f"{name} must be at least 0, got {getattr(self, name)}"
            )
        for name in ("dropout", "attention_dropout"):
            rate = getattr(self, name)
            _check(0 <= rate < 1, f"{name} must lie in [0, 1), got {rate}")
        one_of("activation", self.activation, ("relu", "gelu", "gated"))
        one_of("norm", self.norm, ("pre", "post"))
        one_of("norm_kind", self.norm_kind, tuple(NORMS))
        one_of("qk_norm", self.qk_norm, ("none", *NORMS))
        one_of("positions", self.positions, tuple(SCHEMES))
        one_of("tie", self.tie, ("none", "output", "all"))
        if self.implementation is not None:
            known = tuple(one.name for one in IMPLEMENTATIONS)
            one_of("implementation", self.implementation, known)
        num_kv_heads = resolve_kv_heads(self.num_heads, self.num_kv_heads)
        head_width = resolve_head_width(self.width, self.num_heads, self.head_width)
        object.__setattr__(self, "num_kv_heads", num_kv_heads)
        object.__setattr__(self, "head_width", head_width)
        if not isinstance(self.rotary, Rotary):
            object.__setattr__(self, "rotary", Rotary(**self.rotary))
        even = SCHEMES[self.positions].even
        _check(
            even is None or getattr(self, even) % 2 == 0,
            f"{self.positions} positions need an even {even}, got {even and getattr(self, even)}",
        )


def resolve_kv_heads(num_heads: int, num_kv_heads: int | None) -> int:
    """K, which is N unless given.

    Raises:
        ValueError: K does not divide N.
    """
    _check(num_heads >= 1, f"num_heads must be at least 1, got {num_heads}")
    num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    divisors = [n for n in range(1, num_heads + 1) if num_heads % n == 0]
    _check(
        num_kv_heads in divisors,
        f"num_heads={num_heads} cannot be shared evenly by num_kv_heads={num_kv_heads}: "
        f"use one of {', '.join(map(str, divisors))}",
    )
    return num_kv_heads


def resolve_head_width(width: int, num_heads: int, head_width: int | None) -> int:
    """H, which is D / N unless given.

    Raises:
        ValueError: D / N is no whole number.
    """
    if head_width is None:
        _check(
            width % num_heads == 0,
            f"width={width} is not divisible by num_heads={num_heads}: "
            "change one of them, or set head_width",
        )
        return width // num_heads
    _check(head_width >= 1, f"head_width must be at least 1, got {head_width}")
    return head_width


def _check(holds: bool, sentence: str) -> None:
    if not holds:
        raise ValueError(sentence)
