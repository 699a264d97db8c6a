"""An identity provider: OpenID Connect's code flow with PKCE, for one client, with the claims that a test sets."""

import base64
import hashlib
import json
import secrets
import time
from urllib.parse import parse_qsl

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec

CLIENT, CLIENT_SECRET = "fairlead-page", "of-the-client"


class OidcProvider:
    """It signs everybody in at once. `claims` are those of its ID tokens; `url` is set by the server around it."""

    def __init__(self):
        self.url = ""
        self.private = ec.generate_private_key(ec.SECP256R1())
        self.claims = {"sub": "carol", "roles": ["sre"]}
        self.codes = {}
        self.is_there = True

    async def serve(self, request):
        if not self.is_there:
            return web.Response(status=500)
        answer = {"authorize": self.authorize, "token": self.token}.get(request.path.strip("/"))
        if answer is not None:
            return await answer(request)
        if request.path == "/.well-known/openid-configuration":
            endpoints = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "jwks"}
            found = {name: f"{self.url}/{path}" for name, path in endpoints.items()}
            return web.json_response({"issuer": self.url, **found})
        public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(self.private.public_key()))
        return web.json_response({"keys": [{**public, "kid": "one", "use": "sig", "alg": "ES256"}]})

    async def authorize(self, request):
        asked = dict(request.query)
        assert (asked["response_type"], asked["client_id"]) == ("code", CLIENT)
        assert asked["code_challenge_method"] == "S256"
        assert "openid" in asked["scope"].split()
        code = secrets.token_urlsafe()
        self.codes[code] = asked
        raise web.HTTPFound(f"{asked['redirect_uri']}?code={code}&state={asked['state']}")

    async def token(self, request):
        form = await _form(request)
        basic = base64.b64encode(f"{CLIENT}:{CLIENT_SECRET}".encode()).decode()
        asked = self.codes.pop(form["code"], None)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).rstrip(b"=")
        is_right = asked is not None and (form["redirect_uri"], challenge.decode()) == (
            asked["redirect_uri"],
            asked["code_challenge"],
        )
        if not is_right or request.headers.get("authorization") != f"Basic {basic}":
            return web.json_response({"error": "invalid_grant"}, status=400)
        said = {"iss": self.url, "aud": CLIENT, "nonce": asked["nonce"], "exp": int(time.time()) + 60, **self.claims}
        token = jwt.encode(said, self.private, algorithm="ES256", headers={"kid": "one"})
        return web.json_response({"access_token": "x", "token_type": "Bearer", "id_token": token})

    def issuer(self, page_url, secret_file):
        """The provider in the configuration of a gateway."""
        client = {"client_id": CLIENT, "client_secret_file": str(secret_file), "page_url": page_url, "label": "Dex"}
        roles = {"sre": "operator", "lead": "group-admin"}
        return {"issuer": self.url, "audience": "machines", "roles": roles, "sign_in": client}


async def _form(request):
    return dict(parse_qsl((await request.read()).decode()))
