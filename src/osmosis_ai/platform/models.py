"""Adapters of a workspace: deployable checkpoints of its training runs.

A deployed adapter is served until it is undeployed. At most :data:`MAX_ACTIVE_DEPLOYMENTS` of a workspace are deployed
at a time, even with concurrent requests.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Select, and_, func, select
from sqlalchemy.orm import Session

from osmosis_ai.datasets import file_digest
from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.platform.blobs.store import BlobStore
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.keyed_lists import newest_page
from osmosis_ai.platform.db.tables import DbLoraModel, DbMembership, DbRun, DbUser, DbWorkspace
from osmosis_ai.platform.name_lookup import row_named
from osmosis_ai.viewer.source import ItemPage

MAX_ACTIVE_DEPLOYMENTS = 8
"""Per workspace: each served adapter holds memory."""
LINK_TTL = timedelta(hours=1)
"""How long the URLs of an adapter's files are good: one of a large model takes a while to fetch."""


class DeploymentLimitError(ConflictError):
    """As many adapters are deployed as the workspace may have."""


@dataclass(frozen=True, slots=True)
class FoundLoraModel:
    """An adapter, the run that saved it, and who deployed it last."""

    model: DbLoraModel
    run_name: str
    deployed_by: str | None

    @property
    def inference_name(self) -> str:
        """What a client that wants it served calls it."""
        return f"{self.model.base_model}:{self.model.name}"


@dataclass(frozen=True, slots=True)
class AdapterFile:
    """A file of an adapter; ``size`` in bytes."""

    path: str
    size: int
    sha256: str
    url: str = field(repr=False)


class LoraModelStore:
    """The adapters of all workspaces."""

    def __init__(self, db: Database, blobs: BlobStore, clock: Clock) -> None:
        self._db = db
        self._blobs = blobs
        self._clock = clock

    def page(self, workspace_id: str, *, limit: int, cursor: str | None) -> ItemPage[FoundLoraModel]:
        """Return a workspace's adapters from a place on, the newest first."""
        with self._db.session() as session:

            def entries(ids: Sequence[str]) -> dict[str, FoundLoraModel]:
                found = map(_found, session.execute(_models(DbLoraModel.id.in_(ids))))
                return {each.model.id: each for each in found}

            return newest_page(session, DbLoraModel, workspace_id, entries, limit=limit, cursor=cursor)

    def offset_page(
        self, workspace_id: str, *, limit: int, offset: int
    ) -> tuple[list[FoundLoraModel], int, int]:
        """Return one page of a workspace's adapters, the newest first; how many there are, and how many deployed."""
        newest_first = (DbLoraModel.created_at.desc(), DbLoraModel.id.desc())
        asked = (
            _models(DbLoraModel.workspace_id == workspace_id)
            .order_by(*newest_first)
            .limit(limit)
            .offset(offset)
        )
        mine = DbLoraModel.workspace_id == workspace_id
        with self._db.session() as session:
            found = [_found(row) for row in session.execute(asked)]
            total = session.scalar(select(func.count()).select_from(DbLoraModel).where(mine)) or 0
            return found, total, _active(session, workspace_id)

    def get(self, workspace_id: str, name: str) -> FoundLoraModel:
        """Return an adapter by its name or id."""
        with self._db.session() as session:
            return _get(session, workspace_id, name)

    def of_run(self, run_id: str) -> Sequence[DbLoraModel]:
        """Return the adapters that a run has saved, the earliest first."""
        with self._db.session() as session:
            return session.scalars(
                select(DbLoraModel).where(DbLoraModel.run_id == run_id).order_by(DbLoraModel.step)
            ).all()

    def files(self, model: DbLoraModel) -> list[AdapterFile]:
        """Return an adapter's files, by name, each with a URL that is good for :data:`LINK_TTL`."""
        return [
            AdapterFile(
                name,
                known["size"],
                known["sha256"],
                self._blobs.signed_get_url(known["blob_key"], filename=name, ttl=LINK_TTL),
            )
            for name, known in sorted(model.files.items())
        ]

    def deployed(
        self, user_id: str, workspace_id: str | None, name: str | None = None
    ) -> list[FoundLoraModel]:
        """Return the deployed adapters that a user may ask, the latest deployed first."""
        query = _models(DbLoraModel.deployment_status == "active").join(
            DbMembership,
            and_(DbMembership.workspace_id == DbLoraModel.workspace_id, DbMembership.user_id == user_id),
        )
        if workspace_id is not None:
            query = query.where(DbLoraModel.workspace_id == workspace_id)
        if name is not None:
            base, _, adapter = name.rpartition(":")
            query = query.where(DbLoraModel.name == adapter, DbLoraModel.base_model == base)
        with self._db.session() as session:
            latest_first = (DbLoraModel.deployed_at.desc(), DbLoraModel.id)
            return [_found(row) for row in session.execute(query.order_by(*latest_first))]

    def deployers(self, workspace_id: str) -> dict[str, str | None]:
        """Return who has deployed the adapters that are served, by the adapter's name."""
        active = (DbLoraModel.workspace_id == workspace_id, DbLoraModel.deployment_status == "active")
        with self._db.session() as session:
            found = session.execute(select(DbLoraModel.name, DbLoraModel.deployer_id).where(*active))
            return {row.name: row.deployer_id for row in found}

    def deploy(self, workspace_id: str, name: str, user: DbUser) -> DbLoraModel:
        """Have an adapter served from now on; one that is already stays as it is."""
        with self._db.transaction() as session:
            # Two deployments at once, on an engine with several writers, must not both be the last one allowed.
            session.get_one(DbWorkspace, workspace_id, with_for_update=True)
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

    def undeploy(self, workspace_id: str, name: str) -> DbLoraModel:
        """Have an adapter served no longer; one that is not stays as it is."""
        with self._db.transaction() as session:
            model = _get(session, workspace_id, name).model
            if model.deployment_status == "active":
                model.deployment_status = "inactive"
            return model


