"""Handlers that log."""

from __future__ import annotations

import logging

from asgiref.sync import sync_to_async

from django_jobs import job

logger = logging.getLogger("shop.orders")
logger.setLevel(logging.DEBUG)  # as LOGGING of a project does; without it, the root says WARNING


@job(max_attempts=1)
def log_lines(count: int = 1, password: str = "", fail: bool = False) -> None:
    """Logs numbered lines, and what it should not."""
    for number in range(count):
        logger.info("line %d of %d", number, count)
    logger.debug("not kept")
    logger.warning("logged in with %s, api_key=%s", password, "k-4711")
    if fail:
        try:
            raise ValueError("as asked")
        except ValueError:
            logger.exception("broken \x00 \udcff\nnext line")
            raise


@job
def log_nothing() -> None:
    """Silent."""


@job(isolated=True)
def log_alone(word: str) -> None:
    """In a process of its own."""
    logger.info("alone %s", word)


@job(delivery="exactly_once")
def log_once(word: str) -> None:
    """Settled in its own transaction."""
    logger.info("once %s", word)


@job
async def log_on_loop(word: str) -> None:
    """On the loop, and in a thread."""
    logger.info("loop %s", word)
    await sync_to_async(logger.info)("thread %s", word)
