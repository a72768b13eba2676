"""Sizes of attention heads that follow from others."""


def resolve_kv_heads(num_heads: int, num_kv_heads: int | None) -> int:
    """Return K, which is N unless given.

    Raises:
        ValueError: K does not divide N.
    """
    if num_heads < 1:
        raise ValueError(f"num_heads must be at least 1, got {num_heads}")
    num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    divisors = [n for n in range(1, num_heads + 1) if num_heads % n == 0]
    if num_kv_heads not in divisors:
        raise ValueError(
            f"num_heads={num_heads} cannot be shared evenly by num_kv_heads={num_kv_heads}: "
            f"use one of {', '.join(map(str, divisors))}"
        )
    return num_kv_heads


def resolve_head_width(width: int, num_heads: int, head_width: int | None) -> int:
    """Return H, which is D / N unless given.

    Raises:
        ValueError: D / N is no whole number.
    """
    if head_width is None:
        if width % num_heads:
            raise ValueError(
                f"width={width} is not divisible by num_heads={num_heads}: "
                "change one of them, or set head_width"
            )
        return width // num_heads
    if head_width < 1:
        raise ValueError(f"head_width must be at least 1, got {head_width}")
    return head_width
