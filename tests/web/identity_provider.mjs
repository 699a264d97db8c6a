// An OpenID provider for a test of the sign-in: the certified oidc-provider, with its own pages, one client, and accounts
// with roles. Arguments: where the package is, and the rest as JSON. tests/web/provider.sh installs the package.

const [, , place, given] = process.argv;
const { default: Provider } = await import(place);
const { issuer, accounts, ...client } = JSON.parse(given);
const provider = new Provider(issuer, {
  clients: [{ ...client, token_endpoint_auth_method: "client_secret_basic" }],
  findAccount: (_, sub) => ({ accountId: sub, claims: () => ({ sub, roles: accounts[sub] }) }),
  claims: { openid: ["sub", "roles"] },
  conformIdTokenClaims: false, // all of them are in the ID token
  pkce: { required: () => true },
});
provider.listen(new URL(issuer).port, "127.0.0.1", () => console.log("it serves"));
