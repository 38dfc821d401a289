"""How the site is built: `make docs`. Nothing here needs a network."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

import evenhand

project = "evenhand"
author = "the evenhand authors"
version = release = evenhand.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

default_role = "code"  # docstrings write `name` for code
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 80
napoleon_use_ivar = True

html_theme = "furo"
html_title = "evenhand"
html_copy_source = False
html_show_copyright = False
