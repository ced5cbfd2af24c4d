"""What marks a folder as a package. This module stands apart from `manifest`, whose import takes
longer than to write a package again.
"""

from __future__ import annotations

FORMAT = "webmlc"
"""The value of the manifest's key `format`, which marks a folder as a package of webmlc."""
MANIFEST = "manifest.json"
"""The name of the manifest file in a package."""
