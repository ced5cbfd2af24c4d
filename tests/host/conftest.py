"""A GPU driver without a display still wants a folder for its sockets."""

import os
import tempfile

os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
