"""The directives of the site."""

from __future__ import annotations

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


class LiteralDiagram(SphinxDirective):
    """Stands in for `graphviz` where the program is not installed: shows the diagram's source."""

    has_content = True
    option_spec = dict.fromkeys(
        ("alt", "align", "caption", "layout", "graphviz_dot", "name", "class"), directives.unchanged
    )

    def run(self) -> list[nodes.Node]:
        """The source as a block of text."""
        return [nodes.literal_block(text="\n".join(self.content))]
