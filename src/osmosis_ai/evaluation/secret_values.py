"""Where the values of a run's secrets come from: what was given, the environment, or an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from osmosis_ai.errors import InteractiveRequiredError


def find_secret_values(
    names: Sequence[str],
    *,
    given: Mapping[str, str],
    environ: Mapping[str, str],
    ask: Callable[[str], str] | None = None,
) -> dict[str, str]:
    """Return a value for every name: from ``given``, else ``environ``, else by asking."""
    found = {name: value for name in names if (value := given.get(name) or environ.get(name))}
    missing = [name for name in names if name not in found]
    if missing and ask is None:
        raise InteractiveRequiredError(
            f"no value for {'the secret' if len(missing) == 1 else 'the secrets'} "
            + ", ".join(f"`{name}`" for name in missing)
            + ", which `[secrets].required` names.",
            details={"missing": missing},
            hint=f"export {missing[0]}=…, or pass `--secrets-file`; values stored on a platform do not count here",
        )
    if ask is not None:
        found.update({name: ask(name) for name in missing})
    return found
