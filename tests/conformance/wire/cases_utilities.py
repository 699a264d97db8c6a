"""Everything that generates nothing: embeddings and scores, tokens, models, and what probes ask."""

from case import Case, differs, not_offered, same
from cases_chat import HELLO, TALK
from exchange import Ask, Got, get, post

TEXTS = ["hello", "a b c"]


def embed(**fields):
    return {"model": "tiny", "input": "hello", **fields}


READING = {
    "embeddings": ("/v1/embeddings", embed()),
    "embeddings of a list": ("/v1/embeddings", embed(input=TEXTS)),
    "embeddings of token ids": ("/v1/embeddings", embed(input=[5, 6, 7])),
    "embeddings of lists of token ids": ("/v1/embeddings", embed(input=[[5, 6, 7], [8]])),
    "embeddings in base64": ("/v1/embeddings", embed(encoding_format="base64")),
    "embeddings of a conversation": ("/v1/embeddings", {"model": "tiny", "messages": HELLO}),
    "embeddings, too many dimensions": ("/v1/embeddings", embed(dimensions=4)),
    "embeddings of nothing": ("/v1/embeddings", embed(input=[])),
    "embeddings, truncated": ("/v1/embeddings", embed(input=[7] * 5000, truncate_prompt_tokens=100)),
    "embeddings, too long": ("/v1/embeddings", embed(input=[7] * 5000)),
    "pooling": ("/pooling", embed()),
    "pooling of a list": ("/pooling", embed(input=TEXTS)),
    "score": ("/score", {"model": "tiny", "queries": "hello", "documents": TEXTS}),
    "score at /v1": ("/v1/score", {"model": "tiny", "queries": TEXTS, "documents": TEXTS}),
    "score by the old names": ("/score", {"model": "tiny", "text_1": "hello", "text_2": TEXTS}),
    "rerank": ("/rerank", {"model": "tiny", "query": "hello", "documents": TEXTS}),
    "rerank at /v1": ("/v1/rerank", {"model": "tiny", "query": "hello", "documents": TEXTS, "top_n": 1}),
    "rerank at /v2": ("/v2/rerank", {"model": "tiny", "query": "hello", "documents": TEXTS}),
    "classify": ("/classify", embed()),
    "classify a list": ("/classify", embed(input=TEXTS)),
}
UTILITIES = {
    "tokenize": ("/tokenize", {"model": "tiny", "prompt": "import os"}),
    "tokenize, with the pieces": ("/tokenize", {"prompt": "häß 漢字", "return_token_strs": True}),
    "tokenize a conversation": ("/tokenize", {"model": "tiny", "messages": TALK[:2], "add_generation_prompt": True}),
    "tokenize nothing": ("/tokenize", {"model": "tiny"}),
    "detokenize": ("/detokenize", {"model": "tiny", "tokens": [285, 79, 337, 1418]}),
    "detokenize halves of characters": ("/detokenize", {"tokens": [200, 201]}),
    "detokenize text": ("/detokenize", {"model": "tiny", "tokens": "abc"}),
}
FORM = "multipart/form-data; boundary=zebra"
SPEECH = b"""--zebra
Content-Disposition: form-data; name="model"

tiny
--zebra
Content-Disposition: form-data; name="file"; filename="a.wav"
Content-Type: audio/wav

RIFF
--zebra--
""".replace(b"\n", b"\r\n")
# What vLLM answers and the gateway does not have.
NOT_OFFERED = {
    "/load": get("/load"),
    "/metrics": get("/metrics"),
    "/openapi.json": get("/openapi.json"),
    "/docs": get("/docs"),
    "/redoc": get("/redoc"),
    "/kv_event_sources": get("/kv_event_sources"),
    "/invocations": post("/invocations", {"model": "tiny", "messages": HELLO, "max_tokens": 1}),
}
# And what it refuses in its own way.
NOT_OFFERED_EITHER = {
    "/inference/v1/generate": (post("/inference/v1/generate", {"token_ids": [1], "sampling_params": {}}), 403),
    "/inference/v1/abort_requests": (post("/inference/v1/abort_requests", {"request_ids": []}), 403),
    "/v1/chat/completions/render": (post("/v1/chat/completions/render", {"messages": HELLO}), 403),
    "/v1/completions/render": (post("/v1/completions/render", {"prompt": "a"}), 403),
    "/generative_scoring": (post("/generative_scoring", {}), 400),
    "/v1/systemone": (post("/v1/systemone", {}), 400),
    "/scale_elastic_ep": (post("/scale_elastic_ep", {}), 400),
}
# What neither has.
NOWHERE = {
    "an unknown path": get("/v1/nothing"),
    "the root": get("/"),
    "posted to an unknown path": post("/v1/nothing", {}),
    "administration of adapters": post("/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "/"}),
    "sleep": post("/sleep", {}),
}
METHODS = {
    f"{method} {path}": Ask(method, path)
    for path in ("/v1/chat/completions", "/v1/models", "/v1/messages", "/health", "/tokenize", "/version")
    for method in ("OPTIONS", "HEAD", "PUT", "DELETE")
} | {
    "GET chat": get("/v1/chat/completions"),
    "GET completions": get("/v1/completions"),
    "GET responses": get("/v1/responses"),
    "GET messages": get("/v1/messages"),
    "POST models": post("/v1/models", {}),
    "POST health": post("/health", {}),
    "POST version": post("/version", {}),
}
PAGE = {"origin": "https://example.com"}
PREFLIGHT = {**PAGE, "access-control-request-method": "POST"}


def elsewhere(ask: Ask, location: str) -> Case:
    """Starlette names the host that it was asked by; the gateway leaves that to its client."""

    def check(their: Got, our: Got) -> None:
        assert (our.status, our.body) == (their.status, their.body) == (307, b"")
        assert dict(our.headers)["location"] == location
        assert dict(their.headers)["location"].endswith(location)

    return Case((ask,), differs=check)


CASES: dict[str, Case] = {}
for name, (path, body) in READING.items():
    for server in ("text", "embed", "classify"):
        CASES[f"{name}, of a server for {server}"] = same(post(path, body), server=server)
CASES |= {
    "a transcription, of a server for text": same(post("/v1/audio/transcriptions", SPEECH, content_type=FORM)),
    "a translation, of a server for text": same(post("/v1/audio/translations", SPEECH, content_type=FORM)),
    "models of a server for text": same(get("/v1/models")),
    "models of a server for embed": same(get("/v1/models"), server="embed"),
    "version": same(get("/version")),
    "health": same(get("/health")),
    "ping": same(get("/ping")),
    "ping by POST": same(post("/ping", None)),
    "a preflight": same(Ask("OPTIONS", "/v1/chat/completions", headers=PREFLIGHT)),
    "a preflight of models": same(
        Ask("OPTIONS", "/v1/models", headers={**PREFLIGHT, "access-control-request-method": "GET"})
    ),
    "models, from another origin": same(get("/v1/models", **PAGE)),
    "a path with a slash behind": elsewhere(get("/v1/models/?a=b"), "/v1/models?a=b"),
    "a path with a slash behind that is posted to": elsewhere(post("/v1/completions/", {}), "/v1/completions"),
    # Starlette names the methods of the first of two routes at a path.
    "PUT /ping": differs(
        Ask("PUT", "/ping"),
        theirs=Got(405, (("allow", "GET"),), b'{"detail":"Method Not Allowed"}'),
        ours=Got(405, (("allow", "GET, POST"),), b'{"detail":"Method Not Allowed"}'),
    ),
    "livez": differs(get("/livez"), theirs=404, ours=200),
    "readyz": differs(get("/readyz"), theirs=404, ours=200),
}
CASES |= {name: same(post(path, body)) for name, (path, body) in UTILITIES.items()}
CASES |= {f"not offered: {name}": not_offered(ask) for name, ask in NOT_OFFERED.items()}
CASES |= {f"not offered: {name}": not_offered(ask, theirs=status) for name, (ask, status) in NOT_OFFERED_EITHER.items()}
CASES |= {name: same(ask) for name, ask in NOWHERE.items()}
CASES |= {name: same(ask) for name, ask in METHODS.items()}
