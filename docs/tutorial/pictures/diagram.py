"""Diagrams of boxes and arrows, as SVG."""

from html import escape

from docs.tutorial.pictures.plots import GREY

HEAD = (
    '<defs><marker id="head-{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
    'markerHeight="7" orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" fill="{color}"/>'
    "</marker></defs>"
)


class Diagram:
    """A drawing on white; x runs to the right and y down, in pixels.

    Args:
        width: of the image.
        height: of the image.
    """

    def __init__(self, width: int, height: int) -> None:
        """Begin an empty drawing."""
        self.size = width, height
        self.shapes: list[str] = []
        self.heads: set[str] = set()  # colours of arrows

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        color: str,
        text: str = "",
        *,
        filled: bool = True,
    ) -> None:
        """Draw a rectangle from its upper left corner, with lines of text in its middle."""
        fill = color if filled else "white"
        self.shapes.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" '
            f'fill="{fill}" stroke="{color}"/>'
        )
        lines = text.splitlines()
        for number, line in enumerate(lines):
            middle = y + height / 2 + 15 * (number - (len(lines) - 1) / 2) + 4
            self.text(x + width / 2, middle, line, color="white" if filled else "black")

    def circle(self, x: float, y: float, radius: float, text: str) -> None:
        """Draw a circle around its centre, with a sign in it."""
        self.shapes.append(
            f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" fill="white" stroke="{GREY}"/>'
        )
        self.text(x, y + 5, text, bold=True)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        color: str = "black",
        bold: bool = False,
        anchor: str = "middle",
    ) -> None:
        """Write a line of text; `anchor` is the part of it at x: start, middle or end."""
        weight = ' font-weight="bold"' if bold else ""
        self.shapes.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{color}"{weight}>'
            f"{escape(text)}</text>"
        )

    def line(self, *points: float, arrow: bool = False, color: str = GREY) -> None:
        """Draw a line through points x, y, x, y, …, with an arrow at its end if asked."""
        path = " ".join(f"{point:g}" for point in points)
        head = f' marker-end="url(#head-{color[1:]})"' if arrow else ""
        if arrow:
            self.heads.add(color)
        self.shapes.append(
            f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.5"{head}/>'
        )

    def svg(self) -> str:
        """Return the text of the image."""
        width, height = self.size
        heads = [HEAD.format(name=color[1:], color=color) for color in sorted(self.heads)]
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" font-family="sans-serif" font-size="13">\n'
            f'<rect width="{width}" height="{height}" fill="white"/>\n'
            + "\n".join(heads + self.shapes)
            + "\n</svg>\n"
        )
