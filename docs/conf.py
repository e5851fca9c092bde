"""The configuration of the documentation site: `make docs` builds it with Sphinx. It needs no internet connection."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]
# The reference is read from the imported package, so the frameworks are imported, too: without their messages.
os.environ.setdefault("KERAS_BACKEND", "torch")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

from spark_estimator import __version__

project = "spark_estimator"
author = "the authors of spark_estimator"
project_copyright = author
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.graphviz", "sphinx_reference"]
exclude_patterns = ["databricks", "sphinx_reference", "_static"]
# In docstrings, `name` is a link where the name is documented, and code where it is not.
default_role = "py:obj"
python_maximum_signature_line_length = 80
autodoc_typehints_format = "short"
# A method that overrides one of PyTorch or Keras must not show the text of theirs.
autodoc_inherit_docstrings = False
napoleon_numpy_docstring = False
napoleon_use_rtype = False
toc_object_entries_show_parents = "hide"

# References are checked, but for names of other projects in signatures and docstrings: their inventories are online.
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_fence_as_directive = ["graphviz"]
myst_heading_anchors = 4
# Links that leave docs/ are links to files of the repository, shown by their path.
myst_url_schemes = ["http", "https", "mailto"]

graphviz_output_format = "svg"
#: "0": the source of each diagram is shown instead of its drawing, for machines without Graphviz.
draws_diagrams = os.environ.get("DIAGRAMS", "1") != "0"

html_theme = "pydata_sphinx_theme"
html_title = "spark_estimator"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_sidebars = {"index": [], "errors": [], "is-it-for-me": [], "roadmap": []}  # pages without others below them
html_theme_options = {
    "navbar_align": "left",
    "show_prev_next": True,
    "secondary_sidebar_items": {"**": ["page-toc"], "index": []},
    "show_toc_level": 2,
    "footer_start": [],
    "footer_end": ["sphinx-version"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
# `make docs-links` only: these need an account, or a program that runs on the reader's machine.
linkcheck_ignore = [r"https?://(localhost|127\.0\.0\.1)"]
