"""The only module that talks to a Maven repository, through `jgo`, in pure Python.

Owns the import of `jgo` and the choice of the repository; knows nothing of the cache's list.
Only the resolver and the downloader of `jgo` are used: its environment builder would fetch a JDK
to sort the jars into modules, and we need only a class path.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from pathlib import Path
from typing import Any

from ._errors import JarsUnavailableError

REPOSITORY_VARIABLE = "TXNPRODUCER_MAVEN_REPOSITORY"
_HTTP_TIMEOUT = 20


class MavenRepository:
    """A remote Maven repository, with the folder that mirrors the fetched files."""

    def __init__(self, folder: Path) -> None:
        try:
            # Imported on the first fetch only: a cache that is filled needs no extra `testing` for
            # this.
            from jgo.config import GlobalSettings
            from jgo.constants import MAVEN_CENTRAL_URL
            from jgo.maven import MavenContext, PythonResolver
        except ImportError as error:
            raise JarsUnavailableError(
                'Fetching Kafka needs jgo: run `pip install "txnproducer[testing]"`.'
            ) from error
        mirror = os.environ.get(REPOSITORY_VARIABLE)
        if mirror:
            repositories = {"mirror": mirror.rstrip("/")}
        else:
            # A company's repositories are in jgo's own settings, if it has any.
            repositories = {"central": MAVEN_CENTRAL_URL, **GlobalSettings.load().repositories}
        # It logs each checksum that a repository does not have; our own checksums are compared
        # anyway.
        logging.getLogger("jgo").setLevel(logging.ERROR)
        self._context: Any = MavenContext(
            resolver=PythonResolver(),
            repo_cache=folder,
            local_repos=[],
            remote_repos=repositories,
            timeout=_HTTP_TIMEOUT,
        )

    def resolve(self, endpoint: str) -> list[str]:
        """Return the coordinates of all jars that are needed at run time.

        Args:
            endpoint: coordinates joined by "+".

        Returns:
            "group:artifact:version" of each jar, the requested ones first.
        """
        from jgo.parse import Endpoint

        wanted = [
            self._context.create_dependency(dataclasses.replace(coordinate, scope="compile"))
            for coordinate in Endpoint.parse(endpoint).coordinates
        ]
        inputs, transitive = self._context.resolver.resolve(wanted)
        # Jars of the other scopes are for building and testing Kafka itself.
        needed = [each for each in transitive if each.scope in ("compile", "runtime")]
        return [str(each.artifact.component) for each in [*inputs, *needed]]

    def download(self, coordinate: str) -> None:
        """Fetch one jar into the folder, unless it is there."""
        group, artifact, version = coordinate.split(":")
        component = self._context.project(group, artifact).at_version(version)
        component.artifact(packaging="jar").resolve()
