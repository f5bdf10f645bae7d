"""The environment variables that each kind of child process gets; every name is listed here, none is passed by default.

The user's shell contains keys that children do not need. Variables beyond these tables (the key of a server, a run's
variables) are added by the code that starts the child.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_PROXIES = frozenset(
    name for kind in ("HTTP", "HTTPS", "ALL", "NO") for name in (f"{kind}_PROXY", f"{kind.lower()}_proxy")
)
CERTIFICATES = frozenset(
    {"SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NIX_SSL_CERT_FILE"}
)
_PROGRAMS = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LANGUAGE", "TZ"),
        *("TMPDIR", "TEMP", "TMP", "SYSTEMROOT", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"),
        *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "OMP_NUM_THREADS"),
        *("PYTHONUTF8", "PYTHONWARNINGS"),
        *_PROXIES,
        *CERTIFICATES,
    }
)
_PROGRAM_PREFIXES = ("LC_", "XDG_")
# How Python finds the same modules and models as this process, and where tests write measurements. Without HF_TOKEN,
# which is personal: a run that needs one gets it as a secret.
_PYTHON = frozenset(
    {
        *("PYTHONPATH", "COVERAGE_PROCESS_START", "OSMOSIS_CACHE_DIR"),
        *("HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "HF_HUB_OFFLINE", "HF_HUB_DOWNLOAD_TIMEOUT"),
    }
)
_PYTHON_PREFIXES = ("CUDA_", "HIP_", "ROCR_", "NCCL_", "PYTORCH_", "OMP_", "MKL_", "OPENBLAS_")
# How Git reaches and trusts repositories, without the variables that redirect it (GIT_DIR and others, exported by
# hooks).
_GIT = frozenset(
    {
        *("SSH_AUTH_SOCK", "SSH_AGENT_PID", "GIT_SSH", "GIT_SSH_COMMAND", "GIT_SSH_VARIANT", "GIT_EXEC_PATH"),
        *("GIT_CEILING_DIRECTORIES", "GIT_DISCOVERY_ACROSS_FILESYSTEM", "DBUS_SESSION_BUS_ADDRESS"),
    }
)
_GIT_PREFIXES = ("GIT_CONFIG_", "GIT_SSL_")
# Where packages come from, the credentials for them, and the compilers of source packages.
_BUILDS = frozenset(
    {
        *("NETRC", "CC", "CXX", "AR", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "ARCHFLAGS", "MAX_JOBS"),
        *("PKG_CONFIG_PATH", "CPATH", "C_INCLUDE_PATH", "LIBRARY_PATH", "MACOSX_DEPLOYMENT_TARGET"),
        *("CUDA_HOME", "CUDA_PATH", "CARGO_HOME", "RUSTUP_HOME", "JAVA_HOME"),
    }
)
# Variables that select package sources.
PACKAGE_PREFIXES = ("UV_", "PIP_", "GIT_SSL_")
_GITHUB = frozenset(
    {
        *("GH_TOKEN", "GITHUB_TOKEN", "GH_ENTERPRISE_TOKEN", "GITHUB_ENTERPRISE_TOKEN"),
        *("GH_HOST", "GH_CONFIG_DIR", "DBUS_SESSION_BUS_ADDRESS"),
    }
)


def chosen(
    environ: Mapping[str, str], names: Iterable[str], prefixes: tuple[str, ...] = ()
) -> dict[str, str]:
    """Return the variables in ``names`` and those that start with one of ``prefixes``."""
    wanted = frozenset(names)
    return {
        name: value for name, value in environ.items() if name in wanted or name.startswith(prefixes or "\0")
    }


def program_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that any program needs: paths, language, network."""
    return chosen(environ, _PROGRAMS, _PROGRAM_PREFIXES)


