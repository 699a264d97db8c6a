"""A cluster's API server, asked with JSON: objects of any kind, as the server itself says they are called."""

import functools
import json
import ssl
from typing import Any, NamedTuple, Self

import httpx

Document = dict[str, Any]


class RefusedError(Exception):
    """The server does not take it; the message is the server's."""

    def __init__(self, answer: httpx.Response) -> None:
        super().__init__(f"{answer.status_code}: {answer.text[:2000]}")
        self.status = answer.status_code


class Resource(NamedTuple):
    root: str
    name: str
    namespaced: bool

    def path(self, namespace: str) -> str:
        return f"{self.root}/namespaces/{namespace}/{self.name}" if self.namespaced else f"{self.root}/{self.name}"


class Api:
    """As the account that the token is of."""

    def __init__(self, url: str, token: str, ca: str) -> None:
        trusted = ssl.create_default_context(cadata=ca)
        headers = {"Authorization": f"Bearer {token}"}
        anew = httpx.Limits(max_keepalive_connections=0)  # a server that was killed leaves no connection behind
        self._client = httpx.Client(
            base_url=url, headers=headers, verify=trusted, timeout=30, trust_env=False, limits=anew
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def ask(self, method: str, path: str, body: Document | None = None, **query: str) -> Any:
        """The document that it answers, or its text. Raises RefusedError."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        content = None if body is None else json.dumps(body)
        answer = self._client.request(method, path, content=content, params=query, headers={"Content-Type": kind})
        if answer.is_error:
            raise RefusedError(answer)
        return answer.json() if "json" in answer.headers["content-type"] else answer.text

    def create(self, document: Document, namespace: str = "", **query: str) -> Document:
        made: Document = self.ask("POST", self.path(document, namespace), document, **query)
        return made

    def version(self) -> tuple[int, int]:
        said = self.ask("GET", "/version")
        return int(said["major"]), int(said["minor"].rstrip("+"))

    def serves(self, api_version: str, kind: str) -> bool:
        return (api_version, kind) in self.resources

    @functools.cached_property
    def resources(self) -> dict[tuple[str, str], Resource]:
        """Of an apiVersion and a kind: what can be made and listed there."""
        roots = {"v1": "/api/v1"}
        for group in self.ask("GET", "/apis")["groups"]:
            roots |= {each["groupVersion"]: f"/apis/{each['groupVersion']}" for each in group["versions"]}
        return {
            (version, each["kind"]): Resource(root, each["name"], each["namespaced"])
            for version, root in roots.items()
            for each in self.ask("GET", root)["resources"]
            if "/" not in each["name"] and {"create", "list"} <= set(each["verbs"])
        }

    def path(self, document: Document, namespace: str = "") -> str:
        """Where objects like this one are, in its own namespace or else in this one."""
        resource = self.resources[document["apiVersion"], document["kind"]]
        return resource.path(document["metadata"].get("namespace", namespace))

    def read(self, document: Document, namespace: str = "") -> Document:
        """What the server has of it now."""
        found: Document = self.ask("GET", f"{self.path(document, namespace)}/{document['metadata']['name']}")
        return found

    def everything_in(self, namespace: str) -> set[tuple[str, str]]:
        """Kind and name of all that is there, but what the cluster notes down of itself."""
        return {
            (kind, item["metadata"]["name"])
            for (_, kind), resource in self.resources.items()
            if resource.namespaced and kind != "Event"
            for item in self.ask("GET", resource.path(namespace))["items"]
        }