def adapter_size(model: DbLoraModel) -> int | None:
    """Return how many bytes an adapter's files have; None where it has none."""
    return sum(int(known["size"]) for known in model.files.values()) if model.files else None


def copy_adapter(blobs: BlobStore, model: DbLoraModel, directory: Path) -> None:
    """Write an adapter's files into ``directory``, which is made."""
    directory.mkdir(parents=True, mode=0o700)
    for name, known in model.files.items():
        with blobs.open(known["blob_key"]) as source, (directory / name).open("wb") as target:
            shutil.copyfileobj(source, target)
        if file_digest(directory / name) != known["sha256"]:
            raise OsmosisError(
                f"the stored file {name} of the adapter '{model.name}' is damaged: its SHA-256 has changed.",
                code="PLATFORM_ERROR",
                hint="use another checkpoint of its run, or train it again",
            )


_COLUMNS: tuple[Any, ...] = (DbLoraModel, DbRun.name, DbUser.name, DbUser.email)


def _models(*which: Any) -> Select[Any]:
    return (
        select(*_COLUMNS)
        .join(DbRun, DbRun.id == DbLoraModel.run_id)
        .outerjoin(DbUser, DbUser.id == DbLoraModel.deployer_id)
        .where(*which)
    )


def _found(row: Any) -> FoundLoraModel:
    model, run_name, deployer_name, deployer_email = row
    return FoundLoraModel(model, run_name, deployer_name or deployer_email)


def _get(session: Session, workspace_id: str, name: str) -> FoundLoraModel:
    mine = _models(DbLoraModel.workspace_id == workspace_id)
    see = "see `osmosis model list`"
    return _found(row_named(session, mine, DbLoraModel, name, called="LoRA model", otherwise=see))


def _active(session: Session, workspace_id: str) -> int:
    deployed = (DbLoraModel.workspace_id == workspace_id, DbLoraModel.deployment_status == "active")
    return session.scalar(select(func.count()).select_from(DbLoraModel).where(*deployed)) or 0


def find_adapter(db: Database, workspace_id: str, model_path: str) -> DbLoraModel | None:
    """Return the adapter of a workspace that ``model_path`` means, if it means one."""
    base, colon, name = model_path.rpartition(":")
    if not colon:
        return None
    named = (
        DbLoraModel.workspace_id == workspace_id,
        DbLoraModel.name == name,
        DbLoraModel.base_model == base,
    )
    with db.session() as session:
        return session.scalar(select(DbLoraModel).where(*named))
