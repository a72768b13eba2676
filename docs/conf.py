"""Settings of Sphinx for the site, which `python -m docs.site` builds."""

project = "Attention"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinxcontrib.mermaid"]
html_theme = "sphinx_book_theme"
html_title = project
nb_execution_mode = "off"  # the notebooks contain their results
myst_enable_extensions = ["dollarmath", "html_image"]
myst_fence_as_directive = ["mermaid"]
myst_heading_anchors = 4
autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
napoleon_use_ivar = True  # an attribute is described once, by its class
