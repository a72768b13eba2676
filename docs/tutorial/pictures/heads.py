"""Pictures of page 5: three heads, shared keys and values, and memory by length."""

from typing import Any

from matplotlib.figure import Figure

from docs.tutorial.pictures.diagram import Diagram
from docs.tutorial.pictures.plots import BLUE, ORANGE, panels, weight_map


def heads_three(names: dict[str, Any]) -> Figure:
    """Draw the weights of three heads."""
    words = names["words"]
    figure, axes = panels(3, width=3.9, height=3.9)
    for head, (axis, (who, what)) in enumerate(zip(axes, names["questions"], strict=True)):
        title = f"head {head + 1}: {who} → {what}"
        weight_map(axis, names["weights"][head], words, words, title=title, largest=0.6)
    return figure


def heads_groups(names: dict[str, Any]) -> str:
    """Draw which query head reads which key/value head, with parameters and cache."""
    diagram = Diagram(760, 286)
    kinds = (("multi-head", 8, 32), ("grouped-query", 2, 8), ("multi-query", 1, 1))
    for column, (title, shown, number) in enumerate(kinds):
        left = 20 + 250 * column
        diagram.text(left + 104, 22, f"{title}, K = {shown} of N = 8", bold=True)
        diagram.text(left + 104, 44, "8 query heads")
        diagram.text(left + 104, 172, f"{shown} key/value head{'s' if shown > 1 else ''}")
        wide = 26 * 8 // shown
        for head in range(8):
            diagram.box(left + 26 * head, 54, 22, 30, BLUE)
            group = head * shown // 8
            diagram.line(left + 26 * head + 11, 84, left + wide * group + wide / 2 - 2, 124)
        for group in range(shown):
            diagram.box(left + wide * group + wide / 2 - 13, 124, 22, 30, ORANGE)
        millions = names["parameters"](4096, 32, number, 128) / 1e6
        gibibytes = names["cache_bytes"](32, number, 128, tokens=8192) / 2**30
        diagram.text(left + 104, 216, f"Llama 3 8B, N = 32, K = {number}", bold=True)
        diagram.text(left + 104, 238, f"{millions:.0f} million attention parameters")
        diagram.text(left + 104, 256, f"a layer; {gibibytes:g} GiB of cache")
        diagram.text(left + 104, 274, "for 8,192 tokens")
    diagram.line(10, 190, 750, 190)
    return diagram.svg()


def heads_memory(names: dict[str, Any]) -> Figure:
    """Draw the memory of both implementations by length."""
    figure, (axis,) = panels(width=5, height=3)
    for (name, memory), color in zip(names["memory"].items(), (ORANGE, BLUE), strict=True):
        megabytes = [round(number) for number in memory]  # exact bytes depend on the machine
        axis.loglog(names["lengths"], megabytes, "o-", color=color, label=name)
    axis.set_xticks(names["lengths"], [f"{length:,}" for length in names["lengths"]])
    axis.minorticks_off()
    axis.set(xlabel="T, words", ylabel="MB, for one head", title="memory beside inputs and output")
    axis.legend()
    return figure


PICTURES = (heads_three, heads_groups, heads_memory)
