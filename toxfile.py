"""Let tox find pyenv's interpreters.

pyenv's shims answer only for versions that ``pyenv global`` or ``pyenv local`` selected. The
interpreters themselves are put at the end of the search path, so that each one that is installed
counts; where there is no pyenv this does nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
installed = [str(directory) for directory in sorted(root.glob("versions/3.*/bin"))]
os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), *installed])
