"""Pictures of page 10: three stacks, the first Transformer, a sentence on its way, other inputs."""

from typing import Any

from matplotlib.figure import Figure

from docs.tutorial.pictures.diagram import Diagram
from docs.tutorial.pictures.plots import BLUE, GREY, ORANGE, panels, weight_map


def models_three(names: dict[str, Any]) -> str:
    """Draw an encoder, a decoder and both, with their words and predictions."""
    del names
    diagram = Diagram(868, 210)  # words fit with wide fonts too, as DejaVu Sans
    columns = (
        (10, "encoder", ["the", "[mask]", "creature"], ["", "blue", ""], BLUE),
        (222, "decoder", ["the", "blue", "creature"], ["blue", "creature", "roamed"], ORANGE),
        (434, "encoder", ["the", "blue", "creature"], ["", "", ""], BLUE),
        (660, "decoder", ["start", "la", "créature"], ["la", "créature", "bleue"], ORANGE),
    )
    for left, title, words, predicted, color in columns:
        diagram.box(left, 84, 198, 46, color, title)
        for column, (word, prediction) in enumerate(zip(words, predicted, strict=True)):
            x = left + 33 + 66 * column
            diagram.text(x, 172, word)
            diagram.line(x, 158, x, 132, arrow=True)
            if prediction:
                diagram.line(x, 84, x, 62, arrow=True)
                diagram.text(x, 54, prediction, bold=True)
    diagram.line(632, 107, 660, 107, arrow=True)
    titles = ((109, "BERT: fill the gap"), (321, "GPT: the next word"), (646, "both: translate"))
    for x, title in titles:
        diagram.text(x, 22, title, bold=True)
    diagram.text(109, 198, "all words see all words")
    diagram.text(321, 198, "a word sees itself and those before")
    diagram.text(646, 198, "the decoder also sees the encoder's output")
    return diagram.svg()


def models_transformer(names: dict[str, Any]) -> str:
    """Draw the encoder-decoder with the sublayers of its blocks."""
    del names
    diagram = Diagram(650, 430)
    sides = (
        (60, "source words", ["self-attention", "feed-forward network"]),
        (350, "target words, behind start",
         ["causal self-attention", "cross-attention", "feed-forward network"]),
    )  # fmt: skip
    for left, words, sublayers in sides:
        middle = left + 90
        diagram.text(middle, 420, words)
        diagram.line(middle, 406, middle, 392, arrow=True)
        diagram.box(left, 356, 180, 36, GREY, "embedding + positions", filled=False)
        top = 330 - 64 * len(sublayers)
        diagram.box(left - 22, top - 8, 224, 64 * len(sublayers) + 10, GREY, filled=False)
        for number, sublayer in enumerate(sublayers):
            y = 286 - 64 * number
            diagram.line(middle, y + (70 if number == 0 else 58), middle, y + 38, arrow=True)
            color = BLUE if "feed" in sublayer else ORANGE
            diagram.box(left, y - 6, 180, 44, color, f"{sublayer}\n+ residual, norm")
    diagram.line(150, 194, 150, 150, 300, 150, 300, 238, 350, 238, arrow=True)
    diagram.text(225, 142, "keys and values")
    diagram.line(440, 130, 440, 106, arrow=True)
    diagram.box(350, 66, 180, 40, GREY, "scores of all words", filled=False)
    diagram.line(440, 66, 440, 44, arrow=True)
    diagram.text(440, 34, "target words, one place further", bold=True)
    diagram.text(150, 112, "encoder: n blocks", bold=True)
    diagram.text(602, 154, "decoder:", bold=True)
    diagram.text(602, 172, "n blocks", bold=True)
    return diagram.svg()


def models_walk(names: dict[str, Any]) -> Figure:
    """Draw the three attentions of a blue creature."""
    english, french = ["a", "blue", "creature"], ["<start>", "une", "créature"]
    output = names["model"].encode(names["source"][names["number"]], returning=("weights",))
    encoder = output.attention[-1]["self_attention"]["weights"].mean(axis=0)
    figure, axes = panels(3, width=3.2, height=3.0)
    weight_map(axes[0], encoder, english, english, title="encoder")
    weight_map(axes[1], names["own"], french, french, title="decoder, causal")
    predicted = ["predicts une", "predicts créature", "predicts bleue"]
    weight_map(axes[2], names["cross"], predicted, english, title="cross-attention")
    return figure


def models_inputs(names: dict[str, Any]) -> str:
    """Draw an image of patches and a recording of frames, both as sequences."""
    del names
    diagram = Diagram(700, 234)
    shades = ["#08306b", "#2166ac", "#6baed6", "#c6dbef"]
    for number in range(16):
        row, column = divmod(number, 4)
        shade = shades[(row * 3 + column * 2) % 4]
        diagram.box(20 + 26 * column, 40 + 26 * row, 24, 24, shade)
        diagram.box(330 + 22 * number, 40, 18, 34, shade)
    diagram.text(20, 26, "an image, 16 patches", anchor="start")
    diagram.text(505, 26, "16 vectors of D numbers")
    diagram.line(140, 92, 200, 92, 200, 57, 322, 57, arrow=True)
    diagram.text(262, 50, "one matrix")
    for number in range(16):
        height = (8, 20, 34, 26, 12, 30, 38, 18, 10, 24, 36, 28, 14, 22, 32, 16)[number]
        x = 20 + 8 * number
        diagram.line(x, 199 - height / 2, x, 199 + height / 2, color=ORANGE)
        if number % 2 == 0:
            diagram.box(330 + 44 * (number // 2), 182, 18, 34, ORANGE)
    diagram.text(20, 172, "speech, 10 ms each", anchor="start")
    diagram.text(505, 170, "half as many vectors of D numbers")
    diagram.line(156, 199, 322, 199, arrow=True)
    diagram.text(240, 192, "two convolutions")
    return diagram.svg()


PICTURES = (models_three, models_transformer, models_walk, models_inputs)
