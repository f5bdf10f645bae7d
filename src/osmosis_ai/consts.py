"""The package's name and version, under the path that 0.2 had."""

from __future__ import annotations

from osmosis_ai._version import __version__

package_name = "osmosis-ai"
PACKAGE_VERSION = __version__
