"""The directives of the site."""

from __future__ import annotations

import json
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective

from sphinx_reference import api, tables


class Reference(SphinxDirective):
    """Shows one part of the reference: the name of a function of `tables`, or ``api`` and the name of a module."""

    required_arguments = 1
    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The nodes of the part's Markdown."""
        part = self.arguments[0]
        for source in (tables, api):
            self.env.note_dependency(source.__file__)
        if part == "api":
            return self.parse_text_to_nodes(api.module_page(self.arguments[1]), allow_section_headings=True)
        return self.parse_text_to_nodes(tables.PARTS[part](), allow_section_headings=True)


class NotebookPicture(SphinxDirective):
    """Shows the picture that a notebook has stored: the notebook's name, and the id of its cell."""

    required_arguments = 2
    option_spec = {"alt": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        """The picture, inside the page."""
        notebook, cell = self.arguments
        path = Path(self.env.srcdir).parent / "notebooks" / f"{notebook}.ipynb"
        self.env.note_dependency(str(path))
        (outputs,) = (each["outputs"] for each in json.loads(path.read_text())["cells"] if each["id"] == cell)
        (data,) = (each["data"]["image/png"] for each in outputs if "image/png" in each.get("data", {}))
        return [nodes.image(uri=f"data:image/png;base64,{''.join(data.split())}", alt=self.options["alt"])]


class LiteralDiagram(SphinxDirective):
    """Stands in for `graphviz` where the program is not installed: shows the diagram's source."""

    has_content = True
    option_spec = dict.fromkeys(
        ("alt", "align", "caption", "layout", "graphviz_dot", "name", "class"), directives.unchanged
    )

    def run(self) -> list[nodes.Node]:
        """The source as a block of text."""
        return [nodes.literal_block(text="\n".join(self.content))]