def python_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a Python child needs to work like this process."""
    return chosen(environ, _PROGRAMS | _PYTHON, (*_PROGRAM_PREFIXES, *_PYTHON_PREFIXES))


def git_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the user's Git needs."""
    return chosen(environ, _PROGRAMS | _GIT, (*_PROGRAM_PREFIXES, *_GIT_PREFIXES))


def build_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that uv, Git and compilers need."""
    return chosen(
        environ, _PROGRAMS | _GIT | _BUILDS, (*_PROGRAM_PREFIXES, *_GIT_PREFIXES, *PACKAGE_PREFIXES)
    )


def github_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the GitHub CLI needs, including its login."""
    return chosen(environ, _PROGRAMS | _GITHUB, _PROGRAM_PREFIXES)


# Effects of variables, and the names that have them, whatever their case.
_RESERVED = {
    "is reserved for Osmosis": r"_?OSMOSIS_.*",
    "controls which libraries the loader adds to programs": (
        r"(LD|DYLD)_.*|GCONV_PATH|LOCPATH|GLIBC_.*|MALLOC_.*"
    ),
    "controls which code an interpreter runs": (
        r"PYTHON.*|VIRTUAL_ENV|CONDA.*|PERL.*|RUBY.*|GEM_.*|BUNDLE_.*|NODE_.*|DENO_.*|BUN_.*|LUA_.*|PHP.*|R_.*"
        r"|_?JAVA_.*|JDK_.*|_JAVA_OPTIONS|CLASSPATH|DOTNET_.*|COVERAGE_PROCESS_START"
    ),
    "controls where the shell and its programs find files or which code they run": (
        r"PATH|SHELL|HOME|USER|LOGNAME|ENV|IFS|PS[0-9]|CDPATH|ZDOTDIR|FPATH|BASH.*|SHELLOPTS|PROMPT_COMMAND|XDG_.*"
        r"|TMPDIR|TEMP|TMP|EDITOR|VISUAL|PAGER|LESS.*|MANPAGER|BROWSER|TERMINFO.*|TERM(CAP)?|COMSPEC|PATHEXT"
        r"|SYSTEMROOT|WINDIR|LC_.*|LANG|LANGUAGE"
    ),
    "controls which commands Git and SSH run or which hosts they use": r"GIT_.*|SSH_.*|GH_HOST|GH_CONFIG_DIR|NETRC",
    "controls where package managers and compilers get code": (
        r"(PIP|PIPX|UV|POETRY|PDM|HATCH|NPM|YARN|PNPM|COREPACK|CARGO|RUSTUP|MAVEN|GRADLE|CMAKE|COMPOSER)_.*"
        r"|RUSTC.*|RUSTFLAGS|GO(PROXY|FLAGS|PATH|ROOT|SUMDB|NOSUMDB|PRIVATE|INSECURE|TOOLCHAIN|ENV)|MAKEFLAGS"
        r"|CC|CXX|CFLAGS|CXXFLAGS|CPPFLAGS|LDFLAGS|PKG_CONFIG.*|LIBRARY_PATH|CPATH|C_INCLUDE_PATH|HF_ENDPOINT"
    ),
    "sends traffic through a proxy": r".*_PROXY|PROXY",
    "controls which certificates are trusted": (
        r"SSL_.*|SSLKEYLOGFILE|OPENSSL_.*|.*_CA_(BUNDLE|CERTS?|FILE)|NODE_EXTRA_CA_CERTS|NIX_SSL_.*|GRPC_.*"
    ),
    "selects a settings file that can start programs": (
        r"AWS_(SHARED_CREDENTIALS|CONFIG)_FILE|KUBECONFIG|DOCKER_.*|BOTO_CONFIG|GOOGLE_EXTERNAL_ACCOUNT_.*|CLOUDSDK_.*"
    ),
}


def why_reserved(name: str) -> str | None:
    """Return the effect that a variable has and a repository must not: on how programs start, install or connect."""
    found = (reason for reason, names in _RESERVED.items() if re.fullmatch(names, name, re.IGNORECASE))
    return next(found, None)
