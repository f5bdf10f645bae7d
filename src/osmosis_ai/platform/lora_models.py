"""The adapters of a workspace: checkpoints of its training runs, any of which can be deployed.

Deploying says that an adapter is to be served, until somebody says otherwise; at most
:data:`MAX_ACTIVE_DEPLOYMENTS` of a workspace are at a time, whoever asks at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from osmosis_ai.errors import ConflictError, NotFoundError
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.models import LoraModel, Run, User, Workspace

MAX_ACTIVE_DEPLOYMENTS = 8
"""Per workspace: each served adapter holds memory."""


class DeploymentLimitError(ConflictError):
    """As many adapters are deployed as the workspace may have."""


@dataclass(frozen=True, slots=True)
class FoundModel:
    """An adapter, the run that saved it, and who deployed it last."""

    model: LoraModel
    run_name: str
    deployed_by: str | None

    @property
    def inference_name(self) -> str:
        """What a client that wants it served calls it."""
        return f"{self.model.base_model}:{self.model.name}"


class LoraModels:
    """The adapters of all workspaces.

    Args:
        db, clock: the platform's.
    """

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    def page(self, workspace_id: str, *, limit: int, offset: int) -> tuple[list[FoundModel], int, int]:
        """Return one page of a workspace's adapters, the newest first; how many there are, and how many deployed."""
        newest_first = (LoraModel.created_at.desc(), LoraModel.id.desc())
        asked = _models(workspace_id).order_by(*newest_first).limit(limit).offset(offset)
        mine = LoraModel.workspace_id == workspace_id
        with self._db.session() as session:
            found = [_found(row) for row in session.execute(asked)]
            total = session.scalar(select(func.count()).select_from(LoraModel).where(mine)) or 0
            return found, total, _active(session, workspace_id)

    def get(self, workspace_id: str, name: str) -> FoundModel:
        """Return an adapter by its name or id.

        Raises:
            NotFoundError: the workspace has none.
        """
        with self._db.session() as session:
            return _get(session, workspace_id, name)

    def of_run(self, run_id: str) -> Sequence[LoraModel]:
        """Return the adapters that a run has saved, the earliest first."""
        with self._db.session() as session:
            return session.scalars(
                select(LoraModel).where(LoraModel.run_id == run_id).order_by(LoraModel.step)
            ).all()

    def deploy(self, workspace_id: str, name: str, user: User) -> LoraModel:
        """Have an adapter served from now on; one that is already stays as it is.

        Raises:
            NotFoundError: the workspace has none of that name.
            DeploymentLimitError: too many are deployed.
        """
        with self._db.transaction() as session:
            # Two deployments at once, on an engine with several writers, must not both be the last one allowed.
            session.get_one(Workspace, workspace_id, with_for_update=True)
            model = _get(session, workspace_id, name).model
            if model.deployment_status == "active":
                return model
            if _active(session, workspace_id) >= MAX_ACTIVE_DEPLOYMENTS:
                raise DeploymentLimitError(
                    f"{MAX_ACTIVE_DEPLOYMENTS} models are deployed, as many as a workspace may have; take one "
                    "back first with `osmosis model undeploy NAME`."
                )
            model.deployment_status = "active"
            model.deployed_at = self._clock.now()
            model.deployer_id = user.id
            return model

    def undeploy(self, workspace_id: str, name: str) -> LoraModel:
        """Have an adapter served no longer; one that is not stays as it is.

        Raises:
            NotFoundError: the workspace has none of that name.
        """
        with self._db.transaction() as session:
            model = _get(session, workspace_id, name).model
            if model.deployment_status == "active":
                model.deployment_status = "inactive"
            return model


_COLUMNS: tuple[Any, ...] = (LoraModel, Run.name, User.name, User.email)


def _models(workspace_id: str) -> Select[Any]:
    return (
        select(*_COLUMNS)
        .join(Run, Run.id == LoraModel.run_id)
        .outerjoin(User, User.id == LoraModel.deployer_id)
        .where(LoraModel.workspace_id == workspace_id)
    )


def _found(row: Any) -> FoundModel:
    model, run_name, deployer_name, deployer_email = row
    return FoundModel(model, run_name, deployer_name or deployer_email)


def _get(session: Session, workspace_id: str, name: str) -> FoundModel:
    for column in (LoraModel.name, LoraModel.id):
        row = session.execute(_models(workspace_id).where(column == name)).first()
        if row is not None:
            return _found(row)
    raise NotFoundError(
        f"there is no LoRA model '{name[:255]}' in this workspace.", hint="see `osmosis model list`"
    )


def _active(session: Session, workspace_id: str) -> int:
    deployed = (LoraModel.workspace_id == workspace_id, LoraModel.deployment_status == "active")
    return session.scalar(select(func.count()).select_from(LoraModel).where(*deployed)) or 0
