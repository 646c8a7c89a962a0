"""The site of `make docs`; what Sphinx lacks for it is in docs/site_extension.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from fl_labelskew_plugins import __version__

project = "fl-labelskew-plugins"
version = release = __version__
html_title = f"{project} {release}"
html_theme = "furo"
html_math_renderer = "drawn"
html_copy_source = html_show_copyright = False
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "site_extension"]
exclude_patterns = ["_build"]
highlight_language = "none"  # of blocks that name no language
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_default_options = {"exclude-members": "model_config, model_post_init"}
myst_fence_as_directive = ["math"]
