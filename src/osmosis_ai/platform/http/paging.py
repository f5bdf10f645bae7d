"""Query parameters of list pages, and the keys of a page in addition to its items."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import Depends, Query

MAX_PAGE = 50
MAX_LOG_PAGE = 200
MAX_SAMPLE_PAGE = 5_000
# Beyond any table, and a valid number for every database.
_MAX_OFFSET = 10**12


@dataclass(frozen=True, slots=True)
class PageParams:
    limit: int
    offset: int

    def keys(self, total: int, shown: int) -> dict[str, Any]:
        """Return the keys of a page with ``shown`` items of ``total``."""
        end = self.offset + shown
        has_more = shown > 0 and end < total
        return {"total_count": total, "has_more": has_more, "next_offset": end if has_more else None}


@dataclass(frozen=True, slots=True)
class LogPageParams:
    limit: int
    direction: Literal["older", "newer"]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class SamplePageParams:
    limit: int
    cursor: str | None


async def _page_params(
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = MAX_PAGE,
    offset: Annotated[int, Query(ge=0, le=_MAX_OFFSET)] = 0,
) -> PageParams:
    return PageParams(limit, offset)


async def _log_page_params(
    limit: Annotated[int, Query(ge=1, le=MAX_LOG_PAGE)] = 50,
    direction: Literal["older", "newer"] = "older",
    cursor: Annotated[str | None, Query(max_length=64)] = None,
) -> LogPageParams:
    return LogPageParams(limit, direction, cursor or None)


async def _sample_page_params(
    limit: Annotated[int, Query(ge=1, le=MAX_SAMPLE_PAGE)] = 1_000,
    cursor: Annotated[str | None, Query(max_length=64)] = None,
) -> SamplePageParams:
    return SamplePageParams(limit, cursor or None)


Paging = Annotated[PageParams, Depends(_page_params)]
"""The requested page; a limit above 50 is refused with 400."""

LogPaging = Annotated[LogPageParams, Depends(_log_page_params)]
"""The requested page of a log; a limit above 200 is refused with 400."""

SamplePaging = Annotated[SamplePageParams, Depends(_sample_page_params)]
"""The requested page of samples; a limit above 5,000 is refused with 400."""
