"""A Sphinx extension: parts that are generated from the code, pictures of notebooks, and llms.txt."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from docutils import nodes

if TYPE_CHECKING:
    from sphinx.application import Sphinx


def escape_shapes(app: object, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Escapes the star of a shape such as ``[n, *dims]``, which is no emphasis."""
    lines[:] = [re.sub(r"(?<=[\[ (,])\*(?=\w+[\]),])", r"\\*", line) for line in lines]


def name_repository_files(app: Sphinx, document: str, source: list[str]) -> None:
    """Turns links to files outside of docs/ into their paths: the site has no page for them."""
    docs, root = Path(app.srcdir), Path(app.srcdir).parent

    def name(link: re.Match[str]) -> str:
        path = (docs / document).parent.joinpath(link["target"]).resolve()
        if path.is_relative_to(docs) or not path.exists():
            return link[0]
        named = f"`{path.relative_to(root)}`"
        return named if link["text"].strip("`") == named.strip("`") else f"{link['text']} ({named})"

    source[0] = re.sub(r"\[(?P<text>[^\]\n]+)\]\((?P<target>\.\.?/[^)#\s]+)(#[^)\s]*)?\)", name, source[0])


def write_llms_txt(app: Sphinx, error: Exception | None) -> None:
    """Writes ``llms.txt`` beside the front page: the title of each page, its address and its first sentence."""
    if error is not None or app.builder.format != "html":
        return
    lines = [
        f"# {app.config.project}",
        "",
        "> Horovod's and HorovodRunner's API on current Spark, PyTorch and Keras.",
        "",
    ]
    for name, title in sorted(app.env.titles.items()):
        if name.startswith("reference/api/"):
            continue
        paragraph = next(iter(app.env.get_doctree(name).findall(nodes.paragraph)), None)
        text = "" if paragraph is None else " ".join(paragraph.astext().split())
        sentence = "" if text.startswith("Situation.") else ": " + re.split(r"(?<=[.:]) ", text)[0]
        lines.append(f"- [{title.astext()}]({name}.html){sentence}")
    (Path(app.outdir) / "llms.txt").write_text("\n".join(lines) + "\n")


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the directives."""
    from sphinx_reference.directives import LiteralDiagram, NotebookPicture, Reference

    app.add_directive("reference", Reference)
    app.add_directive("notebook-picture", NotebookPicture)
    app.connect("source-read", name_repository_files)
    app.connect("autodoc-process-docstring", escape_shapes)
    app.connect("build-finished", write_llms_txt)
    if not app.config._raw_config["draws_diagrams"]:
        app.add_directive("graphviz", LiteralDiagram, override=True)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
