"""The package's name and version, at their path of 0.2."""

from __future__ import annotations

from osmosis_ai._version import __version__

package_name = "osmosis-ai"
PACKAGE_VERSION = __version__
