"""`osmosis platform secret-key`: the key that seals the platform's secrets."""

from __future__ import annotations

from osmosis_ai.cli.output.results import OperationResult


def rotate() -> OperationResult:
    """Make a new key and seal every secret with it, also while the platform runs.

    It may be interrupted at any time: every secret opens all the while, and the same command goes on. Replaced
    keys are kept for a day, for backups being made, and go with the first rotation after that.

    Examples:
        osmosis platform secret-key rotate
    """
    from osmosis_ai.cli.output.context import current
    from osmosis_ai.cli.platform.local_platform import local_platform

    with local_platform() as platform:
        done = platform.rotate_secret_key()
    if done.damaged:
        current().warn(
            f"{len(done.damaged)} secrets could not be opened and are as they were: {', '.join(done.damaged[:5])}; "
            "set them again.",
            code="SECRETS_DAMAGED",
        )
    secrets = "secret" if done.resealed == 1 else "secrets"
    kept = f", {done.forgotten} replaced earlier forgotten" if done.forgotten else ""
    return OperationResult(
        operation="platform.secret-key.rotate",
        message=f"Rotated the secret key: {done.resealed} {secrets} sealed anew{kept}.",
        resource={
            "resealed": done.resealed,
            "forgotten_keys": done.forgotten,
            "damaged": list(done.damaged),
        },
        next_steps=[
            "Backups made before this hold the former key: keep them as safe as it, or make a new one"
        ],
    )
