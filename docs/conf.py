"""Settings of Sphinx for the site, which `python -m docs.site` builds."""

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

project = "Attention"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "sphinx_book_theme"
html_title = project
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
# The home page is in the contents, where its name is; search is above them and not in a header too.
html_sidebars = {"**": ["search-button-field", "sbt-sidebar-nav"]}
html_theme_options = {
    "home_page_in_toc": True,
    "navbar_persistent": [],
    "footer_content_items": [],
    "use_download_button": False,  # of sources without their pictures
}
nb_execution_mode = "off"  # the notebooks contain their results
myst_enable_extensions = ["dollarmath", "html_image"]
myst_heading_anchors = 4
autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
napoleon_use_ivar = True  # an attribute is described once, by its class


def setup(app: Sphinx) -> None:
    """Write formulas as MathML, which browsers show without a script from the network."""
    app.add_html_math_renderer("mathml", (write_inline, None), (write_block, None))


def write_inline(translator: HTML5Translator, node: nodes.math) -> None:
    """Write a formula in a line of text."""
    translator.body.append(convert(node.astext()))
    raise nodes.SkipNode


def write_block(translator: HTML5Translator, node: nodes.math_block) -> None:
    """Write a formula in a block that scrolls, with keys too, where it is wider than the page."""
    formula = convert(node.astext(), display="block")
    translator.body.append(f'<div class="formula" tabindex="0">{formula}</div>\n')
    raise nodes.SkipNode
