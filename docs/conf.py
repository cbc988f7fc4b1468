"""The documentation site: `make docs` builds it. Nothing is loaded from other hosts, so it works offline."""

import re
import sys
from pathlib import Path

from pygments.lexers.special import TextLexer

import simstream

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_site"))

import reference  # noqa: E402

project = "simstream"
author = "The simstream developers"
copyright = "2026, The simstream developers"
version = release = simstream.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_site", "_build"]

myst_enable_extensions = ["colon_fence", "attrs_inline"]
myst_heading_anchors = 3
highlight_language = "text"
copybutton_exclude = ".linenos, .gp, .go"

smartquotes_action = "D"  # dashes; quotes stay as they are

# Docstrings are plain text with names in single backticks.
default_role = "py:obj"
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "inherited-members": "BaseEstimator,tuple"}
napoleon_google_docstring = False
napoleon_custom_sections = [("Attributes", "params_style")]
napoleon_use_rtype = False
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"

html_theme = "pydata_sphinx_theme"
html_title = "simstream"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/favicon.svg"
html_show_sourcelink = False
html_copy_source = False
html_context = {
    "github_user": "simstream",
    "github_repo": "simstream",
    "github_version": "main",
    "doc_path": "docs",
    "default_mode": "auto",
}
html_theme_options = {
    "github_url": "https://github.com/simstream/simstream",
    "logo": {"text": "simstream"},
    "navbar_align": "left",
    "header_links_before_dropdown": 8,
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
}
html_sidebars = {"index": [], "tour": [], "which-learner": []}


def link_own_anchors(app, docname, source):
    """Links to anchors in HTML, which generated pages have: MyST knows those of headings only."""
    anchors = set(re.findall(r'<a id="([\w-]+)"></a>', source[0]))
    source[0] = re.sub(
        r"\[([^\]]+)\]\(#([\w-]+)\)",
        lambda m: f'<a href="#{m[2]}">{m[1]}</a>' if m[2] in anchors else m[0],
        source[0],
    )


def setup(app):
    """Make the pages of the reference before the build; docstrings are read as text."""
    for name in ("csv", "jsonl", "svm", "tsv", "txt"):  # files that docs/formats.md shows
        app.add_lexer(name, TextLexer)
    app.connect("source-read", link_own_anchors)
    app.connect("builder-inited", lambda app: reference.write(Path(app.srcdir) / "reference"))
    app.connect("autodoc-process-docstring", reference.as_plain_text, priority=400)
    app.connect("autodoc-skip-member", reference.skip)
    app.connect("doctree-read", reference.unlink_words)
