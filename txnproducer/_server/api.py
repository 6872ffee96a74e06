"""An API as the server holds it, and the view of the cluster that its bytes need.

Why it exists: on the wire a topic may be an id and a broker an address. Messages name both by
their names and numbers.

Owns: `Api`, `Ask`, `ClusterView`, the errors that end a connection. Must not know: any one API.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from txnproducer._protocol import messages as m

Ask: TypeAlias = Callable[[m.Request], Any]
"""A call that passes a message to the model, and returns the model's answer."""


class MalformedRequestError(Exception):
    """A request has a value without a meaning. Its connection is closed."""


class HangUpError(Exception):
    """The broker ends the connection, and answers nothing."""


class ClusterView:
    """The parts of the cluster that bytes name otherwise than messages: topic ids and addresses.

    Args:
        ids: the topics' names by their ids; it changes with the cluster.
        topics: the existing topics, likewise.
        advertised: host and port of each broker for this listener's clients. A broker that is
            missing has the model's own address.
    """

    def __init__(
        self,
        ids: Mapping[bytes, str],
        topics: Mapping[str, int],
        advertised: Mapping[int, tuple[str, int]],
    ) -> None:
        # The model's own mappings and no copies: topics are created and deleted later.
        self._ids = ids
        self._topics = topics
        self._advertised = advertised

    def name(self, topic_id: uuid.UUID) -> str:
        """Return the name that belongs to an id, or the id's digits if there is no such topic."""
        # No topic has such a name, so the model refuses the request as one for an unknown topic.
        return self._ids.get(topic_id.bytes, topic_id.hex)

    def all_topics(self) -> tuple[str, ...]:
        """Return the names of all topics."""
        return tuple(self._topics)

    def address(self, node: m.BrokerNode) -> dict[str, Any]:
        """Return a broker's id and address, as fields of an answer."""
        # The model's brokers have addresses of their own, at which no listener is bound.
        host, port = self._advertised.get(node.node_id, (node.host, node.port))
        return {"node_id": node.node_id, "host": host, "port": port}


@dataclass(frozen=True, slots=True)
class Api:
    """An API that the server answers.

    Attributes:
        request: the schema of its requests.
        serve: makes the answer to a decoded request.
    """

    request: Any
    serve: Callable[[Any, Ask, ClusterView], Any]
