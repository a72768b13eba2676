"""How a trained model writes."""

from dataclasses import dataclass
from typing import ClassVar

from experiments.config.build import option
from experiments.errors import check_at_least, check_finite, check_seed, one_of
from experiments.registry import METRICS


@dataclass(frozen=True, kw_only=True)
class SearchPart:
    """Greedy decoding, or beam search if `num_beams` is above 1."""

    num_beams: int = option(1, "hypotheses of a sentence")
    hypotheses: int = option(100, "hypotheses at once, of all sentences")
    length_penalty: float = option(0.0, "alpha of the length penalty of GNMT; 0: none")
    n_best: int = option(1, "translations of a sentence with --format=json")
    metrics: tuple[str, ...] = option(
        ("exact_match", "bleu", "chrf"), "of the translations, when a model is evaluated"
    )

    def __post_init__(self) -> None:
        """Check the fields."""
        for name in ("num_beams", "hypotheses", "n_best"):
            check_at_least(name, getattr(self, name), 1)
        check_finite("length_penalty", self.length_penalty)
        if self.n_best > self.num_beams:
            raise ValueError(f"n_best={self.n_best} is more than num_beams={self.num_beams}")
        for name in self.metrics:
            one_of("metrics", name, tuple(METRICS))


@dataclass(frozen=True, kw_only=True)
class SamplingPart:
    """Random tokens, without the least probable ones."""

    STRATEGIES: ClassVar[tuple[str, ...]] = ("sample", "greedy")
    strategy: str = option("sample", "sample, or greedy, which ignores the next five fields")
    temperature: float = option(0.8, "of the distribution; below 1 it is narrower")
    top_k: int = option(0, "most probable tokens that may be drawn; 0: all")
    top_p: float = option(0.95, "probability of the tokens that may be drawn")
    min_p: float = option(0.0, "lowest probability of a token ÷ that of the most probable one")
    seed: int = option(0, "of the random tokens")
    max_tokens: int = option(300, "longest continuation")

    def __post_init__(self) -> None:
        """Check the fields."""
        one_of("strategy", self.strategy, self.STRATEGIES)
        check_at_least("max_tokens", self.max_tokens, 1)
        check_at_least("top_k", self.top_k, 0)
        check_seed("seed", self.seed)
        if not 1e-30 <= self.temperature <= 1e30:
            raise ValueError(
                f"temperature must be in [1e-30, 1e30], got {self.temperature}; for 0 choose "
                "strategy=greedy"
            )
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p must be in [0, 1], got {self.min_p}")


@dataclass(frozen=True, kw_only=True)
class PretrainedPart(SamplingPart):
    """Text generation with a released checkpoint."""

    STRATEGIES: ClassVar[tuple[str, ...]] = ("auto", "sample", "greedy")
    strategy: str = option("auto", "auto: greedy for encoder-decoders, sample for others")
    max_tokens: int = option(100, "longest continuation")
    num_beams: int = option(1, "above 1: beam search, in place of sampling")
    length_penalty: float = option(0.0, "alpha of the length penalty of GNMT; 0: none")

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        check_at_least("num_beams", self.num_beams, 1)
        check_finite("length_penalty", self.length_penalty)
